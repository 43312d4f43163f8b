"""Who holds a session on SQLite: its lease and the lock of its owner, and the generation that each commit compares."""

# The tests look at files between calls; nothing else runs on their loops.
# ruff: noqa: ASYNC240

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory.backends.ports import Batch, Lease, Position, give_up
from repertory.backends.sessions.sqlite.file import lease_file
from repertory.backends.sessions.sqlite.journals import LeaseMarks
from repertory.backends.sessions.sqlite.reading import GENERATION_MAX
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.core.journal.restore import restore
from repertory.errors import Invalid, LeaseLost, SessionBusy, StoreFailed, StoreUnavailable, Unavailable
from repertory.testing.session_contract import grow
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@asynccontextmanager
async def stores(path: Path, *owners: str, busy_timeout_s: float = 5.0) -> AsyncGenerator[list[SQLiteSessionStore]]:
    opened = [SQLiteSessionStore(path, owner=owner, busy_timeout_s=busy_timeout_s) for owner in owners]
    try:
        yield opened
    finally:
        for store in opened:
            await store.aclose()


async def put(store: SQLiteSessionStore, lease: Lease, count: int = 1) -> None:
    rows = grow(count, after=await store.load(lease.session_id, "default", whole=True))
    (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
    if isinstance(outcome, LeaseLost):
        raise outcome


async def again(store: SQLiteSessionStore, lease: Lease) -> bool:
    try:
        await store.acquire(lease.session_id, again=lease)
    except LeaseLost:
        return False
    return True


def program(text: str, *arguments: object) -> None:
    command = [sys.executable, "-c", text, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


# The file of leases by itself.


class KnownLease:
    """What a model knows of a lease."""

    says = "nothing"
    ended = False


def test_the_file_says_what_a_dictionary_says(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    file = LeaseMarks(tmp_path / "leases")
    known = {generation: KnownLease() for generation in (1, 2, 3, 1000, GENERATION_MAX)}
    for _ in range(3000):
        generation, lease = rng.choice(list(known.items()))
        match rng.choice(["begin", "again", "give up", "end", "look", "remove"]):
            case "begin":
                file.begin(generation)
                lease.says, lease.ended = "held", False
            case "again" if lease.says != "held":
                assert file.begin_again(generation) == (lease.says == "free" and not lease.ended)
                lease.says = "held" if lease.says == "free" and not lease.ended else lease.says
            case "give up" if lease.says == "held":
                file.give_up(generation)
                lease.says = "free"
            case "end":
                file.end(generation)
                lease.ended = True
            case "look":
                assert file.says_held(generation) == (lease.says == "held")
            case "remove" if rng.random() < 0.1:
                (tmp_path / "leases").unlink(missing_ok=True)
                known = {each: KnownLease() for each in known}
            case _:
                pass


@pytest.mark.parametrize("first", ["the owner", "the next one"])
def test_of_two_that_meet_at_any_step_at_least_one_gives_way(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner takes its lease again, and the next one ends it and looks: all orders of their steps."""
    one, two = LeaseMarks(tmp_path / "leases"), LeaseMarks(tmp_path / "leases")
    for steps in range(6):
        one.begin(1)
        one.give_up(1)
        done: list[bool] = []

        def acquire(done: list[bool] = done) -> None:
            if not two.says_held(1):
                two.end(1)
                done.append(not two.says_held(1))

        def again(done: list[bool] = done) -> None:
            done.append(one.begin_again(1))

        outer, inner = (again, acquire) if first == "the owner" else (acquire, again)
        left = steps

        def stepping(real: Callable[..., Any], inner: Callable[[], None] = inner) -> Callable[..., Any]:
            def step(*arguments: Any) -> Any:
                nonlocal left
                left -= 1
                if left == -1:
                    inner()
                return real(*arguments)

            return step

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", stepping(os.pread))
            patch.setattr(os, "pwrite", stepping(os.pwrite))
            outer()
        assert sum(done) < 2, steps


async def test_a_folder_in_the_place_of_the_leases_is_refused(path: Path) -> None:
    lease_file(path).mkdir()
    async with stores(path, "owner") as (store,):
        with pytest.raises(Invalid, match="place of a file"):
            await store.acquire("s")


async def test_leases_that_cannot_be_written_are_refused_and_keep_no_session_from_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    async with stores(path, "one", "two") as (one, two):
        held, _ = await one.acquire("held")
        free, _ = await one.acquire("free")
        await give_up(one, free)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", refused)
            with pytest.raises(StoreFailed, match="no right"):
                await one.acquire("another")
            with pytest.raises(LeaseLost):
                await one.acquire("free", again=free)
            with pytest.raises(StoreUnavailable, match="cannot be given up"):
                await one.release([held])
        with pytest.raises(SessionBusy):
            await two.acquire("held")
        await give_up(one, held)
        for name in ("held", "free", "another"):
            await two.acquire(name)


# Stores of one process.


async def test_a_session_that_is_given_up_and_taken_again_is_no_work_for_the_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stores(path, "one", "two") as (one, two):
        lease, _ = await one.acquire("s")
        await put(one, lease)
        run = one._thread.run
        monkeypatch.setattr(one._thread, "run", None)
        for _ in range(3):
            await give_up(one, lease)
            assert await again(one, lease)
            assert lease.release_now()
            assert lease.acquire_now()
        monkeypatch.setattr(one._thread, "run", run)
        await put(one, lease)
        with pytest.raises(SessionBusy):
            await two.acquire("s")
        await give_up(one, lease)
        theirs, _ = await two.acquire("s")
        assert theirs.generation > lease.generation
        assert theirs.taken_from is None
        assert not lease.acquire_now()
        await give_up(two, theirs)
        assert not await again(one, lease)
        assert await again(two, theirs)
    assert not theirs.acquire_now()  # Its store is closed.


async def test_only_the_last_lease_of_a_session_writes_whatever_happens_to_the_file_of_leases(
    path: Path, seed: int
) -> None:
    """Stores take, give up, take again and force; somebody removes the file now and then."""
    rng = random.Random(seed)
    async with stores(path, "one", "two", "three") as opened:
        leases: list[Lease | None] = [None, None, None]
        last, taken = -1, 0
        for _ in range(400):
            number = rng.randrange(3)
            store, lease = opened[number], leases[number]
            match rng.choice(["acquire", "force", "give up", "again", "append", "append", "remove"]):
                case "acquire" | "force" as how:
                    try:
                        leases[number], _ = await store.acquire("s", takeover=how == "force")
                        last, taken = number, taken + 1
                    except SessionBusy:
                        assert how == "acquire"
                case "give up" if lease is not None:
                    await give_up(store, lease)
                case "again" if lease is not None:
                    if await again(store, lease):
                        await store.append([Batch(lease=lease, rows=())])
                case "append" if lease is not None:
                    rows = grow(1, after=await store.load("s", "default", whole=True))
                    (outcome,) = await store.append([Batch(lease=lease, rows=rows)])
                    assert number == last or isinstance(outcome, LeaseLost)
                case "remove" if rng.random() < 0.2:
                    lease_file(path).unlink(missing_ok=True)
                case _:
                    pass
        assert taken > 20
        restore(await opened[0].load("s", "default", whole=True))


async def test_an_owner_whose_leases_are_removed_is_fenced_and_comes_back(path: Path) -> None:
    async with stores(path, "one", "two") as (one, two):
        held, _ = await one.acquire("held")
        free, _ = await one.acquire("free")
        await put(one, held)
        await give_up(one, free)
        lease_file(path).unlink()
        theirs, _ = await two.acquire("held")
        await put(two, theirs)
        with pytest.raises(LeaseLost):
            await put(one, held)
        await put(two, theirs)
        assert not await again(one, free)
        await put(one, (await one.acquire("free")).lease)
        with pytest.raises(SessionBusy):
            await one.acquire("held")


async def test_an_older_database_in_the_place_of_one_in_use_counts_its_leases_again(path: Path) -> None:
    older = path.with_name("older.db")
    async with stores(path, "first") as (store,):
        await put(store, (await store.acquire("s")).lease)
    shutil.copy(path, older)
    async with stores(path, "before", "after") as (before, after):
        held = [(await before.acquire(name)).lease for name in ("a", "b", "c")]
        await put(before, held[0])
        for ending in ("-wal", "-shm"):
            Path(f"{path}{ending}").unlink()
        older.rename(path)
        for owner in Path(f"{path}-owners").iterdir():
            owner.unlink()  # They note commits that the older one lacks.
        theirs = [(await after.acquire(name)).lease for name in ("x", "y", "z")]
        assert {lease.generation for lease in theirs} & {lease.generation for lease in held}
        for lease in theirs:
            await put(after, lease)
        with pytest.raises(Unavailable, match="replaced"):
            await put(before, held[0])


async def test_threads_with_loops_and_stores_of_their_own_share_a_session(path: Path) -> None:
    turns = 20

    def work(number: int) -> None:
        async def main() -> None:
            async with stores(path, f"thread-{number}") as (store,):
                for _ in range(turns):
                    while True:
                        try:
                            lease, _ = await store.acquire("s")
                            break
                        except SessionBusy:
                            await anyio.sleep(0.001)
                    await put(store, lease)
                    await give_up(store, lease)

        anyio.run(main)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(anyio.to_thread.run_sync, work, number)
    async with stores(path, "reader") as (store,):
        rows = await store.load("s", "default", whole=True)
    assert len(rows) == 4 * turns
    restore(rows)


# Processes.

FORKS = """
import gc, os, signal, sys, anyio
from repertory.backends.ports import Batch, Position
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.errors import SessionBusy
from repertory.testing.session_contract import grow

async def main():
    store, rows = SQLiteSessionStore(sys.argv[1], owner="parent"), grow(20)
    lease, _ = await store.acquire("s")
    for number in range(12):
        if number % 2:
            await store.release([lease])
            await store.acquire("s", again=lease)
        (outcome,) = await store.append([Batch(lease=lease, rows=rows[number : number + 1])])
        assert isinstance(outcome, Position), outcome
        child = os.fork()
        if not child:
            if number % 3 == 0:
                store.abandon()
            if number % 3 == 1:
                del store
                gc.collect()
            if number % 4:
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        other = SQLiteSessionStore(sys.argv[1], owner=f"other-{number}")
        try:
            await other.acquire("s")
            raise AssertionError("a child has freed its parent's session")
        except SessionBusy:
            pass
        await other.aclose()
    child = os.fork()
    if not child:
        os.execvp("sleep", ["sleep", "30"])
    await store.release([lease])
    other = SQLiteSessionStore(sys.argv[1], owner="other")
    await other.acquire("s")
    os.kill(child, 9)
    os.waitpid(child, 0)

anyio.run(main)
"""


async def test_a_child_neither_frees_nor_keeps_its_parents_session(path: Path) -> None:
    await anyio.to_thread.run_sync(program, FORKS, path)


KILLS = """
import os, signal, sqlite3, sys, anyio
from repertory.backends.ports import Batch, Position, WorkQuery
from repertory.backends.sessions.sqlite.journals import LeaseMarks
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.backends.sqlite_files import Connection
from repertory.core.pending_work import DueTime
from repertory.testing.session_contract import grow

path, DUE = sys.argv[1], DueTime(agent_id="default", at=1.0, why="turn")

class Dying(Connection):
    def execute(self, statement, *values):
        step = statement.startswith(("COMMIT", "INSERT INTO sessions"))
        if step:
            reach()
        result = super().execute(statement, *values)
        if step:
            reach()
        return result

def reach():
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

def around(name):
    real = getattr(os, name)
    def call(*arguments, **options):
        reach()
        result = real(*arguments, **options)
        reach()
        return result
    setattr(os, name, call)

async def live(report):
    store = SQLiteSessionStore(path, owner=f"child-{os.getpid()}")
    lease, _ = await store.acquire("s")
    for turn in range(3):
        rows = await store.load("s", "default", whole=True)
        (outcome,) = await store.append([Batch(lease=lease, rows=grow(1, after=rows), due=DUE)])
        assert isinstance(outcome, Position), outcome
        os.write(report, b"x")
        await store.release([lease])
        await store.acquire("s", again=lease)
    os.write(report, b"over")

async def look(at_least, before):
    store = SQLiteSessionStore(path, owner=f"next-{before}")
    try:
        rows = await store.load("s", "default", whole=True)
        assert at_least <= len(rows) <= at_least + 1, (at_least, len(rows))
        works = await store.claim_due(WorkQuery((before + 1) * 1e6, 1, ["default"]))
        assert len(works) == bool(rows), works
        lease, _ = await store.acquire("s")
        assert lease.generation > before, (lease, before)
        (outcome,) = await store.append([Batch(lease=lease, rows=grow(1, after=rows), due=DUE)])
        assert isinstance(outcome, Position), outcome
        await store.release([lease])
        assert [each.claims for each in await store.pending_work()] == [0], await store.pending_work()
        return lease.generation, len(rows) + 1
    finally:
        await store.aclose()

crash_at, generation, count, over = 0, 0, 0, False
while not over:
    crash_at += 1
    read, write = os.pipe()
    child = os.fork()
    if not child:
        left = crash_at
        for name in ("pread", "pwrite"):
            around(name)
        sqlite3.connect = lambda *a, real=sqlite3.connect, **o: real(*a, **{**o, "factory": Dying})
        anyio.run(live, write)
        os._exit(0)
    os.close(write)
    reported = os.read(read, 100)
    while more := os.read(read, 100):
        reported += more
    os.close(read)
    over = b"over" in reported
    os.waitpid(child, 0)
    generation, count = anyio.run(look, count + reported.count(b"x"), generation)
assert crash_at > 30, crash_at
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_an_owner_that_is_killed_at_any_step_leaves_the_session_free_and_its_work_owed(path: Path) -> None:
    await anyio.to_thread.run_sync(program, KILLS, path)


STOPPED = """
import sys, anyio
from repertory.backends.ports import Batch
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.errors import LeaseLost
from repertory.testing.session_contract import grow

async def main():
    store = SQLiteSessionStore(sys.argv[1], owner=sys.argv[2])
    lease, _ = await store.acquire("s")
    rows = await store.load("s", "default", whole=True)
    print("ready", flush=True)
    while True:
        rows = [*rows, *grow(1, after=rows)]
        (outcome,) = await store.append([Batch(lease=lease, rows=rows[-1:])])
        if isinstance(outcome, LeaseLost):
            break
        await store.release([lease])
        try:
            await store.acquire("s", again=lease)
        except LeaseLost:
            break
    print("fenced", flush=True)

anyio.run(main)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_stopped_owner_that_is_taken_over_writes_nothing_when_it_goes_on(path: Path, seed: int) -> None:
    rng, moment = random.Random(seed), threading.Event()

    def fenced(number: int, take: Callable[[], Any]) -> None:
        command = [sys.executable, "-c", STOPPED, str(path), f"child-{number}"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
            try:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
                while True:
                    moment.wait(rng.random() * 0.02)
                    child.send_signal(signal.SIGSTOP)
                    try:
                        take()
                        break
                    except Unavailable:  # It was stopped while it commits.
                        child.send_signal(signal.SIGCONT)
                child.send_signal(signal.SIGCONT)
                assert child.stdout.readline() == "fenced\n"
            finally:
                child.kill()

    for number in range(6):
        async with stores(path, f"taker-{number}", busy_timeout_s=0.1) as (store,):
            taken: list[Lease] = []

            async def take(store: SQLiteSessionStore = store, taken: list[Lease] = taken) -> None:
                taken[:] = [(await store.acquire("s", takeover=True)).lease]
                await put(store, taken[0], 2)

            await anyio.to_thread.run_sync(fenced, number, lambda take=take: anyio.from_thread.run(take))
            before = await store.load("s", "default", whole=True)
            await put(store, taken[0])
            assert len(await store.load("s", "default", whole=True)) == len(before) + 1
            restore(await store.load("s", "default", whole=True))


TURNS = """
import sys, anyio
from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions

async def main():
    model = ScriptedModel(["ok"], loop=True)
    async with Runtime(sessions=SQLiteSessions(sys.argv[1])) as runtime:
        session = runtime.agent(AgentSpec(name="desk", model=model)).session("s")
        print("ready", flush=True)
        while await anyio.to_thread.run_sync(sys.stdin.readline):
            await session.invoke("hello")
            print("done", flush=True)

anyio.run(main)
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_two_runtimes_alternate_a_thousand_times_and_each_asks_the_other(path: Path) -> None:
    def alternate() -> None:
        command = [sys.executable, "-c", TURNS, str(path)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
        with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as two:
            try:
                assert one.stdin is not None
                assert two.stdin is not None
                assert one.stdout is not None
                assert two.stdout is not None
                assert (one.stdout.readline(), two.stdout.readline()) == ("ready\n", "ready\n")
                ways = (one.stdin, one.stdout), (two.stdin, two.stdout)
                for number in range(1000):
                    to, of = ways[number % 2]
                    to.write("go\n")
                    to.flush()
                    assert of.readline() == "done\n"
                one.stdin.close()
                two.stdin.close()
                assert (one.wait(20), two.wait(20)) == (0, 0)
            finally:
                one.kill()
                two.kill()

    await anyio.to_thread.run_sync(alternate)
    async with stores(path, "reader") as (store,):
        (info,) = await store.sessions()
        (agent_id,) = info.agents
        restored = restore(await store.load("s", agent_id, whole=True))
        assert restored.fold.message_count == 2000
        lease, _ = await store.acquire("s")
        assert lease.generation > 999
        assert isinstance((await store.append([Batch(lease=lease, rows=())]))[0], Position)
    assert not os.path.lexists(f"{path}-owners-bells")
