"""A runtime outlives whatever its store, its queue or its program does: only the program ends it."""

# What a store has done is looked for again and again, as a program would.
# ruff: noqa: ASYNC110

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, Worker
from repertory.app.embedding.hosted import HostedSession
from repertory.backends.ports import SessionStore, StoreCapabilities
from repertory.cluster.peers import Peers
from repertory.core.retry import Outage
from repertory.errors import Corrupt, Invalid, RepertoryError, StoreFailed, StoreUnavailable, Throttled
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from repertory.worker.decisions import TurnJob
from tests.cluster.loopback_wire import LoopbackNetwork
from tests.runtime.toys import Crash, counter

pytestmark = pytest.mark.anyio

ERRORS: list[Callable[[], Exception]] = [
    lambda: StoreUnavailable("restarting"),
    lambda: StoreFailed("the user lacks a right"),
    lambda: Corrupt("a damaged page"),
    lambda: Invalid("a bad call"),
    lambda: OSError("of a store that somebody else wrote"),
    lambda: ExceptionGroup("two at once", [StoreFailed("one"), RuntimeError("two")]),
]
LONG_S = 300.0


class Weather:
    """Sessions in memory. Every call of their store fails while there is an error."""

    key = "weather"
    wakes = True

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.opened = 0
        self.error: Callable[[], Exception] | None = None
        self.failed = 0

    def open_store(self) -> SessionStore:
        self.opened += 1
        return _Store(self, f"owner-{self.opened}")

    def check(self) -> None:
        if self.error is not None:
            self.failed += 1
            raise self.error()


class _Store(MemorySessionStore):
    def __init__(self, weather: Weather, owner: str) -> None:
        self._weather = weather
        super().__init__(weather.shelf, owner=owner)

    @property
    def capabilities(self) -> StoreCapabilities:
        found = super().capabilities
        return StoreCapabilities(sharing=found.sharing, waking=found.waking, maintained=True)

    async def maintain(self) -> None:
        while True:
            await self._enter()
            await anyio.sleep(1)

    async def _enter(self) -> None:
        self._weather.check()
        await super()._enter()


def echo(name: str = "a", **options: Any) -> AgentSpec:
    return AgentSpec(name=name, model=ScriptedModel(["fine"], loop=True), **options)


async def until_made(session: HostedSession, token: str) -> None:
    for _ in range(2000):
        if await session.posted(token) is None:
            return
        await anyio.sleep(1)
    raise AssertionError("it was not made")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error()).__name__)
async def test_a_store_that_refuses_for_minutes_ends_nothing(
    error: Callable[[], Exception], caplog: pytest.LogCaptureFixture
) -> None:
    weather = Weather()
    peers = Peers(wire=LoopbackNetwork().wire("one"))
    with caplog.at_level(logging.INFO, "repertory"):
        async with Runtime(sessions=weather, peers=peers, idle_timeout_s=20) as runtime:
            session = runtime.agent(echo()).session("s")
            await session.invoke("before")
            weather.error = error
            await anyio.sleep(LONG_S)
            assert weather.failed > 100
            assert runtime.healthy
            assert runtime.stats().restarts == 0
            weather.error = None
            await session.post("posted", token="t")
            await until_made(session, "t")
            assert str(await session.invoke("after")) == "fine"
    lines = [record for record in caplog.records if "cannot be" in record.getMessage()]
    warned = [record for record in lines if record.levelno == logging.WARNING]
    assert len(warned) < weather.failed / 5
    for failing in ("pending work cannot be read", "posted calls cannot be taken", "a store cannot be maintained"):
        assert any(failing in record.getMessage() for record in warned), failing
    assert any("it works again" in record.getMessage() for record in lines)


async def test_a_part_of_the_runtime_that_fails_again_and_again_is_started_again_and_again() -> None:
    async with Runtime() as runtime:
        part = await runtime._host.system.start(counter())
        for number in range(1, 30):
            part.tell(Crash())
            await anyio.sleep(60)
            assert runtime.stats().restarts == number
        assert str(await runtime.agent(echo()).session("s").invoke("still there?")) == "fine"


async def test_the_end_of_a_posted_call_is_stored_when_the_store_works_again() -> None:
    weather = Weather()

    def break_it(*_: object) -> str:
        weather.error = lambda: StoreFailed("read-only")
        return "fine"

    model = ScriptedModel([break_it, "later"])
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(AgentSpec(name="a", model=model, durability="relaxed")).session("s")
        await session.post("first", token="1")
        await session.post("second", token="2")
        await anyio.sleep(60)
        weather.error = None
        await until_made(session, "2")
        assert await session.posted("1") is None


@pytest.mark.real_time
async def test_a_damaged_posted_call_is_parked_and_the_others_are_made(tmp_path: Path) -> None:
    place = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=place, wakes_max=0) as runtime:
        agent = runtime.agent(echo())
        for number in range(3):
            await agent.session(f"s{number}").post("hello", token="t")
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as file:
        file.execute("UPDATE calls SET call = '{\"prompt\": ' WHERE session = 's0'")
        file.execute("UPDATE calls SET call = x'00ff' WHERE session = 's1'")
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(echo())
        with anyio.fail_after(30):
            while await agent.session("s2").posted("t") is not None:
                await anyio.sleep(0.05)
            for name in ("s0", "s1"):
                while not (found := await agent.session(name).posted("t")) or not found.parked:
                    await anyio.sleep(0.05)
        assert runtime.healthy
        assert runtime.stats().restarts == 0


async def test_a_hook_that_raises_parks_the_posted_call_and_ends_nothing() -> None:
    weather = Weather()
    async with Runtime(sessions=weather) as runtime:
        session = runtime.agent(echo(hooks=[Failing()])).session("s")
        await session.post("hello", token="t")
        await anyio.sleep(30)
        found = await session.posted("t")
        assert found is not None
        assert found.parked
        assert runtime.stats().restarts == 0


class Failing:
    """Hooks of a program with a bug."""

    def register_hooks(self, registry: Any, **_: object) -> None:
        from repertory.actors.hooks.events import BeforeInvocationEvent

        def fail(event: BeforeInvocationEvent) -> NoReturn:
            raise ValueError("a bug of the program")

        registry.add_callback(BeforeInvocationEvent, fail)


class RoughQueue:
    """A queue of somebody else, which raises what it likes."""

    name, lease_s = "rough", 3.0

    def __init__(self) -> None:
        self.broken = True
        self.asked = 0

    async def receive(self, limit: int, wait_s: float) -> list[Any]:
        self.asked += 1
        if self.broken:
            raise ConnectionError("no queue")
        await anyio.sleep(wait_s)
        return []

    async def send(self, job: TurnJob) -> None:
        raise NotImplementedError

    async def extend(self, deliveries: object) -> None:
        raise ConnectionError("no queue")

    async def settle(self, delivery: object, verdict: object) -> bool:
        raise ConnectionError("no queue")

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


async def test_a_queue_that_fails_for_minutes_ends_nothing() -> None:
    queue = RoughQueue()
    async with Runtime() as runtime:
        worker = Worker(runtime, queue)  # type: ignore[arg-type]  # it knows no jobs
        await worker.start()
        await anyio.sleep(LONG_S)
        assert runtime.stats().restarts == 0
        asked, queue.broken = queue.asked, False
        assert 10 < asked < LONG_S
        await anyio.sleep(60)
        assert queue.asked > asked


def test_pauses_grow_up_to_the_limit_and_one_error_a_minute_is_told() -> None:
    outage = Outage(15.0)
    error: RepertoryError = StoreFailed("no")
    now, told, pauses = 0.0, 0, list[float]()
    while now < 600:
        pause_s, tells = outage.failed(error, now, 0.5)
        told += tells
        pauses.append(pause_s)
        now += pause_s
    assert pauses == sorted(pauses)
    assert pauses[-1] == 15.0 * 0.75
    assert 8 <= told <= 11
    assert outage.failed(Throttled("slow", retry_after_s=99.0), now, 0.5)[0] == 99.0
    assert outage.over() > 0 == outage.over()
    assert outage.failed(error, now, 0.0) == (0.1, True)
