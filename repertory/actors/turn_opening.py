"""Opening a turn: what the core decides about how it begins, with what is asked and answered on record.

Not an actor: it belongs to the agent actor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from repertory.core.journal.records import Interrupted, Resumed
from repertory.core.opening import Ask, Opening, UnknownOutcome, open_turn
from repertory.core.prompt import Answers

if TYPE_CHECKING:
    from repertory.actors.agent_parts import AgentParts
    from repertory.actors.ledger import Ledger
    from repertory.core.messages import ToolUse
    from repertory.core.prompt import Said
    from repertory.core.standing import Standing


class Opened(NamedTuple):
    """How a turn begins, and where the conversation stands now."""

    opening: Opening
    standing: Standing


class TurnOpening:
    """Opens the turns of one agent."""

    def __init__(self, ledger: Ledger, parts: AgentParts, unknown_outcome: UnknownOutcome) -> None:
        self._ledger = ledger
        self._parts = parts
        self._unknown_outcome: UnknownOutcome = unknown_outcome

    def open(self, standing: Standing, prompt: Said | Answers, *, drop: bool) -> Opened:
        """What the call begins with. Errors: those of `open_turn`, with nothing on record."""
        now = self._ledger.wall()
        opening = open_turn(standing, prompt, self._policy, now=now, drop=drop)
        new = standing.new_answers(prompt.responses) if isinstance(prompt, Answers) else {}
        if new:
            self._ledger.add(Resumed(at=now, responses=new))
            standing = standing.answered(new)
        asked = standing.not_asked(opening.interrupts) if isinstance(opening, Ask) else ()
        if asked:
            self._ledger.add(Interrupted(at=now, interrupts=asked))
            standing = standing.asked(asked)
        return Opened(opening, standing)

    def _policy(self, use: ToolUse) -> UnknownOutcome:
        tool = self._parts.tools.get(use["name"])
        if tool is not None and (tool.idempotent or not tool.effects):
            return "retry"
        return self._unknown_outcome
