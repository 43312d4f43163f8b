"""`repertory work`, `send` and `queue`, as programs; and how a program's runtime is found."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from repertory import Runtime
from repertory.console.queue_commands import queue_named
from repertory.errors import Invalid
from repertory.service.process.targets import load_target
from tests.backends.sessions.postgres_places import schema_of
from tests.postgres_server import PostgresServer
from tests.service.embedding_process import started

pytestmark = pytest.mark.real_time

SERVICE = """
from repertory import Agent, AgentSpec, Runtime, SQLiteSessions
from tests.worker.obedient_model import ObedientModel

runtime = Runtime(sessions=SQLiteSessions("agents.db"), drain_timeout_s=20)
runtime.agent(AgentSpec(name="helper", model=ObedientModel(), retry_strategy=None))
agent = Agent(ObedientModel())


def make():
    return runtime


async def wrong():
    return runtime


class Deep:
    made = runtime
"""
COMMAND = ("-m", "repertory.console.main")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "some_service.py").write_text(SERVICE)
    return tmp_path


def said(folder: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    with started(*COMMAND, *arguments, folder=folder) as program:
        assert program.exit_code() == code, program.output
        return "\n".join(program.output)


@pytest.mark.parametrize("queue", ["sqlite:jobs.db", "postgresql"])
@pytest.mark.parametrize("trio", [[], ["--trio"]], ids=["asyncio", "trio"])
def test_jobs_that_were_sent_are_done_and_what_was_set_aside_is_put_back(
    folder: Path, queue: str, trio: list[str], postgres: PostgresServer
) -> None:
    queue = f"{postgres.url}#{schema_of(folder)}" if queue == "postgresql" else queue
    about = ("--agent", "helper", "--session", "s")
    assert said(folder, "send", queue, *about, "--token", "one", "hello") == "one"
    said(folder, "send", queue, "--agent", "nobody", "--session", "t", "--token", "two", "hello")
    out = said(folder, "work", "some_service:make", "--queue", queue, "--until-empty", "--tries", "1", *trio)
    assert "1 job finished, 0 given back, 1 set aside" in out
    report = json.loads(said(folder, "queue", queue, "--json"))
    assert report["counts"] == {"waiting": 0, "taken": 0, "set_aside": 1}
    (kept,) = report["set_aside"]
    assert kept["token"] == "two"
    shown = said(folder, "queue", queue)
    assert "no agent, graph or swarm of this name is in the worker: nobody" in shown
    assert "1 waiting" in said(folder, "queue", queue, "--retry", kept["id"])
    assert "no job of this id" in said(folder, "queue", queue, "--retry", kept["id"], code=1)


def test_sigterm_finishes_the_turn_in_hand_and_a_drain_timeout_gives_back_what_takes_longer(folder: Path) -> None:
    queue = "sqlite:jobs.db"
    for session, prompt in (("a", "slow one"), ("b", "endless one")):
        said(folder, "send", queue, "--agent", "helper", "--session", session, prompt)
    work = ("work", "some_service:runtime", "--queue", queue, "--drain-timeout", "2")
    with started(*COMMAND, *work, folder=folder) as program:
        assert {program.wait_for("begun (.*)")[1] for _ in range(2)} == {"slow one", "endless one"}
        program.signal(signal.SIGTERM)
        program.wait_for("1 job finished, 1 given back, 0 set aside")
        assert program.exit_code() == 0
    assert "1 waiting, 0 taken, 0 set aside." in said(folder, "queue", queue)


def test_a_runtime_is_found_by_its_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "some_service", raising=False)
    found = [load_target(f"some_service:{name}") for name in ("runtime", "make", "Deep.made")]
    assert isinstance(found[0], Runtime)
    assert found[0] is found[1] is found[2]
    (folder / "broken_service.py").write_text("import no_such_thing_at_all\n")
    for text, words in (
        ("some_service", "module:name"),
        ("some_service:", "module:name"),
        ("no_such_service:runtime", "no module `no_such_service`"),
        ("some_service:nothing", "there is no `nothing`"),
        ("some_service:runtme", "did you mean `runtime`"),
        ("some_service:wrong", "not async"),
        ("some_service:agent", "is no Runtime.*got='Agent'"),
        ("some_service:SQLiteSessions.__name__", "no Runtime"),
        ("broken_service:runtime", "it needs `no_such_thing_at_all`"),
    ):
        with pytest.raises(Invalid, match=words):
            load_target(text)


def test_what_is_no_queue_is_told_the_forms() -> None:
    for text in ("jobs.db", "sqlite:", "folder:spool", "valkey://host/0", "redis:x", ""):
        with pytest.raises(Invalid, match="sqlite:FILE"):
            queue_named(text)


CONFIGURATION = """
[sessions]
kind = "sqlite"
path = "agents.db"

[queue]
url = "sqlite:jobs.db"
concurrency = 4

[agents.helper]
model = "offline"
"""


@pytest.mark.parametrize("url", ["folder:spool", "valkey://me:hunter22@host/0"])
def test_a_configuration_that_names_another_kind_of_queue_is_told_the_forms(folder: Path, url: str) -> None:
    text = CONFIGURATION.replace('"sqlite:jobs.db"', '{ file = "queue.txt" }')
    (folder / "repertory.toml").write_text(text)
    (folder / "queue.txt").write_text(url)
    out = said(folder, "work", "--until-empty", code=2)
    assert "queue.url" in out
    assert "a queue is sqlite:FILE, postgresql://" in out
    assert "hunter22" not in out


def test_the_jobs_of_a_configuration_may_be_in_postgresql(folder: Path, postgres: PostgresServer) -> None:
    url = f"{postgres.url}#{schema_of(folder)}"
    (folder / "repertory.toml").write_text(CONFIGURATION.replace("sqlite:jobs.db", url))
    said(folder, "send", url, "--agent", "helper", "--session", "s", "My cat is called Byron.")
    assert "1 job finished, 0 given back" in said(folder, "work", "--until-empty")


def test_work_takes_runtime_and_queue_from_the_configuration(folder: Path) -> None:
    (folder / "repertory.toml").write_text(CONFIGURATION)
    said(folder, "send", "sqlite:jobs.db", "--agent", "helper", "--session", "s", "My cat is called Byron.")
    assert "1 job finished, 0 given back" in said(folder, "work", "--until-empty")
    assert "Byron" in said(folder, "sessions", "show", "s", "--at", "agents.db")
    assert "give a target or --config" in said(folder, "work", "some_service:make", "--config", "x.toml", code=2)
    (folder / "repertory.toml").write_text(CONFIGURATION.replace("concurrency = 4", "concurrency = -4"))
    assert "repertory.toml: queue.concurrency" in said(folder, "work", code=2)
    (folder / "repertory.toml").write_text('[agents.helper]\nmodel = "offline"\n')
    assert "say where the jobs are" in said(folder, "work", code=2)
    (folder / "repertory.toml").unlink()
    assert "name a runtime" in said(folder, "work", code=2)
