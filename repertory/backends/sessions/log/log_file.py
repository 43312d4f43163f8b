"""The file of a session's log: reading its end, appending frames, erasing contents.

Every function blocks and runs in a worker thread, except where small frames are written. `core/journal/log_frames.py`
says what a frame is and what a crash leaves; `owner_record.py` says who may write.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

import msgspec
from msgspec import Struct, field

from repertory.backends.folders import open_file
from repertory.core.journal.log_frames import (
    DIRECTORY_MAX,
    MAGIC,
    AgentEnd,
    FoundFrame,
    Frame,
    LogStop,
    end_behind,
    erased_frame,
    frames_in,
    pack_frame,
)
from repertory.core.journal.rows import RecordKind, Row
from repertory.errors import CorruptJournal, Invalid

FIRST_LOG = "journal.log"
COPY = os.O_RDWR | os.O_CREAT | os.O_TRUNC
"""The flags with which the file of a copy is opened."""
_STEP_MIN, _STEP_MAX = 4096, 256 * 1024
"""A file grows by as much as it holds, within these bounds."""
_READ_BYTES = 1024 * 1024
_LOOK_BYTES = 4096
"""Enough for most frames."""


class LogEnd(Struct):
    """The end of a log, known without reading all of it."""

    offset: int = 0
    """The offset of the next frame."""
    last: int = 0
    """The offset of the last frame."""
    generation: int = 0
    at: float = 0.0
    began_at: float = 0.0
    directory: int = 0
    """The offset of the last frame that names every agent."""
    ends: dict[str, AgentEnd] = field(default_factory=lambda: dict[str, AgentEnd]())
    since: set[str] = field(default_factory=lambda: set[str]())
    """The agents with rows behind the directory."""

    @property
    def is_empty(self) -> bool:
        """True for a log without frames."""
        return not self.offset


class ReadLog(NamedTuple):
    """The end of a log, and what is behind its last frame."""

    end: LogEnd
    stop: LogStop


def log_names(folder: Path) -> list[str]:
    """The logs in a session's folder, the latest last. Errors: `OSError`."""
    found: list[tuple[int, str]] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(folder):
            if name == FIRST_LOG:
                found.append((0, name))
            elif name.startswith("journal-") and name.endswith(".log"):
                number = name.removeprefix("journal-").removesuffix(".log")
                found += [(int(number), name)] if number.isdecimal() else []
    return [name for _, name in sorted(found)]


def log_name(generation: int) -> str:
    """The name of the log that an owner begins who has taken the session by force."""
    return f"journal-{generation}.log"


class LogReader:
    """A log, for reading. A context manager, which closes its file."""

    def __init__(self, path: Path, session_id: str) -> None:
        self.path = path
        self.session_id = session_id
        self._flags = os.O_RDONLY
        self._open: int | None = None
        self._inode: int | None = None
        self._known_bytes = 0
        """The file has so many bytes at least."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def file(self) -> int:
        """The open file. A log is closed between commits, since a process may have more sessions than it may have open
        files.

        Errors: `FileNotFoundError`, `OSError`; `CorruptJournal` if another file has its name by now.
        """
        if self._open is None:
            try:
                file = open_file(self.path, self._flags)
            except Invalid as error:
                raise self._damaged(LogStop(0, "damaged", "something that is no file has its place")) from error
            status = os.fstat(file)
            # Closed between commits, a log may have been replaced or cut meanwhile. Going on would write behind what is
            # not there.
            if self._inode not in (None, status.st_ino) or status.st_size < self._known_bytes:
                os.close(file)
                raise self._damaged(LogStop(0, "damaged", "another file was put in its place"))
            self._open, self._inode = file, status.st_ino
        return self._open

    def close(self) -> None:
        """Close the file, until it is needed again."""
        file, self._open = self._open, None
        if file is not None:
            os.close(file)

    def session(self) -> str:
        """The id of the session whose log it is. Errors: `CorruptJournal`, `OSError`."""
        return next((frame.session_id for frame in self.frames()), "")

    def read_end(self, tail: int | None) -> ReadLog:
        """The end of the log. `tail`: the offset of its last frame, or of an earlier one; None if it is not known.

        Errors: `CorruptJournal`, also if the frame at `tail` is not there any more, or the log is another session's.
        """
        # Only the first frame has the id of its session: it tells a folder that was copied under another name.
        first = next(self._frames(0, _LOOK_BYTES))
        if isinstance(first, FoundFrame) and self.session_id not in ("", (other := self._read(first).session_id)):
            raise self._damaged(LogStop(0, "damaged", f"it is the log of another session: {other}"))
        last: FoundFrame | None = None
        stop = LogStop(tail or 0, "damaged")
        for found in self._frames(tail or 0):
            if isinstance(found, LogStop):
                stop = found
            else:
                last = found
        # The frame that was acknowledged last is not there: the log was cut, or is an older copy.
        if stop.kind == "damaged" or (tail is not None and last is None):
            raise self._damaged(stop)
        if last is None:
            return ReadLog(LogEnd(), stop)
        return ReadLog(self._end_at(last), stop)

    def rows_of(self, agent: AgentEnd, *, whole: bool) -> list[Row]:
        """The agent's rows, or those that opening it needs. Errors: `CorruptJournal`, `OSError`."""
        found: list[Row] = []
        for frame in self.frames(0 if whole else agent.window):
            found += [row for row in frame.rows if row.agent_id == agent.agent_id and row.seq <= agent.seq]
        return found if whole else rows_of_window(found)

    def rows_between(self, agent: AgentEnd, first: int, last: int) -> list[Row]:
        """The agent's rows with these sequence numbers, found by its marks. Errors: as `rows_of`."""
        found: list[Row] = []
        begin = self._offset_before(agent, first) if first <= min(last, agent.seq) else agent.last.offset
        # Small pieces: a mark leads to at most sixteen frames before the one that is wanted.
        for frame in self.frames(begin, _LOOK_BYTES * 4):
            rows = [row for row in frame.rows if row.agent_id == agent.agent_id]
            found += [row for row in rows if first <= row.seq <= min(last, agent.seq)]
            if rows and rows[-1].seq >= min(last, agent.seq):
                break
        return found

    def labels(self, agent: AgentEnd) -> list[Row]:
        """The agent's snapshots that have their content, each found by the one behind it. Errors: as `rows_of`."""
        found: list[Row] = []
        offsets, before = agent.labels[:1], agent.last.offset + 1
        # Strictly down: damaged offsets must not make this go round for ever. So in `_offset_before`.
        while offsets and offsets[0] < before:
            (before,) = offsets
            frame, agent = self._marked(before, agent.agent_id)
            rows = [row for row in frame.rows if row.agent_id == agent.agent_id and not row.erased]
            found[:0] = [row for row in rows if row.kind == RecordKind.SNAPSHOT]
            offsets = agent.labels[1:]
        return found

    def _offset_before(self, agent: AgentEnd, seq: int) -> int:
        """The offset of a frame that is at most 16 of the agent's frames before the one with the row."""
        if seq >= agent.last.first:
            return agent.last.offset
        before = agent.last.offset
        while (mark := agent.mark_behind(seq)) is not None:
            if mark.offset >= before:
                raise self._damaged(LogStop(before, "damaged", "its marks lead nowhere"))
            before = mark.offset
            _, agent = self._marked(before, agent.agent_id)
        return agent.marks[0].offset if agent.marks else agent.last.offset

    def _marked(self, offset: int, agent_id: str) -> tuple[Frame, AgentEnd]:
        """A frame that a mark names, and the end of the agent there."""
        found = next(self._frames(offset, _LOOK_BYTES))
        if isinstance(found, LogStop):
            raise self._damaged(found)
        frame = self._read(found)
        for end in frame.ends:
            if end.agent_id == agent_id:
                return frame, end
        raise self._damaged(LogStop(offset, "damaged", "a mark names a frame without rows of the agent"))

    def frames(self, begin: int = 0, piece: int = _READ_BYTES) -> Iterator[Frame]:
        """The frames from an offset on, read in pieces of so many bytes. Errors: `CorruptJournal`."""
        for found in self._frames(begin, piece):
            if isinstance(found, FoundFrame):
                yield self._read(found)
            elif found.kind == "damaged":
                raise self._damaged(found)

    def salvaged(self) -> Iterator[FoundFrame | LogStop]:
        """Every frame that can be read, and each place of damage between them."""
        begin: int | None = 0
        while begin is not None:
            stop: FoundFrame | LogStop = LogStop(begin, "end")
            for stop in self._frames(begin):
                if isinstance(stop, FoundFrame) or stop.kind == "damaged":
                    yield stop
            is_damaged = isinstance(stop, LogStop) and stop.kind == "damaged"
            begin = self._frame_behind(stop.offset) if is_damaged else None

    def _frame_behind(self, begin: int) -> int | None:
        """The offset of the next whole frame behind damage."""
        at = begin + 1
        while (at := self._data_behind(at)) is not None:
            data = self._bytes(at, _READ_BYTES)
            index = -1
            while (index := data.find(MAGIC, index + 1)) >= 0:
                if isinstance(next(self._frames(at + index, _LOOK_BYTES)), FoundFrame):
                    return at + index
            if len(data) < _READ_BYTES:
                return None
            # Pieces overlap, since the mark of a frame may lie across the border of two.
            at += len(data) - len(MAGIC) + 1
        return None

    def _data_behind(self, begin: int) -> int | None:
        """The next offset that is in no hole of the file, which may be a planted one of any size."""
        try:
            # A planted file of a petabyte is mostly hole; reading through it would take days.
            return os.lseek(self.file, begin, getattr(os, "SEEK_DATA", os.SEEK_SET))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None

    def _frames(self, begin: int, piece: int = _READ_BYTES) -> Iterator[FoundFrame | LogStop]:
        """The frames from an offset on, read in pieces of so many bytes: a log may be larger than the memory."""
        at, size = begin, piece
        while True:
            data = self._bytes(at, size)
            stop = LogStop(at, "end")
            for found in frames_in(memoryview(data), at):
                if isinstance(found, LogStop):
                    stop = found
                    break
                yield found
            if len(data) < size or stop.kind == "damaged":
                yield stop
                return
            if stop.offset > at:
                at, size = stop.offset, piece
            elif size < stop.needs:
                # Less than one frame was read. Its header says how much it needs, and the header has a checksum.
                size = stop.needs
            else:
                yield LogStop(at, "damaged", "more bytes follow than a crash leaves")
                return

    def _bytes(self, begin: int, size: int) -> bytes:
        size = min(size, max(0, os.fstat(self.file).st_size - begin) + 1)  # As many are allocated at once.
        data = os.pread(self.file, size, begin)
        # `pread` may give less than it was asked for, for example above 2 GiB on Linux.
        while len(data) < size and (more := os.pread(self.file, size - len(data), begin + len(data))):
            data += more
        return data

    def _read(self, found: FoundFrame) -> Frame:
        try:
            return found.read()
        except ValueError as error:
            raise self._damaged(LogStop(found.offset, "damaged", str(error))) from error

    def _end_at(self, last: FoundFrame) -> LogEnd:
        frame = self._read(last)
        ends: dict[str, AgentEnd] = {}
        # Most frames name the agents of their own rows alone; one frame further back has all.
        if frame.directory != last.offset:
            found = next(self._frames(frame.directory, _LOOK_BYTES))
            if isinstance(found, LogStop):
                raise self._damaged(found)
            ends = {end.agent_id: end for end in self._read(found).ends}
        since = {end.agent_id for end in frame.ends} if ends else set[str]()
        return LogEnd(
            offset=last.end,
            last=last.offset,
            generation=frame.generation,
            at=frame.at,
            began_at=frame.began_at,
            directory=frame.directory,
            ends=ends | {end.agent_id: end for end in frame.ends},
            since=since,
        )

    def _damaged(self, stop: LogStop) -> CorruptJournal:
        text = (
            "the log of the session is damaged: put it back from a copy, or have `repertory sessions doctor --repair`"
            " set it aside and go on from what is sound"
        )
        cause = stop.why or "frames at its end are missing"
        return CorruptJournal(text, session=self.session_id, file=str(self.path), offset=stop.offset, cause=cause)


class LogFile(LogReader):
    """The log of a session, for its owner. After an error its end is unknown: open it again."""

    def __init__(self, path: Path, session_id: str) -> None:
        super().__init__(path, session_id)
        self._flags = os.O_RDWR
        self.end = LogEnd()
        self._windows: dict[str, list[tuple[int, int]]] = {}
        """The first sequence number and the offset of each frame of an agent's window, by agent."""
        self._size = 0
        self._unsynced: int | None = None
        """The offset of the frame that is not known to be on the disk; None without one."""
        self._grown = False
        """True if a sync has to bring the file's new size to the disk."""

    def open(self, tail: int | None) -> None:
        """Read the end, and cut off what a crash has left behind it. Errors: `CorruptJournal`, `OSError`."""
        self._size = os.fstat(self.file).st_size
        self.end, stop = self.read_end(tail)
        # Cut off, and not left to be written over: a shorter frame there would be followed by the rest of the torn one.
        if stop.kind == "torn":
            os.ftruncate(self.file, stop.offset)
            self._size = stop.offset
        if stop.kind == "torn" or self.end.last != (tail or 0):  # Or the last frame may be on no disk.
            os.fsync(self.file)
        self._known_bytes = self.end.offset

    def is_ready_for(self, rows: Sequence[Row]) -> bool:
        """True if nothing must be read or synced before these rows are written."""
        known = (row.agent_id in self._windows or row.agent_id not in self.end.ends for row in rows)
        return self._unsynced is None and all(known)

    def append(self, frame: Frame) -> None:
        """`write`, and `sync`. Errors: `OSError`; then it is unknown whether the rows are stored."""
        self.write(frame)
        self.sync()

    def write(self, frame: Frame) -> None:
        """Write the rows of a frame, whose generation and times count; `sync` is to follow. Errors: as `append`."""
        end, offset = self.end, self.end.offset
        new_ends = {
            agent_id: end_behind(end.ends.get(agent_id), rows, offset, self._window(agent_id, rows, offset)[0][1])
            for agent_id, rows in _by_agent(frame.rows)
        }
        ends = end.ends | new_ends
        since = end.since | new_ends.keys()
        # Naming every agent in each frame would make frames of a session with many agents grow with their number.
        whole = end.is_empty or len(ends) <= 1 or len(since) > DIRECTORY_MAX
        directory = offset if whole else end.directory
        named = ends.values() if whole else [ends[agent_id] for agent_id in sorted(since)]
        session_id = self.session_id if end.is_empty else ""
        packed = pack_frame(
            Frame(frame.generation, frame.at, frame.began_at, directory, tuple(named), frame.rows, session_id)
        )
        self._write(packed, offset)
        self.end = LogEnd(
            offset=offset + len(packed),
            last=offset,
            generation=frame.generation,
            at=frame.at,
            began_at=frame.began_at,
            directory=directory,
            ends=ends,
            since=set[str]() if whole else since,
        )
        self._known_bytes = self.end.offset

    def take_over(self, other: LogReader, forget: Collection[str]) -> None:
        """Write the frames of another log, without the rows of these agents. Errors: as `append`; `CorruptJournal`."""
        for frame in other.frames():
            rows = tuple(row for row in frame.rows if row.agent_id not in forget)
            if rows or self.end.is_empty:
                self.write(msgspec.structs.replace(frame, rows=rows))
        self.sync()

    def rename(self, path: Path) -> None:
        """Put the file in the place of the one at that path. Errors: `OSError`."""
        self.path.rename(path)
        self.path = path

    def load(self, agent_id: str) -> list[Row]:
        """The rows that opening the agent needs. Errors: `CorruptJournal`, `OSError`."""
        agent = self.end.ends.get(agent_id)
        if agent is None:
            return []
        frames = self._frames_of(agent)
        self._windows[agent_id] = [(rows[0].seq, offset) for offset, rows in frames]
        return rows_of_window(row for _, rows in frames for row in rows)

    def rewrite(self, erase: Mapping[str, Sequence[int]], to: Path) -> None:
        """Write a copy without the contents of these rows into another file, frame by frame in the same places, and
        bring it to the disk. Errors: `CorruptJournal`, `OSError`.
        """
        wanted = {agent_id: frozenset(seqs) for agent_id, seqs in erase.items()}
        file = open_file(to, COPY)
        try:
            for found in self._frames(0):
                if isinstance(found, LogStop):
                    if found.kind == "damaged":
                        raise self._damaged(found)
                    break
                size = found.end - found.offset
                data: bytes = b""
                if wanted:
                    frame = self._read(found)
                    if any(row.seq in wanted.get(row.agent_id, ()) for row in frame.rows):
                        # Padded to the same size: offsets stand in later frames, whose bytes stay as they are.
                        data = pack_frame(erased_frame(frame, wanted), size)
                _write_all(file, data or self._bytes(found.offset, size), found.offset)
            os.fsync(file)
        finally:
            os.close(file)

    def copy(self, to: Path) -> None:
        """Copy the file as it is, holes included, and bring the copy to the disk. Errors: `OSError`."""
        file = open_file(to, COPY)
        try:
            at, size = 0, os.fstat(self.file).st_size
            while (at := self._data_behind(at)) is not None and (data := self._bytes(at, _READ_BYTES)):
                _write_all(file, data, at)
                at += len(data)
            os.ftruncate(file, size)
            os.fsync(file)
        finally:
            os.close(file)

    def _window(self, agent_id: str, rows: Sequence[Row], offset: int) -> list[tuple[int, int]]:
        """The frames of an agent's window, with these rows at this offset."""
        if agent_id not in self._windows and agent_id in self.end.ends:
            self.load(agent_id)
        frames = self._windows.setdefault(agent_id, [])  # Not copied: without a window it grows with the session.
        frames.append((rows[0].seq, offset))
        low = rows[-1].low
        first = 0
        while first + 1 < len(frames) and frames[first + 1][0] <= low:
            first += 1
        del frames[:first]
        return frames

    def _frames_of(self, agent: AgentEnd) -> list[tuple[int, list[Row]]]:
        found: list[tuple[int, list[Row]]] = []
        for each in self._frames(agent.window):
            if isinstance(each, LogStop):
                if each.kind == "damaged":
                    raise self._damaged(each)
                break
            rows = [row for row in self._read(each).rows if row.agent_id == agent.agent_id]
            found += [(each.offset, rows)] if rows else []
        return found

    def _write(self, packed: bytes, offset: int) -> None:
        end = offset + len(packed)
        if end > self._size:
            self._size, self._grown = _grow(self.file, end, self._size), True
        # Before the write, so that `_taken_back` cuts there if it fails half-way.
        self._unsynced = offset
        with self._taken_back():
            _write_all(self.file, packed, offset)

    def sync(self) -> None:
        """Bring what was written to the disk. Errors: as `append`."""
        if self._unsynced is not None:
            with self._taken_back():
                # A new size is metadata. Without one, the data alone are synced, in half the time.
                os.fsync(self.file) if self._grown else _sync_data(self.file)
            self._unsynced, self._grown = None, False

    @contextmanager
    def _taken_back(self) -> Generator[None]:
        """The frame goes if this fails. A page whose sync has failed counts as written: the next sync succeeds without
        it.
        """
        try:
            yield
        except OSError:
            with suppress(OSError):
                os.ftruncate(self.file, self._unsynced or 0)
            raise


def rows_of_window(rows: Iterable[Row]) -> list[Row]:
    """The rows from the last one's `low` on."""
    found = list(rows)
    low = found[-1].low if found else 0
    return [row for row in found if row.seq >= low]


def _by_agent(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.agent_id, []).append(row)
    return list(found.items())


def _grow(file: int, needed: int, size: int) -> int:
    """Make room for so many bytes and some more. Returns the file's size, which is as before if there is no room for
    more: the write says so if it does not fit. Errors: `OSError`.
    """
    step = min(max(needed, _STEP_MIN), _STEP_MAX)
    wanted = (needed + step + _STEP_MIN - 1) // _STEP_MIN * _STEP_MIN
    try:
        os.posix_fallocate(file, size, wanted - size)
    except (AttributeError, OSError):  # Some file systems cannot, and a full disk may have room for the frame alone.
        return max(size, os.fstat(file).st_size)
    return wanted


def _write_all(file: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


_sync_data = getattr(os, "fdatasync", os.fsync)
