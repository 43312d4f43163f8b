"""`PostgresMemoryStore`: a memory store that many processes on many machines may share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from repertory.app.host.edge import short_errors
from repertory.backends.memory.postgres.place import PostgresPlace
from repertory.backends.memory.postgres.store import PostgresMemory
from repertory.backends.memory.ranked import MemorySettings
from repertory.backends.postgres.address import postgres_address
from repertory.core.ids import check_id
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.memory_ports import Embedder


@short_errors
class PostgresMemoryStore(PostgresMemory):
    """A memory store in a PostgreSQL database: pass it to `MemoryManager(stores=[...])`, or use it by itself.

    See `PostgresMemory` for its methods. Errors of the constructor: `Invalid` for a bad name, scope, connection string
    or schema; `ImportError` without the extra `postgres`, or with an embedder without numpy. Nothing is opened or
    created before it is needed.

    Raises:
        Invalid: For a scope that is no id, and for less than one connection. Correct the argument.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = "repertory",
        name: str = "memory",
        description: str | None = "What was said before, and what is known from it.",
        max_search_results: int | None = None,
        writable: bool = True,
        extraction: object = None,
        scope: str | None = None,
        embedder: Embedder | None = None,
        direct_dsn: str | None = None,
        pooled: bool = False,
        connections: int = 4,
    ) -> None:
        """Stores of different scopes may share a schema; none sees or changes the memories of another, and None is a
        scope of its own.

        All stores of a schema have the same; another is refused by the first call that needs it. Vectors are compared
        by pgvector where the database has it, and in this process where not. Needs numpy.

        Args:
            dsn: As for `PostgresSessions`, whose tables may be in the same schema.
            schema: As for `PostgresSessions`, whose tables may be in the same schema.
            direct_dsn: As for `PostgresSessions`, whose tables may be in the same schema.
            pooled: As for `PostgresSessions`, whose tables may be in the same schema.
            connections: The most connections for one event loop.
            scope: The owner of these memories, for example a tenant or a user.
            name: As for any store of a manager.
            description: As for any store of a manager.
            max_search_results: As for any store of a manager.
            writable: As for any store of a manager.
            extraction: As for any store of a manager.
            embedder: Makes vectors of entries, so that a search in other words finds them too.
        """
        if scope is not None:
            check_id(scope, "scope")
        if isinstance(connections, bool) or connections < 1:
            raise Invalid("connections is a number, 1 or more", got=connections)
        settings = MemorySettings(
            name=check_id(name, "store name"),
            description=description,
            max_search_results=max_search_results,
            writable=writable,
            extraction=extraction,
            scope=scope or "",
            embedder=embedder,
        )
        address = postgres_address(dsn)
        from repertory.backends.postgres.tables import check_schema  # loaded when used: libpq is an extra

        place = PostgresPlace(
            address=address,
            schema=check_schema(schema),
            direct=None if direct_dsn is None else postgres_address(direct_dsn),
            pooled=pooled or direct_dsn is not None,
            connections=connections,
        )
        super().__init__(place, settings, clock=time.time)
