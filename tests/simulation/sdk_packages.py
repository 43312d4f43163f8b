"""Runs the tests of packages that import the Strands Agents SDK, with `repertory.strands.install` loaded first.

    python -m tests.simulation.sdk_packages                    every package; one that passes less often is a fault
    python -m tests.simulation.sdk_packages ag-ui-strands --write

Each package has an environment and its own tests from its source archive. `sdk_suite.json` says how many pass. Needs
uv, pip and the package index, and half an hour.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from tests.simulation.sdk_suite import FLOOR, compared, environment, pip_download, run


class Package(Struct, frozen=True):
    """A released package and what its tests need."""

    release: str
    tests: str = "tests"
    needs: tuple[str, ...] = ()


PACKAGES: Mapping[str, Package] = {
    "strands-agents-evals": Package("1.7.0", needs=("strands-agents-tools==0.8.10", "hypothesis", "responses")),
    "bedrock-agentcore": Package("1.25.0", "tests/bedrock_agentcore", ("strands-agents-evals==1.7.0", "websockets")),
    "ag-ui-strands": Package("1.0.2", needs=("httpx",)),
    "strands-agents-tools": Package("0.8.10", needs=("responses", "freezegun")),
    "strands-harness": Package("0.3.2"),
}
_ENVIRONMENT = {
    "STRANDS_NON_INTERACTIVE": "true",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
}


def passing(name: str, folder: Path) -> int:
    """How many tests of a package pass, of those files that name the SDK."""
    package = PACKAGES[name]
    pip_download(f"{name}=={package.release}", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if (path / "pyproject.toml").exists())
    python = environment(folder, f"{name}=={package.release}", "strands-agents==1.62.0", *package.needs)
    (source / "install_first.py").write_text("import repertory.strands.install\n")
    files = [file for file in (source / package.tests).rglob("test_*.py") if "strands" in file.read_text()]
    paths = [str(file.relative_to(source)) for file in files]
    return run(python, source, paths, "install_first").passed.total()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.sdk_packages")
    parser.add_argument("names", nargs="*", default=list(PACKAGES), metavar="PACKAGE", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--write", action="store_true", help=f"note in {FLOOR.name} what passes now")
    chosen = parser.parse_args()
    os.environ.update(_ENVIRONMENT)
    passed: dict[str, int] = {}
    for name in chosen.names:
        with tempfile.TemporaryDirectory(prefix="repertory-sdk-packages-") as folder:
            passed[name] = passing(name, Path(folder))
        print(f"sdk_packages: {passed[name]} tests of {name} pass", flush=True)
    if fewer := compared(passed, chosen.names, write=chosen.write):
        sys.exit("\n".join(["sdk_packages: fewer pass than before", *fewer]))


if __name__ == "__main__":
    main()
