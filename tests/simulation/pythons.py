"""Installs the wheel on every Python that it names, with the oldest and with the newest packages, and tests it there.

    python -m tests.simulation.pythons [3.11 3.12 3.13 3.14] [oldest] [newest]

`oldest`: each package as old as its bound allows, with wheels. `newest`: whatever the index has. Each environment runs
the program of the README and the fast lane of the tests of `PARTS`. An interpreter that can be had nowhere is NOT
TESTED, and said so last. Needs uv and the package index. REPERTORY_PYTHONS names interpreters, separated by colons.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.markdown import examples
from tests.docs.running import agrees

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = tuple(
    line.rpartition(" ")[2]
    for line in PROJECT["project"]["classifiers"]
    if line.startswith("Programming Language :: Python :: 3.")
)
KINDS = {"oldest": "lowest-direct", "newest": "highest"}
PARTS = (
    "tests/test_import.py",
    "tests/core",
    "tests/runtime",
    "tests/actors",
    "tests/backends/sessions/test_sqlite.py",
    "tests/backends/sessions/test_contract.py",
    "tests/backends/memory/test_memory_contract.py",
    "tests/app/agent/test_agent.py",
    "tests/app/sessions/test_durable_agent.py",
    "tests/app/embedding/test_runtime.py",
    "tests/app/agent/test_structured_output.py",
)
TOOLS = (
    *("pytest", "pytest-asyncio", "pytest-timeout", "pytest-trio", "pytest-xdist"),
    *("ag-ui-protocol", "blockbuster", "hatchling", "hypothesis"),
)
"""What runs those tests: of the group `dev`, so that its other packages push nothing up."""
LONGEST_S = 1800
"""Seconds after which a command counts as hung."""


def say(*words: object) -> None:
    print("pythons:", *words, flush=True)


def run(*command: str | Path) -> str:
    """What a command prints. Its failure ends the campaign's part."""
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=LONGEST_S
    )
    if done.returncode:
        print(done.stdout, flush=True)
        done.check_returncode()
    return done.stdout


def uv() -> str:
    """The program uv."""
    found = shutil.which("uv")
    if found is None:
        sys.exit("pythons: needs uv: pip install uv")
    return found


def interpreter(version: str) -> Path | None:
    """An interpreter of that version: one that is named, one that uv or pyenv has, or one that uv can bring."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = [Path(path) for path in os.environ.get("REPERTORY_PYTHONS", "").split(":") if path]
    for path in (*named, *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)):
        if _version(path) == version:
            return path
    for action in ((), ("install", "--quiet")):
        if action:
            subprocess.run([uv(), "python", *action, version], capture_output=True, check=False)
        found = subprocess.run(
            [uv(), "python", "find", "--no-project", "--system", version], capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            return Path(found.stdout.strip())
    return None


def _version(path: Path) -> str:
    asked = subprocess.run(
        [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def tools() -> list[str]:
    """The requirements of the group `dev` that run tests."""
    group = PROJECT["dependency-groups"]["dev"]
    return [need for need in group if need.split(">")[0].split("[")[0] in TOOLS]


@dataclass
class Campaign:
    """What was tested, and what could not be."""

    folder: Path
    wheel: Path
    failed: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)

    def test(self, version: str, kind: str) -> None:
        """One Python with one choice of packages."""
        name = f"Python {version}, {kind}"
        base = interpreter(version)
        if base is None:
            self.not_tested.append(name)
            return
        try:
            self._readme(self._environment(base, f"{version}-{kind}-alone", KINDS[kind], ()))
            python = self._environment(base, f"{version}-{kind}", KINDS[kind], ("--extra", "all"))
            run(*self._install(python), "-c", self._held(python), *tools())
            workers = ("-n", "auto", "--dist", "worksteal")
            # Old packages call functions of asyncio that newer Pythons are about to remove.
            warned = ("-W", "ignore:'asyncio:DeprecationWarning") if kind == "oldest" else ()
            lines = run(python, "-m", "pytest", "-q", *workers, *warned, "--fast", *PARTS).splitlines()
            say(f"{name}: {next(line for line in reversed(lines) if line.strip())}")
        except (subprocess.SubprocessError, AssertionError) as error:
            self.failed.append(name)
            say(f"{name}: FAILED: {error}")

    def _environment(self, base: Path, name: str, resolution: str, extras: tuple[str, ...]) -> Path:
        """An environment with the wheel and what it needs."""
        say("installing", name)
        place = self.folder / name
        run(uv(), "venv", "--quiet", "--python", base, place)
        python = place / "bin" / "python"
        # Sources of old releases need compilers of their time: the oldest release is the oldest one with a wheel.
        chosen = ("--no-build", "--resolution", resolution, "-r", "pyproject.toml", *extras)
        run(*self._install(python), *chosen)
        run(*self._install(python), "--no-deps", self.wheel)
        return python

    def _install(self, python: Path) -> tuple[str | Path, ...]:
        return uv(), "pip", "install", "--quiet", "--python", python

    def _held(self, python: Path) -> Path:
        """A file that holds the packages of an environment as they are."""
        held = self.folder / "held.txt"
        frozen = run(uv(), "pip", "freeze", "--quiet", "--python", python)
        held.write_text("\n".join(line for line in frozen.splitlines() if "==" in line))
        return held

    def _readme(self, python: Path) -> None:
        """The program of the README runs with the wheel, in a folder of its own."""
        program = examples(ROOT / "README.md")[0]
        with tempfile.TemporaryDirectory(dir=self.folder) as empty:
            done = subprocess.run(
                [python, "-W", "error::DeprecationWarning", "-c", program.source],
                cwd=empty,
                env={**os.environ, "HOME": empty},
                capture_output=True,
                text=True,
                check=False,
            )
        assert done.returncode == 0, done.stderr
        assert agrees(program.prints or "", done.stdout), done.stdout


def main() -> None:
    """Test what is named, or everything."""
    versions = [word for word in sys.argv[1:] if word in PYTHONS] or list(PYTHONS)
    kinds = [word for word in sys.argv[1:] if word in KINDS] or list(KINDS)
    if unknown := set(sys.argv[1:]) - {*PYTHONS, *KINDS}:
        sys.exit(f"pythons: {', '.join(sorted(unknown))}: choose among {', '.join((*PYTHONS, *KINDS))}")
    with tempfile.TemporaryDirectory(prefix="repertory-pythons-") as scratch:
        folder = Path(scratch)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
        campaign = Campaign(folder, next(folder.glob("*.whl")))
        for version in versions:
            for kind in kinds:
                campaign.test(version, kind)
    for name in campaign.not_tested:
        say(f"NOT TESTED: {name}: there is no such interpreter here, and uv can bring none")
    if campaign.failed:
        sys.exit(f"pythons: failed: {'; '.join(campaign.failed)}")


if __name__ == "__main__":
    main()
