"""The directory of runtimes that share the sessions in PostgreSQL, and of the sessions' owners.

A line of the table `peers` counts as long as the owner of that name is alive, as `presence.py` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from repertory.backends.peer_ports import Directory, Peer
from repertory.backends.postgres.connection import ResultLine
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.values import texts
from repertory.backends.sessions.postgres.presence import Presence, alive_sql, living_sql
from repertory.backends.sessions.postgres.schema import TablesReady
from repertory.backends.shields import Uncut
from repertory.core.ids import check_id
from repertory.core.queued_calls import plain_text
from repertory.errors import Invalid

_UNSYNCED = "set_config('synchronous_commit', 'off', true)"


class PostgresDirectory(Directory):
    """Errors: those of the store."""

    def __init__(self, pool: Pool, presence: Presence, schema: str, owner: str, begin: TablesReady) -> None:
        self._pool = pool
        self._presence = presence
        self._owner = owner
        self._begin = begin
        self._swept = False
        peers = f"{schema}.peers"
        # Owner, address, room, busy, agents, version, zone.
        self._join_sql = (
            f"INSERT INTO {peers} AS p (owner, address, room, busy, agents, version, zone)"
            " VALUES ($1::text, $2::text, $3::bigint, $4::bigint, $5::text[], $6::text, $7::text)"
            " ON CONFLICT (owner) DO UPDATE SET address = excluded.address, room = excluded.room,"
            " busy = excluded.busy, agents = excluded.agents, version = excluded.version, zone = excluded.zone"
            f" RETURNING {_UNSYNCED}"
        )
        self._sweep_sql = f"DELETE FROM {peers} AS p WHERE NOT {alive_sql('p.owner', schema)} RETURNING {_UNSYNCED}"
        self._leave_sql = f"DELETE FROM {peers} WHERE owner = $1::text RETURNING {_UNSYNCED}"
        self._peers_sql = (
            f"WITH living AS MATERIALIZED ({living_sql(schema)})"
            f" SELECT p.owner, p.address, p.room, p.busy, p.agents, p.version, p.zone FROM {peers} AS p"
            " WHERE p.owner IN (SELECT owner FROM living) ORDER BY p.owner"
        )
        # Name.
        self._owner_sql = (
            f"SELECT s.owner FROM {schema}.sessions AS s WHERE s.name = $1::text AND s.aside = 0"
            f" AND {alive_sql('s.owner', schema)}"
        )

    @property
    def name(self) -> str:
        return self._owner

    def socket(self) -> str | None:
        return None

    async def join(self, peer: Peer) -> None:
        """One statement, which is not synced; at first also one that removes the lines of the dead."""
        if peer.name != self._owner:
            raise Invalid("a peer has the name of its store's owner", got=peer.name, owner=self._owner)
        agents = texts(sorted(peer.agents))
        words = [plain_text(word) for word in (peer.address, peer.version, peer.zone)]
        await self._begin(create=True)
        await self._presence.ensure()
        address, *others = words
        with Uncut():
            await self._pool.run(self._join_sql, self._owner, address, peer.room, peer.busy, agents, *others)
        if not self._swept:
            await self._pool.run(self._sweep_sql)
            self._swept = True

    async def peers(self) -> Sequence[Peer]:
        if not await self._begin(create=False):
            return []
        return [_peer(line) for line in await self._pool.run(self._peers_sql)]

    async def owner_of(self, session_id: str) -> str | None:
        """One line by its key, and one of the owner's."""
        check_id(session_id, "session id")
        if not await self._begin(create=False):
            return None
        lines = await self._pool.run(self._owner_sql, session_id)
        return str(lines[0][0]) if lines else None

    async def leave(self) -> None:
        if await self._begin(create=False):
            await self._pool.run(self._leave_sql, self._owner)


def _peer(line: ResultLine) -> Peer:
    name, address, room, busy, agents, version, zone = line
    return Peer(
        name=str(name),
        address=str(address),
        room=cast("int", room),
        busy=cast("int", busy),
        agents=frozenset(cast("list[str]", agents)),
        version=str(version),
        zone=str(zone),
    )
