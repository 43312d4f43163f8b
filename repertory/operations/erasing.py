"""Erasing for good: one message, a text, one session, every session of an age."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from repertory.actors.memory.store import ForgetMemories, ask_store
from repertory.app.sessions.reading import in_thread_when_many, info_of, load_journal
from repertory.backends.ports import call_queue_of, pending_work_of
from repertory.core.history.fork import copies_end, origin_of
from repertory.core.history.redact_text import Words
from repertory.core.history.redact_text import redact_text as redact_journal_text
from repertory.core.journal.records import CursorMoved, MessageAdded
from repertory.core.journal.redact import (
    Copy,
    Redaction,
    Texts,
    copies_in,
    copies_in_force,
    only_in,
    without_text,
)
from repertory.core.journal.redact import redact as redact_journal
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import RecordKind
from repertory.core.memory.progress import forgetting
from repertory.core.messages import Message
from repertory.errors import Corrupt, Failed, Gone, Invalid, NotFound, RepertoryError, SessionBusy
from repertory.operations.progress import OnProgress, OperationProgress
from repertory.operations.reading import agent_there, commit_rows, owned

if TYPE_CHECKING:
    from repertory.actors.memory.store import MemoryStoreClient
    from repertory.backends.encryption_ports import Sealing
    from repertory.backends.peer_ports import QueuedCall
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import WholeJournal
    from repertory.operations.reading import RecordStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactionReport:
    """The outcome of redacting a message."""

    session_id: str
    agent_id: str
    seq: int
    erased: Sequence[int]
    """The rows whose content was destroyed: the message's own, and those that repeated it."""
    left: Sequence[Copy]
    """The rows where the same text remains, word for word: current rows, other messages, those of other agents."""
    quarantined: Sequence[str]
    """Damaged files that were moved aside, and may hold the message: check them yourself."""
    source: str | None = None
    """The session from which a fork copied the message, as `session/agent`. The message remains there unless it was
    redacted there as well.
    """
    source_seq: int | None = None
    """The message's number in the journal of `source`."""
    memories: ForgottenMemories
    """The outcome for the memories of the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenMemories:
    """The outcome for memories of redacted messages. Memories that are not written yet are always erased."""

    forgotten: Mapping[str, int]
    """The number of erased entries, by memory store that was given."""
    left: Sequence[str]
    """Memory stores that got the messages and were not given here, or cannot forget: call their
    `store.forget(session_id=..., agent_id=..., seq=...)`, or redact again with `memory=`.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedAgent:
    """The outcome for one agent's journal."""

    messages: Sequence[int]
    """Sequence numbers of the messages that were replaced."""
    erased: Sequence[int]
    """The rows whose content was destroyed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRedactionReport:
    """The outcome of redacting a text everywhere in a session."""

    session_id: str
    agents: Mapping[str, RedactedAgent]
    """The outcomes for the journals that contained the text, by agent, graph or swarm."""
    left: Sequence[Copy]
    """Rows that still contain it, since it is a name there: an id, a token, the name of a tool or a mark."""
    posted: Sequence[str]
    """The tokens of accepted calls that still contain it, also parked ones: redact again once they are made."""
    quarantined: Sequence[str]
    """Damaged files that were moved aside, and may contain it: check them yourself."""
    memories: ForgottenMemories
    """The outcome for the memories of the messages with the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedAgent:
    """The deleted journal of an agent."""

    rows: int
    link: str
    """The link of its last row, in hexadecimal: with a copy of the journal it proves which one it was. Empty when
    damaged.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionProof:
    """A deleted session."""

    session_id: str
    agents: Mapping[str, DeletedAgent]
    deleted_at: float
    """The time of the deletion, in epoch seconds."""
    looked_for: Sequence[str]
    """The parts of the session that were searched for afterwards, and not found."""
    corrupt_files: Sequence[str] = ()
    """Damaged places that were moved aside as a whole, and may contain the session. Remove them yourself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRotation:
    """A session with a new key."""

    session_id: str
    key_id: str
    """Names the key that is used from now on."""
    at: float
    """The time of the rotation, in epoch seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyErasure:
    """A session without its keys: its contents are gone, in every copy."""

    session_id: str
    agents: Mapping[str, DeletedAgent]
    """The remains of each agent, which prove what was there."""
    erased_at: float
    """The time of the erasure, in epoch seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A session that is old enough and was not deleted."""

    session_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryReport:
    """The outcome of an expiry."""

    older_than: float
    """Sessions last changed before this time, in epoch seconds, have expired."""
    dry_run: bool
    """True if nothing was deleted."""
    expired: Sequence[str]
    """The sessions that were deleted, or would have been."""
    proofs: Sequence[DeletionProof]
    skipped: Sequence[Skipped]


async def redact_message(
    store: SessionStore,
    target: tuple[str, str | None, int],
    replacement: str,
    made: RecordStamp,
    memories: Sequence[MemoryStoreClient],
    *,
    takeover: bool,
) -> RedactionReport:
    """Replace the message at `target` (session, agent, sequence number) and destroy the original."""
    session_id, agent_id, seq = target
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        journal = await load_journal(store, session_id, agent_id)
        original = _message_at(journal, seq)
        instead = without_text(original, replacement)
        elsewhere: Sequence[Copy] = ()
        quarantined: Sequence[str] = ()
        with suppress(Invalid):  # A store that cannot list sessions does not know their other agents.
            elsewhere = await _elsewhere(store, session_id, agent_id, Texts(only_in(original, instead)))
            quarantined = await _moved_aside(store, session_id)
        made = await made.for_session(store, session_id)
        done = await in_thread_when_many(partial(_redaction, journal, seq, instead, made), journal.rows)
        # Memory first: a caller who is interrupted between the two calls again and finds the message still there.
        forgotten = await _forget(session_id, {agent_id: (seq,)}, _readers(journal, (seq,)), memories)
        await commit_rows(store, lease, done.rows, [(agent_id, each) for each in done.erase])
        source, source_seq = _copied_from(journal, seq)
    return RedactionReport(
        session_id=session_id,
        agent_id=agent_id,
        seq=seq,
        erased=done.erase,
        left=(*done.left, *elsewhere),
        quarantined=quarantined,
        source=source,
        source_seq=source_seq,
        memories=forgotten,
    )


async def redact_session_text(
    store: SessionStore,
    session_id: str,
    agent_id: str | None,
    words: Words,
    made: RecordStamp,
    memories: Sequence[MemoryStoreClient],
    *,
    takeover: bool,
) -> TextRedactionReport:
    """Replace a text in the journal of an agent, or of all agents of the session, in one commit."""
    agents: dict[str, RedactedAgent] = {}
    copies: list[Copy] = []
    rows: list[Row] = []
    erase: list[tuple[str, int]] = []
    readers: set[str] = set()
    async with owned(store, session_id, takeover=takeover) as lease:
        made = await made.for_session(store, session_id)
        names = [agent_id] if agent_id is not None else sorted((await info_of(store, session_id)).agents)
        for name in names:
            journal = await load_journal(store, session_id, await agent_there(store, session_id, name))
            work = partial(_text_redaction, journal, words, made)
            done, messages = await in_thread_when_many(work, journal.rows)
            copies += done.left
            if done.rows or done.erase:
                agents[name] = RedactedAgent(messages=messages, erased=done.erase)
                rows += done.rows
                erase += [(name, each) for each in done.erase]
                readers |= _readers(journal, messages)
        seqs = {name: agent.messages for name, agent in agents.items()}
        forgotten = await _forget(session_id, seqs, readers, memories)
        if rows or erase:
            await commit_rows(store, lease, rows, erase)
        quarantined: Sequence[str] = ()
        with suppress(Invalid):  # A store that cannot list sessions has no quarantine.
            quarantined = await _moved_aside(store, session_id)
        calls = await _posted_calls(store, session_id)
    return TextRedactionReport(
        session_id=session_id,
        agents=agents,
        left=copies,
        posted=[
            each.token
            for each in calls
            if agent_id in (None, each.agent_id) and words.value(dict(each.call)) != each.call
        ],
        quarantined=quarantined,
        memories=forgotten,
    )


async def delete(store: SessionStore, session_id: str, at: float, *, takeover: bool) -> DeletionProof:
    """Erase a session and verify that. Errors: `NotFound`, `SessionBusy`; `Failed` when a part of it remains."""
    found = await store.sessions(session_id)
    info = found[0] if found else None
    # Without a lease: that of a damaged session may be as unreadable as the rest, and it must be possible to delete it.
    if info is None or info.damaged:
        return await _delete(store, session_id, info, at)
    async with owned(store, session_id, takeover=takeover):  # no other owner adds rows from here on
        return await _delete(store, session_id, await info_of(store, session_id), at)


async def expire(
    store: SessionStore, older_than: float, at: float, *, dry_run: bool, progress: OnProgress = None
) -> ExpiryReport:
    """Delete every session without an owner or accepted work that was last changed before a time."""
    expired: list[str] = []
    proofs: list[DeletionProof] = []
    skipped: list[Skipped] = []
    infos = [info for info in await store.sessions() if info.updated_at < older_than]
    for number, info in enumerate(infos, 1):
        why = _reason_to_keep(info)
        try:
            if why is None and dry_run:
                why = await _accepted_work(store, info.session_id)
            elif why is None:
                proofs.append(await _expire(store, info.session_id, older_than, at))
        except RepertoryError as error:
            why = str(error)
        if why is None:
            expired.append(info.session_id)
        else:
            skipped.append(Skipped(session_id=info.session_id, why=why))
        if progress is not None:
            progress(OperationProgress(number, len(infos), "sessions"))
    return ExpiryReport(older_than=older_than, dry_run=dry_run, expired=expired, proofs=proofs, skipped=skipped)


def _reason_to_keep(info: SessionInfo) -> str | None:
    if info.owner is not None:
        return f"it is in the hands of {info.owner}"
    return "it is damaged: repair it with `doctor`, or delete it by its name" if info.damaged else None


_NAMED_MAX = 8
"""The number of calls that a report names, at most."""
_ACCEPTED: Collection[str] = ("turn", "result", "task", "delivery")
"""The pending work that keeps a session from being deleted for its age: a caller was told that it will be done. A timer
counts as part of the session, and goes with it.
"""


async def _moved_aside(store: SessionStore, session_id: str) -> Sequence[str]:
    """The names of damaged data that may hold the session."""
    repair = store.capabilities.repair
    return () if repair is None else [*await repair.quarantined(session_id), *await repair.corrupt_files()]


def _sealing_of(store: SessionStore, session_id: str) -> Sealing:
    sealing = store.capabilities.sealing
    if sealing is None:
        raise Invalid("this place is not encrypted: open it with encryption=LocalKeys(...)", session=session_id)
    return sealing


async def _posted_calls(store: SessionStore, session_id: str) -> Sequence[QueuedCall]:
    box = call_queue_of(store)
    return () if box is None else await box.calls(session_id)


async def _accepted_work(store: SessionStore, session_id: str) -> str | None:
    """The reason for which a session must stay: accepted calls, turns or results that are not done; or None."""
    calls = [call.token for call in await _posted_calls(store, session_id)]
    if calls:
        return f"it has posted calls that are not made: {', '.join(calls[:_NAMED_MAX])}"
    pending_work = sorted({each.why for each in await pending_work_of(store, session_id) if each.why in _ACCEPTED})
    return f"it owes work that was accepted: {', '.join(pending_work)}" if pending_work else None


async def _expire(store: SessionStore, session_id: str, older_than: float, at: float) -> DeletionProof:
    async with owned(store, session_id, takeover=False):
        info = await info_of(store, session_id)
        # Asked again by its owner: the listing is older than the lease.
        if info.updated_at >= older_than:
            raise SessionBusy("it was changed meanwhile", session=session_id)
        # Looked for by its owner, so that nobody can be making it. A posted call changes nothing in the session.
        if (why := await _accepted_work(store, session_id)) is not None:
            raise SessionBusy(why, session=session_id)
        return await _delete(store, session_id, info, at)


async def rotate_key(store: SessionStore, session_id: str, at: float, *, takeover: bool) -> KeyRotation:
    """Owned meanwhile, so whoever opens the session next, in any process, uses the new key."""
    # Before `owned`, which would create a session that is not there.
    await info_of(store, session_id)
    async with owned(store, session_id, takeover=takeover):
        return KeyRotation(
            session_id=session_id, key_id=await _sealing_of(store, session_id).rotate_key(session_id), at=at
        )


async def erase_key(store: SessionStore, session_id: str, at: float, *, takeover: bool) -> KeyErasure:
    info = await info_of(store, session_id)
    async with owned(store, session_id, takeover=takeover):
        agents = await _remains(store, session_id, info)
        await _sealing_of(store, session_id).erase_key(session_id)
    return KeyErasure(session_id=session_id, agents=agents, erased_at=at)


async def _delete(store: SessionStore, session_id: str, info: SessionInfo | None, at: float) -> DeletionProof:
    agents = {} if info is None else await _remains(store, session_id, info)
    await store.delete(session_id)
    looked_for = ["its line in the listing"]
    # Nothing is believed: every place is looked into again, and the proof names these places.
    remains = [each.session_id for each in await store.sessions(session_id)]
    for agent_id in agents:
        looked_for.append(f"rows of agent {agent_id}")
        remains += [row.agent_id for row in await store.load(session_id, agent_id, whole=True)]
    repair = store.capabilities.repair
    if repair is not None:
        looked_for.append("what was set aside of it")
        remains += await repair.quarantined(session_id)
    if remains:
        raise Failed("the session was deleted, and is still there", session=session_id, left=sorted(set(remains)))
    return DeletionProof(
        session_id=session_id,
        agents=agents,
        deleted_at=at,
        looked_for=looked_for,
        corrupt_files=() if repair is None else await repair.corrupt_files(),
    )


async def _remains(store: SessionStore, session_id: str, info: SessionInfo) -> dict[str, DeletedAgent]:
    agents: dict[str, DeletedAgent] = {}
    for agent_id in sorted(info.agents):
        try:
            rows = await store.load(session_id, agent_id)
        except Corrupt:
            # A damaged journal can be deleted too; then nothing proves which one it was.
            rows = ()
        link = rows[-1].link.hex() if rows else ""
        agents[agent_id] = DeletedAgent(rows=rows[-1].seq if rows else 0, link=link)
    return agents


def _redaction(journal: WholeJournal, seq: int, instead: Message, made: RecordStamp) -> Redaction:
    appender = _appender(journal, made)
    done = redact_journal(appender, journal.rows, seq, instead, made.at)
    return _with_memories(journal, appender, done, (seq,), made.at)


def _text_redaction(journal: WholeJournal, words: Words, made: RecordStamp) -> tuple[Redaction, tuple[int, ...]]:
    appender = _appender(journal, made)
    done, messages = redact_journal_text(appender, journal.rows, words, made.at)
    return _with_memories(journal, appender, done, messages, made.at), messages


def _with_memories(
    journal: WholeJournal, appender: Appender, done: Redaction, seqs: Collection[int], at: float
) -> Redaction:
    """Also erase the memories of these messages that are not written yet."""
    record, erase = forgetting(journal.records, appender.fold, seqs, at)
    if record is None:
        return done
    row = appender.append(record)
    # The text redaction may just have restated the cursors: that row is erased with those before it.
    stated = [each.without_content() if each.kind == RecordKind.CURSOR else each for each in done.rows]
    return replace(done, rows=(*stated, row), erase=tuple(sorted({*done.erase, *erase})))


def _appender(journal: WholeJournal, made: RecordStamp) -> Appender:
    link = journal.rows[-1].link if journal.rows else None
    return Appender(journal.agent_id, journal.fold_at(journal.last_seq), link, made.entropy, made.seal)


def _readers(journal: WholeJournal, seqs: Collection[int]) -> set[str]:
    """The memory stores whose cursor has passed one of these messages."""
    # The earliest one decides: a cursor says only how far a store has read.
    first = min(seqs, default=math.inf)
    reached: dict[str, int] = {}
    for _, record in journal.records:
        if isinstance(record, CursorMoved):
            reached |= record.positions
    return {name for name, position in reached.items() if position >= first}


async def _forget(
    session_id: str, seqs: Mapping[str, Sequence[int]], readers: Collection[str], memories: Sequence[MemoryStoreClient]
) -> ForgottenMemories:
    """Erase the memories of these messages in the stores that can forget."""
    able = [memory for memory in memories if memory.forgets]
    forgotten = dict.fromkeys([memory.name for memory in able], 0)
    if able:
        from repertory.app.memory.memory_manager import reached  # loaded when used

        async with reached(able) as actors:
            for name, actor in actors.items():
                for agent_id, seq in [(agent_id, seq) for agent_id, numbers in seqs.items() for seq in numbers]:
                    named = {"session_id": session_id, "agent_id": agent_id, "seq": seq}
                    forgotten[name] += await ask_store(actor, ForgetMemories(named=named))
    return ForgottenMemories(forgotten=forgotten, left=sorted(readers - forgotten.keys()))


def _copied_from(journal: WholeJournal, seq: int) -> tuple[str, int] | tuple[None, None]:
    """The source of a message that was copied by the fork, and its number there."""
    origin = origin_of(journal)
    if origin is None or origin.source is None or not 1 < seq <= copies_end(journal):
        return None, None
    return origin.source, origin.copied[seq - 2]


def _message_at(journal: WholeJournal, seq: int) -> Message:
    found = dict(journal.records).get(seq)
    if not isinstance(found, MessageAdded):
        fields = {"session": journal.session_id, "agent": journal.agent_id, "seq": seq}
        raise NotFound("no message stands there; `show` has the numbers", **fields)
    return found.message


async def _elsewhere(store: SessionStore, session_id: str, agent_id: str, texts: Texts) -> list[Copy]:
    found: list[Copy] = []
    for other in sorted((await info_of(store, session_id)).agents.keys() - {agent_id}):
        with suppress(Gone):
            journal = await load_journal(store, session_id, other)
            found += copies_in_force(other, journal.fold_at(journal.last_seq), texts)
            found += copies_in(journal.rows, texts)
    return found
