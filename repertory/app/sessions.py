"""Where sessions are kept, as users name it: one database, or one session in it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from repertory.app.places import sessions_database
from repertory.core.ids import check_id

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo, SessionStore


class SessionPlace(Protocol):
    """Where sessions are kept: what a `Runtime` and a session manager are given."""

    @property
    def key(self) -> str:
        """The same for every object that names the same place."""
        ...

    def open_store(self) -> SessionStore:
        """A store there. The caller closes it."""
        ...


class SessionPlacement(Protocol):
    """One session and where it is kept: what an `Agent` is given as its session manager."""

    @property
    def session_id(self) -> str: ...

    @property
    def sessions(self) -> SessionPlace | None:
        """None keeps it in memory, for as long as its host."""
        ...

    @property
    def takeover(self) -> bool:
        """Whether to fence a live owner in another process instead of being refused."""
        ...


@dataclass(frozen=True, slots=True)
class PlacedSession:
    """One session of a `Runtime`."""

    session_id: str
    sessions: SessionPlace | None
    takeover: bool = False


class SQLiteSessions:
    """All sessions in one SQLite database. Nothing is opened or created before it is needed.

    `path`: the database file; `~/.repertory/sessions.db` (or `$REPERTORY_HOME/sessions.db`) when None. A folder that is
    missing is created with mode 0700 on the first write, the file with 0600.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = Path(path).expanduser().absolute() if path is not None else sessions_database().absolute()

    @property
    def key(self) -> str:
        """The same for every object that names the same database."""
        return str(self.path)

    def open_store(self) -> SessionStore:
        """A store on this database. The caller closes it."""
        from repertory.backends.sessions.sqlite import SQLiteSessionStore  # loaded when used

        return SQLiteSessionStore(self.path, owner=os.urandom(8).hex())

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is no database yet."""
        store = self.open_store()
        try:
            return await store.sessions()
        finally:
            await store.aclose()


@dataclass(frozen=True, slots=True)
class SQLiteSessionManager:
    """One session in a SQLite database: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next. Errors: `Invalid` (a ValueError) for
    an id that cannot be a name; `SessionBusy` from a call when another live process owns the session.
    """

    session_id: str
    path: str | os.PathLike[str] | None = None
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")

    @property
    def sessions(self) -> SQLiteSessions:
        """The database that the session lies in."""
        return SQLiteSessions(self.path)
