"""Where data lies when nobody says otherwise: `$REPERTORY_HOME`, or `~/.repertory`; and what its owner is called."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

from repertory.core.ids import owner_name


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


def new_owner() -> str:
    """The name of one more owner of sessions in this process."""
    return owner_name(os.urandom(8), host=socket.gethostname(), pid=os.getpid(), at=time.time())
