"""Writing entries: turns, facts, entries that replace others, and forgetting.

Everything works within an open transaction that holds the line of the scope, and commits nothing: so memories can be
stored in the same commit as their sources, and nobody else writes in the scope meanwhile.

The index says which words an entry has, as numbers: 64 bits of a hash of the word and the scope. Two words of one
scope have the same number about once in a thousand million memories, and then a search finds an entry too many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypeAlias, cast

from repertory.backends.memory.postgres.schema import FACT, MARKS, TURN, part_names, part_of
from repertory.backends.memory.ranked import EntrySource
from repertory.backends.postgres.erasing import mark_sql
from repertory.backends.postgres.pool import RunStatement
from repertory.backends.postgres.values import byteas, float8s, int8s, texts
from repertory.core.recall.entries import Saying, not_taken
from repertory.core.recall.words import indexed_words

_NO_TURN = -1
"""Replaces a sequence number: from that conversation, but the turn is unknown."""
TurnKey: TypeAlias = "tuple[int, int, float | None]"
"""The key of a turn: conversation, sequence number, and time."""


def storable(text: str) -> str:
    """The text without the character that no text of the database may have."""
    return text.replace("\0", "\ufffd")


def term_number(scope: str, word: str, *, in_heading: bool) -> int:
    """The number of an indexed word in a scope, in texts or in headings."""
    salt = _salt(scope)
    digest = blake2b(word.encode(), digest_size=8, salt=salt, person=b"heading" if in_heading else b"text").digest()
    return int.from_bytes(digest, "big", signed=True)


def term_numbers(scope: str, content: str, heading: str) -> list[int]:
    """The numbers of everything that an entry is found by."""
    return [
        *(term_number(scope, word, in_heading=False) for word in indexed_words(content)),
        *(term_number(scope, word, in_heading=True) for word in indexed_words(heading)),
    ]


@lru_cache(maxsize=1024)
def _salt(scope: str) -> bytes:
    return blake2b(scope.encode(), digest_size=16).digest()


_Where: TypeAlias = "tuple[str, str]"
"""The ids of a session and an agent."""


_Taken: TypeAlias = "tuple[int, str, str, int, int | None, float | None]"
"""Conversation, session, agent, last place; sequence number and time of a turn."""


class _Conversation(NamedTuple):
    """A conversation, as far as turns are about to be stored in it."""

    key: int
    last: int
    """The last place that was given in it."""
    taken: dict[int, set[float | None]]
    """The times of turns that were stored or forgotten, by sequence number."""


class _EntryKey(NamedTuple):
    """The key of an entry: its kind, with its conversation and position there, or with the digest of its text."""

    kind: int
    conversation: int | None
    position: int | None
    digest: bytes | None


async def lock_scope(run: RunStatement, schema: str, name: str, *, create: bool) -> ScopeEntries | None:
    """The entries of a scope, for this transaction alone; None if there is no such scope and none was to be made."""
    locked = await run(f"SELECT id FROM {schema}.memory_scopes WHERE name = $1::text FOR NO KEY UPDATE", name)
    if not locked and create:
        locked = await run(
            f"INSERT INTO {schema}.memory_scopes (name, part) VALUES ($1::text, $2::smallint)"
            " ON CONFLICT (name) DO UPDATE SET part = excluded.part RETURNING id",
            name,
            part_of(name),
        )
    return ScopeEntries(run, schema, name, cast("int", locked[0][0])) if locked else None


class ScopeEntries:
    """The entries of one scope, while its line is held."""

    def __init__(self, run: RunStatement, schema: str, name: str, number: int) -> None:
        self._run = run
        self._name = name
        self.id = number
        self._sql = _statements(schema, part_of(name))

    async def take_key(self, key: str | None) -> bool:
        """False when that key was taken before; the caller then stops."""
        return key is None or bool(await self._run(self._sql.take_key, self.id, storable(key)))

    async def insert_turns(self, sayings: Iterable[Saying], *, now: float) -> list[int]:
        """Store turns in their order, at the end of their conversations. Returns the keys of those that were stored.

        A turn with a sequence number is stored once in its conversation, and not again after it was forgotten. If two
        turns have the same number and known times that differ, they are different: the session was deleted and started
        again.
        """
        groups: dict[_Where, list[Saying]] = {}
        for saying in sayings:
            groups.setdefault(_conversation_of(saying), []).append(saying)
        known = await self._conversations(groups)
        fresh: list[Saying] = []
        places: list[_EntryKey] = []
        for where, turns in groups.items():
            conversation, last, taken = known[where]
            for turn in not_taken(turns, taken):
                last += 1
                fresh.append(turn)
                places.append(_EntryKey(TURN, conversation, last, None))
        return await self._insert(fresh, places, now)

    async def insert_fact(self, fact: Saying, sources: Sequence[EntrySource], *, now: float) -> int | None:
        """Store a fact, or count it when it is known. Returns its key.

        `sources`: the turns of its conversation that it was extracted from, by number and time. If one of them was
        forgotten, nothing is stored and the result is None.
        """
        conversation = None
        if fact.session_id is not None:
            where = _conversation_of(fact)
            conversation = (await self._conversations({where: []}))[where].key
            numbers, times = [number for number, _ in sources], [at for _, at in sources]
            if sources and await self._run(self._sql.was_forgotten, conversation, int8s(numbers), float8s(times)):
                return None
        known = await self._run(self._sql.count_fact, self.id, fact.digest, now)
        if known:
            entry = cast("int", known[0][0])
        else:
            (entry,) = await self._insert([fact], [_EntryKey(FACT, conversation, None, fact.digest)], now)
        if conversation is not None:
            numbers = list(dict.fromkeys(number for number, _ in sources)) or [_NO_TURN]
            await self._run(self._sql.note_sources, entry, conversation, int8s(numbers))
        return entry

    async def supersede(self, old: Sequence[int], new: int, *, at: float) -> None:
        """Replace old entries with the new one from then on. One that was replaced before, or by itself, is left
        unchanged.
        """
        replaced = [entry for entry in old if entry != new]
        await self._run(self._sql.supersede, self.id, int8s(replaced), at, new)

    async def keys_of(self, memory_id: str) -> list[int]:
        """The entries with that id: one, or those to which the caller gave this id."""
        own = int(memory_id) if memory_id.isascii() and memory_id.isdigit() and len(memory_id) < 19 else -1
        found = await self._run(self._sql.keys_of, self.id, storable(memory_id), own)
        return [cast("int", key) for (key,) in found]

    async def id_of(self, key: int) -> str:
        """The id of an entry, as callers see it."""
        ((found,),) = await self._run(self._sql.id_of, self.id, key)
        return str(found)

    async def forget_entries(self, entries: Sequence[int]) -> int:
        """Erase these entries, and what was extracted from the turns among them. Returns how many."""
        found = await self._run(self._sql.turns_among, self.id, int8s(entries))
        turns = [cast("TurnKey", line) for line in found]
        await self.refuse_from_now_on(turns)
        derived = await self._without_sightings([(conversation, seq) for conversation, seq, _ in turns])
        return await self._erase({*entries, *derived})

    async def forget_turns(self, conversations: Sequence[int], numbers: Sequence[int] | None = None) -> int:
        """Erase the turns of these conversations, or some of each, and what was extracted from them, now or later.
        Returns the number of erased entries.
        """
        among = None if numbers is None else int8s(numbers)
        found = await self._run(self._sql.turns_of, self.id, int8s(conversations), among)
        gone = {cast("int", line[0]) for line in found}
        turns = [cast("TurnKey", line[1:]) for line in found if line[2] is not None]
        known = {(conversation, seq) for conversation, seq, _ in turns}
        unknown = [
            (conversation, seq, None)
            for conversation in conversations
            for seq in numbers or ()
            if (conversation, seq) not in known
        ]
        await self.refuse_from_now_on([*turns, *unknown])
        sources = await self._run(self._sql.sources_of, int8s(conversations), among)
        gone |= await self._without_sightings([cast("tuple[int, int]", line) for line in sources])
        return await self._erase(gone)

    async def refuse_from_now_on(self, turns: Sequence[TurnKey]) -> None:
        """Never store these turns, or anything extracted from them, again. Without a time: any turn with its number."""
        if turns:
            conversations, numbers, times = zip(*turns, strict=True)
            await self._run(self._sql.refuse, int8s(conversations), int8s(numbers), float8s(times))

    async def delete_conversations(self, conversations: Sequence[int]) -> None:
        """Forget conversations whose turns were forgotten, as if they had never been."""
        await self._run(self._sql.delete_conversations, int8s(conversations))

    async def _conversations(self, turns: Mapping[_Where, Sequence[Saying]]) -> dict[_Where, _Conversation]:
        """The conversations of these turns; makes those that there are not."""
        if not turns:
            return {}
        sessions, agents = zip(*turns, strict=True)
        numbers = [[turn.seq for turn in sayings if turn.seq is not None] for sayings in turns.values()]
        lines = await self._run(
            self._sql.conversations,
            self.id,
            texts(sessions),
            texts(agents),
            int8s([min(each, default=None) for each in numbers]),
            int8s([max(each, default=None) for each in numbers]),
        )
        found: dict[_Where, _Conversation] = {}
        for key, session, agent, places, seq, at in cast("list[_Taken]", lines):
            known = found.setdefault((session, agent), _Conversation(key, places, {}))
            if seq is not None:
                known.taken.setdefault(seq, set()).add(at)
        return found

    async def _insert(self, sayings: Sequence[Saying], places: Sequence[_EntryKey], now: float) -> list[int]:
        if not sayings:
            return []
        words = [
            (number, term)
            for number, saying in enumerate(sayings, 1)
            for term in term_numbers(self._name, saying.content, saying.heading)
        ]
        lines = await self._run(
            self._sql.insert,
            self.id,
            now,
            int8s([key.kind for key in places]),
            int8s([key.conversation for key in places]),
            int8s([key.position for key in places]),
            int8s([saying.seq for saying in sayings]),
            texts([_text(saying.role) for saying in sayings]),
            texts([_text(saying.speaker) for saying in sayings]),
            float8s([saying.said_at for saying in sayings]),
            byteas([key.digest for key in places]),
            texts([_text(saying.given_id) for saying in sayings]),
            int8s([saying.words for saying in sayings]),
            texts([storable(saying.heading) for saying in sayings]),
            byteas([saying.content.encode() for saying in sayings]),
            texts([saying.metadata for saying in sayings]),
            int8s([number for number, _ in words]),
            int8s([term for _, term in words]),
        )
        return [cast("int", key) for (key,) in lines]

    async def _without_sightings(self, turns: Sequence[tuple[int, int]]) -> set[int]:
        """Remove these turns as sources of facts. Returns the facts that have no source left."""
        if not turns:
            return set()
        conversations, numbers = zip(*turns, strict=True)
        lines = await self._run(self._sql.without_sightings, self.id, int8s(conversations), int8s(numbers))
        seen = cast("list[tuple[int, int]]", lines)
        unseen = [fact for fact, times in seen if times > 0]
        if unseen:
            await self._run(self._sql.move_facts, self.id, int8s(unseen))
        return {fact for fact, times in seen if times <= 0}

    async def _erase(self, entries: Iterable[int]) -> int:
        found = await self._run(self._sql.contents, self.id, int8s(list(entries)))
        if not found:
            return 0
        words: list[tuple[int, int]] = []
        for key, content, heading in cast("list[tuple[int, bytes, str]]", found):
            words += [(term, key) for term in term_numbers(self._name, content.decode(), heading)]
        columns = [int8s([term for term, _ in words]), int8s([key for _, key in words])]
        keys = int8s([cast("int", line[0]) for line in found])
        ((count,),) = await self._run(self._sql.erase, self.id, keys, *columns)
        return cast("int", count)


def _conversation_of(saying: Saying) -> _Where:
    return storable(saying.session_id or ""), storable(saying.agent_id or "")


def _text(value: str | None) -> str | None:
    return None if value is None else storable(value)


class _Statements:
    """`$1` is the scope unless something else is said."""

    def __init__(self, schema: str, number: int) -> None:
        names = part_names(schema, number)
        self._entries, self._postings, self._vectors = names.entries, names.postings, names.vectors
        self._schema = schema
        self.take_key = (
            f"INSERT INTO {schema}.memory_keys (scope, key) VALUES ($1::bigint, $2::text) ON CONFLICT DO NOTHING"
            " RETURNING 1"
        )
        self._write()
        self._facts()
        self._forget()

    def _write(self) -> None:
        schema, entries = self._schema, self._entries
        conversations = f"{schema}.memory_conversations"
        # Scope, and of each conversation: session, agent, the first and the last sequence number that are to come. A
        # line for each of those that was stored or forgotten, or one without.
        self.conversations = (
            "WITH given AS (SELECT * FROM unnest($2::text[], $3::text[], $4::bigint[], $5::bigint[])"
            f" AS g (session, agent, low, high)), made AS (INSERT INTO {conversations} (scope, session, agent)"
            " SELECT $1::bigint, session, agent FROM given ON CONFLICT (session, agent, scope) DO NOTHING"
            " RETURNING id, session, agent, places), known AS (SELECT id, session, agent, places FROM made UNION ALL"
            f" SELECT c.id, c.session, c.agent, c.places FROM {conversations} AS c JOIN given AS g"
            " ON g.session = c.session AND g.agent = c.agent WHERE c.scope = $1::bigint)"
            " SELECT k.id, k.session, k.agent, k.places, t.seq, t.said_at FROM known AS k JOIN given AS g"
            " ON g.session = k.session AND g.agent = k.agent LEFT JOIN LATERAL"
            f" (SELECT e.seq, e.said_at FROM {entries} AS e WHERE e.conversation = k.id AND e.seq IS NOT NULL"
            f" AND e.seq BETWEEN g.low AND g.high UNION ALL SELECT f.seq, f.said_at FROM {schema}.memory_forgotten AS f"
            " WHERE f.conversation = k.id AND f.seq BETWEEN g.low AND g.high) AS t ON true"
        )
        # Scope, now, the entries by column, and their words: the number of the entry among these, and the term.
        self.insert = (
            f"WITH given AS MATERIALIZED (SELECT nextval('{schema}.memory_keys_of_entries') AS id, g.* FROM"
            " unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::float8[],"
            " $10::bytea[], $11::text[], $12::bigint[], $13::text[], $14::bytea[], $15::text[]) WITH ORDINALITY"
            " AS g (kind, conversation, place, seq, role, speaker, said_at, digest, given_id, words, heading, content,"
            f" metadata, n)), stored AS (INSERT INTO {entries} (scope, id, kind, conversation, place, seq, role,"
            " speaker, said_at, recorded_at, seen, seen_at, digest, given_id, words, heading, content, metadata)"
            " SELECT $1::bigint, id, kind, conversation, place, seq, role, speaker, said_at, $2::float8, 1, $2::float8,"
            " digest, given_id, words, heading, content, metadata FROM given),"
            f" worded AS (INSERT INTO {self._postings} (term, entry) SELECT w.term, g.id"
            " FROM unnest($16::bigint[], $17::bigint[]) AS w (n, term) JOIN given AS g ON g.n = w.n),"
            f" counted AS (UPDATE {schema}.memory_scopes SET entries = entries + (SELECT count(*) FROM given),"
            " first = coalesce(first, (SELECT min(id) FROM given)), last = (SELECT max(id) FROM given)"
            f" WHERE id = $1::bigint), placed AS (UPDATE {conversations} AS c SET places = g.last FROM"
            " (SELECT conversation, max(place) AS last FROM given WHERE place IS NOT NULL GROUP BY conversation) AS g"
            " WHERE c.id = g.conversation) SELECT id FROM given ORDER BY n"
        )

    def _facts(self) -> None:
        schema, entries = self._schema, self._entries
        # Conversation, sequence numbers, times.
        self.was_forgotten = (
            f"SELECT 1 FROM {schema}.memory_forgotten AS f JOIN unnest($2::bigint[], $3::float8[]) AS g (seq, said_at)"
            " ON g.seq = f.seq WHERE f.conversation = $1::bigint"
            " AND (g.said_at IS NULL OR f.said_at IS NULL OR f.said_at = g.said_at) LIMIT 1"
        )
        # Scope, digest, now.
        self.count_fact = (
            f"UPDATE {entries} SET seen = seen + 1, seen_at = $3::float8 WHERE scope = $1::bigint"
            " AND digest = $2::bytea AND gone_at IS NULL RETURNING id"
        )
        # Entry, conversation, sequence numbers.
        self.note_sources = (
            f"INSERT INTO {schema}.memory_sources (conversation, seq, entry, sighting) SELECT $2::bigint, seq,"
            " $1::bigint, (SELECT coalesce(max(sighting), 0) + 1"
            f" FROM {schema}.memory_sources WHERE entry = $1::bigint) FROM unnest($3::bigint[]) AS g (seq)"
        )
        # Scope, old entries, when, new entry.
        self.supersede = (
            f"UPDATE {entries} SET gone_at = $3::float8, successor = $4::bigint WHERE scope = $1::bigint"
            " AND id = ANY ($2::bigint[]) AND gone_at IS NULL"
        )
        self.keys_of = (
            f"SELECT id FROM {entries} WHERE scope = $1::bigint"
            " AND (given_id = $2::text OR (id = $3::bigint AND given_id IS NULL))"
        )
        self.id_of = f"SELECT coalesce(given_id, id::text) FROM {entries} WHERE scope = $1::bigint AND id = $2::bigint"

    def _forget(self) -> None:
        schema, entries = self._schema, self._entries
        sources, conversations = f"{schema}.memory_sources", f"{schema}.memory_conversations"
        # Scope, entries.
        self.turns_among = (
            f"SELECT conversation, seq, said_at FROM {entries} WHERE scope = $1::bigint AND id = ANY ($2::bigint[])"
            " AND seq IS NOT NULL AND conversation IS NOT NULL"
        )
        # Scope, conversations, sequence numbers or NULL.
        self.turns_of = (
            f"SELECT id, conversation, seq, said_at FROM {entries} WHERE scope = $1::bigint AND kind = {TURN}"
            " AND conversation = ANY ($2::bigint[]) AND ($3::bigint[] IS NULL OR seq = ANY ($3::bigint[]))"
        )
        # Conversations, sequence numbers or NULL.
        self.sources_of = (
            f"SELECT DISTINCT conversation, seq FROM {sources} WHERE conversation = ANY ($1::bigint[])"
            " AND ($2::bigint[] IS NULL OR seq = ANY ($2::bigint[]))"
        )
        # Conversations, sequence numbers, times.
        self.refuse = (
            f"INSERT INTO {schema}.memory_forgotten (conversation, seq, said_at) SELECT DISTINCT g.* FROM"
            " unnest($1::bigint[], $2::bigint[], $3::float8[]) AS g (conversation, seq, said_at) WHERE NOT EXISTS"
            f" (SELECT 1 FROM {schema}.memory_forgotten AS f WHERE f.conversation = g.conversation AND f.seq = g.seq"
            " AND f.said_at IS NOT DISTINCT FROM g.said_at)"
        )
        # Scope, conversations, sequence numbers.
        self.without_sightings = (
            f"WITH touched AS (SELECT DISTINCT s.entry, s.sighting FROM {sources} AS s JOIN unnest($2::bigint[],"
            " $3::bigint[]) AS g (conversation, seq) ON g.conversation = s.conversation AND g.seq = s.seq),"
            f" gone AS (DELETE FROM {sources} AS s USING touched AS t WHERE s.entry = t.entry"
            " AND s.sighting = t.sighting), counted AS (SELECT entry, count(*) AS times FROM touched GROUP BY entry)"
            f" UPDATE {entries} AS e SET seen = e.seen - c.times FROM counted AS c WHERE e.scope = $1::bigint"
            " AND e.id = c.entry RETURNING e.id, e.seen"
        )
        # A remaining fact belongs to the conversation of its earliest remaining source.
        self.move_facts = (
            f"UPDATE {entries} AS e SET conversation = (SELECT s.conversation FROM {sources} AS s WHERE s.entry = e.id"
            " ORDER BY s.sighting LIMIT 1) WHERE e.scope = $1::bigint AND e.id = ANY ($2::bigint[])"
        )
        self.contents = (
            f"SELECT id, content, heading FROM {entries} WHERE scope = $1::bigint AND id = ANY ($2::bigint[])"
        )
        part = self._entries.rpartition("_")[2]
        touched = (
            f"SELECT 'memory_entries_{part}' UNION ALL SELECT 'memory_postings_{part}'"
            f" UNION ALL SELECT 'memory_vectors_{part}' WHERE EXISTS (SELECT 1 FROM alike)"
        )
        # Scope, entries; terms and entries.
        self.erase = (
            f"WITH gone AS (DELETE FROM {entries} WHERE scope = $1::bigint AND id = ANY ($2::bigint[]) RETURNING id),"
            f" worded AS (DELETE FROM {self._postings} AS p USING unnest($3::bigint[], $4::bigint[]) AS w (term, entry)"
            " WHERE p.term = w.term AND p.entry = w.entry),"
            f" alike AS (DELETE FROM {self._vectors} WHERE scope = $1::bigint AND entry = ANY ($2::bigint[])"
            f" RETURNING 1), learned AS (DELETE FROM {sources} WHERE entry = ANY ($2::bigint[])),"
            f" earlier AS (UPDATE {entries} SET successor = NULL WHERE successor = ANY ($2::bigint[])"
            " AND id <> ALL ($2::bigint[])),"
            f" counted AS (UPDATE {schema}.memory_scopes SET entries = entries - (SELECT count(*) FROM gone),"
            f" erasures = erasures + 1 WHERE id = $1::bigint), marked AS ({mark_sql(schema, MARKS.table, touched)})"
            " SELECT count(*) FROM gone"
        )
        # Conversations.
        self.delete_conversations = (
            f"WITH refused AS (DELETE FROM {schema}.memory_forgotten WHERE conversation = ANY ($1::bigint[])),"
            f" marked AS ({mark_sql(schema, MARKS.table, _NAMES)})"
            f" DELETE FROM {conversations} WHERE id = ANY ($1::bigint[])"
        )


_NAMES = "SELECT 'memory_conversations'"
_statements = lru_cache(maxsize=256)(_Statements)
