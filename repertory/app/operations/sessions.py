"""`Sessions`: everything that is done to stored sessions without talking in them."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, cast

from repertory.actors.memory.store import MemoryStoreSettings
from repertory.app.host.edge import short_errors
from repertory.app.memory.memory_manager import managed_stores
from repertory.app.operations import branching, doctor, erasing, marking, showing
from repertory.app.operations.reading import RecordStamp, opened
from repertory.backends.line_files import new_file
from repertory.core.ids import check_id
from repertory.core.journal.history.prune import PrunePolicy
from repertory.core.journal.history.redact_text import Words
from repertory.core.journal.history.timeline import Mark
from repertory.errors import Invalid
from repertory.runtime.host_task import HostTask

if TYPE_CHECKING:
    from repertory.actors.memory.store import MemoryStoreClient
    from repertory.app.memory.memory_manager import ManagedStore, MemoryManager
    from repertory.app.operations.branching import CopyReport, ForkReport, RewindReport
    from repertory.app.operations.doctor import DoctorReport
    from repertory.app.operations.erasing import DeletionProof, ExpiryReport, RedactionReport, TextRedactionReport
    from repertory.app.operations.marking import PruneReport, ReplayReport, StoredDeadLetter, StoredMark
    from repertory.app.operations.reading import PositionLike
    from repertory.app.operations.showing import SearchResult, StoredHistory, StoredSession
    from repertory.app.sessions.sessions import SessionPlace
    from repertory.backends.line_files import WriteChunk
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.journal.history.compare import Difference
    from repertory.core.messages import Json

T = TypeVar("T")


@short_errors
class Sessions:
    """The sessions of a place: `Sessions(SQLiteSessions("a.db"))`, and so for every other place.

    Reading (`list`, `show`, `history`, `marks`, `search`, `export`, `diff`) owns nothing and disturbs nobody. Whatever
    writes owns the session meanwhile: `SessionBusy` says that a live owner has it, in this process or another;
    `takeover=True` fences it, and its next write fails with `LeaseLost`. A cancelled call leaves the session as before
    or as after.

    Each call opens the place and closes it again. Where that takes time, as with a bucket, many calls are quicker
    within `async with Sessions(place) as sessions`, which keeps it open.

    `agent` names an agent of the session; None means its only one, or `default`. A position is a sequence number of an
    agent's journal (as `show` and `history` give them), or the label of a mark or a snapshot.

    Errors of every call: `NotFound`; `CorruptJournal` for what is damaged (`doctor` says more); `Unavailable` and the
    other errors of the place; `Invalid` (a ValueError) for ids and positions that are none. Everything is async, on
    asyncio and trio; plain code calls `anyio.run(Sessions(place).list)`.
    """

    def __init__(self, place: SessionPlace, *, wall: Callable[[], float] = time.time) -> None:
        """`wall` gives epoch seconds."""
        self._place = place
        self._wall = wall
        self._task: HostTask[SessionStore] | None = None
        self._store: SessionStore | None = None

    async def __aenter__(self) -> Self:
        task = HostTask(opened(self._place), name="repertory sessions")
        self._store, self._task = await task.enter(), task
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        task, self._task, self._store = self._task, None, None
        if task is not None:
            await task.leave(error)

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is nothing yet."""
        return await self._on(lambda store: store.sessions())

    async def show(self, session_id: str, *, agent: str | None = None) -> StoredSession:
        """Everything that was said, and what stands, of all agents or one."""
        return await self._on(lambda store: showing.show(store, session_id, agent))

    async def history(self, session_id: str, *, agent: str | None = None) -> StoredHistory:
        """The positions of a session that one may want to go back to, in order, with what happened there: turns, marks,
        rewinds, changes of what is shown. Those that lie beyond a rewind say so.
        """
        return await self._on(lambda store: showing.history(store, session_id, agent))

    async def mark(
        self,
        session_id: str,
        label: str,
        metadata: Mapping[str, Json] | None = None,
        *,
        at: int | None = None,
        agent: str | None = None,
        takeover: bool = False,
    ) -> StoredMark:
        """Give a position a name, and put metadata beside it; None means the end. It costs one small record.

        A label may be given again: then it names the new position, and the old mark stays in `marks`. What is read is
        what opening the session reads. Errors: `Invalid` for a label that is none, or a number.
        """
        wanted = Mark(label=label, metadata=metadata or {}, position=at)
        return (await self.mark_all(session_id, [wanted], agent=agent, takeover=takeover))[0]

    async def mark_all(
        self, session_id: str, marks: Sequence[Mark], *, agent: str | None = None, takeover: bool = False
    ) -> Sequence[StoredMark]:
        """Many of them in one commit: all, or none."""
        made = self._made()
        return await self._on(lambda store: marking.mark(store, session_id, marks, agent, made, takeover=takeover))

    async def marks(self, session_id: str, *, agent: str | None = None) -> Sequence[StoredMark]:
        """The marks of a session, and its numbered snapshots, in the order in which they were made."""
        return await self._on(lambda store: marking.marks(store, session_id, agent))

    async def prune(
        self,
        session_id: str,
        *,
        keep: int | None = None,
        older_than: float | timedelta | None = None,
        beyond_rewinds: bool = False,
        agent: str | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Let go of marks, and of what lies beyond rewinds: their contents are destroyed in every file and object.

        A mark goes unless it is among the newest `keep`, or younger than `older_than` (seconds); where both are given,
        it goes when both say so. With `beyond_rewinds`, what was said and done on ways that were left goes as well,
        as far as it is older than `older_than`, unless a mark that stays leads to it. The conversation as it stands is
        never touched. A session with a live owner is `SessionBusy`. Errors: `Invalid` when nothing is to go.
        """
        seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
        made = self._made()
        before = None if seconds is None else made.at - seconds
        policy = PrunePolicy(keep=keep, before=before, beyond=beyond_rewinds)
        return await self._on(
            lambda store: marking.prune_session(store, session_id, policy, agent, made, dry_run=dry_run)
        )

    async def search(self, text: str, *, session_id: str | None = None, hits_max: int = 100) -> SearchResult:
        """The messages that have every word of `text`, in any case and order, as part of a word or whole.

        What was asked of tools and what they answered is searched as well, and what was said on ways that were left.
        There is no index: each session is read whole, one after the other, so this costs what everything costs.
        """
        if hits_max < 1:
            raise Invalid("hits_max is at least 1", got=hits_max)
        return await self._on(lambda store: showing.search(store, text, session_id, hits_max))

    async def export(self, session_id: str, path: str | os.PathLike[str], *, overwrite: bool = False) -> CopyReport:
        """Write a session into a file of lines, one per row, with everything that proves it.

        The file (mode 0600) is whole or not there. Memory holds one agent's journal. Errors: `AlreadyExists` unless
        `overwrite`; those of the file.
        """
        async with new_file(Path(path), overwrite=overwrite) as write:
            return await self.write_export(session_id, write)
        raise AssertionError

    async def write_export(self, session_id: str, write: WriteChunk) -> CopyReport:
        """The same to whatever takes bytes: `await write(piece)`."""
        return await self._on(lambda store: branching.export(store, session_id, write, self._wall()))

    async def import_(
        self, path: str | os.PathLike[str], *, session_id: str | None = None, takeover: bool = False
    ) -> CopyReport:
        """Add the session that a file holds, under its own id or another one. Rows and links are those of the file.

        The whole file is proved before anything is written, and the session is added in one commit. What is there of
        it already, from an import that was cut off, is completed. Memory holds the session.
        Errors: `AlreadyExists` for an id that is taken; `CorruptJournal` naming file and line when the file was cut
        off or edited; those of the file.
        """
        found = await branching.read_export(Path(path))
        new_id = session_id if session_id is not None else found.session_id
        journals = found.journals
        return await self._on(lambda store: branching.store_session(store, new_id, journals, takeover=takeover))

    async def copy(
        self, session_id: str, to: SessionPlace, *, new_id: str | None = None, takeover: bool = False
    ) -> CopyReport:
        """Add a session to another place, row by row, as `import_` does. `takeover` is for the session there."""
        name = new_id if new_id is not None else session_id
        if to.key == self._place.key and name == session_id:
            raise Invalid("a copy in the same place has an id of its own: say new_id", session=session_id)
        journals = await self._on(lambda source: branching.read_session(source, session_id))
        target = Sessions(to, wall=self._wall)
        return await target._on(lambda store: branching.store_session(store, name, journals, takeover=takeover))

    async def fork(
        self, session_id: str, new_id: str, *, at: PositionLike = None, agent: str | None = None
    ) -> ForkReport:
        """A new session that goes on from a position of another one; None means from its end.

        It shows the model the same, with the same state, and holds nothing but that: the messages that are shown, and
        where it comes from. So it costs about the window, however long the source is. What was said before is read in
        the source, as long as that is there; it may be deleted. With several agents, None takes all of them, a label
        those that have it, and a number needs `agent`. Errors: `AlreadyExists` for an id that is taken.
        """
        return await self._on(lambda store: branching.fork_session(store, session_id, new_id, at, agent, self._made()))

    async def diff(
        self,
        session_id: str,
        other_id: str,
        *,
        at: PositionLike = None,
        other_at: PositionLike = None,
        agent: str | None = None,
    ) -> Difference:
        """What differs between two conversations, as they stand or stood: messages, state, what the model is shown, and
        what the answers took.

        Both may be the same session at two positions. What was said on ways that were left is not compared.
        """
        sides = (session_id, at), (other_id, other_at)
        return await self._on(lambda store: branching.diff(store, *sides, agent))

    async def rewind(
        self, session_id: str, to: int | str, *, agent: str | None = None, takeover: bool = False
    ) -> RewindReport:
        """Go back to a position: the model is shown what it was shown then, with the state of then.

        Nothing is destroyed, and rewinding to the position before (`was`) undoes it. Errors: `Invalid` when tools were
        under way at that position, or when what was shown then has been redacted since.
        """
        made = self._made()
        return await self._on(
            lambda store: branching.rewind_session(store, session_id, to, agent, made, takeover=takeover)
        )

    async def drop_summary(self, session_id: str, *, agent: str | None = None, takeover: bool = False) -> RewindReport:
        """Show the model again what a summary stands for. A manager that summarises writes a new one when it is time.

        Nothing is destroyed, and rewinding to the position before (`was`) shows the summary again. Errors: `Invalid`
        when no summary is shown, or what was shown before it has been redacted since.
        """
        made = self._made()
        return await self._on(lambda store: branching.drop_summary(store, session_id, agent, made, takeover=takeover))

    async def redact(
        self,
        session_id: str,
        seq: int,
        replacement: str,
        *,
        agent: str | None = None,
        takeover: bool = False,
        memory: MemoryManager | Sequence[object] = (),
    ) -> RedactionReport:
        """Replace what a message says by a text, for good: the original is gone from every file and object.

        So is what repeats it and is not in force, and what is on its way to memory stores. `left` names what says the
        same and stays: `redact_text` takes that back as well. Tool uses and results keep their ids, with other
        contents. `memory`: a manager, or stores with a method `forget(*, session_id, agent_id, seq)`, that forget what
        they were given of the message; `report.memories.left` names the stores that have it still. Exports and copies
        are not reached, nor the bytes of forks, which show it redacted nevertheless; of a message that a fork took with
        it, `source` names the other session. Errors: `NotFound` when no message has the number; `Invalid` while its
        tools are still to run, and for an empty text; those of the memory stores, with the message as it was: call
        again.
        """
        if not replacement.strip():
            raise Invalid("say what stands there instead: models take no empty text", got=replacement)
        target, made = (session_id, agent, seq), self._made()
        stores = store_clients(memory)
        return await self._on(
            lambda store: erasing.redact_message(store, target, replacement, made, stores, takeover=takeover)
        )

    async def redact_text(
        self,
        session_id: str,
        text: str,
        replacement: str = "[redacted]",
        *,
        agent: str | None = None,
        takeover: bool = False,
        memory: MemoryManager | Sequence[object] = (),
    ) -> TextRedactionReport:
        """Replace a text wherever a session says it, in one commit: the original is gone from every file and object.

        Messages, agent state, summaries, tool results, questions and answers, results of graph and swarm nodes,
        memories on their way to stores, and metadata of marks say the replacement from then on, of all agents or of
        one. A text is found word for word, in capitals or not as given, also inside longer texts, keys and numbers.
        What only names something (an id, a token, a tool, a label) stays, and `left` says where. What runs before the
        current one had come to, and the positions before the redaction, may be unknown afterwards. `memory` as in
        `redact`, for the messages that said it. Calling it again finds what was said since.
        Errors: `Invalid` for a text of fewer than 4 characters, for a replacement that is empty or says it again, and
        while the last message says it and waits for its tools; those of the memory stores, with the session as it was:
        call again.
        """
        words, made, stores = Words(text, replacement), self._made(), store_clients(memory)
        return await self._on(
            lambda store: erasing.redact_session_text(store, session_id, agent, words, made, stores, takeover=takeover)
        )

    async def delete(self, session_id: str, *, takeover: bool = False) -> DeletionProof:
        """Erase a session, what was set aside of it included, and look whether it is gone.

        A damaged one as well. Exports, copies and forks are not reached. Errors: `Failed` when something of it is
        still there.
        """
        check_id(session_id, "session id")
        return await self._on(lambda store: erasing.delete(store, session_id, self._wall(), takeover=takeover))

    async def expire(self, ttl: float | timedelta, *, dry_run: bool = False) -> ExpiryReport:
        """Delete every session that was last changed longer ago than `ttl` (seconds), and that nobody owns.

        What is owned, damaged or changed meanwhile is skipped, and named with the reason. Times are those of the
        machines that wrote the sessions.
        """
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if not seconds >= 0:
            raise Invalid("a time to live is not negative", ttl=ttl)
        now = self._wall()
        return await self._on(lambda store: erasing.expire(store, now - seconds, now, dry_run=dry_run))

    async def dead_letters(self, session_id: str | None = None) -> Sequence[StoredDeadLetter]:
        """What memory stores would not take, or what could not be extracted for them, of a session or of all."""
        return await self._on(lambda store: marking.dead_letters(store, session_id))

    async def replay(
        self, session_id: str, memory_store: str | None = None, *, agent: str | None = None, takeover: bool = False
    ) -> ReplayReport:
        """Have dead letters tried again, of one memory store or of all: when an agent with that store next opens the
        session. What a store has taken in before is given to it under the same key.
        """
        made = self._made()
        return await self._on(
            lambda store: marking.replay_dead_letters(store, session_id, memory_store, agent, made, takeover=takeover)
        )

    async def doctor(self, *, repair: bool = False) -> DoctorReport:
        """Examine every session: whether it is what was written, can be opened, and amounts to what its rows say.

        With `repair`, all that is stored of a damaged session is moved aside as it is, to where the report says. The
        longest beginning of each journal that is sound stays open, and a snapshot `repaired` says where it ends; when
        nothing is sound, the session is gone from the listing. What is owned is left alone.
        """
        return await self._on(lambda store: doctor.examine_place(store, self._made(), repair=repair))

    async def _on(self, work: Callable[[SessionStore], Awaitable[T]]) -> T:
        """What `work` gives, done on the store that is open, or on one that is open meanwhile."""
        if self._store is not None:
            return await work(self._store)
        async with opened(self._place) as store:
            return await work(store)
        raise AssertionError

    def _made(self) -> RecordStamp:
        return RecordStamp(at=self._wall(), entropy=os.urandom)


def store_clients(memory: MemoryManager | Sequence[object]) -> Sequence[MemoryStoreClient]:
    """The memory stores that were given. Errors: `Invalid` for what is neither a manager nor stores."""
    if isinstance(memory, list | tuple):
        stores = cast("Sequence[object]", memory)
        return [each.client for each in managed_stores(stores, MemoryStoreSettings())] if stores else ()
    managed: Sequence[ManagedStore] | None = getattr(memory, "managed", None)
    if managed is None:
        raise Invalid("memory is a MemoryManager, or a list of memory stores", got=type(memory).__name__)
    return [each.client for each in managed]
