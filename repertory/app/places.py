"""Where data lies when nobody says otherwise: `$REPERTORY_HOME`, or `~/.repertory`."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The folder for everything of ours. It is created on the first write, never here."""
    return Path(os.environ.get("REPERTORY_HOME") or Path.home() / ".repertory").expanduser()


def sessions_database() -> Path:
    """The default database of sessions."""
    return home() / "sessions.db"


def sessions_folder() -> Path:
    """The default folder of sessions that are kept as documents."""
    return home() / "sessions"


def memory_database() -> Path:
    """The default database of memories."""
    return home() / "memory.db"
