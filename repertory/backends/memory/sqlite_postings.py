"""Which entries have which words of a question: the index, asked word by word, within bounds.

A word that very many entries have says little, and reading all of them takes long. So the rarest words are read, until
`READ_MAX` entries have been; the others are looked for only among those, and not at all when next to them they say
nothing. In a memory of some thousand turns every word is read wholly.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from repertory.core.recall.question import heading_word
from repertory.core.recall.ranking import rarity

READ_MAX = 500
"""Entries that are read before frequent words are only looked for among them."""
_WORTH_LOOKING = 0.35
"""A frequent word that counts less than this share of the rarest is left out."""

_NEWEST = "SELECT rowid FROM memory_text WHERE memory_text MATCH ? ORDER BY rowid DESC LIMIT ?"
_READ = f"SELECT json_group_array(rowid) FROM ({_NEWEST})"  # one row is read far faster than thousands


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
    """All of them, unless there are `READ_MAX`."""


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
    rare = _rare(postings)
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
    if having == READ_MAX:
        # As many in all as if they lay as densely before as among the newest.
        having = min(index.entries, having * index.last / max(1, index.last - newest[-1] + 1))
    return _Posting(having, number, column, expression, newest)


def _rare(postings: Sequence[_Posting]) -> Sequence[_Posting]:
    """The first, and those behind it while they are few."""
    read = 0.0
    for place, posting in enumerate(postings):
        read += posting.having
        if read > READ_MAX:
            return postings[: max(place, 1)]
    return postings


def _read(connection: sqlite3.Connection, index: Index, expression: str) -> list[int]:
    (entries,) = connection.execute(_READ, (index.theirs(expression), READ_MAX)).fetchone()
    return json.loads(entries)


def _mark(found: Postings, posting: _Posting, entries: Iterable[int]) -> None:
    marks, bit = (found.body if posting.column == "content" else found.heading), 1 << posting.number
    get = marks.get
    for entry in entries:
        marks[entry] = get(entry, 0) | bit
