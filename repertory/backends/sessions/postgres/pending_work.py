"""The pending work of sessions in PostgreSQL: a table of its own, with a line for each agent that must be woken.

It is small, since work is taken out of it when it is done, so its changes leave the large table of sessions alone. A
line changes together with its session's, under the lock of that, or by a claim, which waits for no lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast, get_args

from repertory.backends.ports import WorkQuery
from repertory.backends.postgres.pool import Pool
from repertory.backends.postgres.values import Encoded, float8s, int8s, texts
from repertory.backends.sessions.postgres.presence import living_sql
from repertory.core.pending_work import (
    CLAIMS_MAX,
    DueTime,
    PendingWork,
    Why,
    claims_after,
    may_claim,
    next_due,
)
from repertory.core.tenants import SIGN

_NOT_HERE: Final = [why for why in get_args(Why) if not may_claim(why, owned_here=True)]
"""Kinds of work that an owner does by itself."""
_FORGIVEN: Final = ", ".join(f"'{why}'" for why in get_args(Why) if not claims_after(why, 1))
"""Kinds of work that are stated only when the claims before have ended well."""


class PendingWorkLines:
    """The pending work in one schema. For one event loop."""

    def __init__(self, pool: Pool, schema: str, owner: str) -> None:
        self._pool = pool
        self._owner = owner
        # Now, how many, agents, owner, what the owner does by itself, when each claim lets the work be due again, and
        # what rests here: sessions, agents. What others claim at this moment is passed over, and a line that has
        # changed is looked at again before it is taken.
        self._claim = (
            f"WITH living AS MATERIALIZED ({living_sql(schema)}), due AS MATERIALIZED ("
            f"SELECT w.session, w.agent, w.at, w.why, w.claims, s.name FROM {schema}.pending_work AS w"
            f" JOIN {schema}.sessions AS s ON s.id = w.session"
            f" WHERE w.at <= $1::float8 AND w.claims < {CLAIMS_MAX} AND w.agent = ANY ($3::text[])"
            f" AND {tenant_sql('s.name')} <> ALL ($9::text[])"
            " AND (s.owner IS NULL OR CASE WHEN s.owner = $4::text THEN w.why <> ALL ($5::text[])"
            " OR (s.name, w.agent) IN (SELECT * FROM unnest($7::text[], $8::text[]))"
            " ELSE s.owner NOT IN (SELECT owner FROM living) END)"
            " ORDER BY w.at LIMIT $2::bigint FOR UPDATE OF w SKIP LOCKED),"
            f" claimed AS (UPDATE {schema}.pending_work AS w SET at = ($6::float8[])[greatest(w.claims, 0) + 1],"
            " claims = greatest(w.claims, 0) + 1"
            " FROM due WHERE w.session = due.session AND w.agent = due.agent)"
            " SELECT name, agent, at, why, greatest(claims, 0) + 1, set_config('synchronous_commit', 'off', true)"
            " FROM due ORDER BY at"
        )
        listed = (
            f"SELECT s.name, w.agent, w.at, w.why, w.claims FROM {schema}.pending_work AS w"
            f" JOIN {schema}.sessions AS s ON s.id = w.session"
        )
        self._all = f"{listed} ORDER BY w.at, s.name, w.agent"
        self._of_one = f"{listed} WHERE s.name = $1::text ORDER BY w.at, w.agent"

    async def claim(self, query: WorkQuery) -> list[PendingWork]:
        """See `Waking.claim_due`. One statement, not synced: what a crash of the server undoes is due again."""
        again = float8s([next_due(query.now, claims) for claims in range(1, CLAIMS_MAX + 1)])
        rests = texts([session for session, _ in query.stalled]), texts([agent for _, agent in query.stalled])
        asked, here = (query.now, query.limit, texts(list(query.agents))), (self._owner, texts(_NOT_HERE))
        given = *asked, *here, again, *rests, texts(list(query.passing))
        # Planned anew each time: a plan from when little was due would sort all that is due now.
        return [_work(*line) for line in await self._pool.run(self._claim, *given, once=True)]

    async def all(self, session_id: str | None) -> list[PendingWork]:
        """See `Waking.pending_work`."""
        asked = self._pool.run(self._all) if session_id is None else self._pool.run(self._of_one, session_id)
        return [_work(*line) for line in await asked]


def tenant_sql(name: str) -> str:
    """`tenant_part` of a session's id."""
    return f"CASE WHEN strpos({name}, '{SIGN}') > 0 THEN split_part({name}, '{SIGN}', 1) ELSE '' END"


def pending_work_sql(schema: str, first: int) -> str:
    """The part of a commit that notes pending work, of the sessions that it has `moved`: the parameters from `$first`
    on are `due_columns`.
    """
    columns = f"${first}::bigint[], ${first + 1}::text[], ${first + 2}::float8[], ${first + 3}::text[]"
    return (
        f", due AS (SELECT d.* FROM unnest({columns}) AS d (session, agent, at, why)"
        " JOIN moved ON moved.id = d.session)"
        f", pending_work AS (INSERT INTO {schema}.pending_work AS w (session, agent, at, why)"
        " SELECT * FROM due WHERE at IS NOT NULL"
        " ON CONFLICT (session, agent) DO UPDATE SET at = excluded.at, why = excluded.why,"
        f" claims = CASE WHEN excluded.why IN ({_FORGIVEN}) THEN 0 ELSE w.claims END)"
        f", done AS (DELETE FROM {schema}.pending_work AS w USING due WHERE due.at IS NULL AND w.session = due.session"
        " AND w.agent = due.agent)"
    )


def due_columns(dues: Mapping[tuple[int, str], DueTime]) -> list[Encoded]:
    """The columns of the table for this work, which is given by session and agent."""
    return [
        int8s([session for session, _ in dues]),
        texts([agent for _, agent in dues]),
        float8s([due.at for due in dues.values()]),
        texts([due.why for due in dues.values()]),
    ]


def _work(name: object, agent: object, at: object, why: object, claims: object, *_: object) -> PendingWork:
    return PendingWork(
        session_id=str(name), agent_id=str(agent), at=cast("float", at), why=str(why), claims=cast("int", claims)
    )
