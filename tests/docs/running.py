"""What runs the programs and commands of the documents: offline, in a folder that is also the home."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from tests.postgres_server import NAME, PostgresServer
from tests.source_tree import ROOT


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Nobody's credentials, and the `python` and `repertory` of this interpreter first on the path."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "SYSTEMROOT", "TMPDIR") if name in os.environ}
    scripts = Path(sys.executable).parent
    return {
        **inherited,
        "PATH": os.pathsep.join([str(scripts), inherited.get("PATH", os.defpath)]),
        "HOME": str(folder),
        "REPERTORY_HOME": str(folder / ".repertory"),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error::DeprecationWarning:__main__",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
        "COLUMNS": "100",
        **more,
    }


def in_postgres(server: PostgresServer) -> dict[str, str]:
    """A new database `agents`, which the environment names."""
    server.sql("DROP DATABASE IF EXISTS agents")
    server.sql("CREATE DATABASE agents")
    return {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": NAME}


def agrees(shown: str, printed: str) -> bool:
    """Whether a program printed what a document shows: `...` stands for any text, alone on a line for any lines."""
    lines = [
        r"(?:.*\n)*?.*" if line.strip() == "..." else r".*?".join(map(re.escape, line.rstrip().split("...")))
        for line in shown.strip().splitlines()
    ]
    text = "\n".join(line.rstrip() for line in printed.strip().splitlines())
    return re.fullmatch("\n".join(lines), text) is not None
