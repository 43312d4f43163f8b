"""The mark behind a turn: a record that somebody wants to find there later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repertory.core.snapshots.trigger import EndedTurn

if TYPE_CHECKING:
    from repertory.actors.agent_parts import AgentParts, Footing
    from repertory.actors.ledger import Ledger


async def mark_turn(parts: AgentParts, footing: Footing, ledger: Ledger) -> None:
    """Ask whether the turn that has just ended is to be marked, and add the record when it is. Does not fail."""
    if parts.mark is None:
        return
    turn = EndedTurn(turns=footing.turns, messages=parts.mirror.messages(), state=parts.state)
    record = await parts.mark(turn)
    if record is not None:
        ledger.add(record)
