"""Owners on one machine ask each other for sessions. Nobody looks now and then here: what is heard is heard by bell."""

# The tests look at files between calls; nothing else runs on their loops.

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from repertory.backends.ports import Batch, Lease, SessionStore, give_up
from repertory.backends.sessions.asking import Requests, leave_request
from repertory.errors import SessionBusy
from repertory.testing.session_contract import grow
from tests.app.embedding.sharing_process import place

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

KINDS = {"sqlite": "sessions.db-owners", "journals": ".repertory-owners", "documents": "repertory-owners"}
"""With the name of the folder of lock files."""
LONG_S = 3600.0
LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)


class Pair:
    """Two owners of sessions in one folder."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.owners = folder / KINDS[kind]
        self.bells = folder / f"{KINDS[kind]}-bells"
        self.one, self.two = (place(kind, str(folder)).open_store() for _ in range(2))

    async def refused(self) -> str:
        """The second one asks for the session; the name of the owner that has it."""
        with pytest.raises(SessionBusy) as busy:
            await self.two.acquire("s")
        return str(busy.value.fields["owner"])


@pytest.fixture(params=KINDS)
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(str(request.param), tmp_path)
    yield pair
    await pair.one.aclose()
    await pair.two.aclose()


@asynccontextmanager
async def listening(store: SessionStore) -> AsyncIterator[Callable[[], anyio.Event]]:
    """The store listens, and has begun to. Gives a function that returns an event of the next request."""
    event = anyio.Event()

    def following() -> anyio.Event:
        nonlocal event
        event = anyio.Event()
        return event

    async with anyio.create_task_group() as group:
        group.start_soon(store.capabilities.sharing.listen, lambda: event.set())
        with anyio.fail_after(20):
            await event.wait()
        yield following
        group.cancel_scope.cancel()


@LOOPS
async def test_an_owner_that_listens_is_told_of_each_request(pair: Pair) -> None:
    await pair.one.acquire("s")
    async with listening(pair.one) as following:
        for _ in range(3):
            asked = following()
            await pair.refused()
            with anyio.fail_after(20):
                await asked.wait()
            assert await pair.one.capabilities.sharing.asked_for() == ["s"]
            assert await pair.one.capabilities.sharing.asked_for() == []


@LOOPS
@pytest.mark.parametrize("end", ["released", "closed"])
async def test_who_waits_is_told_when_the_session_is_free(pair: Pair, end: str) -> None:
    lease, _ = await pair.one.acquire("s")
    owner = await pair.refused()
    with anyio.fail_after(20):
        async with pair.two.capabilities.sharing.waiting("s") as until_free, anyio.create_task_group() as group:
            await until_free(owner, LONG_S)
            await pair.refused()
            group.start_soon(give_up, pair.one, lease) if end == "released" else group.start_soon(pair.one.aclose)
            await until_free(owner, LONG_S)
            await pair.two.acquire("s")


async def test_what_was_asked_for_before_it_was_released_is_no_request_to_the_next_holder(pair: Pair) -> None:
    lease, _ = await pair.one.acquire("s")
    await pair.refused()
    await give_up(pair.one, lease)
    await pair.one.acquire("s")
    assert await pair.one.capabilities.sharing.asked_for() == []


async def test_a_session_that_became_free_before_anybody_waited_is_tried_again_at_once(pair: Pair) -> None:
    lease, _ = await pair.one.acquire("s")
    owner = await pair.refused()
    await give_up(pair.one, lease)
    with anyio.fail_after(20):
        async with pair.two.capabilities.sharing.waiting("s") as until_free:
            await until_free(owner, LONG_S)
            await pair.two.acquire("s")


async def test_bells_are_for_their_user_alone_and_there_only_while_somebody_listens_or_waits(pair: Pair) -> None:
    await pair.one.acquire("s")
    await pair.two.acquire("other")
    previous = os.umask(0)
    try:
        async with listening(pair.one), pair.two.capabilities.sharing.waiting("s") as until_free:
            await until_free("nobody", LONG_S)
            assert stat.S_IMODE(os.stat(pair.bells).st_mode) == 0o700
            modes = [os.lstat(bell).st_mode for bell in pair.bells.iterdir()]
            assert [stat.S_ISFIFO(mode) and stat.S_IMODE(mode) for mode in modes] == [0o600] * 2
    finally:
        os.umask(previous)
    assert not pair.bells.exists()


async def test_nothing_stays_open_when_nobody_listens_or_waits_any_more(pair: Pair) -> None:
    await pair.one.acquire("s")
    await pair.two.acquire("other")
    before = set(os.listdir("/proc/self/fd"))
    async with listening(pair.one), pair.two.capabilities.sharing.waiting("s") as until_free:
        await until_free("nobody", LONG_S)
        with suppress(TimeoutError), anyio.fail_after(0.01):
            await until_free("nobody", LONG_S)
    assert set(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_nothing_stays_open_when_asyncio_cancels_again_and_again(pair: Pair) -> None:
    await pair.one.acquire("s")
    owner = await pair.refused()
    before = set(os.listdir("/proc/self/fd"))

    async def wait() -> None:
        async with pair.two.capabilities.sharing.waiting("s") as until_free:
            for _ in range(2):
                await until_free(owner, LONG_S)

    for patience_s in (0.0, 0.001, 0.02):
        tasks = [asyncio.ensure_future(each) for each in (wait(), pair.one.capabilities.sharing.listen(lambda: None))]
        await anyio.sleep(patience_s)
        for _ in range(10):
            for task in tasks:
                task.cancel()
            await checkpoint()
        assert all(
            isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*tasks, return_exceptions=True)
        )
        assert not pair.bells.exists()
    assert set(os.listdir("/proc/self/fd")) <= before


async def test_who_waits_for_many_sessions_opens_some_pipes_and_waits_for_the_others_by_the_clock(pair: Pair) -> None:
    owner = (await pair.one.acquire("s")).lease.owner
    await pair.two.acquire("other")
    async with AsyncExitStack() as stack:
        waits = [
            await stack.enter_async_context(pair.two.capabilities.sharing.waiting(f"s-{number}"))
            for number in range(100)
        ]
        async with anyio.create_task_group() as group:
            for until_free in waits:
                group.start_soon(until_free, owner, 0.01)
        assert len(list(pair.bells.iterdir())) == 32
    assert not pair.bells.exists()


async def test_the_bells_of_dead_owners_are_removed(pair: Pair) -> None:
    pair.bells.mkdir()
    os.mkfifo(pair.bells / "0.dead")
    os.mkfifo(pair.bells / "17.dead.too")
    (pair.bells / "0.notes").write_text("not a bell")
    await pair.one.acquire("s")
    assert [each.name for each in pair.bells.iterdir()] == ["0.notes"]
    async with listening(pair.one):
        await pair.two.acquire("other")
        assert len(list(pair.bells.iterdir())) == 2, "that of a live owner stays"


def a_file(bells: Path) -> None:
    bells.write_text("something else")


def a_link(bells: Path) -> None:
    target = bells.with_name("elsewhere")
    target.mkdir()
    os.mkfifo(target / "0.dead")
    bells.symlink_to(target)


@pytest.mark.parametrize("obstacle", [a_file, a_link])
async def test_where_no_bell_can_be_made_requests_are_found_by_looking(
    pair: Pair, obstacle: Callable[[Path], None]
) -> None:
    obstacle(pair.bells)
    lease, _ = await pair.one.acquire("s")
    with anyio.fail_after(20):
        await pair.one.capabilities.sharing.listen(lambda: pytest.fail("nothing was heard"))  # Returns at once.
        owner = await pair.refused()
        async with pair.two.capabilities.sharing.waiting("s") as until_free:
            await until_free(owner, 0.01)
        assert await pair.one.capabilities.sharing.asked_for() == ["s"]
        await give_up(pair.one, lease)
        await pair.two.acquire("s")
    assert pair.bells.is_symlink() or pair.bells.read_text() == "something else"
    assert not pair.bells.is_symlink() or [each.name for each in pair.bells.iterdir()] == ["0.dead"]


def touched(bell: Path) -> None:
    bell.touch()


def linked(bell: Path) -> None:
    target = bell.parent.with_name("precious")
    target.touch()
    bell.symlink_to(target)


def gone(bell: Path) -> None:
    bell.parent.rmdir()


@pytest.mark.parametrize("replace", [touched, linked, gone])
async def test_what_takes_the_place_of_a_bell_is_not_written_to_and_requests_are_found_by_looking(
    pair: Pair, replace: Callable[[Path], None]
) -> None:
    await pair.one.acquire("s")
    async with listening(pair.one):
        (bell,) = pair.bells.iterdir()
        bell.unlink()
        replace(bell)
        await pair.refused()
        assert await pair.one.capabilities.sharing.asked_for() == ["s"]
        assert not bell.exists() or bell.read_text() == ""


async def test_a_wait_ends_with_its_time(pair: Pair) -> None:
    await pair.one.acquire("s")
    owner = await pair.refused()
    with anyio.fail_after(20):
        async with pair.two.capabilities.sharing.waiting("s") as until_free:
            for _ in range(3):
                await until_free(owner, 0.01)


async def test_a_lease_of_one_who_was_cancelled_while_it_waited_is_not_kept(pair: Pair) -> None:
    lease, _ = await pair.one.acquire("s")
    await pair.one.append([Batch(lease=lease, rows=grow(1))])  # Nothing is left of a session without records.
    owner = await pair.refused()
    with anyio.move_on_after(0.05):
        async with pair.two.capabilities.sharing.waiting("s") as until_free:
            await until_free(owner, LONG_S)
            await until_free(owner, LONG_S)
    assert not pair.bells.exists()
    await give_up(pair.one, lease)
    again: Lease = (await pair.one.acquire("s")).lease
    assert again.generation == lease.generation + 1


def requests(folder: Path) -> tuple[Requests, Path]:
    """An owner's requests, and the folder of lock files; the caller closes nothing."""
    owners = folder / "owners"
    owners.mkdir()
    (owners / "me").write_text("1\n")
    return Requests(owners, os.open(owners / "me", os.O_RDWR)), owners


def test_requests_that_make_no_sense_are_harmless(tmp_path: Path) -> None:
    mine, owners = requests(tmp_path)
    (tmp_path / "owners-bells").mkdir()
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    with (owners / "me").open("ab") as file:
        file.write(b"s/../precious\ns/\n/\ns/\0\ns/" + b"x" * 300 + b"\n\xff\xfe\ns\n")
    assert mine.take() == ["s", "", "\ufffd\ufffd"]
    mine.freed("s")
    mine.close()()
    assert precious.read_text() == "untouched"


def test_many_requests_are_cut_off_and_none_is_found_twice(tmp_path: Path) -> None:
    mine, owners = requests(tmp_path)
    asked: list[str] = []
    for number in range(9000):
        leave_request(owners, "me", f"session-{number}")
        if number % 100 == 0:
            asked += mine.take()
    asked += mine.take()
    assert asked == [f"session-{number}" for number in range(9000)]
    assert (owners / "me").stat().st_size < 70_000


def test_those_who_wait_are_forgotten_when_they_are_too_many(tmp_path: Path) -> None:
    mine, owners = requests(tmp_path)
    for number in range(5000):
        leave_request(owners, "me", f"session-{number}", f"{number}.asker")
        if number % 100 == 0:
            mine.take()
    mine.take()
    assert sum(map(len, mine._waiting.values())) <= 1000
