"""Going on from an earlier position: in a new session, or in the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.copying import store_session
from repertory.app.operations.opening import commit, owned
from repertory.app.operations.reading import aside, chosen_agent, journal_of, refuse_missing, sound_info_of
from repertory.core.ids import check_id
from repertory.core.journal.comparing import Difference, compare
from repertory.core.journal.forking import Fork
from repertory.core.journal.forking import fork as fork_journal
from repertory.core.journal.rewinding import rewind as rewind_journal
from repertory.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.rows import Row
    from repertory.core.journal.whole_journal import WholeJournal
    from repertory.core.messages import Json, Message

Position = int | str | None
"""A sequence number, the label of a snapshot, or None: the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkReport:
    """A session that was made from another one."""

    session_id: str
    source: str
    positions: Mapping[str, int]
    """Agent id to the position of the source that it goes on from."""
    messages: int
    """How many messages were copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindReport:
    """A session that went back."""

    session_id: str
    agent_id: str
    position: int
    """Where the conversation goes on from."""
    was: int
    """The last position before. Rewinding to it undoes this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What new records need: when, and random bytes."""

    at: float
    entropy: Callable[[int], bytes]


async def fork(
    store: SessionStore, session_id: str, new_id: str, at: Position, agent_id: str | None, made: Made
) -> ForkReport:
    """Make a session of what another one was at a position."""
    check_id(new_id, "session id")
    if await store.sessions(new_id):
        raise AlreadyExists("another session has this id; choose one that is free", session=new_id)
    journals = await _journals(store, session_id, at, agent_id)
    forks: dict[str, Fork] = {}
    positions: dict[str, int] = {}
    for journal in journals:
        positions[journal.agent_id] = position = journal.position(at)
        forks[journal.agent_id] = fork_journal(journal, position, at=made.at, entropy=made.entropy)
    rows: Mapping[str, Sequence[Row]] = {agent: fork.rows for agent, fork in forks.items()}
    await store_session(store, new_id, rows, takeover=False)
    count = sum(fork.messages for fork in forks.values())
    return ForkReport(session_id=new_id, source=session_id, positions=positions, messages=count)


async def rewind(
    store: SessionStore, session_id: str, to: int | str, agent_id: str | None, made: Made, *, takeover: bool
) -> RewindReport:
    """Go back to a position, on the record."""
    agent_id = await chosen_agent(store, session_id, agent_id)
    await refuse_missing(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        journal = await journal_of(store, session_id, agent_id)
        position = journal.position(to)
        await commit(store, lease, rewind_journal(journal, position, at=made.at, entropy=made.entropy))
    return RewindReport(session_id=session_id, agent_id=agent_id, position=position, was=journal.last_seq)


async def diff(
    store: SessionStore, first: tuple[str, Position], second: tuple[str, Position], agent_id: str | None
) -> Difference:
    """What differs between two sessions, each at a position."""
    ours, theirs = [await _standing(store, *side, agent_id) for side in (first, second)]
    return await aside(partial(compare, ours[0], theirs[0], ours[1], theirs[1]), len(ours[0]) + len(theirs[0]))


async def _standing(
    store: SessionStore, session_id: str, at: Position, agent_id: str | None
) -> tuple[Mapping[int, Message], Mapping[str, Json]]:
    """The conversation and the state at a position."""
    journal = await journal_of(store, session_id, await chosen_agent(store, session_id, agent_id))
    position = journal.position(at)
    said = {seq: record.message for seq, record in journal.conversation(position).items()}
    return said, journal.fold_at(position).state


async def _journals(store: SessionStore, session_id: str, at: Position, agent_id: str | None) -> Sequence[WholeJournal]:
    """The journals that a position means: one that is named, or the only one; of several those that have the label, or
    all of them as they are now.
    """
    if agent_id is not None:
        return [await journal_of(store, session_id, agent_id)]
    info = await sound_info_of(store, session_id)
    journals = [await journal_of(store, session_id, each) for each in sorted(info.agents)]
    if len(journals) == 1 or at is None:
        return journals
    if isinstance(at, int):
        raise NotFound("a number is a position of one agent: say which", session=session_id, agents=sorted(info.agents))
    return [each for each in journals if any(taken.label == at for _, taken in each.snapshots())] or journals[:1]
