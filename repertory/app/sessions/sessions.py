"""The locations where sessions are stored: the protocols of places and session managers, and those for SQLite."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from msgspec import Struct

from repertory.app.sessions.encryption import check_encryption, encrypted_key, encrypted_store
from repertory.core.ids import check_id, owner_name
from repertory.core.notebook import without_login
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.sessions.encryption import SessionKeysLocation
    from repertory.backends.aws_clients import AwsSettings
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.backends.sessions.sqlite.file import CommitHook


class SessionLocation(Protocol):
    """A place for sessions, for a `Runtime` and session managers."""

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same one."""
        ...

    def open_store(self) -> SessionStore:
        """A store at this place. The caller closes it."""
        ...


@runtime_checkable
class WakingLocation(SessionLocation, Protocol):
    """A place whose stores have the part `waking`: a `Runtime` looks there for pending work."""

    wakes: bool
    """True: the stores tell when sessions must be woken."""


class SessionPlacement(Protocol):
    """One session and its place: the type of an `Agent`'s session manager."""

    @property
    def session_id(self) -> str: ...

    @property
    def sessions(self) -> SessionLocation | None:
        """The location where the session is stored; None keeps it in memory, for as long as its host."""
        ...

    @property
    def takeover(self) -> bool:
        """True to fence a live owner in another process instead of being refused."""
        ...


class SessionFollower(Protocol):
    """A session manager that keeps the conversation itself: it follows an agent, graph or swarm by hooks."""

    session_id: str

    def register_hooks(self, registry: Any) -> None:
        """Register the callbacks that call the other methods."""
        ...

    def initialize(self, agent: Any) -> None:
        """Give the agent what is stored."""
        ...

    def append_message(self, message: Any, agent: Any) -> None:
        """Store a message."""
        ...

    def redact_latest_message(self, redact_message: Any, agent: Any) -> None:
        """Store another message in the place of the latest one."""
        ...

    def sync_agent(self, agent: Any) -> None:
        """Store the agent's state."""
        ...


AnySessionManager: TypeAlias = "SessionPlacement | SessionFollower"
"""The session managers that an agent, a graph or a swarm takes."""


async def listed(location: SessionLocation) -> Sequence[SessionInfo]:
    store = location.open_store()
    try:
        return await store.sessions()
    finally:
        await store.aclose()


def is_local(location: SessionLocation | None) -> bool:
    """True if nothing comes over a network. A place of the program's own says so with `is_local`."""
    found = getattr(location, "storage", location)
    return getattr(found, "is_local", False) and getattr(location, "encryption", None) is None


def check_location(location: SessionLocation | None, name: str) -> SessionLocation | None:
    """Return the same object. Errors: `Invalid` for anything but a place for sessions, saying what to write."""
    given: object = location
    if given is None or (callable(getattr(given, "open_store", None)) and hasattr(given, "key")):
        return location
    kind = type(given).__name__
    instead = f"{name}=SQLiteSessions('sessions.db')"
    if hasattr(given, "sessions") and hasattr(given, "session_id"):
        instead = f"{name}=manager.sessions, or {instead}: a session manager names one session of a place"
    raise Invalid(f"{name} says where sessions are kept; write {instead}", got=kind)


def check_placement(manager: AnySessionManager | None, storage: object = None) -> SessionPlacement | None:
    """Return the same object. Errors: `Invalid` for anything but a session manager, saying what to write.

    `storage`: the agent's, in which a manager keeps its sessions that has none of its own.
    """
    given: object = manager
    named = all(hasattr(given, name) for name in ("sessions", "session_id", "takeover"))
    if given is None or (named and not isinstance(given, type)):
        sessions: Any = getattr(given, "sessions", None)
        if storage is not None and hasattr(sessions, "keep_in"):
            sessions.keep_in(storage)
        return cast("SessionPlacement | None", given)
    instead = "SQLiteSessionManager('chat')"
    if isinstance(given, str):
        instead = f"SQLiteSessionManager({given!r})"
    elif isinstance(given, SQLiteSessions):
        instead = f"SQLiteSessionManager('chat', path={str(given.path)!r}), which names one session in it"
    text = f"session_manager names a session and where it is kept; write session_manager={instead}"
    raise Invalid(text, got=type(given).__name__)


class PlacedSession(Struct, frozen=True):
    """One session of a `Runtime`."""

    session_id: str
    sessions: SessionLocation | None
    takeover: bool = False
    wakes: bool = False
    """True if the runtime can wake the session there, so that the store is told when to."""
    unsaved: bool = False
    """True if it ends with the object that has it: there is no such session, only its id."""


class SQLiteSessions:
    """All sessions in one SQLite database. Nothing is opened or created before it is needed.

    A missing folder is created with mode 0700 on the first write, the file with 0600.

    True: in the scope of a store without one; a name: in that scope; a function: in the scope that it returns for a
    session id, or not at all when it returns None. It is called when the session gets an owner, on a thread of the
    store; when it raises or returns a bad scope, the session is not opened (`Invalid`). A redacted or deleted message
    is forgotten in the same commit, whatever `remember` says.

    Args:
        path: The database file; `~/.repertory/sessions.db` (or `$REPERTORY_HOME/sessions.db`) when None.
        remember: Writes every message to the memory in the same file, in the commit that stores it, where
            `SQLiteMemoryStore(path, scope=...)` finds it.
        encryption: The location of the keys that encrypt the contents, such as `LocalKeys("keys")`
            (`docs/guides/sessions/encryption.md`); it excludes `remember`.

    Attributes:
        wakes: True: sessions here are woken for work that they owe.

    Raises:
        Invalid: For anything else. Correct the argument.
    """

    wakes = True
    is_local = True
    """True: the sessions are on this machine."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        remember: Remember = False,
        encryption: SessionKeysLocation | None = None,
    ) -> None:
        check_remember(remember)
        self.encryption = None if encryption is None else check_encryption(encryption, remember)
        self.path = named_path(path) if path is not None else sessions_database().absolute()
        self.remember: Remember = remember
        key = str(self.path) if remember is False else f"{self.path}, remembering {remembered_id(remember)}"
        self.key = key if self.encryption is None else encrypted_key(key, self.encryption)
        """The location's key, equal for all objects with the same database, the same `remember` and the same keys."""

    def __repr__(self) -> str:
        """The place, on one line."""
        return f"{type(self).__name__}({without_login(self.key)!r})"

    def open_store(self) -> SessionStore:
        """A store on this database. The caller closes it."""
        from repertory.backends.sessions.sqlite.store import SQLiteSessionStore  # loaded when used

        commit_hook = partial(_memory_beside, rule_of(self.remember))
        store = SQLiteSessionStore(self.path, owner=new_owner(), commit_hook=commit_hook)
        return store if self.encryption is None else encrypted_store(store, self.encryption)

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is no database yet."""
        return await listed(self)


@dataclass(frozen=True, slots=True)
class SQLiteSessionManager:
    """One session in a SQLite database: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next.

    Args:
        session_id: The id of the session.
        path: The database file; None for `sessions.db` in `$REPERTORY_HOME`, which is `~/.repertory` unless set.

    Raises:
        Invalid: For a bad id. Correct the argument.
        SessionBusy: From a call when another live process owns the session. Call again later, or let the other process
            release it.
    """

    session_id: str
    path: str | os.PathLike[str] | None = None
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""
    remember: bool | str = False
    """Write every message to the memory in the same file, in the commit that stores it: True in the scope of a memory
    store without one, a name in that scope.
    """
    encryption: SessionKeysLocation | None = None
    """The location of the keys with which the contents are encrypted."""
    _named: SQLiteSessions | None = field(init=False, repr=False, compare=False, default=None)
    """The sessions of `path`; None without one, as the default database may be another one with each use."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        check_remember(self.remember, single=True)
        if self.encryption is not None:
            check_encryption(self.encryption, self.remember)
        if self.path is not None:
            named = SQLiteSessions(self.path, remember=self.remember, encryption=self.encryption)
            object.__setattr__(self, "path", named.path)
            object.__setattr__(self, "_named", named)

    @property
    def sessions(self) -> SQLiteSessions:
        """The sessions of the database."""
        return self._named or SQLiteSessions(remember=self.remember, encryption=self.encryption)


def _memory_beside(rule: Rule | None, path: Path) -> CommitHook:
    from repertory.backends.memory.sqlite.entries import SessionMemory  # loads sqlite3, with the first use

    return SessionMemory(path, rule)


Rule: TypeAlias = "Callable[[str], str | None]"
"""Session id to the scope for its memories; None: its messages are not remembered."""
Remember: TypeAlias = "bool | str | Rule"
"""False: nothing; True: everything, in the scope of a memory store without one; a name: in that scope."""

_NO_SCOPE = ""
"""The scope of a memory store without one."""


def check_remember(remember: object, *, single: bool = False) -> None:
    """Raise `Invalid` for anything but a `Remember`. `single`: for one session, which cannot have a rule."""
    if isinstance(remember, str):
        check_id(remember, "scope")
    elif not isinstance(remember, bool) and (single or not callable(remember)):
        wanted = "True, False or a scope" if single else "True, False, a scope, or a function of the session id"
        raise Invalid(f"remember is {wanted}", got=type(remember).__name__)


def rule_of(remember: Remember) -> Rule | None:
    """The rule for a session's scope, whose results are checked; None when nothing is remembered."""
    if callable(remember):
        return partial(_scope_by, remember)
    if remember is False:
        return None
    scope = _NO_SCOPE if remember is True else remember
    return lambda _: scope


def remembered_id(remember: Remember) -> str:
    """The name of a setting, equal for the same one, and different from every other one in use."""
    return f"rule {id(remember):x}" if callable(remember) else repr(remember)


def _scope_by(rule: Rule, session_id: str) -> str | None:
    try:
        scope = rule(session_id)
    except Exception as error:
        raise Invalid(
            "whether a session is remembered could not be told", session=session_id, cause=repr(error)
        ) from error
    return None if scope is None else check_id(scope, "scope")


# The default places of data, `$REPERTORY_HOME` or `~/.repertory`, and the names of owners.


def home() -> Path:
    """The folder for all our data. It is created on the first write, never here."""
    return Path(os.environ.get("REPERTORY_HOME") or Path.home() / ".repertory").expanduser()


def named_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user names, bound to the folder in which the program is now: it may go to another one later."""
    return Path(path).expanduser().absolute()


def sessions_database() -> Path:
    """The default database of sessions."""
    return home() / "sessions.db"


def sessions_folder() -> Path:
    """The default folder of sessions stored as documents."""
    return home() / "sessions"


def memory_database() -> Path:
    """The default database of memories."""
    return home() / "memory.db"


def new_owner() -> str:
    """A new name for an owner of sessions in this process."""
    return owner_name(os.urandom(8), host=socket.gethostname(), pid=os.getpid(), at=time.time())


def aws_settings(location: Any) -> AwsSettings:
    """The connection settings of a place in AWS, from its fields, with the timeouts of session stores."""
    from repertory.backends.aws_clients import AwsSettings  # loaded when used

    return AwsSettings(
        region_name=location.region_name,
        boto_session=location.boto_session,
        boto_client_config=location.boto_client_config,
        endpoint_url=location.endpoint_url,
        connect_timeout_s=5.0,
        read_timeout_s=20.0,
    )
