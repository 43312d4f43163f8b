"""What stands in a session, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.reading import aside, info_of, journal_of, sound_info_of
from repertory.core.journal.records import Branched, MessageAdded
from repertory.core.messages import Json, Message
from repertory.core.opening import Interrupt

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.journal.whole_journal import WholeJournal


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as it is stored."""

    seq: int
    """Its number in the agent's journal, by which it is redacted."""
    at: float
    """When it was said, in epoch seconds."""
    turn: int
    message: Message
    shown: bool
    """Whether the model is shown it, whole or shortened."""
    left_behind: bool
    """Whether the conversation has gone back to before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSnapshot:
    """A position that has a name."""

    label: str
    position: int
    """What the name stands for: everything up to and with this sequence number."""
    at: float
    metadata: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAgent:
    """One agent of a session."""

    agent_id: str
    last_seq: int
    """The last position of its journal."""
    messages: Sequence[StoredMessage]
    """Everything that was ever said, in order."""
    summary: Message | None
    """What the model is shown in the place of the oldest messages."""
    state: Mapping[str, Json]
    snapshots: Sequence[StoredSnapshot]
    waits_for: Sequence[Interrupt]
    """What a person is asked, when the last turn waits for that."""
    forked_from: str | None
    """`session/agent` that it is a fork of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """One session."""

    session_id: str
    agents: Mapping[str, StoredAgent]
    created_at: float
    """Epoch seconds."""
    updated_at: float
    owner: str | None
    """Who holds the lease now; None when nobody does."""


async def show(store: SessionStore, session_id: str, agent_id: str | None) -> StoredSession:
    """The session, with all of its agents or one."""
    info = await (sound_info_of(store, session_id) if agent_id is None else info_of(store, session_id))
    agents = sorted(info.agents) if agent_id is None else [agent_id]
    journals = [await journal_of(store, session_id, each) for each in agents]
    return _session(info, {each.agent_id: await aside(partial(_agent, each), len(each.rows)) for each in journals})


def _session(info: SessionInfo, agents: Mapping[str, StoredAgent]) -> StoredSession:
    return StoredSession(
        session_id=info.session_id,
        agents=agents,
        created_at=info.created_at,
        updated_at=info.updated_at,
        owner=info.owner,
    )


def _agent(journal: WholeJournal) -> StoredAgent:
    fold = journal.fold_at(journal.last_seq)
    shown = {seq for seq, _ in fold.shown}
    conversation = journal.conversation(journal.last_seq)
    first = journal.records[0][1] if journal.records else None
    return StoredAgent(
        agent_id=journal.agent_id,
        last_seq=journal.last_seq,
        messages=[
            StoredMessage(
                seq=seq,
                at=record.at,
                turn=record.turn,
                message=record.message,
                shown=seq in shown,
                left_behind=seq not in conversation,
            )
            for seq, record in journal.records
            if isinstance(record, MessageAdded)
        ],
        summary=fold.shown.view.summary,
        state=dict(fold.state),
        snapshots=[
            StoredSnapshot(label=taken.label, position=seq - 1, at=taken.at, metadata=taken.metadata)
            for seq, taken in journal.snapshots()
        ],
        waits_for=fold.interrupts,
        forked_from=first.source if isinstance(first, Branched) else None,
    )
