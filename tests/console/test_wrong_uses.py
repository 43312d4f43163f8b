"""What every command answers when it is used wrongly: a line or two with the next step, and a code of the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager, SQLiteSessions
from repertory.app.sessions.reading import opened
from repertory.console.main import build_parser, main
from repertory.operations.reading import owned

SESSION = ("nobdy",)
RIGHT: dict[str, tuple[str, ...]] = {
    "chat": ("--offline",),
    "sessions list": (),
    "sessions pending": (),
    "sessions questions": (),
    "sessions answer": (*SESSION, "yes"),
    "sessions deliveries": (),
    "sessions resend": SESSION,
    "sessions show": SESSION,
    "sessions history": SESSION,
    "sessions graph": SESSION,
    "sessions search": ("rye",),
    "sessions export": (*SESSION, "out.jsonl"),
    "sessions import": ("in.jsonl",),
    "sessions copy": (*SESSION, "--to", "files:there"),
    "sessions fork": (*SESSION, "new"),
    "sessions diff": (*SESSION, "other"),
    "sessions rewind": (*SESSION, "1"),
    "sessions drop-summary": SESSION,
    "sessions mark": (*SESSION, "label"),
    "sessions prune": (*SESSION, "--keep", "1", "--yes"),
    "sessions redact": (*SESSION, "1", "--yes"),
    "sessions redact-text": (*SESSION, "rye bread", "--yes"),
    "sessions delete": (*SESSION, "--yes"),
    "sessions rotate-key": SESSION,
    "sessions erase-key": (*SESSION, "--yes"),
    "sessions expire": ("30d", "--yes"),
    "sessions doctor": (),
    "replay": (*SESSION, "--with", "model=offline"),
    "cluster": (),
    "cluster retry": SESSION,
    "post": ("Hello!", "--agent", "clerk", "--session", "s"),
    "work": ("no_such_shop:runtime", "--queue", "sqlite:jobs.db"),
    "send": ("sqlite:", "--agent", "clerk", "--session", "s", "Hello!"),
    "queue": ("sqlite:nowhere.db",),
    "top": (),
    "inspect": (),
    "serve": ("no_such_shop:runtime",),
    "check": (),
    "config-schema": (),
    "completion": ("bash",),
    "init": (),
    "migrate": ("nowhere",),
    "memory search": ("rye",),
    "memory add": ("rye",),
    "memory forget": ("1",),
    "memory stores": (),
    "memory dead-letters": (),
    "memory replay": SESSION,
}
"""Every command, with arguments of the right form that name nothing which is there."""
BEGINS = {"chat", "post", "sessions import"}
"""The commands that may make a place."""


def commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Each command that can be run, by its name."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if name and not any(group.required for group in groups):
        yield name, parser
    for group in groups:
        for word, command in group.choices.items():
            yield from commands(command, f"{name} {word}".strip())


EVERY = dict(commands(build_parser()))
WITH_PLACE = [name for name, parser in EVERY.items() if "--at" in parser._option_string_actions and name not in BEGINS]


@pytest.fixture(autouse=True)
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, an empty home, and no model."""
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "REPERTORY_AT", "REPERTORY_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code, and the one or two lines on the error stream."""
    try:
        code = main(arguments)
    except SystemExit as end:
        code = int(str(end.code))
    err = capsys.readouterr().err
    assert 1 <= len(err.splitlines()) <= 2, err
    assert "Traceback" not in err
    assert "fault in repertory" not in err
    return code, err


def test_the_table_has_every_command() -> None:
    assert EVERY.keys() == RIGHT.keys()


@pytest.mark.parametrize("name", [name for name, given in RIGHT.items() if given and name != "chat"])
def test_without_its_arguments_a_command_says_what_is_missing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = answer(capsys, *name.split())
    assert code == 2
    assert "--help`" in err or "name a runtime" in err


@pytest.mark.parametrize("name", RIGHT)
def test_an_unknown_option_is_an_error_of_its_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("sqlite:jobs.db", *RIGHT[name][1:]) if name in ("send", "queue") else RIGHT[name]
    Path("jobs.db").touch()
    code, err = answer(capsys, *name.split(), *given, "--frobnicate")
    assert code == 2
    assert f"`repertory {name} --help` shows what there is" in err


@pytest.mark.parametrize("name", WITH_PLACE)
def test_a_place_that_is_not_there_is_never_made(name: str, nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = answer(capsys, *name.split(), *RIGHT[name], "--at", "no/where.db")
    assert code == 1
    assert "look at the name of the place" in err
    assert not (nothing / "no").exists()


@pytest.mark.parametrize("name", [name for name in WITH_PLACE if name != "inspect"])  # whose pages say it
def test_a_file_that_is_no_place_is_named(name: str, nothing: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nothing / "text.db").write_text("no database at all " * 100)
    if name == "sessions doctor":  # Its report is the answer.
        assert main(["sessions", "doctor", "--at", "text.db"]) == 1
        assert "name another file" in capsys.readouterr().out
        return
    code, err = answer(capsys, *name.split(), *RIGHT[name], "--at", "text.db")
    assert code == 1
    assert "name another file" in err


CONFIGURED = ["check", "serve", "work", "chat", *(name for name in WITH_PLACE if name != "top")]


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_configuration_that_is_no_toml_is_told_with_its_line(
    name: str, nothing: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (nothing / "repertory.toml").write_text("\nthis is [no toml")
    without = {"check": (), "serve": (), "work": (), "chat": ("--config", "repertory.toml")}
    code, err = answer(capsys, *name.split(), *without.get(name, RIGHT[name]))
    assert code == 2
    assert "repertory.toml: no TOML" in err


@pytest.fixture
def nobody(nothing: Path) -> None:
    """A session `nobody` in the default place."""
    with Agent(ScriptedModel(["Noted."]), session_manager=SQLiteSessionManager("nobody"), callback_handler=None) as one:
        one("Rye bread, please.")


NAMED = [name for name, given in RIGHT.items() if given[:1] == SESSION and name != "cluster retry"]


@pytest.mark.parametrize("name", NAMED)
def test_a_session_that_is_not_there_is_answered_with_the_nearest(
    name: str, nobody: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = answer(capsys, *name.split(), *RIGHT[name])
    assert code == 1
    assert "`repertory sessions list` shows what there is. Did you mean nobody?" in err


BUSY = [name for name in NAMED if "--takeover" in EVERY[name]._option_string_actions]


@pytest.mark.parametrize("name", [name for name in BUSY if not name.endswith(("-key", "copy"))])  # which only reads
def test_a_session_that_is_busy_is_told_with_what_to_do(
    name: str, nobody: None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("nobody", *RIGHT[name][1:])

    async def use() -> int:
        async with opened(SQLiteSessions()) as store, owned(store, "nobody", takeover=False):
            return await anyio.to_thread.run_sync(lambda: main([*name.split(), *given]))
        raise AssertionError

    assert anyio.run(use) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "another live owner has the session" in line
    assert line.endswith("wait until it ends, or add --takeover")
    assert "takeover=True" not in line


@pytest.mark.parametrize(
    ("extra", "hidden", "command"),
    [
        ("serve", "starlette", "serve shop:runtime --workers 2"),
        ("serve", "starlette", "serve"),
        ("serve", "h11", "check"),
        ("trio", "trio", "serve --trio --port 0"),
        ("trio", "trio", "work shop:runtime --trio --queue sqlite:jobs.db"),
        ("inspect", "jinja2", "inspect"),
        ("inspect", "h11", "inspect"),
        ("anthropic", "anthropic", "chat --model anthropic"),
        ("openai", "openai", "replay s --with model=openai"),
        ("postgres", "psycopg", "sessions list --at postgresql://a@b/c"),
        ("postgres", "psycopg", "send postgresql://a@b/c --agent a --session s Hello"),
        ("s3", "aiobotocore", "sessions list --at s3://bucket/a"),
        ("sqs", "aiobotocore", "queue sqs:https://sqs.eu-west-1.amazonaws.com/1/jobs"),
        ("encryption", "cryptography", "sessions list --keys keys"),
        ("terminal", "argcomplete", "completion zsh"),
    ],
)
def test_an_extra_that_is_missing_is_a_line_with_the_command_that_installs_it(
    extra: str,
    hidden: str,
    command: str,
    nothing: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (nothing / "repertory.toml").write_text('[agents.support]\nmodel = "offline"\n')
    monkeypatch.setitem(sys.modules, hidden, None)
    code, err = answer(capsys, *command.split())
    assert code == 2
    assert f"pip install 'repertory[{extra}]'" in err
