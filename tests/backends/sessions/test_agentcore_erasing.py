"""What is erased from a session in AgentCore Memory is in no event any more, whoever dies on the way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import anyio
import pytest

from repertory.backends.ports import Batch
from repertory.core.journal.records import MessageAdded, Redacted
from repertory.core.journal.restore import records_of
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, text_of
from tests.backends.sessions.agentcore_memory import FakeMemory
from tests.backends.sessions.agentcore_writer import (
    Writer,
    bytes_of,
    opened,
    own,
    put,
    said,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def memory() -> FakeMemory:
    return FakeMemory()


async def redactions(writer: Writer, **instead: str) -> Batch:
    """What puts texts in the place of messages that say something, and erases those."""
    rows = await writer.store.load("s", "default", whole=True)
    targets: list[int] = []
    made: list[Row] = []
    for seq, record in records_of(rows):
        if isinstance(record, MessageAdded) and text_of(record.message) in instead:
            text = instead[text_of(record.message)]
            message: Message = {"role": record.message["role"], "content": [{"text": text}]}
            said_at = {"turn": record.turn, "index": record.index}
            made.append(writer.appender.append(Redacted(at=6.0, target=seq, message=message, **said_at)))
            targets.append(seq)
    return Batch(lease=writer.lease, rows=made, erase=[("default", seq) for seq in targets])


async def erased_session(memory: FakeMemory, fault: Callable[[], str | None] = lambda: None) -> None:
    """A session of which two messages are redacted and erased, one of them somebody else's."""
    async with opened(memory) as store:
        writer = await own(store)
        await writer.say("question", "answer")
        await writer.say("SECRET", "reply")
        put(memory, [said("user", "SECRET_OF_THEIRS"), said("assistant", "their reply")])
    begun = anyio.Event()
    async with opened(memory, plan=lambda operation: fault() if begun.is_set() else None) as store:
        batch = await redactions(await own(store), SECRET="[gone]", SECRET_OF_THEIRS="[theirs gone]")
        begun.set()
        await store.append([batch])


SHOWN = ["question", "answer", "[gone]", "reply", "[theirs gone]", "their reply"]


async def test_what_is_erased_is_in_no_event_any_more(memory: FakeMemory) -> None:
    await erased_session(memory)
    assert "SECRET" not in bytes_of(memory)
    async with opened(memory) as store:
        writer = await own(store)
        assert writer.texts == SHOWN
        await writer.say("next", "yes")
        await writer.release()
    async with opened(memory) as store:
        assert (await own(store)).texts == [*SHOWN, "next", "yes"]
    messages = [
        json.loads(item["conversational"]["content"]["text"])
        for event in memory.events("s")
        for item in event.fields["payload"]
        if "conversational" in item
    ]
    assert [(one["redact_message"] or one["message"])["content"][0]["text"] for one in messages] == [
        *SHOWN,
        "next",
        "yes",
    ]


async def test_an_erasure_that_was_cut_off_is_finished_by_the_next_owner(memory: FakeMemory) -> None:
    """Wherever its owner dies."""
    requests = itertools.count()
    await erased_session(memory, lambda: None if next(requests) >= 0 else "never")
    for last in range(next(requests)):
        cut = FakeMemory()
        numbers = itertools.count()
        await erased_session(cut, lambda last=last, numbers=numbers: "refused" if next(numbers) >= last else None)
        async with opened(cut) as store:
            writer = await own(store, takeover=True)
            shown = writer.texts
            await writer.release()
        if "[gone]" in shown:
            assert shown == SHOWN, last
            assert "SECRET" not in bytes_of(cut), last
        else:
            assert shown[2] == "SECRET", last
