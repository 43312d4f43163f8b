"""`SQLiteMemoryStore`: the embedded memory store."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from repertory.app.sessions.sessions import memory_database
from repertory.app.tracebacks import short_errors
from repertory.backends.memory.ranked import MemorySettings
from repertory.backends.memory.sqlite.store import SQLiteMemory
from repertory.core.ids import check_id

if TYPE_CHECKING:
    from repertory.backends.memory_ports import Embedder


@short_errors
class SQLiteMemoryStore(SQLiteMemory):
    """A memory store in one SQLite file: pass it to `MemoryManager(stores=[...])`, or use it by itself.

    See `SQLiteMemory` for its methods. Errors of the constructor: `Invalid` for a bad name or scope. Nothing is opened
    or created before it is needed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str = "memory",
        description: str | None = "What was said before, and what is known from it.",
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: object = None,
        scope: str | None = None,
        embedder: Embedder | None = None,
        busy_timeout_s: float = 5.0,
    ) -> None:
        """A missing folder is created with mode 0700 on the first write, the file with 0600.

        Stores of different scopes may share a file; none sees or changes the memories of another, and None is a scope
        of its own.

        All stores of a file have the same; another is refused by the first call that needs it. Needs numpy.

        Args:
            path: The database file; `~/.repertory/memory.db` (or `$REPERTORY_HOME/memory.db`) when None.
            scope: The owner of these memories, for example a tenant or a user.
            name: The store's name, unique in its manager.
            description: The contents of the store, in words for the model.
            max_search_results: The most entries of a search; None for the manager's number.
            writable: True if entries can be added.
            extraction: An `ExtractionConfig`; True for its defaults, None or False for no extraction.
            embedder: Makes vectors of entries, so that a search in other words finds them too.
            busy_timeout_s: Seconds to wait while other processes commit.
        """
        if scope is not None:
            check_id(scope, "scope")
        settings = MemorySettings(
            name=check_id(name, "store name"),
            description=description,
            max_search_results=max_search_results,
            writable=writable,
            extraction=extraction,
            scope=scope or "",
            embedder=embedder,
        )
        location = Path(path).expanduser() if path is not None else memory_database()
        super().__init__(location.absolute(), settings, clock=time.time, busy_timeout_s=busy_timeout_s)
