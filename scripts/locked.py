"""Prints the part of requirements.lock that some extras need, for `pip install --require-hashes`.

    python scripts/locked.py serve postgres > requirements.txt
    python scripts/locked.py --package hatchling

The first prints what the project needs with these extras, the second what a package of the lock needs.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
PROJECT = "repertory (pyproject.toml)"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


@dataclass
class Locked:
    """One package of the lock."""

    name: str
    version: str
    digests: list[str] = field(default_factory=list)
    """SHA-256 of each of its files on the index."""
    parents: set[str] = field(default_factory=set)
    """Who needs it."""
    lines: list[str] = field(default_factory=list)
    """What stands in the lock, with its digests."""

    @property
    def purl(self) -> str:
        """Its package URL."""
        return f"pkg:pypi/{self.name}@{self.version}"


def read(lock: str) -> list[Locked]:
    """The packages of a lock that uv has written."""
    found: list[Locked] = []
    for line in lock.splitlines():
        if pin := _PIN.match(line):
            found.append(Locked(normal(pin["name"]), pin["version"]))
        elif line.lstrip().startswith("#") and found:
            parent = line.strip().removeprefix("#").strip().removeprefix("via").strip()
            if parent:
                found[-1].parents.add(parent if parent.startswith("repertory ") else normal(parent))
        if found:
            found[-1].digests += _HASH.findall(line)
            found[-1].lines.append(line)
    return found


def normal(name: str) -> str:
    """The name as package URLs have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def reached(packages: Iterable[Locked], roots: Iterable[str]) -> set[str]:
    """The packages that are needed by others that are, from these on."""
    packages = list(packages)
    found, waiting = set[str](), list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [package.name for package in packages if name in package.parents]
    return found


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def named(needs: Iterable[str]) -> set[str]:
    """The packages of requirements."""
    return {normal(match[0]) for need in needs if (match := _NAME.match(need))}


def part(roots: Iterable[str]) -> str:
    """The lines of the lock for these packages and all that they need."""
    packages = read(LOCK.read_text(encoding="utf-8"))
    roots = set(roots)
    if missing := roots - {package.name for package in packages}:
        sys.exit(f"locked: not in requirements.lock: {', '.join(sorted(missing))}")
    kept = reached(packages, roots)
    return "".join(f"{line}\n" for package in packages if package.name in kept for line in package.lines)


def main() -> None:
    """Print the part for what is named."""
    about = project()
    if sys.argv[1:2] == ["--package"]:
        print(part(map(normal, sys.argv[2:])), end="")
        return
    extras: dict[str, list[str]] = about["optional-dependencies"]
    if unknown := set(sys.argv[1:]) - set(extras):
        sys.exit(f"locked: no extra: {', '.join(sorted(unknown))}")
    needs = [need for extra in sys.argv[1:] for need in extras[extra]]
    print(part(named([*about["dependencies"], *needs])), end="")


if __name__ == "__main__":
    main()
