"""Processes that share sessions in a folder or a bucket: killed at any instant, and fighting for the same session."""

from __future__ import annotations

import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory.core.journal.restore import restore
from repertory.errors import SessionBusy
from tests.backends.sessions import journal_child
from tests.backends.sessions.journal_child import open_store
from tests.backends.sessions.killed_children.fork_server import ForkedProcess, ForkServer

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

ROOT = Path(__file__).parents[3]
KEYS = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "AWS_REGION": "us-east-1"}
KILLS = 30


@contextmanager
def appending_children() -> Iterator[ForkServer]:
    """What starts children that append."""
    server = ForkServer(journal_child.__name__, {"AWS_EC2_METADATA_DISABLED": "true", **KEYS})
    yield server
    server.close()


@pytest.fixture(scope="module")
def children() -> Iterator[ForkServer]:
    with appending_children() as server:
        yield server


@contextmanager
def child(
    children: ForkServer, place: str, owner: str, *, sessions: int, seed: int, crash_at: int | None = None
) -> Iterator[ForkedProcess]:
    """A child that appends; killed in the end, if it has not been before."""
    process = children.start(place, owner, str(sessions), str(seed), *([] if crash_at is None else [str(crash_at)]))
    try:
        yield process
    finally:
        process.close()


def reports(process: ForkedProcess, count: int | None = None) -> dict[str, int]:
    """The last acknowledged number of each session, of `count` lines or of all until the child is gone."""
    seen: dict[str, int] = {}
    while count is None or count > 0:
        line = process.stdout.readline()
        if not line:
            break
        session_id, *said = line.split()
        if said:
            seen[session_id] = int(said[0])
        count = None if count is None else count - 1
    return seen


async def wait_for(process: ForkedProcess, count: int | None) -> dict[str, int]:
    with anyio.fail_after(60):
        return await anyio.to_thread.run_sync(reports, process, count)


async def check(place: str, owner: str, acknowledged: dict[str, int], *, slack: int) -> dict[str, int]:
    """Open what a dead child left: nothing acknowledged is missing, and the rest is whole."""
    store = open_store(place, owner)
    found: dict[str, int] = {}
    try:
        for session_id, seq in acknowledged.items():
            await store.acquire(session_id)
            rows = await store.load(session_id, "default", whole=True)
            restored = restore(rows, session_id=session_id)
            assert seq <= restored.fold.last_seq <= seq + slack
            part = restore(await store.load(session_id, "default"), session_id=session_id)
            assert part.fold.image() == restored.fold.image()
            found[session_id] = restored.fold.last_seq
        listed = {info.session_id: info.agents["default"] for info in await store.sessions()}
        assert {name: listed[name] for name in found} == found
    finally:
        await store.aclose()
    return found


async def test_a_session_in_a_folder_is_busy_until_its_process_is_killed(children: ForkServer, tmp_path: Path) -> None:
    place = str(tmp_path / "sessions")
    with child(children, place, "child", sessions=1, seed=2) as process:
        await wait_for(process, 1)
        store = open_store(place, "parent")
        try:
            with pytest.raises(SessionBusy):
                await store.acquire("session-0")
            process.kill()
            process.wait()
            lease, _ = await store.acquire("session-0")
            assert lease.owner == "parent"
        finally:
            await store.aclose()


@pytest.mark.timeout(240)
async def test_every_acknowledged_row_survives_random_kills(children: ForkServer, tmp_path: Path, seed: int) -> None:
    """DESIGN: kill -9 at any instant. Thirty kills per loop, each at another moment."""
    rng = random.Random(seed)
    place = str(tmp_path / "sessions")
    acknowledged: dict[str, int] = {}
    for kill in range(KILLS):
        with child(children, place, f"child-{kill}", sessions=3, seed=rng.randrange(2**31) * 2) as process:
            await wait_for(process, 1)
            for _ in range(rng.randrange(3)):
                acknowledged |= await wait_for(process, rng.randrange(1, 30))
            await anyio.sleep(rng.random() * 0.02)
            process.kill()
            acknowledged |= await wait_for(process, None)
        if kill % 5 == 4:
            # Commits may have happened whose report was not written any more: at most one group per kill.
            acknowledged = await check(place, f"checker-{kill}", acknowledged, slack=15)
    assert sum(acknowledged.values()) > 0


@pytest.mark.timeout(240)
async def test_every_crash_point_leaves_what_was_acknowledged(children: ForkServer, tmp_path: Path, seed: int) -> None:
    """Before, after and in the middle of each call of the system that changes a file."""
    place = str(tmp_path / "sessions")
    acknowledged: dict[str, int] = {}
    for crash_at in range(1, 60, 2):
        own, name = 2 * (seed + crash_at), f"child-{crash_at}"
        with child(children, place, name, sessions=1, seed=own, crash_at=crash_at) as process:
            acknowledged |= await wait_for(process, None)
            assert process.wait() == -9
        if crash_at % 10 == 9:
            acknowledged = await check(place, f"checker-{crash_at}", acknowledged, slack=15)
    assert sum(acknowledged.values()) > 0


@pytest.mark.timeout(240)
async def test_a_kill_at_any_request_of_taking_and_giving_up_loses_nothing_acknowledged(
    tmp_path: Path, anyio_backend_name: str, rng: random.Random
) -> None:
    """DESIGN: kill -9 at any instant. Each child dies before or after another request that changes objects."""
    steps = await die_at_each_request(tmp_path, rng, anyio_backend_name, "journals")
    for moment in ("before", "after"):
        assert {f"maintenance: {moment} put {what}" for what in ("s", "w", "c")} <= steps


@pytest.mark.timeout(240)
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_a_kill_at_any_request_leaves_documents_that_say_what_their_journal_says(
    tmp_path: Path, rng: random.Random
) -> None:
    """Once the next owner has written what was missing."""
    steps = await die_at_each_request(tmp_path, rng, "trio", "documents")
    for moment in ("before", "after"):
        assert {f"commit: {moment} put {name}" for name in ("messages", "agent.json", "session.json")} <= steps


async def die_at_each_request(tmp_path: Path, rng: random.Random, loop: str, kind: str) -> set[str]:
    """The requests of the steps at which children have died."""
    points = Path(__file__).with_name("killed_children") / "object_points_child.py"
    command = [sys.executable, str(points), str(tmp_path / "points"), str(rng.randrange(2**32)), loop, kind]
    done = await anyio.run_process(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False, stderr=None)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    for moment in ("before", "after"):
        assert {f"{step}: {moment} put head" for step in ("acquire", "take", "commit", "give up")} <= {*found["steps"]}
    assert min(found["free"], found["busy"]) > 5
    return {*found["steps"]}


async def fight(children: ForkServer, place: str, seconds: float, pauses: random.Random | None = None) -> None:
    """Two processes that force the same session from each other. Both are acknowledged some, and nothing is forked.

    With `pauses` they are stopped and go on at any moment, as on a machine that is short of processors: until each has
    lost the session ten times, or the time is over.
    """
    with (
        child(children, place, "one", sessions=1, seed=1) as one,
        child(children, place, "two", sessions=1, seed=3) as two,
    ):
        acknowledged: list[dict[int, str]] = [{}, {}]
        lost = [0, 0]

        def listen(number: int, process: ForkedProcess) -> None:
            for line in process.stdout:
                lost[number] += line.startswith("lost")
                if len(said := line.split()) == 3:
                    acknowledged[number][int(said[1])] = said[2]

        async def pause(process: ForkedProcess, rng: random.Random) -> None:
            while True:
                await anyio.sleep(rng.random() * 0.05)
                process.send_signal(signal.SIGSTOP)
                await anyio.sleep(rng.random() * 0.1)
                process.send_signal(signal.SIGCONT)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, listen, 0, one)
            tasks.start_soon(anyio.to_thread.run_sync, listen, 1, two)
            async with anyio.create_task_group() as pausing:
                for process in [one, two] if pauses is not None else []:
                    pausing.start_soon(pause, process, random.Random(pauses.random()))
                with anyio.move_on_after(seconds):
                    least = 3 if pauses is None else 10
                    while min(lost) < least or min(map(len, acknowledged)) < 5:  # noqa: ASYNC110 - threads tell
                        await anyio.sleep(0.05)
                pausing.cancel_scope.cancel()
            codes = one.poll(), two.poll()
            one.kill()
            two.kill()
    assert codes == (None, None)
    assert min(lost) > 0
    store = open_store(place, "judge")
    try:
        await store.acquire("session-0", takeover=True)
        rows = await store.load("session-0", "default", whole=True)
        restore(rows, session_id="session-0")
    finally:
        await store.aclose()
    assert not acknowledged[0].keys() & acknowledged[1].keys()
    for seq, link in {**acknowledged[0], **acknowledged[1]}.items():
        assert rows[seq - 1].link.hex() == link, seq


@pytest.mark.timeout(120)
async def test_owners_that_are_stopped_at_any_moment_are_fenced_all_the_same(
    children: ForkServer, tmp_path: Path, rng: random.Random
) -> None:
    await fight(children, str(tmp_path / "sessions"), 10, rng)


@pytest.mark.timeout(120)
async def test_two_processes_that_fight_for_a_session_in_a_folder_never_fork_it(
    children: ForkServer, tmp_path: Path
) -> None:
    await fight(children, str(tmp_path / "sessions"), 20)


@pytest.mark.timeout(120)
async def test_two_processes_that_fight_for_a_session_in_a_bucket_never_fork_it(
    children: ForkServer, s3_url: str, aws_keys: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    await fight(children, f"{s3_url}#fight-{anyio_backend_name}", 30)


@pytest.mark.timeout(120)
async def test_a_killed_owner_of_a_session_in_a_bucket_is_replaced_when_its_lease_has_ended(
    children: ForkServer, s3_url: str, aws_keys: pytest.MonkeyPatch, anyio_backend_name: str
) -> None:
    place = f"{s3_url}#killed-{anyio_backend_name}"
    with child(children, place, "child", sessions=1, seed=2) as process:
        await wait_for(process, 10)
        store = open_store(place, "parent")
        try:
            with pytest.raises(SessionBusy):
                await store.acquire("session-0")
            process.kill()
            acknowledged = await wait_for(process, None)
            with anyio.fail_after(30):
                while True:
                    try:
                        await store.acquire("session-0")
                        break
                    except SessionBusy:
                        await anyio.sleep(0.2)
            rows = await store.load("session-0", "default", whole=True)
            assert len(rows) >= acknowledged.get("session-0", 0)
            restore(rows)
        finally:
            await store.aclose()
