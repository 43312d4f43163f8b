"""A process that dies somewhere in a turn that takes something back: the turn is stored with the replacement, or has no
answer, and then the model is asked again.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repertory import FileSessionManager, FileStorage, InMemoryStorage, JournalSessionManager, SQLiteSessionManager
from repertory.backends.objects.in_memory import ObjectShelf
from repertory.backends.ports import ObjectStore
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from tests.app.sessions.tree_sessions import CountingObjects, TreeSessions
from tests.plugins.kept_bytes import NO, REFUSED, SECRET, Kept, in_folder, on_shelf

pytestmark = pytest.mark.anyio


class DyingStorage(InMemoryStorage):
    """Objects of which a request, counted from 0, is the last that is not answered."""

    def __init__(self, shelf: ObjectShelf, dies_at: int | None = None) -> None:
        super().__init__()
        self._shelf = shelf
        self._dies_at = dies_at
        self.requests: list[str] = []

    def open_objects(self, writer: str) -> ObjectStore:
        return CountingObjects(super().open_objects(writer), self.requests, self._dies_at)


def journal(shelf: ObjectShelf, dies_at: int | None) -> tuple[Kept, list[str]]:
    storage = DyingStorage(shelf, dies_at)
    return Kept(lambda: JournalSessionManager("s", storage, takeover=True), on_shelf(shelf)), storage.requests


def documents(shelf: ObjectShelf, dies_at: int | None) -> tuple[Kept, list[str]]:
    tree = replace(TreeSessions(shelf=shelf), takeover=True, dies_at=dies_at)
    return Kept(lambda: tree, on_shelf(shelf)), tree.requests


async def said(kept: Kept, *replies: Any) -> list[str]:
    return [text_of(message) for message in await kept.agent(*replies).history()]


@pytest.mark.parametrize("durability", ["pipelined", "strict"])
@pytest.mark.parametrize("place", [journal, documents])
async def test_wherever_the_objects_die_the_original_is_gone_in_the_end(place: Any, durability: Any) -> None:
    """A death at every request of the turn, those that destroy included."""
    for dies_at in range(1000):
        shelf = ObjectShelf()
        kept, requests = place(shelf, dies_at)
        outcome: Any = None
        try:
            outcome = await kept.agent(REFUSED, slowly=durability == "strict", durability=durability).invoke_async(
                SECRET
            )
        except RepertoryError as error:
            outcome = error
        survived = len(requests) <= dies_at
        again, _ = place(shelf, None)
        before = await said(again)
        assert before in ([], [SECRET], [NO, "blocked"], [NO])
        if len(before) < 2:
            await again.agent(REFUSED).invoke_async(None if before else SECRET)
        assert await said(again) == [NO, "blocked"]
        assert again.holders() == []
        if survived:
            assert str(outcome) == "blocked"
            return


CHILD = """
import sys

import anyio

from tests.plugins.kept_bytes import REFUSED, SECRET, Kept
from tests.simulation.test_redaction_crashes import MANAGERS

kept = Kept(lambda: MANAGERS[sys.argv[1]](sys.argv[2]), None)

async def stored():
    if sys.argv[3] == "asked":
        print("asked", flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)

agent = kept.agent(REFUSED)
agent.model._pause = stored
with agent:
    agent(SECRET)
    print("answered", flush=True)
    sys.stdin.read()
"""

MANAGERS: dict[str, Any] = {
    "sqlite": lambda folder: SQLiteSessionManager("s", Path(folder) / "a.db"),
    "journal": lambda folder: JournalSessionManager("s", FileStorage(folder)),
    "documents": lambda folder: FileSessionManager("s", folder),
}


@pytest.mark.real_time
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("kind", MANAGERS)
@pytest.mark.parametrize("moment", ["asked", "answered"])
async def test_a_process_that_is_killed_leaves_no_half_of_it(kind: str, moment: str, tmp_path: Path) -> None:
    """Killed before the answer, the prompt stands there as it was said and waits for one; killed after it, and with
    everything still open, the original is gone.
    """
    command = [sys.executable, "-c", CHILD, kind, str(tmp_path), moment]
    root = Path(__file__).parents[2]
    child = subprocess.Popen(  # noqa: ASYNC220 - it is waited for in lines
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    )
    assert child.stdin is not None
    assert child.stdout is not None
    kept = Kept(lambda: MANAGERS[kind](tmp_path), in_folder(tmp_path))
    try:
        assert child.stdout.readline().strip() == moment
        if moment == "asked":
            await kept.until_stored()
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(20)
        child.stdin.close()
        child.stdout.close()
    if moment == "answered":
        assert kept.holders() == []
        assert await said(kept) == [NO, "blocked"]
        return
    assert await said(kept) == [SECRET]
    await kept.agent(REFUSED).invoke_async(None)
    assert await said(kept) == [NO, "blocked"]
    assert kept.holders() == []
