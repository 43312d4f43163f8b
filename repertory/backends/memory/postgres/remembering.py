"""The messages of sessions as memories in the same schema, by the same commits.

The session store calls this within its transactions: so a stored message is found, and an erased one is forgotten, at
the same moment. Lines of scopes are locked in the order of their names, after those of sessions, so that two
transactions never wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from repertory.backends.memory.postgres.entries import lock_scope
from repertory.backends.memory.postgres.schema import MARKS, prepare_memory
from repertory.backends.postgres.erasing import ErasureMarks
from repertory.backends.postgres.pool import Pool, RunStatement
from repertory.backends.postgres.values import texts
from repertory.core.journal.rows import Row
from repertory.core.recall.entries import Saying
from repertory.core.recall.journaled import sayings_in


class _Conversation(NamedTuple):
    scope: str
    id: int
    session: str
    agent: str


class RememberedSessions:
    """The memory tables beside those of sessions, for their store.

    Nothing is stored without a rule. Erased or deleted messages are still forgotten, in every scope, if the schema has
    memory tables.
    """

    def __init__(self, schema: str, rule: Callable[[str], str | None] | None) -> None:
        """`rule` returns the scope in which a session is remembered, or None."""
        self._schema = schema
        self._rule = rule
        self._there = False

    @property
    def marks(self) -> ErasureMarks:
        """The marks of parts that must be written anew after contents were destroyed."""
        return MARKS

    async def prepare(self, pool: Pool, *, create: bool) -> bool:
        """False if there are no tables, and a rule needs them. Errors: those of `prepare_tables`."""
        self._there = await prepare_memory(pool, self._schema, create=create and self._rule is not None)
        return self._there or self._rule is None

    def scope_of(self, session_id: str) -> str | None:
        return None if self._rule is None else self._rule(session_id)

    async def committed(
        self,
        run: RunStatement,
        stored: Sequence[tuple[str, str, Sequence[Row]]],
        erased: Mapping[str, Sequence[tuple[str, int]]],
    ) -> None:
        """Remember the messages among the rows that a commit stores (scope, session, rows), and forget those that it
        erases (by session: agent and sequence number), with what was extracted from them. Their replacements are not
        remembered either. Rows that this release cannot read are left out.
        """
        fresh: dict[str, list[Saying]] = {}
        for scope, session_id, rows in stored:
            if sayings := sayings_in(session_id, rows):
                fresh.setdefault(scope, []).extend(sayings)
        known = await self._conversations(run, list(erased)) if erased else []
        for scope in sorted({*fresh, *(each.scope for each in known)}):
            entries = await lock_scope(run, self._schema, scope, create=scope in fresh)
            if entries is None:
                continue
            if scope in fresh:
                await entries.insert_turns(fresh[scope], now=fresh[scope][-1].said_at or 0.0)
            for conversation in [each for each in known if each.scope == scope]:
                numbers = [seq for agent, seq in erased[conversation.session] if agent == conversation.agent]
                if numbers:
                    await entries.forget_turns([conversation.id], numbers)
                    await entries.refuse_from_now_on([(conversation.id, seq, None) for seq in numbers])

    async def deleted(self, run: RunStatement, session_id: str) -> None:
        """Forget the session's turns, what was extracted only from them, and the session itself."""
        known = await self._conversations(run, [session_id])
        for scope, of_scope in groupby(known, key=lambda each: each.scope):
            entries = await lock_scope(run, self._schema, scope, create=False)
            if entries is not None:
                keys = [conversation.id for conversation in of_scope]
                await entries.forget_turns(keys)
                await entries.delete_conversations(keys)

    async def _conversations(self, run: RunStatement, sessions: Sequence[str]) -> list[_Conversation]:
        if not self._there:
            there = await run("SELECT to_regclass($1::text)::text", f"{self._schema}.memory_conversations")
            if there == [(None,)]:
                return []
        lines = await run(
            f"SELECT s.name, c.id, c.session, c.agent FROM {self._schema}.memory_conversations AS c"
            f" JOIN {self._schema}.memory_scopes AS s ON s.id = c.scope WHERE c.session = ANY ($1::text[])"
            " ORDER BY s.name, c.id",
            texts(sessions),
        )
        return [_Conversation._make(cast("tuple[str, int, str, str]", line)) for line in lines]
