"""The owner of a session in a folder: a file that the owner holds locked, and what stands in it.

The kernel drops the lock when the process ends, however it ends, so a session whose owner was killed is free at once. A
session that the same process takes again costs a lock, a look at the record and one small write, and no sync: the
record says whether anybody else has owned it since.

    "owner of a log 1"   the format
    checksum              8 hexadecimal digits: CRC-32 of all lines that follow
    generation            20 digits: that of the last owner, and higher with each owner
    edition               20 digits: higher with each change of the state
    state                 "held" or "free": "held" with an unlocked file is an owner that died
    tail                  20 digits: the offset of the last frame of the log that was acknowledged; 20 "-": none was
    log                   the name of the log's file; with "~" before it: a former owner may still write to it
    owner                 the id of the last owner

The record is never synced: what a crash of the machine undoes, the frames of the log say as well. A damaged one counts
as none, and its log is copied. It never claims more than what was acknowledged, so whoever opens the log after a kill
notices if acknowledged frames are missing.

Who takes a session from a live owner puts a new file in the place of the old one, whose record says from its first
moment that the log must be copied, and a copy in the place of the old log. The former owner may be stopped at any
instruction: it looks whether its file still has the name before each write and again after each sync. What it writes in
between goes to a file that nobody reads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal
from zlib import crc32

from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.folders import close_locked, open_file
from repertory.errors import StoreUnavailable
from repertory.forking import forget_in_children, unforked

RECORD = "owner"
_NEW_RECORD = ".owner"
_GUARD = "takeover"
OWNER_FILES = (RECORD, _NEW_RECORD, _GUARD)
_FIRST = b"owner of a log 1\n"
_DIGITS = 20
_NUMBER_MAX = 2**62
"""Numbers from here on are no record's: frames could not hold them."""
_BYTES_MAX = 2048
_NO_TAIL = b"-" * _DIGITS
_OPEN = os.O_RDWR | os.O_CREAT
_TRIES = 100
COPIED = "~"
"""Before the name of a log in a record: a former owner may still write to it, and it must be copied."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class OwnerRecord(Struct, frozen=True, kw_only=True):
    """The content of the file.

    Attributes:
        generation: That of the last owner; 0 if there was none.
        edition: A number that rises with each change of the state.
        state: `held` or `free`.
        tail: The offset of the last acknowledged frame; None if there is none.
        log: The name of the log's file; empty if it is not known. With `COPIED` before it if it must be copied.
        owner: The id of the last owner; None if there was none.
    """

    generation: int = 0
    edition: int = 0
    state: Literal["held", "free"] = "free"
    tail: int | None = None
    log: str = ""
    owner: str | None = None

    def pack(self) -> bytes:
        """The bytes of the file."""
        numbers = b"%0*d\n%0*d\n%b\n" % (_DIGITS, self.generation, _DIGITS, self.edition, self.state.encode())
        tail = _NO_TAIL if self.tail is None else b"%0*d" % (_DIGITS, self.tail)
        lines = b"%b%b\n%b\n%b\n" % (numbers, tail, self.log.encode(), (self.owner or "").encode())
        return b"%b%08x\n%b" % (_FIRST, crc32(lines), lines)


def read_record(stored: bytes) -> OwnerRecord | None:
    """The record in a file; None if a crash, or damage, has left something else."""
    with suppress(ValueError):
        _, _, generation, edition, state, tail, log, owner, _ = stored.split(b"\n", 8)
        record = OwnerRecord(
            generation=int(generation),
            edition=int(edition),
            state="held" if state == b"held" else "free",
            tail=None if tail == _NO_TAIL else int(tail),
            log=log.decode(),
            owner=owner.decode() or None,
        )
        # int() takes "+1", " 1" and numbers of any size; comparing with what we would have written refuses all but our
        # own.
        possible = all(0 <= number < _NUMBER_MAX for number in (record.generation, record.edition, record.tail or 0))
        if stored.startswith(record.pack()) and possible and "/" not in record.log:
            return record
    return None


def read_owner(folder: Path) -> OwnerRecord | None:
    """The record of a session's folder without its lock, for readers. Empty if a crash or damage has left none; None if
    there is no such file. Blocking. Errors: `OSError`.
    """
    try:
        file = open_file(folder / RECORD, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return _read_unlocked(file) or OwnerRecord()
    finally:
        os.close(file)


def is_locked(folder: Path) -> bool:
    """True if somebody has the file locked, where its record does not say so. Blocking. Errors: `OSError`."""
    with unforked:
        file = open_file(folder / RECORD, os.O_RDWR)
        try:
            return not try_lock(file)
        finally:
            close_locked(file)


def _read_unlocked(file: int) -> OwnerRecord | None:
    """The record in a file that an owner may be writing just now."""
    # The owner writes without telling readers. A record that is half old and half new fails its checksum: read again.
    tries = (read_record(os.pread(file, _BYTES_MAX, 0)) for _ in range(_TRIES))
    return next((record for record in tries if record is not None), None)


class OwnerFile:
    """The file of one session's owner, in the hands of one store.

    Every method is a few system calls that wait for nobody, so that a session is taken and given up on the event loop.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / RECORD
        self._file: int | None = None
        self._inode = 0
        self.record = OwnerRecord()
        """The record as this store has written it last."""
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Close the file, in a forked child: it is the parent's lock, and unlocking would free the session."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def take(self, owner: str, floor: int) -> OwnerRecord | None:
        """Lock the file, which is made if need be, and become the owner. Returns the record of the owner before; None
        if another one has it locked.

        `floor`: the generation is higher than this. Errors: `OSError`.
        """
        with self._closed_on_error():
            if not self._lock():
                return None
            found = self._stored()
            generation = max(found.generation, floor) + 1
            taken = OwnerRecord(generation=generation, edition=found.edition + 1, state="held", owner=owner)
            return found if self._write(replace(taken, tail=found.tail, log=found.log)) else None
        raise AssertionError

    def take_again(self) -> bool:
        """Lock the file, and own the session as before, if nobody has owned it since. Errors: `OSError`."""
        with self._closed_on_error():
            if not self._lock(make=False):
                return False
            # Byte for byte: any owner since has raised the generation, and any change of the state the edition.
            if not self._bytes().startswith(self.record.pack()):
                self._close()
                return False
            self._put(replace(self.record, state="held", edition=self.record.edition + 1))
            return True
        raise AssertionError

    def give_up(self) -> None:
        """Free the session. Without effect if it is another owner's by now."""
        if self._file is None:
            return
        # On a full disk the lock is let go all the same; "held" with an unlocked file reads as a dead owner.
        with suppress(OSError):
            if self.is_mine():
                self._put(replace(self.record, state="free", edition=self.record.edition + 1))
        self._close()

    def is_mine(self) -> bool:
        """True while nobody has taken the session from this owner, or removed it."""
        if self._file is None:
            return False
        try:
            # By inode: a lock on a file that has lost its name is worth nothing, and the kernel does not tell.
            return os.stat(self._path, follow_symlinks=False).st_ino == self._inode
        except FileNotFoundError:
            return False

    def note(self, tail: int) -> None:
        """Note the last frame that was acknowledged."""
        if self._file is not None:
            with suppress(OSError):
                self._put(replace(self.record, tail=tail))

    def name_log(self, log: str) -> None:
        """Name the file of the log. Errors: `OSError`."""
        self._put(replace(self.record, log=log))

    def forget_log(self) -> None:
        """Say that nothing is stored, before the log is removed. Errors: `OSError`."""
        assert self._file is not None
        self._write(replace(self.record, tail=None, log=""))

    def sync(self) -> None:
        """Bring the record to the disk. Errors: `OSError`."""
        assert self._file is not None
        os.fsync(self._file)

    def take_by_force(self, owner: str, floor: int) -> OwnerRecord | None:
        """Put a new file, locked, in the place of the live owner's, and return the record of that one; None if somebody
        else was faster, or has deleted the session. Blocking.

        The old log may still be written to: the record names it with `COPIED`. Errors: `OSError`; `StoreUnavailable` if
        another process has stopped in the middle of doing the same.
        """
        with unforked:
            # Two that take by force at once would each put a file in place of the other's, and both believe to be the
            # owner.
            guard = open_file(self._folder / _GUARD, _OPEN)
            try:
                if not try_lock(guard):
                    raise StoreUnavailable("another process is taking the session over; try again")
                found = self._replace_file(owner, floor)
            finally:
                close_locked(guard)
        if not self.is_mine():  # Whoever has deleted the session meanwhile has removed the guard too.
            self._close()
            return None
        return found

    def _replace_file(self, owner: str, floor: int) -> OwnerRecord:
        found = read_owner(self._folder) or OwnerRecord()
        new = self._folder / _NEW_RECORD
        with suppress(FileNotFoundError):
            # Left by a process that was killed here before; only the holder of the guard comes by.
            new.unlink()
        file = open_file(new, _OPEN | os.O_EXCL)
        try:
            made = _successor(found, owner, floor)
            os.pwrite(file, made.pack(), 0)
            # Before it gets its name, so nobody finds it unlocked.
            locked = try_lock(file)
            assert locked, "a new file is locked by nobody"
            old = None
            with suppress(FileNotFoundError):
                old = open_file(self._path, os.O_RDONLY)
            new.rename(self._path)
            if old is not None:  # An owner that came meanwhile has raised the number in the file that is gone now.
                found = _read_unlocked(old) or found
                os.close(old)
                made = _successor(found, owner, max(floor, made.generation - 1))
                os.pwrite(file, made.pack(), 0)
        except BaseException:
            os.close(file)
            raise
        self._close()
        self._file, self._inode, self.record = file, os.fstat(file).st_ino, made
        return found

    def remove(self) -> None:
        """Remove the file, as the last one of its session. Errors: `OSError`."""
        with suppress(FileNotFoundError):
            (self._folder / _GUARD).unlink()
        with suppress(FileNotFoundError):
            self._path.unlink()
        self._close()

    def _lock(self, *, make: bool = True) -> bool:
        """Open the file and lock it. False if another one has it, or has just put a new file in its place, or there is
        none and `make` is False.
        """
        for _ in range(_TRIES):
            with unforked:
                if self._file is None:
                    try:
                        self._file = open_file(self._path, _OPEN if make else os.O_RDWR)
                    except FileNotFoundError:
                        if make:
                            raise
                        return False
                if not try_lock(self._file):
                    self._close()
                    return False
            self._inode = os.fstat(self._file).st_ino
            if self.is_mine():
                return True
            self._close()
        return False

    def _bytes(self) -> bytes:
        assert self._file is not None
        return os.pread(self._file, _BYTES_MAX, 0)

    def _stored(self) -> OwnerRecord:
        stored = self._bytes()
        # Zeros are what a crash leaves of a new file. Anything else was a record whose log somebody may still be
        # writing to.
        return read_record(stored) or OwnerRecord(log=COPIED if stored.strip(b"\0") else "")

    def _write(self, record: OwnerRecord) -> bool:
        """Write the record whole. False if the file has lost its name meanwhile."""
        assert self._file is not None
        # Written whole first, then cut: at no moment is there less than a record.
        os.ftruncate(self._file, self._put(record))
        if self.is_mine():
            return True
        self._close()
        return False

    def _put(self, record: OwnerRecord) -> int:
        """The number of bytes that were written."""
        assert self._file is not None
        self.record = record
        return os.pwrite(self._file, record.pack(), 0)

    @contextmanager
    def _closed_on_error(self) -> Generator[None]:
        """A full disk, for example, must not leave the file locked."""
        try:
            yield
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            close_locked(file)


def _successor(found: OwnerRecord, owner: str, floor: int) -> OwnerRecord:
    """The record of an owner that takes a session by force."""
    return OwnerRecord(
        generation=max(found.generation, floor) + 1,
        edition=found.edition + 1,
        state="held",
        tail=found.tail,
        log=f"{COPIED}{found.log.removeprefix(COPIED)}",
        owner=owner,
    )


def try_lock(file: int) -> bool:
    """Lock an open file without waiting. False if another one has locked it.

    Raises:
        StoreUnavailable: If the file system has no locks: keep sessions on one that has.
    """
    try:
        import fcntl
    except ImportError as error:
        raise StoreUnavailable("owning a session needs POSIX file locks, which this system lacks") from error
    try:
        # flock and not fcntl's POSIX locks: those end when the process closes any descriptor of the file, such as a
        # reader's.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            text = "the file system has no locks, or none now: keep sessions on one that has, or in a database"
            raise StoreUnavailable(text, cause=error.strerror or str(error)) from error
        raise
    return True
