"""Writing what is left of a session that ends, for as long as its actor may take."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

import anyio

from repertory.actors.backlog import Backlog
from repertory.actors.writer import WriteLast, WriterMessage
from repertory.backends.ports import Lease
from repertory.core.journal.rows import Row
from repertory.core.outage import Verdict, retry_after_s, stored_of, verdict_on
from repertory.errors import LeaseLost, RepertoryError
from repertory.runtime.clock import Rng
from repertory.runtime.ref import ActorRef


async def write_last(
    writer: ActorRef[WriterMessage],
    lease: Lease,
    backlog: Backlog,
    last_stored: Callable[[], Awaitable[Row | None]],
    rng: Rng,
) -> None:
    """Try until the backlog is empty, or trying makes no sense. Cancel it when the time is over.

    A write that is under way reaches the store before. `last_stored` asks the store for the journal's last row. What is
    left stays in the backlog, with the reason.
    """
    failures = 0
    while backlog.waits:
        backlog.take_all()
        rows = backlog.sent
        erase = tuple((backlog.agent_id, seq) for seq in sorted(backlog.erasing))
        try:
            seq = await writer.ask(WriteLast(lease=lease, rows=rows, erase=erase), timeout_s=math.inf)
        except LeaseLost as error:
            backlog.error = error
            seq = await _stored_after_all(rows, backlog, last_stored) if rows else 0
        except RepertoryError as error:
            backlog.error = error
            seq = 0
        if seq:
            if backlog.error is not None:
                backlog.put_back()
            backlog.stored(seq)
        elif backlog.error is None or verdict_on(backlog.error) is Verdict.GIVE_UP:
            return
        else:
            failures += 1
            await anyio.sleep(retry_after_s(backlog.error, failures, rng.uniform(0.0, 1.0)))


async def _stored_after_all(
    rows: Sequence[Row], backlog: Backlog, last_stored: Callable[[], Awaitable[Row | None]]
) -> int:
    """The last of the rows that is stored; 0 when none is, or when the store does not say."""
    try:
        stored = stored_of(rows, await last_stored())
    except RepertoryError as error:
        backlog.error = error
        return 0
    return rows[stored - 1].seq if stored else 0
