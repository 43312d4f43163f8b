"""A memory store's actor: each request to a store is a job there. Why: `docs/design/memory.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from typing import Any

import anyio
import pytest

from repertory import Agent, MemoryEntry, MemoryManager, Runtime, ScriptedModel
from repertory.actors.memory.store import (
    AddMemory,
    ForgetMemories,
    MemoryStoreClient,
    MemoryStoreMessage,
    Recall,
    SearchMemory,
    ask_store,
    memory_store_spec,
)
from repertory.core.memory.options import AddMessagesContext
from repertory.errors import Failed, Unavailable
from repertory.runtime.ref import ActorRef
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import settle

pytestmark = pytest.mark.anyio

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class Notes:
    """A store whose searches and writes take as long as their words say: `slow` a minute, `stuck` for ever."""

    name, description, max_search_results, writable, extraction = "notes", None, None, True, None

    def __init__(self) -> None:
        self.log: list[str] = []
        self.down = False
        self.tenants: list[str] = []
        self.cancelled: list[str] = []
        self.during: Callable[[], None] = lambda: None

    async def _take_time(self, words: str) -> None:
        self.during()
        self.tenants.append(TENANT.get())
        try:
            await anyio.sleep(60.0 if "slow" in words else 3.0 if "second" in words else 0.0)
            if "stuck" in words:
                await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(words)
            raise
        if self.down:
            raise OSError("down")

    async def search(self, query: str) -> list[MemoryEntry]:
        await self._take_time(query)
        self.log.append(f"search {query}")
        return [MemoryEntry(query)]

    async def add(self, content: str, metadata: object = None) -> None:
        self.log.append(f"begin {content}")
        await self._take_time(content)
        self.log.append(f"end {content}")

    async def forget(self, words: str) -> int:
        self.log.append(f"forget {words}")
        return 3


@asynccontextmanager
async def served(store: Notes) -> AsyncIterator[tuple[ActorRef[MemoryStoreMessage], ActorSystem]]:
    with anyio.fail_after(10_000):
        async with ActorSystem() as system:
            yield await system.start(memory_store_spec(MemoryStoreClient(store))), system


def add(content: str, **more: Any) -> AddMemory:
    return AddMemory(content=content, context=AddMessagesContext(), **more)


def jobs(system: ActorSystem | Runtime) -> list[str]:
    return sorted(job for actor in system.tree().walk() for job in actor.jobs)


async def test_a_slow_search_delays_neither_another_nor_a_write() -> None:
    store = Notes()
    async with served(store) as (ref, system), anyio.create_task_group() as group:
        began = anyio.current_time()
        group.start_soon(ask_store, ref, SearchMemory(query="second"))
        await settle()
        assert jobs(system) == ["search"]
        await ask_store(ref, SearchMemory(query="tea"))
        await ask_store(ref, add("tea"))
        assert anyio.current_time() == began
        assert system.tree().children[0].summary == {"store": "notes", "written": 1, "searching": 1}
    assert store.log == ["search tea", "begin tea", "end tea", "search second"]


async def test_a_slow_write_delays_no_search_and_writes_keep_their_order() -> None:
    store = Notes()
    async with served(store) as (ref, system), anyio.create_task_group() as group:
        for content in ("second a", "b", "second c", "d"):
            group.start_soon(ask_store, ref, add(content))
            await settle()
        assert jobs(system) == ["write"] * 4
        await ask_store(ref, SearchMemory(query="tea"))
    ended = [f"{what} {content}" for content in ("second a", "b", "second c", "d") for what in ("begin", "end")]
    assert store.log == ["begin second a", "search tea", *ended[1:]]


async def test_the_breaker_counts_failed_searches_and_a_probe_closes_it() -> None:
    store = Notes()
    store.down = True
    async with served(store) as (ref, system):
        for _ in range(3):
            with pytest.raises(Unavailable, match="could not be reached"):
                await ask_store(ref, SearchMemory(query="tea"))
        assert system.tree().children[0].summary == {
            "store": "notes",
            "written": 0,
            "searching": 0,
            "failures": 0,
            "failed_searches": 3,
            "error": "the memory store could not be reached store='notes' error=\"OSError('down')\"",
        }
        asked = len(store.tenants)
        with pytest.raises(Unavailable, match="not asked for a while"):
            await ask_store(ref, SearchMemory(query="tea"))
        assert len(store.tenants) == asked
        store.down = False
        await anyio.sleep(1.0)
        assert await ask_store(ref, SearchMemory(query="tea")) == [MemoryEntry("tea", "notes")]


async def test_a_stop_lets_writes_finish_and_ends_searches() -> None:
    store = Notes()
    told: list[Exception] = []

    async def search(ref: ActorRef[MemoryStoreMessage]) -> None:
        try:
            await ask_store(ref, SearchMemory(query="stuck"))
        except Unavailable as error:
            told.append(error)

    async with served(store) as (ref, system), anyio.create_task_group() as group:
        group.start_soon(search, ref)
        group.start_soon(ask_store, ref, add("slow", forced=True))
        await settle()
        group.cancel_scope.cancel()
    store.log.clear()
    async with served(store) as (ref, system), anyio.create_task_group() as group:
        group.start_soon(search, ref)
        for content in ("second a", "b"):
            group.start_soon(ask_store, ref, add(content))
            await settle()
        began = anyio.current_time()
        report = await system.drain()
        assert anyio.current_time() - began == pytest.approx(3.0)
        assert report.ok
    assert store.log == ["begin second a", "end second a", "begin b", "end b"]
    assert store.cancelled.count("stuck") == 2
    assert len(told) == 1


async def test_a_write_has_five_seconds_to_finish_when_its_actor_stops() -> None:
    for content, landed in (("second", True), ("slow", False)):
        store = Notes()
        async with served(store) as (ref, system), anyio.create_task_group() as group:
            group.start_soon(expect_answer, ref, content, landed)
            await settle()
            began = anyio.current_time()
            await system.stop(ref)
            assert anyio.current_time() - began <= 5.1
        assert (f"end {content}" in store.log) is landed


async def expect_answer(ref: ActorRef[MemoryStoreMessage], content: str, landed: bool) -> None:
    if landed:
        await ask_store(ref, add(content))
    else:
        with pytest.raises(Unavailable, match="let go"):
            await ask_store(ref, add(content))


async def test_a_killed_actor_tells_its_askers_and_its_successor_works() -> None:
    store = Notes()
    told: list[str] = []

    async def tell(ref: ActorRef[MemoryStoreMessage], message: Any) -> None:
        with pytest.raises(Unavailable, match="let go before it answered"):
            await ask_store(ref, message)
        told.append(type(message).__name__)

    async with served(store) as (ref, system):
        async with anyio.create_task_group() as group:
            for message in (SearchMemory(query="stuck"), add("stuck"), add("behind it")):
                group.start_soon(tell, ref, message)
                await settle()
            system.kill(ref)
        assert sorted(told) == ["AddMemory", "AddMemory", "SearchMemory"]
        assert store.cancelled == ["stuck", "stuck"]
        assert "begin behind it" not in store.log
        assert await ask_store(ref, SearchMemory(query="tea")) == [MemoryEntry("tea", "notes")]
        await system.stop(ref)
        with pytest.raises(Unavailable, match="let go"):
            await ask_store(ref, SearchMemory(query="tea"))


async def test_a_search_ends_with_its_asker() -> None:
    store = Notes()
    async with served(store) as (ref, system):
        with anyio.move_on_after(1.0):
            await ask_store(ref, SearchMemory(query="stuck"))
        await settle()
        assert (store.cancelled, jobs(system)) == (["stuck"], [])


async def test_a_write_ends_with_the_program_that_waits_for_it_and_no_other() -> None:
    store = Notes()
    async with served(store) as (ref, system):
        with anyio.move_on_after(1.0):
            await ask_store(ref, add("stuck", caller=copy_context()))
        await settle()
        assert (store.cancelled, jobs(system)) == (["stuck"], [])
        with anyio.move_on_after(1.0):
            await ask_store(ref, add("second"))
        await settle()
        assert jobs(system) == ["write"]
        await ask_store(ref, add("third"))
        assert store.log[-4:] == ["begin second", "end second", "begin third", "end third"]


async def test_a_store_sees_the_context_of_whoever_asks() -> None:
    store = Notes()
    async with served(store) as (ref, _):
        TENANT.set("ada")
        await ask_store(ref, SearchMemory(query="tea", caller=copy_context()))
        await ask_store(ref, add("tea", caller=copy_context()))
        await ask_store(ref, add("tea"))
    assert store.tenants == ["ada", "ada", "nobody"]


async def test_forgetting_is_a_write() -> None:
    store = Notes()
    async with served(store) as (ref, _), anyio.create_task_group() as group:
        group.start_soon(ask_store, ref, add("second"))
        await settle()
        assert await ask_store(ref, ForgetMemories(given=("tea",))) == 3
    assert store.log == ["begin second", "end second", "forget tea"]


async def test_what_is_not_ours_is_the_cause_of_a_failure() -> None:
    class Broken(Notes):
        async def search(self, query: str) -> Any:
            raise ZeroDivisionError

    async with served(Broken()) as (ref, system):
        with pytest.raises(Failed) as raised:
            await ask_store(ref, SearchMemory(query="tea"))
        assert isinstance(raised.value.__cause__, ZeroDivisionError)
        assert system.stats().restarts == 0


async def test_a_recall_that_loses_its_actor_is_told_so_at_once() -> None:
    store = Notes()
    client = MemoryStoreClient(store)
    async with ActorSystem() as system:
        ref = await system.start(memory_store_spec(client))
        recall = Recall("stuck", 3, 2.0)
        recall.begin({client: ref})
        await settle()
        assert jobs(system) == ["search"]
        await system.stop(ref)
        began = anyio.current_time()
        assert (await recall.found(), recall.missed) == ([], {"notes": "failed"})
        assert anyio.current_time() == began


# Where the actors are found.


def working(runtime: Runtime) -> list[str]:
    """The jobs of memory stores' actors."""
    actors = [actor for actor in runtime.tree().walk() if "memory" in actor.path]
    return [f"{actor.path} {job}" for actor in actors for job in actor.jobs]


async def test_the_tools_ask_the_actor_of_their_session() -> None:
    store, seen = Notes(), list[str]()
    manager = MemoryManager(stores=[store], injection=False, add_tool_config=True)
    uses = [("search_memory", {"query": "tea"}), ("add_memory", {"entries": ["tea"]})]
    model = ScriptedModel([*({"toolUse": {"name": name, "input": given}} for name, given in uses), "done"])
    async with Runtime() as runtime:
        store.during = lambda: seen.extend(working(runtime))
        await Agent(model, memory_manager=manager, callback_handler=None).invoke_async("go")
    assert seen == ["/memory notes search", "/memory notes write"]


async def test_injection_is_a_job_of_the_stores_actor() -> None:
    store, seen = Notes(), list[str]()
    async with Runtime() as runtime:
        store.during = lambda: seen.extend(working(runtime))
        manager = MemoryManager(stores=[store])
        await Agent(ScriptedModel(["ok"]), memory_manager=manager, callback_handler=None).invoke_async("go")
    assert seen == ["/memory notes search"]


async def test_a_programs_search_and_add_are_jobs_of_the_runtime_that_the_loop_has() -> None:
    store = Notes()
    manager = MemoryManager(stores=[store])
    async with Runtime() as runtime:
        async with anyio.create_task_group() as group:
            group.start_soon(manager.search, "second")
            group.start_soon(manager.add, "second")
            await anyio.sleep(1.0)
            assert [job for job in jobs(runtime) if job in ("search", "write")] == ["search", "write"]
        assert [actor.path for actor in runtime.tree().walk() if "memory" in actor.path] == []
    assert await manager.search("tea") == [MemoryEntry("tea", "notes")]


async def test_a_drain_waits_for_a_programs_add_and_ends_its_search() -> None:
    store = Notes()
    manager = MemoryManager(stores=[store])
    told: list[str] = []

    async def search() -> None:
        assert await manager.search("stuck") == []
        told.append("search")

    async def write() -> None:
        await manager.add("second")
        told.append("add")

    async with anyio.create_task_group() as group, Runtime() as runtime:
        group.start_soon(search)
        group.start_soon(write)
        await anyio.sleep(1.0)
        report = await runtime.drain()
        assert report.ok
    assert sorted(told) == ["add", "search"]
    assert "end second" in store.log


async def test_without_a_runtime_nothing_is_left_of_a_search_that_was_given_up() -> None:
    store = Notes()
    manager = MemoryManager(stores=[store])
    with anyio.move_on_after(1.0):
        await manager.search("stuck")
    assert store.cancelled == ["stuck"]
    with anyio.move_on_after(1.0):
        await manager.add("stuck")
    assert store.cancelled == ["stuck", "stuck"]


async def test_the_breaker_is_the_same_for_all_that_ask_in_an_event_loop(caplog: pytest.LogCaptureFixture) -> None:
    store = Notes()
    store.down = True
    manager = MemoryManager(stores=[store])
    for _ in range(3):
        assert await manager.search("tea") == []
    asked = len(store.tenants)
    async with Runtime():
        assert await manager.search("tea") == []
    assert "not asked for a while" in caplog.text
    assert len(store.tenants) == asked
