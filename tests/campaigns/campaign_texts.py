"""Hostile texts, ever longer, through every function that reads what strangers have written.

A function is measured against itself: twice the text may take about twice the work, and what takes four times as long
is quadratic. The work is the CPU time of this thread, in the same run. A suspect is measured again before it counts.
What a function raises is a typed error.
"""

from __future__ import annotations

import gc
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from repertory.backends.models.gemini_answer import _steps as gemini_steps
from repertory.backends.tools.structured_output import _unfenced
from repertory.compat.a2a_agent import _origin
from repertory.compat.memory_stores import _words as memory_words
from repertory.core import notebook, refusals
from repertory.core.cassette.scrubbing import Scrubber, url_secrets
from repertory.core.history.compare import _stretches
from repertory.core.memory.extracting import facts_in
from repertory.core.memory.merging import normalized_text
from repertory.core.pictures.svg import fitted
from repertory.core.recall.entries import heading_words, terms_of
from repertory.core.recall.words import indexed_words
from repertory.core.window.offloading import named_contents, read_reference
from repertory.core.window.transcript import line_of
from repertory.errors import HttpRequestError, RepertoryError
from repertory.inspector import wording
from repertory.mcp import transports, wire
from repertory.mcp.connection import _document_name
from repertory.plugins.skills import Skill
from repertory.toolbox.calculator import calculator
from repertory.toolbox.web import markdown_of
from repertory.toolbox.web_requests import HttpRequest, check_address
from tests.campaigns.campaigns import Report

ATOMS = (
    "`", "``` ", "`a``", "*", "**", "**a ", "** ", "_", "# ", "#", "~", "~`", "- ", "1. ", "<", "<a ", "<!--",
    "<b>", "<ul><li>x", "</b>", "&", "&#", "![", "[", "](", "[a](", "]", "(", ")", "{", "{\"a\":", "[[", "[\"",
    "[1,", "\"", "'", "\\", "\\\"", "'''", "\"\"\"", " ", "  ", "\t", "\n", "\r", "\r\n", " \n", "a", "a ", "a\n",
    "A", "0", "1.", "1-1", "-", "--", "---", "---\n", "=", "a=", "a: ", "a:", ":", "://", "://a", "@", ".", "..",
    "/", "//", ",", ", ", ";", "%", "|", "$", "[0]", "['a", ".a", "x--", "\u00e9", "e\u0301", "\u4e00",
    "\U0001f600", "\u0301\u0316", "\u05b1\u05b0", "\u202e", "\u001b[", "\u0000", "tool", "image ", "Bearer ",
    "sk-", "eyJa.", "-eyJaaaaaaaa", "arn:aws:", "javascript:",
    "data:", "my ", "my a is ", "- - ", "> ", "    ", "```\n", "\n\n", "&amp;", "a_0123456789ab",
    "  a_0123456789ab_1 (", "Credential=", "what is my ", "\"id\":1,", "!!bool ", "!!int ", "!!timestamp a", "1:", ".5",
)  # fmt: skip
ENDS = ("", "!", "\n", "`", " x", '"', "}", "\0")
SIZES = (2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
SUSPICIOUS_S = 0.04
"""Less work than this says little about growth."""
GROWTH_MAX = 3.2
"""Of twice the text: 2 is linear, 4 is quadratic."""


def _message(text: str) -> Any:
    return {"role": "user", "content": [{"text": text}]}


def _result(text: str) -> Any:
    result = {"toolUseId": "a", "status": "success", "content": [{"text": text}]}
    return {"role": "user", "content": [{"toolResult": result}]}


def _head(text: str) -> object:
    return Skill.from_content(f"---\nname: a\ndescription: b\n{text}\n---\nc")


def _asked(text: str) -> None:
    url = f"http://{text}"
    with suppress(HttpRequestError):
        check_address(url, HttpRequest("GET", url, {}))


FUNCTIONS: Mapping[str, Callable[[str], object]] = {
    "a page": markdown_of,
    "the inspector's Markdown": lambda text: [
        wording.rich_text(text[at : at + wording.TEXT_CHARS_MAX]) for at in range(0, len(text), wording.TEXT_CHARS_MAX)
    ],
    "inline marks": lambda text: list(notebook.marked_texts(text, bold=True)),
    "visible text": wording.visible,
    "first words": wording.first_words,
    "Markdown of notebooks": notebook.neutral_markdown,
    "a short repr": notebook.without_login,
    "the head of a skill": _head,
    "a value in the head of a skill": lambda text: _head(f"metadata: {text}"),
    "a skill": lambda text: Skill.from_content(f"---\nname: a\ndescription: b\n---\n{text}"),
    "words of a memory": memory_words,
    "terms of a question": terms_of,
    "indexed words": indexed_words,
    "an address": lambda text: _origin(f"http://{text}"),
    "the name of a document": lambda text: _document_name(f"http://{text}/a.pdf"),
    "a request": _asked,
    "words of a heading": heading_words,
    "facts of an answer": facts_in,
    "a normalized text": normalized_text,
    "an arithmetic expression": lambda text: calculator(text),
    "a path of Gemini": lambda text: gemini_steps("$" + text),
    "a fenced answer": _unfenced,
    "ends of events": lambda text: wire._EVENT_END.findall(text.encode()),
    "the head of an answer": lambda text: transports._HEAD.match(b"{" + text.encode()),
    "the tail of an answer": lambda text: transports._TAIL.search(text.encode()[-transports._ENDS_KEPT :]),
    "a refusal": lambda text: (refusals._ELSEWHERE.search(text), refusals._kinds_in(text)),
    "a scrubbed text": Scrubber(["a secret of enough letters"]).text,
    "secrets of an address": lambda text: list(url_secrets(f"http://h/?{text}")),
    "a label of a picture": lambda text: fitted(text, 200.0),
    "references": lambda text: (named_contents([_result(text)]), read_reference(text)),
    "a line of a transcript": lambda text: line_of(_message(text), 1_000),
    "two conversations": lambda text: list(_stretches([*text.encode()], [*text.encode()[1:], 0])),  # type: ignore[list-item]
}


def work(function: Callable[[str], object], text: str) -> float:
    """CPU seconds of this thread. Errors: whatever the function raises that is no typed error."""
    before = time.thread_time()
    with suppress(RepertoryError):  # A typed error is an answer too; which one is the business of other tests.
        function(text)
    return time.thread_time() - before


def growth(function: Callable[[str], object], atom: str, end: str) -> float:
    """How many times the work grew when the text was doubled, at the first size where that can be told; 0 if the
    longest text takes next to nothing.
    """
    texts = [(atom * (size // len(atom) + 1))[:size] + end for size in SIZES]
    for shorter, longer in pairwise(texts):
        least = work(function, longer)
        if least > SUSPICIOUS_S:
            return min(least, work(function, longer)) / max(min(work(function, shorter) for _ in range(3)), 1e-9)
    return 0.0


def hostile_texts(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Pairs of a function and a text in random order, until the time is over."""
    del folder
    report, end = Report(), time.monotonic() + seconds
    gc.disable()  # A collection takes as long as all that is imported, whatever the text.
    try:
        _measure(rng, report, end)
    finally:
        gc.enable()
    return report


def _measure(rng: random.Random, report: Report, end: float) -> None:
    ways = list(product(FUNCTIONS, ATOMS, ENDS))
    rng.shuffle(ways)
    for name, atom, last in ways:
        if report.acknowledged and time.monotonic() > end:
            break
        if rng.random() < 0.3:
            atom += rng.choice(ATOMS)
        report.acknowledged += 1
        try:
            for count in (1, 7, 400):
                work(FUNCTIONS[name], atom * count + last)
            grown = [growth(FUNCTIONS[name], atom, last)]
            while grown[-1] > GROWTH_MAX and len(grown) < 3:
                grown.append(growth(FUNCTIONS[name], atom, last))
        except Exception as error:  # noqa: BLE001 - What it finds.
            grown = [0.0]
            report.check(holds=False, fault=f"{name}: {json.dumps(atom + last)} raises {error!r}"[:300])
        report.check(min(grown) <= GROWTH_MAX, f"{name}: {json.dumps(atom + last)} grows by {grown}")
        report.found += 1
        report.counts[name] += 1
