"""An idle owner gives a session up when another process asks for it; a busy one when its turns are over. Here two
runtimes in one event loop stand for two processes. Our decision: API.md, "Ownership in practice".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio
import pytest

from repertory import Agent, AgentSpec, Graph, Runtime, ScriptedModel, StorePatience
from repertory.actors.leases import SessionLeases
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Lease, SessionStore, give_up
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.rows import Row
from repertory.core.messages import text_of
from repertory.errors import RepertoryError, Retryable, SessionBusy, Unavailable
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.backends.sessions.bucket_places import bucket_store

pytestmark = pytest.mark.anyio

KINDS = ["memory", "journals", "documents"]


class Shared:
    """Sessions that several processes share, where leases end by themselves."""

    key = "shared"

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._sessions = SessionShelf()
        self._objects = ObjectShelf(anyio.current_time)
        self._opened = 0
        self.counts: list[CountingObjectStore] = []

    @classmethod
    def like(cls, shared: Shared) -> Shared:
        """The same sessions for another process."""
        other = cls(shared._kind)
        other.key, other._sessions, other._objects = "shared elsewhere", shared._sessions, shared._objects
        other._opened = 100
        return other

    def open_store(self) -> SessionStore:
        self._opened += 1
        owner = f"owner-{self._opened}"
        if self._kind == "memory":
            return MemorySessionStore(self._sessions, owner=owner)
        objects = CountingObjectStore(MemoryObjectStore(self._objects))
        self.counts.append(objects)
        if self._kind == "journals":
            return ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time))
        return bucket_store(
            objects,
            owner=owner,
            life=TimeToLive(anyio.current_time, 10.0),
            wall=anyio.current_time,
            entropy=lambda count: bytes(count),
        )


def lone(shared: Shared, *, delay_s: float = 0.0, patience: StorePatience | None = None) -> Agent:
    """An agent without a runtime."""
    model = ScriptedModel(["ok"], delay_s=delay_s)
    placed = PlacedSession("s", shared)
    return Agent(model, session_manager=placed, patience=patience, callback_handler=None)


def spec(*replies: object, name: str = "default", delay_s: float = 0.0) -> AgentSpec:
    return AgentSpec(name=name, model=ScriptedModel(list(replies) or ["ok"], loop=True, delay_s=delay_s))


@pytest.fixture(params=KINDS)
def shared(request: pytest.FixtureRequest) -> Shared:
    return Shared(str(request.param))


async def test_an_idle_owner_gives_a_session_up_and_gets_it_back_the_same_way(shared: Shared) -> None:
    async with Runtime(sessions=shared) as one, Runtime(sessions=shared) as two:
        here, there = one.agent(spec("one")).session("s"), two.agent(spec("two")).session("s")
        for number in range(3):
            for session in (here, there):
                await anyio.sleep(20)
                began = anyio.current_time()
                await session.invoke(f"number {number}")
                assert anyio.current_time() - began <= 5.1
        said = [text_of(message) for message in await here.history()]
    assert said == [text for number in range(3) for who in ("one", "two") for text in (f"number {number}", who)]


async def test_an_owner_in_a_turn_finishes_it_first(shared: Shared) -> None:
    async with Runtime(sessions=shared) as one, Runtime(sessions=shared) as two:
        there = two.agent(spec("two")).session("s")
        ends: list[float] = []

        async def long_turn() -> None:
            await one.agent(spec("one", delay_s=5.0)).session("s").invoke("long")
            ends.append(anyio.current_time())

        async with anyio.create_task_group() as group:
            group.start_soon(long_turn)
            await anyio.sleep(5)
            for refused in ({"busy": "reject"}, {"timeout_s": 5}):
                began = anyio.current_time()
                with pytest.raises(SessionBusy) as busy:
                    await there.invoke("too early", **refused)
                assert anyio.current_time() - began == pytest.approx(refused.get("timeout_s", 0), abs=0.01)
            assert isinstance(busy.value, Retryable)
            assert busy.value.fields["doing"] == "in a turn, or held open"
            assert ends == []
            await there.invoke("now")
            assert ends, "it waited for the end of the turn"
        assert [text_of(message) for message in await there.history()] == ["long", "one", "now", "two"]


async def test_an_agent_without_a_runtime_waits_for_another_process_as_its_own_patience_says(shared: Shared) -> None:
    async def turn_elsewhere() -> None:
        elsewhere = Shared.like(shared)
        await lone(elsewhere, delay_s=5.0).invoke_async("long")

    async with anyio.create_task_group() as group:
        group.start_soon(turn_elsewhere)
        await anyio.sleep(5)
        began = anyio.current_time()
        with pytest.raises(SessionBusy, match="takeover=True"):
            await lone(shared, patience=StorePatience(busy_s=7)).invoke_async("in vain")
        assert anyio.current_time() - began == pytest.approx(7, abs=0.01)
        assert str(await lone(shared).invoke_async("after it")) == "ok"


async def test_a_session_is_given_up_by_all_of_its_agents_or_by_none(shared: Shared) -> None:
    async with (
        Runtime(sessions=shared) as one,
        Runtime(sessions=shared, patience=StorePatience(busy_s=5)) as two,
    ):
        idle, busy = one.agent(spec(name="idle")), one.agent(spec(name="busy", delay_s=30.0))
        await idle.session("s").invoke("hi")
        async with anyio.create_task_group() as group:
            group.start_soon(busy.session("s").invoke, "hi")
            await anyio.sleep(5)
            with pytest.raises(SessionBusy):
                await two.agent(spec(name="other")).session("s").invoke("hi", busy="reject")
            assert len([actor for actor in one.tree().walk() if actor.path.endswith("/persister")]) == 2
        await two.agent(spec(name="other")).session("s").invoke("hi")
        assert not [actor for actor in one.tree().walk() if actor.path.endswith("/persister")]


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_session_is_given_up_after_a_run_of_its_graph_whose_caller_may_have_left(
    shared: Shared, leaves: bool
) -> None:
    def team(session_id: str) -> Graph:
        model = ScriptedModel([session_id], delay_s=5.0)
        return Graph({"slow": Agent(model, callback_handler=None)}, id="team")

    async with Runtime(sessions=shared) as one, Runtime(sessions=shared) as two:
        async with anyio.create_task_group() as group:
            group.start_soon(one.orchestrator("team", team).session("s").invoke, "work")
            await anyio.sleep(2)
            with pytest.raises(SessionBusy):
                await two.agent(spec()).session("s").invoke("too early", busy="reject")
            await anyio.sleep(1)
            if leaves:
                group.cancel_scope.cancel()
        assert str(await two.agent(spec()).session("s").invoke("now")) == "ok"


async def test_other_sessions_stay_where_they_are(shared: Shared) -> None:
    async with Runtime(sessions=shared) as one, Runtime(sessions=shared) as two:
        for name in ("a", "b", "c"):
            await one.agent(spec()).session(name).invoke("hi")
        await anyio.sleep(10)
        await two.agent(spec()).session("b").invoke("hi")
        kept = [actor.path for actor in one.tree().walk() if actor.path.endswith("/persister")]
        assert sorted(path.split()[1] for path in kept) == ["a", "c"]


async def test_how_long_is_waited_is_a_setting_and_nothing_is_an_answer_too(shared: Shared) -> None:
    patience = StorePatience(busy_s=0)
    async with Runtime(sessions=shared) as one, Runtime(sessions=shared, patience=patience) as two:
        await one.agent(spec()).session("s").invoke("hi")
        began = anyio.current_time()
        with pytest.raises(SessionBusy):
            await two.agent(spec()).session("s").invoke("hi")
        assert anyio.current_time() == began
        await anyio.sleep(10)
        await two.agent(spec()).session("s").invoke("hi"), "it had asked"


async def test_what_waits_for_its_store_is_not_given_up() -> None:
    shared = Shared("memory")

    class Down(MemorySessionStore):
        down = False

        async def append(self, batches: Sequence[object]) -> Sequence[object]:  # type: ignore[override]
            if self.down:
                raise Unavailable("down")
            return await super().append(batches)  # type: ignore[arg-type]

    store = Down(shared._sessions, owner="down")
    down = Shared("memory")
    down.open_store = lambda: store  # type: ignore[method-assign]
    async with Runtime(sessions=down) as one, Runtime(sessions=shared) as two:
        relaxed = AgentSpec(model=ScriptedModel(["ok"], loop=True), durability="relaxed")
        store.down = True
        await one.agent(relaxed).session("s").invoke("first")
        with pytest.raises(SessionBusy):
            await two.agent(spec()).session("s").invoke("second")
        store.down = False
        await anyio.sleep(5)
        await two.agent(spec()).session("s").invoke("second")
        said = [text_of(message) for message in await two.agent(spec()).session("s").history()]
    assert said == ["first", "ok", "second", "ok"]


async def test_a_lease_that_could_not_be_given_up_is_when_somebody_asks() -> None:
    class Stubborn(MemorySessionStore):
        failing = True

        async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
            if self.failing:
                raise Unavailable("the disk is full")
            return await super().release(leases)

    shared = Shared("memory")
    store = Stubborn(shared._sessions, owner="stubborn")
    stubborn = Shared("memory")
    stubborn.open_store = lambda: store  # type: ignore[method-assign]
    async with Runtime(sessions=stubborn, idle_timeout_s=5) as one, Runtime(sessions=shared) as two:
        await one.agent(spec()).session("s").invoke("first")
        await anyio.sleep(20)
        with pytest.raises(SessionBusy):
            await two.agent(spec()).session("s").invoke("second")
        store.failing = False
        await two.agent(spec()).session("s").invoke("second")
        assert one.stats().failed == 0


async def acquire(leases: SessionLeases, session_id: str, *, takeover: bool = False) -> Lease:
    lease, _ = await leases.acquire_and_load(session_id, "agent", takeover=takeover, by=math.inf)
    return lease


async def test_a_lease_that_could_not_be_given_up_may_be_used_again() -> None:
    class Stubborn(MemorySessionStore):
        async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
            raise Unavailable("the disk is full")

    store = Stubborn(SessionShelf(), owner="one")
    leases = SessionLeases(store, busy_s=0)
    lease = await acquire(leases, "s")
    assert await acquire(leases, "s") == lease
    await leases.release(lease)
    with pytest.raises(Unavailable):
        await leases.release(lease)
    again = await acquire(leases, "s")
    assert again.generation > lease.generation
    leases.forget(lease)
    assert await acquire(leases, "s") == again


async def test_an_agent_that_fails_does_not_fence_another_one_of_its_process(shared: Shared) -> None:
    store = shared.open_store()
    leases = SessionLeases(store, busy_s=0)
    failed, good = [await acquire(leases, "s") for _ in range(2)]
    leases.forget(failed)
    assert await acquire(leases, "s") == good
    taken, _ = await shared.open_store().acquire("s", takeover=True)
    await anyio.sleep(6)  # As long as a proof counts.
    leases.forget(good)
    again = await acquire(leases, "s", takeover=True)
    assert again.generation > taken.generation, "a lease that is not good any more is not kept"
    await leases.release(good)
    assert await acquire(leases, "s") == again
    await store.aclose()


async def test_a_session_that_could_not_be_read_is_free_again(shared: Shared) -> None:
    class Unreadable:
        key = "unreadable"

        def open_store(self) -> SessionStore:
            store = shared.open_store()

            async def load(session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
                raise Unavailable("down", session=session_id, agent=agent_id, whole=whole)

            store.load = load  # type: ignore[method-assign]
            return store

    async with Runtime(sessions=Unreadable()) as one, Runtime(sessions=shared, patience=StorePatience(busy_s=0)) as two:
        with pytest.raises(Unavailable):
            await one.agent(spec()).session("s").invoke("first")
        await two.agent(spec()).session("s").invoke("second")


async def test_sessions_open_beside_each_other_while_one_waits_for_its_owner() -> None:
    shelf = SessionShelf()
    await MemorySessionStore(shelf, owner="busy").acquire("taken")
    leases = SessionLeases(MemorySessionStore(shelf, owner="one"), busy_s=10)
    began = anyio.current_time()
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            with pytest.raises(SessionBusy):
                await acquire(leases, "taken")

        group.start_soon(wait)
        await anyio.sleep(0.1)
        await acquire(leases, "free")
        assert anyio.current_time() - began == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["journals", "documents"])
async def test_hearing_costs_no_request_but_with_renewals(kind: str) -> None:
    shared = Shared(kind)
    async with Runtime(sessions=shared) as runtime:
        session = runtime.agent(spec()).session("s")
        await session.invoke("first")
        shared.counts[0].take()
        for _ in range(10):  # A session that is written to is not renewed, and nobody looks for wishes.
            await session.invoke("again")
            await anyio.sleep(0.1)
        busy = shared.counts[0].take()
        looks = busy.pop("get", 0)  # For what other programs have added to the documents, by the clock of the machine.
        assert looks <= (0 if kind == "journals" else 3 * 10)
        assert busy == {"put": 10 if kind == "journals" else 30}
        await anyio.sleep(100)
        idle = shared.counts[0].take()
        renewals = 40
        assert idle.pop("put") <= renewals + 1
        assert idle.pop("get", 0) <= renewals + 1
        assert idle == {}


async def test_somebody_who_asks_does_not_make_a_dead_owner_look_alive() -> None:
    for kind in ("journals", "documents"):
        shared = Shared(kind)
        dead = shared.open_store()
        await dead.acquire("s")
        began = anyio.current_time()
        asker = shared.open_store()
        with anyio.fail_after(60):
            while True:
                try:
                    await asker.acquire("s")
                    break
                except SessionBusy:
                    await anyio.sleep(0.5)
        assert anyio.current_time() - began <= 11
        await asker.aclose()


async def test_an_old_wish_is_not_heard_by_the_next_owner() -> None:
    for kind in KINDS:
        shared = Shared(kind)
        one, two = shared.open_store(), shared.open_store()
        await one.acquire("s")
        with pytest.raises(SessionBusy):
            await two.acquire("s")
        lease, _ = await two.acquire("s", takeover=True)
        async with anyio.create_task_group() as group:
            if two.capabilities.maintained:
                group.start_soon(two.maintain)
            await anyio.sleep(20)
            assert two.capabilities.sharing is not None
            assert list(await two.capabilities.sharing.asked_for()) == []
            group.cancel_scope.cancel()
        await give_up(two, lease)
        await one.aclose()
        await two.aclose()
