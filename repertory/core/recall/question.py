"""What of a question is looked for: its words, without those that any question has.

A question is made of words that say what is asked, and of words that make it a question. The latter stand in every
other answer as well, so they are left out here; they stay in what is searched.
"""

from __future__ import annotations

import re

TERMS_MAX = 24
"""Words that are looked for at most. Of a longer text the longest are taken: they say the most."""

_ARTICLES = "a an the this that these those there here"
_PRONOUNS = (
    "i me my mine myself we us our ours ourselves you your yours yourself he him his himself she her hers herself it"
    " its itself they them their theirs themselves"
)
_ASKING = "what when where who whom whose which why how"
_AUXILIARIES = (
    "am is are was were be been being do does did doing done have has had having can could will would shall should"
    " might must"  # but not "may", which is a month
)
_JOINING = (
    "and or but if then than so as of at by for from in into on onto out over to up with without within about after"
    " before again between during through under above below against off not no nor"
)
_MEASURING = (
    "some any all both each few more most other such only own same too very just also ever yet still once many much"
    " long often kind type sort"
)
_SHORTENED = "s t d m ll re ve don didn doesn isn wasn weren aren won wouldn couldn shouldn haven hasn hadn"
"""What the apostrophe of "don't" leaves."""
_TALKING = "according likely please tell know"

STOP_WORDS = frozenset(
    " ".join((_ARTICLES, _PRONOUNS, _ASKING, _AUXILIARIES, _JOINING, _MEASURING, _SHORTENED, _TALKING)).split()
)
"""Words of English that are not looked for. Questions in other languages lose little by it."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
)
"""Letters of writing that puts no spaces between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""


def terms_of(question: str) -> tuple[str, ...]:
    """The words to look for, in lower case, each once, in their order.

    When a question has nothing but stop words, those. Empty when it has no words.
    """
    words = list(dict.fromkeys(_WORD.findall(spaced(question.lower()))))
    asked = [word for word in words if word not in STOP_WORDS] or words
    if len(asked) <= TERMS_MAX:
        return tuple(asked)
    longest = set(sorted(asked, key=len, reverse=True)[:TERMS_MAX])
    return tuple(word for word in asked if word in longest)


def heading_word(word: str) -> str:
    """A word of a heading as it is indexed: as another word than the same in a text. Otherwise looking for a frequent
    word in the few headings would mean to read all the texts that have it.
    """
    return f"zq{word}"


def heading_words(heading: str) -> str:
    """A whole heading, in the same way."""
    return " ".join(map(heading_word, _WORD.findall(spaced(heading.lower()))))


def spaced(text: str) -> str:
    """A text in which every letter of writing without spaces is a word: so it can be found by any part of it."""
    return text if text.isascii() else _UNSPACED.sub(r" \1 ", text)
