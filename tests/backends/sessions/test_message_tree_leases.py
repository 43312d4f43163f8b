"""Leases that end by themselves: renewed while they are tended, free after their time, fenced at once or soon."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Batch, Condition, Overwrite, Position, StoredObject, give_up
from repertory.backends.sessions.documents.journal import TreeSettings
from repertory.backends.sessions.documents.store import MessageTreeStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.records import StateChanged, ToolStarted
from repertory.core.journal.restore import Appender, restore
from repertory.core.json_bytes import read, to_file
from repertory.errors import Corrupt, LeaseLost, SessionBusy
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.session_contract import grow

pytestmark = pytest.mark.anyio

LEASE_S = 10.0


def opened(
    shelf: ObjectShelf,
    owner: str,
    *,
    prove_s: float = 5.0,
    wall: Callable[[], float] = anyio.current_time,
    objects: MemoryObjectStore | None = None,
) -> MessageTreeStore:
    return MessageTreeStore(
        objects or MemoryObjectStore(shelf),
        owner=owner,
        life=TimeToLive(wall, LEASE_S),
        wall=wall,
        entropy=os.urandom,
        settings=TreeSettings(prove_s=prove_s, renew_every_s=3.0, keep_heads=True),
    )


async def test_a_tended_session_stays_its_owners_and_is_free_soon_after_that() -> None:
    shelf = ObjectShelf()
    one, two = opened(shelf, "one"), opened(shelf, "two")
    assert one.capabilities.maintained
    lease, _ = await one.acquire("session")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.maintain)
        await anyio.sleep(100)
        with pytest.raises(SessionBusy):
            await two.acquire("session")
        assert await one.append([Batch(lease=lease, rows=grow(1))]) == [Position(agent_id="default", seq=1)]
        tasks.cancel_scope.cancel()
    await anyio.sleep(LEASE_S + 1)
    taken, _ = await two.acquire("session")
    assert taken.generation > lease.generation
    rows = grow(2)
    assert isinstance((await one.append([Batch(lease=lease, rows=rows[1:])]))[0], LeaseLost)
    assert len(await two.load("session", "default")) == 1


async def test_an_owner_that_slept_too_long_proves_its_lease_before_it_writes() -> None:
    shelf = ObjectShelf()
    one, two = opened(shelf, "one"), opened(shelf, "two")
    lease, rows = (await one.acquire("session")).lease, grow(2)
    await one.append([Batch(lease=lease, rows=rows[:1])])
    await anyio.sleep(LEASE_S * 3)
    assert await one.append([Batch(lease=lease, rows=rows[1:])]) == [Position(agent_id="default", seq=2)]
    with pytest.raises(SessionBusy):
        await two.acquire("session")
    await anyio.sleep(LEASE_S * 3)
    await two.acquire("session")
    assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)


@pytest.mark.parametrize("back_s", [3600.0, 1e9])
async def test_a_clock_that_goes_back_makes_nobody_wait_longer_than_a_lease_lasts(back_s: float) -> None:
    shelf = ObjectShelf()
    lease, _ = await opened(shelf, "one").acquire("session")
    late = opened(shelf, "two", wall=lambda: anyio.current_time() - back_s)
    with pytest.raises(SessionBusy):
        await late.acquire("session")
    await anyio.sleep(LEASE_S / 2)
    with pytest.raises(SessionBusy):
        await late.acquire("session")
    await anyio.sleep(LEASE_S / 2)
    assert (await late.acquire("session")).lease.generation > lease.generation


async def test_an_owner_whose_clock_goes_back_proves_its_lease_again() -> None:
    shelf, back = ObjectShelf(), [0.0]
    one = opened(shelf, "one", wall=lambda: anyio.current_time() - back[0])
    lease, rows = (await one.acquire("session")).lease, grow(1)
    await opened(shelf, "two").acquire("session", takeover=True)
    back[0] = 3600.0
    assert isinstance((await one.append([Batch(lease=lease, rows=rows)]))[0], LeaseLost)


async def test_a_proof_whose_answer_got_lost_is_recognised() -> None:
    shelf = ObjectShelf()
    faulty = FaultyObjectStore(MemoryObjectStore(shelf), _Never(), ObjectFaults())
    store = MessageTreeStore(
        faulty,
        owner="one",
        life=TimeToLive(anyio.current_time, LEASE_S),
        wall=anyio.current_time,
        entropy=os.urandom,
        settings=TreeSettings(prove_s=1.0, renew_every_s=3.0),
    )
    lease, _ = await store.acquire("session")
    await anyio.sleep(2)
    faulty.settings = ObjectFaults(lost_rate=1.0)
    (outcome,) = await store.append([Batch(lease=lease, rows=grow(1))])
    assert not isinstance(outcome, Position)
    faulty.settings = ObjectFaults()
    assert await store.append([Batch(lease=lease, rows=grow(1))]) == [Position(agent_id="default", seq=1)]


async def test_a_lease_that_cannot_be_read_is_named() -> None:
    shelf = ObjectShelf()
    store = opened(shelf, "one")
    await give_up(store, (await store.acquire("session")).lease)
    key = "session_session/repertory.json"
    shelf.objects[key] = shelf.objects[key]._replace(body=b'{"format": 99}')
    with pytest.raises(Corrupt, match=r"repertory\.json"):
        await store.acquire("session")
    shelf.objects[key] = shelf.objects[key]._replace(body=b"")
    await store.acquire("session")


class _Never:
    def random(self) -> float:
        return 0.5


async def test_a_former_owner_erases_nothing_in_a_new_session_of_the_same_name() -> None:
    """For a while it does not ask whether it is fenced."""
    shelf = ObjectShelf()
    one, two = opened(shelf, "one"), opened(shelf, "two")
    late, _ = await one.acquire("session")
    await one.append([Batch(lease=late, rows=grow(2))])
    await give_up(two, (await two.acquire("session", takeover=True)).lease)
    await two.delete("session")
    lease, _ = await two.acquire("session")
    await two.append([Batch(lease=lease, rows=grow(3))])
    await give_up(two, lease)
    (outcome,) = await one.append([Batch(lease=late, rows=(), erase=[("default", 1)])])
    assert isinstance(outcome, LeaseLost)
    assert list(await two.load("session", "default", whole=True)) == grow(3)


class Meddling(MemoryObjectStore):
    """Once, another owner comes just before or just after a message is put."""

    before: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], Awaitable[None]] | None = None

    async def get(self, key: str) -> StoredObject:
        meddle, self.before = (self.before, None) if key.endswith("repertory.json") else (None, self.before)
        if meddle is not None:
            await meddle()
        return await super().get(key)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        version = await super().put(key, body, condition)
        meddle, self.after = (self.after, None) if "/messages/" in key else (None, self.after)
        if meddle is not None:
            await meddle()
        return version


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("takeover", [False, True])
@pytest.mark.parametrize("intents", [False, True])
async def test_an_owner_that_looks_each_time_goes_on_when_it_was_asked_and_stops_when_it_was_fenced(
    when: str, takeover: bool, intents: bool
) -> None:
    shelf = ObjectShelf()
    objects = Meddling(shelf)
    one, two = (opened(shelf, name, prove_s=0.0, objects=each) for name, each in (("one", objects), ("two", None)))

    async def come() -> None:
        """Who may not take the session over leaves its wish in the lease, which is another version then."""
        with suppress(SessionBusy):
            await two.acquire("session", takeover=takeover)

    lease, _ = await one.acquire("session")
    assert not await one.load("session", "default")
    first, rows = grow(1), grow(2)[1:]
    assert await one.append([Batch(lease=lease, rows=first)]) == [Position(agent_id="default", seq=1)]
    if intents:
        appender = Appender("default", restore([*first, *rows]).fold, rows[-1].link, os.urandom)
        rows.append(appender.append(ToolStarted(at=1.0, tool_use_id="u", name="pay", idempotency_key="k")))
    setattr(objects, when, come)
    (outcome,) = await one.append([Batch(lease=lease, rows=rows)])
    stored = list(await opened(shelf, "three").load("session", "default"))
    if not takeover:
        assert outcome == Position(agent_id="default", seq=rows[-1].seq)
        assert stored == [*first, *rows]
        assert await one.asked_for() == (["session"] if when == "before" or intents else [])
        following = grow(3)[2:] if not intents else []
        assert isinstance((await one.append([Batch(lease=lease, rows=following)]))[0], Position)
        return
    seen = when == "before" or intents
    assert isinstance(outcome, LeaseLost if seen else Position)
    assert stored == (first if when == "before" else [*first, *rows])
    assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)


class Interrupted(MemoryObjectStore):
    """After the second get of the document with the secret, another program adds a field to it: the first is that of
    the whole journal, and what the second reads is to be replaced.
    """

    gets_left = -1

    async def get(self, key: str) -> StoredObject:
        found = await super().get(key)
        if "/messages/" in key and b"secret" in found.body:
            self.gets_left -= 1
            if self.gets_left == 0:
                await super().put(key, to_file({**read(found.body), "theirs": 1}), Overwrite())
        return found


async def test_what_another_program_writes_while_contents_are_destroyed_stays() -> None:
    shelf = ObjectShelf()
    objects = Interrupted(shelf)
    store = opened(shelf, "one", objects=objects)
    lease, _ = await store.acquire("session")
    rows = grow(1)
    appender = Appender("default", restore(rows).fold, rows[-1].link, os.urandom)
    rows.append(appender.append(StateChanged(at=1.0, set={"key": "secret"})))
    await store.append([Batch(lease=lease, rows=[*rows, *grow(1, after=rows)])])
    objects.gets_left = 2
    (outcome,) = await store.append([Batch(lease=lease, rows=(), erase=[("default", 2)])])
    assert isinstance(outcome, Position)
    assert objects.gets_left <= 0
    # The agent's own document goes on showing its state.
    bodies = [(await objects.get(info.key)).body for info in await objects.list("") if "/messages/" in info.key]
    assert sum(b'"theirs"' in body for body in bodies) == 1
    assert not any(b"secret" in body for body in bodies)
