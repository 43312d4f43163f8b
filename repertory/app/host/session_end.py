"""Letting what a session has begun come to its end, in time for whoever waits for that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from repertory.actors.ledger import LATE_S

if TYPE_CHECKING:
    from repertory.app.host.active_session import ActiveSession


async def finish(session: ActiveSession, by: float) -> None:
    """Take no more turns, and return when none is left and what was begun for memory stores is over.

    `by`: the deadline of the call for which this is done, by the event loop's clock. Extraction that is not over by
    then stays in the journal, and the session's last write is not tried for much longer.
    """
    await session.finish_turns()
    with anyio.move_on_after(_left_s(by)):
        await session.finish_memory()
    if by < math.inf:
        session.hurry((_left_s(by) + LATE_S) / 2)  # Its last write may take twice as long.


def _left_s(by: float) -> float:
    return max(by - anyio.current_time(), 0.0)
