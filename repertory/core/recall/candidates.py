"""The entries that a search ranks: those that have the rarest words of the question, and their neighbours.

A store looks up which entries have which words; which of its answers it needs, and which entries it reads, is decided
here. A word that very many entries have says little, and reading all of them takes long. So the rarest words are read,
until so many entries have been as `read_max` says; the others are looked for only among those, and not at all when next
to them they say nothing. In a memory of some thousand turns every word is read wholly.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from repertory.core.recall.entries import speaker_of
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

SHORTLIST = 40
"""The number of candidates that are ranked with all signals; the others are worse by their own words alone."""
BESIDE = 10
"""The number of best candidates whose neighbours are candidates too, even without any of the words."""
READ_LEAST, READ_MOST = 300, 5000
READ_SHARE = 20_000_000  # So a search takes about as long in 100,000 turns as in 1,000 (design/memory.md).
_WORTH_LOOKING = 0.35
"""The share of the rarest word's weight below which a frequent word is left out."""
_WORD = re.compile(r"[^\W_]+")


class Query(Struct, frozen=True, kw_only=True):
    """A query, its scope and its bounds."""

    scope: str
    question: str
    limit: int
    as_of: float | None = None
    """Epoch seconds: only entries that were known and valid then."""
    weights: RankingWeights = DEFAULT_WEIGHTS


class Similarity(Protocol):
    """The similarity of entries to a question, as far as it is known."""

    @property
    def best(self) -> Sequence[int]:
        """The most similar entries, best first."""
        ...


def read_max(size: int) -> int:
    """The number of entries that are read before frequent words are looked up only among them, in an index of this
    size: in a larger index, each lookup takes longer.
    """
    return max(READ_LEAST, min(READ_MOST, READ_SHARE // max(size, 1)))


class Postings(Struct):
    """The entries found. Bit n of a mask stands for word n."""

    body: dict[int, int] = {}
    """Entry to the words of its text."""
    heading: dict[int, int] = {}
    """Entry to the words of its heading."""
    rarities: list[float] = []
    """The weight of each word."""

    def mark(self, posting: Posting, entries: Iterable[int]) -> None:
        """Note that these entries have the word."""
        marks, bit = (self.heading if posting.in_heading else self.body), 1 << posting.number
        get = marks.get
        for entry in entries:
            marks[entry] = get(entry, 0) | bit


class Posting(NamedTuple):
    """A word, in texts or in headings."""

    having: float
    """The approximate number of entries with the word there."""
    number: int
    in_heading: bool
    newest: Sequence[int]
    """The entries with the word: all, or the newest up to the read limit."""


def rare(postings: Sequence[Posting], most: int) -> Sequence[Posting]:
    """The first posting, and the following ones while few entries are read."""
    read = 0.0
    for index, posting in enumerate(postings):
        read += posting.having
        if read > most:
            # The rarest word is always read, even if it is a frequent one: a question of frequent words only finds
            # something too.
            return postings[: max(index, 1)]
    return postings


def begun(postings: Sequence[Posting], words: int, entries: int, most: int) -> tuple[Postings, list[Posting]]:
    """The entries with the rarest words, by reading at most about `most`, and the other words that are worth looking
    for among these entries.
    """
    found = Postings(rarities=[0.0] * words)
    for number in range(words):
        found.rarities[number] = rarity(
            entries, max(posting.having for posting in postings if posting.number == number)
        )
    known = sorted((posting for posting in postings if posting.newest), key=lambda posting: posting.having)
    read = rare(known, most)
    for posting in read:
        found.mark(posting, posting.newest)
    worth = _WORTH_LOOKING * max(found.rarities, default=0.0)
    return found, [posting for posting in known[len(read) :] if found.rarities[posting.number] >= worth]


def shortlist(postings: Postings, query: Query) -> list[int]:
    """The entries with the rarest words, best first: all of them if some may not have been valid at the time."""
    return _best(postings, query.weights, None if query.as_of is not None else max(SHORTLIST, query.limit))


def _best(postings: Postings, weights: RankingWeights, limit: int | None) -> list[int]:
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
            for word, rarity in enumerate(postings.rarities)
            if (masks[0] | masks[1]) >> word & 1
        )
        for masks in alike
    }
    best: list[int] = []
    for masks in sorted(alike, key=lambda masks: -values[masks]):
        # Entries with the same words are worth the same here, and few masks occur: so masks are sorted, and not 5,000
        # entries. Among equals the newest (with the highest key) come first.
        best += sorted(alike[masks], reverse=True)
        if limit is not None and len(best) >= limit:
            return best[:limit]
    return best


class Described(NamedTuple):
    """The fields of an entry that its ranking needs."""

    entry: int
    conversation: int | None
    position: int | None
    words: int
    role: str | None
    speaker: str | None
    beginning: str
    """The first 80 characters of its text."""


class Candidates:
    """The candidates of one question, prepared for ranking."""

    def __init__(self, query: Query, postings: Postings, terms: Sequence[str]) -> None:
        self._query = query
        self._postings = postings
        self._asked = frozenset(terms)
        self._named: dict[str, bool] = {}
        self.known: dict[int, Candidate] = {}

    def take(self, entries: Iterable[Described]) -> None:
        body, heading = self._postings.body, self._postings.heading
        for key, conversation, position, words, role, speaker, beginning in entries:
            speaker = speaker or speaker_of(beginning)
            self.known[key] = Candidate(
                key,
                body.get(key, 0),
                heading.get(key, 0),
                conversation,
                position,
                words,
                speaker is not None and self._is_asked(speaker),
                speaker is None and role == "assistant",
            )

    def beside(self, keys: Sequence[int]) -> set[tuple[int, int]]:
        """The conversation and position of each unknown turn around these: it may have the answer in other words."""
        reach = neighbourhood(self._query.weights)
        wanted: set[tuple[int, int]] = set()
        for key in keys:
            candidate = self.known.get(key)
            if candidate is not None and candidate.conversation is not None and candidate.position is not None:
                around = range(candidate.position - reach, candidate.position + reach + 1)
                wanted.update((candidate.conversation, position) for position in around)
        return wanted - {
            (candidate.conversation, candidate.position)
            for candidate in self.known.values()
            if candidate.conversation is not None and candidate.position is not None
        }

    def ranked(self, likeness: Mapping[int, float] | None) -> list[tuple[int, float]]:
        """The best entries and their scores, best first. `likeness`: how similar they are to the question."""
        candidates, weights = list(self.known.values()), self._query.weights
        worth = scores(candidates, self._postings.rarities, weights)
        if likeness is not None:
            worth = fused(worth, surrounded(candidates, likeness, weights.alike_beside), weights.alike)
        # By the key too: two searches with the same scores answer in the same order.
        best = heapq.nsmallest(self._query.limit, worth.items(), key=lambda item: (-item[1], -item[0]))
        return [(key, score) for key, score in best if score > 0]

    def _is_asked(self, speaker: str) -> bool:
        """True if the query names this speaker. Cached, since few speakers recur often."""
        asked = self._named.get(speaker)
        if asked is None:
            asked = self._named[speaker] = not self._asked.isdisjoint(_WORD.findall(speaker.lower()))
        return asked


def first_read(shortlisted: Sequence[int], alike: Similarity | None) -> list[int]:
    """The entries to read first."""
    return [*shortlisted, *(alike.best if alike is not None else ())]


def first_beside(shortlisted: Sequence[int], alike: Similarity | None) -> list[int]:
    """The keys of the entries whose neighbours are read."""
    return [*shortlisted[:BESIDE], *(alike.best[:BESIDE] if alike is not None else ())]
