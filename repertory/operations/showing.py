"""Stored sessions as values: their messages, their timeline, and a search in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.sessions.reading import Ancestry, ancestry_of, in_thread_when_many, info_of, load_journal
from repertory.core.history.fork import (
    Lineage,
    SpokenMessage,
    before_fork,
    conversation_at,
    copies_end,
    origin_of,
)
from repertory.core.history.timeline import TimelineEntry, timeline
from repertory.core.interrupts import Interrupt
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.redact import texts_of
from repertory.core.journal.sealing import LOCKED
from repertory.core.journal.whole_journal import position_named
from repertory.core.messages import Json, Message
from repertory.core.orchestration.document import document_of
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.orchestration.run import Run
from repertory.errors import Corrupt, Gone, Invalid
from repertory.operations.progress import OnProgress, OperationProgress
from repertory.operations.reading import chosen_agent, sound_info_of

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.fold import Fold
    from repertory.core.messages import Role
    from repertory.core.pictures.svg import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A stored message."""

    seq: int
    """The message's number in its own journal, by which it is redacted there."""
    at: float
    """The time of its record, in epoch seconds."""
    turn: int
    message: Message = field(repr=False)
    shown: bool
    """True if the model sees it, whole or shortened."""
    left_behind: bool
    """True if a rewind left it behind."""
    source: str | None = None
    """The message's journal, as `session/agent`, when the agent was forked from that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A position with a label."""

    label: str
    position: int
    """The marked position: everything up to and including this sequence number."""
    at: float
    metadata: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    """An agent of a session, as it is stored."""

    agent_id: str
    last_seq: int
    """The last position of its journal."""
    messages: Sequence[StoredMessage]
    """All messages, in order. A fork begins with the messages of its source."""
    summary: Message | None
    """The message that the model sees instead of the oldest messages."""
    state: Mapping[str, Json]
    snapshots: Sequence[StoredSnapshot]
    waits_for: Sequence[Interrupt]
    """The open questions to a person, when the last turn waits for answers."""
    run: Mapping[str, object] | None
    """The run of a graph or swarm, in the form of `multi_agent.json`; None for an agent, and before the first run."""
    forked_from: str | None
    """The source of a fork, as `session/agent`."""
    lost_source: str | None = None
    """A missing source, as `session/agent`: then the messages of a fork begin with those that were copied."""

    def __repr__(self) -> str:
        """The agent's id and counts on one line, without any text of its messages."""
        from repertory.core.notebook import short_repr  # loaded when used

        fields = {"agent_id": self.agent_id, "last_seq": self.last_seq, "messages": len(self.messages)}
        return short_repr(self, {**fields, "forked_from": self.forked_from, "waits_for": len(self.waits_for) or None})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session, as it is stored."""

    session_id: str
    agents: Mapping[str, StoredAgent]
    created_at: float
    """The time of the session's creation, in epoch seconds."""
    updated_at: float
    owner: str | None
    """The holder of the lease; None when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """The timeline of one agent of a session."""

    session_id: str
    agent_id: str
    last_seq: int
    """The last position of its journal."""
    happenings: Sequence[TimelineEntry]
    """The entries in order. A fork begins with the events of its source before it."""
    lost_source: str | None
    """A missing source, as `session/agent`: then nothing before the fork is here."""


async def history(store: SessionStore, session_id: str, agent_id: str | None) -> StoredHistory:
    """The positions of an agent, with their events."""
    journal = await load_journal(store, session_id, await chosen_agent(store, session_id, agent_id))
    ancestry = await ancestry_of(store, journal)
    rows = [each.rows for each in ancestry.lineage]
    return StoredHistory(
        session_id=session_id,
        agent_id=journal.agent_id,
        last_seq=journal.last_seq,
        happenings=await in_thread_when_many(partial(timeline, ancestry.lineage), *rows),
        lost_source=ancestry.lost,
    )


async def graph(store: SessionStore, session_id: str, agent_id: str | None) -> Picture:
    """The branches of an agent's journal, and of its sources, as a picture."""
    from repertory.core.pictures.branches import branches_of, branches_picture  # loaded when used

    journal = await load_journal(store, session_id, await chosen_agent(store, session_id, agent_id))
    lineage = (await ancestry_of(store, journal)).lineage
    rows = [each.rows for each in lineage]
    return await in_thread_when_many(lambda: branches_picture(branches_of(lineage)), *rows)


async def show(store: SessionStore, session_id: str, agent_id: str | None) -> StoredSession:
    info = await (sound_info_of(store, session_id) if agent_id is None else info_of(store, session_id))
    agents = sorted(info.agents) if agent_id is None else [agent_id]
    found: dict[str, StoredAgent] = {}
    for each in agents:
        ancestry = await ancestry_of(store, await load_journal(store, session_id, each))
        rows = [journal.rows for journal in ancestry.lineage]
        found[each] = await in_thread_when_many(partial(_agent, ancestry), *rows)
    return StoredSession(
        session_id=info.session_id,
        agents=found,
        created_at=info.created_at,
        updated_at=info.updated_at,
        owner=info.owner,
    )


def _agent(ancestry: Ancestry) -> StoredAgent:
    journal = ancestry.lineage[0]
    fold = journal.fold_at(journal.last_seq)
    origin = origin_of(journal)
    return StoredAgent(
        agent_id=journal.agent_id,
        last_seq=journal.last_seq,
        messages=_messages(ancestry.lineage, {seq for seq, _ in fold.shown}),
        summary=fold.shown.view.summary,
        state=dict(fold.state),
        snapshots=[
            StoredSnapshot(label=taken.label, position=position_named(seq, taken), at=taken.at, metadata=taken.metadata)
            for seq, taken in journal.snapshots()
        ],
        waits_for=fold.interrupts,
        run=_run(journal.agent_id, fold),
        forked_from=origin.source if origin is not None else None,
        lost_source=ancestry.lost,
    )


def _run(journal: str, fold: Fold) -> Mapping[str, object] | None:
    orchestrator = orchestrator_in(journal)
    if orchestrator is None or not fold.run:
        return None
    return document_of(Run.of(fold.nodes.values(), fold.frontier, fold.run), orchestrator)


def _messages(lineage: Lineage, visible: Collection[int]) -> list[StoredMessage]:
    """All messages, also those that rewinds left behind; of sources, those that led to the fork."""
    journal = lineage[0]
    current = {(each.source, each.seq) for each in conversation_at(lineage, journal.last_seq)}
    begins = copies_end(journal)
    after = [
        SpokenMessage(seq=seq, source=None, record=record, redacted=False)
        for seq, record in journal.records
        if isinstance(record, MessageAdded) and seq > begins
    ]
    return [
        StoredMessage(
            seq=each.seq,
            at=each.record.at,
            turn=each.record.turn,
            message=each.record.message,
            shown=each.source is None and each.seq in visible,
            left_behind=(each.source, each.seq) not in current,
            source=each.source,
        )
        for each in (*before_fork(lineage), *after)
    ]


# Search in all messages. There is no index: each session is read whole.


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A message with all of the words."""

    session_id: str
    agent_id: str
    seq: int
    role: Role
    at: float
    """The time of the message's record, in epoch seconds."""
    excerpt: str = field(repr=False)
    """About a line of its text, around the first word, with single spaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The messages found, the most recently changed session first, each session in the order of its journal."""

    hits: Sequence[SearchHit]
    more: bool
    """True if the search stopped at its limit."""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """The reasons why sessions, or parts of them, could not be searched, by session."""


async def search(
    store: SessionStore, text: str, session_id: str | None, hits_max: int, progress: OnProgress = None
) -> SearchResult:
    """Every message with all of the words, up to `hits_max`."""
    words = words_of(text)
    infos = await store.sessions() if session_id is None else [await info_of(store, session_id)]
    hits: list[SearchHit] = []
    unreadable: dict[str, str] = {}
    for number, info in enumerate(infos):
        if progress is not None:
            progress(OperationProgress(number, len(infos), "sessions"))
        if info.damaged:
            unreadable[info.session_id] = "some of it is damaged"
        for agent_id in sorted(info.agents):
            try:
                journal = await load_journal(store, info.session_id, agent_id)
            except (Corrupt, Invalid, *LOCKED) as error:  # damage may leave an invalid name
                unreadable[info.session_id] = str(error)
                continue
            except Gone:  # deleted meanwhile
                continue
            # A search in all sessions finds messages from before a fork in their source.
            lineage = [journal] if session_id is None else (await ancestry_of(store, journal)).lineage
            hits += await in_thread_when_many(partial(_hits, lineage, words), *(each.rows for each in lineage))
            if len(hits) > hits_max:
                return SearchResult(hits=hits[:hits_max], more=True, unreadable=unreadable)
    if progress is not None:
        progress(OperationProgress(len(infos), len(infos), "sessions"))
    return SearchResult(hits=hits, more=False, unreadable=unreadable)


def _hits(lineage: Lineage, words: Sequence[str]) -> list[SearchHit]:
    journal = lineage[0]
    here = f"{journal.session_id}/{journal.agent_id}"
    candidates = [
        (each.source or here, each.seq, each.record) for each in before_fork(lineage) if each.source is not None
    ]
    candidates += [(here, seq, record) for seq, record in journal.records if isinstance(record, MessageAdded)]
    found: list[SearchHit] = []
    for where, seq, record in candidates:
        excerpt = excerpt_of(record.message, words)
        if excerpt is not None:
            session_id, _, agent_id = where.partition("/")
            found.append(
                SearchHit(
                    session_id=session_id,
                    agent_id=agent_id,
                    seq=seq,
                    role=record.message["role"],
                    at=record.at,
                    excerpt=excerpt,
                )
            )
    return found


EXCERPT_CHARACTERS = 120


def words_of(text: str) -> list[str]:
    """The words of the query. Errors: `Invalid` when there are none."""
    words = text.casefold().split()
    if not words:
        raise Invalid("a search needs at least one word", got=text)
    return words


def excerpt_of(message: Message, words: Sequence[str]) -> str | None:
    """A part of the message's text, around the first word; None unless it contains all words, as parts of words or
    whole, in any order and case.
    """
    text = " ".join(" ".join(texts_of(message)).split())
    folded = text.casefold()
    places = [folded.find(word) for word in words]
    return None if min(places) < 0 else _excerpt(text, min(places))


def _excerpt(text: str, index: int) -> str:
    """About a line around a place, which folding case may have moved by a few characters."""
    start = max(0, min(index - EXCERPT_CHARACTERS // 3, len(text) - EXCERPT_CHARACTERS))
    end = min(len(text), start + EXCERPT_CHARACTERS)
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
