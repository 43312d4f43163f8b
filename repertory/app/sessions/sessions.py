"""Where sessions are kept, as users name it: one database, or one session in it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from repertory.core.ids import check_id, owner_name
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.aws_clients import AwsSettings
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.backends.sessions.sqlite.file import CommitHook


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


async def listed(place: SessionPlace) -> Sequence[SessionInfo]:
    """Every session of a place."""
    store = place.open_store()
    try:
        return await store.sessions()
    finally:
        await store.aclose()


def check_place(place: SessionPlace | None, name: str) -> SessionPlace | None:
    """The same object, if sessions can be kept there. Errors: `Invalid` saying what to write."""
    given: object = place
    if given is None or (callable(getattr(given, "open_store", None)) and hasattr(given, "key")):
        return place
    kind = type(given).__name__
    instead = f"{name}=SQLiteSessions('sessions.db')"
    if hasattr(given, "sessions") and hasattr(given, "session_id"):
        instead = f"{name}=manager.sessions, or {instead}: a session manager names one session of a place"
    raise Invalid(f"{name} says where sessions are kept; write {instead}", got=kind)


def check_placement(manager: SessionPlacement | None) -> SessionPlacement | None:
    """The same object, if it names a session. Errors: `Invalid` saying what to write."""
    given: object = manager
    named = all(hasattr(given, name) for name in ("sessions", "session_id", "takeover"))
    if given is None or (named and not isinstance(given, type)):
        return manager
    instead = "SQLiteSessionManager('chat')"
    if isinstance(given, str):
        instead = f"SQLiteSessionManager({given!r})"
    elif isinstance(given, SQLiteSessions):
        instead = f"SQLiteSessionManager('chat', path={str(given.path)!r}), which names one session in it"
    text = f"session_manager names a session and where it is kept; write session_manager={instead}"
    raise Invalid(text, got=type(given).__name__)


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

    `remember`: puts every message into the memory in the same file, in the commit that stores it, where
    `SQLiteMemoryStore(path, scope=...)` finds it. True: in the scope of a store without one; a name: in that scope; a
    function: in the scope that it gives for a session id, or not at all when it gives None. It is called when the
    session gets an owner, on a thread of the store's; when it raises or gives what no scope can be, the session is not
    opened (`Invalid`). What is redacted or deleted is forgotten in the same commit, whatever `remember` says. Errors:
    `Invalid` for anything else.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, remember: Remember = False) -> None:
        check_remember(remember)
        self.path = Path(path).expanduser().absolute() if path is not None else sessions_database().absolute()
        self.remember: Remember = remember

    @property
    def key(self) -> str:
        """The same for every object that names the same database and remembers the same."""
        return str(self.path) if self.remember is False else f"{self.path}, remembering {remembered_id(self.remember)}"

    def open_store(self) -> SessionStore:
        """A store on this database. The caller closes it."""
        from repertory.backends.sessions.sqlite.store import SQLiteSessionStore  # loaded when used

        alongside = partial(_memory_beside, rule_of(self.remember))
        return SQLiteSessionStore(self.path, owner=new_owner(), alongside=alongside)

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is no database yet."""
        return await listed(self)


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
    remember: bool | str = False
    """Put every message into the memory in the same file, in the commit that stores it: True in the scope of a memory
    store without one, a name in that scope.
    """

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        check_remember(self.remember, single=True)

    @property
    def sessions(self) -> SQLiteSessions:
        """The database that the session lies in."""
        return SQLiteSessions(self.path, remember=self.remember)


def _memory_beside(rule: Rule | None, path: Path) -> CommitHook:
    from repertory.backends.memory.sqlite.remembering import SessionMemory  # loads sqlite3, with the first use

    return SessionMemory(path, rule)


Rule: TypeAlias = "Callable[[str], str | None]"
"""Session to the scope in which it is remembered; None: it is not."""
Remember: TypeAlias = "bool | str | Rule"
"""False: nothing is; True: everything, in the scope of a memory store that is given none; a name: in that scope."""

_NO_SCOPE = ""
"""The scope of a memory store that is given none."""


def check_remember(remember: object, *, single: bool = False) -> None:
    """Raise `Invalid` for what no `Remember` can be. `single`: of one session, where a rule has nothing to decide."""
    if isinstance(remember, str):
        check_id(remember, "scope")
    elif not isinstance(remember, bool) and (single or not callable(remember)):
        wanted = "True, False or a scope" if single else "True, False, a scope, or a function of the session id"
        raise Invalid(f"remember is {wanted}", got=type(remember).__name__)


def rule_of(remember: Remember) -> Rule | None:
    """What tells the scope of a session, checked; None when nothing is remembered."""
    if callable(remember):
        return partial(_told, remember)
    if remember is False:
        return None
    scope = _NO_SCOPE if remember is True else remember
    return lambda _: scope


def remembered_id(remember: Remember) -> str:
    """The same for the same, and never for another one that is in use."""
    return f"rule {id(remember):x}" if callable(remember) else repr(remember)


def _told(rule: Rule, session_id: str) -> str | None:
    try:
        scope = rule(session_id)
    except Exception as error:
        raise Invalid(
            "whether a session is remembered could not be told", session=session_id, cause=repr(error)
        ) from error
    return None if scope is None else check_id(scope, "scope")


# Where data lies when nobody says otherwise: `$REPERTORY_HOME`, or `~/.repertory`; and what its owner is called.


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


def aws_settings(place: Any) -> AwsSettings:
    """How to get to a place in AWS, by its fields, with the times that stores of sessions wait."""
    from repertory.backends.aws_clients import AwsSettings  # loaded when used

    return AwsSettings(
        region_name=place.region_name,
        boto_session=place.boto_session,
        boto_client_config=place.boto_client_config,
        endpoint_url=place.endpoint_url,
        connect_timeout_s=5.0,
        read_timeout_s=20.0,
    )
