"""The indexed words of a text are those of SQLite's index, which is the judge here."""

from __future__ import annotations

import random
import sqlite3
from typing import Literal
from unicodedata import normalize as unicodedata_normalize

import pytest

from repertory.core.recall.entries import spaced
from repertory.core.recall.words import indexed_words

_WRITTEN = (
    "ational tional enci anci izer logi bli alli entli eli ousli ization ation ator alism iveness fulness ousness aliti"
    " iviti biliti icate ative alize iciti ical ful ness ement ance ence able ible ment ant ent ion ism ate iti ous ive"
    " ize al er ic ou ed ing eed sses ies s y"
)
ENDINGS = _WRITTEN.split()
TEXTS = [
    "When did Ada move to Lund? In May, with my sister's boats - 5km away, hopping.",
    "Ärger im Café, naïve ñandú ÇA øre łódź",
    "日本語のテキスト と 한국어 and ไทย",
    "cafe\u0301 a\u0323\u0301b",
    "snake_case x² ½ Ⅷ 1e5 3.14",
    "relational conditional rationally valency hesitancy digitizer conformably radically differently",
    "vietnamization predication operator feudalism decisiveness hopefulness callousness formality sensitivity",
    "triplicate formative formalize electricity electrical hopeful goodness revival allowance inference airliner",
    "caresses ponies ties caress cats feed agreed plastered bled motoring sing conflated troubled sized hopping tanned",
    "falling hissing fizzed failing filing happy sky controll roll probate rate cease",
]


def in_sqlite(texts: list[str]) -> list[list[str]]:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE found USING fts5(text, tokenize='porter unicode61 remove_diacritics 2')")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5vocab(found, instance)")
    connection.executemany("INSERT INTO found VALUES (?)", [(spaced(text),) for text in texts])
    words: list[list[str]] = [[] for _ in texts]
    for term, row in connection.execute("SELECT term, doc FROM words ORDER BY doc, offset"):
        words[row - 1].append(term)
    connection.close()
    return [list(dict.fromkeys(found)) for found in words]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_text_has_the_words_that_sqlite_finds_in_it(text: str) -> None:
    assert [indexed_words(text)] == in_sqlite([text])


def test_marks_without_end_cost_no_more_than_a_piece_of_them_each(monkeypatch: pytest.MonkeyPatch) -> None:
    normalized = list[int]()

    def normalize(form: Literal["NFC", "NFD"], text: str) -> str:
        normalized.append(len(text))
        return unicodedata_normalize(form, text)

    monkeypatch.setattr("unicodedata.normalize", normalize)
    assert indexed_words("a" + "\u0301\u0316" * 20_000 + " caf\u00e9s") == ["a", "cafe"]
    assert max(normalized) <= 64


def test_an_ending_alone_is_reduced_as_sqlite_reduces_it() -> None:
    words = ["sses", "ies", "asses", "dies", "esses", "sse", "ss"]
    assert [indexed_words(word) for word in words] == in_sqlite(words)


def test_any_word_is_reduced_as_sqlite_reduces_it(rng: random.Random) -> None:
    words = sorted(
        {
            "".join(rng.choices("bcdaeiouytlsz", k=rng.randint(4, 6)))
            + "".join(rng.choices(ENDINGS, k=rng.randint(0, 2)))
            for _ in range(5000)
        }
    )
    differing = [
        (word, ours, theirs)
        for word, theirs in zip(words, in_sqlite(words), strict=True)
        if (ours := indexed_words(word)) != theirs
    ]
    # SQLite reduces a few that are hardly words otherwise: "uyying" to "ui", since it takes the first "y" for a vowel.
    assert all("yy" in word for word, _, _ in differing), differing


def test_forms_of_one_word_in_any_case_and_with_any_accents_are_one_word() -> None:
    assert len({word for text in ("nest NESTS Nesting nested", "né\u0301sts") for word in indexed_words(text)}) == 1
    assert indexed_words("Straße STRASSE") == ["strass"]
