"""Reading a run that was followed by others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from repertory.actors.memory_journal import MemoryJournal
from repertory.backends.worker_threads import run_in_thread
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import Kind
from repertory.core.journal.verify import verify
from repertory.core.orchestration.past_run import past_run

if TYPE_CHECKING:
    from repertory.actors.backlog import Backlog
    from repertory.actors.durable import Durable
    from repertory.core.orchestration.run import Run

_TELLING = frozenset({Kind.NODE, Kind.BRANCH})
"""The kinds of rows that say what became of runs."""


async def read_run(keeper: Durable | MemoryJournal, session_id: str, backlog: Backlog, number: int) -> Run | None:
    """The run of that number; None when it is not there or is not over. The whole journal is read for it."""
    if isinstance(keeper, MemoryJournal):
        return past_run(keeper.told_of_runs(), number)
    rows = list(await keeper.store.load(session_id, backlog.agent_id, whole=True))
    await run_in_thread(partial(verify, rows, session_id=session_id))
    stored = rows[-1].seq if rows else 0
    rows += [row for row in backlog.rows if row.seq > stored]
    telling = [row for row in rows if row.kind in _TELLING]
    return await run_in_thread(lambda: past_run(records_of(telling, session_id=session_id), number))
