"""Runs the tests that the Strands Agents SDK ships of itself against `repertory.strands`.

    python -m tests.simulation.sdk_suite              every file; a file that passes less often than before is a fault
    python -m tests.simulation.sdk_suite --write      note what passes now
    python -m tests.simulation.sdk_suite tests/strands/hooks

Many of them look at what is private to the SDK, so all of them never pass. `sdk_suite.json` says how many tests of each
file do. Needs uv, pip and the package index, and some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

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


def fetch(folder: Path) -> Path:
    """The tests of the released source, in a folder from which they can be run."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder]
    subprocess.run([*pip, RELEASE], check=True)
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


def environment(folder: Path) -> Path:
    """The interpreter of a new environment with this package and what those tests need, but without the SDK."""
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("sdk_suite: needs uv: pip install uv")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, f"{ROOT}[all]", *NEEDS], check=True)
    return python


def run(python: Path, where: Path, paths: list[str]) -> Counter[str]:
    """How many tests of each file pass. Each file has a process of its own, so that one that dies ends no other."""
    files = sorted({file for path in paths for file in _files(where, where / path)})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = pool.map(lambda file: _run_file(python, where, str(file.relative_to(where))), files)
        return Counter({name: count for name, count in counts if count})


def _run_file(python: Path, where: Path, name: str) -> tuple[str, int]:
    report = where / f"{name.replace('/', '-')}.xml"
    options = ["-m", "pytest", "-q", "-p", "sdk_stand_ins", "-p", "no:cacheprovider", f"--junit-xml={report}", name]
    try:
        subprocess.run(
            [python, *options], cwd=where, timeout=300, preexec_fn=_bounded, capture_output=True, check=False
        )
        cases = ElementTree.parse(report).getroot().iter("testcase")
    except (subprocess.TimeoutExpired, OSError, ElementTree.ParseError):
        print(f"sdk_suite: {name} did not end")
        return name, 0
    bad = ("failure", "error", "skipped")
    return name, sum(not any(part.tag in bad for part in case) for case in cases)


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
        passed = run(Path(chosen.python) if chosen.python else environment(folder), where, chosen.paths)
    floor: dict[str, int] = json.loads(FLOOR.read_text()) if FLOOR.exists() else {}
    if chosen.write:
        FLOOR.write_text(json.dumps({**floor, **passed}, indent=1, sort_keys=True) + "\n")
    elif not floor:
        sys.exit(f"sdk_suite: nothing is noted in {FLOOR}: note it with --write")
    looked_at = [file for file in floor if any(file.startswith(path) for path in chosen.paths)]
    fewer = [f"{file}: {passed[file]} of {floor[file]}" for file in looked_at if passed[file] < floor[file]]
    print(f"sdk_suite: {passed.total()} tests of {len(passed)} files pass")
    if fewer and not chosen.write:
        sys.exit("\n".join(["sdk_suite: fewer pass than before", *fewer]))


if __name__ == "__main__":
    main()
