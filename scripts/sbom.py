"""Writes what a release installs with its extras, as CycloneDX 1.6: packages of requirements.lock.

    python scripts/sbom.py bom.cdx.json

The packages that only developers need are left out. What the project itself needs is `required`, what its extras bring
is `optional`. The same lock gives the same file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from locked import LOCK, PROJECT, Locked, named, project, reached, read


def document(about: Mapping[str, Any], lock: str, at: int) -> dict[str, Any]:
    """The list, as CycloneDX has it."""
    packages = read(lock)
    required = reached(packages, named(about["dependencies"]))
    released = reached(packages, [PROJECT]) - {PROJECT}
    here = f"pkg:pypi/{about['name']}@{about['version']}"
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
                "name": about["name"],
                "version": about["version"],
                "description": about["description"],
                "licenses": [{"license": {"id": about["license"]}}],
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
    made = document(project(), LOCK.read_text(encoding="utf-8"), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))
    Path(sys.argv[1]).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
