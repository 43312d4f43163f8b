"""Finding the entries for a query: candidates from the index, their neighbours, and their ranking."""

from __future__ import annotations

import heapq
import json
import re
import sqlite3
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from msgspec import Struct

from repertory.backends.memory.sqlite.entries import scope_token
from repertory.core.recall.entries import heading_word, speaker_of, terms_of
from repertory.core.recall.ranking import (
    DEFAULT_WEIGHTS,
    Candidate,
    RankingWeights,
    fused,
    neighbourhood,
    rarity,
    scores,
    surrounded,
)
from repertory.errors import Failed, Invalid

SHORTLIST = 40
"""Candidates that are ranked with all signals; the others are worse by their own words alone."""
BESIDE = 10
"""For this many of them, the neighbours are candidates too, even without any of the words."""

_COLUMNS = "memory_entries.id, conversation, place, words, role, speaker, substr(content, 1, 80)"
_HOLDS = "gone_at IS NULL"
_HELD = "coalesce(said_at, recorded_at) <= :at AND (gone_at IS NULL OR gone_at > :at)"
_BY_KEY = (
    f"SELECT {_COLUMNS} FROM memory_entries WHERE id IN (SELECT value FROM json_each(:keys)) AND scope = :scope AND "
)
_BY_PLACE = (
    f"SELECT {_COLUMNS} FROM json_each(:places) AS wanted CROSS JOIN memory_entries"
    " ON conversation = json_extract(wanted.value, '$[0]') AND place = json_extract(wanted.value, '$[1]')"
    " AND place IS NOT NULL WHERE scope = :scope AND "
)
_WORD = re.compile(r"[^\W_]+")


class Sought(Struct, frozen=True, kw_only=True):
    """A query, its scope and its bounds."""

    scope: str
    question: str
    limit: int
    as_of: float | None = None
    """Epoch seconds: only entries that were known and valid then."""
    weights: RankingWeights = DEFAULT_WEIGHTS


def recall(connection: sqlite3.Connection, sought: Sought, alike: Likeness | None = None) -> list[tuple[int, float]]:
    """The keys of the best entries and their scores, best first."""
    found = connection.execute(
        "SELECT id, entries, (SELECT count(*) FROM memory_scopes), (SELECT max(id) FROM memory_entries)"
        " FROM memory_scopes WHERE name = ?",
        (sought.scope,),
    ).fetchone()
    if found is None or not found[1] or sought.limit < 1:
        return []
    scope_key, entries, scopes, last = found
    terms = terms_of(sought.question)
    index = Index(entries, last, None if scopes == 1 else scope_token(scope_key))
    postings = read_postings(connection, terms, index)
    rarities = postings.rarities
    reading = _Candidates(connection, scope_key, sought, postings, terms)
    wanted = None if sought.as_of is not None else max(SHORTLIST, sought.limit)
    shortlist = _best(postings, rarities, sought.weights, wanted)
    reading.read([*shortlist, *(alike.best if alike is not None else ())])
    reading.read_beside([*shortlist[:BESIDE], *(alike.best[:BESIDE] if alike is not None else ())])
    candidates = list(reading.candidates.values())
    worth = scores(candidates, rarities, sought.weights)
    if alike is not None:
        likeness = surrounded(candidates, alike.of(worth), sought.weights.alike_beside)
        worth = fused(worth, likeness, sought.weights.alike)
    best = heapq.nsmallest(sought.limit, worth.items(), key=lambda item: (-item[1], -item[0]))
    return [(key, score) for key, score in best if score > 0]


def _best(postings: Postings, rarities: Sequence[float], weights: RankingWeights, limit: int | None) -> list[int]:
    """The entries with the rarest words, best first."""
    alike: dict[tuple[int, int], list[int]] = {}
    body, heading = postings.body, postings.heading
    for entry, mask in body.items():
        alike.setdefault((mask, heading.get(entry, 0)), []).append(entry)
    for entry, mask in heading.items():
        if entry not in body:
            alike.setdefault((0, mask), []).append(entry)
    values = {
        masks: sum(
            rarity if masks[0] >> word & 1 else weights.heading * rarity
            for word, rarity in enumerate(rarities)
            if (masks[0] | masks[1]) >> word & 1
        )
        for masks in alike
    }
    best: list[int] = []
    for masks in sorted(alike, key=lambda masks: -values[masks]):
        best += sorted(alike[masks], reverse=True)
        if limit is not None and len(best) >= limit:
            return best[:limit]
    return best


class _Candidates:
    """Candidates, prepared for ranking."""

    def __init__(
        self, connection: sqlite3.Connection, scope_key: int, sought: Sought, postings: Postings, terms: Sequence[str]
    ) -> None:
        self._connection = connection
        self._postings = postings
        self._asked = frozenset(terms)
        self._named: dict[str, bool] = {}
        self._reach = neighbourhood(sought.weights)
        self._time = _HOLDS if sought.as_of is None else _HELD
        self._values = {"scope": scope_key, "at": sought.as_of}
        self.candidates: dict[int, Candidate] = {}

    def read(self, keys: Sequence[int]) -> None:
        """Read these entries, without those that were not valid at the time."""
        self._take(self._connection.execute(_BY_KEY + self._time, {**self._values, "keys": json.dumps(keys)}))

    def read_beside(self, keys: Sequence[int]) -> None:
        """Read the turns around these, which may have the answer in other words."""
        wanted: set[tuple[int, int]] = set()
        for key in keys:
            candidate = self.candidates.get(key)
            if candidate is not None and candidate.conversation is not None and candidate.place is not None:
                around = range(candidate.place - self._reach, candidate.place + self._reach + 1)
                wanted.update((candidate.conversation, place) for place in around)
        wanted -= {
            (candidate.conversation, candidate.place)
            for candidate in self.candidates.values()
            if candidate.conversation is not None and candidate.place is not None
        }
        if wanted:
            values = {**self._values, "places": json.dumps(list(wanted))}
            self._take(self._connection.execute(_BY_PLACE + self._time, values))

    def _take(self, rows: Iterable[tuple[int, int | None, int | None, int, str | None, str | None, str]]) -> None:
        body, heading = self._postings.body, self._postings.heading
        for key, conversation, place, words, role, speaker, beginning in rows:
            speaker = speaker or speaker_of(beginning)
            self.candidates[key] = Candidate(
                key,
                body.get(key, 0),
                heading.get(key, 0),
                conversation,
                place,
                words,
                speaker is not None and self._is_asked(speaker),
                speaker is None and role == "assistant",
            )

    def _is_asked(self, speaker: str) -> bool:
        """True if the query names this speaker. Cached, since few speakers recur often."""
        asked = self._named.get(speaker)
        if asked is None:
            asked = self._named[speaker] = not self._asked.isdisjoint(_WORD.findall(speaker.lower()))
        return asked


# Which entries have which words of a question: the index, asked word by word, within bounds.
#
# A word that very many entries have says little, and reading all of them takes long. So the rarest words are read,
# until so many entries have been as `read_max` says; the others are looked for only among those, and not at all when
# next to them they say nothing. In a memory of some thousand turns every word is read wholly.

READ_LEAST, READ_MOST = 300, 5000
_READ_SHARE = 20_000_000
_WORTH_LOOKING = 0.35
"""A frequent word with less than this share of the rarest word's weight is left out."""

_NEWEST = "SELECT rowid FROM memory_text WHERE memory_text MATCH ? ORDER BY rowid DESC LIMIT ?"
_READ = f"SELECT json_group_array(rowid) FROM ({_NEWEST})"  # one row is read far faster than thousands


def read_max(size: int) -> int:
    """How many entries are read before frequent words are looked up only among them, in an index of this size: in a
    larger index, each lookup takes longer.
    """
    return max(READ_LEAST, min(READ_MOST, _READ_SHARE // max(size, 1)))


class Postings(Struct):
    """The entries found. Bit n of a mask stands for word n."""

    body: dict[int, int] = {}
    """Entry to the words of its text."""
    heading: dict[int, int] = {}
    """Entry to the words of its heading."""
    rarities: list[float] = []
    """The weight of each word."""


class _Posting(NamedTuple):
    having: float
    """The approximate number of entries with the word in that column."""
    number: int
    column: str
    expression: str
    newest: list[int]
    """All of them, or the newest up to the read limit."""


def read_postings(connection: sqlite3.Connection, terms: Sequence[str], index: Index) -> Postings:
    """Look up each word, in the texts and in the headings."""
    columns = "content", "heading"
    postings = [
        _posting(connection, index, number, column, term) for number, term in enumerate(terms) for column in columns
    ]
    found = Postings()
    for number in range(len(terms)):
        having = max(posting.having for posting in postings if posting.number == number)
        found.rarities.append(rarity(index.entries, having))
    postings = sorted((posting for posting in postings if posting.newest), key=lambda posting: posting.having)
    rare = _rare(postings, read_max(index.last))
    for posting in rare:
        _mark(found, posting, posting.newest)
    among = " OR ".join(posting.expression for posting in rare)
    for posting in postings[len(rare) :]:
        if found.rarities[posting.number] >= _WORTH_LOOKING * max(found.rarities):
            _mark(found, posting, _read(connection, index, f"({among}) AND {posting.expression}"))
    return found


class Index(NamedTuple):
    """The searched part of the index."""

    entries: int
    """The number of entries in the scope."""
    last: int
    """The key of the newest entry."""
    token: str | None
    """The scope's term; None when all entries are in scope."""

    def theirs(self, expression: str) -> str:
        """The expression, restricted to the scope."""
        return expression if self.token is None else f'({expression}) AND ({{scope}} : "{self.token}")'


def _posting(connection: sqlite3.Connection, index: Index, number: int, column: str, term: str) -> _Posting:
    """A term has only letters and digits, so it cannot contain query syntax."""
    expression = f'({{{column}}} : "{term if column == "content" else heading_word(term)}")'
    newest = _read(connection, index, expression)
    having = len(newest)
    if having == read_max(index.last):
        # As many in all as if they lay as densely before as among the newest.
        having = min(index.entries, having * index.last / max(1, index.last - newest[-1] + 1))
    return _Posting(having, number, column, expression, newest)


def _rare(postings: Sequence[_Posting], most: int) -> Sequence[_Posting]:
    """The first posting, and the following ones while few entries are read."""
    read = 0.0
    for place, posting in enumerate(postings):
        read += posting.having
        if read > most:
            return postings[: max(place, 1)]
    return postings


def _read(connection: sqlite3.Connection, index: Index, expression: str) -> list[int]:
    (entries,) = connection.execute(_READ, (index.theirs(expression), read_max(index.last))).fetchone()
    return json.loads(entries)


def _mark(found: Postings, posting: _Posting, entries: Iterable[int]) -> None:
    marks, bit = (found.body if posting.column == "content" else found.heading), 1 << posting.number
    get = marks.get
    for entry in entries:
        marks[entry] = get(entry, 0) | bit


# Vectors of entries: finding missing ones, storing them, and finding similar ones.
#
# They lie in the database as float32 of length 1, and all of a scope in memory as one matrix while they are searched:
# 384 numbers of 100,000 entries take 150 MB. numpy is loaded with the first of them. Products are `einsum` and not `@`,
# whose threads go on spinning beside an event loop and cost more than they save for a single question.


ALIKE_MAX = 50
"""The most candidates by similarity."""
EXACT_MAX = 1000
"""Entries that are compared exactly. If there are more, a sketch selects them: the vectors projected on fewer random
directions, which is several times as fast and rarely misses very similar ones.
"""
SKETCH_DIMENSIONS = 96


class Pending(NamedTuple):
    """An entry without a vector."""

    entry: int
    text: str


def claim(connection: sqlite3.Connection, name: str, dimensions: int, *, anew: bool) -> None:
    """Record whose vectors these are. Errors: `Invalid` when another embedder is recorded, unless `anew` drops its
    vectors.
    """
    found = connection.execute("SELECT name, dimensions FROM memory_embedder").fetchone()
    if found == (name, dimensions):
        return
    if found is not None and not anew:
        raise Invalid(
            "the vectors in this memory were made by another embedder: use that one, or call embed(anew=True)",
            embedder=name,
            dimensions=dimensions,
            stored=found[0],
            stored_dimensions=found[1],
        )
    connection.execute("DELETE FROM memory_vectors")
    connection.execute("DELETE FROM memory_embedder")
    connection.execute("INSERT INTO memory_embedder (name, dimensions) VALUES (?, ?)", (name, dimensions))
    connection.execute("UPDATE memory_format SET erasures = erasures + 1")


def pending(connection: sqlite3.Connection, scope: str, limit: int) -> list[Pending]:
    """The oldest entries of the scope that are newer than all entries with a vector: vectors are made in order."""
    rows = connection.execute(
        "SELECT entries.id, trim(heading || ' ' || content) FROM memory_entries AS entries"
        " WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?1) AND entries.id > coalesce((SELECT max(entry)"
        " FROM memory_vectors WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?1)), 0)"
        " ORDER BY entries.id LIMIT ?2",
        (scope, limit),
    )
    return [Pending(*row) for row in rows]


def store(connection: sqlite3.Connection, made: Iterable[tuple[int, bytes]]) -> None:
    """Store vectors of entries; vectors of entries that were forgotten meanwhile are dropped."""
    connection.executemany(
        "INSERT OR REPLACE INTO memory_vectors (entry, scope, vector)"
        " SELECT id, scope, ?2 FROM memory_entries WHERE id = ?1",
        made,
    )


def pack_vectors(vectors: Sequence[Sequence[float]], texts: int, dimensions: int) -> list[bytes]:
    """Vectors in stored form. Errors: `Failed` when the embedder returned a wrong number or shape."""
    np: Any = import_module("numpy")

    try:
        matrix: Any = np.asarray(vectors, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise Failed("the embedder gave no vectors", cause=str(error)) from error
    if matrix.shape != (texts, dimensions) or not np.isfinite(matrix).all():
        raise Failed("the embedder gave no vectors of its dimensions", shape=matrix.shape, wanted=(texts, dimensions))
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return [row.tobytes() for row in matrix / np.maximum(lengths, 1e-12)]


class VectorMatrix:
    """All vectors of a scope, in memory. Follows what this and other processes add and erase."""

    def __init__(self, connection: sqlite3.Connection, scope: str) -> None:
        self._connection = connection
        self._scope = scope
        self._erasures = -1
        self._entries: list[int] = []
        self._places: dict[int, int] = {}
        self._matrix: Any = None
        self._sketch: Any = None
        self._projection: Any = None

    def likeness(self, vector: bytes) -> Likeness | None:
        """The similarity of each entry to that vector; None when no entry has a vector. Call within a transaction."""
        np: Any = import_module("numpy")

        self._catch_up(len(vector))
        if self._matrix is None or not self._entries:
            return None
        wanted: Any = np.frombuffer(vector, dtype=np.float32)
        count = len(self._entries)
        exact: Sequence[int] = range(count)
        if count > EXACT_MAX:
            rough: Any = np.einsum("ij,j->i", self._sketch[:count], wanted @ self._projection)
            exact = np.argpartition(-rough, EXACT_MAX)[:EXACT_MAX]
            values: Any = np.einsum("ij,j->i", self._matrix[exact], wanted)
        else:
            values = np.einsum("ij,j->i", self._matrix[:count], wanted)
        places: list[int] = np.argsort(-values)[:ALIKE_MAX].tolist()
        best = [self._entries[int(exact[place])] for place in places]
        return Likeness(self._matrix, wanted, self._places, best)

    def _catch_up(self, row_bytes: int) -> None:
        np: Any = import_module("numpy")

        (erasures,) = self._connection.execute("SELECT erasures FROM memory_format").fetchone()
        if erasures != self._erasures:
            self._matrix = self._sketch = None
            self._erasures, self._entries, self._places = erasures, [], {}
        rows = self._connection.execute(
            "SELECT entry, vector FROM memory_vectors WHERE scope = (SELECT id FROM memory_scopes WHERE name = ?)"
            " AND entry > ? AND length(vector) = ? ORDER BY entry",
            (self._scope, self._entries[-1] if self._entries else 0, row_bytes),
        ).fetchall()
        if not rows:
            return
        start = len(self._entries)
        fresh: Any = np.frombuffer(b"".join([vector for _, vector in rows]), dtype=np.float32)
        fresh = fresh.reshape(len(rows), -1)
        if self._projection is None or len(self._projection) != fresh.shape[1]:
            chosen: Any = np.random.default_rng(0).normal(size=(fresh.shape[1], SKETCH_DIMENSIONS))
            self._projection = (chosen / SKETCH_DIMENSIONS**0.5).astype(np.float32)
        self._matrix = _extended(self._matrix, start, fresh)
        self._sketch = _extended(self._sketch, start, fresh @ self._projection)
        self._entries += [entry for entry, _ in rows]
        self._places.update(zip(self._entries[start:], range(start, len(self._entries)), strict=True))


class Likeness:
    """The similarity of entries to a query, from -1 to 1."""

    def __init__(self, matrix: Any, wanted: Any, places: dict[int, int], best: list[int]) -> None:
        self._matrix = matrix
        self._wanted = wanted
        self._places = places
        self.best = best
        """The most similar entries, best first."""

    def of(self, entries: Iterable[int]) -> dict[int, float]:
        """The similarities of these entries, without those that have no vector."""
        known = [entry for entry in entries if entry in self._places]
        if not known:
            return {}
        np: Any = import_module("numpy")
        values: Any = np.einsum("ij,j->i", self._matrix[[self._places[entry] for entry in known]], self._wanted)
        return dict(zip(known, map(float, values), strict=True))


def _extended(matrix: Any, start: int, fresh: Any) -> Any:
    """The matrix with more rows from `start` on, in place while there is room."""
    np: Any = import_module("numpy")
    end = start + len(fresh)
    if matrix is None or end > len(matrix):
        grown: Any = np.empty((max(1024, 2 * start, end), fresh.shape[1]), dtype=np.float32)
        if matrix is not None:
            grown[:start] = matrix[:start]
        matrix = grown
    matrix[start:end] = fresh
    return matrix
