"""`Sessions`: all operations on stored sessions without an agent."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from math import inf
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Self, TypeVar, Unpack, cast

from repertory.actors.call import ChangeTimers
from repertory.actors.memory.store import MemoryStoreSettings
from repertory.app.memory.memory_manager import managed_stores
from repertory.app.sessions.reading import opened
from repertory.app.sessions.sessions import check_location
from repertory.app.tracebacks import short_errors
from repertory.backends.line_files import new_file
from repertory.backends.ports import IdPage, pending_work_of
from repertory.core.deliveries import check_names
from repertory.core.history.prune import PrunePolicy
from repertory.core.history.redact_text import Words
from repertory.core.history.timeline import Mark
from repertory.core.ids import check_id
from repertory.core.timers import DueTimes, TimerOptions
from repertory.errors import Invalid
from repertory.operations import branching, deliveries, doctor, ends, erasing, marking, paging, posting, showing
from repertory.operations import cluster as shared
from repertory.operations.answering import post_answer
from repertory.operations.questions import QuestionFilter, open_questions, questions_of_session
from repertory.operations.reading import RecordStamp
from repertory.runtime.host_task import HostTask

if TYPE_CHECKING:
    from repertory.actors.memory.store import MemoryStoreClient
    from repertory.app.agent.session import CallOptions
    from repertory.app.memory.memory_manager import ManagedStore, MemoryManager
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.line_files import WriteChunk
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.history.compare import Difference
    from repertory.core.messages import Json, Prompt
    from repertory.core.orchestration.run import Run
    from repertory.core.pending_work import PendingWork
    from repertory.core.pictures.svg import Picture
    from repertory.operations.branching import CopyReport, ForkReport, RewindReport
    from repertory.operations.cluster import ClusterReport, QueuedCallInfo
    from repertory.operations.deliveries import StoredDelivery
    from repertory.operations.doctor import DoctorReport
    from repertory.operations.ends import StoredEnd
    from repertory.operations.erasing import (
        DeletionProof,
        ExpiryReport,
        KeyErasure,
        KeyRotation,
        RedactionReport,
        TextRedactionReport,
    )
    from repertory.operations.marking import PruneReport, ReplayReport, StoredDeadLetter, StoredMark
    from repertory.operations.paging import ShownAt, StoredPage
    from repertory.operations.progress import OnProgress
    from repertory.operations.questions import OpenQuestion, QuestionPage
    from repertory.operations.reading import PositionLike
    from repertory.operations.showing import SearchResult, StoredHistory, StoredSession

T = TypeVar("T")


@short_errors
class Sessions:
    """The sessions of a place: `Sessions(SQLiteSessions("a.db"))`, and so for every other place.

    Reading (`list`, `show`, `history`, `marks`, `search`, `export`, `diff`) takes no lease. Every call that writes owns
    the session meanwhile: `SessionBusy` says that a live owner has it, in this process or another; `takeover=True`
    fences it, and its next write fails with `LeaseLost`. A cancelled call leaves the session as before or as after.

    Each call opens the place and closes it again. Where that takes time, as with a bucket, many calls are quicker
    within `async with Sessions(place) as sessions`, which keeps it open.

    `agent` names an agent of the session; None means its only one, or `default`. A position is a sequence number of an
    agent's journal (as `show` and `history` give them), or the label of a mark or a snapshot.

    `progress`, of the operations that may take long: a function that is told how far it has come, by an
    `OperationProgress` and in the event loop, so it must be quick.

    Errors of every call: `NotFound`; `CorruptJournal` for damaged data (`doctor` says more); `Unavailable` and the
    other errors of the place; `Invalid` (a ValueError) for bad ids and positions. Everything is async, on asyncio and
    trio; plain code calls `anyio.run(Sessions(place).list)`.

    Args:
        wall: Returns the time in epoch seconds. Tests replace it.
    """

    def __init__(self, place: SessionLocation, *, wall: Callable[[], float] = time.time) -> None:
        """`wall` returns epoch seconds. Errors: `Invalid` for what is no place."""
        check_location(place, "place")
        self._location = place
        self._wall = wall
        self._task: HostTask[SessionStore] | None = None
        self._store: SessionStore | None = None

    async def __aenter__(self) -> Self:
        task = HostTask(opened(self._location), name="repertory sessions")
        self._store, self._task = await task.enter(), task
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        task, self._task, self._store = self._task, None, None
        if task is not None:
            await task.leave(error)

    @property
    def place(self) -> SessionLocation:
        """The place of the sessions."""
        return self._location

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is nothing yet."""
        return await self._on(lambda store: store.sessions())

    async def list_page(self, prefix: str = "", *, after: str = "", limit: int = 1000) -> Sequence[SessionInfo]:
        """The sessions whose ids begin with `prefix`, in the order of their ids: at most `limit`, behind the id
        `after`. It costs as much as these sessions, however many others there are.

        Args:
            prefix: The beginning of the ids, such as `acme~` for a tenant of a service; empty for all.
            after: The last id of the page before; empty for the first page.
            limit: The most sessions. A page with fewer of them is the last one.
        """
        return await self._on(lambda store: store.sessions(page=IdPage(prefix, after, limit)))

    async def pending_work(self) -> Sequence[PendingWork]:
        """The pending work of sessions, the first due first, with work parked because each of its last owners has died
        with it. Empty where the store is not told of such work (`docs/guides/sessions/pending-work.md`).
        """
        return await self._on(pending_work_of)

    async def interrupts(
        self,
        *,
        agent: str | None = None,
        tenant: str | None = None,
        older_than: float | timedelta = 0,
        newer_than: float | timedelta = inf,
        newest_first: bool = False,
        after: str = "",
        limit: int = 100,
    ) -> QuestionPage:
        """The open questions to a person in all sessions, page by page, those of one session together. Answer one by
        `post` or `HostedSession.invoke` with `[question.interrupt.respond(...)]`, in its session and to its `agent`.

        SQLite and PostgreSQL find the sessions that ask by an index; elsewhere every session is looked at. A page reads
        the lines of at most 1,000 of them, in a range of ids, and the ends of at most 400 of those, 8 at a time, as
        much as opening them reads. So the sessions are in the order of their last change within each 1,000 of their
        ids, and a page may have fewer than `limit`, or none, and still a `next`. `newer_than` and `tenant` spare
        reading the others.

        Args:
            agent: Only questions to the agent, graph or swarm of this id; None: to all.
            tenant: Only those of a tenant of a service; empty for the sessions of none, None for all.
            older_than: Only those that were asked so many seconds ago, or longer.
            newer_than: Only those that were asked so many seconds ago, or shorter.
            newest_first: True for the last changed sessions first; else those that wait longest.
            after: The `next` of the page before; empty for the first page.
            limit: The most questions, 1,000 at most; a session with several may bring a few more.

        Raises:
            Invalid: For an `after` that no page gave, and for a wrong limit, age or name. Correct the argument.
        """
        for what, name in (("agent", agent), ("tenant", tenant)):
            if name is not None and not isinstance(cast("object", name), str):
                raise Invalid(f"{what} is a name, or None for all", got=name)
        now, least, most = self._wall(), _seconds(older_than), _seconds(newer_than)
        wanted = QuestionFilter(agent, tenant, until=now - least, since=now - most, newest_first=newest_first)
        return await self._on(lambda store: open_questions(store, wanted, after, limit))

    async def interrupts_in(self, session_id: str) -> Sequence[OpenQuestion]:
        """The open questions to a person in one session, those that wait longest first.

        Args:
            session_id: The id of the session.
        """
        return await self._on(lambda store: questions_of_session(store, session_id))

    async def answer(
        self, session_id: str, interrupt_id: str, response: object, *, answers_as: Collection[str] | None = None
    ) -> str:
        """Answer an open question to a person, as `post` does: a runtime on this place that has the agent goes on with
        the turn. Returns the token of the posted call. The first answer counts, and the same one again changes nothing.

        Args:
            session_id: The id of the session.
            interrupt_id: The id of the question, from `interrupts`.
            response: The answer, as JSON.
            answers_as: The names and roles of the person, held against the question's `may_answer`; None where the
                program has checked that itself.

        Raises:
            InterruptNotFound: When nobody asks that, or no longer. Read the list again.
            InterruptExpired: When the question had an end. Call with a new prompt.
            Conflict: When another answer is posted already. Read the list again.
            MayNotAnswer: For a question to other people. Have one of them answer.
            Invalid: For sessions outside SQLite and PostgreSQL, and for an answer that the turn would refuse. Correct
                the argument.
        """
        now = self._wall()
        return await self._on(lambda store: post_answer(store, session_id, interrupt_id, response, answers_as, now))

    async def cluster(self) -> ClusterReport:
        """The runtimes with `peers=` that share these sessions, what sessions owe, and the posted calls that are not
        done. It makes no tables and no files.

        Raises:
            Invalid: For a place that cannot be shared. Correct the argument.
        """
        return await self._on(lambda store: shared.cluster(store))

    async def retry(self, session_id: str, *, token: str | None = None) -> Sequence[QueuedCallInfo]:
        """Have the parked posted calls of a session made once more, or only the one of a token: as if they were posted
        now, in the same order. Returns them as they were.

        Args:
            session_id: The id of the session.
            token: The idempotency token of the turn.

        Raises:
            NotFound: When none is parked. Check the name.
            Invalid: For a place that keeps no posted calls. Correct the argument.
        """
        return await self._on(lambda store: shared.retry(store, session_id, token))

    async def post(
        self, agent: str, session_id: str, prompt: Prompt, *, token: str | None = None, **options: Unpack[CallOptions]
    ) -> str:
        """Have a turn of a session run, or a run of a graph or swarm, by any runtime on this place that has the agent;
        returns its token when the call is stored. See `HostedSession.post`.

        Args:
            agent: The agent's name in the runtime, or the id of a graph or swarm.
            session_id: The id of the session; a new one begins.
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            token: The idempotency token of the turn: the same one is not kept twice.
            options: The options of `CallOptions`.

        Raises:
            Invalid: For sessions outside SQLite and PostgreSQL, and for what JSON cannot hold. Correct the argument.
        """
        if token is not None:
            options["idempotency_token"] = token
        call = posting.call_to_post(agent, session_id, prompt, options)
        await self._on(lambda store: posting.post(store, call))
        return call.token

    async def schedule(
        self,
        agent: str,
        session_id: str,
        prompt: str,
        *,
        id: str | None = None,
        deliver_to: str | Sequence[str] | None = None,
        **times: Unpack[TimerOptions],
    ) -> str:
        """Have a session run a turn with this prompt at a time, or a graph or swarm a run, as `Runtime.schedule` does;
        returns the timer's id. The first runtime on this place that has the agent sets the timer.

        Args:
            agent: The agent's name in the runtime, or the id of a graph or swarm.
            session_id: The id of the session; a new one begins.
            prompt: The prompt of the turn.
            id: Replaces the session's timer of that id; a new one without.
            deliver_to: The destinations of that runtime that are told of the timer's turns, by name.
            times: `at`, an aware datetime or epoch seconds, or `in_s`, seconds from now. `every`: again and again, at a
                period of seconds, or at the times of a cron expression such as `0 8 * * 1-5` in the time zone `tz`
                (UTC without one), from now on or from `at`. `missed`: one turn for all times that were missed
                (`one`), up to 100 turns (`all`), or none (`none`).

        Raises:
            Invalid: For sessions outside SQLite and PostgreSQL, and for wrong values. Correct the argument.
            TooLarge: For a prompt that is too long. Give a smaller value.
        """
        timer_id = token_hex(8) if id is None else id
        change = ChangeTimers(
            timer_id=timer_id, prompt=prompt, due=DueTimes(**times), deliver_to=check_names(deliver_to)
        )
        call = posting.timer_to_post(agent, session_id, change, self._wall())
        await self._on(lambda store: posting.post(store, call))
        return timer_id

    async def show(self, session_id: str, *, agent: str | None = None) -> StoredSession:
        """The messages and the current state, of all agents or one.

        Args:
            session_id: The id of the session.
            agent: The id of the agent in the session; None for all of them.
        """
        return await self._on(lambda store: showing.show(store, session_id, agent))

    async def page(
        self,
        session_id: str,
        *,
        agent: str | None = None,
        at: PositionLike = None,
        before: int | None = None,
        records_max: int = 200,
    ) -> StoredPage:
        """Up to `records_max` consecutive records of one agent: those around a position, those before a number, or the
        last ones. In SQLite, PostgreSQL and journals it costs about as much however long the session is.

        Without `agent`: `default`, or the first in the order of their names.

        Args:
            session_id: The id of the session.
            agent: The id of the agent; None for `default`, or the first in the order of their names.
            at: A position: a sequence number or a label. The page lies around it.
            before: Only records before this sequence number; None for the last ones.
            records_max: The most records, at most 1,000.

        Raises:
            Invalid: For both `at` and `before`, and for more than 1,000 records. Correct the argument.
        """
        return await self._on(lambda store: paging.page_of(store, session_id, agent, at, before, records_max))

    async def ends(self, session_id: str) -> Mapping[str, StoredEnd]:
        """The end of each agent, by its id: the open questions to a person, a turn without an answer, and what failed
        last. It reads as much as opening them.

        Args:
            session_id: The id of the session.
        """
        return await self._on(lambda store: ends.ends_of(store, session_id))

    async def run(self, session_id: str, agent: str) -> Run | None:
        """The last run of a graph or swarm; None for an agent, and before the first run.

        Args:
            session_id: The id of the session.
            agent: The name of its journal: `multi_agent.NAME`.
        """
        return await self._on(lambda store: ends.last_run(store, session_id, agent))

    async def shown_at(self, session_id: str, *, agent: str | None = None, at: PositionLike = None) -> ShownAt:
        """The messages that the model was shown at a position, and the agent's state there; None: the end. It reads as
        much as opening the session there. `agent` as for `page`.

        Args:
            session_id: The id of the session.
            agent: The id of the agent; None for `default`, or the first in the order of their names.
            at: A position: a sequence number, a label, or None for the end.

        Raises:
            Invalid: When part of it was erased since. Correct the argument.
        """
        return await self._on(lambda store: paging.window_at(store, session_id, agent, at))

    async def history(self, session_id: str, *, agent: str | None = None) -> StoredHistory:
        """The positions of a session that are worth returning to, in order, with their events: turns, marks, rewinds,
        changes of the shown messages. Positions that a rewind left behind are marked.

        Args:
            session_id: The id of the session.
            agent: The id of the agent in the session; None for its only one, or `default`.
        """
        return await self._on(lambda store: showing.history(store, session_id, agent))

    async def graph(self, session_id: str, *, agent: str | None = None) -> Picture:
        """The branches of a session as a picture: `.svg`, `.text`; a notebook shows it. What a rewind left behind is
        beside today's conversation, labels stand at their positions, and long stretches fold: ten thousand messages are
        a small picture. It reads the whole journal, and those that it was forked from.

        Args:
            session_id: The id of the session.
            agent: The id of the agent in the session; None for its only one, or `default`.
        """
        return await self._on(lambda store: showing.graph(store, session_id, agent))

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
        """Name a position, with metadata; None means the end. It costs one small record.

        A label may be used again: then it names the new position, and the old mark stays in `marks`. It reads as much
        as opening the session reads.

        Args:
            session_id: The id of the session.
            label: The name of the position.
            metadata: Values of your own, as JSON.
            at: The sequence number of the position; None for the end.
            agent: The id of the agent in the session; None for its only one, or `default`.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            Invalid: For a bad label, or a number. Correct the argument.
        """
        wanted = Mark(label=label, metadata=metadata or {}, position=at)
        return (await self.mark_all(session_id, [wanted], agent=agent, takeover=takeover))[0]

    async def mark_all(
        self, session_id: str, marks: Sequence[Mark], *, agent: str | None = None, takeover: bool = False
    ) -> Sequence[StoredMark]:
        """`mark` for many labels in one commit: all, or none.

        Args:
            session_id: The id of the session.
            agent: The id of the agent in the session; None for its only one, or `default`.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
            marks: The marks.
        """
        made = self._made()
        return await self._on(lambda store: marking.mark(store, session_id, marks, agent, made, takeover=takeover))

    async def marks(self, session_id: str, *, agent: str | None = None) -> Sequence[StoredMark]:
        """The marks of a session, and its numbered snapshots, in the order of their creation.

        Args:
            session_id: The id of the session.
            agent: The id of the agent in the session; None for its only one, or `default`.
        """
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
        """Remove marks, and contents that rewinds left behind: they are destroyed in every file and object.

        A mark goes unless it is among the newest `keep`, or younger than `older_than` (seconds); where both are given,
        it goes when both say so. With `beyond_rewinds`, messages and work that rewinds left behind go as well, as far
        as they are older than `older_than`, unless a remaining mark leads to them. The current conversation is never
        touched. A session with a live owner is `SessionBusy`.

        Args:
            session_id: The id of the session.
            keep: The number of newest marks that stay at least; None sets no such limit.
            older_than: Seconds or a `timedelta`: only older records go. None sets no such limit.
            beyond_rewinds: True also erases the contents that rewinds left behind.
            agent: The id of the agent in the session; None for its only one, or `default`.
            dry_run: True changes nothing, and reports what would change.

        Raises:
            Invalid: When nothing is to go. Correct the argument.
        """
        seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
        made = self._made()
        before = None if seconds is None else made.at - seconds
        policy = PrunePolicy(keep=keep, before=before, beyond=beyond_rewinds)
        return await self._on(
            lambda store: marking.prune_session(store, session_id, policy, agent, made, dry_run=dry_run)
        )

    async def search(
        self, text: str, *, session_id: str | None = None, hits_max: int = 100, progress: OnProgress = None
    ) -> SearchResult:
        """The messages that contain every word of `text`, in any case and order, as part of a word or whole.

        Tool inputs and results are searched too, and messages that a rewind left behind. There is no index: every
        session is read whole, one after the other.

        Args:
            text: The text to find.
            session_id: The session; None for all.
            hits_max: The most hits.
            progress: Called with an `OperationProgress`, in the event loop.

        Raises:
            Invalid: For `hits_max` below 1. Correct the argument.
        """
        if hits_max < 1:
            raise Invalid("hits_max is at least 1", got=hits_max)
        return await self._on(lambda store: showing.search(store, text, session_id, hits_max, progress))

    async def export(
        self,
        session_id: str,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        progress: OnProgress = None,
    ) -> CopyReport:
        """Write a session into a file of lines, one per row, with the hash links that prove it.

        An encrypted session is written in plain text, with links of its own. The file (mode 0600) appears complete or
        not at all. Memory holds one agent's journal. Errors: those of the file.

        Args:
            session_id: The id of the session.
            path: The file to write.
            overwrite: True replaces what is there. False refuses.
            progress: Called with an `OperationProgress`, in the event loop.

        Raises:
            AlreadyExists: If the file is there. Choose another path, or pass `overwrite=True`.
        """
        async with new_file(Path(path), overwrite=overwrite) as write:
            return await self.write_export(session_id, write, progress=progress)
        raise AssertionError

    async def write_export(self, session_id: str, write: WriteChunk, *, progress: OnProgress = None) -> CopyReport:
        """`export` to a function that takes bytes: `await write(piece)`.

        Args:
            session_id: The id of the session.
            write: Called with each piece of the file, in order.
            progress: Called with an `OperationProgress`, in the event loop.
        """
        return await self._on(lambda store: branching.export(store, session_id, write, self._wall(), progress))

    async def import_(
        self,
        path: str | os.PathLike[str],
        *,
        session_id: str | None = None,
        takeover: bool = False,
        progress: OnProgress = None,
    ) -> CopyReport:
        """Add the session of an export file, under its own id or another one. Rows and links are those of the file.

        The whole file is verified before anything is written, and the session is added in one commit. An earlier import
        that was cut off is completed. Memory holds the session. Errors: those of the file.

        Args:
            path: The file that `export` wrote.
            session_id: The id of the new session; None for the one in the file.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
            progress: Called with an `OperationProgress`, in the event loop.

        Raises:
            AlreadyExists: For an id that is taken. Choose another id, or delete the old one first.
            CorruptJournal: If the file was cut off or edited; the error names the file and the line. Nothing was
                imported: export the session again.
        """
        found = await branching.read_export(Path(path), progress)
        new_id = session_id if session_id is not None else found.session_id
        journals = found.journals
        return await self._on(lambda store: branching.store_session(store, new_id, journals, takeover=takeover))

    async def copy(
        self,
        session_id: str,
        to: SessionLocation,
        *,
        new_id: str | None = None,
        takeover: bool = False,
        progress: OnProgress = None,
    ) -> CopyReport:
        """Add a session to another place, row by row, like `import_`. `takeover` is for the session there.

        Args:
            session_id: The id of the session.
            to: The other place.
            new_id: The id there; None for the same.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
            progress: Called with an `OperationProgress`, in the event loop.

        Raises:
            Invalid: If the other place is the same and so is the id. Give a new id.
        """
        name = new_id if new_id is not None else session_id
        if to.key == self._location.key and name == session_id:
            raise Invalid("a copy in the same place has an id of its own: say new_id", session=session_id)
        journals = await self._on(lambda source: branching.read_session(source, session_id, progress))
        target = Sessions(to, wall=self._wall)
        return await target._on(lambda store: branching.store_session(store, name, journals, takeover=takeover))

    async def fork(
        self, session_id: str, new_id: str, *, at: PositionLike = None, agent: str | None = None
    ) -> ForkReport:
        """A new session that continues from a position of another one; None means from its end.

        It shows the model the same messages, with the same state, and stores only those and its source. So it costs
        about the window, however long the source is. Earlier messages are read in the source as long as that exists; it
        may be deleted. With several agents, None takes all of them, a label those that have it, and a number needs
        `agent`.

        Args:
            session_id: The id of the session.
            new_id: The id of the new session.
            at: A position: a sequence number, a label, or None for the end.
            agent: The id of the agent in the session; None for all of them.

        Raises:
            AlreadyExists: For an id that is taken. Choose another id, or delete the old one first.
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
        """The differences between two conversations, each at a position: messages, state, shown messages, and the cost
        of the answers.

        Both may be the same session at two positions. Messages that a rewind left behind are not compared.

        Args:
            session_id: The id of the session.
            other_id: The session to compare with.
            at: A position: a sequence number, a label, or None for the end.
            other_at: The position in the other journal.
            agent: The id of the agent in the session; None for its only one, or `default`.
        """
        sides = (session_id, at), (other_id, other_at)
        return await self._on(lambda store: branching.diff(store, *sides, agent))

    async def rewind(
        self, session_id: str, to: int | str, *, agent: str | None = None, takeover: bool = False
    ) -> RewindReport:
        """Go back to a position: the model sees the messages of that position, with its state.

        Nothing is destroyed, and rewinding to the position before (`was`) undoes it.

        Args:
            session_id: The id of the session.
            to: The position to go back to.
            agent: The id of the agent in the session; None for its only one, or `default`.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            Invalid: When tools were running at that position, or when a message shown there has been redacted since.
                Correct the argument.
        """
        made = self._made()
        return await self._on(
            lambda store: branching.rewind_session(store, session_id, to, agent, made, takeover=takeover)
        )

    async def drop_summary(self, session_id: str, *, agent: str | None = None, takeover: bool = False) -> RewindReport:
        """Show the messages behind a summary again. A summarizing manager writes a new one when it is time.

        Nothing is destroyed, and rewinding to the position before (`was`) shows the summary again.

        Args:
            session_id: The id of the session.
            agent: The id of the agent in the session; None for its only one, or `default`.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            Invalid: When no summary is shown, or a message shown before it has been redacted since. Correct the
                argument.
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
        """Replace the text of a message for good: the original is gone from every file and object.

        Outdated copies of it are erased too, and so are its memories that are not written yet. `left` names copies that
        stay: `redact_text` replaces those as well. Tool uses and results keep their ids, with other contents. Exports
        and copies are not reached, nor the bytes of forks, which show it redacted nevertheless; of a message that a
        fork copied, `source` names the other session. Errors: those of the memory stores, with the message unchanged:
        call again.

        Args:
            session_id: The id of the session.
            seq: The sequence number of the record.
            replacement: The text that replaces it.
            agent: The id of the agent in the session; None for its only one, or `default`.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
            memory: A manager, or stores with a method `forget(*, session_id, agent_id, seq)`, that forget their entries
                of the message; `report.memories.left` names the stores that still have some.

        Raises:
            NotFound: When no message has the number. Check the number.
            Invalid: While its tools are still to run, and for an empty text. Correct the argument.
        """
        if not replacement.strip():
            raise Invalid("the replacement is empty, and models refuse empty texts", got=replacement)
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
        """Replace a text everywhere in a session, in one commit: the original is gone from every file and object.

        Messages, agent state, summaries, tool results, questions and answers, results of graph and swarm nodes,
        memories not written yet, and metadata of marks contain the replacement from then on, of all agents or of one.
        The text is matched exactly, case included, also inside longer texts, keys and numbers. Names (an id, a token, a
        tool, a label) stay, and `left` says where. The state of earlier runs, and the positions before the redaction,
        may be unknown afterwards. `memory` as in `redact`, for the messages with the text. A second call finds what was
        said since. Errors: those of the memory stores, with the session unchanged: call again.

        Args:
            session_id: The id of the session.
            text: The text to find.
            replacement: The text that replaces it.
            agent: The id of the agent in the session; None for all of them.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
            memory: A manager, or stores with a method `forget`, that forget their entries of the messages with the
                text; as for `redact`.

        Raises:
            Invalid: For a text of fewer than 4 characters, for a replacement that is empty or contains the text, and
                while the last message contains it and waits for its tools. Correct the argument.
        """
        words, made, stores = Words(text, replacement), self._made(), store_clients(memory)
        return await self._on(
            lambda store: erasing.redact_session_text(store, session_id, agent, words, made, stores, takeover=takeover)
        )

    async def delete(self, session_id: str, *, takeover: bool = False) -> DeletionProof:
        """Erase a session, with its quarantined files, and verify that it is gone.

        Also a damaged one. Of an encrypted session, the keys go first. Exports, copies and forks are not reached.

        Args:
            session_id: The id of the session.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            Failed: When a part of it still exists. Read its cause.
        """
        check_id(session_id, "session id")
        return await self._on(lambda store: erasing.delete(store, session_id, self._wall(), takeover=takeover))

    async def rotate_key(self, session_id: str, *, takeover: bool = False) -> KeyRotation:
        """Give an encrypted session another key: whatever is written from now on is sealed with it, at once and in
        every process. What was written before stays sealed with the keys before, which are kept with it.

        A session from before its place was encrypted gets its first key.

        Args:
            session_id: The id of the session.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            Invalid: For a place without encryption. Correct the argument.
            KeyErased: If the key was erased. Nothing can read it again.
            KeyMissing: If the key is not there. Give the key.
        """
        made = self._made()
        return await self._on(lambda store: erasing.rotate_key(store, session_id, made.at, takeover=takeover))

    async def erase_key(self, session_id: str, *, takeover: bool = False) -> KeyErasure:
        """Erase every key of an encrypted session: nobody can read it any more, here or in any copy of its place that
        was ever made. Its rows stay, and their chain still proves when what was there; `delete` removes them as well.

        Exports and forks are not reached: they have texts and keys of their own. Again changes nothing.

        Args:
            session_id: The id of the session.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.

        Raises:
            Invalid: For a place without encryption, and for a session that has rows in plain text from before. Correct
                the argument.
        """
        made = self._made()
        return await self._on(lambda store: erasing.erase_key(store, session_id, made.at, takeover=takeover))

    async def expire(
        self, ttl: float | timedelta, *, dry_run: bool = False, progress: OnProgress = None
    ) -> ExpiryReport:
        """Delete every session without an owner that was last changed longer ago than `ttl` (seconds).

        An owned, damaged or meanwhile changed session is skipped, and named with the reason. Times are those of the
        machines that wrote the sessions.

        Args:
            ttl: Seconds or a `timedelta` since the session was last changed.
            dry_run: True changes nothing, and reports what would change.
            progress: Called with an `OperationProgress`, in the event loop.

        Raises:
            Invalid: For a negative time. Correct the argument.
        """
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        if not seconds >= 0:
            raise Invalid("a time to live is not negative", ttl=ttl)
        now = self._wall()
        return await self._on(
            lambda store: erasing.expire(store, now - seconds, now, dry_run=dry_run, progress=progress)
        )

    async def dead_letters(self, session_id: str | None = None) -> Sequence[StoredDeadLetter]:
        """The dead letters of memory stores and of their extraction, of a session or of all.

        Args:
            session_id: The session; None for all.
        """
        return await self._on(lambda store: marking.dead_letters(store, session_id))

    async def replay(
        self, session_id: str, memory_store: str | None = None, *, agent: str | None = None, takeover: bool = False
    ) -> ReplayReport:
        """Have dead letters tried again, of one memory store or of all, when an agent with that store next opens the
        session. A memory that the store has already is written again under the same key.

        Args:
            session_id: The id of the session.
            memory_store: The name of the store; None for all.
            agent: The id of the agent in the session; None for its only one, or `default`.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
        """
        made = self._made()
        return await self._on(
            lambda store: marking.replay_dead_letters(store, session_id, memory_store, agent, made, takeover=takeover)
        )

    async def doctor(self, *, repair: bool = False, progress: OnProgress = None) -> DoctorReport:
        """Examine every session: whether its rows are undamaged, and whether opening it gives the state of its rows.

        With `repair`, everything stored of a damaged session is moved aside unchanged, to the place in the report. The
        longest sound beginning of each journal stays open, and a snapshot `repaired` marks its end; without a sound
        row, the session is gone from the listing. Owned sessions are not repaired.

        Args:
            repair: True repairs what can be repaired. False only reports.
            progress: Called with an `OperationProgress`, in the event loop.
        """
        return await self._on(
            lambda store: doctor.examine_location(store, self._made(), repair=repair, progress=progress)
        )

    async def deliveries(self, session_id: str | None = None, *, dead: bool = False) -> Sequence[StoredDelivery]:
        """The events that a session has still to deliver, or all sessions have, and those that were given up; see
        `Runtime.deliver`. Without an id it reads the end of every session.

        Args:
            session_id: The id of the session; None for all.
            dead: True for those alone that were given up.

        Raises:
            NotFound: For a session that is not there. Check the id.
        """
        return await self._on(lambda store: deliveries.deliveries(store, session_id, dead=dead))

    async def resend(
        self,
        session_id: str,
        ids: Collection[str] | None = None,
        *,
        agent: str | None = None,
        takeover: bool = False,
    ) -> Sequence[StoredDelivery]:
        """Have deliveries that were given up sent again, under the same ids and behind those that wait. The first
        runtime on this place that has the agent sends them. Returns them as they are tried now.

        Args:
            session_id: The id of the session.
            ids: The ids of the deliveries; None for all that were given up.
            agent: The agent; None for the only one.
            takeover: True takes the session from a live owner.

        Raises:
            NotFound: When none of them was given up. Check the ids.
            SessionBusy: When a live owner has the session. Call again later.
        """
        made = self._made()
        return await self._on(lambda store: deliveries.resend(store, session_id, ids, agent, made, takeover=takeover))

    async def _on(self, work: Callable[[SessionStore], Awaitable[T]]) -> T:
        """The result of `work`, on the open store, or on one that is opened for it."""
        if self._store is not None:
            return await work(self._store)
        async with opened(self._location) as store:
            return await work(store)
        raise AssertionError

    def _made(self) -> RecordStamp:
        return RecordStamp(at=self._wall(), entropy=os.urandom)


def _seconds(age: float | timedelta) -> float:
    """The age in seconds. Errors: `Invalid`."""
    seconds = age.total_seconds() if isinstance(age, timedelta) else age
    if isinstance(seconds, bool) or not isinstance(cast("object", seconds), int | float):
        raise Invalid("an age is a number of seconds or a timedelta", got=age)
    if not seconds >= 0:
        raise Invalid("an age is not negative", got=age)
    return seconds


def store_clients(memory: MemoryManager | Sequence[object]) -> Sequence[MemoryStoreClient]:
    """The clients of memory stores. Errors: `Invalid` for anything but a manager or stores."""
    if isinstance(memory, list | tuple):
        stores = cast("Sequence[object]", memory)
        return [each.client for each in managed_stores(stores, MemoryStoreSettings())] if stores else ()
    managed: Sequence[ManagedStore] | None = getattr(memory, "managed", None)
    if managed is None:
        raise Invalid("memory is a MemoryManager, or a list of memory stores", got=type(memory).__name__)
    return [each.client for each in managed]
