"""Marks of positions, pruning, and the dead letters of memory stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.sessions.reading import in_thread_when_many, load_journal, moment_at
from repertory.core.history.prune import PrunePolicy, Pruning
from repertory.core.history.prune import prune as prune_journal
from repertory.core.history.timeline import Mark, mark_rows
from repertory.core.journal.records import CursorMoved
from repertory.core.journal.restore import Appender
from repertory.core.journal.whole_journal import position_named
from repertory.core.memory.progress import MemoryDeadLetter, Progress, progress_json, read_progress
from repertory.errors import Invalid
from repertory.operations.reading import agent_there, commit_rows, load_marks, opening_of, owned

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import WholeJournal
    from repertory.core.messages import Json
    from repertory.operations.reading import RecordStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMark:
    """A position with a label."""

    label: str
    position: int
    """The marked position: everything up to and including this sequence number."""
    seq: int
    """The sequence number of the mark's own record."""
    at: float
    """The time of marking, in epoch seconds."""
    metadata: Mapping[str, Json]
    digest: str
    """The link of the row at the position, in hexadecimal, which proves everything up to there. Empty before the first
    row, and for marks made by other tools.
    """


async def marks(store: SessionStore, session_id: str, agent_id: str | None) -> Sequence[StoredMark]:
    agent_id = await agent_there(store, session_id, agent_id)
    return [
        StoredMark(
            label=taken.label,
            position=position_named(seq, taken),
            seq=seq,
            at=taken.at,
            metadata=taken.metadata,
            digest=taken.digest,
        )
        for seq, taken in await load_marks(store, session_id, agent_id)
    ]


async def mark(
    store: SessionStore,
    session_id: str,
    wanted: Sequence[Mark],
    agent_id: str | None,
    made: RecordStamp,
    *,
    takeover: bool,
) -> Sequence[StoredMark]:
    """Add marks to a session, in one commit. It reads as much as opening the session reads."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        now = await opening_of(store, session_id, agent_id)
        last = now.fold.last_seq
        links: dict[int, bytes] = {}
        # The ends need no look-up: the link of the last row is at hand, and before the first one there is none.
        for position in {each.position for each in wanted} - {None, last, 0}:
            assert position is not None
            if not 0 < position < last:
                raise Invalid("no such position", at=position, last=last, session=session_id, agent=agent_id)
            link = (await moment_at(store, session_id, agent_id, position)).link
            assert link is not None
            links[position] = link
        made = await made.for_session(store, session_id)
        appender = Appender(agent_id, now.fold, now.link, made.entropy, made.seal)
        rows = mark_rows(appender, wanted, links, made.at)
        links[last] = now.link or b""
        if rows:
            await commit_rows(store, lease, rows)
    return [
        StoredMark(
            label=each.label,
            position=(position := last if each.position is None else each.position),
            seq=last + number,
            at=made.at,
            metadata=each.metadata,
            digest=links.get(position, b"").hex(),
        )
        for number, each in enumerate(wanted, 1)
    ]


# Pruning: removing marks, and contents that rewinds left behind.


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneReport:
    """The pruned marks and contents, or those that would be."""

    session_id: str
    agent_id: str
    dry_run: bool
    """True if nothing was changed."""
    marks: Sequence[str]
    """The labels of the removed marks, in order; a repeated label is repeated here."""
    messages: Sequence[int]
    """The removed messages, which rewinds had left behind."""
    erased: Sequence[int]
    """Every row whose content was destroyed."""
    bytes: int
    """The size of the destroyed contents. The record that a message is gone takes about 100 bytes for each."""


async def prune_session(
    store: SessionStore,
    session_id: str,
    policy: PrunePolicy,
    agent_id: str | None,
    made: RecordStamp,
    *,
    dry_run: bool,
) -> PruneReport:
    """Destroy the marks and contents that the policy does not keep, in one commit."""
    agent_id = await agent_there(store, session_id, agent_id)
    if dry_run:
        found = await _found(await load_journal(store, session_id, agent_id), policy, made)
    else:
        async with owned(store, session_id, takeover=False) as lease:
            journal = await load_journal(store, session_id, agent_id)
            found = await _found(journal, policy, made)
            if found.erase:
                made = await made.for_session(store, session_id)
                rows = await in_thread_when_many(partial(_rows, journal, found, made), journal.rows)
                await commit_rows(store, lease, rows, [(agent_id, seq) for seq in found.erase])
    return PruneReport(
        session_id=session_id,
        agent_id=agent_id,
        dry_run=dry_run,
        marks=[mark.label for _, mark in found.marks],
        messages=[redaction.target for redaction in found.redactions],
        erased=found.erase,
        bytes=found.bytes,
    )


async def _found(journal: WholeJournal, policy: PrunePolicy, made: RecordStamp) -> Pruning:
    return await in_thread_when_many(partial(prune_journal, journal, policy, made.at), journal.rows)


def _rows(journal: WholeJournal, found: Pruning, made: RecordStamp) -> Sequence[Row]:
    fold, link = journal.fold_at(journal.last_seq), journal.rows[-1].link
    appender = Appender(journal.agent_id, fold, link, made.entropy, made.seal)
    return [*appender.append_all(found.redactions), *appender.restate(made.at)]


# Dead letters: memories, or messages for extraction, that were given up.


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDeadLetter:
    """A dead letter of a memory store."""

    session_id: str
    agent_id: str
    store: str
    """The memory store that it was meant for."""
    dead_letter: MemoryDeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """The dead letters to be tried again."""

    session_id: str
    agent_id: str
    dead_letters: Mapping[str, int]
    """The number of dead letters, by memory store."""


async def dead_letters(store: SessionStore, session_id: str | None) -> Sequence[StoredDeadLetter]:
    """The dead letters of a session, or of all: those of the last changed session come first."""
    found: list[StoredDeadLetter] = []
    for info in await store.sessions(session_id):
        for agent_id in sorted(info.agents):
            fold = (await opening_of(store, info.session_id, agent_id)).fold
            found += [
                StoredDeadLetter(session_id=info.session_id, agent_id=agent_id, store=name, dead_letter=letter)
                for name, progress in _progress(fold).items()
                for letter in progress.dead_letters
            ]
    return found


async def replay_dead_letters(
    store: SessionStore,
    session_id: str,
    memory_store: str | None,
    agent_id: str | None,
    made: RecordStamp,
    *,
    takeover: bool,
) -> ReplayReport:
    """Record that dead letters are to be tried again, when an agent with the memory store next opens the session."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        now = await opening_of(store, session_id, agent_id)
        found = _progress(now.fold)
        chosen = [name for name, progress in found.items() if progress.dead_letters and memory_store in (None, name)]
        dead_letters = {name: len(found[name].dead_letters) for name in chosen}
        if chosen:
            again = found | {name: found[name].replayed() for name in chosen}
            spelled = {name: progress_json(progress) for name, progress in again.items()}
            states = {name: state for name, state in spelled.items() if state is not None}
            record = CursorMoved(at=made.at, positions=dict(now.fold.cursors), kept=states)
            made = await made.for_session(store, session_id)
            appender = Appender(agent_id, now.fold, now.link, made.entropy, made.seal)
            await commit_rows(store, lease, [appender.append(record), *appender.restate(made.at)])
    return ReplayReport(session_id=session_id, agent_id=agent_id, dead_letters=dead_letters)


def _progress(fold: Fold) -> dict[str, Progress]:
    return {name: read_progress(fold.cursors.get(name, 0), state) for name, state in fold.kept.items()}
