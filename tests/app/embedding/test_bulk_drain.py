"""A drain ends idle sessions together, and every promise of a session's end holds as if each ended by itself."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, StorePatience
from repertory.backends.ports import Batch, Lease, Position, SessionStore
from repertory.core.messages import text_of
from repertory.errors import RepertoryError, StoreFailed, StoreUnavailable, Unavailable
from repertory.runtime.actor import LINGER_S
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.source_tree import ROOT

pytestmark = pytest.mark.anyio

COUNT = 20
NAMES = [f"s{number}" for number in range(COUNT)]


class Place:
    """A place with this very store."""

    key = "place"

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def open_store(self) -> SessionStore:
        return self._store


class Counting(MemorySessionStore):
    """Writes its calls down, and fails as told."""

    def __init__(self, shelf: SessionShelf) -> None:
        super().__init__(shelf, owner="one")
        self.calls: list[str] = []
        self.fails: RepertoryError | None = None
        self.bad = ""
        self.down = False

    async def _release(self, lease: Lease) -> None:
        self.calls.append(f"release {lease.session_id}")
        if lease.session_id == self.bad:
            raise StoreFailed("this session cannot be released", session=self.bad)
        await super()._release(lease)

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        if len(leases) > 1:
            self.calls.append(f"release {len(leases)}")
            if self.fails is not None:
                raise self.fails
        return await super().release(leases)

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        self.calls += [f"append {batch.lease.session_id}" for batch in batches]
        if self.down:
            raise StoreUnavailable("the disk is away")
        return await super().append(batches)


def spec(**more: object) -> AgentSpec:
    return AgentSpec(model=ScriptedModel(["yes"], loop=True), **more)  # type: ignore[arg-type]


async def live(runtime: Runtime, names: Sequence[str] = NAMES) -> None:
    """One turn in each session; then all of them are idle."""
    for name in names:
        await runtime.agent(spec()).session(name).invoke("are you there?")
    await anyio.sleep(2 * LINGER_S)


async def free(shelf: SessionShelf) -> list[str]:
    """The sessions that another owner gets at once."""
    other = MemorySessionStore(shelf, owner="two")
    owned = [name for name in NAMES if shelf.sessions[name].owner in (None, "two")]
    for name in owned:
        await other.acquire(name)
    return owned


async def test_idle_sessions_are_released_in_one_call_before_the_stores_close() -> None:
    shelf = SessionShelf()
    store = Counting(shelf)
    seen: list[int] = []

    async def look() -> None:
        seen.append(len(await free(shelf)))
        seen.append(len(runtime.tree().children))

    async with Runtime(sessions=Place(store), idle_timeout_s=600) as runtime:
        runtime.on_shutdown("close", look)
        await live(runtime)
        assert len([child for child in runtime.tree().children if child.path.startswith("/session")]) == COUNT
        store.calls.clear()
        report = await runtime.drain()
    assert report.ok
    assert store.calls == [f"release {COUNT}", *(f"release {name}" for name in NAMES)]
    assert seen == [COUNT, 0]
    assert report.dead_letters == {}


@pytest.mark.real_time
async def test_idle_sessions_on_sqlite_are_whole_and_free_afterwards(tmp_path: Path) -> None:
    sessions = SQLiteSessions(tmp_path / "a.db")
    async with Runtime(sessions=sessions) as runtime:
        await live(runtime)
        assert (await runtime.drain()).ok
    async with Runtime(sessions=sessions) as runtime:
        for name in NAMES:
            session = runtime.agent(spec()).session(name)
            await session.invoke("and now?")
            said = [text_of(message) for message in await session.history()]
            assert said == ["are you there?", "yes", "and now?", "yes"]


@pytest.mark.real_time
async def test_many_sessions_of_a_locked_database_are_given_up_by_a_drain_all_the_same(tmp_path: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db"), drain_timeout_s=4) as runtime:
        for number in range(150):
            await runtime.agent(spec()).session(f"s{number}").invoke("are you there?")
        with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            report = await runtime.drain()
    assert report.ok


async def test_state_that_was_set_behind_the_last_turn_is_stored_before_its_lease_is_released() -> None:
    shelf = SessionShelf()
    store = Counting(shelf)
    async with Runtime(sessions=Place(store)) as runtime:
        changed = runtime.agent(spec()).session("s3")
        await changed.invoke("are you there?")
        await live(runtime)
        changed.agent.state.set("colour", "blue")
        store.calls.clear()
        assert (await runtime.drain()).ok
    assert "append s3" in store.calls
    assert store.calls.index("append s3") < len(store.calls) - 1 - store.calls[::-1].index("release s3")
    async with Runtime(sessions=Place(MemorySessionStore(shelf, owner="two"))) as runtime:
        again = runtime.agent(spec()).session("s3")
        await again.invoke("what colour?")
        assert again.agent.state.get("colour") == "blue"


async def test_a_turn_that_runs_meanwhile_is_cancelled_beside_them() -> None:
    store = Counting(SessionShelf())
    async with Runtime(sessions=Place(store), drain_timeout_s=25) as runtime:
        await live(runtime)
        slow = runtime.agent(AgentSpec(model=ScriptedModel(["late"], delay_s=600)))
        outcomes: list[str] = []

        async def call() -> None:
            outcomes.append((await slow.session("slow").invoke("go")).stop_reason)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await anyio.sleep(1)
            report = await runtime.drain()
    assert outcomes == ["cancelled"]
    assert [phase.name for phase in report.phases if not phase.completed] == ["turns"]
    assert f"release {COUNT}" in store.calls
    assert "release slow" in store.calls


async def test_a_call_that_comes_while_the_leases_are_released_is_refused_and_nothing_is_written() -> None:
    shelf = SessionShelf()
    store = Counting(shelf)
    refused: list[str] = []

    class Slow(Counting):
        async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
            self.calls.clear()
            try:
                await runtime.agent(spec()).session("s1").invoke("one more?")
            except Unavailable as error:
                refused.append(str(error))
            return await super().release(leases)

    store = Slow(shelf)
    async with Runtime(sessions=Place(store)) as runtime:
        await live(runtime)
        assert (await runtime.drain()).ok
    assert len(refused) == 1
    assert not [call for call in store.calls if call.startswith("append")]
    assert len(await free(shelf)) == COUNT


async def test_a_session_that_another_process_asks_for_meanwhile_is_released_once() -> None:
    shelf = SessionShelf()

    class Asked(Counting):
        async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
            shelf.asked.add(("one", "s2"))
            await anyio.sleep(3)
            return await super().release(leases)

    store = Asked(shelf)
    async with Runtime(sessions=Place(store)) as runtime:
        await live(runtime)
        store.calls.clear()
        assert (await runtime.drain()).ok
    assert store.calls.count("release s2") == 1
    assert len(await free(shelf)) == COUNT


async def test_a_store_that_is_away_when_they_are_released_is_reported_and_its_sessions_end_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf = SessionShelf()
    store = Counting(shelf)
    async with Runtime(sessions=Place(store)) as runtime:
        await live(runtime)
        store.fails = StoreUnavailable("the disk is away")
        with caplog.at_level(logging.ERROR, "repertory"):
            report = await runtime.drain()
    assert report.ok, "as when each is released by itself: nothing that was said is lost"
    (line,) = [record.getMessage() for record in caplog.records if "could not be released" in record.getMessage()]
    text = f"sessions could not be released sessions={COUNT} error='StoreUnavailable' cause='the disk is away'"
    assert line.startswith(text)
    other = MemorySessionStore(shelf, owner="two")
    assert [(await other.acquire(name)).lease.session_id for name in NAMES] == NAMES, (
        "closing the store has released them"
    )


async def test_one_session_that_cannot_be_released_hinders_no_other(caplog: pytest.LogCaptureFixture) -> None:
    shelf = SessionShelf()
    store = Counting(shelf)
    freed: list[list[str]] = []

    async def look() -> None:
        freed.append(await free(shelf))

    async with Runtime(sessions=Place(store)) as runtime:
        runtime.on_shutdown("close", look)
        await live(runtime)
        store.fails, store.bad = StoreFailed("a page of the file is damaged"), "s7"
        with caplog.at_level(logging.ERROR, "repertory"):
            await runtime.drain()
    assert freed == [[name for name in NAMES if name != "s7"]]
    assert "sessions could not be released sessions=1" in caplog.text


async def test_records_that_wait_for_their_store_stand_in_the_report() -> None:
    store = Counting(SessionShelf())
    now = 1e9  # However slow the machine is: a turn that comes late would ask for the lease first.
    async with Runtime(sessions=Place(store), patience=StorePatience(wait_s=1.0), wall=lambda: now) as runtime:
        relaxed = runtime.agent(spec(durability="relaxed")).session("s5")
        await relaxed.invoke("are you there?")
        await live(runtime)
        store.down = True
        await relaxed.invoke("will you remember?")
        await anyio.sleep(2 * LINGER_S)
        report = await runtime.drain()
    assert not report.ok
    assert [lost.session_id for lost in report.not_stored] == ["s5"]
    assert f"release {COUNT - 1}" in store.calls


@pytest.mark.real_time
@pytest.mark.parametrize("released", [0, 7, COUNT])
def test_a_process_that_is_killed_while_it_releases_them_leaves_every_session_whole_and_free(
    tmp_path: Path, released: int
) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.app.embedding.draining_child",
        str(tmp_path / "a.db"),
        str(COUNT),
        str(released),
    ]
    died = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert died.stdout == f"{COUNT} released together\n", died.stderr
    assert died.returncode == -9

    async def open_all() -> list[list[str]]:
        async with Runtime(sessions=SQLiteSessions(tmp_path / "a.db"), patience=StorePatience(busy_s=0.0)) as runtime:
            said: list[list[str]] = []
            for name in NAMES:
                session = runtime.agent(spec()).session(name)
                await session.invoke("and now?")
                said.append([text_of(message) for message in await session.history()])
            return said

    assert anyio.run(open_all) == [["are you there?", "yes", "and now?", "yes"]] * COUNT
