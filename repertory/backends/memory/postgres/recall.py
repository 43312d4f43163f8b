"""Finding the entries for a query in PostgreSQL. Which of them are ranked, and how, is decided in `core/recall`.

The words of a question are looked up in one statement: of each word the newest entries that have it, up to a bound, and
the index has them in that order. So a search reads about as much in a large memory as in a small one. A statement that
begins while another process writes may see one entry more than the one before it; none sees half of a write.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol, cast

from repertory.backends.memory.postgres.entries import term_number
from repertory.backends.memory.postgres.schema import part_names, part_of
from repertory.backends.memory.ranked import entry_of_row
from repertory.backends.postgres.pool import RunStatement
from repertory.backends.postgres.values import int8s
from repertory.core.memory.options import MemoryEntry
from repertory.core.recall.candidates import (
    READ_LEAST,
    READ_MOST,
    READ_SHARE,
    Candidates,
    Described,
    Posting,
    Postings,
    Query,
    begun,
    first_beside,
    first_read,
    read_max,
    shortlist,
)
from repertory.core.recall.entries import terms_of
from repertory.core.recall.words import indexed_words

_BEGINNING = 80
_BYTES_MOST = 4
"""The most bytes of a character."""


class Similar(Protocol):
    """The similarity of entries to a question."""

    @property
    def best(self) -> Sequence[int]:
        """The most similar entries, best first."""
        ...

    async def of(self, entries: Iterable[int]) -> dict[int, float]:
        """The similarities of entries, from -1 to 1, without those that have no vector."""
        ...


async def recalled(run: RunStatement, schema: str, query: Query, alike: Similar | None) -> list[MemoryEntry]:
    """The best entries, best first."""
    sql = _statements(schema, part_of(query.scope))
    terms = terms_of(query.question)
    postings = await _postings(run, sql, query.scope, terms)
    if postings is None or query.limit < 1:
        return []
    scope, found = postings
    candidates = Candidates(query, found, terms)
    listed = shortlist(found, query)
    lines = await run(sql.by_key, scope, query.as_of, int8s(first_read(listed, alike)))
    candidates.take(map(_described, lines))
    if beside := candidates.beside(first_beside(listed, alike)):
        conversations, places = zip(*beside, strict=True)
        lines = await run(sql.by_position, scope, query.as_of, int8s(conversations), int8s(places))
        candidates.take(map(_described, lines))
    best = candidates.ranked(None if alike is None else await alike.of(candidates.known))
    if not best:
        return []
    entries = {line[0]: line for line in await run(sql.entries, scope, int8s([key for key, _ in best]))}
    return [_entry(entries[key], score) for key, score in best if key in entries]


async def page(run: RunStatement, schema: str, scope: str, after: int, limit: int) -> list[tuple[int, MemoryEntry]]:
    """Entries in the order in which they came, superseded ones too, with their keys."""
    lines = await run(_statements(schema, part_of(scope)).page, scope, after, limit)
    return [(cast("int", line[0]), _entry(line, None)) for line in lines]


async def _postings(
    run: RunStatement, sql: _Statements, scope: str, terms: Sequence[str]
) -> tuple[int, Postings] | None:
    """The key of the scope, and which entries have which words; None if there are no entries."""
    words = [(indexed_words(term) or [term])[0] for term in terms]
    asked = [(number, in_heading) for number in range(len(words)) for in_heading in (False, True)]
    numbers = int8s([term_number(scope, words[number], in_heading=in_heading) for number, in_heading in asked])
    lines = await run(sql.newest, scope, numbers)
    if not lines or not lines[0][1]:
        return None
    key, entries, first, last = cast("tuple[int, int, int, int]", lines[0][:4])
    postings: list[Posting] = []
    for (number, in_heading), line in zip(asked, lines, strict=False):
        newest = cast("list[int]", line[4])
        having: float = len(newest)
        if having == read_max(entries):
            # As many in all as if they lay as densely before as among the newest.
            having = min(entries, having * (last - first + 1) / max(1, last - newest[-1] + 1))
        postings.append(Posting(having, number, in_heading, newest))
    found, rest = begun(postings, len(words), entries, read_max(entries))
    if rest:
        among = int8s(list(found.body.keys() | found.heading.keys()))
        wanted = int8s([term_number(scope, words[posting.number], in_heading=posting.in_heading) for posting in rest])
        for posting, line in zip(rest, await run(sql.among, wanted, among), strict=True):
            found.mark(posting, cast("list[int]", line[0]))
    return key, found


def _described(line: Sequence[object]) -> Described:
    *known, beginning = line
    text = cast("bytes", beginning).decode(errors="ignore")[:_BEGINNING]
    return Described._make((*known, text))


def _entry(line: Sequence[object], score: float | None) -> MemoryEntry:
    key, content, *rest = line
    return entry_of_row((key, cast("bytes", content).decode(), *rest), score)


class _Statements:
    """`$1` is the scope's key unless something else is said."""

    def __init__(self, schema: str, number: int) -> None:
        names = part_names(schema, number)
        entries, postings = names.entries, names.postings
        most = f"greatest({READ_LEAST}, least({READ_MOST}, {READ_SHARE} / greatest(s.entries, 1)))"
        # The scope's name, terms.
        self.newest = (
            f"SELECT s.id, s.entries, s.first, s.last, ARRAY(SELECT p.entry FROM {postings} AS p WHERE p.term = w.term"
            f" ORDER BY p.entry DESC LIMIT {most}) FROM {schema}.memory_scopes AS s LEFT JOIN unnest($2::bigint[])"
            " WITH ORDINALITY AS w (term, n) ON true WHERE s.name = $1::text ORDER BY w.n"
        )
        # Terms, entries.
        self.among = (
            f"SELECT ARRAY(SELECT p.entry FROM {postings} AS p WHERE p.term = w.term"
            " AND p.entry = ANY ($2::bigint[])) FROM unnest($1::bigint[]) WITH ORDINALITY AS w (term, n) ORDER BY w.n"
        )
        # Looked up key by key, whatever the server believes of the table: `OFFSET 0` keeps it from another order.
        described = (
            "SELECT e.id, e.conversation, e.place, e.words, e.role, e.speaker,"
            f" substring(e.content FOR {_BEGINNING * _BYTES_MOST}) FROM {entries} AS e"
        )
        holds = (
            "(CASE WHEN $2::float8 IS NULL THEN e.gone_at IS NULL ELSE coalesce(e.said_at, e.recorded_at) <= $2::float8"
            " AND (e.gone_at IS NULL OR e.gone_at > $2::float8) END)"
        )
        # Scope, time or NULL, entries.
        self.by_key = (
            f"SELECT f.* FROM unnest($3::bigint[]) AS w (id) CROSS JOIN LATERAL ({described}"
            f" WHERE e.scope = $1::bigint AND e.id = w.id AND {holds} OFFSET 0) AS f"
        )
        # Scope, time or NULL, conversations, places.
        self.by_position = (
            "SELECT f.* FROM unnest($3::bigint[], $4::bigint[]) AS w (conversation, place) CROSS JOIN LATERAL"
            f" ({described} WHERE e.conversation = w.conversation AND e.place = w.place AND e.place IS NOT NULL"
            f" AND e.scope = $1::bigint AND {holds} OFFSET 0) AS f"
        )
        whole = (
            "SELECT e.id, e.content, e.kind, e.role, e.speaker, e.said_at, c.session, c.agent, e.seq, e.given_id,"
            f" e.seen, e.recorded_at, e.gone_at, (SELECT coalesce(l.given_id, l.id::text) FROM {entries} AS l"
            f" WHERE l.scope = e.scope AND l.id = e.successor), e.metadata FROM {entries} AS e"
            f" LEFT JOIN {schema}.memory_conversations AS c ON c.id = e.conversation"
        )
        # Scope, entries.
        self.entries = (
            f"SELECT f.* FROM unnest($2::bigint[]) AS w (id) CROSS JOIN LATERAL ({whole}"
            " WHERE e.scope = $1::bigint AND e.id = w.id OFFSET 0) AS f"
        )
        # The scope's name, the key after which to begin, how many.
        self.page = (
            f"{whole} WHERE e.scope = (SELECT id FROM {schema}.memory_scopes WHERE name = $1::text)"
            " AND e.id > $2::bigint ORDER BY e.id LIMIT $3::bigint"
        )


_statements = lru_cache(maxsize=256)(_Statements)
