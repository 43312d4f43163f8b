"""Runs the tests of packages that import the Strands Agents SDK, with `repertory.strands.install` loaded first.

    python -m tests.simulation.sdk_packages                    every package; one that passes less often is a fault
    python -m tests.simulation.sdk_packages ag-ui-strands --write

Each package has an environment and its own tests from its source archive. `sdk_suite.json` says how many pass. Needs
uv, pip and the package index, and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from tests.simulation.sdk_suite import FLOOR, compared, environment, has_passed, pip_download, run_together


class Package(Struct, frozen=True):
    """A released package and what its tests need."""

    release: str
    tests: str = "tests"
    needs: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    """Files that run in a process of their own, since they spoil it for others."""
    overrides: tuple[str, ...] = ()
    """Releases that it pins, of packages of which we want others."""
    missing: tuple[str, ...] = ()
    """Folders whose tests are about packages of others, which are not installed."""


PACKAGES: Mapping[str, Package] = {
    "strands-agents-evals": Package("1.7.0", needs=("strands-agents-tools==0.8.10", "hypothesis", "responses")),
    "bedrock-agentcore": Package(
        "1.25.0",
        "tests/bedrock_agentcore",
        ("strands-agents-evals==1.7.0", "websockets"),
        missing=("third_party",),
    ),
    "ag-ui-strands": Package("1.0.2", needs=("httpx",)),
    "strands-agents-tools": Package(
        "0.8.10", needs=("responses", "freezegun"), apart=("tests/test_shell.py",), missing=("browser",)
    ),
    "strands-harness": Package("0.3.2", overrides=("pydantic-monty==0.0.23",)),
}
WITHIN_S = 900
"""Seconds that the tests of a package may take together; one test may take 60."""
_ENVIRONMENT = {
    "STRANDS_NON_INTERACTIVE": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
}


def ran(name: str, folder: Path) -> Counter[bool]:
    """How many tests of a package pass, and do not, of those files that name the SDK."""
    package = PACKAGES[name]
    pip_download(f"{name}=={package.release}", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if (path / "pyproject.toml").exists())
    python = environment(
        folder, f"{name}=={package.release}", "strands-agents==1.62.0", *package.needs, overrides=package.overrides
    )
    (source / "install_first.py").write_text("import repertory.strands.install\n")
    files = [file for file in sorted((source / package.tests).rglob("test_*.py")) if "strands" in file.read_text()]
    files = [file.relative_to(source) for file in files if not set(package.missing) & set(file.parts)]
    together = [str(file) for file in files if str(file) not in package.apart]
    options = "--timeout=60", "--timeout-method=signal", "--continue-on-collection-errors"
    return Counter(
        has_passed(case)
        for names in (together, *([file] for file in package.apart))
        for case in run_together(python, source, "install_first", names, *options, within_s=WITHIN_S)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.sdk_packages")
    parser.add_argument("names", nargs="*", default=list(PACKAGES), metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--write", action="store_true", help=f"note in {FLOOR.name} what passes now")
    chosen = parser.parse_args()
    os.environ.update(_ENVIRONMENT)
    passed: dict[str, int] = {}
    for name in chosen.names:
        with tempfile.TemporaryDirectory(prefix="repertory-sdk-packages-") as folder:
            tests = ran(name, Path(folder))
        passed[name] = tests[True]
        print(f"sdk_packages: {tests[True]} of {tests.total()} tests of {name} pass", flush=True)
    if fewer := compared(passed, chosen.names, write=chosen.write):
        sys.exit("\n".join(["sdk_packages: fewer pass than before", *fewer]))


if __name__ == "__main__":
    main()
