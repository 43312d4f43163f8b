"""`PostgresMemoryStore`: a memory store that many processes on many machines may share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from repertory.app.tracebacks import short_errors
from repertory.backends.memory.postgres.location import PostgresLocation
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
            dsn: The address of the database, as for `PostgresSessions`.
            schema: The schema of the tables; sessions may be in the same one.
            direct_dsn: The address without a pooler, as for `PostgresSessions`.
            pooled: True if `dsn` leads to a pooler, as for `PostgresSessions`.
            connections: The most connections for one event loop.
            scope: The owner of these memories, for example a tenant or a user.
            name: The store's name, unique in its manager.
            description: The contents of the store, in words for the model.
            max_search_results: The most entries of a search; None for the manager's number.
            writable: True if entries can be added.
            extraction: An `ExtractionConfig`; True for its defaults, None or False for no extraction.
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

        location = PostgresLocation(
            address=address,
            schema=check_schema(schema),
            direct=None if direct_dsn is None else postgres_address(direct_dsn),
            pooled=pooled or direct_dsn is not None,
            connections=connections,
        )
        super().__init__(location, settings, clock=time.time)
