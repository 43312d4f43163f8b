"""An owner's signs of life in the database, and the requests of owners to each other for sessions.

An owner has a connection of its own. It holds a lock of the database, which the server lets go when the process dies,
hears notifications, and is beaten every `ttl_s` / 5 seconds:

    alive = the last beat is younger than `ttl_s`, counted from when the database was back at the earliest
            and (the lock is taken, or the owner has not joined since the database was back)

So the sessions of a killed owner are free at once, those of a frozen one after `ttl_s`, and after an outage nobody
looks dead for having lost a connection, however long it was. The start of a server does not say when the database was
back: a replica that takes over was started long before. So the first owner that comes to a server notes it, and
likewise the first one that had joined before and finds that none has been heard for half of `ttl_s`.

An owner that cannot have a connection of its own, behind a pooler in transaction mode, has the beat alone, and finds
the requests of others by looking.

Whether an owner may write is decided by the lease, in the commit itself. This only says whom others may replace. An
owner that has not been heard for two thirds of its time to live refuses to write, so that no turn and no tool starts
under a lease that is about to be lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Final, cast

import anyio

from repertory.backends.ports import UntilFree, by_the_clock
from repertory.backends.postgres.address import PostgresAddress
from repertory.backends.postgres.connection import PostgresConnection, ResultLine, connect
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.values import Parameter, texts
from repertory.backends.shields import Uncut
from repertory.errors import RepertoryError, Retryable, StoreFailed, StoreUnavailable

TTL_S: Final = 10.0
"""Seconds that an owner counts as alive after its last beat."""
_BEATS: Final = 5
"""Beats in that time."""
_DOUBTED: Final = 2 / 3
"""After this share of the time without a beat, an owner refuses to write."""
_WAIT_S: Final = 5.0
_TTL_MAX_S: Final = 86_400
"""The seconds of silence after which an owner is forgotten."""
_RETRY_S: Final = 0.1
_RETRY_MAX_S: Final = 2.0
_UNSYNCED: Final = "set_config('synchronous_commit', 'off', true)"
"""Makes a transaction return before it is on disk: nothing is promised of it."""


def alive_sql(owner: str, schema: str) -> str:
    """The condition that an owner, given by an SQL expression, is alive. Testing takes a shared lock until the
    transaction ends, so that two that test never take each other for the owner.
    """
    return f"EXISTS (SELECT 1 FROM {schema}.owners o WHERE o.owner = {owner} AND {_alive(schema)})"


_START: Final = "greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))"
"""The time at which this server started, or began anew after a crash of one of its processes, which ends all
connections.
"""


def _alive(schema: str) -> str:
    back = f"coalesce((SELECT back FROM {schema}.servers WHERE server_start = {_START}), clock_timestamp())"
    # Bounded, NaN too: an interval of one odd line would fail the statement for all owners.
    ttl_s = f"least(greatest(o.ttl_s, 0), {_TTL_MAX_S})"
    return (
        f"greatest(o.beat, {back}) > clock_timestamp() - make_interval(secs => {ttl_s})"
        f" AND (o.lock_key IS NULL OR o.server_start <> {_START} OR o.joined < {back}"
        " OR NOT pg_try_advisory_xact_lock_shared(o.lock_key))"
    )


def living_sql(schema: str) -> str:
    """A query for the owners that are alive."""
    return f"SELECT o.owner FROM {schema}.owners o WHERE {_alive(schema)}"


class Presence:
    """The presence of one owner. For one event loop."""

    def __init__(
        self, pool: Pool, direct: PostgresAddress | None, *, schema: str, owner: str, ttl_s: float = TTL_S
    ) -> None:
        """`direct`: the address for a connection that no pooler shares out; None: there is none."""
        self._pool = pool
        self._direct = direct
        self._schema = schema
        self._owner = owner
        self._ttl_s = ttl_s
        self._lock = anyio.Lock()
        self._connection: PostgresConnection | None = None
        self._key: int | None = None
        self._joined = False
        self._beat_at = -float("inf")
        self._wanted = anyio.Event()
        self._looked = anyio.Event()
        """Set, and replaced, whenever a beat has been tried."""
        self._failed: RepertoryError | None = None
        self._keeping = False
        """True while `keep` runs: nobody else uses the connection then."""
        self._closed = False
        self._asked: dict[str, None] = {}
        self._waiting: dict[str, set[str]] = {}
        """Session to the channels of the owners that wait for it."""
        self._free: dict[str, set[anyio.Event]] = {}
        """Session to those in this process that wait for another owner to release it."""
        self._hear: Callable[[], None] | None = None
        owners, servers = f"{schema}.owners", f"{schema}.servers"
        met = f"WITH met AS (INSERT INTO {servers} VALUES ({_START}, now()) ON CONFLICT (server_start) DO NOTHING)"
        self._back_sql = (
            f"INSERT INTO {servers} SELECT {_START}, now() WHERE NOT EXISTS (SELECT 1 FROM {owners} AS o"
            " WHERE o.owner <> $1::text AND o.beat > clock_timestamp() - make_interval(secs => $2::float8))"
            " ON CONFLICT (server_start) DO UPDATE SET back = excluded.back"
        )
        self._join_sql = (
            f"{met} INSERT INTO {owners} AS o VALUES ($1::text, $2::bigint, clock_timestamp(), $3::float8,"
            f" clock_timestamp(), {_START}, inet_client_addr()::text) ON CONFLICT (owner) DO UPDATE SET"
            " lock_key = excluded.lock_key, beat = excluded.beat, ttl_s = excluded.ttl_s, joined = excluded.joined,"
            " server_start = excluded.server_start, address = excluded.address"
        )
        self._beat_sql = (
            f"{met} UPDATE {owners} SET beat = clock_timestamp() WHERE owner = $1::text"
            f" AND lock_key IS NOT DISTINCT FROM $2::bigint RETURNING {_UNSYNCED}"
        )
        self._forget_sql = (
            f"WITH gone AS (DELETE FROM {servers} WHERE server_start <> {_START} AND back < now() - interval '1 day')"
            f" DELETE FROM {owners} WHERE beat < clock_timestamp() - interval '1 day'"
        )
        self._leave_sql = f"DELETE FROM {owners} WHERE owner = $1::text RETURNING {_UNSYNCED}"
        self._ask_sql = (
            f"SELECT lock_key IS NOT NULL, CASE WHEN lock_key IS NOT NULL THEN pg_notify($2::text, $3::text) END::text,"
            f" {_UNSYNCED} FROM {owners} WHERE owner = $1::text"
        )
        self._request_sql = f"INSERT INTO {schema}.requests VALUES ($1::text, $2::text) ON CONFLICT DO NOTHING"
        self._requests_sql = f"DELETE FROM {schema}.requests WHERE owner = $1::text RETURNING session"

    @property
    def hears(self) -> bool:
        """True if requests of others are heard, and need not be looked for."""
        return self._direct is not None

    async def ensure(self) -> None:
        """Return when the database has heard of this owner lately. Errors: those of the database; `StoreUnavailable`
        when it has not heard of this owner in time.
        """
        # On the path of each commit, and nearly always true: no await.
        if self._doubtless():
            return
        self._wanted.set()
        # Without `maintain`, such as in a call outside of any block, nobody beats: do it here.
        if not self._keeping:
            with Uncut():  # A beat that is cut would end the connection, and the lock.
                async with self._lock:
                    if not self._keeping:
                        if not self._doubtless():
                            await self._look()
                        return
        with anyio.move_on_after(_WAIT_S):
            while not self._doubtless():
                await self._looked.wait()
                if self._failed is not None and not isinstance(self._failed, Retryable):
                    break
        if not self._doubtless():
            text = "the database has not heard from this process lately: nothing is begun until it has"
            raise self._failed or StoreUnavailable(text, owner=self._owner)

    def refuse_when_doubtful(self) -> StoreUnavailable | None:
        """The error for one that would write although the database has not heard of this owner lately."""
        if self._doubtless() or not self._keeping:
            return None
        text = "the database has not heard from this process lately: nothing is begun until it has"
        cause = None if self._failed is None else self._failed.message
        return StoreUnavailable(text, owner=self._owner, cause=cause)

    async def keep(self) -> None:
        """Beat and hear, until cancelled, from the first `ensure` on. Failures are tried again."""
        self._keeping = True
        failures = 0
        try:
            await self._wanted.wait()
            while not self._closed:
                try:
                    with Uncut():  # As above.
                        async with self._lock:
                            await self._look()
                    failures = 0
                    with anyio.move_on_after(self._ttl_s / _BEATS):
                        await self._heard()
                except RepertoryError:
                    failures += 1
                    # Soon at first, since an owner that is not heard refuses to write; never less often than it would
                    # beat.
                    await anyio.sleep(min(_RETRY_MAX_S, self._ttl_s / _BEATS, _RETRY_S * 2 ** min(failures, 10)))
            await anyio.sleep_forever()
        finally:
            self._keeping = False

    async def close(self) -> None:
        """Stop counting as alive, and tell those that wait. The caller shields it."""
        self._closed = True
        if self._joined:
            self._joined = False
            with suppress(RepertoryError):
                await self._pool.run(self._leave_sql, self._owner, within_s=_WAIT_S)
                await self._notify(
                    [(channel, f"free\n{name}") for name, all_ in self._waiting.items() for channel in all_]
                )
        self.drop()

    def drop(self) -> None:
        """Close the connection, at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # Requests.

    async def ask(self, owner: str, session_id: str) -> None:
        """Ask another owner for a session. Best effort: who asks tries again."""
        reply_to = _channel(self._schema, self._owner) if self._keeping and self._connection is not None else ""
        with suppress(RepertoryError):
            note = f"ask\n{session_id}\n{reply_to}"
            lines = await self._pool.run(self._ask_sql, owner, _channel(self._schema, owner), note)
            # It has no connection to hear with, so the request is kept in a table, where it looks.
            if lines and lines[0][0] is False:
                await self._pool.run(self._request_sql, owner, session_id)

    async def asked_for(self) -> list[str]:
        """The sessions that others have asked for since the last call. Errors: `StoreUnavailable`."""
        asked, self._asked = list(self._asked), {}
        if self._joined and not self.hears:
            with suppress(StoreFailed):  # Whoever writes is told; here nobody waits for an answer.
                asked += [str(session) for (session,) in await self._pool.run(self._requests_sql, self._owner)]
        return asked

    async def freed(self, session_ids: list[str]) -> None:
        """Tell those that wait for these sessions. Best effort."""
        notes: list[tuple[str, str]] = []
        for session_id in session_ids:
            self._asked.pop(session_id, None)
            notes += [(channel, f"free\n{session_id}") for channel in self._waiting.pop(session_id, ())]
        with suppress(RepertoryError):
            await self._notify(notes)

    async def listen(self, asked: Callable[[], None]) -> None:
        """Call `asked` for each request, until cancelled: `StoreSharing.listen`. `keep` hears them."""
        if not self.hears:
            return
        self._hear = asked
        try:
            asked()
            await anyio.sleep_forever()
        finally:
            self._hear = None

    def waiting(self, session_id: str) -> AbstractAsyncContextManager[UntilFree]:
        """A wait for a session of another owner: `StoreSharing.waiting`."""
        return self._until_free(session_id) if self.hears and self._keeping else by_the_clock()

    @asynccontextmanager
    async def _until_free(self, session_id: str) -> AsyncGenerator[UntilFree]:
        async def until_heard(owner: str, within_s: float) -> None:
            del owner
            event = anyio.Event()
            self._free.setdefault(session_id, set()).add(event)
            try:
                with anyio.move_on_after(within_s):
                    await event.wait()
            finally:
                events = self._free.get(session_id, set())
                events.discard(event)
                if not events:
                    self._free.pop(session_id, None)

        yield until_heard

    # Within.

    def _doubtless(self) -> bool:
        connected = self._direct is None or self._connection is not None
        return connected and self._joined and anyio.current_time() - self._beat_at < self._ttl_s * _DOUBTED

    async def _look(self) -> None:
        """Join, or beat. After tries that failed for a while, ask first if the database was away. An owner that did not
        try says nothing of the database.
        """
        try:
            began = anyio.current_time()
            if self._failed is not None and self._joined and began - self._beat_at > self._ttl_s / 2:
                await self._pool.run(self._back_sql, self._owner, self._ttl_s / 2, within_s=self._ttl_s / 2)
            if self._direct is not None and (self._connection is None or not self._connection.usable):
                self.drop()
                await self._join_directly(self._direct)
            elif not self._joined or not await self._run(self._beat_sql, self._owner, self._key):
                await self._join()
            # As of when it was sent: the server may have noted the beat at any time since.
            self._beat_at, self._failed = began, None
        except RepertoryError as error:
            self._failed = error
            raise
        finally:
            # Also after a failure, so that those who wait in `ensure` are told why.
            self._looked.set()
            self._looked = anyio.Event()

    async def _join_directly(self, direct: PostgresAddress) -> None:
        """A new lock with every connection: the server may still hold the lock of one that was cut."""
        connection = await connect(direct, within_s=self._ttl_s / 2)
        try:
            key_sql = (
                "SELECT key, pg_try_advisory_lock(key)"
                " FROM (SELECT hashtextextended(gen_random_uuid()::text, 0) AS key OFFSET 0) AS keys"
            )
            ((key, _),) = await connection.run(key_sql, within_s=self._ttl_s, once=True)
            listening = f'LISTEN "{_channel(self._schema, self._owner)}"'
            await connection.run(listening, within_s=self._ttl_s, once=True)
            if self._closed:
                raise StoreUnavailable("this was closed before")
            self._connection, self._key = connection, cast("int", key)
            await self._join()
        except BaseException:
            connection.close()
            self._connection = None
            raise

    async def _join(self) -> None:
        await self._run(self._join_sql, self._owner, self._key, self._ttl_s)
        await self._run(self._forget_sql)
        self._joined = True

    async def _run(self, statement: str, *parameters: Parameter) -> list[ResultLine]:
        if self._connection is None:
            return await self._pool.run(statement, *parameters, within_s=self._ttl_s / 2)
        return await self._connection.run(statement, *parameters, within_s=self._ttl_s / 2)

    async def _heard(self) -> None:
        """Hear requests until cancelled."""
        if self._connection is None:
            await anyio.sleep_forever()
        while self._connection is not None:
            for note in await self._connection.notifications():
                self._note(note)

    def _note(self, note: str) -> None:
        match note.split("\n"):
            case ["ask", session_id, reply_to]:
                self._asked[session_id] = None
                if reply_to:
                    self._waiting.setdefault(session_id, set()).add(reply_to)
                if self._hear is not None:
                    self._hear()
            case ["free", session_id]:
                for event in self._free.get(session_id, ()):
                    event.set()
            case _:
                return  # Another program's.

    async def _notify(self, notes: list[tuple[str, str]]) -> None:
        """Notify in a transaction of its own: a notification in a commit makes all commits wait for each other."""
        if notes:
            statement = (
                f"SELECT pg_notify(n.channel, n.payload)::text, {_UNSYNCED}"
                " FROM unnest($1::text[], $2::text[]) AS n (channel, payload)"
            )
            await self._pool.run(statement, texts([to for to, _ in notes]), texts([note for _, note in notes]))


def _channel(schema: str, owner: str) -> str:
    return f"repertory_{hashlib.sha256(f'{schema}/{owner}'.encode()).hexdigest()[:40]}"
