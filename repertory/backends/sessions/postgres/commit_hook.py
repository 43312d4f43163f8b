"""Another component's tables in the schema of sessions, filled and emptied by the commits of sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from repertory.backends.postgres.erasing import ErasureMarks
from repertory.backends.postgres.pool import Pool, RunStatement
from repertory.core.journal.rows import Row


class SessionCommitHook(Protocol):
    """Methods that receive a `run` work within its open transaction and commit nothing. An exception from them rolls
    the whole transaction back, both their tables and ours.
    """

    @property
    def marks(self) -> ErasureMarks:
        """The marks for documents that are to be written anew after contents were destroyed."""
        ...

    async def prepare(self, pool: Pool, *, create: bool) -> bool:
        """Check the tables; make them if they are needed and `create`. False if they are needed and not there. Errors:
        `StoreFailed` for those of another version.
        """
        ...

    def scope_of(self, session_id: str) -> str | None:
        """The name under which the component keeps the session; None: it does not. Called on the event loop when the
        session gets an owner. Errors: `Invalid` when the name cannot be determined.
        """
        ...

    async def committed(
        self,
        run: RunStatement,
        stored: Sequence[tuple[str, str, Sequence[Row]]],
        erased: Mapping[str, Sequence[tuple[str, int]]],
    ) -> None:
        """Called with what a commit stores (scope, session, rows), and the rows whose contents it destroys (by session:
        agent, sequence number).
        """
        ...

    async def deleted(self, run: RunStatement, session_id: str) -> None:
        """Called when a commit destroys the session."""
        ...
