"""Parts of A2A messages as content blocks and back, and the questions and answers that stand in them.

The two directions belong together: what `parts_of` writes, `prompt_of` reads as the same blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from repertory.core.interrupts import Interrupt
from repertory.core.json_bytes import to_base64
from repertory.core.media import MEDIA_TYPES, media_block, plain_name, read_base64
from repertory.errors import Invalid
from repertory.service.decisions.questions import Question, answered_by, numbered_questions, question_text, response_to

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock, InterruptResponseContent, Json, Prompt

TaskJson: TypeAlias = "dict[str, Json]"
PartJson: TypeAlias = "Mapping[str, object]"
"""A part as JSON, with the protocol's own names."""
INTERRUPTS_KEY = "interrupts"
"""The key of a data part that lists the questions that a task waits for."""
INTERRUPT_RESPONSE_KEY = "interruptResponse"
"""The key of a data part that answers one question."""


def prompt_of(parts: Sequence[PartJson]) -> list[ContentBlock]:
    """A message's parts as content blocks, without empty texts. Errors: `Invalid` for no content, and for what cannot
    be read.
    """
    try:
        blocks = [_block(part) for part in parts]
    except Invalid as error:
        raise Invalid(f"a part cannot be read: {error}") from None
    blocks = [block for block in blocks if block.get("text") != ""]
    if not blocks:
        raise Invalid("the message has no content")
    return blocks


def _block(part: PartJson) -> ContentBlock:
    match part:
        case {"kind": "text", "text": str(text)}:
            return {"text": text if text.strip() else ""}
        case {"kind": "data", "data": dict()}:
            # Without indentation, which makes deep values many times as large.
            return {"text": f"Structured data:\n{json.dumps(part['data'], ensure_ascii=False)}"}
        case {"kind": "file", "file": dict()}:
            return _file(object_in(part["file"]))
        case _:
            raise Invalid("a part is text, data or a file")


def _file(file: Mapping[str, object]) -> ContentBlock:
    mime_type, name = str(file.get("mimeType") or ""), str(file.get("name") or "file")
    match file:
        case {"bytes": str(data)}:
            kind = mime_type.partition(";")[0].strip().lower()
            return media_block(read_base64(data, "a file"), kind, plain_name(name))
        case {"uri": str(uri)}:
            return {"text": f"File {name} ({mime_type or 'unknown type'}) at {uri}"}
        case _:
            raise Invalid("a file has bytes or a uri")


def parts_of(prompt: Prompt) -> list[TaskJson]:
    """A prompt as parts: texts, media and answers to interrupts. Of messages those of the last user message.

    Errors: `Invalid` for a prompt without any, and for media without bytes.
    """
    if isinstance(prompt, str):
        return [part_of_text(prompt)]
    blocks = cast("list[Mapping[str, object]]", list(prompt or ()))
    if blocks and "role" in blocks[0]:
        asked = [each["content"] for each in blocks if each["role"] == "user"]
        blocks = cast("list[Mapping[str, object]]", asked[-1]) if asked else []
    parts = [part for block in blocks for part in _part(block)]
    if not parts:
        raise Invalid("a prompt is required: this one has nothing that can be sent")
    return parts


def part_of_text(text: str) -> TaskJson:
    """A text as a part."""
    return {"kind": "text", "text": text}


def _part(block: Mapping[str, object]) -> list[TaskJson]:
    match block:
        case {"text": str(text)}:
            return [part_of_text(text)]
        case {"interruptResponse": answer}:
            return [{"kind": "data", "data": {INTERRUPT_RESPONSE_KEY: cast("Json", answer)}}]
        case _:
            return [
                _file_part(kind, object_in(block[kind])) for kind in ("image", "video", "document") if kind in block
            ]


def _file_part(kind: str, media: Mapping[str, object]) -> TaskJson:
    data, form = object_in(media.get("source")).get("bytes"), str(media["format"])
    if not isinstance(data, bytes):
        raise Invalid("media that are sent over A2A have bytes", kind=kind)
    mime_type = MEDIA_TYPES.get(form, f"{'application' if kind == 'document' else kind}/{form}")
    name = f"{media.get('name', kind)}.{form}"
    return {"kind": "file", "file": {"bytes": to_base64(data), "mimeType": mime_type, "name": name}}


def asking_parts(asked: Sequence[Question]) -> list[Json]:
    """Questions to a person: as text, and as data with the ids that answers need."""
    listed: list[Json] = [{"interruptId": each.id, "name": each.name, "reason": each.reason} for each in asked]
    return [part_of_text(question_text(asked)), {"kind": "data", "data": {INTERRUPTS_KEY: listed}}]


def asked_in(parts: Sequence[PartJson]) -> list[Interrupt]:
    """The questions in the parts of a task that waits; what is none is left out."""
    lists = [object_in(part.get("data")).get(INTERRUPTS_KEY) for part in parts]
    given = [object_in(each) for some in lists if isinstance(some, list) for each in cast("list[object]", some)]
    return [
        Interrupt(str(each["interruptId"]), str(each.get("name", "")), cast("Json", each.get("reason")))
        for each in given
        if "interruptId" in each
    ]


def blocks_sent(parts: Sequence[PartJson]) -> list[ContentBlock]:
    """The content that an agent has sent: its texts, pieces of one, joined; then its data without questions."""
    text = "".join(str(part.get("text", "")) for part in parts if part.get("kind") == "text")
    blocks: list[ContentBlock] = [{"text": text}] if text else []
    data = [object_in(part.get("data")) for part in parts if part.get("kind") == "data"]
    return [*blocks, *({"text": str(each)} for each in data if INTERRUPTS_KEY not in each)]


def answers_by_data(part: PartJson) -> bool:
    """True for a part that answers a question by the question's id."""
    return INTERRUPT_RESPONSE_KEY in object_in(part.get("data"))


def answers_in_parts(parts: Sequence[PartJson], asked: Sequence[Interrupt]) -> list[InterruptResponseContent]:
    """A message's parts as answers to the questions of its task: data parts, or one text.

    Errors: `Invalid` for parts that are none, and for two answers to a question, or one that nobody asked.
    """
    given = [part for part in parts if answers_by_data(part)]
    if not given:
        texts = [str(part["text"]) for part in parts if part.get("kind") == "text" and "text" in part]
        if not texts or len(texts) != len(parts):
            raise Invalid(question_text(numbered_questions(asked)))
        return answered_by("".join(texts), asked)
    if len(given) != len(parts):
        raise Invalid("answers to interrupts stand alone in a message")
    answers = [_answer(object_in(part["data"])[INTERRUPT_RESPONSE_KEY]) for part in given]
    ids = [each["interruptResponse"]["interruptId"] for each in answers]
    if not {each.id for each in asked}.issuperset(ids) or len(set(ids)) < len(ids):
        raise Invalid("an answer is to one open interrupt, once")
    return answers


def _answer(given: object) -> InterruptResponseContent:
    fields = object_in(given)
    interrupt_id, response = fields.get("interruptId"), fields.get("response")
    if not isinstance(interrupt_id, str) or response is None:
        raise Invalid("an answer is {interruptResponse: {interruptId: text, response: value}}")
    return response_to(interrupt_id, response)


def object_in(value: object) -> Mapping[str, object]:
    """The value as an object; an empty one for anything else."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
