"""Calls that nobody waits for, in PostgreSQL: a line of the table `calls` for each, until it is done, and one of the
small table `taken` for each session of which somebody has a call.

One statement takes calls: it frees those of dead owners, and notes for this owner the first one of each session that is
free. Calls at which others look at this moment are passed over, so takers do not wait for each other, and the key of
`taken` makes sure that one call of a session is taken, whatever two takers see of each other. As all that changes often
is in the small table, no statement depends on what the server believes about the large one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Final, cast

import anyio
from anyio.lowlevel import checkpoint

from repertory.backends.peer_ports import CallQueue, QueuedCall
from repertory.backends.postgres.connection import ResultLine
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.values import Parameter, texts
from repertory.backends.sessions.postgres.pending_work import tenant_sql
from repertory.backends.sessions.postgres.presence import Presence, alive_sql
from repertory.backends.sessions.postgres.schema import TablesReady
from repertory.backends.shields import Uncut
from repertory.core.ids import check_id
from repertory.core.peers import POISON_OWNERS
from repertory.core.queued_calls import ENDED_TEXT, call_of, call_text, plain_text
from repertory.errors import RepertoryError, StoreUnavailable

DEADLOCK: Final = "40P01"
"""The server's code when takers with different agents wait for each other, each for a session of the other."""
_TRIES: Final = 5
_COLUMNS: Final = (
    "c.session, c.agent, c.token, c.call, extract(epoch FROM c.created_at)::float8, c.tries::bigint, c.error,"
    " c.parked_at IS NOT NULL"
)


def _count(column: str) -> str:
    """A count that has room for more: one odd line would fail the statement for all."""
    return f"least({column}, 1000000000)"


class PostgresCallQueue(CallQueue):
    """Errors: those of the store."""

    def __init__(self, pool: Pool, presence: Presence, schema: str, owner: str, begin: TablesReady) -> None:
        self._pool = pool
        self._presence = presence
        self._owner = owner
        self._begin = begin
        self._taking = anyio.Lock()
        self._known: dict[str, tuple[str, str, str]] = {}
        """The calls that were taken and are neither done nor given back, by session. What else the table has in this
        owner's name was taken by a statement whose answer was lost.
        """
        self._change(f"{schema}.calls", f"{schema}.taken")
        self._take(f"{schema}.calls", f"{schema}.taken", schema)

    def _change(self, calls: str, taken: str) -> None:
        # Session, agent, token, call.
        self._put_sql = (
            f"INSERT INTO {calls} AS c (session, agent, token, call)"
            " VALUES ($1::text, $2::text, $3::text, $4::text) ON CONFLICT (session, agent, token) DO UPDATE SET"
            " id = excluded.id, call = excluded.call, created_at = excluded.created_at, tries = 0, ended = 0,"
            " not_before = excluded.not_before, error = '', parked_at = NULL WHERE c.parked_at IS NOT NULL RETURNING id"
        )
        # Sessions, agents, tokens, owner. A taker may hold the line of a call for a moment because it has not seen yet
        # that it is taken: it is waited for before anything is changed, or it would wait as well.
        untaken = (
            f"WITH held AS MATERIALIZED (SELECT c.id FROM {calls} AS c"
            " JOIN unnest($1::text[], $2::text[], $3::text[]) AS d (session, agent, token)"
            " ON c.session = d.session AND c.agent = d.agent AND c.token = d.token ORDER BY c.id FOR UPDATE OF c),"
            f" untaken AS (DELETE FROM {taken} WHERE session = ANY ($1::text[]) AND owner = $4::text"
            " AND call = ANY (ARRAY(SELECT id FROM held)) RETURNING call)"
        )
        self._done_sql = f"{untaken} DELETE FROM {calls} AS c USING untaken WHERE c.id = untaken.call"
        # The same; then seconds, error, whether to park it.
        self._again_sql = (
            f"{untaken} UPDATE {calls} AS c SET tries = {_count('c.tries')} + 1, error = $6::text,"
            " not_before = clock_timestamp() + make_interval(secs => $5::float8),"
            " parked_at = CASE WHEN $7::boolean THEN clock_timestamp() END FROM untaken WHERE c.id = untaken.call"
        )
        # Owner, the sessions of which it knows.
        self._untake_sql = f"DELETE FROM {taken} WHERE owner = $1::text AND session <> ALL ($2::text[])"
        self._all_sql = f"SELECT {_COLUMNS} FROM {calls} AS c ORDER BY c.id"
        self._some_sql = f"SELECT {_COLUMNS} FROM {calls} AS c WHERE c.session = $1::text ORDER BY c.id"

    def _take(self, calls: str, taken: str, schema: str) -> None:
        # Owner, how many, agents, the sessions of which it knows, why calls are parked, tenants that are passed over.
        waits = "{0}.parked_at IS NULL AND {0}.agent = ANY ($3::text[])"
        parks = f"{_count('c.ended')} + f.dead >= {POISON_OWNERS}"
        self._take_sql = (
            f"WITH gone AS MATERIALIZED (SELECT t.owner FROM (SELECT DISTINCT owner FROM {taken}"
            f" WHERE owner <> $1::text) AS t WHERE NOT {alive_sql('t.owner', schema)}),"
            f" left_over AS MATERIALIZED (SELECT t.session, t.call, (t.owner <> $1::text)::integer AS dead"
            f" FROM {taken} AS t WHERE t.owner IN (SELECT owner FROM gone)"
            " OR t.owner = $1::text AND t.session <> ALL ($4::text[]) FOR UPDATE OF t SKIP LOCKED),"
            f" freed AS (DELETE FROM {taken} AS t USING left_over AS l WHERE t.session = l.session"
            " RETURNING l.call, l.dead),"
            f" counted AS (UPDATE {calls} AS c SET tries = {_count('c.tries')} + f.dead,"
            f" ended = {_count('c.ended')} + f.dead,"
            f" error = CASE WHEN {parks} THEN $5::text ELSE c.error END,"
            f" parked_at = CASE WHEN {parks} THEN clock_timestamp() END FROM freed AS f WHERE c.id = f.call),"
            f" first AS MATERIALIZED (SELECT c.id, c.session FROM {calls} AS c WHERE {waits.format('c')}"
            # By its index, which then skips what is gone: a scan of another kind would look at it each time.
            f" AND c.id >= (SELECT min(id) FROM {calls} WHERE parked_at IS NULL)"
            f" AND {tenant_sql('c.session')} <> ALL ($6::text[])"
            f" AND c.not_before <= clock_timestamp() AND c.session NOT IN (SELECT session FROM {taken})"
            f" AND NOT EXISTS (SELECT 1 FROM {calls} AS b WHERE b.session = c.session AND b.id < c.id"
            f" AND {waits.format('b')} OFFSET 0) ORDER BY c.id LIMIT $2::bigint FOR UPDATE OF c SKIP LOCKED),"
            f" mine AS (INSERT INTO {taken} (session, call, owner) SELECT session, id, $1::text FROM first"
            " ON CONFLICT (session) DO NOTHING RETURNING call)"
            f" SELECT (SELECT count(*) FROM freed), c.id, {_COLUMNS} FROM (SELECT 1) AS one"
            f" LEFT JOIN (mine JOIN {calls} AS c ON c.id = mine.call) ON true ORDER BY c.id"
        )

    async def put(self, call: QueuedCall) -> bool:
        session_id, agent_id, token = _key(call)
        for value, what in ((session_id, "session id"), (agent_id, "agent id"), (token, "token")):
            check_id(value, what)
        text = call_text(call.call)
        await self._begin(create=True)
        return bool(await self._run(self._put_sql, session_id, agent_id, token, text))

    async def take(self, limit: int, agents: Collection[str], passing: Collection[str] = ()) -> Sequence[QueuedCall]:
        """One statement; a second one when an owner has died that had calls."""
        if limit < 1 or not agents or not await self._begin(create=False):
            return []
        await self._presence.ensure()
        # One at a time: what a second statement takes is not in `_known` of the first, which would give it back.
        async with self._taking:
            taken = await self._take_some(limit, sorted(agents), list(passing))
            try:
                # The caller that was cancelled does not see its calls, and nobody else would do them until this owner
                # has died.
                await checkpoint()
            except BaseException:
                with suppress(RepertoryError), Uncut():
                    self._forget(taken)
                    await self._run(self._untake_sql, self._owner, texts([*self._known]))
                raise
        return taken

    async def done(self, calls: Sequence[QueuedCall]) -> None:
        """One statement."""
        if not calls or not await self._begin(create=False):
            return
        columns = (texts(column) for column in zip(*map(_key, calls), strict=True))
        await self._run(self._done_sql, *columns, self._owner)
        self._forget(calls)

    async def again(self, call: QueuedCall, after_s: float, error: str, *, park: bool = False) -> None:
        if await self._begin(create=False):
            key = (texts([part]) for part in _key(call))
            await self._run(self._again_sql, *key, self._owner, after_s, plain_text(error), park)
            self._forget([call])

    async def calls(self, session_id: str | None = None) -> Sequence[QueuedCall]:
        if not await self._begin(create=False):
            return []
        if session_id is None:
            return [_call(line) for line in await self._pool.run(self._all_sql, once=True)]
        return [_call(line) for line in await self._pool.run(self._some_sql, session_id, once=True)]

    async def _take_some(self, limit: int, agents: Sequence[str], passing: Sequence[str]) -> list[QueuedCall]:
        taken: list[QueuedCall] = []
        tries = 0
        while len(taken) < limit:
            given = limit - len(taken), texts(agents), texts([*self._known]), ENDED_TEXT, texts(passing)
            try:
                lines = await self._run(self._take_sql, self._owner, *given)
            except StoreUnavailable as error:
                tries += 1
                if error.fields.get("code") != DEADLOCK or tries == _TRIES:
                    raise
                continue
            more = [_call(line[2:]) for line in lines if line[1] is not None]
            self._known |= {call.session_id: _key(call) for call in more}
            taken += more
            # Nothing was freed of dead owners. If something was, it can be taken only by a next statement.
            if not lines[0][0]:
                break
        return taken

    def _forget(self, calls: Sequence[QueuedCall]) -> None:
        for call in calls:
            if self._known.get(call.session_id) == _key(call):
                del self._known[call.session_id]

    async def _run(self, statement: str, *parameters: Parameter) -> list[ResultLine]:
        """Planned anew each time: the table is now empty, now large. Cancellation waits for it."""
        with Uncut():
            return await self._pool.run(statement, *parameters, once=True)
        raise AssertionError


def _key(call: QueuedCall) -> tuple[str, str, str]:
    return call.session_id, call.agent_id, call.token


def _call(line: ResultLine) -> QueuedCall:
    session_id, agent_id, token, text, created_at, tries, error, parked = line
    return QueuedCall(
        session_id=str(session_id),
        agent_id=str(agent_id),
        token=str(token),
        call=call_of(str(text)),
        created_at=cast("float", created_at),
        tries=cast("int", tries),
        error=str(error),
        parked=bool(parked),
    )
