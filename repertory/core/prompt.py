"""What a caller said, in one of the forms that a call accepts, as messages or as answers to interrupts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.core.limits import PROMPT_BYTES
from repertory.core.messages import Json, Message, copy_message
from repertory.core.pairing import check_message, check_messages
from repertory.core.sizes import check_size
from repertory.core.state import as_json
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock


_BOUND = "limits['prompt_bytes']"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """New messages, in order; empty when the caller said None and wants to go on."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers to interrupts: interrupt id to response."""

    responses: Mapping[str, Json]


def read_prompt(prompt: object, bytes_max: int = PROMPT_BYTES) -> Said | Answers:
    """Tell the forms of a prompt apart.

    A string is one user message; a list of content blocks is one user message; a list of messages is taken as it is;
    None is no message; a list of `{"interruptResponse": {"interruptId", "response"}}` is answers.
    What is given is copied. Errors: `Invalid` saying what was given; `TooLarge` for what weighs more than `bytes_max`
    (`core/sizes.py`).
    """
    if prompt is None:
        return Said(messages=())
    check_size(prompt, bytes_max, "the prompt is too large; say less, or put it where a tool can read it", _BOUND)
    if isinstance(prompt, str):
        if not prompt.strip():
            raise Invalid("a prompt needs some text; pass None to go on without a new message")
        return Said(messages=({"role": "user", "content": [{"text": prompt}]},))
    if not isinstance(prompt, list | tuple):
        raise Invalid(
            "a prompt is text, content blocks, messages, interrupt responses or None", got=type(prompt).__name__
        )
    items = list(cast("Sequence[object]", prompt))
    if not items:
        raise Invalid("a prompt needs at least one content block; pass None to go on without a new message")
    if any(not isinstance(item, dict) for item in items):
        raise Invalid("a prompt list holds content blocks or messages, which are dictionaries")
    blocks = cast("list[dict[str, object]]", items)
    if all("interruptResponse" in block for block in blocks):
        return Answers(responses=_answers(blocks))
    if all("role" in block for block in blocks):
        return Said(messages=tuple(map(copy_message, check_messages(blocks))))
    if any("role" in block or "interruptResponse" in block for block in blocks):
        raise Invalid("a prompt list holds content blocks, or messages, or interrupt responses, not a mixture")
    content = cast("list[ContentBlock]", blocks)
    return Said(messages=(copy_message(check_message({"role": "user", "content": content}, "prompt")),))


def _answers(blocks: Sequence[dict[str, object]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for block in blocks:
        interrupt_id, response = _answer(block["interruptResponse"])
        if found.setdefault(interrupt_id, response) != response:
            raise Invalid("an interrupt has one answer", interrupt=interrupt_id)
    return found


def _answer(response: object) -> tuple[str, Json]:
    fields = cast("dict[str, object]", response) if isinstance(response, dict) else {}
    interrupt_id = fields.get("interruptId")
    if not isinstance(interrupt_id, str) or "response" not in fields:
        raise Invalid("an interrupt response is {'interruptId': ..., 'response': ...}")
    return interrupt_id, as_json(fields["response"])
