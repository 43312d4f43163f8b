"""Questions to a person, as callers of protocols that know only messages see them, and their answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from repertory.core.interrupts import Interrupt, question_words
from repertory.core.limits import is_too_deep
from repertory.errors import InterruptsWaiting

if TYPE_CHECKING:
    from repertory.core.messages import InterruptResponseContent, Json
    from repertory.core.result import AgentResult

_BETWEEN = "/"
"""The separator of a turn's token and an interrupt's id, which no token has."""


class Question(Struct, frozen=True):
    """An interrupt without an answer."""

    number: int
    """The question's number, counted from 1 in the order asked."""
    id: str
    name: str
    reason: Json
    expires_at: float | None = None

    @property
    def text(self) -> str:
        """The question in words."""
        return question_words(self.name, self.reason)


def asked_questions(result: AgentResult) -> list[Question]:
    """The questions that the turn waits for; empty unless it does."""
    return numbered_questions(result.interrupts) if result.stop_reason == "interrupt" else []


def numbered_questions(interrupts: Iterable[Interrupt]) -> list[Question]:
    """Questions to a person, in the order asked."""
    return [Question(n, each.id, each.name, each.reason, each.expires_at) for n, each in enumerate(interrupts, 1)]


def question_text(questions: Sequence[Question]) -> str:
    """The questions in words, and how one text answers all of them."""
    if len(questions) == 1:
        return f"Input is needed. {questions[0].text}"
    asked = "\n".join(f"{each.number}. {each.text}" for each in questions)
    return f'Input is needed. Answer with a JSON object by number, such as {{"1": "yes", "2": "no"}}:\n{asked}'


def answered_by(text: str, interrupts: Sequence[Interrupt]) -> list[InterruptResponseContent]:
    """A text as responses: itself to a single question, else a JSON object by number.

    Errors: `InterruptsWaiting` when it does not answer each question, with what is asked.
    """
    asked = numbered_questions(interrupts)
    if len(asked) == 1:
        return [response_to(asked[0].id, text)]
    given = _object_in(text)
    if given is None or set(given) != {str(each.number) for each in asked}:
        raise InterruptsWaiting(question_text(asked))
    return [response_to(each.id, given[str(each.number)]) for each in asked]


def response_to(interrupt_id: str, response: object) -> InterruptResponseContent:
    """A response, as a block of a prompt."""
    return {"interruptResponse": {"interruptId": interrupt_id, "response": response}}


def question_name(token: str, interrupt_id: str) -> str:
    """The id of a question that also tells which turn asks it, so that an answer that is sent twice counts once."""
    return f"{token}{_BETWEEN}{interrupt_id}"


def read_question_name(given: str) -> tuple[str, str] | None:
    """The token and the interrupt id; None for another text."""
    token, between, interrupt_id = given.partition(_BETWEEN)
    return (token, interrupt_id) if between and token and interrupt_id else None


def _object_in(text: str) -> Mapping[str, object] | None:
    try:
        found = cast("object", json.loads(text))
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, object]", found) if not is_too_deep(found) and isinstance(found, dict) else None
