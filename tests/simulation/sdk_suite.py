"""Runs the tests that the Strands Agents SDK ships of itself against `repertory.strands`.

    python -m tests.simulation.sdk_suite              every file; a file that passes less often than before is a fault
    python -m tests.simulation.sdk_suite --write      note what passes now
    python -m tests.simulation.sdk_suite tests/strands/hooks

Many of them look at what is private to the SDK, so all of them never pass: `sdk_cases.py` has the rule by which a test
counts as one of what is public and here, and the share of these that passes is printed. `sdk_suite.json` says how many
tests of each file pass. Needs uv, pip and the package index, and some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from msgspec import Struct, field

from tests.simulation.sdk_cases import Cases

ROOT = Path(__file__).resolve().parents[2]
FLOOR = Path(__file__).with_suffix(".json")
STAND_INS = Path(__file__).with_name("sdk_stand_ins.py")
RELEASE = "strands-agents==1.62.0"
NEEDS = (
    "pytest>=9,<10",
    "pytest-asyncio>=1,<1.5",
    "pytest-timeout",
    "moto[s3,server]>=5.1",
    "opentelemetry-sdk",
    "beautifulsoup4",
)
MEMORY_MAX = 6_000_000_000
"""Bytes that a process of tests may have: one of them describes a mock until there is no memory left."""
ABSENT = ("bidi",)
"""Folders that are not run: what they test is not here."""
SETTINGS = "[pytest]\nasyncio_default_fixture_loop_scope = function\ntimeout = 20\ntimeout_method = signal\n"


def pip_download(release: str, folder: Path) -> None:
    """The source archive of a release."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder]
    subprocess.run([*pip, release], check=True)


def fetch(folder: Path) -> Path:
    """The tests of the released source, in a folder from which they can be run."""
    pip_download(RELEASE, folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if (path / "tests").is_dir())
    where = folder / "run"
    where.mkdir()
    (source / "tests").rename(where / "tests")
    (where / "pytest.ini").write_text(SETTINGS)
    shutil.copy(STAND_INS, where / "sdk_stand_ins.py")
    return where


def environment(folder: Path, *releases: str, overrides: Sequence[str] = ()) -> Path:
    """The interpreter of a new environment with this package, these, and what tests of the SDK need. `overrides`: what
    is installed whatever packages want.
    """
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("sdk_suite: needs uv: pip install uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    wanted = ["mcp>=2.2", *overrides]  # The SDK itself wants an older one.
    (over := folder / "overrides.txt").write_text("\n".join(wanted))
    install = [uv, "pip", "install", "--quiet", "--python", python, "--override", over]
    subprocess.run([*install, f"{ROOT}[all]", *NEEDS, *releases], check=True)
    return python


class Ran(Struct):
    """The tests of some files that have run."""

    passed: Counter[str] = field(default_factory=Counter[str])
    """By file."""
    public: Counter[bool] = field(default_factory=Counter[bool])
    """How many public tests passed, and failed."""


def run(python: Path, where: Path, paths: list[str], plugin: str = "sdk_stand_ins") -> Ran:
    """Runs each file in a process of its own, so that one that dies ends no other."""
    files = sorted({file for path in paths for file in _files(where, where / path)})
    ran, cases = Ran(), Cases(where)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, found in zip(files, pool.map(partial(_run_file, python, where, plugin), files), strict=True):
            for case in found:
                outcomes = {part.tag for part in case} & {"failure", "error", "skipped"}
                ran.passed[str(file.relative_to(where))] += not outcomes
                name = case.get("name", "").partition("[")[0]
                group = case.get("classname", "").rpartition(".")[2]
                if "skipped" not in outcomes and cases.why_left_out(file, group, name) is None:
                    ran.public[not outcomes] += 1
    ran.passed = +ran.passed
    return ran


def _run_file(python: Path, where: Path, plugin: str, file: Path) -> list[ElementTree.Element]:
    return run_together(python, where, plugin, [str(file.relative_to(where))], within_s=300)


def run_together(
    python: Path, where: Path, plugin: str, names: Sequence[str], *options: str, within_s: float
) -> list[ElementTree.Element]:
    """The test cases of these files after one process has run them; none if it did not end in time."""
    report = where / f"{names[0].replace('/', '-')}.xml"
    fixed = ["-m", "pytest", "-q", "-p", plugin, "-p", "no:cacheprovider", "-o", "addopts=", f"--junit-xml={report}"]
    with Path(os.devnull).open("r+b") as nothing:  # Not pipes: a server that a test has left running keeps them open.
        process = subprocess.Popen(
            [python, *fixed, *options, *names],
            cwd=where,
            preexec_fn=_bounded,
            start_new_session=True,
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
        )
    try:
        process.wait(within_s)
        return list(ElementTree.parse(report).getroot().iter("testcase"))
    except (subprocess.TimeoutExpired, OSError, ElementTree.ParseError):
        print(f"sdk_suite: {names[0]} did not end", flush=True)
        return []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def has_passed(case: ElementTree.Element) -> bool:
    """True for a test that ran and held."""
    return not {part.tag for part in case} & {"failure", "error", "skipped"}


def compared(passed: Mapping[str, int], looked_at: Sequence[str], *, write: bool) -> list[str]:
    """What passes less often than is noted, or, to `write`, nothing: it is noted now."""
    floor: dict[str, int] = json.loads(FLOOR.read_text()) if FLOOR.exists() else {}
    if write:
        FLOOR.write_text(json.dumps({**floor, **passed}, indent=1, sort_keys=True) + "\n")
        return []
    known = [name for name in floor if any(name.startswith(each) for each in looked_at)]
    return [f"{name}: {passed.get(name, 0)} of {floor[name]}" for name in known if passed.get(name, 0) < floor[name]]


def _bounded() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))


def _files(where: Path, path: Path) -> list[Path]:
    files = [path] if path.is_file() else path.rglob("test_*.py")
    return [file for file in files if not set(ABSENT) & set(file.relative_to(where).parts)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.sdk_suite")
    parser.add_argument("paths", nargs="*", default=["tests/strands"])
    parser.add_argument("--python", help="an interpreter that has all that is needed, in place of a new environment")
    parser.add_argument("--write", action="store_true", help="note what passes now")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="repertory-sdk-suite-") as name:
        folder = Path(name)
        where = fetch(folder)
        ran = run(Path(chosen.python) if chosen.python else environment(folder), where, chosen.paths)
    public, held = ran.public.total(), ran.public[True]
    print(f"sdk_suite: {ran.passed.total()} tests of {len(ran.passed)} files pass; {held} of {public} public ones")
    if fewer := compared(ran.passed, chosen.paths, write=chosen.write):
        sys.exit("\n".join(["sdk_suite: fewer pass than before", *fewer]))


if __name__ == "__main__":
    main()
