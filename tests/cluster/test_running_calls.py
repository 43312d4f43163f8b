"""The log of a turn that runs for another process: readers come, go, and come back."""

from __future__ import annotations

from contextlib import aclosing

import anyio
import pytest

from repertory.backends.peer_ports import JsonLine
from repertory.cluster.running_calls import RunningCall, RunningCalls

pytestmark = pytest.mark.anyio
KEY = ("agent", "session", "token")


async def read(call: RunningCall, run: str | None = None, after: int = 0, most: int = 10**6) -> list[JsonLine]:
    found: list[JsonLine] = []
    async with aclosing(call.lines(run, after)) as lines:
        async for together in lines:
            found.extend(together.lines)
            if together.end or len(found) > most:
                break
    return found


async def test_a_reader_that_comes_back_reads_on_after_its_last_line() -> None:
    call = RunningCall(KEY)
    for number in range(5):
        await call.tell({"event": {"data": str(number)}})
    call.end({"result": 1})
    first = await read(call, most=3)
    assert first[0] == {"run": call.run, "n": 1, "event": {"data": "0"}}
    again = await read(call, call.run, after=3)
    assert [(line.get("run"), line["n"]) for line in again] == [(call.run, 4), (None, 5), (None, 6)]
    assert again[-1] == {"n": 6, "result": 1}


async def test_a_reader_of_another_log_reads_all_lines() -> None:
    call = RunningCall(KEY)
    await call.tell({"event": {}})
    call.end({"result": 1})
    assert [line.get("n") for line in await read(call, "another", after=5)] == [1, 2]


async def test_a_log_without_lines_is_named_alone_soon() -> None:
    call = RunningCall(KEY)
    assert await read(call, most=0) == [{"run": call.run}]


async def test_lines_that_are_there_are_read_together_with_the_end_of_the_log() -> None:
    call = RunningCall(KEY)
    for _ in range(9):
        await call.tell({"event": {}})
    call.end({"result": 1})
    async with aclosing(call.lines(None, 0)) as lines:
        together = await anext(lines)
    assert (len(together.lines), together.end) == (10, True)


async def test_a_turn_waits_for_a_slow_reader_and_not_for_one_that_has_gone() -> None:
    call = RunningCall(KEY)
    told = 0

    async def tell() -> None:
        nonlocal told
        for _ in range(2000):
            await call.tell({"event": {}})
            told += 1
        call.end({"result": 1})

    async with anyio.create_task_group() as group:
        lines = call.lines(None, 0)
        await anext(lines)
        await call.tell({"event": {}})
        await anext(lines)
        group.start_soon(tell)
        await anyio.sleep(1)
        assert told < 400
        await lines.aclose()
    assert told == 2000


async def test_lines_that_are_not_kept_any_more_are_told_as_an_error() -> None:
    call = RunningCall(KEY)
    for _ in range(10_000):
        await call.tell({"event": {}})
    found = await read(call, call.run, after=1)
    assert found[-1]["error"] == {
        "group": "Retryable",
        "type": "Unavailable",
        "text": "the events in between are not kept any more",
    }


async def test_readers_that_are_sent_away_read_on_when_they_come_back() -> None:
    call = RunningCall(KEY)
    await call.tell({"event": {"data": "a"}})
    found: list[JsonLine] = []

    async def reader() -> None:
        found.extend(await read(call))

    async with anyio.create_task_group() as group:
        group.start_soon(reader)
        await anyio.sleep(1)
        call.send_away()
    assert found == [{"run": call.run, "n": 1, "event": {"data": "a"}}, {"moved": None}]
    call.end({"result": 1})
    assert await read(call, call.run, after=1) == [{"run": call.run, "n": 2, "result": 1}]


async def test_calls_that_are_over_are_forgotten_after_a_while() -> None:
    calls = RunningCalls()
    call = calls.begin(KEY, None)
    assert calls.get(KEY) is call
    call.end({"result": 1})
    calls.forget_old()
    assert calls.get(KEY) is call
    await anyio.sleep(20)
    calls.forget_old()
    assert calls.get(KEY) is None
