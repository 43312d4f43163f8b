"""A disk that is really full: calls wait and are told, nothing is half-written, what waited is stored afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel, StorePatience
from repertory.core.messages import text_of
from repertory.errors import Unavailable
from tests.app.embedding.full_disk_process import place

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

KINDS = ["sqlite", "journals", "documents"]


async def history(kind: str, folder: Path, session_id: str) -> list[str]:
    async with Runtime(sessions=place(kind, folder)) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["x"]))).session(session_id)
        return [text_of(message) for message in await session.history()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_files_that_cannot_grow_for_a_while_cost_nothing_that_was_acknowledged(kind: str, tmp_path: Path) -> None:
    program = [sys.executable, str(Path(__file__).parent / "full_disk_process.py"), kind, str(tmp_path)]
    done = await anyio.run_process(program, check=False)
    assert done.returncode == 0, done.stderr.decode()
    said = json.loads(done.stdout)
    met = ["ok", "ok", "StoreUnavailable", "StoreUnavailable", "ok", "StoreUnavailable", "ok", "ok", "ok"]
    assert said["met"] == met
    assert not said["ok"]
    assert said["not_stored"] == [["hasty", [4], True]]
    for session in ("patient", "hasty"):
        assert await history(kind, tmp_path, session) == ["first", "ok", "second", "ok", "third", "ok"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    mounted = subprocess.run(["mount", *options], check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting is not possible here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


def fill(path: Path) -> None:
    """Take every byte that is left."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass


@pytest.mark.parametrize("kind", KINDS)
async def test_a_full_disk_is_waited_for_and_what_was_said_meanwhile_is_stored(kind: str, small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    async with Runtime(sessions=place(kind, small_disk / "home"), patience=StorePatience(wait_s=0.3)) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["ok " * 3000], loop=True))).session("s")
        await session.invoke("first")
        await anyio.to_thread.run_sync(fill, ballast)
        with pytest.raises(Unavailable, match="records="):
            for number in range(100):  # A log may have room in its last page.
                await session.invoke(f"again {number} " * 1000)
        with pytest.raises(Unavailable):
            await session.invoke("never said")
        shown = [text_of(message) for message in await session.messages()]
        assert runtime.stats().records_waiting > 0
        await anyio.to_thread.run_sync(ballast.unlink)
        await session.invoke("last")
        assert (await runtime.drain()).ok
    texts = await history(kind, small_disk / "home", "s")
    assert texts[: len(shown)] == shown
    assert (texts[0], texts[-2]) == ("first", "last")
    assert "never said" not in texts
