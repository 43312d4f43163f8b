"""The statements of the session store, for one schema.

Each is one transaction and one round trip unless its user says otherwise. Lines of `sessions` are locked in the order
of their ids, so that two transactions never wait for each other in a circle.
"""

from __future__ import annotations

from repertory.backends.postgres.erasing import ErasureMarks, mark_sql
from repertory.backends.sessions.postgres.pending_work import pending_work_sql
from repertory.backends.sessions.postgres.presence import alive_sql, living_sql

MARKS = ErasureMarks("erasures", r"rows_\d{2}|calls")

ROW_COLUMNS = "r.seq, r.kind, r.version, r.low, r.link, r.salt, r.body"
"""A row's columns, in the order of `Row` without the agent."""
ALL_NAMES = "!"
"""The mark in front of the names of all agents of a session; those that are new have none. No array begins so."""
_LINE = "id, generation, agents, seqs"
_UNSYNCED = "set_config('synchronous_commit', 'off', true)"


class Statements:
    """`$1`, `$2`, ... are explained where the statements are used."""

    def __init__(self, schema: str) -> None:
        sessions = f"{schema}.sessions"
        free = f"(s.owner IS NULL OR s.owner = $2::text OR NOT {alive_sql('s.owner', schema)})"
        # Name, owner, takeover. No line when a live owner has it; with the line, the owner before as it was read first.
        self.acquire = (
            f"WITH before AS (SELECT owner FROM {sessions} WHERE name = $1::text AND aside = 0),"
            f" mine AS (INSERT INTO {sessions} AS s (name, owner, generation)"
            f" VALUES ($1::text, $2::text, nextval('{schema}.generations'))"
            " ON CONFLICT (name, aside) DO UPDATE SET owner = excluded.owner, generation = excluded.generation"
            f" WHERE $3::boolean OR {free} RETURNING {_LINE})"
            f" SELECT {_LINE}, {_UNSYNCED}, (SELECT owner FROM before) FROM mine"
        )
        # Name, owner, generation.
        self.acquire_again = (
            f"WITH mine AS (UPDATE {sessions} SET owner = $2::text WHERE name = $1::text AND aside = 0"
            f" AND generation = $3::bigint AND owner IS NULL RETURNING {_LINE}) SELECT {_LINE}, {_UNSYNCED} FROM mine"
        )
        # Names, generations, owner. By arrays: of a join the server would think that few lines are this owner's, and
        # take the square of their number. No two leases have the same generation.
        self.release = (
            f"WITH held AS (SELECT id FROM {sessions} WHERE name = ANY ($1::text[]) AND aside = 0"
            " AND generation = ANY ($2::bigint[]) AND owner = $3::text ORDER BY id FOR NO KEY UPDATE),"
            f" released AS (UPDATE {sessions} SET owner = NULL WHERE id = ANY (ARRAY(SELECT id FROM held))"
            " AND owner = $3::text RETURNING id),"
            f" calmed AS (UPDATE {schema}.pending_work SET claims = 0 WHERE claims > 0"
            " AND session = ANY (ARRAY(SELECT id FROM released)))"
            f" SELECT count(*), {_UNSYNCED} FROM released"
        )
        # Name.
        self.line = f"SELECT {_LINE}, owner FROM {sessions} WHERE name = $1::text AND aside = 0"
        # Ids.
        self.lines = f"SELECT {_LINE}, owner FROM {sessions} WHERE id = ANY ($1::bigint[])"
        self._read(schema)
        self._commit(schema)
        self._remove(schema)

    def _read(self, schema: str) -> None:
        rows = f"{schema}.rows AS r WHERE r.session = $1::bigint AND r.agent = $2::smallint"
        low = f"(SELECT h.low FROM {schema}.rows AS h WHERE h.session = $1::bigint AND h.agent = $2::smallint"
        # Session id, agent, last number.
        self.window = (
            f"SELECT {ROW_COLUMNS} FROM {rows} AND r.seq >= {low} AND h.seq = $3::bigint)"
            " AND r.seq <= $3::bigint ORDER BY r.seq"
        )
        self.whole = f"SELECT {ROW_COLUMNS} FROM {rows} AND r.seq <= $3::bigint ORDER BY r.seq"
        # Session id, agent, first and last number.
        self.between = f"SELECT {ROW_COLUMNS} FROM {rows} AND r.seq BETWEEN $3::bigint AND $4::bigint ORDER BY r.seq"
        # Session id, agent.
        self.labels = f"SELECT {ROW_COLUMNS} FROM {rows} AND r.kind = 10 AND r.salt <> '' ORDER BY r.seq"
        # Session id.
        self.everything = (
            f"SELECT r.agent, {ROW_COLUMNS} FROM {schema}.rows AS r WHERE r.session = $1::bigint"
            " ORDER BY r.agent, r.seq"
        )
        listed = (
            f"WITH living AS MATERIALIZED ({living_sql(schema)}) SELECT s.name, s.agents, s.seqs, s.created_at,"
            " s.updated_at, CASE WHEN s.owner IN (SELECT owner FROM living) THEN s.owner END"
            f" FROM {schema}.sessions AS s WHERE s.aside = 0 AND NOT s.agents <@ ARRAY['']"
        )
        self.listed = f"{listed} ORDER BY s.updated_at DESC, s.id DESC"
        # Name.
        self.listed_one = f"{listed} AND s.name = $1::text"
        # Prefix, what ends its range, the name before, how many.
        of_range = "AND s.name >= $1::text AND s.name < $2::text AND s.name > $3::text"
        self.listed_range = f"{listed} {of_range} ORDER BY s.name LIMIT $4::bigint"
        # A message settles every question before it; those before a node stand in the journal of the graph. The inner
        # query has a limit, or the planner would join it with every row that there is.
        asked = (
            f"SELECT r.session FROM {schema}.rows AS r WHERE r.kind = 7 AND (SELECT m.kind FROM {schema}.rows AS m"
            " WHERE m.session = r.session AND m.agent = r.agent AND m.seq > r.seq AND m.kind = 1 LIMIT 1) IS NULL"
        )
        runs = "EXISTS (SELECT 1 FROM unnest(s.agents) AS a (name) WHERE starts_with(a.name, 'multi_agent.'))"
        self.asking_range = f"{listed} {of_range} AND (s.id IN ({asked}) OR {runs}) ORDER BY s.name LIMIT $4::bigint"
        self.counts = (
            f"SELECT s.name, s.agents[r.agent], s.seqs[r.agent], r.session, r.agent::bigint, r.count, r.first, r.last"
            " FROM (SELECT session, agent, count(*) AS count, min(seq) AS first, max(seq) AS last"
            f" FROM {schema}.rows GROUP BY session, agent) AS r LEFT JOIN {schema}.sessions AS s ON s.id = r.session"
            " WHERE s.id IS NULL OR s.seqs[r.agent] IS DISTINCT FROM r.count OR r.first <> 1 OR r.last <> r.count"
        )
        self.empty = (
            f"SELECT s.name, a.agent FROM {schema}.sessions AS s CROSS JOIN LATERAL unnest(s.agents)"
            f" WITH ORDINALITY AS a (agent, n) WHERE a.agent <> '' AND NOT EXISTS (SELECT 1 FROM {schema}.rows AS r"
            " WHERE r.session = s.id AND r.agent = a.n)"
        )
        # Name.
        self.asides = f"SELECT id, aside FROM {schema}.sessions WHERE name = $1::text AND aside > 0 ORDER BY aside"

    def _commit(self, schema: str) -> None:
        sessions, rows = f"{schema}.sessions", f"{schema}.rows"
        # Owner; then of each session: id, generation, its numbers before, those after, agents that are new, and when
        # its first and last row were made; then the rows by column; then, where there are some, the rows to erase by
        # column; then, where that changes or there are rows to erase, pending work by column.
        given = (
            "WITH given AS (SELECT * FROM unnest($2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[],"
            " $7::float8[], $8::float8[]) AS g (id, generation, before, seqs, agents, made_at, changed_at))"
        )
        held = (
            f", held AS (SELECT s.id FROM {sessions} AS s JOIN given AS g ON g.id = s.id"
            " WHERE s.generation = g.generation AND s.owner = $1::text ORDER BY s.id FOR NO KEY UPDATE OF s)"
        )
        moved = (
            f", moved AS (UPDATE {sessions} AS s SET seqs = g.seqs::bigint[], agents ="
            f" CASE WHEN starts_with(g.agents, '{ALL_NAMES}') THEN substr(g.agents, 2)::text[]"
            " ELSE s.agents || g.agents::text[] END,"
            " created_at = coalesce(s.created_at, g.made_at), updated_at = greatest(s.updated_at, g.changed_at)"
            " FROM given AS g {held} WHERE s.id = g.id AND s.generation = g.generation AND s.owner = $1::text"
            " AND s.seqs = g.before::bigint[] RETURNING s.id)"
        )
        stored = (
            f", stored AS (INSERT INTO {rows} (session, agent, seq, kind, version, low, link, salt, body)"
            " SELECT r.* FROM unnest($9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],"
            " $14::bigint[], $15::bytea[], $16::bytea[], $17::bytea[])"
            " AS r (session, agent, seq, kind, version, low, link, salt, body) JOIN moved ON moved.id = r.session)"
        )
        erased = (
            f", erased AS (UPDATE {rows} AS r SET salt = '', body = sha256(r.salt || r.body) FROM"
            " unnest($18::bigint[], $19::bigint[], $20::bigint[]) AS e (session, agent, seq) JOIN moved"
            " ON moved.id = e.session WHERE r.session = e.session AND r.agent = e.agent AND r.seq = e.seq"
            " AND r.salt <> '' RETURNING r.tableoid AS part), marked AS (" + self._mark(schema, "erased") + ")"
        )
        ids = " SELECT id FROM moved"
        alone = moved.format(held="")
        ordered = held + moved.format(held="JOIN held AS h ON h.id = g.id")
        self.append_one = given + alone + stored + ids
        self.append_many = given + ordered + stored + ids
        # After the rows: ids of sessions that are taken again if nobody has them, and of those that are given up.
        owned = "s.owner = $1::text"
        owned_or_free = "(s.owner = $1::text OR s.owner IS NULL AND s.id = ANY ($18::bigint[]))"
        handed = (held + moved.format(held="JOIN held AS h ON h.id = g.id")).replace(owned, owned_or_free)
        handed = handed.replace("SET seqs", "SET owner = CASE WHEN s.id <> ALL ($19::bigint[]) THEN $1::text END, seqs")
        self.append_and_hand = (
            f"{given}{handed}{stored}, calmed AS (UPDATE {schema}.pending_work SET claims = 0 WHERE claims > 0"
            f" AND session = ANY (ARRAY(SELECT id FROM moved WHERE id = ANY ($19::bigint[])))){ids}"
        )
        self.append_and_owe = given + ordered + stored + pending_work_sql(schema, 18) + ids
        self.append_and_erase = given + ordered + stored + erased + pending_work_sql(schema, 21) + ids
        # Id, numbers of agents. Space that others use again, and not marked as erased: nobody wants a proof of it.
        self.forget_rows = f"DELETE FROM {rows} WHERE session = $1::bigint AND agent = ANY ($2::bigint[])"
        # Owner, ids, generations.
        self.prove = (
            f"SELECT s.id FROM {sessions} AS s JOIN unnest($2::bigint[], $3::bigint[]) AS g (id, generation)"
            " ON g.id = s.id WHERE s.generation = g.generation AND s.owner = $1::text"
        )
        # Name, owner; numbers, agents, made, changed; then the rows by column. No line when the session is not new, or
        # a live owner has it.
        free = f"(s.owner IS NULL OR s.owner = $2::text OR NOT {alive_sql('s.owner', schema)})"
        self.begin = (
            f"WITH moved AS (INSERT INTO {sessions} AS s (name, generation, seqs, agents, created_at, updated_at)"
            f" VALUES ($1::text, nextval('{schema}.generations'), $3::bigint[], $4::text[], $5::float8, $6::float8)"
            " ON CONFLICT (name, aside) DO UPDATE SET generation = excluded.generation, owner = NULL,"
            " seqs = excluded.seqs, agents = excluded.agents, created_at = excluded.created_at,"
            f" updated_at = excluded.updated_at WHERE s.agents = '{{}}' AND {free} RETURNING s.id),"
            f" stored AS (INSERT INTO {rows} (session, agent, seq, kind, version, low, link, salt, body)"
            " SELECT moved.id, r.* FROM moved CROSS JOIN"
            " unnest($7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[],"
            " $12::bytea[], $13::bytea[], $14::bytea[])"
            " AS r (agent, seq, kind, version, low, link, salt, body)) SELECT id FROM moved"
        )

    def _remove(self, schema: str) -> None:
        sessions, rows = f"{schema}.sessions", f"{schema}.rows"
        # Name, owner. Whether each line is in other hands.
        self.lock = (
            "SELECT s.id, s.aside, s.owner, s.owner IS NOT NULL AND s.owner <> $2::text AND"
            f" {alive_sql('s.owner', schema)} FROM {sessions} AS s WHERE s.name = $1::text ORDER BY s.id FOR UPDATE"
        )
        # Ids.
        self.delete_rows = (
            f"WITH gone AS (DELETE FROM {rows} WHERE session = ANY ($1::bigint[]) RETURNING tableoid AS part),"
            f" marked AS ({self._mark(schema, 'gone')}) SELECT count(*) FROM gone"
        )
        self.delete_lines = f"DELETE FROM {sessions} WHERE id = ANY ($1::bigint[])"
        # Name.
        self.delete_calls = (
            f"WITH gone AS (DELETE FROM {schema}.calls WHERE session = $1::text RETURNING tableoid AS part),"
            f" untaken AS (DELETE FROM {schema}.taken WHERE session = $1::text),"
            f" marked AS ({self._mark(schema, 'gone')}) SELECT 1 FROM gone"
        )
        self.delete_pending_work = f"DELETE FROM {schema}.pending_work WHERE session = ANY ($1::bigint[])"
        # Id before, id after.
        self.move_pending_work = f"UPDATE {schema}.pending_work SET session = $2::bigint WHERE session = $1::bigint"
        # Id, number.
        self.set_aside = f"UPDATE {sessions} SET aside = $2::integer, owner = NULL WHERE id = $1::bigint"

    @staticmethod
    def _mark(schema: str, touched: str) -> str:
        """Also the table of calls, where prompts may be left of calls that are done."""
        parts = (
            f"SELECT c.relname::text FROM {touched} JOIN pg_class AS c ON c.oid = {touched}.part UNION SELECT 'calls'"
            f" WHERE pg_relation_size('{schema}.calls') > 0 AND EXISTS (SELECT 1 FROM {touched})"
        )
        return mark_sql(schema, MARKS.table, parts)
