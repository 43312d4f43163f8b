"""Sessions in PostgreSQL, which many processes on many machines may share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from repertory.app.sessions.encryption import check_encryption, encrypted_key, encrypted_store
from repertory.app.sessions.sessions import Remember, check_remember, listed, new_owner, remembered_id, rule_of
from repertory.core.ids import check_id
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.sessions.encryption import SessionKeysLocation
    from repertory.backends.ports import SessionInfo, SessionStore


class PostgresSessions:
    """All sessions in one schema of a PostgreSQL database, version 13 or newer. Nothing is opened or created before it
    is needed; the tables are made on the first write.

    What is left out comes from the environment (`PGPASSWORD`, `PGHOST`) and the password file. The password stands in
    no name, message or log of this package.

    Without it, a killed process is replaced after 10 seconds instead of at once, and requests of others are seen within
    one second.

    True: in the scope of a store without one; a name: in that scope; a function: in the scope that it returns for a
    session id, or not at all when it returns None. It is called on the event loop when the session gets an owner; when
    it raises or returns a bad scope, the session is not opened (`Invalid`). A redacted or deleted message is forgotten
    in the same commit, whatever `remember` says.

    Args:
        dsn: The database, as a URL (`postgresql://USER@HOST/DATABASE`) or in libpq's keywords, with any of its
            parameters: `sslmode`, `sslrootcert`, `connect_timeout`, several hosts.
        schema: The name of the schema.
        direct_dsn: Then the database without the pooler.
        pooled: True if the address leads to a pooler that gives each transaction another connection, such as PgBouncer
            in transaction mode.
        connections: The most connections for one event loop, besides one that shows others that this process is alive.
        remember: Writes every message to the memory in the same schema, in the commit that stores it, where
            `PostgresMemoryStore(dsn, scope=...)` finds it.
        encryption: The location of the keys that encrypt the contents, such as `LocalKeys("keys")`
            (`docs/guides/sessions/encryption.md`); it excludes `remember`.

    Attributes:
        wakes: True: sessions here are woken for work that they owe.

    Raises:
        Invalid: For what is no connection string or schema name, and for any other `remember`. Correct the argument.
        ImportError: Without the extra `postgres`. Install the extra that the message names.
    """

    wakes = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "repertory",
        direct_dsn: str | None = None,
        pooled: bool = False,
        connections: int = 8,
        remember: Remember = False,
        encryption: SessionKeysLocation | None = None,
    ) -> None:
        check_remember(remember)
        self.encryption = None if encryption is None else check_encryption(encryption, remember)
        from repertory.backends.postgres.address import postgres_address  # loaded when used: libpq is an extra

        self._address = postgres_address(dsn)
        self._direct = None if direct_dsn is None else postgres_address(direct_dsn)
        from repertory.backends.postgres.tables import check_schema  # as above

        self.schema = check_schema(schema)
        self.pooled = pooled or direct_dsn is not None
        if isinstance(connections, bool) or connections < 1:
            raise Invalid("connections is a number, 1 or more", got=connections)
        self.connections = connections
        self.remember: Remember = remember

    def __repr__(self) -> str:
        return f"PostgresSessions({self.key!r})"

    @property
    def key(self) -> str:
        """The address without a password, the schema, what is remembered, and the keys: equal for all objects that name
        the same place and remember the same.
        """
        location = f"{self._address.name}#{self.schema}"
        key = location if self.remember is False else f"{location}, remembering {remembered_id(self.remember)}"
        return key if self.encryption is None else encrypted_key(key, self.encryption)

    def open_store(self) -> SessionStore:
        """A store on this database. The caller closes it."""
        from repertory.backends.memory.postgres.remembering import RememberedSessions  # loaded when used
        from repertory.backends.sessions.postgres.store import (  # loaded when used
            PostgresSessionStore,
            PostgresSettings,
        )

        settings = PostgresSettings(
            schema=self.schema, direct=self._direct, pooled=self.pooled, connections=self.connections
        )
        commit_hook = RememberedSessions(self.schema, rule_of(self.remember))
        store = PostgresSessionStore(self._address, owner=new_owner(), settings=settings, commit_hook=commit_hook)
        return store if self.encryption is None else encrypted_store(store, self.encryption)

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there are no tables yet."""
        return await listed(self)


@dataclass(frozen=True, slots=True)
class PostgresSessionManager:
    """One session in a PostgreSQL database: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in any process on any machine.

    Args:
        session_id: The id of the session.
        dsn: The address of the database; see `PostgresSessions`.
        schema: The schema of the tables; see `PostgresSessions`.
        direct_dsn: The address without a pooler; see `PostgresSessions`.
        pooled: True if `dsn` leads to a pooler; see `PostgresSessions`.

    Raises:
        Invalid: For a bad id. Correct the argument.
        SessionBusy: From a call when another live process owns the session. Call again later, or let the other process
            release it.
    """

    session_id: str
    dsn: str = field(repr=False)
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""
    schema: str = "repertory"
    direct_dsn: str | None = field(default=None, repr=False)
    pooled: bool = False
    remember: bool | str = False
    """Write every message to the memory in the same schema, in the commit that stores it: True in the scope of a memory
    store without one, a name in that scope.
    """
    encryption: SessionKeysLocation | None = None
    """The location of the keys with which the contents are encrypted."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        check_remember(self.remember, single=True)
        _ = self.sessions

    @property
    def sessions(self) -> PostgresSessions:
        """The sessions of the schema."""
        return PostgresSessions(
            self.dsn,
            schema=self.schema,
            direct_dsn=self.direct_dsn,
            pooled=self.pooled,
            remember=self.remember,
            encryption=self.encryption,
        )
