"""Files of lines are streamed: whole under their name or not there, and read line by line whatever their size."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from repertory.backends import line_files
from repertory.backends.line_files import READ_BYTES, new_file, read_lines
from repertory.errors import AlreadyExists, CorruptJournal, Invalid, NotFound

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


async def written(path: Path, *pieces: bytes) -> None:
    async with new_file(path, overwrite=True) as write:
        for piece in pieces:
            await write(piece)


async def read(path: Path) -> list[bytes]:
    return [line async for line in read_lines(path)]


async def test_lines_of_any_length_are_read_as_they_were_written(tmp_path: Path, rng: random.Random) -> None:
    lines = [rng.randbytes(rng.choice([0, 1, 70, 3 * READ_BYTES])).replace(b"\n", b"") for _ in range(40)]
    await written(tmp_path / "a", *(line + b"\n" for line in lines))
    assert await read(tmp_path / "a") == lines
    await written(tmp_path / "a", b"\n".join([*lines, b"last"]))
    assert await read(tmp_path / "a") == [*lines, b"last"]


@pytest.mark.parametrize(
    ("content", "lines"), [(b"", []), (b"\n", [b""]), (b"a", [b"a"]), (b"a\n\nb\n", [b"a", b"", b"b"])]
)
async def test_small_files_are_read_like_large_ones(tmp_path: Path, content: bytes, lines: list[bytes]) -> None:
    await written(tmp_path / "a", content)
    assert await read(tmp_path / "a") == lines


async def test_asyncio_streams_by_aiofiles(tmp_path: Path, anyio_backend_name: str) -> None:
    await written(tmp_path / "a", b"a\n")
    if anyio_backend_name == "asyncio":
        assert "aiofiles" in sys.modules


async def test_a_line_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "LINE_BYTES_MAX", READ_BYTES)
    await written(tmp_path / "a", b"short\n", b"x" * (3 * READ_BYTES))
    with pytest.raises(CorruptJournal) as error:
        await read(tmp_path / "a")
    assert error.value.fields == {"file": str(tmp_path / "a"), "line": 2}


async def test_what_the_file_system_refuses_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path, kind in [
        (tmp_path / "none", NotFound),
        (tmp_path / "folder", Invalid),
        (tmp_path / ("x" * 300), Invalid),
        (tmp_path / "a\0b", Invalid),
    ]:
        with pytest.raises(kind):
            await read(path)
    for path, kind in [
        (tmp_path / "none" / "file", NotFound),
        (tmp_path / "folder", Invalid),
        (tmp_path / ("x" * 300), Invalid),
        (tmp_path / "a\0b", Invalid),
    ]:
        with pytest.raises(kind):
            await written(path, b"x")
    await written(tmp_path / "file", b"x")
    with pytest.raises(AlreadyExists):
        async with new_file(tmp_path / "file") as write:
            await write(b"y")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
