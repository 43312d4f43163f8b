"""Writes what a release installs with its extras, as CycloneDX 1.6: packages of requirements.lock.

    python scripts/sbom.py bom.cdx.json

The packages that only developers need are left out. What the project itself needs is `required`, what its extras bring
is `optional`. The same lock gives the same file.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")
PROJECT = "repertory (pyproject.toml)"


@dataclass
class Locked:
    """One package of the lock."""

    name: str
    version: str
    digests: list[str] = field(default_factory=list)
    """SHA-256 of each of its files on the index."""
    parents: set[str] = field(default_factory=set)
    """Who needs it."""

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


def document(project: Mapping[str, Any], lock: str, at: int) -> dict[str, Any]:
    """The list, as CycloneDX has it."""
    packages = read(lock)
    needed = {normal(match[0]) for need in project["dependencies"] if (match := _NAME.match(need))}
    required = reached(packages, needed)
    released = reached(packages, [PROJECT]) - {PROJECT}
    here = f"pkg:pypi/{project['name']}@{project['version']}"
    listed = [package for package in packages if package.name in released]
    graph: dict[str, set[str]] = {here: set(), **{package.purl: set() for package in listed}}
    for package in listed:
        if PROJECT in package.parents:
            graph[here].add(package.purl)
        for above in listed:  # of some packages, the lock has a version for each of several Pythons
            if above.name in package.parents:
                graph[above.purl].add(package.purl)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z"),
            "component": {
                "type": "library",
                "bom-ref": here,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": here,
            },
        },
        "components": [
            _component(package, "required" if package.name in required else "optional") for package in listed
        ],
        "dependencies": [{"ref": ref, "dependsOn": sorted(below)} for ref, below in sorted(graph.items())],
    }


def _component(package: Locked, scope: str) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "scope": scope,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in sorted(set(package.digests))],
        "purl": package.purl,
    }


def main() -> None:
    """Write the list to the file that is named."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    made = document(project, lock, int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    Path(sys.argv[1]).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
