"""What memory stores, or the extraction for them, would not take of stored sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.app.operations.opening import commit, owned
from repertory.app.operations.reading import agent_there, opening_of
from repertory.core.journal.appender import Appender
from repertory.core.journal.records import CursorMoved
from repertory.core.memory.progress import DeadLetter, Progress, kept_of, read_progress

if TYPE_CHECKING:
    from repertory.app.operations.branching import Made
    from repertory.backends.ports import SessionStore
    from repertory.core.journal.fold import Fold


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """Something that was given up."""

    session_id: str
    agent_id: str
    store: str
    """The memory store that should have it."""
    letter: DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What is to be tried again."""

    session_id: str
    agent_id: str
    letters: Mapping[str, int]
    """By memory store, how many."""


async def dead_letters(store: SessionStore, session_id: str | None) -> Sequence[StoredLetter]:
    """The letters of a session, or of all: those of the session that changed last come first."""
    found: list[StoredLetter] = []
    for info in await store.sessions(session_id):
        for agent_id in sorted(info.agents):
            fold = (await opening_of(store, info.session_id, agent_id)).fold
            found += [
                StoredLetter(session_id=info.session_id, agent_id=agent_id, store=name, letter=letter)
                for name, progress in _progress(fold).items()
                for letter in progress.letters
            ]
    return found


async def replay(
    store: SessionStore, session_id: str, memory_store: str | None, agent_id: str | None, made: Made, *, takeover: bool
) -> ReplayReport:
    """Have letters tried again by the next agent that opens the session with the memory store. On the record."""
    agent_id = await agent_there(store, session_id, agent_id)
    async with owned(store, session_id, takeover=takeover) as lease:
        now = await opening_of(store, session_id, agent_id)
        found = _progress(now.fold)
        chosen = [name for name, progress in found.items() if progress.letters and memory_store in (None, name)]
        letters = {name: len(found[name].letters) for name in chosen}
        if chosen:
            again = found | {name: found[name].replayed() for name in chosen}
            spelled = {name: kept_of(progress) for name, progress in again.items()}
            kept = {name: said for name, said in spelled.items() if said is not None}
            record = CursorMoved(at=made.at, positions=dict(now.fold.cursors), kept=kept)
            appender = Appender(agent_id, now.fold, now.link, made.entropy)
            await commit(store, lease, [appender.append(record), *appender.restate(made.at)])
    return ReplayReport(session_id=session_id, agent_id=agent_id, letters=letters)


def _progress(fold: Fold) -> dict[str, Progress]:
    return {name: read_progress(fold.cursors.get(name, 0), kept) for name, kept in fold.kept.items()}
