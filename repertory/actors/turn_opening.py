"""Opening a turn: what the core decides about how it begins, with what is asked and answered on record.

Not an actor: it belongs to the agent actor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from repertory.actors.persister_messages import LeftBehind, ReadLeftBehind
from repertory.core.journal.records import Interrupted, Resumed
from repertory.core.opening import Ask, Opening, UnknownOutcome, going_on_with, open_turn
from repertory.core.prompt import Answers, Said
from repertory.core.turn import Began

if TYPE_CHECKING:
    from repertory.actors.agent_parts import AgentParts
    from repertory.actors.call import Invocation
    from repertory.actors.ledger import Ledger
    from repertory.actors.persister import PersisterMessage
    from repertory.actors.turn_record import TurnRecord
    from repertory.core.messages import ToolUse
    from repertory.core.standing import Standing
    from repertory.runtime.ref import ActorRef


class Opened(NamedTuple):
    """How a turn begins, and where the conversation stands now."""

    opening: Opening
    standing: Standing
    begun: bool = False
    """Whether something of the turn is on record by now."""


class TurnOpening:
    """Opens the turns of one agent."""

    def __init__(
        self, persister: ActorRef[PersisterMessage], ledger: Ledger, parts: AgentParts, unknown_outcome: UnknownOutcome
    ) -> None:
        self._persister = persister
        self._ledger = ledger
        self._parts = parts
        self._unknown_outcome: UnknownOutcome = unknown_outcome

    async def open(
        self, standing: Standing, prompt: Said | Answers, invocation: Invocation, record: TurnRecord
    ) -> Opened:
        """What the call begins with. Errors: those of `open_turn` and of guards, with nothing on record."""
        left = await self._left_behind(invocation.idempotency_token, prompt)
        if left is not None and isinstance(prompt, Said):
            prompt = Said(messages=(going_on_with(left.turn, left.shown, prompt.messages),))
        opened = self._decide(standing, prompt, drop=invocation.drop_interrupts)
        if left is None or not left.turn.unknown or not isinstance(opened.opening, Began):
            return opened
        record.footing.turns += 1
        standing = await record.state_again(opened.opening.messages, left.turn)
        opening, standing, _ = self._decide(standing, Said(messages=()), drop=False)
        return Opened(opening, standing, begun=True)

    async def _left_behind(self, token: str | None, prompt: Said | Answers) -> LeftBehind | None:
        """The turn that the call names, when it has no answer and another one began behind it."""
        if token is None or isinstance(prompt, Answers) or not prompt.messages:
            return None
        self._ledger.hand_over(soon=True)
        return await self._persister.ask(ReadLeftBehind(token=token), timeout_s=math.inf)

    def _decide(self, standing: Standing, prompt: Said | Answers, *, drop: bool) -> Opened:
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
