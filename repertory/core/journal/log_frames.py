"""Frames of a session's log: one for each commit, one behind the other.

    frame  = header || payload || zeros up to the frame's size
    header = magic (4) || size of the frame (4) || size of the payload (4) || CRC-32 of the payload (4)
             || CRC-32 of the header so far (4), big-endian

The payload is a `Frame` in MessagePack. Zeros may follow the last frame: files grow in steps, since a commit that
leaves a file's size alone is synced in half the time.

A frame that a crash has cut off was never acknowledged, and is told from a damaged one by what a crash leaves: nothing,
or zeros from some sector on. Anything else that does not match its checksum is damage. A byte that rotted in the last
frame must not pass for a crash, because the rows in it were acknowledged.

`docs/reference/formats/log-format.md` describes the format for other programs.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from repertory.core.journal.rows import DIGEST_BYTES, LINK_BYTES, SALT_BYTES, RecordKind, Row
from repertory.errors import Invalid

MAGIC = b"RpL1"
_HEADER = struct.Struct(">4sIII")
_CHECK = struct.Struct(">I")
HEADER_BYTES = _HEADER.size + _CHECK.size
ROOM_BYTES_MAX = 1024 * 1024
"""The most zeros behind the last frame. With more, somebody else has changed the file: a sparse file has any size."""
FRAME_BYTES_MAX = 1024 * 1024 * 1024
"""The largest frame. A header that somebody has planted could have all memory read otherwise."""
_UNSURE_BYTES_MAX = 64 * 1024 * 1024
"""So far a frame may reach whose header was never written."""
_SECTOR = 512
"""The bytes that a disk writes at once."""
_ZEROS = bytes(32 * 1024)
_ERASED_BYTES = DIGEST_BYTES - SALT_BYTES
"""A row with a shorter content than this grows when it is erased."""
DIRECTORY_MAX = 32
"""The most agents that a frame names besides those of its rows. The next one names all agents again."""


_MARK_EVERY = 16
"""Each level of marks names one in so many frames of the level below."""


class FrameMark(NamedTuple):
    """A frame with rows of an agent: its offset, and the sequence number of the first of these rows."""

    offset: int
    first: int


class AgentEnd(msgspec.Struct, array_like=True, frozen=True):
    """The end of one agent's journal.

    Attributes:
        agent_id: The agent.
        seq: The last sequence number.
        window: The offset of the frame with the first row that opening the agent needs.
        last: The last frame with rows of the agent.
        number: The number of that frame among those with rows of the agent, from 0.
        marks: Frames before that one, by level: the last whose number is a multiple of 16, of 256, of 4,096, and so on,
            up to the level at which only the first frame is left.
        labels: The offsets of the last frame with a snapshot of the agent and of the one before, as far as there are.
    """

    agent_id: str
    seq: int
    window: int
    last: FrameMark
    number: int = 0
    marks: tuple[FrameMark, ...] = ()
    labels: tuple[int, ...] = ()

    def mark_behind(self, seq: int) -> FrameMark | None:
        """The farthest mark that still lies behind the row; None if the nearest mark is not behind it."""
        return next((mark for mark in reversed(self.marks) if mark.first > seq), None)


def end_behind(before: AgentEnd | None, rows: Sequence[Row], offset: int, window: int) -> AgentEnd:
    """The end of an agent's journal behind a frame at this offset with these rows of it. `window`: as in `AgentEnd`."""
    number, marks, labels = 0, list[FrameMark](), ()
    if before is not None:
        number, marks, labels = before.number + 1, [*before.marks], before.labels
        level, every = 0, _MARK_EVERY
        while level < len(marks) and before.number % every == 0:
            if level == len(marks) - 1:  # Number 0 is a multiple of everything: it moves up a level.
                marks.append(marks[level])
            marks[level] = before.last
            level, every = level + 1, every * _MARK_EVERY
        marks = marks or [before.last]
    if any(row.kind == RecordKind.SNAPSHOT for row in rows):
        labels = (offset, *labels[:1])
    return AgentEnd(
        rows[0].agent_id, rows[-1].seq, window, FrameMark(offset, rows[0].seq), number, tuple(marks), labels
    )


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One commit.

    Attributes:
        generation: That of the owner who has written it.
        at: Epoch seconds of its latest row.
        began_at: The same of the session's first frame.
        directory: The offset of the last frame that names every agent; that frame's own names itself.
        ends: The agents with rows in this frame or in those since the directory; all agents, in a directory.
        rows: The rows, in the order of their sequence numbers for each agent.
        session_id: The session, in the first frame of a log: the name of its folder may stand for a longer one.
    """

    generation: int
    at: float
    began_at: float
    directory: int
    ends: tuple[AgentEnd, ...] = ()
    rows: tuple[Row, ...] = ()
    session_id: str = ""


class FoundFrame(NamedTuple):
    """A frame in a log.

    Attributes:
        offset: The offset of its header in the file.
        end: The offset behind it.
        payload: Its payload, which was checked.
    """

    offset: int
    end: int
    payload: memoryview

    def read(self) -> Frame:
        """The decoded payload.

        Raises:
            ValueError: If it is no frame. Its writer was no release of this format.
        """
        return unpack_frame(self.payload)


class LogStop(NamedTuple):
    """The reason for which no frame follows.

    Attributes:
        offset: The offset at which the next frame would begin.
        kind: `end`: nothing or zeros follow. `torn`: a crash has cut the last frame off. `damaged`: what follows is no
            frame, and no crash has left it.
        why: The reason in words.
        needs: The bytes from the offset on that must be looked at. With fewer of the file's bytes, `kind` is a guess,
            unless it is `damaged`, which more bytes do not change.
    """

    offset: int
    kind: Literal["end", "torn", "damaged"]
    why: str = ""
    needs: int = ROOM_BYTES_MAX


_decoder = msgspec.msgpack.Decoder(Frame)
_encoder = msgspec.msgpack.Encoder()


def pack_frame(frame: Frame, size: int | None = None) -> bytes:
    """The bytes of a frame. `size`: how many they shall be, as in the place of a frame whose rows were erased.

    Raises:
        Invalid: For malformed rows, or too many of them. Correct them.
    """
    slack = 0
    for row in frame.rows:
        if len(row.link) != LINK_BYTES or len(row.salt) not in (0, SALT_BYTES):
            raise Invalid("not a row of a journal", agent=row.agent_id, seq=row.seq)
        # Room for the digests: a frame whose rows are erased is written again in the same place.
        slack += max(0, _ERASED_BYTES - len(row.body)) if row.salt else 0
    payload = _encoder.encode(frame)
    if size is None:
        size = HEADER_BYTES + len(payload) + slack
    if size > FRAME_BYTES_MAX:
        raise Invalid("a commit is larger than a frame of a log may be", bytes=size, bytes_max=FRAME_BYTES_MAX)
    header = _HEADER.pack(MAGIC, size, len(payload), zlib.crc32(payload))
    zeros = size - HEADER_BYTES - len(payload)
    return b"".join((header, _CHECK.pack(zlib.crc32(header)), payload, bytes(zeros)))


def unpack_frame(payload: bytes | memoryview) -> Frame:
    """A frame from its payload. Errors: `ValueError`."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error


def frames_in(data: memoryview, base: int = 0) -> Iterator[FoundFrame | LogStop]:
    """The frames in the bytes of a log, and at the end why there are no more. `base`: the offset of these bytes in
    their file, at which a frame begins.
    """
    at = 0
    while True:
        found = _frame_at(data, at, base)
        yield found
        if isinstance(found, LogStop):
            return
        at = found.end - base


def _frame_at(data: memoryview, at: int, base: int) -> FoundFrame | LogStop:
    found = _header_at(data, at)
    if found is None:
        return _no_header(data, at, base)
    size, length, checksum = found
    needs = size + ROOM_BYTES_MAX
    if len(data) - at < size:
        return LogStop(base + at, "torn", "the file ends before the frame does", needs)
    payload = data[at + HEADER_BYTES : at + HEADER_BYTES + length]
    if zlib.crc32(payload) != checksum:
        # From the next boundary on: the sector in which the frame begins holds the end of the one before, and was
        # written with it.
        first, end = at + (-(base + at)) % _SECTOR, at + HEADER_BYTES + length
        # A sector that was never written, or the part of one at the end of the payload.
        empty = any(_is_empty(data[begin : min(begin + _SECTOR, end)]) for begin in range(first, end, _SECTOR))
        # Behind a frame that a crash has cut off nothing was ever written.
        cut = empty and _is_empty(data[at + size :])
        return LogStop(base + at, "torn" if cut else "damaged", "the bytes do not match their checksum", needs)
    return FoundFrame(base + at, base + at + size, payload)


def _header_at(data: memoryview, at: int) -> tuple[int, int, int] | None:
    """Size of the frame, size and checksum of the payload; None if no header is there."""
    header, check = data[at : at + _HEADER.size], data[at + _HEADER.size : at + HEADER_BYTES]
    if len(check) < _CHECK.size or zlib.crc32(header) != _CHECK.unpack(check)[0]:
        return None
    magic, size, length, checksum = _HEADER.unpack(header)
    is_possible = magic == MAGIC and HEADER_BYTES + length <= size <= FRAME_BYTES_MAX
    return (size, length, checksum) if is_possible else None


def _no_header(data: memoryview, at: int, base: int) -> LogStop:
    """The end of the frames, where no header is."""
    rest = data[at:]
    if _is_empty(rest):
        return LogStop(base + at, "end")
    sector = _SECTOR - (base + at) % _SECTOR
    sectors = [rest[:sector], *([rest[sector : sector + _SECTOR]] if sector < HEADER_BYTES else ())]
    # A disk may write the sectors of a frame in any order, but only one frame at a time was being written.
    if len(rest) < HEADER_BYTES or (any(map(_is_empty, sectors)) and not any(_whole_frames(rest))):
        # Four times as much with each look, so that a large frame is judged after few of them.
        needs = max(ROOM_BYTES_MAX, min(4 * len(rest), _UNSURE_BYTES_MAX))
        return LogStop(base + at, "torn", "the header was never written whole", needs)
    return LogStop(base + at, "damaged", "what follows is no frame")


def _whole_frames(data: memoryview) -> Iterator[int]:
    """The offsets of whole frames, frames within frames included. Never 0."""
    # A copy, for its `find`, which a `memoryview` has not.
    raw, begin = bytes(data), 0
    while (begin := raw.find(MAGIC, begin + 1)) >= 0:
        found = _header_at(data, begin)
        if found is not None:
            size, length, checksum = found
            payload = data[begin + HEADER_BYTES : begin + HEADER_BYTES + length]
            if size <= len(data) - begin and zlib.crc32(payload) == checksum:
                yield begin


def _is_empty(data: memoryview) -> bool:
    # Piece by piece: each look at a log compares up to a megabyte, and large copies cost ten times as much.
    return all(_ZEROS.startswith(data[at : at + len(_ZEROS)]) for at in range(0, len(data), len(_ZEROS)))


def erased_frame(frame: Frame, erase: Mapping[str, Collection[int]]) -> Frame:
    """A frame without the contents of these rows, by agent."""
    rows = tuple(row.without_content() if row.seq in erase.get(row.agent_id, ()) else row for row in frame.rows)
    return msgspec.structs.replace(frame, rows=rows)
