"""Frames of a log: what a crash leaves is told from damage, and whatever was not touched is read again."""

from __future__ import annotations

import random

import pytest

from repertory.core.journal.log_frames import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    AgentEnd,
    FoundFrame,
    Frame,
    FrameMark,
    LogStop,
    end_behind,
    erased_frame,
    frames_in,
    pack_frame,
)
from repertory.core.journal.rows import LINK_BYTES, SALT_BYTES, RecordKind, Row
from repertory.errors import Invalid
from tests.source_tree import ROOT

PAGE = (ROOT / "docs/reference/formats/log-format.md").read_text()
SECTOR = 512
ROOM = 1500
"""Zeros behind the last frame."""


def row(seq: int, body: bytes) -> Row:
    return Row("agent", seq, 1, 1, 1, b"l" * LINK_BYTES, b"s" * SALT_BYTES, body)


def frame(number: int, *bodies: bytes) -> Frame:
    rows = tuple(row(number * 10 + place, body) for place, body in enumerate(bodies))
    ends = (end_behind(None, rows, 0, 0),)
    return Frame(7, 1.5, 1.0, 0, ends, rows, "session" if not number else "")


def text(rng: random.Random, size: int) -> bytes:
    """A body as records have it: without zeros."""
    return bytes(rng.choice(b"abcdefgh {}:") for _ in range(size))


SIZES = [(3, 0), (700,), (1, 5), (1300,), (40,)]


@pytest.fixture
def frames(rng: random.Random) -> list[Frame]:
    sizes = [(rng.randrange(SECTOR),), *SIZES]  # so that frames begin anywhere in a sector
    return [frame(number, *(text(rng, size) for size in each)) for number, each in enumerate(sizes)]


@pytest.fixture
def packed(frames: list[Frame]) -> list[bytes]:
    return [pack_frame(each) for each in frames]


def read(log: bytes) -> tuple[list[Frame], LogStop]:
    *found, stop = frames_in(memoryview(log))
    assert isinstance(stop, LogStop)
    return [each.read() for each in found if isinstance(each, FoundFrame)], stop


def complete(packed: list[bytes], size: int) -> int:
    """How many frames are whole in the first bytes of their log."""
    count = 0
    while count < len(packed) and sum(map(len, packed[: count + 1])) <= size:
        count += 1
    return count


def test_frames_are_read_as_they_were_packed(frames: list[Frame], packed: list[bytes]) -> None:
    log = b"".join(packed)
    assert read(log) == (frames, LogStop(len(log), "end"))
    assert read(log + bytes(ROOM)) == (frames, LogStop(len(log), "end"))


def test_a_log_that_is_cut_at_any_byte_has_every_frame_before_the_cut(frames: list[Frame], packed: list[bytes]) -> None:
    log = b"".join(packed)
    for size in range(len(log)):
        found, stop = read(log[:size])
        count = complete(packed, size)
        assert found == frames[:count], size
        at_the_end = size == sum(map(len, packed[:count]))
        assert stop.kind == ("end" if at_the_end else "torn"), size
        assert stop.offset == sum(map(len, packed[:count]))


def test_sectors_that_were_never_written_are_what_a_crash_leaves(frames: list[Frame], packed: list[bytes]) -> None:
    """Of the last frame, any of its sectors may be missing, and the file is as long as it was made."""
    for count in range(1, len(frames) + 1):
        begin, log = sum(map(len, packed[: count - 1])), b"".join(packed[:count]) + bytes(ROOM)
        end = sum(map(len, packed[:count]))
        sectors = range(begin // SECTOR, (end - 1) // SECTOR + 1)
        for missing in range(1, 1 << len(sectors)):
            torn = bytearray(log)
            for place, sector in enumerate(sectors):
                if missing >> place & 1:
                    first, last = max(begin, sector * SECTOR), min(end, (sector + 1) * SECTOR)
                    torn[first:last] = bytes(last - first)
            found, stop = read(bytes(torn))
            if torn == log:  # Only zeros behind a payload were missing.
                assert found == frames[:count]
                continue
            assert found == frames[: count - 1], (count, missing)
            assert stop.kind in ("end", "torn"), (count, missing)
            assert (stop.kind == "end") == (not any(torn[begin:]))


@pytest.mark.parametrize("room", [0, ROOM])
def test_a_flipped_bit_is_damage_wherever_it_is(frames: list[Frame], packed: list[bytes], room: int) -> None:
    log = b"".join(packed)
    begins = [sum(map(len, packed[:count])) for count in range(len(packed))]
    used = [begin + HEADER_BYTES + length_of(each) for begin, each in zip(begins, packed, strict=True)]
    for place in range(len(log)):
        changed = bytearray(log + bytes(room))
        changed[place] ^= 1 << place % 8
        found, stop = read(bytes(changed))
        number = max(each for each, begin in enumerate(begins) if begin <= place)
        if place >= used[number]:  # In the zeros of a frame, which mean nothing.
            assert (found, stop.kind) == (frames, "end")
        else:
            assert (found, stop.kind, stop.offset) == (frames[:number], "damaged", begins[number]), place


def length_of(packed: bytes) -> int:
    """The bytes of a frame's payload."""
    return int.from_bytes(packed[8:12], "big")


def test_a_sector_that_was_emptied_before_the_last_frame_is_damage(packed: list[bytes]) -> None:
    log = bytearray(b"".join(packed))
    for sector in range(sum(map(len, packed[:-1])) // SECTOR):
        changed = log.copy()
        changed[sector * SECTOR : (sector + 1) * SECTOR] = bytes(SECTOR)
        assert read(bytes(changed))[1].kind == "damaged", sector


def test_noise_behind_the_last_frame_is_damage(packed: list[bytes], rng: random.Random) -> None:
    log = b"".join(packed)
    for _ in range(100):
        noise = bytearray(rng.randbytes(rng.randrange(HEADER_BYTES, 2000)))
        noise[0] |= 1
        _, stop = read(log + bytes(noise))
        assert (stop.kind, stop.offset) == ("damaged", len(log))


def test_erasing_keeps_every_size_and_leaves_nothing_of_the_content(frames: list[Frame], packed: list[bytes]) -> None:
    for each, before in zip(frames, packed, strict=True):
        for erased in range(1, 1 << len(each.rows)):
            seqs = [row.seq for place, row in enumerate(each.rows) if erased >> place & 1]
            after = pack_frame(erased_frame(each, {"agent": seqs}), len(before))
            assert len(after) == len(before)
            ((found,), stop) = read(after)
            assert stop.kind == "end"
            for row, old in zip(found.rows, each.rows, strict=True):
                assert row == (old.without_content() if row.seq in seqs else old)
                assert row.erased == (row.seq in seqs)
                assert not row.erased or len(old.body) < 3 or old.body not in after
            assert after[HEADER_BYTES + length_of(after) :].strip(b"\0") == b""


def test_what_is_no_row_and_what_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Invalid, match="not a row"):
        pack_frame(Frame(1, 1.0, 1.0, 0, (), (row(1, b"x")._replace(link=b""),)))
    monkeypatch.setattr("repertory.core.journal.log_frames.FRAME_BYTES_MAX", 100)
    with pytest.raises(Invalid, match="larger than a frame"):
        pack_frame(frame(0, b"x" * 100))
    assert FRAME_BYTES_MAX > 100


def test_the_worked_example_of_the_documents_is_packed_and_read() -> None:
    body = b'{"at":1764000000.25,"owner":"worker-1","generation":1}'
    link, salt = bytes.fromhex("6e341eead55cc43a516ae793bb532dc5"), bytes.fromhex("44fd534c61d11eea703f9c904c66f50c")
    at, ends = 1764000000.25, (AgentEnd("support", 1, 0, FrameMark(0, 1)),)
    frame = Frame(1, at, at, 0, ends, (Row("support", 1, 13, 1, 1, link, salt, body),), "marta")
    example = PAGE.split("header  = ")[1].split("```")[0].replace("payload = ", "")
    packed = bytes.fromhex("".join(example.split()))
    assert pack_frame(frame) == packed
    assert read(packed) == ([frame], LogStop(len(packed), "end"))


def test_a_payload_that_is_no_frame_is_named() -> None:
    with pytest.raises(ValueError, match="Expected"):
        FoundFrame(0, 1, memoryview(b"\x01")).read()


def test_marks_lead_to_any_row_in_few_steps(rng: random.Random) -> None:
    """The search of a log's reader, over frames of one to three rows."""
    ends: list[AgentEnd] = []
    offsets: dict[int, AgentEnd] = {}
    offset = seq = 0
    for _ in range(5000):
        rows = [row(seq + number, b"") for number in range(1, rng.randint(2, 4))]
        ends.append(end_behind(ends[-1] if ends else None, rows, offset, 0))
        offsets[offset], seq, offset = ends[-1], rows[-1].seq, offset + rng.randint(100, 200)
    assert max(len(end.marks) for end in ends) == 4
    for wanted in [1, 2, seq, *(rng.randint(1, seq) for _ in range(500))]:
        end, steps = ends[-1], 0
        while (mark := end.mark_behind(wanted)) is not None:
            assert mark.offset < end.last.offset
            end, steps = offsets[mark.offset], steps + 1
        begin = end if wanted >= end.last.first or not end.marks else offsets[end.marks[0].offset]
        behind = next(each for each in ends[begin.number :] if each.seq >= wanted)
        assert begin.last.first <= wanted
        assert behind.number - begin.number <= 16
        assert steps <= 3 * 16


def test_an_end_names_the_last_two_frames_with_snapshots() -> None:
    kinds = [1, RecordKind.SNAPSHOT, 1, RecordKind.SNAPSHOT, RecordKind.SNAPSHOT]
    end: AgentEnd | None = None
    labels: list[tuple[int, ...]] = []
    for number, kind in enumerate(kinds):
        end = end_behind(end, [row(number + 1, b"")._replace(kind=kind)], number * 100, 0)
        labels.append(end.labels)
    assert labels == [(), (100,), (100,), (300, 100), (400, 300)]
