"""Calls outside a block, of agents with a memory manager: their sessions stay alive between calls, and nothing that
memory stores are to be told is told late, twice or never.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterInvocationEvent,
    Agent,
    ExtractionConfig,
    ExtractionTrigger,
    ExtractionTriggerContext,
    IntervalTrigger,
    InvocationTrigger,
    MemoryManager,
    ScriptedModel,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    Unavailable,
)
from repertory.errors import ModelFailed
from tests.app.memory.test_memory_extraction import Echo
from tests.app.memory.toy_memories import Facts, Transcripts
from tests.app.sessions.test_warm_sessions import open_files, owner_of, texts
from tests.compat.test_outside_turns import run_to_its_end
from tests.service.embedding_process import started

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


def every(turns: int, *, extractor: Any = None) -> ExtractionConfig:
    return ExtractionConfig(trigger=IntervalTrigger(turns), extractor=extractor)


def keeping(store: Any, path: Path | None, *answers: object, **options: Any) -> Agent:
    model = ScriptedModel(list(answers) or ["ok"], loop=True)
    manager = None if path is None else SQLiteSessionManager("s", path=path)
    memory = MemoryManager(stores=[store], injection=False)
    return Agent(
        model,
        memory_manager=memory,
        session_manager=manager,
        callback_handler=None,
        retry_strategy=None,
        **options,
    )


async def talk(agent: Agent, first: int, last: int) -> None:
    for number in range(first, last + 1):
        await agent.invoke_async(f"q{number}")


def asked(store: Transcripts) -> list[list[str]]:
    """Of each batch, what the user said."""
    return [batch[::2] for batch in store.batches]


# When memories are extracted.


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_the_turns_between_two_extractions_are_counted_over_calls(where: str, path: Path) -> None:
    store = Transcripts(extraction=every(3))
    agent = keeping(store, None if where == "memory" else path)
    for number in range(1, 8):
        await agent.invoke_async(f"q{number}")
        assert len(store.batches) == number // 3  # A call waits for the extraction that its turn began.
    assert asked(store) == [["q1", "q2", "q3"], ["q4", "q5", "q6"]]
    report = await agent.flush_memory()
    assert report["transcripts"].landed == 2
    assert asked(store)[2:] == [["q7"]]
    await talk(agent, 8, 10)
    assert asked(store)[3:] == [["q8", "q9", "q10"]]


async def test_stores_are_told_the_same_as_by_an_agent_that_is_opened_for_each_call(tmp_path: Path) -> None:
    """With turns that fail, and a store that is away for a while."""
    told: list[list[list[str]]] = []
    for kind in ("warm", "cold"):
        store = Transcripts(extraction=every(2))
        path = tmp_path / f"{kind}.db"
        agent = keeping(store, path)
        for number in range(1, 15):
            if kind == "cold":
                agent = keeping(store, path)
            agent.model = ScriptedModel([ModelFailed("no") if number in (3, 9, 10) else "ok"], loop=True)
            store.down = Unavailable("away") if number == 6 else None
            with suppress(ModelFailed):
                await agent.invoke_async(f"q{number}")
        await agent.flush_memory()
        told.append(store.batches)
    assert told[0] == told[1]
    assert sum(len(batch) for batch in told[0]) == 28


async def test_a_trigger_that_fires_between_two_calls_counts_for_the_next(path: Path) -> None:
    class Now(ExtractionTrigger):
        name = "now"

        def attach(self, context: ExtractionTriggerContext) -> None:
            self.fire = context.fire

    trigger = Now()
    store = Transcripts(extraction=ExtractionConfig(trigger=trigger))
    agent = keeping(store, path)
    await talk(agent, 1, 2)
    trigger.fire()
    await anyio.to_thread.run_sync(trigger.fire)
    await anyio.sleep(0.05)
    assert store.batches == []
    assert owner_of(path) is None
    await agent.invoke_async("q3")
    assert asked(store)[0][:2] == ["q1", "q2"]
    await agent.flush_memory()
    assert list(chain(*asked(store))) == ["q1", "q2", "q3"]


async def test_a_call_waits_for_an_extraction_that_a_hook_of_its_turn_began(path: Path) -> None:
    class Last(ExtractionTrigger):
        name = "last"

        def attach(self, context: ExtractionTriggerContext) -> None:
            context.agent.add_hook(lambda event: context.fire(), AfterInvocationEvent)

    store = Transcripts(extraction=ExtractionConfig(trigger=Last()))
    store.takes_s = 0.03
    agent = keeping(store, path)
    for number in range(1, 4):
        await agent.invoke_async(f"q{number}")
        assert len(store.batches) == number
        assert owner_of(path) is None


# What happens between two calls: nothing.


async def test_nobody_owns_the_session_and_no_store_is_asked_between_two_calls(path: Path) -> None:
    store = Transcripts(extraction=every(1))
    agent = keeping(store, path)
    store.down = Unavailable("away")
    await talk(agent, 1, 2)
    asked_before = store.asked
    assert asked_before >= 2
    await anyio.sleep(1.2)  # Longer than a failed store rests.
    assert store.asked == asked_before
    assert owner_of(path) is None
    store.down = None
    await agent.invoke_async("q3")
    await agent.flush_memory()
    assert list(chain(*asked(store))) == ["q1", "q2", "q3"]


async def test_what_another_program_has_said_in_between_is_extracted_once(path: Path) -> None:
    store = Transcripts(extraction=every(3))
    agent = keeping(store, path)
    await agent.invoke_async("q1")
    other = keeping(Transcripts(extraction=every(50)), path)  # It tells its own store of another pace.
    other_store = other.memory_manager.stores[0]  # type: ignore[union-attr]
    await other.invoke_async("q2")
    await other.shutdown_async()
    assert asked(other_store) == [["q1", "q2"]]  # type: ignore[arg-type]
    await talk(agent, 3, 5)
    await agent.flush_memory()
    assert list(chain(*asked(store))) == ["q3", "q4", "q5"]


async def test_two_agents_with_memories_of_their_own_take_turns_in_one_session(path: Path) -> None:
    ann, ben = Facts("ann", extraction=every(1, extractor=Echo())), Facts("ben", extraction=every(1, extractor=Echo()))
    agents = [keeping(ann, path), keeping(ben, path)]
    for number in range(6):
        await agents[number % 2].invoke_async(f"q{number}")
    for agent in agents:
        await agent.flush_memory()
    assert sorted(set(ann.entries)) == sorted(ann.entries) == [f"fact q{number}" for number in range(6)]
    assert sorted(set(ben.entries)) == sorted(ben.entries) == [f"fact q{number}" for number in range(6)]


async def test_a_tool_that_queues_memories_is_recorded_and_written_before_the_call_ends(path: Path) -> None:
    store = Facts(extraction=None)
    memory = MemoryManager(stores=[store], add_tool_config={"wait_for_writes": False}, injection=False)
    use = {"toolUse": {"name": "add_memory", "input": {"entries": ["likes tea"]}}}
    model = ScriptedModel(["hello", use, "noted", "ok"])
    manager = SQLiteSessionManager("s", path=path)
    agent = Agent(model, memory_manager=memory, session_manager=manager, callback_handler=None)
    await agent.invoke_async("one")
    await agent.invoke_async("two")
    assert store.entries == ["likes tea"]
    assert owner_of(path) is None
    await memory.add("likes rain")
    await agent.invoke_async("three")
    assert store.entries == ["likes tea", "likes rain"]


# How calls end.


async def test_shutting_down_tells_the_stores_the_rest_and_closes_what_calls_left_open(path: Path) -> None:
    store = Transcripts(extraction=every(5))
    agent = keeping(store, path)
    await talk(agent, 1, 2)
    assert open_files(path)
    await agent.shutdown_async()
    assert not open_files(path)
    assert asked(store) == [["q1", "q2"]]
    await talk(agent, 3, 4)
    await agent.shutdown_async()
    assert asked(store) == [["q1", "q2"], ["q3", "q4"]]


async def test_a_call_whose_time_is_up_does_not_wait_for_its_extraction(path: Path) -> None:
    store = Transcripts(extraction=every(1))
    agent = keeping(store, path)
    await agent.invoke_async("q1")
    store.takes_s = 20.0
    began = anyio.current_time()
    await agent.invoke_async("q2", timeout_s=0.5)
    assert anyio.current_time() - began < 10
    assert owner_of(path) is None
    store.takes_s = 0.0
    await agent.invoke_async("q3")
    await agent.flush_memory()
    assert list(chain(*asked(store))) == ["q1", "q2", "q3"]


async def test_a_call_that_was_cancelled_loses_nothing_for_memory(path: Path) -> None:
    store = Transcripts(extraction=every(2))
    model = ScriptedModel(["ok"], delay_s=0.03, loop=True)
    memory = MemoryManager(stores=[store], injection=False)
    agent = Agent(
        model, memory_manager=memory, session_manager=SQLiteSessionManager("s", path=path), callback_handler=None
    )
    await agent.invoke_async("q0")
    store.takes_s = 0.02
    for number, after_s in enumerate((0.0, 0.001, 0.02, 0.05, 0.2), 1):
        with anyio.move_on_after(after_s):
            await agent.invoke_async(f"q{number}")
    await agent.invoke_async("last")
    await agent.flush_memory()
    said = [text for batch in store.batches for text in batch]
    assert [text for text in said if text == "last"] == ["last"]
    assert said == texts(agent)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("times", [1, 2])
async def test_a_call_that_asyncio_cancels_at_any_moment_leaves_memory_and_session_in_order(
    times: int, path: Path
) -> None:
    """No shield stops such a cancellation, and it may come again while the call still ends."""
    store = Facts(extraction=every(1, extractor=Echo()))
    store.add_s = 0.001
    agent = keeping(store, path)
    await agent.invoke_async("q")
    for moment in range(40):
        call = asyncio.create_task(agent.invoke_async(f"cut short {moment}"))
        for _ in range(moment):
            await asyncio.sleep(0.0004 * (moment % 2))
        for _ in range(times):
            call.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([call])
        if moment % 3 == 0:  # The next call comes at once.
            assert str(await agent.invoke_async(f"at once {moment}")) == "ok"
        await asyncio.sleep(0.02)
        for _ in range(6_000):
            if owner_of(path) is None:
                break
            await asyncio.sleep(0.005)
        else:
            pytest.fail(f"the session was not given up after {moment} steps")
    await agent.invoke_async("last")
    await agent.flush_memory()
    said = [f"fact {text}" for text in await everything_asked(agent)]
    assert sorted(set(store.entries)) == sorted(store.entries)
    assert set(said) == set(store.entries)


async def everything_asked(agent: Agent) -> list[str]:
    history = await agent.history()
    return [message["content"][0]["text"] for message in history if message["role"] == "user"]  # type: ignore[typeddict-item]


# Loops, threads and processes.

LOOPS = """
import asyncio, gc, os, sys, threading, trio
from repertory import *
from tests.app.memory.toy_memories import Transcripts

def called(run):
    result = run()
    assert str(result) == "ok", result

kept = None if sys.argv[1] == "memory" else SQLiteSessionManager("s", path=sys.argv[1])
store = Transcripts(extraction=ExtractionConfig(trigger=IntervalTrigger(4)))
facts = SQLiteMemoryStore(sys.argv[2], extraction=ExtractionConfig(
    trigger=IntervalTrigger(3), extractor=ModelExtractor(model=ScriptedModel(["[]"], loop=True))))
memory = MemoryManager(stores=[store, facts])
agent = Agent(ScriptedModel(["ok"], loop=True), session_manager=kept, memory_manager=memory, callback_handler=None)
waits = asyncio.new_event_loop()  # It runs now and then, and is never closed.
for _ in range(3):
    called(lambda: asyncio.run(agent.invoke_async("a loop of its own")))
    called(lambda: trio.run(agent.invoke_async, "trio"))
    called(lambda: agent("from sync code"))
    called(lambda: waits.run_until_complete(agent.invoke_async("a loop that waits")))
    closed = asyncio.new_event_loop()
    called(lambda: closed.run_until_complete(agent.invoke_async("a loop that is closed")))
    closed.close()

    async def both():
        assert str(await agent.invoke_async("before")) == "ok"
        assert str(await asyncio.to_thread(agent, "from a thread")) == "ok"
        assert str(await agent.invoke_async("after")) == "ok"

    asyncio.run(both())
assert len(store.batches) == 6, len(store.batches)
assert all(len(batch) == 8 for batch in store.batches)
report = asyncio.run(memory.flush())
assert report.ok, report
names = [thread.name for thread in threading.enumerate()]
assert len(names) < 10, names
assert len(os.listdir("/proc/self/fd")) < 60
"""


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_an_agent_with_memory_may_be_called_in_one_loop_after_the_other(where: str, path: Path) -> None:
    done = run_to_its_end(LOOPS, "memory" if where == "memory" else str(path), str(path.parent / "memory.db"))
    assert done.stderr == ""


IDLE = """
import asyncio, sys
from repertory import *

store = SQLiteMemoryStore(sys.argv[2], extraction=ExtractionConfig(
    trigger=IntervalTrigger(2), extractor=ModelExtractor(model=ScriptedModel(
        [f'[{{"content": "fact {number}"}}]' for number in range(9)]))))
agent = Agent(ScriptedModel(["ok"], loop=True), session_manager=SQLiteSessionManager("s", path=sys.argv[1]),
    memory_manager=MemoryManager(stores=[store]), callback_handler=None)

async def main():
    for number in range(5):
        await agent.invoke_async(f"call {number}")
    print("called", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_a_process_that_is_killed_between_two_calls_owes_its_stores_nothing_but_the_rest(path: Path) -> None:
    facts = path.parent / "memory.db"
    with started("-c", IDLE, str(path), str(facts), folder=path.parent) as program:
        await anyio.to_thread.run_sync(program.wait_for, "called")
        assert owner_of(path) is None
        program.kill()
    echo = Echo()
    store = SQLiteMemoryStore(facts, extraction=every(2, extractor=echo))
    entries = await store.search("fact", {"max_search_results": 20})  # type: ignore[arg-type]
    assert sorted(entry.content for entry in entries) == ["fact 0", "fact 1"]
    agent = keeping(store, path)
    await agent.invoke_async("after its death")
    assert echo.asked == [["call 4", "ok", "after its death", "ok"]]
    await agent.shutdown_async()


async def test_calls_in_two_loops_at_once_find_the_memory_of_the_live_one(path: Path) -> None:
    store = Transcripts(extraction=ExtractionConfig(trigger=InvocationTrigger()))
    agent = keeping(store, path)
    for number in range(4):
        await agent.invoke_async(f"here {number}")
        await anyio.to_thread.run_sync(agent, f"there {number}")
    assert len(store.batches) == 8
    assert list(chain(*asked(store))) == [f"{place} {number}" for number in range(4) for place in ("here", "there")]
    await anyio.to_thread.run_sync(agent.shutdown)
