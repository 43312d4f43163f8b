"""What a process remembers of the turns that it runs for others: bounded by weight, and a reader loses nothing."""

from __future__ import annotations

import anyio
import pytest

from repertory.backends.peer_ports import JsonLine
from repertory.cluster import running_calls
from repertory.cluster.running_calls import RunningCall

pytestmark = pytest.mark.anyio
LINE: JsonLine = {"event": {"data": "x" * 1_000}}


@pytest.fixture
async def call(monkeypatch: pytest.MonkeyPatch) -> RunningCall:
    monkeypatch.setattr(running_calls, "_KEPT_BYTES_MAX", 40_000)
    monkeypatch.setattr(running_calls, "_TOGETHER_BYTES_MAX", 4_000)
    return RunningCall(("a", "s", "t"))


async def test_lines_without_a_reader_are_forgotten_by_their_weight(call: RunningCall) -> None:
    for _ in range(200):
        await call.tell(LINE)
    call.end({"end": None})
    (lines,) = [each async for each in call.lines(None, 0)]
    assert lines.end
    assert "error" in lines.lines[0]
    # The newest are there.
    held = [line async for some in call.lines(call.run, 190) for line in some.lines]
    assert [line["n"] for line in held] == [*range(191, 202)]


async def test_a_turn_waits_for_its_reader_by_weight_and_no_line_is_lost(call: RunningCall) -> None:
    read: list[object] = []
    most = 0

    async def follow() -> None:
        nonlocal most
        async for some in call.lines(None, 0):
            await anyio.lowlevel.checkpoint()
            most = max(most, len(some.lines))
            read.extend(line["n"] for line in some.lines if "n" in line)

    async with anyio.create_task_group() as group:
        group.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        for _ in range(100):
            await call.tell(LINE)
        call.end({"end": None})
    assert read == [*range(1, 102)]
    assert most < 8
