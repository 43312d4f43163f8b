"""Which entries have which words of a question: the index, asked word by word, within bounds.

A word that very many entries have says little, and reading all of them takes long. So the rarest words are read, until
so many entries have been as `read_max` says; the others are looked for only among those, and not at all when next to
them they say nothing. In a memory of some thousand turns every word is read wholly.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from repertory.core.recall.question import heading_word
from repertory.core.recall.ranking import rarity

READ_LEAST, READ_MOST = 300, 5000
_READ_SHARE = 20_000_000
_WORTH_LOOKING = 0.35
"""A frequent word that counts less than this share of the rarest is left out."""

_NEWEST = "SELECT rowid FROM memory_text WHERE memory_text MATCH ? ORDER BY rowid DESC LIMIT ?"
_READ = f"SELECT json_group_array(rowid) FROM ({_NEWEST})"  # one row is read far faster than thousands


def read_max(size: int) -> int:
    """Entries that are read before frequent words are only looked for among them, in an index of this size: the larger
    it is, the longer each of them takes.
    """
    return max(READ_LEAST, min(READ_MOST, _READ_SHARE // max(size, 1)))


@dataclass(slots=True)
class Postings:
    """What was found. Bit n of a mask stands for word n."""

    body: dict[int, int] = field(default_factory=dict[int, int])
    """Entry to the words of its text."""
    heading: dict[int, int] = field(default_factory=dict[int, int])
    """Entry to the words of its heading."""
    rarities: list[float] = field(default_factory=list[float])
    """What each word counts for."""


class _Posting(NamedTuple):
    having: float
    """About how many entries have the word there."""
    number: int
    column: str
    expression: str
    newest: list[int]
    """All of them, unless there are more than are read."""


def read_postings(connection: sqlite3.Connection, terms: Sequence[str], index: Index) -> Postings:
    """Ask for each word, in the texts and in the headings."""
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
    """What there is to search."""

    entries: int
    """How many entries are theirs whom the question is asked of."""
    last: int
    """The key of the newest entry."""
    token: str | None
    """Whose entries; None when all are."""

    def theirs(self, expression: str) -> str:
        """The same, of theirs only."""
        return expression if self.token is None else f'({expression}) AND ({{scope}} : "{self.token}")'


def _posting(connection: sqlite3.Connection, index: Index, number: int, column: str, term: str) -> _Posting:
    """A term has letters and digits only, so nothing in it can be taken for syntax."""
    expression = f'({{{column}}} : "{term if column == "content" else heading_word(term)}")'
    newest = _read(connection, index, expression)
    having = len(newest)
    if having == read_max(index.last):
        # As many in all as if they lay as densely before as among the newest.
        having = min(index.entries, having * index.last / max(1, index.last - newest[-1] + 1))
    return _Posting(having, number, column, expression, newest)


def _rare(postings: Sequence[_Posting], most: int) -> Sequence[_Posting]:
    """The first, and those behind it while they are few."""
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
