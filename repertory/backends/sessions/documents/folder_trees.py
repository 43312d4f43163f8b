"""The trees of documents in a folder, beside the journals of their sessions.

    session_<id>/repertory/tree/agent_<id>.json         what stands in the tree of an agent (`TreeMark`), with the times
    session_<id>/repertory/tree/multi_agent_<id>.json   and sizes of its files; never synced

Whether another program has written to a tree is one look: at its folder of messages, its agent's document, and the next
message. A tree that another one has written to is left as it is until the journal has taken that in (`intake.py`).

Every method blocks; those that write run in worker threads.
"""

from __future__ import annotations

import logging
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from repertory.backends.folders import FolderObjects, Put, open_file, refuse_link
from repertory.backends.ports import Batch, Create, NoObject, Overwrite
from repertory.backends.sessions.documents.reading import (
    SESSIONS,
    AgentNames,
    SessionNames,
    id_of_folder,
    message_number,
)
from repertory.backends.sessions.documents.trees import DocumentTree, OpenTrees, check_name, digest_in_mark
from repertory.backends.sessions.table import parts_by_agent
from repertory.core.journal.codec import at_of
from repertory.core.journal.fold import Fold
from repertory.core.journal.restore import Entropy, restore
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import parsed
from repertory.core.message_tree.documents import read_agent, session_document
from repertory.core.message_tree.intake import (
    ComparedTree,
    FoundDocument,
    TakenIn,
    TreeFound,
    found_document,
    pending_changes,
    take_in,
)
from repertory.core.message_tree.projection import (
    AgentTree,
    NewDocument,
    ReplacedMessage,
    TreeMark,
    numbers_in,
    pairs_of,
)
from repertory.core.message_tree.run_tree import RunTree
from repertory.core.orchestration.journals import orchestrator_in
from repertory.errors import (
    AlreadyExists,
    Invalid,
    NotFound,
    RepertoryError,
    StoreUnavailable,
)
from repertory.logs import WARNING, note

_log = logging.getLogger("repertory.sessions")
_TRIES = 100
_UNDONE_S = 2.0
"""A change of a tree that is so much later than the last record is another program's, also after a crash."""

ReadWindow: TypeAlias = "Callable[[], Sequence[Row]]"
"""Reads the rows that opening a journal needs."""


class Stamp(NamedTuple):
    """The identity, size and times of a file or folder."""

    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int


class _MarkFile(Struct, kw_only=True):
    """The content of a mark's file."""

    boot: str
    mark: TreeMark
    folder: Stamp | None = None
    """The folder of messages; None if it must be read anew."""
    agent: Stamp | None = None
    """The agent's or orchestrator's document; None without one, or if it must be read anew."""
    newest_ns: int = 0
    """No document of a message was changed later than this."""


def stamp_of(path: Path | str) -> Stamp | None:
    """The stamp of what is there, links not followed; None if nothing is."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _stamp(found)


def _stamp(found: os.stat_result) -> Stamp:
    size_bytes = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return Stamp(found.st_ino, size_bytes, found.st_mtime_ns, found.st_ctime_ns)


@cache
def boot() -> str:
    """The id of the machine's run since it was started; empty where the system does not tell."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return ""


class FolderTree(DocumentTree):
    """The documents of one agent or orchestrator, as they stand and as its journal wants them."""

    def __init__(self, trees: FolderTrees, names: AgentNames, of: tuple[str, str]) -> None:
        super().__init__(names, of, trees.wall)
        session, *_, name, _ = names.folder.split("/")
        self._files = trees.files
        self._folder = trees.root / names.folder
        self._agent = str(trees.root / names.agent)
        self._mark_at = trees.root / session / "repertory" / "tree" / f"{name}.json"
        self._stamps = _MarkFile(boot="", mark=TreeMark())
        self.erases = False
        """True if what is written next takes the place of erased contents, which must not come back with a crash."""

    @property
    def mark(self) -> TreeMark:
        return self._stamps.mark

    def is_unchanged(self) -> bool:
        """True if nobody else has written to the tree since the last look. A few system calls."""
        return stamp_of(self._agent) == self._stamps.agent

    @abstractmethod
    def take_in(self, rows: Sequence[Row], now: float, entropy: Entropy) -> ComparedTree:
        """Compare the tree with a whole journal, which nobody may change meanwhile. Writes nothing. Errors:
        `CorruptJournal`, and those of files.
        """

    @abstractmethod
    def begin(self, rows: Sequence[Row]) -> None:
        """Go on from a journal that has taken in what others wrote, and write what is due. `rows`: those that opening
        it needs. Errors: those of files; then it is tried again with the next write.
        """

    @abstractmethod
    def follow(self, rows: Sequence[Row], window: ReadWindow) -> None:
        """Plan the documents of rows that were committed."""

    @abstractmethod
    def write(self, window: ReadWindow) -> None:
        """Write everything that is due. Errors: those of files; then the rest is still due."""

    def look(self, rows: Sequence[Row]) -> bool:
        """True if other programs have written since the mark was made, or are not known not to have. `rows`: those that
        opening the journal needs, which nobody may append to meanwhile.
        """
        self._stamps = _MarkFile(boot="", mark=TreeMark())
        self.refuse_links()
        with suppress(OSError, ValueError):
            content = file_content(self._mark_at)
            self._stamps = msgspec.json.decode(content.split(b"\n", 1)[0], type=_MarkFile)
        mark = self._stamps.mark
        # Another run of the machine: a crash may have undone documents and the mark alike, so neither is believed.
        if self._stamps.boot != boot() or not mark.seq or not self.is_unchanged():
            return True
        # A mark behind the journal: documents of the last rows were never written, or it is not known that they were.
        return self._edited(rows) or not rows or mark.seq < rows[-1].seq

    def refuse_links(self) -> None:
        """Raise `Invalid` if a link stands in the place of a folder: what it leads to is somebody else's."""
        aside, marks = self._folder / "repertory" / "unreadable", self._mark_at.parent
        # Each folder on the way down to one that we write in, up to that of the session.
        for lowest, depth in ((marks, 3), (aside, 4), (self._folder / "messages", 1)):
            for folder in (lowest, *lowest.parents[: depth - 1]):
                refuse_link(folder)

    def _edited(self, rows: Sequence[Row]) -> bool:
        del rows
        return False

    def _write_mark(self) -> None:
        self._stamps.boot, self.erases = boot(), False
        try:
            file = open_file(self._mark_at, os.O_WRONLY | os.O_CREAT)
        except FileNotFoundError:
            self._mark_at.parent.mkdir(mode=0o700, exist_ok=True)
            file = open_file(self._mark_at, os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(file, msgspec.json.encode(self._stamps) + b"\n", 0)  # What a longer one has left is not read.
        finally:
            os.close(file)

    def _read_document(self) -> bytes | None:
        """The agent's or orchestrator's document; None without one, or for what is no file. Notes what its state is."""
        found, body = stamp_of(self._agent), None
        self._unreadable = False
        if found is not None:
            try:
                body = self._files.content(self._names.agent)
            except NotFound:
                found = None
            except (NoObject, Invalid):
                self._unreadable = True
        self._stamps.agent = found
        return body

    def _is_ours(self, body: bytes, rows: Sequence[Row]) -> bool:
        """True if the last owner, or one before it, has written this document.

        A crash of the machine may have left an earlier one: it is older than the last record.
        """
        if digest_in_mark(body) == self._stamps.mark.agent:
            return True
        stamps = self._stamps
        if stamps.boot == boot() or stamps.agent is None or not rows:
            return False
        return stamps.agent.modified_ns <= (_last_at(rows) + _UNDONE_S) * 1e9

    def _put_document(self, body: bytes) -> bool:
        """Write the agent's or orchestrator's document, unless another program has written it since the last look."""
        # Between this look and the write another program may still write: a file has no conditional replacement. The
        # next look notices, since the stamp is that of our own file.
        if stamp_of(self._agent) != self._stamps.agent:
            return False
        condition = Create() if self._stamps.agent is None else Overwrite()
        # Synced only where contents were erased; everything else is written again from the log after a crash.
        self._put(Put(self._names.agent, body, condition, lasting=self.erases))
        self._stamps.mark.agent, self._stamps.agent = digest_in_mark(body), stamp_of(self._agent)
        return True

    def _set_aside(self) -> None:
        """Move the agent's or orchestrator's document away, if it cannot be read."""
        if self._unreadable and stamp_of(self._agent) == self._stamps.agent:
            self._move_aside(Path(self._agent))
            self._stamps.agent, self._stamps.mark.agent = None, ""
        self._unreadable = False

    def _move_aside(self, path: Path) -> None:
        """Move a document away that cannot be read, and is written anew."""
        folder = self._folder / "repertory" / "unreadable"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.rename(folder / path.name)
        note(_log, WARNING, "a document that cannot be read was put aside", file=self._names.folder + path.name)

    def _put(self, put: Put) -> None:
        self._files.carry_out([put], [])


class AgentFolder(FolderTree):
    """The documents of an agent."""

    def __init__(self, trees: FolderTrees, names: AgentNames, of: tuple[str, str]) -> None:
        super().__init__(trees, names, of)
        self._messages = str(self._folder / "messages")
        self._state = AgentTree(agent_id=of[1], mark=self.mark, fold=Fold())
        self._is_begun = True
        """False if the tree is up to date, and nothing of the journal is known yet."""
        self._pending: list[NewDocument | ReplacedMessage] = []
        self._taken: TakenIn | None = None
        self._stale = False
        """True if the agent's document is one of ours, and maybe an earlier one."""

    @property
    def is_behind(self) -> bool:
        return self._is_begun and (bool(self._pending) or self._state.is_behind)

    def is_unchanged(self) -> bool:
        # The folder's time changes with each name that is made or removed in it, so this is one call for any number of
        # files.
        unchanged = super().is_unchanged() and stamp_of(self._messages) == self._stamps.folder
        # On a file system with coarse times, a message that was added within the same tick leaves the folder's time as
        # it is.
        return unchanged and stamp_of(self._path(self.mark.next_number)) is None

    def _path(self, number: int) -> str:
        return f"{self._messages}/message_{number}.json"

    def _edited(self, rows: Sequence[Row]) -> bool:
        """True if the document of a message that is shown was changed in place."""
        known = [row for row in rows if row.seq <= self.mark.seq]
        numbers = (*numbers_in(known, self.mark.count, self.mark).values(), *self.mark.unreadable)
        stamps = [stamp_of(self._path(number)) for number in numbers]
        # The time of the last change of state (ctime): it cannot be set back, as a program may do with mtime.
        return any(found is None or found.changed_ns > self._stamps.newest_ns for found in stamps)

    def take_in(self, rows: Sequence[Row], now: float, entropy: Entropy) -> ComparedTree:
        found = self._found(rows)
        since = self.mark.seq
        self._taken = taken = take_in(self.of, rows, self.mark, found, now, entropy)
        self._stamps.mark = taken.mark
        self._pending = pending_changes(rows, since, taken, now)
        return taken.beside(rows)

    def _found(self, rows: Sequence[Row]) -> TreeFound:
        """The tree as it stands, read as far as it changed."""
        self._files.remove_abandoned(self._names.folder.split("/", 1)[0])
        stamps, undone = self._stamps, self._stamps.boot != boot()
        folder, newest_ns = stamp_of(self._messages), stamps.newest_ns
        known = {number for _, number in pairs_of(stamps.mark.runs)}
        read: dict[int, FoundDocument] = {}
        present: set[int] = set()
        for number, found in self._numbers():
            present.add(number)
            newest_ns = max(newest_ns, found.changed_ns)
            # Only what is new or changed is read: opening a tree of ten thousand messages costs a listing.
            if undone or number not in known or found.changed_ns > stamps.newest_ns:
                document = self._read(number)
                if document is None:
                    present.discard(number)
                else:
                    read[number] = document
        body = self._read_document()
        self._state.agent = agent = None if body is None else read_agent(body)
        check_name(self._names, self.of[1], body, "agent_id")
        if body is not None and agent is None:
            self._unreadable = True
        ours = body is None or agent is None or self._is_ours(body, rows)
        self._stale = ours and body is not None and digest_in_mark(body) != stamps.mark.agent
        stamps.mark.agent = "" if body is None or agent is None else digest_in_mark(body)
        # The folder's stamp is from before the listing: what comes during it is noticed by the next look.
        stamps.folder, stamps.newest_ns = folder, max(newest_ns, 0 if folder is None else folder.changed_ns)
        return TreeFound(present=present, read=read, agent=None if ours else agent, undone=undone)

    def _numbers(self) -> Iterator[tuple[int, Stamp]]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._messages) as entries:
            for entry in entries:
                number = message_number(entry.name)
                if number is not None:
                    with suppress(FileNotFoundError):
                        yield number, _stamp(entry.stat(follow_symlinks=False))

    def _read(self, number: int) -> FoundDocument | None:
        """A message's document; None if it is gone. A link or the like cannot be read."""
        try:
            return found_document(self._files.content(self._key(number)))
        except NotFound:
            return None
        except (NoObject, Invalid) as error:
            return FoundDocument(fault=str(error))

    def _key(self, number: int) -> str:
        return self._names.key(number)

    def begin(self, rows: Sequence[Row]) -> None:
        taken, state = self._taken, self._state
        self._is_begun = taken is not None
        if taken is not None:
            state.begin(rows, restore(rows).fold, state.agent, self.mark)
            state.state_due = state.state_due or self._stale
            for number in taken.mark.unreadable:
                note(_log, WARNING, "a message cannot be read, and is left out", file=self._key(number))
            self.write(lambda: rows)

    def follow(self, rows: Sequence[Row], window: ReadWindow) -> None:
        if self._is_begun:
            self._pending += self._state.plan(rows, self._wall())
            return
        body = self._read_document()
        agent = None if body is None else read_agent(body)
        self._pending = self._state.go_on(window(), rows, agent, self.mark, self._wall())
        self._is_begun = True

    def write(self, window: ReadWindow) -> None:
        state, stamps = self._state, self._stamps
        if state.fold is None:
            state.refold(window())
        self._set_aside()
        self._write_again()
        # False if another program has added something: the new stamp is then not noted, and the next look reads the
        # folder.
        alone = stamp_of(self._messages) == stamps.folder
        # The agent's document before its messages: the SDK takes an agent without one for a new one, and writes its
        # messages from number 0 on.
        if not stamps.mark.agent and state.last_seq and self._put_document(state.document(self._wall())):
            state.mark_stored()
            if not self._pending:  # Other programs need the folder.
                Path(self._messages).mkdir(mode=0o700, exist_ok=True)
        while self._pending:
            change = self._pending[0]
            if isinstance(change, ReplacedMessage):
                self._replace(change)
                self._pending.pop(0)
            else:
                alone = self._create() and alone
        if state.due and self._put_document(state.document(self._wall())):
            state.mark_stored()
        stamps.mark.seq, stamps.mark.count = state.last_seq, state.count
        stamps.folder = stamp_of(self._messages) if alone else None
        stamps.newest_ns = max(stamps.newest_ns, 0 if stamps.folder is None else stamps.folder.changed_ns)
        self._write_mark()

    def _write_again(self) -> None:
        """Write documents that a crash has lost, and those of ours that cannot be read any more, of which a copy is
        kept.
        """
        again = {} if self._taken is None else self._taken.compared.again
        for number, document in again.items():
            with suppress(FileNotFoundError):
                self._move_aside(Path(self._path(number)))
            self._put(Put(self._key(number), document.body(number), Overwrite(), lasting=False))
        if again:
            self._stamps.folder = stamp_of(self._messages)
        self._taken = None

    def _create(self) -> bool:
        """Write the next documents of messages. False if another program has taken one of the numbers: ours get the
        next ones.
        """
        state, alone = self._state, True
        for _ in range(_TRIES):
            new = [*takewhile(lambda each: isinstance(each, NewDocument), self._pending)]
            number = state.mark.next_number
            steps: list[Put] = []
            for at, change in enumerate(new, number):
                assert isinstance(change, NewDocument)
                steps.append(Put(self._key(at), change.body(at), Create(), lasting=False))
            done: list[Put] = []
            try:
                self._files.carry_out(steps, done)
            except (AlreadyExists, Invalid):
                # Invalid for another reason than a link in the place of the document.
                if stamp_of(self._path(number + len(done))) is None:
                    raise
                alone = False
            finally:
                # Also after an error: what was written must not be written again under another number.
                for at, change in enumerate(new[: len(done)], number):
                    assert isinstance(change, NewDocument)
                    state.written(change, at)
                del self._pending[: len(done)]
            if len(done) == len(new):
                return alone
            state.skip_number()
        raise StoreUnavailable("the numbers of messages are taken again and again", folder=self._messages)

    def _replace(self, change: ReplacedMessage) -> None:
        """Write a message that stands for an erased one. Synced: no byte of the erased one may come back."""
        number = self.mark.number_of(change.index)
        if number is None:
            return
        with suppress(NotFound):
            body = self._files.content(self._key(number))
            try:
                made = change.body(body)
            except ValueError:
                # Its document cannot be read, so nothing of it can be kept: it is written as a new one.
                made = NewDocument(0, change.index, change.message, change.at, redacted=True).body(number)
            self._put(Put(self._key(number), made, Overwrite()))


class RunFolder(FolderTree):
    """The document of an orchestrator."""

    def __init__(self, trees: FolderTrees, names: AgentNames, of: tuple[str, str]) -> None:
        super().__init__(trees, names, of)
        self._run = RunTree(orchestrator_id=orchestrator_in(of[1]) or "")

    @property
    def is_behind(self) -> bool:
        return self._run.due

    def take_in(self, rows: Sequence[Row], now: float, entropy: Entropy) -> ComparedTree:
        body = self._read_document()
        check_name(self._names, self._run.orchestrator_id, body, "id")
        theirs = None if body is None or self._is_ours(body, rows) else body
        made = self._run.take_in(self.of, self._names.agent, rows, theirs, now, entropy)
        self._unreadable = self._unreadable or made is None
        self.mark.agent = "" if body is None or self._unreadable else digest_in_mark(body)
        return ComparedTree(rows=[*rows, *(made or ())], made=made or (), erase=())

    def begin(self, rows: Sequence[Row]) -> None:
        self._run.begin(rows)
        self._run.due = bool(rows) and digest_in_mark(self._run.document()) != self.mark.agent
        self.write(lambda: rows)

    def follow(self, rows: Sequence[Row], window: ReadWindow) -> None:
        del window
        self._run.follow(rows)

    def write(self, window: ReadWindow) -> None:
        if self._run.fold is None:
            self._run.fold = restore(window()).fold
        self._set_aside()
        if self._run.due and self._put_document(self._run.document()):
            self._run.due = False
        self.mark.seq = self._run.last_seq
        # Last: a mark that a kill has left behind knows too little, and what it does not know is compared again.
        self._write_mark()


class FolderTrees(OpenTrees[FolderTree]):
    """The trees of all sessions in a folder."""

    def __init__(self, root: Path, files: FolderObjects, wall: Callable[[], float]) -> None:
        """`files` are those below the root. `wall` gives epoch seconds."""
        super().__init__()
        self.root = root
        self.files = files
        self.wall = wall

    def tree(self, session_id: str, journal: str) -> FolderTree:
        """A tree that is not looked at yet."""
        names = SessionNames(session_id).of_agent(journal)
        kind = AgentFolder if orchestrator_in(journal) is None else RunFolder
        return kind(self, names, (session_id, journal))

    def begin(self, session_id: str) -> None:
        """Write the session's document, if it is missing. It comes before all else: other programs take a folder
        without one for a session that they cannot open. Errors: `Invalid` when the folder is another session's; those
        of files.
        """
        self.check_name(session_id)
        names = SessionNames(session_id)
        if stamp_of(self.root / names.session) is None:
            with suppress(AlreadyExists):
                body = session_document(session_id, self.wall())
                self.files.carry_out([Put(names.session, body, Create(), lasting=False)], [])

    def check_name(self, session_id: str) -> None:
        """Raise `Invalid` when the folder belongs to another session: shortened names may collide, and the document has
        the id.
        """
        folder = SessionNames(session_id).folder.removesuffix("/")
        found = self.id_in(folder) if id_of_folder(folder, SESSIONS) is None else session_id
        if found not in (None, session_id):
            msg = "another session has the folder that this one would have; choose another session id"
            raise Invalid(msg, session=session_id, folder=folder, belongs_to=found)

    def id_in(self, folder: str) -> str | None:
        """The id in a session's document, whose folder's name may be shortened."""
        with suppress(OSError, ValueError):
            found = parsed(file_content(self.root / folder / "session.json")).get("session_id")
            return found if isinstance(found, str) else None
        return None

    def committed(self, batch: Batch, window: Callable[[str], Sequence[Row]]) -> None:
        """Write the documents of a batch that was just committed. A tree that cannot be written stays behind."""
        session_id = batch.lease.session_id
        for journal, part in parts_by_agent(batch).items():
            tree = self.of(session_id).get(journal)
            # A journal that begins now needs no comparison, if there is no tree yet.
            if tree is None and part.rows and part.rows[0].seq == 1:
                tree = self._fresh(session_id, journal)
            if tree is not None and part.rows:
                tree.erases = tree.erases or bool(part.erase)
                self._attempt(tree, partial(self._follow, tree, part.rows, partial(window, journal)))

    def _fresh(self, session_id: str, journal: str) -> FolderTree | None:
        """The tree of a journal that has just begun; None if there are documents already, which are to be taken in."""
        tree = self.tree(session_id, journal)
        try:
            tree.refuse_links()
        except Invalid:
            return None  # Whoever opens the agent is told.
        if not tree.is_unchanged():
            return None
        self._open.setdefault(session_id, {})[journal] = tree
        return tree

    def open(self, session_id: str, journal: str, tree: FolderTree, rows: Sequence[Row]) -> None:
        """Follow a journal from now on. `rows`: those that opening it needs, with all that others wrote."""
        self._open.setdefault(session_id, {})[journal] = tree
        self._attempt(tree, lambda: tree.begin(rows))

    @staticmethod
    def _follow(tree: FolderTree, rows: Sequence[Row], window: ReadWindow) -> None:
        tree.follow(rows, window)
        tree.write(window)

    def write(self, tree: FolderTree, window: ReadWindow) -> None:
        """Write what is due. What cannot be written now is noted, and tried again later."""
        self._attempt(tree, lambda: tree.write(window))

    def _attempt(self, tree: FolderTree, work: Callable[[], None]) -> None:
        try:
            with self.files.mapped(tree.name):
                work()
            self.note_success(tree)
        except RepertoryError as error:
            if self.note_failure(tree, error):
                note(_log, WARNING, "documents are not up to date", error, file=tree.name)


def file_content(path: Path) -> bytes:
    """A regular file's content. Errors: `OSError`; `ValueError` for a link or the like."""
    try:
        file = open_file(path, os.O_RDONLY)
    except Invalid as error:
        raise ValueError(str(error)) from error
    with os.fdopen(file, "rb") as opened:
        return opened.read()


def _last_at(rows: Sequence[Row]) -> float:
    """The time of the last record that has one."""
    return next((at for row in reversed(rows) if not row.erased and (at := at_of(row.body)) is not None), 0.0)
