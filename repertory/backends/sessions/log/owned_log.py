"""A session in the hands of a store: its log, and its owner's file.

Every method blocks and runs in a worker thread, except where small frames are written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from msgspec import Struct, field

from repertory.backends.folders import make_folders, open_file, sync_folder
from repertory.backends.ports import Batch, Lease
from repertory.backends.sessions.journal.format import SessionKeys
from repertory.backends.sessions.journal.pending_work import SessionDebts
from repertory.backends.sessions.log.log_file import COPY, FIRST_LOG, LogEnd, LogFile, log_name, log_names
from repertory.backends.sessions.log.owner_record import COPIED, OWNER_FILES, RECORD, OwnerFile
from repertory.backends.sessions.log.reading import log_of, remove_others
from repertory.backends.sessions.table import parts_by_agent, refuse_gaps
from repertory.core.journal.codec import at_of
from repertory.core.journal.log_frames import Frame, erased_frame
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal

_TRIES = 5


class OwnedLog(Struct, eq=False):
    """A session in the hands of this store."""

    lease: Lease
    keys: SessionKeys
    folder: Path
    owner: OwnerFile
    debts: SessionDebts
    log: LogFile | None = None
    """None until it is needed, or there is one."""
    is_new: bool = False
    """True if there is no log, and nobody else can make one."""
    used: Lock = field(default_factory=Lock)
    """Held by whoever uses the files, which must not be closed meanwhile."""

    def close_log(self) -> None:
        """Forget what is known of the log."""
        log, self.log, self.is_new = self.log, None, False
        if log is not None:
            log.close()

    def let_go(self) -> None:
        """Free the session, if it is still this owner's, and close its files in any case."""
        self.owner.give_up()
        self.close_log()

    def opened(self) -> LogFile | None:
        """The log of a session, its end read; None if there is none yet."""
        if self.log is None and not self.is_new:
            name = log_of(self.owner.record, self.folder)
            if name:
                log = LogFile(self.folder / name, self.lease.session_id)
                try:
                    log.open(self.owner.record.tail)
                except BaseException:
                    log.close()
                    raise
                self.log = log
                # The record was lost in a crash, and the folder has told the name.
                if self.owner.record.log != name:
                    self.owner.name_log(name)
        return self.log

    def load(self, agent_id: str) -> list[Row] | None:
        """The rows that opening the agent needs; None if the session is somebody else's by now."""
        try:
            with self.used:
                log = self.opened()
                if log is None:
                    return []
                with log:
                    rows = log.load(agent_id)
        except (FileNotFoundError, CorruptJournal) as error:
            if not self.owner.is_mine():
                return None
            if isinstance(error, FileNotFoundError):
                raise self.lost() from error
            raise
        # Asked after reading as well: the log may have been replaced under us.
        return rows if self.owner.is_mine() else None

    def begin(self) -> LogFile:
        """Make the file of the log, whose name `sync` brings to the disk."""
        path = self.folder / FIRST_LOG
        # O_EXCL: a log that is there belongs to rows which somebody stored, whatever our record says.
        os.close(open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        self.log, self.is_new = LogFile(path, self.lease.session_id), False
        return self.log

    def sync(self) -> LogFile:
        """Bring what was written to the log to the disk, and the name of a first one."""
        assert self.log is not None
        self.log.sync()
        # The name of a new file is in its folder, which `fsync` of the file does not cover.
        if not self.owner.record.log:
            sync_folder(self.folder)
            self.owner.name_log(FIRST_LOG)
        return self.log

    def rewrite(self, batch: Batch, frame: Frame) -> None:
        """Write the log anew without some contents and agents, and with these rows."""
        log = self.opened()
        erase = {agent_id: part.erase for agent_id, part in parts_by_agent(batch).items()}
        name = self.owner.record.log or FIRST_LOG
        temporary = self.folder / f".{name}"
        if log is None or batch.forget:
            os.close(open_file(temporary, COPY))
        else:
            log.rewrite(erase, temporary)
        made = LogFile(temporary, self.lease.session_id)
        try:
            made.open(None)
            if log is not None and batch.forget:
                # In other places, so the file shrinks. Until the record knows these, the first frame is in both files.
                made.take_over(log, batch.forget)
                self.owner.note(0)
            if batch.rows:
                # What this same batch erases is written erased.
                made.append(erased_frame(frame, erase))
            # The rename is the moment at which contents are gone, and at which nothing else is lost.
            made.rename(self.folder / name)
            sync_folder(self.folder)
        except BaseException:
            made.close()
            raise
        self.close_log()
        self.log = made
        self.owner.name_log(name)
        if batch.forget:
            self.owner.note(made.end.last)
        remove_others(self.owner, self.folder)  # In which what is erased now may stand as well.

    def set_aside(self, root: Path, keep: Sequence[Row], now: float) -> str:
        """Copy everything that is stored to a quarantine folder, whose name below the root is returned, and begin anew
        with these rows, if there are any.
        """
        aside = root / self.keys.aside
        make_folders(aside)
        number = 1 + max((int(name) for name in os.listdir(aside) if name.isdecimal()), default=0)
        target = aside / f"{number:04}"
        make_folders(target)
        log = log_of(self.owner.record, self.folder) or FIRST_LOG
        for name in os.listdir(self.folder):
            path = self.folder / name
            # These stay in their place until the new ones replace them, so they are copied; all others move.
            if name == RECORD or (name == log and path.is_file() and not path.is_symlink()):
                with LogFile(path, "") as file:
                    file.copy(target / name)
            elif name not in OWNER_FILES:
                path.rename(target / name)
        sync_folder(target)
        if keep:
            batch = Batch(lease=self.lease, rows=keep)
            for part in parts_by_agent(batch).values():
                refusal = refuse_gaps(self.lease.session_id, part.rows, 0)
                if refusal is not None:
                    raise refusal
            temporary = self.folder / f".{log}"
            os.close(open_file(temporary, COPY))
            with LogFile(temporary, self.lease.session_id) as made:
                made.append(frame_of(batch, LogEnd(), now))
                self.owner.forget_log()  # With the last frame of the old log, whose place is behind the new one's end.
                made.rename(self.folder / log)
                self.owner.name_log(log)
                self.owner.note(made.end.last)
            sync_folder(self.folder)
        return f"{self.keys.aside}/{target.name}"

    def lost(self) -> CorruptJournal:
        text, path = "the log of the session is lost", self.folder / self.owner.record.log
        return CorruptJournal(text, session=self.lease.session_id, file=str(path))

    def remove_empty(self) -> None:
        """Free a session, and remove its folder if it was never written to."""
        if self.owner.is_mine() and not log_names(self.folder):
            self.owner.remove()
            with suppress(OSError):
                self.folder.rmdir()
        self.owner.give_up()

    def remove(self) -> None:
        """Remove a session, its owner's record last. Errors: `OSError`.

        A process that is killed meanwhile leaves the session as it was, or none.
        """
        if self.owner.is_mine():
            remove_others(self.owner, self.folder)
            last = self.owner.record.log
            self.owner.forget_log()
            for name in os.listdir(self.folder):
                if name not in OWNER_FILES and (name == last or not (self.folder / name).is_dir()):
                    (self.folder / name).unlink()
        # The record last: as long as it is there and names no log, the session counts as empty.
        self.owner.remove()
        with suppress(OSError):  # Somebody else begins a session of that name just now.
            self.folder.rmdir()
        sync_folder(self.folder.parent)


def frame_of(batch: Batch, end: LogEnd, now: float) -> Frame:
    """The rows of a batch as a frame. `now`: epoch seconds, if no row has a time."""
    # The rows' own times and not the clock's: a copy of a session keeps the times of its source.
    at = (at_of(batch.rows[-1].body) if batch.rows else None) or end.at or now
    began_at = end.began_at or (at_of(batch.rows[0].body) if batch.rows else None) or at
    return Frame(batch.lease.generation, at, began_at, 0, (), tuple(batch.rows))


def settle_log(owner: OwnerFile, folder: Path) -> None:
    """Copy the log of a fenced owner, who may still write to it, and name the copy."""
    record = owner.record
    if not record.log.startswith(COPIED):
        return
    old, name = log_of(record, folder), log_name(record.generation)
    temporary = folder / f".{name}"
    try:
        if old:
            _copy(folder / old, temporary)
        else:  # A frame of the former owner may still come, under the name of a first log.
            os.close(open_file(temporary, COPY))
    except (CorruptJournal, FileNotFoundError):  # Nobody can write to what is no file: it is named when it is read.
        owner.name_log(old)
        return
    # Before the record names it: killed in between, the record still says that the old one must be copied.
    temporary.rename(folder / name)
    sync_folder(folder)
    owner.name_log(name)
    # The one record that is synced: after a power cut an old one would lead back to the log of the fenced owner.
    owner.sync()
    remove_others(owner, folder)


def _copy(path: Path, to: Path) -> None:
    with LogFile(path, "") as log:
        _ = log.file  # Something that is no file is not copied.
        for _ in range(_TRIES):
            with suppress(CorruptJournal):  # The former owner is just writing.
                log.rewrite({}, to)
                return
        log.copy(to)
