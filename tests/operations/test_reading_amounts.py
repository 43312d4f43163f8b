"""Work on stored rows: on the event loop while it takes some milliseconds, by their number and by their bytes."""

from __future__ import annotations

import threading

import pytest

from repertory.app.sessions.reading import ROWS_AT_ONCE_MAX, in_thread_when_many
from repertory.backends.worker_threads import OFF_LOOP_BYTES
from repertory.core.journal.rows import Row

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def rows(number: int, size: int) -> list[Row]:
    return [Row("a", seq, 1, 1, 1, b"", b"", bytes(size)) for seq in range(1, number + 1)]


@pytest.mark.parametrize(
    ("stored", "elsewhere"),
    [
        ([rows(ROWS_AT_ONCE_MAX, 100)], False),
        ([rows(ROWS_AT_ONCE_MAX, 0), rows(1, 0)], True),
        ([rows(2, OFF_LOOP_BYTES)], True),
        ([rows(1, OFF_LOOP_BYTES), rows(1, 1)], True),
    ],
)
async def test_few_rows_that_are_large_leave_the_event_loop_as_many_do(
    stored: list[list[Row]], elsewhere: bool
) -> None:
    worked = await in_thread_when_many(threading.get_ident, *stored)
    assert (worked != threading.get_ident()) is elsewhere
