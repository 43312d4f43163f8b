"""The container and its compose file name what exists, agree with each other, and the service that they run works."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.postgres_server import NAME, PostgresServer
from tests.service.embedding_process import started
from tests.service.serving_process import COMMAND, Served
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORCED_S = 5
"""Seconds after the drain's at which `repertory serve` ends by force."""
SPARE_S = 5
TOKEN = "a-token-of-a-caller-0123456789"


class Dockerfile:
    """The instructions of the Dockerfile, in order."""

    @cached_property
    def instructions(self) -> list[tuple[str, str]]:
        text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        return [(line.split()[0], line.partition(" ")[2]) for line in lines if line.strip()]

    def all(self, name: str) -> list[str]:
        """What stands behind each instruction of that name."""
        return [text for instruction, text in self.instructions if instruction == name]

    def last(self, name: str) -> str:
        """What counts of an instruction."""
        return self.all(name)[-1]

    @property
    def command(self) -> list[str]:
        """What a container runs that is told nothing."""
        return [*json.loads(self.last("ENTRYPOINT")), *json.loads(self.last("CMD"))]

    @property
    def probe(self) -> list[str]:
        """How its health is asked for."""
        return json.loads(self.last("HEALTHCHECK").partition("CMD ")[2])


DOCKERFILE = Dockerfile()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text(encoding="utf-8"))
AGENTS: dict[str, Any] = COMPOSE["services"]["agents"]
DATABASE: dict[str, Any] = COMPOSE["services"]["database"]
CONFIGURATION = ROOT / "deploy/repertory.toml"


def seconds(duration: str) -> int:
    """A duration of compose, in whole seconds."""
    assert re.fullmatch(r"\d+s", duration)
    return int(duration[:-1])


def test_what_the_build_copies_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    let_through = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        name for text in DOCKERFILE.all("COPY") if not text.startswith("--from") for name in shlex.split(text)[:-1]
    ]
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, pattern) for pattern in let_through), name
    assert set(let_through) == set(copied)


def test_the_extras_of_the_image_exist_and_are_locked() -> None:
    (extras,) = [shlex.split(text.partition("=")[2])[0] for text in DOCKERFILE.all("ARG") if text.startswith("EXTRAS")]
    done = subprocess.run(
        [sys.executable, "scripts/locked.py", *extras.split()], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for package in ("anyio", "starlette", "uvicorn", "psycopg", "psycopg-binary", "pydantic-core"):
        assert re.search(rf"^{package}==\S+.*(\n\s+--hash=sha256:\w+ ?\\?)+", done.stdout, re.MULTILINE), package
    assert "pytest==" not in done.stdout


def test_the_image_runs_a_command_of_ours_as_an_ordinary_user() -> None:
    program, subcommand, *options = DOCKERFILE.command
    assert program in PROJECT["scripts"]
    shown = subprocess.run(
        [sys.executable, "-m", "repertory.console.main", subcommand, "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(option in shown.stdout.split() for option in options if option.startswith("--"))
    assert int(DOCKERFILE.last("USER")) > 0
    assert DOCKERFILE.last("STOPSIGNAL") == "SIGTERM"
    # One base for both stages, which a release pins by its digest.
    assert DOCKERFILE.all("FROM") == ["${BASE} AS build", "${BASE}"]
    assert "BASE=python:${PYTHON}-slim" in DOCKERFILE.all("ARG")
    (version,) = [text.partition("=")[2] for text in DOCKERFILE.all("ARG") if text.startswith("PYTHON")]
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]


def test_compose_names_what_exists() -> None:
    folder = ROOT / "deploy"
    assert (folder / AGENTS["build"]["context"] / "Dockerfile").is_file()
    assert AGENTS["image"] == f"repertory:{PROJECT['version']}"
    mounts = [mount.split(":") for service in COMPOSE["services"].values() for mount in service["volumes"]]
    for source, *_ in mounts:
        assert (folder / source).exists() if source.startswith(".") else source in COMPOSE["volumes"], source
    assert "/etc/repertory/repertory.toml" in DOCKERFILE.command
    assert any(mount[1:] == ["/etc/repertory/repertory.toml", "ro"] for mount in mounts)
    assert all(port.rpartition(":")[2] == DOCKERFILE.last("EXPOSE") for port in AGENTS["ports"])


def test_secrets_come_from_the_environment() -> None:
    for service in COMPOSE["services"].values():
        for name, value in service["environment"].items():
            if re.search(r"PASSWORD|TOKEN|KEY|SECRET", name):
                assert re.fullmatch(r"\$\{[A-Z_]+:[?-].*\}", value), name


def test_the_agents_wait_for_the_database_and_end_before_they_are_killed() -> None:
    assert AGENTS["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert DATABASE["healthcheck"]["test"][0] == "CMD-SHELL"
    assert AGENTS["healthcheck"]["test"] == ["CMD", *DOCKERFILE.probe]
    drain_s = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["runtime"]["drain_timeout_s"]
    assert seconds(AGENTS["stop_grace_period"]) >= drain_s + FORCED_S + SPARE_S


def test_the_configuration_is_right_and_leads_to_the_database() -> None:
    url = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["sessions"]["url"]
    user, name = DATABASE["environment"]["POSTGRES_USER"], DATABASE["environment"]["POSTGRES_DB"]
    assert url == f"postgresql://{user}@database/{name}"
    command = [sys.executable, "-m", "repertory.console.main", "check", str(CONFIGURATION)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_what_the_container_runs_answers_its_probe_and_its_callers_and_drains(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    postgres.sql("DROP DATABASE IF EXISTS agents")
    postgres.sql("CREATE DATABASE agents")
    text = CONFIGURATION.read_text(encoding="utf-8")
    there = "postgresql://agents@database/agents"
    assert there in text
    configuration = tmp_path / "repertory.toml"
    configuration.write_text(text.replace(there, f"postgresql://{NAME}@127.0.0.1:{postgres.port}/agents"))
    options = DOCKERFILE.command[2:]
    options[options.index("--config") + 1] = str(configuration)
    port = options[options.index("--port") + 1]
    options[options.index("--port") + 1] = "0"
    with started(*COMMAND, *options, folder=tmp_path, REPERTORY_SERVE_TOKEN=TOKEN) as program:
        served = Served(program)
        probe = [part.replace(f":{port}/", f":{served.port}/") for part in DOCKERFILE.probe]
        assert probe != DOCKERFILE.probe
        assert subprocess.run([sys.executable, *probe[1:]], check=False, timeout=20).returncode == 0
        turns = "/v1/agents/helper/sessions/ada/turns"
        assert served.ask("POST", turns, {"prompt": "My cat is called Byron."}).status in (401, 421)
        assert served.ask("POST", turns, {"prompt": "My cat is called Byron."}, bearer=TOKEN).status == 200
        program.signal(signal.SIGTERM)
        assert program.exit_code() == 0


@pytest.mark.timeout(900)
def test_the_image_builds(tmp_path: Path) -> None:
    """With the image that it begins with already there: a test downloads none."""
    (version,) = [text.partition("=")[2] for text in DOCKERFILE.all("ARG") if text.startswith("PYTHON")]
    base = f"docker.io/library/python:{version}-slim"
    builders = {"docker": ["image", "inspect"], "buildah": ["inspect", "--type", "image"]}
    for program, look in builders.items():
        found = shutil.which(program)
        if found is None:
            continue
        if subprocess.run([found, *look, base], capture_output=True, check=False).returncode:
            continue
        command = [found, "build", "--tag", "repertory:tested", "--file", "Dockerfile", "."]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    pytest.skip(f"NOT TESTED: neither docker nor buildah is here with the image {base}")
