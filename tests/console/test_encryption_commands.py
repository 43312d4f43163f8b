"""`repertory sessions ... --keys`: encrypted sessions on the command line."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from repertory import Agent, LocalKeys, ScriptedModel, SQLiteSessions
from repertory.app.sessions.sessions import PlacedSession
from repertory.console.main import main

pytestmark = pytest.mark.real_time
Run = Callable[..., tuple[int, str, str]]
MASTER = b"m" * 32


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in an empty home: exit code, standard output, standard error."""
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("REPERTORY_KEYS", raising=False)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        try:
            code = main(["sessions", *arguments])
        except SystemExit as error:
            code = int(str(error.code))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def talk(place: SQLiteSessions) -> None:
    async def ask() -> None:
        agent = Agent(ScriptedModel(["good day"]), session_manager=PlacedSession("one", place), callback_handler=None)
        async with agent:
            await agent.invoke_async("hello canary")

    anyio.run(ask)


@pytest.fixture
def database(tmp_path: Path) -> str:
    """An encrypted database, with its keys in the folder `keys` of the current folder."""
    talk(SQLiteSessions(tmp_path / "a.db", encryption=LocalKeys(tmp_path / "keys")))
    return str(tmp_path / "a.db")


def test_reading_commands_need_the_keys_and_say_so(run: Run, database: str, tmp_path: Path) -> None:
    for command in (("show", "one"), ("export", "one", "x.jsonl"), ("history", "one")):
        code, _, err = run(*command, "--at", database)
        assert code != 0
        assert "--keys" in err
        assert run(*command, "--at", database, "--keys", "keys")[0] == 0
        (tmp_path / "x.jsonl").unlink(missing_ok=True)
    assert "canary" in run("search", "canary", "--at", database, "--keys", "keys")[1]
    code, out, _ = run("search", "canary", "--at", database, "--json")
    assert (code, json.loads(out)["hits"], list(json.loads(out)["unreadable"])) == (1, [], ["one"])


def test_the_environment_names_keys_for_places_that_can_be_encrypted(
    run: Run, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPERTORY_KEYS", "keys")
    assert "canary" in run("show", "one", "--at", database)[1]
    (tmp_path / "documents").mkdir()
    assert run("list", "--at", f"files:{tmp_path / 'documents'}")[0] == 0


def test_keys_for_a_documented_layout_are_refused_with_what_can_be_encrypted(run: Run, database: str) -> None:
    for place in ("files:documents", "snapshots:folder"):
        code, _, err = run("list", "--at", place, "--keys", "keys")
        assert code != 0
        assert "SQLite, PostgreSQL and journals" in err


def test_a_key_is_rotated_and_erased(run: Run, database: str) -> None:
    code, out, _ = run("rotate-key", "one", "--at", database, "--keys", "keys", "--json")
    assert code == 0
    assert len(json.loads(out)["key_id"]) == 16
    assert "canary" in run("show", "one", "--at", database, "--keys", "keys")[1]
    assert run("erase-key", "one", "--at", database, "--keys", "keys")[0] != 0  # It asks, and nobody answers.
    assert run("erase-key", "one", "--at", database, "--keys", "keys", "--yes")[0] == 0
    assert "erased" in run("list", "--at", database, "--keys", "keys")[1]
    code, _, err = run("show", "one", "--at", database, "--keys", "keys")
    assert code != 0
    assert "erased" in err
    code, out, _ = run("doctor", "--at", database, "--keys", "keys")
    assert code == 0
    assert "only its chain was examined" in out
    assert run("delete", "one", "--at", database, "--keys", "keys", "--yes")[0] == 0
    assert run("erase-key", "one", "--at", database, "--yes")[0] != 0


def test_the_doctor_proves_chains_without_keys(run: Run, database: str) -> None:
    code, out, _ = run("doctor", "--at", database)
    assert code == 0
    assert "1 of 1 sessions are sound" in out
    assert "--keys" in out


def test_a_copy_is_encrypted_with_keys_of_its_own(run: Run, database: str, tmp_path: Path) -> None:
    copied = run("copy", "one", "--at", database, "--keys", "keys", "--to", "b.db", "--to-keys", "other keys")
    assert copied[0] == 0, copied
    assert b"canary" not in (tmp_path / "b.db").read_bytes()
    assert "canary" in run("show", "one", "--at", "b.db", "--keys", "other keys")[1]
    assert run("copy", "one", "--at", database, "--keys", "keys", "--to", "plain.db")[0] == 0
    assert "canary" in run("show", "one", "--at", "plain.db")[1]


def test_a_master_key_comes_from_the_environment(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk(SQLiteSessions(tmp_path / "m.db", encryption=LocalKeys(tmp_path / "wrapped", master_key=MASTER)))
    code, _, err = run("show", "one", "--at", "m.db", "--keys", "wrapped")
    assert code != 0
    assert "master key" in err
    monkeypatch.setenv("REPERTORY_MASTER_KEY", MASTER.hex())
    assert "canary" in run("show", "one", "--at", "m.db", "--keys", "wrapped")[1]
    for wrong in ("no hexadecimal", "abcd"):
        monkeypatch.setenv("REPERTORY_MASTER_KEY", wrong)
        code, _, err = run("show", "one", "--at", "m.db", "--keys", "wrapped")
        assert code != 0
        assert "32" in err


@pytest.mark.parametrize("keys", ["kms:", "kms:key", "kms:,folder", "kms:key,"])
def test_a_place_of_keys_that_is_none_is_refused(run: Run, database: str, keys: str) -> None:
    code, _, err = run("show", "one", "--at", database, "--keys", keys)
    assert code != 0
    assert "kms:KEY,FOLDER" in err
