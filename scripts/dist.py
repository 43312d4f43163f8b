"""Builds a release: wheel, source archive, list of components and checksums.

    python scripts/dist.py [FOLDER]

The same commit gives the same bytes on every machine: the times in the archives are that of the commit, or
SOURCE_DATE_EPOCH. The wheel is built from the source archive, as an installer would build it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def epoch() -> str:
    """The time that everything in the archives gets: that of the last commit, unless the environment has one."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    asked = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode:
        sys.exit("dist: needs a commit or SOURCE_DATE_EPOCH, for the times in the archives")
    return asked.stdout.strip()


def uncommitted() -> bool:
    """Whether a file that a release contains differs from the last commit."""
    names = ["repertory", "pyproject.toml", "requirements.lock", "*.md", "LICENSE"]
    asked = subprocess.run(
        ["git", "status", "--porcelain", "--", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return bool(asked.stdout.strip())


def build(folder: Path, at: str) -> list[Path]:
    """Build everything into an empty folder."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": at, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*command: str | Path, cwd: Path) -> None:
        subprocess.run([sys.executable, *map(str, command)], cwd=cwd, env=environment, check=True)

    run("-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="repertory-dist-") as scratch:
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        run("-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=next(Path(scratch).iterdir()))
    name = archive.name.removesuffix(".tar.gz")
    run("scripts/sbom.py", folder / f"{name}.cdx.json", cwd=ROOT)
    built = sorted(folder.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in built)
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
    return [*built, folder / "SHA256SUMS"]


def main() -> None:
    """Build into the folder that is named, or `dist`; what was there before goes."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "dist").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if uncommitted():
        print("dist: NOT A RELEASE: files are built that are not committed", file=sys.stderr)
    for path in build(folder, epoch()):
        print(f"dist: {path.name}  {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
