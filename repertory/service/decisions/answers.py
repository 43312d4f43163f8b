"""The forms in which a person answers a question on a page: which answers it offers, and the answer that was sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import msgspec

from repertory.core.interrupts import UNKNOWN_OUTCOME, UNKNOWN_STEP
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json

AnswerForm: TypeAlias = Literal["outcome", "approval", "open"]
"""The form for a question: whether a tool took effect that was cut off, whether a tool may run, or any other."""
_APPROVALS = ("strands:human-in-the-loop", "mcp_approval_request")
"""The names of questions whose answer is a yes or a no."""
ANSWER_CHARS_MAX = 32 * 1024
"""The longest answer that a page takes, in characters."""
CHOICES = ("yes", "no", "retry", "fail")
"""The answers that are buttons."""


def answer_form(asked: Interrupt) -> AnswerForm:
    """The form that suits a question."""
    if asked.name == UNKNOWN_OUTCOME or asked.name.startswith(f"{UNKNOWN_STEP}:"):
        return "outcome"
    return "approval" if asked.name in _APPROVALS else "open"


def answer_of_form(choice: str, text: str) -> Json:
    """The answer that a form sent. `choice`: one of `CHOICES`, which is the answer; or the kind of the text: `text`,
    `json`, or `result`, that of a tool. Errors: `Invalid`.
    """
    if choice in CHOICES:
        return choice
    if len(text) > ANSWER_CHARS_MAX:
        raise Invalid(f"an answer has at most {ANSWER_CHARS_MAX} characters here", got=len(text))
    text = text.replace("\r\n", "\n")  # A form sends lines so.
    match choice:
        case "text" if text.strip():
            return text
        case "result" if text.strip():
            return {"result": text}
        case "json":
            try:
                return cast("Json", msgspec.json.decode(text))
            except (msgspec.DecodeError, RecursionError, ValueError) as error:
                raise Invalid(f"the answer is no JSON: {error}. Go back, and correct it, or send it as text") from None
        case "text" | "result":
            raise Invalid("the answer is empty: go back, and write one")
        case _:
            raise Invalid("choose an answer: go back, and press one of the buttons")
