"""The indexed words of a text, where a database has no analysis of its own that may be relied on everywhere.

They are those of SQLite's `porter unicode61 remove_diacritics 2`, so that embedded and shared memories find the same:
runs of letters and digits in lower case, without accents, and English forms reduced by M. F. Porter's rules ("An
algorithm for suffix stripping", 1980). A text is erased from an index by the words that this gives: to change them is
to change the version of the tables that hold them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from repertory.core.recall.entries import spaced

_WORD: Final = re.compile(r"[^\W_]+")
_ACCENTS: Final = re.compile("[\u0300-\u036f]")
_FOREIGN: Final = re.compile(r"[^\x00-\x7f]{1,64}")
"""Normalizing takes the square of the marks in a row, and stops every thread: so it gets a bounded piece at a time."""
_STEMMED_MOST: Final = 64
"""Longer words are left as they are."""


def indexed_words(text: str) -> list[str]:
    """The words of a text, each once."""
    return list(dict.fromkeys(map(stem, _WORD.findall(plain(spaced(text))))))


def plain(text: str) -> str:
    """The text in lower case, without accents."""
    lowered = text.casefold()
    if lowered.isascii():
        return lowered
    return _FOREIGN.sub(_without_accents, lowered)


def _without_accents(found: re.Match[str]) -> str:
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", found[0])))


def stem(word: str) -> str:
    """The word without English endings."""
    return _stem(word) if 2 < len(word) <= _STEMMED_MOST else word


@lru_cache(maxsize=16_384)
def _stem(word: str) -> str:  # Of words of a bounded length, as they are remembered.
    word = _without_plural(word)
    word = _without_participle(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _DOUBLE)
    word = _replaced(word, _ADJECTIVES)
    word = _without_last_suffix(word)
    return _tidied(word)


_DOUBLE: Final = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("logi", "log"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
)
_ADJECTIVES: Final = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_LAST: Final = (
    "ement",
    "ance",
    "ence",
    "able",
    "ible",
    "ment",
    "ant",
    "ent",
    "ion",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "al",
    "er",
    "ic",
    "ou",
)


def _without_plural(word: str) -> str:
    # Not where nothing else is left: SQLite keeps the "e" of "sses" and of "ies".
    if (len(word) > 4 and word.endswith("sses")) or (len(word) > 3 and word.endswith("ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_participle(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for ending in ("ed", "ing"):
        if word.endswith(ending) and _has_vowel(word[: -len(ending)]):
            return _mended(word[: -len(ending)])
    return word


def _mended(word: str) -> str:
    """The word that remains when an ending was removed: "hop" for "hopp", "file" for "fil"."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) > 1 and word[-1] == word[-2] and word[-1] not in "lsz" and _kinds(word)[-1] == "c":
        return word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _replaced(word: str, endings: Sequence[tuple[str, str]]) -> str:
    """The first of these endings that the word has, replaced, if enough stands before it."""
    for ending, instead in endings:
        if word.endswith(ending):
            before = word[: -len(ending)]
            return before + instead if _measure(before) > 0 else word
    return word


def _without_last_suffix(word: str) -> str:
    for ending in _LAST:
        if word.endswith(ending):
            before = word[: -len(ending)]
            if ending == "ion" and not before.endswith(("s", "t")):
                return word
            return before if _measure(before) > 1 else word
    return word


def _tidied(word: str) -> str:
    if word.endswith("e"):
        before = word[:-1]
        measure = _measure(before)
        if measure > 1 or (measure == 1 and not _ends_short(before)):
            word = before
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _kinds(word: str) -> str:
    """Vowels as "v", everything else as "c"; a "y" after a consonant is a vowel."""
    kinds: list[str] = []
    for index, letter in enumerate(word):
        is_vowel = letter in "aeiou" or (letter == "y" and index > 0 and kinds[-1] == "c")
        kinds.append("v" if is_vowel else "c")
    return "".join(kinds)


def _measure(word: str) -> int:
    """The number of vowels that a consonant follows."""
    return _kinds(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _kinds(word)


def _ends_short(word: str) -> bool:
    """Consonant, vowel, consonant, and the last one is none of w, x and y."""
    return _kinds(word)[-3:] == "cvc" and word[-1] not in "wxy"
