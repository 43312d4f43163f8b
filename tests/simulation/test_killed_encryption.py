"""SIGKILL at any instant in an encrypted place: every acknowledged turn can be read, also while keys are rotated."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import anyio
import pytest

from repertory import (
    Agent,
    FileStorage,
    JournalSessions,
    LocalKeys,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
)
from repertory.app.host.blocking import blocking_host
from repertory.app.sessions.sessions import PlacedSession
from repertory.core.journal.rows import Row
from repertory.core.journal.sealing import head_of, is_sealed
from repertory.core.messages import check_next, text_of
from repertory.errors import SessionBusy
from tests.simulation.dying_process import DyingProcess

pytestmark = pytest.mark.real_time
WORKER = Path(__file__).with_name("dying_worker.py")
ROTATOR = (
    "import sys, anyio\n"
    "from repertory import LocalKeys, Sessions, SQLiteSessions\n"
    "async def main():\n"
    "    sessions = Sessions(SQLiteSessions(sys.argv[1], encryption=LocalKeys(sys.argv[2])))\n"
    "    while True:\n"
    "        print((await sessions.rotate_key('s1')).key_id, flush=True)\n"
    "anyio.run(main)\n"
)
KILLS = 8


def worker(place: Path, ledger: Path, first: int) -> DyingProcess:
    return DyingProcess(sys.executable, str(WORKER), str(place), str(ledger), str(first))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["sqlite", "journal"])
def test_every_acknowledged_turn_survives_kills_and_rotations_and_no_word_of_it_is_readable(
    kind: str, tmp_path: Path, rng: random.Random
) -> None:
    keys, ledger = LocalKeys(tmp_path / "keys"), tmp_path / "ledger"
    (tmp_path / "keys").mkdir(mode=0o700)
    stored = tmp_path / ("a.db" if kind == "sqlite" else "objects")
    place = (
        SQLiteSessions(stored, encryption=keys)
        if kind == "sqlite"
        else JournalSessions(FileStorage(stored), encryption=keys)
    )
    acknowledged: list[str] = []
    rotated: list[str] = []
    next_turn = 0
    for _ in range(KILLS):
        said = worker(stored, ledger, next_turn).kill_after(rng.uniform(0, 0.05))
        acknowledged += said
        next_turn += len(said) + 1
        if kind == "sqlite":
            rotated += DyingProcess(sys.executable, "-c", ROTATOR, str(stored), str(tmp_path / "keys")).kill_after(
                rng.uniform(0, 0.05)
            )
        else:
            rotated.append(anyio.run(_rotated, place))
    agent = Agent(ScriptedModel(["x"]), session_manager=PlacedSession("s1", place), callback_handler=None)
    messages = blocking_host().run(agent.history)
    previous = None
    for message in messages:
        check_next(previous, message)
        previous = message
    asked = [text_of(message) for message in messages]
    for line in acknowledged:
        turn, _, answer = line.partition(" ")
        position = next(n for n, text in enumerate(asked) if text.endswith(f"turn {turn}"))
        assert asked[position + 3] == answer
    effects = ledger.read_text().splitlines()
    assert len(effects) == len(set(effects))
    files = [stored] if stored.is_file() else [path for path in stored.rglob("*") if path.is_file()]
    files += [path for path in tmp_path.glob("a.db-*") if path.is_file()]
    assert not any(b"turn " in path.read_bytes() for path in files)
    rows = anyio.run(_rows, place)
    assert all(is_sealed(row) for row in rows)
    used = {head.key_id.hex() for row in rows if (head := head_of(bytes(row.body))) is not None}
    assert len(used) > 1
    assert len(rotated) >= KILLS


async def _rotated(place: JournalSessions) -> str:
    with anyio.fail_after(30):
        while True:
            try:
                return (await Sessions(place).rotate_key("s1")).key_id
            except SessionBusy:
                await anyio.sleep(0.05)


async def _rows(place: SQLiteSessions | JournalSessions) -> list[Row]:
    store = place.open_store()
    try:
        return list(await store.load("s1", "default", whole=True))
    finally:
        await store.aclose()
