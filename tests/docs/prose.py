"""What can be checked of English: how long sentences are, words that we do not use, and sentences without a subject.

Text comes from documents (paragraphs and list items) and from docstrings. Code, tables and headings are not sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

WORDS_MAX = 35
MEDIAN_MAX = 15
SENTENCES_FOR_MEDIAN = 5
"""A text of fewer sentences has no median worth a rule."""

REJECTED: dict[str, str] = {
    r"simply|just|easily|obviously|basically|of course|please|very|really|quite": "leave it out",
    r"in order to": "to",
    r"utili[sz]\w+": "use",
    r"leverag\w+": "use",
    r"seamless\w*|powerful|robust|blazing\w*|effortless\w*|cutting-edge": "say what it does",
    r"e\.g\.|i\.e\.|etc\.|via|vs\.?": "for example, that is, and so on, through, against",
    r"we|our|us|let's": "name the actor",
    r"whilst|amongst|upon": "while, among, on",
    r"he who|those who|whoever|the one who|the one that|the ones that": "name who it is",
    r"behaviour|colour|favour\w*|neighbour\w*|honour\w*|serialis\w+|summaris\w+|initialis\w+|optimis\w+|organis\w+"
    r"|recognis\w+|catalogue|licence|programme|centre|artefact\w*|judgement": "American spelling",
    r"blueprint|ledger|footing|proof of life|time machine|worklist|errand\w*": "see CONTRIBUTING.md",
    r"LLMs are|state-of-the-art|next-generation|world-class": "say what it does",
}
"""What we do not write, as a pattern of whole words, and what to write instead."""

_REJECTED = [
    (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE), instead) for words, instead in REJECTED.items()
]
_NO_SUBJECT = re.compile(r"^(?:Whether|What|Who|How|Which)\b[^?,:]*\.$")
_DOUBLED = re.compile(r"\b(?!that\b|had\b)([a-z]+) \1\b", re.IGNORECASE)


@dataclass(frozen=True)
class Sentence:
    """One sentence of a text, with code spans shortened to one word each."""

    text: str
    in_list: bool = False
    """Whether it is a list item's only text: such an item may be a phrase."""

    @property
    def words(self) -> int:
        return len(self.text.split())


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of Markdown, or of a docstring."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^ *(```|~~~).*?^ *\1$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ *(?:>>>|\.\.\.) .*(?:\n(?! *>>>| *$).*)*", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+]|\d+\.|#+|\||!!!|\?\?\?|:::)\s)", text):
        body = paragraph.strip()
        if not body or body.startswith(("|", "#", "!!!", "???", ":::", "<", "    ")):
            continue
        in_list = re.match(r"(?:[-*+]|\d+\.)\s", body) is not None
        body = re.sub(r"^(?:[-*+]|\d+\.)\s+", "", body)
        body = re.sub(r"``[^`]+``|`[^`]+`", "Code", " ".join(body.split()))
        body = re.sub(r"\*\*|__|(?<!\w)[*_]|[*_](?!\w)", "", body)
        parts = re.split(r"(?<=[.!?])[\")]?\s+(?=[A-Z\"(0-9])", body)
        for part in parts:
            yield Sentence(part, in_list=in_list and len(parts) == 1)


def findings(text: str) -> Iterator[str]:
    """What a reader would stumble over in a text, a line each."""
    found = list(sentences(text))
    for sentence in found:
        if sentence.words > WORDS_MAX:
            yield f"{sentence.words} words: {sentence.text}"
        for pattern, instead in _REJECTED:
            if match := pattern.search(sentence.text):
                yield f"{match[0]!r} ({instead}): {sentence.text}"
        if not sentence.in_list and _NO_SUBJECT.match(sentence.text):
            yield f"no subject: {sentence.text}"
        if match := _DOUBLED.search(sentence.text):
            yield f"{match[0]!r} twice: {sentence.text}"
    if len(found) >= SENTENCES_FOR_MEDIAN and median(sentence.words for sentence in found) > MEDIAN_MAX:
        yield f"half of its sentences have more than {MEDIAN_MAX} words"
