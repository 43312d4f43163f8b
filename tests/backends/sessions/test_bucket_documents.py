"""Documents in a bucket, where nothing is one step: after commits that fail, and beside other programs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Batch, Condition, Overwrite, Position, give_up
from repertory.core.journal.records import MessageAdded, Redacted, StateChanged, ToolStarted
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import text_of
from repertory.errors import LeaseLost, Unavailable
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.session_contract import grow
from tests.backends.sessions.bucket_places import bucket_store

pytestmark = pytest.mark.anyio

MESSAGES = "session_s/agents/agent_default/messages/message_"


class Meddling(MemoryObjectStore):
    """Objects that call `before` ahead of each put. With `silent` no answer about a document comes, and with `stuck`
    none can be deleted.
    """

    before: Callable[[str], Awaitable[None]] | None = None
    silent = False
    stuck = False

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        if self.before is not None:
            await self.before(key)
        version = await super().put(key, body, condition)
        if self.silent:
            raise Unavailable("the answer was lost")
        return version

    async def delete(self, key: str) -> None:
        if self.stuck:
            raise Unavailable("the call was refused")
        await super().delete(key)


async def without_journal(key: str) -> None:
    """Refuse puts of the journal, so that a commit fails."""
    if "/repertory/" in key:
        raise Unavailable("the journal cannot be reached")


def shelf_of_now() -> ObjectShelf:
    return ObjectShelf(anyio.current_time)


def store_on(shelf: ObjectShelf, owner: str, objects: MemoryObjectStore | None = None) -> Any:
    return bucket_store(objects or MemoryObjectStore(shelf), owner, wall=anyio.current_time)


async def add_from_outside(shelf: ObjectShelf, number: int, text: str) -> None:
    said = {"role": "user", "content": [{"text": text}]}
    body = {"message": said, "message_id": number, "redact_message": None, "created_at": "", "updated_at": ""}
    await MemoryObjectStore(shelf).put(f"{MESSAGES}{number}.json", json.dumps(body).encode(), Overwrite())


def said_in(shelf: ObjectShelf) -> list[str]:
    """The texts of the documents, by their numbers."""
    found = {int(key.removeprefix(MESSAGES)[:-5]): kept.body for key, kept in shelf.objects.items() if MESSAGES in key}
    documents = [json.loads(found[number]) for number in sorted(found)]
    return [text_of(each["redact_message"] or each["message"]) for each in documents]


async def said_by(store: Any) -> list[str]:
    rows = list(await store.load("s", "default", whole=True))
    return [text_of(message) for message in messages_of(records_of(rows)).values()]


def tool_turn() -> tuple[list[Row], list[Row]]:
    """The commits of a turn with a tool: up to its start, and its result with the answer."""
    appender = Appender("default", restore(grow(2)).fold, grow(2)[-1].link, lambda size: b"s" * size)

    def said(role: str, *content: Any) -> Row:
        message: Any = {"role": role, "content": [*content]}
        return appender.append(MessageAdded(at=1.0, message=message, turn=2, index=appender.fold.message_count))

    use = {"toolUseId": "t", "name": "pay", "input": {}}
    begun = [said("user", {"text": "pay"}), said("assistant", {"text": "I pay"}, {"toolUse": use})]
    begun.append(appender.append(ToolStarted(at=1.0, tool_use_id="t", name="pay", idempotency_key="k", attempt=1)))
    result = {"toolUseId": "t", "status": "success", "content": [{"text": "paid"}]}
    return begun, [said("user", {"text": "result"}, {"toolResult": result}), said("assistant", {"text": "done"})]


def texts(rows: list[Row]) -> list[str]:
    return [f"default says {row.seq - 1}" for row in rows]


async def test_messages_keep_their_order_where_somebody_takes_the_first_of_their_numbers() -> None:
    """Nothing of theirs is written over, and nothing of ours is lost."""
    shelf, rows = shelf_of_now(), grow(6)
    objects = Meddling(shelf)
    store = store_on(shelf, "one", objects)
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=rows[:2])])

    async def first(key: str) -> None:
        if key == f"{MESSAGES}2.json":
            objects.before = None
            await add_from_outside(shelf, 2, "theirs")

    objects.before = first
    assert isinstance((await store.append([Batch(lease=lease, rows=rows[2:6])]))[0], Position)
    ours = texts(rows)
    assert said_in(shelf) == [*ours[:2], "theirs", *ours[2:]]
    await give_up(store, lease)
    again = store_on(shelf, "two")
    await again.acquire("s")
    assert await said_by(again) == [*ours, "theirs"]


async def test_a_commit_that_is_refused_leaves_no_document() -> None:
    shelf, rows = shelf_of_now(), grow(3)
    objects = Meddling(shelf)
    one, two = store_on(shelf, "one", objects), store_on(shelf, "two")
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows[:2])])

    async def taken_over(key: str) -> None:
        if "/repertory/" in key:
            objects.before = None
            await two.acquire("s", takeover=True)

    objects.before = taken_over
    (outcome,) = await one.append([Batch(lease=lease, rows=rows[2:])])
    assert isinstance(outcome, LeaseLost)
    assert said_in(shelf) == texts(rows[:2])


async def test_a_document_that_a_crash_has_left_out_is_written_and_its_message_stays() -> None:
    """Several go out at the same time, so a later one may be there."""
    shelf, rows = shelf_of_now(), grow(6)
    one = store_on(shelf, "one")
    lease, _ = await one.acquire("s")
    for at in (0, 2, 4):
        await one.append([Batch(lease=lease, rows=rows[at : at + 2])])
    await MemoryObjectStore(shelf).delete(f"{MESSAGES}4.json")
    two = store_on(shelf, "two")
    lease, _ = await two.acquire("s", takeover=True)
    assert list(await two.load("s", "default")) == rows
    await give_up(two, lease)
    assert said_in(shelf) == texts(rows)


async def test_an_erased_message_that_still_stands_in_its_document_does_not_come_back() -> None:
    """Its owner dies between the commit and the document."""
    shelf, rows = shelf_of_now(), grow(4)
    objects = Meddling(shelf)
    one = store_on(shelf, "one", objects)
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows)])

    async def unreachable(key: str) -> None:
        if MESSAGES in key:
            raise Unavailable("the documents cannot be reached")

    objects.before = unreachable
    appender = Appender("default", restore(rows).fold, rows[-1].link, lambda size: b"s" * size)
    gone: Any = {"role": "user", "content": [{"text": "gone"}]}
    redacted = appender.append(Redacted(at=3.0, target=1, message=gone, turn=1, index=0))
    with pytest.raises(Unavailable, match="may still be in a document"):
        await one.append([Batch(lease=lease, rows=[redacted], erase=[("default", 1)])])
    two = store_on(shelf, "two")
    lease, _ = await two.acquire("s", takeover=True)
    assert await said_by(two) == ["gone", *texts(rows)[1:]]
    await give_up(two, lease)
    assert said_in(shelf) == ["gone", *texts(rows)[1:]]
    assert not any(b"default says 0" in kept.body for kept in shelf.objects.values())


async def test_what_others_added_is_taken_in_once_by_owners_that_die_at_once() -> None:
    shelf, rows = shelf_of_now(), grow(2)
    one = store_on(shelf, "one")
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows)])
    await give_up(one, lease)
    await add_from_outside(shelf, 2, "theirs")
    for number in range(3):
        store = store_on(shelf, f"owner-{number}")
        await store.acquire("s", takeover=True)
        assert await said_by(store) == [*texts(rows), "theirs"]
    assert said_in(shelf) == [*texts(rows), "theirs"]


async def test_a_long_tree_is_opened_by_a_look_at_its_last_documents() -> None:
    """All of it is listed when these are not as they were."""
    shelf, rows = shelf_of_now(), grow(960)
    one = store_on(shelf, "one")
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows)])
    await give_up(one, lease)
    counting = CountingObjectStore(MemoryObjectStore(shelf))
    store: Any = bucket_store(counting, "two", wall=anyio.current_time)
    lease, _ = await store.acquire("s")
    await store.load("s", "default")
    assert counting.listed < 100
    await give_up(store, lease)
    await add_from_outside(shelf, 950, "edited")
    await add_from_outside(shelf, 960, "added")
    again = store_on(shelf, "three")
    lease, _ = await again.acquire("s")
    assert await said_by(again) == [*texts(rows[:950]), "edited", *texts(rows[951:]), "added"]
    await give_up(again, lease)
    await MemoryObjectStore(shelf).delete(f"{MESSAGES}960.json")
    last = store_on(shelf, "four")
    await last.acquire("s")
    shown = restore(list(await last.load("s", "default"))).fold.shown
    assert text_of([message for _, message in shown][-1]) == texts(rows)[-1]


async def test_a_commit_that_fails_leaves_no_mark_of_its_messages() -> None:
    """Others get their places in the journal."""
    shelf, rows = shelf_of_now(), grow(3)
    objects = Meddling(shelf)
    one = store_on(shelf, "one", objects)
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows[:2])])

    objects.before = without_journal
    with pytest.raises(Unavailable):
        await one.append([Batch(lease=lease, rows=rows[2:])])
    objects.before = None
    assert said_in(shelf) == texts(rows[:2])
    await give_up(one, lease)
    two = store_on(shelf, "two")
    lease, _ = await two.acquire("s")
    assert await said_by(two) == texts(rows[:2])
    await two.append([Batch(lease=lease, rows=rows[2:])])
    await give_up(two, lease)
    assert said_in(shelf) == texts(rows)


@pytest.mark.parametrize("how", ["its answer was lost", "it cannot be removed"])
async def test_a_document_of_a_commit_that_failed_is_no_other_programs_message(how: str) -> None:
    """What is committed again would else meet it in the journal, and be there twice."""
    shelf, rows = shelf_of_now(), grow(4)
    objects = Meddling(shelf)
    store = store_on(shelf, "one", objects)
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=rows[:2])])

    objects.before, objects.silent, objects.stuck = without_journal, "lost" in how, True
    with pytest.raises(Unavailable):
        await store.append([Batch(lease=lease, rows=rows[2:3])])
    assert said_in(shelf) == texts(rows[:3])
    objects.before, objects.silent, objects.stuck = None, False, False
    assert await said_by(store) == texts(rows[:2])
    for row in rows[2:]:
        assert isinstance((await store.append([Batch(lease=lease, rows=[row])]))[0], Position)
    await give_up(store, lease)
    assert said_in(shelf) == texts(rows)
    two = store_on(shelf, "two")
    await two.acquire("s")
    assert await said_by(two) == texts(rows)


async def test_of_two_messages_of_a_commit_that_fails_none_stands_alone_in_the_tree() -> None:
    """An answer without its prompt could be taken in."""
    shelf, rows = shelf_of_now(), grow(4)
    objects = Meddling(shelf)
    store = store_on(shelf, "one", objects)
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=rows[:2])])

    async def unreachable(key: str) -> None:
        if "/repertory/" in key or key == f"{MESSAGES}2.json":
            raise Unavailable("the store cannot be reached")

    objects.before, objects.stuck = unreachable, True
    with pytest.raises(Unavailable):
        await store.append([Batch(lease=lease, rows=rows[2:])])
    assert said_in(shelf) == texts(rows[:2])


async def test_a_document_of_a_commit_that_was_not_stored_comes_behind_those_that_were() -> None:
    """The owner dies with its last commit under way, and before it has written the document of the one before."""
    shelf, rows = shelf_of_now(), grow(3)
    one = store_on(shelf, "one")
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows[:2])])
    await one.append([Batch(lease=lease, rows=rows[2:])])
    await MemoryObjectStore(shelf).delete(f"{MESSAGES}2.json")
    await add_from_outside(shelf, 3, "the last one")
    two = store_on(shelf, "two")
    lease, _ = await two.acquire("s", takeover=True)
    assert await said_by(two) == [*texts(rows), "the last one"]
    await give_up(two, lease)
    assert said_in(shelf) == [*texts(rows), "the last one"]


async def test_result_and_answer_of_a_tool_go_out_with_their_commit_and_what_was_left_before_it() -> None:
    """No request waits for another one."""
    shelf, rows, (begun, ended) = shelf_of_now(), grow(2), tool_turn()
    counting = CountingObjectStore(MemoryObjectStore(shelf))
    store: Any = bucket_store(counting, "one", wall=anyio.current_time)
    lease, _ = await store.acquire("s")
    await store.append([Batch(lease=lease, rows=rows)])
    counting.latency_s = 1.0
    began = anyio.current_time()
    await store.append([Batch(lease=lease, rows=begun)])
    assert anyio.current_time() == began + 1.0  # The tool waits for its commit alone.
    assert said_in(shelf) == texts(rows)
    await store.append([Batch(lease=lease, rows=ended)])
    assert anyio.current_time() == began + 2.0
    assert said_in(shelf) == [*texts(rows), "pay", "I pay", "result", "done"]


@pytest.mark.parametrize("gone", [[], [2], [2, 3]])
@pytest.mark.parametrize("arrived", [[], [4], [5], [4, 5]])
async def test_an_answer_without_the_results_before_it_is_not_taken_in(arrived: list[int], gone: list[int]) -> None:
    """Its owner has died while it wrote both with their commit. `arrived`: the documents of that commit that are there.
    `gone`: those of the commit before that are not.
    """
    shelf, rows, (begun, ended) = shelf_of_now(), grow(2), tool_turn()
    one, objects = store_on(shelf, "one"), MemoryObjectStore(shelf)
    lease, _ = await one.acquire("s")
    for batch in (rows, begun):
        await one.append([Batch(lease=lease, rows=batch)])
    head = shelf.objects["session_s/repertory/head"]
    await one.append([Batch(lease=lease, rows=ended)])
    del shelf.objects[max(key for key in shelf.objects if "/repertory/s/" in key)]  # The commit.
    assert shelf.objects["session_s/repertory/head"] == head
    for number in {*gone, 4, 5} - {*arrived}:
        await objects.delete(f"{MESSAGES}{number}.json")
    wanted = [*texts(rows), "pay", "I pay", *(["result"] if 4 in arrived else []), *(["done"] * (arrived == [4, 5]))]
    assert await said_by(store_on(shelf, "reader")) == wanted
    two = store_on(shelf, "two")
    lease, _ = await two.acquire("s", takeover=True)
    assert await said_by(two) == wanted
    if 4 not in arrived:
        await two.append([Batch(lease=lease, rows=ended)])
        wanted += ["result", "done"]
    await give_up(two, lease)
    assert said_in(shelf) == wanted
    await store_on(shelf, "three").acquire("s")
    assert said_in(shelf) == wanted


async def test_an_answer_of_another_program_behind_a_removed_message_is_taken_in_with_what_follows_it() -> None:
    shelf, rows, (begun, _) = shelf_of_now(), grow(2), tool_turn()
    one = store_on(shelf, "one")
    lease, _ = await one.acquire("s")
    for batch in (rows, begun):
        await one.append([Batch(lease=lease, rows=batch)])
    await give_up(one, lease)
    for number in (5, 6):
        await add_from_outside(shelf, number, f"theirs {number}")
    two = store_on(shelf, "two")
    await two.acquire("s")
    assert (await said_by(two))[-2:] == ["theirs 5", "theirs 6"]


async def test_a_mark_that_goes_out_while_documents_are_written_counts_each_of_them_once() -> None:
    shelf, rows = shelf_of_now(), grow(4)
    objects = Meddling(shelf)
    one = store_on(shelf, "one", objects)
    lease, _ = await one.acquire("s")
    appender = Appender("default", restore(rows[:2]).fold, rows[1].link, lambda size: b"s" * size)
    state = appender.append(StateChanged(at=1.0, set={"a": 1}))
    more = grow(2, after=[*rows[:2], state])
    await one.append([Batch(lease=lease, rows=rows[:2])])

    async def without_agent(key: str) -> None:
        if key.endswith("agent.json"):
            await anyio.sleep(1.0)  # The messages are there by then.
            raise Unavailable("the agent's document cannot be written")

    objects.before = without_agent
    await one.append([Batch(lease=lease, rows=[state, *more])])
    assert said_in(shelf) == texts([*rows])
    last = Appender("default", restore([*rows[:2], state, *more]).fold, more[-1].link, lambda size: b"s" * size)
    await one.append([Batch(lease=lease, rows=[last.append(StateChanged(at=1.0, set={"a": 2}))])])
    two = store_on(shelf, "two")
    lease, _ = await two.acquire("s", takeover=True)
    await two.load("s", "default")
    await give_up(two, lease)
    assert said_in(shelf) == texts([*rows])


@pytest.mark.parametrize("when", ["between two tries", "before the answer"])
async def test_a_document_that_the_next_owner_has_found_stored_stays_where_the_commit_is_refused(when: str) -> None:
    """The answer to the first try was lost."""
    shelf, rows = shelf_of_now(), grow(3)
    objects = Meddling(shelf)
    one, two = store_on(shelf, "one", objects), store_on(shelf, "two")
    lease, _ = await one.acquire("s")
    await one.append([Batch(lease=lease, rows=rows[:2])])

    async def take_over(key: str = "/repertory/") -> None:
        if "/repertory/" in key:
            objects.before = None
            new, _ = await two.acquire("s", takeover=True)
            assert await said_by(two) == texts(rows)
            await two.release([new])

    objects.silent = True
    with pytest.raises(Unavailable):
        await one.append([Batch(lease=lease, rows=rows[2:])])
    objects.silent = False
    if when == "between two tries":
        await take_over()
    else:
        objects.before = take_over
    (outcome,) = await one.append([Batch(lease=lease, rows=rows[2:])])
    assert isinstance(outcome, LeaseLost) == (when == "between two tries")  # Else it finds its own segment.
    assert said_in(shelf) == texts(rows)
    three = store_on(shelf, "three")
    await three.acquire("s")
    assert await said_by(three) == texts(rows)
