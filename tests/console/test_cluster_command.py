"""`repertory cluster` over real places: what it prints, and that looking changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from repertory.console.main import main
from tests.postgres_server import needed, programs, shared_server
from tests.service.embedding_process import serving

pytestmark = pytest.mark.real_time

Run = Callable[..., tuple[int, str, str]]
NOTHING = "No process shares these sessions.\n\nNo work is pending.\n\nNo posted calls.\n"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in an empty home: exit code, standard output, standard error."""
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(["cluster", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_looking_where_nothing_is_makes_nothing(run: Run, tmp_path: Path) -> None:
    for arguments in ((), ("--json",), ("retry", "s")):
        code, out, err = run(*arguments, "--at", "none.db")
        assert (code, out) == (1, "")
        assert "there are no sessions" in err
    assert run() == (0, NOTHING, "")
    assert json.loads(run("--json")[1]) == {"peers": [], "pending_work": [], "calls": []}
    code, out, err = run("retry", "s")
    assert (code, out) == (1, "")
    assert "no parked call" in err
    assert list(tmp_path.iterdir()) == []


def test_looking_into_an_empty_postgresql_database_makes_no_tables(run: Run) -> None:
    needed(programs())
    server = shared_server()
    server.sql("DROP SCHEMA IF EXISTS looked_at CASCADE")
    assert run("--at", f"{server.url}#looked_at") == (0, NOTHING, "")
    assert run("retry", "s", "--at", f"{server.url}#looked_at")[0] == 1
    assert server.sql("SELECT 1 FROM pg_namespace WHERE nspname = 'looked_at'") == []


def test_sessions_that_only_one_process_may_have_are_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for arguments in (["--at", f"journal:{tmp_path}/a"], ["retry", "s", "--at", f"files:{tmp_path}/a"]):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        assert "these cannot be shared" in err
        assert len(err.splitlines()) == 1


def test_the_workers_of_a_server_are_listed_while_they_live(run: Run, tmp_path: Path) -> None:
    database = tmp_path / "shared" / "a.db"
    database.parent.mkdir()
    with serving("uvicorn-asyncio", database, "tests.console.lifespan_service:app", SHARED="1") as server:
        assert server.say("s", "hello").status == 200
        (peer,) = json.loads(run("--at", str(database), "--json")[1])["peers"]
        assert (peer["agents"], peer["room"], peer["busy"]) == (["helper"], 500, 0)
        assert peer["address"].startswith("unix:")
        assert peer["name"] in run("--at", str(database), "--wait", "1")[1]
        server.program.kill()
        server.program.exit_code()
        assert run("--at", str(database)) == (0, NOTHING, "")
