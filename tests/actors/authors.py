"""What the author of a journal does, for tests of its persister alone."""

from __future__ import annotations

import math

from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.persister import Begin, Commit, OpenJournal, Store
from repertory.core.journal.author import JournalAuthor
from repertory.core.journal.records import Record
from repertory.runtime.ref import ActorRef


async def opened(ref: ActorRef[object]) -> JournalAuthor | InMemoryJournal:
    """The journal that the persister has open now."""
    journal = await ref.ask(OpenJournal(), timeout_s=math.inf)
    assert isinstance(journal, JournalAuthor | InMemoryJournal)
    return journal


async def add(ref: ActorRef[object], *records: Record) -> JournalAuthor | InMemoryJournal:
    """The journal with these records behind what it holds, not handed over yet."""
    journal = await opened(ref)
    for record in records:
        journal.add(record)
    return journal


async def append(ref: ActorRef[object], *records: Record, soon: bool = False) -> None:
    """Have records written in the background."""
    journal = await add(ref, *records)
    if isinstance(journal, JournalAuthor):
        journal.hand_over()
    ref.tell(Store(soon=soon))


async def commit(ref: ActorRef[object], *records: Record, patient: bool = True) -> int:
    """The last number, when everything up to there is durable."""
    journal = await add(ref, *records)
    if isinstance(journal, JournalAuthor):
        journal.hand_over()
    last = journal.fold.last_seq
    await ref.ask(Commit(seq=last, patient=patient), timeout_s=math.inf)
    return last


async def begin(ref: ActorRef[object], *records: Record, stored: bool = True) -> JournalAuthor | InMemoryJournal | None:
    """Begin a turn with these records; the journal that is there now, when it was opened again."""
    journal = await add(ref, *records)
    assert isinstance(journal, JournalAuthor)
    message = Begin(before=journal.handed_seq, stored=stored)
    if stored:
        journal.hand_over()
    return await ref.ask(message, timeout_s=math.inf)  # type: ignore[return-value] - an ask of any actor
