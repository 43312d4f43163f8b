"""The location of memories in PostgreSQL, and the settings of its connections."""

from __future__ import annotations

from msgspec import Struct

from repertory.backends.postgres.address import PostgresAddress


class PostgresLocation(Struct, frozen=True, kw_only=True):
    """A schema of a database."""

    address: PostgresAddress
    schema: str
    direct: PostgresAddress | None = None
    """The database without the pooler that the address leads to."""
    pooled: bool = False
    """True if the address leads to a pooler that gives each transaction another connection."""
    connections: int = 4
    timeout_s: float = 20.0
    """The most seconds for one statement, including the wait for a connection."""

    @property
    def name(self) -> str:
        """The address without a password, and the schema."""
        return f"{self.address.name}#{self.schema}"
