"""Ranking candidates: by their own words, their neighbours', their conversation's, and by their speaker.

A turn seldom names its topic: "in May, with my sister" answers a question whose words are in the turn before. So the
words of neighbouring turns count for a turn, the nearer the more; those of its whole conversation count a little; and
so does a speaker whom the question names. Each word counts by its rarity (the idf of BM25). The first occurrence counts
most: repetition says little in short texts.

The weights were chosen by cross-validation over dialogues (`bench/recall.py`), and are robust: halving or doubling one
changes the measured result by about one point at most.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

RARITY_MIN = 1e-3
"""The rarity of a word that half of all texts or more have."""
_WINDOW_HALF = 0.5
_WINDOW_MOST = 1.5
"""Chosen so that a word that occurs in a turn and not around it is worth the same in its window."""
_CONVERSATION_HALF = 1.0
_HEADING_AGAIN = 0.3


class RankingWeights(Struct, frozen=True, kw_only=True):
    """The weight of each signal, relative to a turn's own words."""

    heading: float = 0.8
    """A word that occurs in the heading only (speaker and day)."""
    length: float = 0.25
    """The discount of long texts: 0 for none, 1 in proportion to their length."""
    window: float = 1.0
    """The words of a turn and of its neighbours, together."""
    neighbours: tuple[float, ...] = (0.5, 0.25)
    """The share of a word that occurs one turn before or after, two turns, and so on."""
    conversation: float = 1.0
    """The words of the whole conversation."""
    speaker: float = 0.5
    """The share of an average word that counts for a speaker whom the question names."""
    assistant: float = 0.9
    """The factor for answers of the assistant: memories are about the user."""
    alike: float = 0.4
    """The share of the ranking, from 0 to 1, that a model of text similarity has where there is one."""
    alike_beside: float = 0.5
    """The share of a turn's similarity that comes from the turns next to it."""


DEFAULT_WEIGHTS = RankingWeights()  # Measured: half or double of any weight changes recall by one point.


class Candidate(NamedTuple):
    """A text with words of the question, or next to one. Bit n of a mask stands for word n."""

    entry: int
    """The key of the entry."""
    body: int
    """The words in the text itself."""
    heading: int
    """The words in its heading."""
    conversation: int | None
    """The key of the conversation; None for an entry from none, which has no neighbours."""
    position: int | None
    """The position in the conversation; None for a fact extracted from it."""
    words: int
    """The length of the text."""
    named: bool
    """True if the question names its speaker."""
    assistant: bool
    """True if a model said it, and not a named speaker."""


def rarity(texts: int, having: float) -> float:
    """The weight of a word that `having` of all `texts` contain."""
    return max(math.log((texts - having + 0.5) / (having + 0.5)), RARITY_MIN) if texts > having else RARITY_MIN


def neighbourhood(weights: RankingWeights) -> int:
    """The number of turns before and after a turn that count for it."""
    return len(weights.neighbours)


def scores(candidates: Sequence[Candidate], rarities: Sequence[float], weights: RankingWeights) -> dict[int, float]:
    """Key to score, higher is better. Scores are comparable within one question only."""
    if not candidates:
        return {}
    average = max(1.0, sum(candidate.words for candidate in candidates) / len(candidates))
    table = _Table(candidates, rarities, weights)
    mean_rarity = sum(rarities) / len(rarities) if rarities else 0.0
    worth: dict[int, float] = {}
    for candidate in candidates:
        length = 1 - weights.length + weights.length * candidate.words / average
        score = (
            table.own(candidate) / length
            + weights.window * table.window(candidate)
            + weights.conversation * table.conversation(candidate)
            + weights.speaker * mean_rarity * candidate.named
        )
        worth[candidate.entry] = score * weights.assistant if candidate.assistant else score
    return worth


def surrounded(candidates: Sequence[Candidate], likeness: Mapping[int, float], share: float) -> dict[int, float]:
    """The similarity of each candidate, plus a share of the similarity of the turns next to it."""
    turns = {
        (candidate.conversation, candidate.position): likeness[candidate.entry]
        for candidate in candidates
        if candidate.position is not None and candidate.entry in likeness
    }
    found: dict[int, float] = {}
    for candidate in candidates:
        own = likeness.get(candidate.entry)
        if own is None:
            continue
        beside = 0.0
        if candidate.position is not None:
            around = [turns.get((candidate.conversation, candidate.position + way), 0.0) for way in (-1, 1)]
            beside = sum(around) / 2
        found[candidate.entry] = own + share * beside
    return found


class _Table:
    """The words of all candidates, by turn and by conversation. Few distinct masks occur, so their worth is cached."""

    def __init__(self, candidates: Sequence[Candidate], rarities: Sequence[float], weights: RankingWeights) -> None:
        self._rarities = rarities
        self._weights = weights
        self._turns: dict[tuple[int, int], int] = {
            (candidate.conversation, candidate.position): candidate.body
            for candidate in candidates
            if candidate.body and candidate.conversation is not None and candidate.position is not None
        }
        self._own: dict[tuple[int, int], float] = {}
        self._windows: dict[tuple[int, int, tuple[int, ...]], float] = {}
        self._worths: dict[tuple[tuple[tuple[int, int], int], ...], float] = {}
        self._conversations = {
            key: self._worth_of(tuple(counts.items())) for key, counts in _conversations(candidates).items()
        }

    def own(self, candidate: Candidate) -> float:
        """The score of its own words: one in the text counts in full, one in the heading in part."""
        masks = candidate.body, candidate.heading
        worth = self._own.get(masks)
        if worth is None:
            only_heading = _sum(candidate.heading & ~candidate.body, self._rarities)
            worth = self._own[masks] = _sum(candidate.body, self._rarities) + self._weights.heading * only_heading
        return worth

    def window(self, candidate: Candidate) -> float:
        """The score of its words and its neighbours': a word counts more with every neighbouring turn that has it."""
        masks = candidate.body, candidate.heading, self._around(candidate)
        worth = self._windows.get(masks)
        if worth is None:
            worth = self._windows[masks] = self._worked_out(*masks)
        return worth

    def conversation(self, candidate: Candidate) -> float:
        """The score of its conversation's words: more for each time that a word occurs, most for the first time."""
        return self._conversations.get(_conversation_key(candidate), 0.0)

    def _around(self, candidate: Candidate) -> tuple[int, ...]:
        """The words of the turns before and after it, the nearest first."""
        conversation, position = candidate.conversation, candidate.position
        if conversation is None or position is None:
            return ()
        of = self._turns.get
        reach = range(1, len(self._weights.neighbours) + 1)
        return tuple([of((conversation, position + way * far), 0) for far in reach for way in (-1, 1)])

    def _worked_out(self, body: int, heading: int, around: tuple[int, ...]) -> float:
        worth = 0.0
        for word, rarity_ in enumerate(self._rarities):
            bit = 1 << word
            count = 1.0 if body & bit else 0.0
            for index, mask in enumerate(around):
                if mask & bit:
                    count += self._weights.neighbours[index // 2]
            if heading & bit:
                count = max(count, self._weights.heading)
            worth += rarity_ * _WINDOW_MOST * _first_most(count, _WINDOW_HALF)
        return worth

    def _worth_of(self, counts: tuple[tuple[tuple[int, int], int], ...]) -> float:
        """The worth of word counts in a conversation. Headings repeat a word again and again, so they count less."""
        worth = self._worths.get(counts)
        if worth is not None:
            return worth
        worth = 0.0
        for word, rarity_ in enumerate(self._rarities):
            bit = 1 << word
            count = 0.0
            for (body, heading), times in counts:
                if body & bit:
                    count += times
                elif heading & bit:
                    count += times * _HEADING_AGAIN * self._weights.heading
            worth += rarity_ * _first_most(count, _CONVERSATION_HALF)
        self._worths[counts] = worth
        return worth


def _conversations(candidates: Sequence[Candidate]) -> dict[tuple[bool, int], Counter[tuple[int, int]]]:
    """The count of each pair of masks in each conversation."""
    found: dict[tuple[bool, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    for candidate in candidates:
        if candidate.body or candidate.heading:
            found[_conversation_key(candidate)][candidate.body, candidate.heading] += 1
    return found


def _conversation_key(candidate: Candidate) -> tuple[bool, int]:
    """An entry from no conversation counts as a conversation of its own."""
    conversation = candidate.conversation
    return (True, candidate.entry) if conversation is None else (False, conversation)


def _sum(mask: int, rarities: Sequence[float]) -> float:
    return sum(rarity_ for word, rarity_ in enumerate(rarities) if mask >> word & 1)


def _first_most(count: float, half: float) -> float:
    """The count on a scale from 0 to 1: one half at `half`."""
    return count / (count + half)


# Joining the results of two searches by their scores, each scaled to 0..1 first.
#
# By scores and not by ranks: a rank loses how far the first is ahead of the second, which is what one search has to
# tell the other.


def fused(first: Mapping[int, float], second: Mapping[int, float], share: float) -> dict[int, float]:
    """The weighted sum of both; `second` has the weight `share`. A key missing from one of them counts 0 there."""
    one, other = _ranged(first), _ranged(second)
    return {key: (1 - share) * one.get(key, 0.0) + share * other.get(key, 0.0) for key in one.keys() | other.keys()}


def _ranged(scores: Mapping[int, float]) -> dict[int, float]:
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    width = high - low
    return {key: (score - low) / width if width else 1.0 for key, score in scores.items()}
