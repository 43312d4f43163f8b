"""Going on from an earlier position: in a new session, or in the same one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.lineages import ancestry_of
from repertory.app.operations.opening import commit, owned
from repertory.app.operations.positions import Position, moment_and_end_of, moment_to_fork, position_of
from repertory.app.operations.reading import (
    agent_there,
    aside,
    chosen_agent,
    journal_of,
    last_of,
    sound_info_of,
)
from repertory.core.ids import check_id
from repertory.core.journal.comparing import Compared, Difference, Placed, compare
from repertory.core.journal.forking import Fork
from repertory.core.journal.forking import fork as fork_journal
from repertory.core.journal.lineage import Lineage, told
from repertory.core.journal.rewinding import go_back
from repertory.core.journal.unsummarizing import without_summary
from repertory.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore


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
    positions = await _positions(store, session_id, at, agent_id)
    forks: dict[str, Fork] = {}
    for each, position in positions.items():
        then = await moment_to_fork(store, session_id, each, position)
        forks[each] = fork_journal(then, at=made.at, entropy=made.entropy)
    async with owned(store, new_id, takeover=False) as lease:  # Rows that do not begin the session are refused.
        await commit(store, lease, [row for fork in forks.values() for row in fork.rows])
    count = sum(fork.messages for fork in forks.values())
    return ForkReport(session_id=new_id, source=session_id, positions=positions, messages=count)


async def rewind(
    store: SessionStore, session_id: str, to: int | str, agent_id: str | None, made: Made, *, takeover: bool
) -> RewindReport:
    """Go back to a position, on the record. What is read is what opening reads, there and at the end."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        then, now = await moment_and_end_of(store, session_id, agent_id, to)
        was = now.fold.last_seq
        await commit(store, lease, go_back(then, now, at=made.at, entropy=made.entropy))
    return RewindReport(session_id=session_id, agent_id=agent_id, position=then.position, was=was)


async def drop_summary(
    store: SessionStore, session_id: str, agent_id: str | None, made: Made, *, takeover: bool
) -> RewindReport:
    """Show again what the summary stands for, on the record."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        journal = await journal_of(store, session_id, agent_id)
        size = len(journal.rows)
        rows = await aside(partial(without_summary, journal, at=made.at, entropy=made.entropy), size)
        await commit(store, lease, rows)
    return RewindReport(session_id=session_id, agent_id=agent_id, position=journal.last_seq, was=journal.last_seq)


async def diff(
    store: SessionStore, first: tuple[str, Position], second: tuple[str, Position], agent_id: str | None
) -> Difference:
    """What differs between two sessions, each at a position."""
    (ours, our_position), (theirs, their_position) = [
        await _lineage(store, *side, agent_id) for side in (first, second)
    ]

    def compared() -> Difference:
        return compare(_compared(ours, our_position), _compared(theirs, their_position))

    return await aside(compared, sum(len(journal.rows) for journal in (*ours, *theirs)))


async def _lineage(store: SessionStore, session_id: str, at: Position, agent_id: str | None) -> tuple[Lineage, int]:
    journal = await journal_of(store, session_id, await chosen_agent(store, session_id, agent_id))
    return (await ancestry_of(store, journal)).lineage, journal.position(at)


def _compared(lineage: Lineage, position: int) -> Compared:
    """What stood at a position."""
    fold = lineage[0].fold_at(position)
    return Compared(
        said=[
            Placed(seq=each.seq, message=each.record.message, source=each.source) for each in told(lineage, position)
        ],
        shown=[Placed(seq=seq, message=message) for seq, message in fold.shown],
        state=fold.state,
    )


async def _positions(store: SessionStore, session_id: str, at: Position, agent_id: str | None) -> dict[str, int]:
    """Agent id to position, for the journals that a position means: one that is named, or the only one; of several
    those that have the label, or all of them as they are now.
    """
    if agent_id is not None:
        ends = {agent_id: await last_of(store, session_id, agent_id)}
    else:
        ends = dict(sorted((await sound_info_of(store, session_id)).agents.items()))
    if len(ends) > 1 and isinstance(at, int):
        raise NotFound("a number is a position of one agent: say which", session=session_id, agents=list(ends))
    found: dict[str, int] = {}
    missing: NotFound | None = None
    for each, last in ends.items():
        try:
            found[each] = await position_of(store, session_id, each, at, last)
        except NotFound as error:  # Others may have the label.
            missing = error
    if missing is not None and not found:
        raise missing
    return found
