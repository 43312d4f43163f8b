"""What sessions on objects cost, who owns them, and what damage and loss look like. The contract is in
`test_object_contract.py`.
"""

from __future__ import annotations

import gc
import random
import tracemalloc
import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import (
    Batch,
    Condition,
    Create,
    Lease,
    Overwrite,
    Position,
    StoredObject,
    Update,
    begin,
    give_up,
)
from repertory.backends.sessions.journal import maintenance as object_merging
from repertory.backends.sessions.journal.format import _DICTIONARY, JOURNALS, pack, unpack
from repertory.backends.sessions.journal.reading import Segment, SessionReader
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.journal.records import MessageAdded, StateChanged, View
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message
from repertory.errors import CorruptJournal, LeaseLost, SessionBusy, Unavailable
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.session_contract import grow
from repertory.testing.session_pages_contract import taken_back
from tests.backends.sessions.object_places import on_objects, virtual_shelf

pytestmark = pytest.mark.anyio

LONG = 100_000.0


class Place:
    """One object store in memory, and the stores on it, each counted for itself."""

    def __init__(self) -> None:
        self.shelf = virtual_shelf()
        self.counts: dict[str, CountingObjectStore] = {}
        self.opened: list[ObjectSessionStore] = []

    def store(self, owner: str, *, latency_s: float = 0.0) -> ObjectSessionStore:
        self.counts[owner] = CountingObjectStore(MemoryObjectStore(self.shelf), latency_s=latency_s)
        self.opened.append(on_objects(self.counts[owner], owner))
        return self.opened[-1]

    @property
    def objects(self) -> MemoryObjectStore:
        return MemoryObjectStore(self.shelf)

    def keys(self) -> list[str]:
        return sorted(self.shelf.objects)


@asynccontextmanager
async def place() -> AsyncGenerator[Place]:
    with anyio.fail_after(LONG):
        made = Place()
        yield made
        for store in made.opened:
            await store.aclose()


@asynccontextmanager
async def tended(store: ObjectSessionStore) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.maintain)
        yield
        tasks.cancel_scope.cancel()


def talk(messages: int, *, window: int = 40, text: str = "", said: Callable[[], str] | None = None) -> list[Row]:
    """Rows of a conversation of which the last `window` messages are shown. Each message is `text`, or what is said."""
    appender = Appender("default", restore(()).fold, None, random.Random(1).randbytes)
    rows: list[Row] = []
    for number in range(messages):
        shown = View(first_shown=max(0, number - window + 2)) if number % 2 and number > window else None
        message = {
            "role": "user" if number % 2 == 0 else "assistant",
            "content": [{"text": f"{said() if said else text} {number}"}],
        }
        rows.append(
            appender.append(
                MessageAdded(at=1.0, message=message, turn=number // 2 + 1, index=number, view=shown)  # type: ignore[arg-type]
            )
        )
        rows += appender.restate(1.0)
    return rows


async def fill(store: ObjectSessionStore, rows: Sequence[Row], *, at_once: int = 2, name: str = "session") -> Lease:
    lease, _ = await store.acquire(name)
    for start in range(0, len(rows), at_once):
        (outcome,) = await store.append([Batch(lease=lease, rows=rows[start : start + at_once])])
        assert isinstance(outcome, Position)
    return lease


# --------------------------------------------------------------------------------------------------------------- costs


async def test_a_commit_is_one_put_whatever_is_in_it() -> None:
    async with place() as here:
        store = here.store("one")
        first, second = grow(4, "first"), grow(4, "second")
        lease, _ = await store.acquire("session")
        here.counts["one"].take()
        mixed = [first[0], second[0], first[1], second[1]]
        await store.append([Batch(lease=lease, rows=mixed), Batch(lease=lease, rows=[*first[2:], *second[2:]])])
        assert here.counts["one"].take() == {"put": 1}


async def test_a_new_session_of_few_rows_is_free_with_the_head_that_stores_them() -> None:
    """Looks whether it is new, and two heads: the second one needs no proof."""
    async with place() as here:
        await begin(here.store("one"), "session", grow(20))
        assert here.counts["one"].take() == {"list": 2, "get": 1, "put": 2}
        two = here.store("two")
        await two.acquire("session")
        assert len(await two.load("session", "default")) == 20


async def test_the_sessions_of_a_group_are_put_side_by_side_and_never_too_many() -> None:
    async with place() as here:
        store = here.store("one", latency_s=1.0)
        async with anyio.create_task_group() as tasks:
            for number in range(64):
                tasks.start_soon(store.acquire, f"s{number}")
        leases = [store._owned[f"s{number}"].lease for number in range(64)]
        began = anyio.current_time()
        await store.append([Batch(lease=lease, rows=grow(1)) for lease in leases])
        assert anyio.current_time() - began == pytest.approx(2.0)


@pytest.mark.parametrize(("text_bytes", "most"), [(80, 2), (1000, 3)])
async def test_opening_200_messages_after_an_orderly_close(text_bytes: int, most: int, rng: random.Random) -> None:
    """A get and a put; one more get when the window is too large for the head."""
    rows = talk(200, said=lambda: rng.randbytes(text_bytes // 2).hex())
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        async with tended(one):
            await give_up(one, await fill(one, rows))
        await two.acquire("session")
        opened = await two.load("session", "default")
        assert opened == rows[rows[-1].low - 1 :]
        assert here.counts["two"].take() == {"get": most - 1, "put": 1}


async def test_opening_costs_the_same_whatever_the_length_of_the_history() -> None:
    requests: list[dict[str, int]] = []
    for messages in (100, 2000):
        async with place() as here:
            one = here.store("one")
            async with tended(one):
                lease = await fill(one, talk(messages, text="the same words"))
                await give_up(one, lease)
            two = here.store("two")
            await two.acquire("session")
            await two.load("session", "default")
            requests.append(here.counts["two"].take())
    assert requests[0] == requests[1]


async def test_after_a_crash_only_what_came_since_the_head_is_read() -> None:
    async with place() as here:
        one = here.store("one")
        rows = talk(2000, text="some words that are said")
        async with tended(one):
            await fill(one, rows)
            await anyio.sleep(1)
        await anyio.sleep(11)
        two = here.store("two")
        await two.acquire("session")
        assert await two.load("session", "default") == rows[rows[-1].low - 1 :]
        counted = here.counts["two"].take()
        assert counted["get"] <= 2 + 128
        assert counted["put"] == 3  # to learn the time, the head, and the fence
        assert counted["list"] == 2


async def test_a_whole_history_is_read_with_few_requests() -> None:
    async with place() as here:
        one = here.store("one")
        rows = talk(4000, text="word")
        async with tended(one):
            await fill(one, rows)
            await anyio.sleep(1)
        here.counts["one"].take()
        assert await one.load("session", "default", whole=True) == rows
        assert sum(here.counts["one"].take().values()) <= 2 + 2000 // 128 + 2 * 128


async def test_bytes_grow_with_what_is_said(rng: random.Random) -> None:
    """No more than 1.5 KB go up for each KB said, everything in the background included."""
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(3000)]
    async with place() as here:
        one = here.store("one")
        text_bytes = 0
        appender = Appender("default", restore(()).fold, None, rng.randbytes)
        async with tended(one):
            lease, _ = await one.acquire("session")
            for turn in range(1000):
                rows: list[Row] = []
                for index, role in ((2 * turn, "user"), (2 * turn + 1, "assistant")):
                    text = " ".join(rng.choices(words, k=160))
                    text_bytes += len(text)
                    shown = View(first_shown=max(0, index - 40)) if index % 2 and index > 40 else None
                    message = {"role": role, "content": [{"text": text}]}
                    rows.append(
                        appender.append(
                            MessageAdded(at=1.0, message=message, turn=turn + 1, index=index, view=shown)  # type: ignore[arg-type]
                        )
                    )
                await one.append([Batch(lease=lease, rows=[*rows, *appender.restate(1.0)])])
                await anyio.sleep(1)
        assert here.counts["one"].bytes_put <= 1.5 * text_bytes


async def test_tidying_up_never_delays_a_commit() -> None:
    """With requests that take a second, every commit takes a second, while heads are put and chunks are made."""
    async with place() as here:
        one = here.store("one", latency_s=1.0)
        rows = talk(600, text="word")
        lease, _ = await one.acquire("session")
        async with tended(one):
            for start in range(0, len(rows), 2):
                began = anyio.current_time()
                await one.append([Batch(lease=lease, rows=rows[start : start + 2])])
                assert anyio.current_time() - began == pytest.approx(1.0)
        assert any("/c/" in key for key in here.shelf.objects)


# -------------------------------------------------------------------------------------------------------------- owners


async def test_a_lease_lives_for_ten_seconds_after_the_last_commit() -> None:
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        lease, _ = await one.acquire("session")
        await anyio.sleep(9)
        await one.append([Batch(lease=lease, rows=grow(1))])
        await anyio.sleep(9)
        with pytest.raises(SessionBusy, match="owner='one'"):
            await two.acquire("session")
        await anyio.sleep(1.5)
        await two.acquire("session")


async def test_an_idle_owner_that_is_tended_keeps_its_session_and_a_busy_one_writes_nothing_more() -> None:
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        lease, _ = await one.acquire("session")
        async with tended(one):
            await anyio.sleep(100)
            with pytest.raises(SessionBusy):
                await two.acquire("session")
            here.counts["one"].take()
            for row in grow(30):
                await one.append([Batch(lease=lease, rows=[row])])
                await anyio.sleep(1)
            assert here.counts["one"].take()["put"] <= 30 + 1  # the head, once
        await anyio.sleep(11)
        await two.acquire("session")


async def test_a_clock_that_is_wrong_on_some_machine_changes_nothing() -> None:
    """Only the object store's clock counts."""
    async with place() as here:
        early, late = (
            ObjectSessionStore(here.objects, owner=owner, life=TimeToLive(partial(_wrong, by_s)))
            for owner, by_s in (("early", -10_000.0), ("late", 10_000.0))
        )
        await early.acquire("session")
        with pytest.raises(SessionBusy):
            await late.acquire("session")
        await anyio.sleep(11)
        await late.acquire("session")
        with pytest.raises(SessionBusy):
            await early.acquire("session")


def _wrong(by_s: float) -> float:
    return anyio.current_time() + by_s


@pytest.mark.parametrize("text_bytes", [1, 1000])
async def test_a_released_session_is_taken_back_with_one_put_and_opened_without_any_request(text_bytes: int) -> None:
    """Whether what opening needs is in the head or beside it."""
    rows = talk(100, text="".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=text_bytes)))
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        lease = await fill(one, rows[:-2])
        for _ in range(3):
            await give_up(one, lease)
            here.counts["one"].take()
            assert await taken_back(one, lease)
            assert here.counts["one"].take() == {"put": 1}
        opened = await one.load("session", "default")
        assert here.counts["one"].take() == {}
        assert opened == await two.load("session", "default")
        await one.append([Batch(lease=lease, rows=rows[-2:])])
        assert here.counts["one"].take() == {"put": 1}
        await give_up(one, lease)
        await two.acquire("session")
        assert await two.load("session", "default", whole=True) == rows


async def test_a_released_session_costs_nothing_until_it_is_taken_back_and_is_renewed_from_then_on() -> None:
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        async with tended(one):
            lease = await fill(one, grow(2))
            await anyio.sleep(100)
            await give_up(one, lease)
            here.counts["one"].take()
            await anyio.sleep(1000)
            assert here.counts["one"].take() == {}
            assert await taken_back(one, lease)
            await anyio.sleep(100)
            with pytest.raises(SessionBusy):
                await two.acquire("session")
        await anyio.sleep(11)
        await two.acquire("session")


class HangingObjects(MemoryObjectStore):
    """Answers a request for a key with `hanging` in it only after 1,000 s."""

    hanging = "none"

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        await self._hang(key)
        return await super().put(key, body, condition)

    async def get(self, key: str) -> StoredObject:
        await self._hang(key)
        return await super().get(key)

    async def _hang(self, key: str) -> None:
        if self.hanging in key:
            await anyio.sleep(1000)


@pytest.mark.parametrize("hanging", ["/stuck/head", "/stuck/wanted"])
async def test_a_renewal_without_an_answer_keeps_no_other_session_waiting(hanging: str) -> None:
    async with place() as here:
        objects = HangingObjects(here.shelf)
        one, two = on_objects(objects, "one"), here.store("two")
        async with tended(one):
            for name in ("stuck", *(f"idle-{number}" for number in range(40))):
                await one.acquire(name)
            objects.hanging = hanging
            await anyio.sleep(60)
            for number in range(40):
                with pytest.raises(SessionBusy):
                    await two.acquire(f"idle-{number}")
        await one.aclose()


async def test_a_renewal_whose_request_got_lost_is_sent_again_while_the_lease_lasts() -> None:
    async with place() as here:
        objects = HangingObjects(here.shelf)
        one, two = on_objects(objects, "one"), here.store("two")
        async with tended(one):
            lease, _ = await one.acquire("session")
            objects.hanging = "/head"
            await anyio.sleep(3)  # The renewal is on its way by now.
            objects.hanging = "none"
            await anyio.sleep(10)
            with pytest.raises(SessionBusy):
                await two.acquire("session")
            assert isinstance((await one.append([Batch(lease=lease, rows=grow(1))]))[0], Position)
        await one.aclose()


async def test_a_head_that_cannot_be_put_keeps_no_other_session_from_being_tidied() -> None:
    async with place() as here:
        objects = HangingObjects(here.shelf)
        one = on_objects(objects, "one")
        async with tended(one):
            stuck = await fill(one, talk(20), at_once=20, name="stuck")
            fine, _ = await one.acquire("fine")
            objects.hanging = "/stuck/head"
            for row in talk(60)[20:]:
                await one.append([Batch(lease=stuck, rows=[row])])
            await anyio.sleep(1)
            for row in talk(200):
                await one.append([Batch(lease=fine, rows=[row])])
            await anyio.sleep(1)
            head = unpack(here.shelf.objects["journals/fine/head"].body).header
            assert head.get("commit")
            objects.hanging = "none"
        await one.aclose()


async def test_an_owner_that_sleeps_after_it_took_a_session_back_is_fenced() -> None:
    rows = grow(6)
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        lease = await fill(one, rows[:2])
        await give_up(one, lease)
        assert await taken_back(one, lease)
        await one.append([Batch(lease=lease, rows=rows[2:3])])
        await anyio.sleep(11)
        new, _ = await two.acquire("session")
        assert isinstance((await one.append([Batch(lease=lease, rows=rows[3:4])]))[0], LeaseLost)
        await two.append([Batch(lease=new, rows=rows[3:])])
        await give_up(two, new)
        assert not await taken_back(one, lease)
        assert await one.load("session", "default", whole=True) == rows


@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("again", [False, True])
async def test_a_session_of_which_the_taking_back_had_no_answer_may_be_taken_back_or_acquired_anew(
    carried_out: bool, again: bool
) -> None:
    rows = grow(4)
    async with place() as here:
        faulty = FaultyObjectStore(here.objects, random.Random(1), ObjectFaults())
        one, two = on_objects(faulty, "one"), here.store("two")
        lease = await fill(one, rows[:2])
        await give_up(one, lease)
        faulty.settings = ObjectFaults(lost_rate=float(carried_out), error_rate=float(not carried_out))
        with pytest.raises(Unavailable):
            await taken_back(one, lease)
        faulty.settings = ObjectFaults()
        if again:
            assert await taken_back(one, lease)
            assert list(await one.load("session", "default")) == rows[:2]
        if carried_out or again:
            with pytest.raises(SessionBusy):
                await two.acquire("session")
        new, _ = await one.acquire("session")
        assert new.generation > lease.generation
        assert isinstance((await one.append([Batch(lease=lease, rows=rows[2:])]))[0], LeaseLost)
        await one.append([Batch(lease=new, rows=rows[2:])])
        await give_up(one, new)
        await two.acquire("session")
        assert await two.load("session", "default", whole=True) == rows
        await one.aclose()


async def test_a_session_is_not_taken_back_while_a_put_of_its_owner_may_still_arrive() -> None:
    rows = grow(4)
    async with place() as here:
        faulty = FaultyObjectStore(here.objects, random.Random(1), ObjectFaults())
        one = on_objects(faulty, "one")
        lease = await fill(one, rows[:2])
        faulty.settings = ObjectFaults(lost_rate=1.0)
        with pytest.raises(Unavailable):
            await one.append([Batch(lease=lease, rows=rows[2:])])
        faulty.settings = ObjectFaults()
        await give_up(one, lease)
        assert not await taken_back(one, lease)
        await one.acquire("session")
        assert await one.load("session", "default") == rows
        await one.aclose()


async def test_an_erasure_by_another_owner_ends_what_was_kept_of_a_released_session() -> None:
    rows = talk(20, text="word")
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        lease = await fill(one, rows)
        await give_up(one, lease)
        other, _ = await two.acquire("session")
        await two.append([Batch(lease=other, rows=[], erase=[("default", 3)])])
        await give_up(two, other)
        assert not await taken_back(one, lease)
        await one.acquire("session")
        assert (await one.load("session", "default", whole=True))[2] == rows[2].without_content()
        assert not _holders(here, rows[2])


async def test_what_is_kept_of_a_released_session_goes_with_its_lease() -> None:
    async with place() as here:
        one = here.store("one")
        lease = await fill(one, grow(2))
        for _ in range(2):
            await give_up(one, lease)
            assert await taken_back(one, lease)
        await give_up(one, lease)
        assert len(one._released) == 1
        del lease
        gc.collect()
        assert len(one._released) == 0


class PausedObjects(MemoryObjectStore):
    """Holds puts of segments back, or of other objects, until they are let go, or their answers: a request on its way
    from a process that was paused.
    """

    def __init__(
        self, shelf: ObjectShelf, kind: str = "/s/", condition: type[Condition] | None = None, what: str = "request"
    ) -> None:
        super().__init__(shelf)
        self.kind, self._condition, self._what = kind, condition, what
        self.go = anyio.Event()
        self.go.set()

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        paused = self.kind in key and isinstance(condition, self._condition or object)
        if paused and self._what == "request":
            await self.go.wait()
        version = await super().put(key, body, condition)
        if paused:
            await self.go.wait()
        return version


@pytest.mark.parametrize("merged", [False, True])
async def test_an_owner_that_was_paused_with_a_put_on_its_way_is_fenced(merged: bool) -> None:
    """However late the put arrives, and whatever has been merged since."""
    rows = talk(400)
    async with place() as here:
        objects = PausedObjects(here.shelf)
        stale, two = on_objects(objects, "stale"), here.store("two")
        old = await fill(stale, rows[:2])
        objects.go = anyio.Event()
        async with anyio.create_task_group() as tasks:
            late: list[object] = []

            async def write_late() -> None:
                late.extend(await stale.append([Batch(lease=old, rows=rows[2:4])]))

            tasks.start_soon(write_late)
            await anyio.sleep(20)
            new, _ = await two.acquire("session")
            async with tended(two):
                end = len(rows) if merged else 6
                for start in range(2, end, 2):
                    await two.append([Batch(lease=new, rows=rows[start : start + 2])])
                await anyio.sleep(1)
            assert merged == any("/c/" in key for key in here.shelf.objects)
            objects.go.set()
        assert isinstance(late[0], LeaseLost)
        assert await two.load("session", "default", whole=True) == rows[:end]
        await stale.aclose()


async def test_an_owner_that_is_overtaken_while_it_acquires_gives_way() -> None:
    """Its fence comes late, behind that of a later owner: it must not be put beyond it."""
    rows = grow(6)
    async with place() as here:
        objects = PausedObjects(here.shelf)
        slow, quick = on_objects(objects, "slow"), here.store("quick")
        await fill(quick, rows[:2])
        objects.go = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(slow.acquire, "session", takeover=True))
            await anyio.sleep(1)
            lease, _ = await quick.acquire("session", takeover=True)
            await quick.append([Batch(lease=lease, rows=rows[2:4])])
            assert not any(info.generation == 2 for info in await _segments(here))
            objects.go.set()
        assert await slow.load("session", "default") == rows[:4]  # It has acquired anew, after the other.
        assert [info.generation for info in await _segments(here)] == [1, 3, 3, 4]
        assert isinstance((await quick.append([Batch(lease=lease, rows=rows[4:])]))[0], LeaseLost)
        await slow.aclose()


async def _segments(here: Place) -> list[Segment]:
    return await SessionReader(here.objects, JOURNALS.keys_of("session"), "session").tail(0)


async def test_a_put_that_lands_before_the_takeover_belongs_to_the_history() -> None:
    rows = grow(4)
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        old = await fill(one, rows[:2])
        new, _ = await two.acquire("session", takeover=True)
        # The owner before would have put number 2: the fence has it.
        assert isinstance((await one.append([Batch(lease=old, rows=rows[2:])]))[0], LeaseLost)
        assert await two.append([Batch(lease=new, rows=rows[2:])]) == [Position(agent_id="default", seq=4)]


async def test_an_owner_that_lost_its_session_while_idle_knows_it_without_writing() -> None:
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        lease, _ = await one.acquire("session")
        await two.acquire("session", takeover=True)
        here.counts["one"].take()
        assert isinstance((await one.append([Batch(lease=lease, rows=[])]))[0], LeaseLost)
        assert here.counts["one"].take() == {"get": 1}


# ------------------------------------------------------------------------------------------------------ damage and loss


@pytest.mark.parametrize("which", ["head", "s/0000000000000002"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "foreign", "flipped", "of another session"])
async def test_damaged_objects_are_named_and_the_other_sessions_open(which: str, damage: str) -> None:
    async with place() as here:
        one = here.store("one")
        await fill(one, grow(6))
        await fill(one, grow(4), name="other")
        await one.aclose()
        key = f"journals/session/{which}"
        body = (await here.objects.get(key)).body
        other = (await here.objects.get(f"journals/other/{which}")).body
        flipped = bytes([*body[:-3], body[-3] ^ 1, *body[-2:]])
        bodies = {"empty": b"", "truncated": body[:-5], "foreign": b"%PDF-1.7", "flipped": flipped}
        await here.objects.put(key, bodies.get(damage, other), Overwrite())
        before = dict(here.shelf.objects)
        two = here.store("two")
        with pytest.raises(CorruptJournal) as caught:
            (await two.acquire("session")).lease if which == "head" else await two.load(
                "session", "default", whole=True
            )
        assert caught.value.fields["session"] == "session"
        assert caught.value.fields["key"] == key
        assert here.shelf.objects == before
        listed = {info.session_id: dict(info.agents) for info in await two.sessions()}
        assert listed["other"] == {"default": 4}
        assert set(listed) == {"other", "session"} or which == "head"
        await two.acquire("other")
        await two.delete("session")
        assert [info.session_id for info in await two.sessions()] == ["other"]


async def test_a_segment_that_is_missing_is_named() -> None:
    async with place() as here:
        one = here.store("one")
        await fill(one, grow(6))
        await one.aclose()
        key = "journals/session/s/0000000000000002"
        await here.objects.delete(key)
        with pytest.raises(CorruptJournal) as caught:
            await here.store("two").load("session", "default", whole=True)
        assert caught.value.fields["key"] == key


@pytest.mark.parametrize("left", ["segments", "chunks"])
async def test_a_session_that_lost_its_head_does_not_begin_anew(left: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN: what was there is refused by name, by everybody who opens or reads it, and made anew by a doctor."""
    monkeypatch.setattr(object_merging, "SEGMENTS_MERGED", 2)
    rows = grow(8)
    async with place() as here:
        one = here.store("one")
        await fill(one, grow(2), name="other")
        await fill(one, rows)
        if left == "chunks":
            async with tended(one):
                await anyio.sleep(60)
        await one.aclose()
        await here.objects.delete("journals/session/head")
        if left == "chunks":
            for key in [key for key in here.shelf.objects if key.startswith("journals/session/s/")]:
                await here.objects.delete(key)
        two = here.store("two")
        before = dict(here.shelf.objects)
        for call in (
            lambda: two.acquire("session"),
            lambda: two.acquire("session", takeover=True),
            lambda: two.load("session", "default"),
            lambda: two.load("session", "default", whole=True),
            lambda: two.load_at("session", "default", 2),
        ):
            with pytest.raises(CorruptJournal, match="doctor") as caught:
                await call()
            assert caught.value.fields == {"session": "session", "key": "journals/session/head"}
        assert here.shelf.objects == before
        assert {info.session_id: info.damaged for info in await two.sessions()} == {"session": True, "other": False}
        assert len(await two.load("other", "default")) == 2
        salvage = await two.salvage("session")
        await two.set_aside("session", sorted(set(salvage.rows), key=lambda row: row.seq))
        assert await two.load("session", "default", whole=True) == rows


async def test_a_session_of_which_only_fences_are_left_begins_behind_them() -> None:
    """A damaged session was deleted: its former owners stay fenced, and a new one of its name works."""
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        await fill(one, grow(2))
        await two.acquire("session", takeover=True)
        await two.aclose()
        await here.objects.put("journals/session/head", b"foreign", Overwrite())
        three = here.store("three")
        await three.delete("session")
        assert [key for key in here.shelf.objects if "/s/" in key] == ["journals/session/s/0000000000000002"]
        rows = grow(6)
        lease = await fill(three, rows)
        assert lease.generation > 2
        await give_up(three, lease)
        assert await here.store("four").load("session", "default", whole=True) == rows


async def test_a_head_or_a_window_in_anothers_place_is_named(rng: random.Random) -> None:
    async with place() as here:
        one = here.store("one")
        for name in ("session", "other"):
            await fill(one, talk(60, said=lambda: rng.randbytes(400).hex()), at_once=60, name=name)
        await one.aclose()
        windows = {key.split("/")[1]: key for key in here.shelf.objects if "/w/" in key}
        head = await here.objects.get("journals/other/head")
        await here.objects.put("journals/session/head", head.body, Overwrite())
        two = here.store("two")
        with pytest.raises(CorruptJournal):
            await two.acquire("session")
        assert {info.session_id: info.damaged for info in await two.sessions()} == {"session": True, "other": False}
        body = (await here.objects.get(windows["other"])).body
        header, rows = unpack(body)
        await here.objects.put(windows["other"], pack(header, rows[:-1]), Overwrite())
        with pytest.raises(CorruptJournal, match="not the head's") as caught:
            await two.load("other", "default")
        assert caught.value.fields["key"] == windows["other"]


async def test_commits_behind_an_orderly_head_are_not_left_out() -> None:
    async with place() as here:
        one = here.store("one")
        await give_up(one, await fill(one, grow(4)))
        stale = await here.objects.get("journals/session/head")
        lease, _ = await one.acquire("session")
        await one.append([Batch(lease=lease, rows=grow(2, after=grow(4)))])
        await one.aclose()
        await here.objects.put("journals/session/head", stale.body, Overwrite())
        with pytest.raises(CorruptJournal):
            await here.store("two").load("session", "default", whole=True)


async def test_keys_of_impossible_numbers_take_no_time_and_no_memory() -> None:
    async with place() as here:
        rows = grow(4)
        one = here.store("one")
        await fill(one, rows)
        await one.aclose()
        await here.objects.put("journals/session/s/9999999999999999", b"junk", Overwrite())
        await here.objects.put("journals/session/s/0000900000000000", b"junk", Overwrite())
        two = here.store("two")
        assert "journals/session/s/0000000000000003" in {each.where for each in (await two.salvage("session")).damages}
        with pytest.raises(CorruptJournal):
            await two.load("session", "default", whole=True)


async def test_headers_that_say_nonsense_are_damage() -> None:
    """Objects whose checksums are right, and which somebody has made by hand."""
    async with place() as here:
        one = here.store("one")
        await fill(one, grow(4))
        await one.aclose()
        segment, head = "journals/session/s/0000000000000002", "journals/session/head"
        for key, wrong in (
            (segment, {"generation": "first"}),
            (segment, {"erasing": [1, 2]}),
            (segment, {"erasing": [["default", "all"]]}),
            (head, {"seqs": {"default": "all"}}),
            (head, {"erasing": [None]}),
            (head, {"merged": "text"}),
        ):
            before = await here.objects.get(key)
            header, rows = unpack(before.body)
            await here.objects.put(key, pack({**header, **wrong}, rows), Overwrite())
            with pytest.raises(CorruptJournal) as caught:
                await here.store(f"reader {len(here.opened)}").load("session", "default", whole=True)
            assert caught.value.fields["key"] == key
            await here.objects.put(key, before.body, Overwrite())


async def test_what_others_put_there_is_left_alone() -> None:
    async with place() as here:
        foreign = ["journals/notes.txt", "journals/session/s/readme", "journals/session/x/y", "else/where"]
        for key in foreign:
            await here.objects.put(key, b"mine", Overwrite())
        rows = grow(6)
        store = here.store("one")
        await fill(store, rows)
        assert await store.load("session", "default", whole=True) == rows
        assert [info.session_id for info in await store.sessions()] == ["session"]
        assert set(foreign) <= set(here.keys())


async def test_a_lost_acknowledgement_counts_as_done() -> None:
    rows = grow(2)
    async with place() as here:
        faulty = FaultyObjectStore(here.objects, random.Random(1), ObjectFaults())
        store = on_objects(faulty, "one")
        lease, _ = await store.acquire("session")
        faulty.settings = ObjectFaults(lost_rate=1.0)
        with pytest.raises(Unavailable):
            await store.append([Batch(lease=lease, rows=rows)])
        faulty.settings = ObjectFaults()
        assert await store.append([Batch(lease=lease, rows=rows)]) == [Position(agent_id="default", seq=2)]
        assert await store.load("session", "default", whole=True) == rows
        await store.aclose()


async def test_one_session_that_cannot_be_written_hinders_no_other() -> None:
    class Half(MemoryObjectStore):
        async def put(self, key: str, body: bytes, condition: Condition) -> str:
            if "/bad/s/" in key:
                raise Unavailable("no way")
            return await super().put(key, body, condition)

    async with place() as here:
        store = on_objects(Half(here.shelf), "one")
        good, bad = (await store.acquire("good")).lease, (await store.acquire("bad")).lease
        outcomes = await store.append([Batch(lease=bad, rows=grow(1)), Batch(lease=good, rows=grow(1))])
        assert [type(outcome) for outcome in outcomes] == [Unavailable, Position]
        assert await store.load("good", "default", whole=True) == grow(1)
        assert await store.load("bad", "default", whole=True) == []
        await store.aclose()


# ------------------------------------------------------------------------------------------------------------- erasing


async def test_an_erased_content_stands_in_no_object_any_more(rng: random.Random) -> None:
    rows = talk(400, text="word")
    appender = Appender("default", restore(rows).fold, rows[-1].link, rng.randbytes)
    message: Message = {"role": "user", "content": [{"text": "my secret"}]}
    said = appender.append(MessageAdded(at=1.0, message=message, turn=201, index=400))
    more = [appender.append(StateChanged(at=1.0, set={"n": n})) for n in range(400)]
    async with place() as here:
        one = here.store("one")
        async with tended(one):
            lease = await fill(one, [*rows, said, *more])
            await anyio.sleep(1)
            assert _holders(here, said)
            await one.append([Batch(lease=lease, rows=[], erase=[("default", said.seq)])])
            assert not _holders(here, said)
        whole = await one.load("session", "default", whole=True)
        assert whole[said.seq - 1] == said.without_content()


@pytest.mark.parametrize("erased_after_s", [1, 10, 15, 16, 17, 18, 19, 20, None])
async def test_a_merge_goes_on_while_the_session_is_released_and_copies_nothing_that_was_erased(
    erased_after_s: int | None,
) -> None:
    """It reads for 16 s, and makes three requests of a second each. Then the next head names the chunk."""
    rows = talk(128, window=4, text="word")
    async with place() as here:
        one = here.store("one", latency_s=1.0)
        lease = await fill(one, rows, at_once=1)
        async with tended(one):
            await give_up(one, lease)
            if erased_after_s is not None:
                await anyio.sleep(erased_after_s - 1)
                assert await taken_back(one, lease)
                await one.append([Batch(lease=lease, rows=[], erase=[("default", 3)])])
                assert not _holders(here, rows[2])
                await give_up(one, lease)
            await anyio.sleep(30)
            assert await taken_back(one, lease)
            await anyio.sleep(30)
            await give_up(one, lease)
            await anyio.sleep(30)
        assert erased_after_s is None or not _holders(here, rows[2])
        assert any("/c/" in key for key in here.shelf.objects)
        assert len([key for key in here.shelf.objects if "/s/" in key]) == (erased_after_s is not None)
        expected = [row.without_content() if row.seq == 3 and erased_after_s else row for row in rows]
        assert await one.load("session", "default", whole=True) == expected


@pytest.mark.parametrize(("condition", "what"), [(Create, "request"), (Update, "request"), (Update, "answer")])
@pytest.mark.parametrize("next_owner", ["itself", "the next one", "one that took it over", "nobody"])
async def test_a_chunk_that_arrives_after_contents_were_erased_does_not_bring_them_back(
    condition: type[Condition], what: str, next_owner: str
) -> None:
    """Nobody waits for it: not who gives the session up, and not who erases contents."""
    rows = talk(256, window=4, text="word")
    async with place() as here:
        objects = PausedObjects(here.shelf, "/c/", condition, what)
        slow, two = on_objects(objects, "slow"), here.store("two")
        held = await fill(slow, rows[:128], at_once=1)
        objects.go = anyio.Event()
        async with tended(slow):
            await anyio.sleep(1)
            objects.kind = "no more of them"
            owner, lease = (slow, held) if next_owner == "itself" else (two, None)
            if next_owner in ("the next one", "nobody"):
                await give_up(slow, held)
            if next_owner == "nobody":
                await two.delete("session")
            else:
                lease = lease or (await two.acquire("session", takeover=True)).lease
                await owner.append([Batch(lease=lease, rows=[], erase=[("default", 3)])])
            assert not _holders(here, rows[2])
            objects.go.set()
            await anyio.sleep(1)
            assert not _holders(here, rows[2])
            if lease is None:
                assert not any(_holders(here, row) for row in rows)
                return
            async with tended(two):
                for row in rows[128:]:
                    assert isinstance((await owner.append([Batch(lease=lease, rows=[row])]))[0], Position)
                await anyio.sleep(200)  # Heads are renewed meanwhile.
        assert len([key for key in here.shelf.objects if "/c/" in key]) == 2
        assert not _holders(here, rows[2])
        expected = [row.without_content() if row.seq == 3 else row for row in rows]
        assert await owner.load("session", "default", whole=True) == expected
        await slow.aclose()


@pytest.mark.parametrize(("condition", "what"), [(Overwrite, "request"), (Update, "request"), (Update, "answer")])
async def test_a_window_that_arrives_after_contents_were_erased_does_not_bring_them_back(
    condition: type[Condition], what: str, rng: random.Random
) -> None:
    rows = talk(60, said=lambda: rng.randbytes(400).hex())
    async with place() as here:
        objects = PausedObjects(here.shelf, "/w/", condition, what)
        slow, two = on_objects(objects, "slow"), here.store("two")
        held = await fill(slow, rows, at_once=60)
        objects.go = anyio.Event()
        async with anyio.create_task_group() as tasks:

            async def release() -> None:
                with suppress(Unavailable):
                    await give_up(slow, held)

            tasks.start_soon(release)
            await anyio.sleep(1)
            lease, _ = await two.acquire("session", takeover=True)
            await two.append([Batch(lease=lease, rows=[], erase=[("default", 59)])])
            assert not _holders(here, rows[58])
            objects.go.set()
        assert not _holders(here, rows[58])
        expected = [row.without_content() if row.seq == 59 else row for row in rows]
        assert await two.load("session", "default", whole=True) == expected


async def test_an_erasure_that_was_cut_short_is_finished_by_the_next_owner() -> None:
    rows = talk(20, text="word")

    class Stuck(MemoryObjectStore):
        stuck = False

        async def put(self, key: str, body: bytes, condition: Condition) -> str:
            if self.stuck and type(condition).__name__ == "Update":
                raise Unavailable("the process is gone")
            return await super().put(key, body, condition)

    async with place() as here:
        objects = Stuck(here.shelf)
        one = on_objects(objects, "one")
        lease = await fill(one, rows)
        objects.stuck = True
        with pytest.raises(Unavailable):
            await one.append([Batch(lease=lease, rows=[], erase=[("default", 3)])])
        two = here.store("two")
        expected = [row.without_content() if row.seq == 3 else row for row in rows]
        assert await two.load("session", "default", whole=True) == expected
        assert _holders(here, rows[2])
        await two.acquire("session", takeover=True)
        async with tended(two):
            await anyio.sleep(1)
        assert not _holders(here, rows[2])
        assert await two.load("session", "default", whole=True) == expected


def _holders(here: Place, row: Row) -> list[str]:
    packed = {key: kept.body for key, kept in here.shelf.objects.items() if not key.endswith("wanted")}
    return [key for key, body in packed.items() if row in unpack(body).rows]


async def test_a_planted_object_that_inflates_to_gigabytes_is_damage_of_its_session_alone() -> None:
    # 256 MB of spaces within the JSON of the header, in 256 KB with a correct checksum.
    deflate = zlib.compressobj(9, zdict=_DICTIONARY)
    spaces = b" " * (1 << 20)
    parts = [deflate.compress((256 << 20).to_bytes(4, "big")), *(deflate.compress(spaces) for _ in range(256))]
    rest = bytes(4) + b"".join([*parts, deflate.flush()])
    planted = b"RptJ\x01" + zlib.crc32(rest).to_bytes(4, "big") + rest
    async with place() as here:
        one, two = here.store("one"), here.store("two")
        for name in ("bombed", "sound"):
            await give_up(one, await fill(one, grow(3), name=name))
        key = next(key for key in here.shelf.objects if key.startswith("journals/bombed/"))
        await here.objects.put(key, planted, Overwrite())
        tracemalloc.start()
        try:
            with pytest.raises(CorruptJournal, match="damaged object"):
                await two.load("bombed", "default", whole=True)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 200 << 20
        assert await two.load("sound", "default", whole=True) == grow(3)


async def test_deleting_leaves_a_note_and_nothing_of_what_was_said() -> None:
    async with place() as here:
        one = here.store("one")
        async with tended(one):
            await fill(one, talk(400, text="word"))
            await anyio.sleep(1)
        await one.delete("session")
        keys = here.keys()
        assert keys[0] == "journals/session/head"
        assert len(keys) == 2  # The second keeps a former owner from writing on: the session was in its hands.
        assert not any(unpack(kept.body).rows for kept in here.shelf.objects.values())
        assert await one.load("session", "default", whole=True) == []
