"""The parts of a conversation that later requests leave out, after a service has refused a request for them.

A stored picture that the service cannot read would be sent with every later call, and each would be refused. So after
the first refusal the model is shown a note in its place. The message itself stays in the history.

Services rarely say which part they mean. If the error has the numbers of a message and its block, that part is meant.
Otherwise it is the parts of the kind that it speaks of: those which no answer has followed yet, or all of them if there
are none of these. A refusal without any detail is about the media that no answer has followed.

A filter that refuses a prompt usually means the newest one. If it has refused several in a row, it means something that
was said before, such as an answer of another provider: then everything before them is left out.

Source: the messages of refusals, as services wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct

from repertory.core.messages import ContentBlock, Message, ToolResult, is_filler
from repertory.core.provider_content import container_of
from repertory.errors import ModelFailed, ModelRefused, RepertoryError, Unavailable

_NOT_ABOUT_CONTENT = frozenset((401, 402, 403, 407, 429))
"""The statuses of refusals for a key, for money or for pace."""
_OF_CONTENT = frozenset((0, 200, 400, 422))
"""The statuses of a refusal that may have no detail; 0 where the service gave none."""
_MEDIA = ("image", "document", "video", "audio")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "picture", "jpeg", "png"),
    "document": ("document", "pdf", "file"),
    "video": ("video",),
    "audio": ("audio", "sound"),
    "container": ("container",),
}
_FIELDS: Mapping[str, str] = {
    "image_url": "image",
    "input_image": "image",
    "file_data": "document",
    "input_file": "document",
    "input_audio": "audio",
}
"""Fields of requests that hold a medium."""
_ANY_MEDIUM = ("media", "attachment", "base64", "inline_data", "inlinedata", "mime", "multimodal")
_ELSEWHERE = re.compile(
    r"\btools?[\[.(]|\(tool |\bfunctions?[ .]['\"]|\bfunction_declarations|\bschema\b|tool_choice|\bmodalities\b"
    r"|response_format|\bparams?\."
)
"""Words of refusals that are about another part of the request: its tools, its settings."""
_WITHOUT_DETAIL = re.compile(
    r"must be a string|invalid argument|validation error|unable to process the (?:provided )?input|malformed input"
    r"|bad request"
)
"""Words of refusals that are about content and do not say which."""
_CANNOT_SEE = (
    "image input is not supported",
    "audio input is not supported",
    "support image input",
    "support images",
    "not a multimodal model",
    "mmproj",
    "failed to load image",
    "missing data required for image",
    "unable to make llava embedding",
)
"""Words of servers of open models, with a status of 500 or more, when the model cannot see.

Source: ggml-org/llama.cpp issues 13566 and 19917, and Ollama's and vLLM's messages.
"""
_REFUSALS_IN_A_ROW = 2
"""The number of prompts refused in a row by a filter after which the reason is looked for before them."""
_REFUSED_PROMPT = "(A message stood here that the model's provider refused to read. It is left out.)"

_REFUSED_PART = "(A part is left out that the model's provider refused.)"


class RefusedParts(Struct, frozen=True, kw_only=True):
    """The refused parts of a conversation, which later requests leave out."""

    parts: tuple[str, ...]
    """The refused parts, such as `messages[2].content[0] (image)`."""
    instead: Mapping[int, Message]
    """The messages with notes in place of those parts, by position among the shown messages."""


def refusal_of(error: Exception, visible: Sequence[Message]) -> RefusedParts | None:
    """The parts that the service has refused; None if its refusal is about nothing in these messages."""
    if not isinstance(error, ModelFailed):
        return None
    if error.fields.get("refused_prompt"):
        return _made(visible, _refused_by_filter(visible), whole=True)
    status = error.fields.get("status", 0)
    if isinstance(error, ModelRefused) or status in _NOT_ABOUT_CONTENT:
        return None
    text, found = str(error).lower(), list(_parts(visible))
    named = [each for each in found if each.message == error.fields.get("message")]
    for key in ("content_block", "result_part"):
        at = error.fields.get(key)
        named = [each for each in named if (each.block if key == "content_block" else each.part) == at] or named
    if named:
        return _made(visible, named)
    if _ELSEWHERE.search(text):
        return None
    since = _first_unanswered(visible)
    kinds = _kinds_in(text)
    of_kind = [each for each in found if each.kind in kinds]
    if not kinds and status in _OF_CONTENT and _WITHOUT_DETAIL.search(text):
        return _made(visible, [each for each in found if each.message >= since and each.kind in _MEDIA])
    # What an answer has followed was accepted once, and is suspected last.
    return _made(visible, [each for each in of_kind if each.message >= since] or of_kind)


def refuses_medium(message: str) -> bool:
    """True if a server says in this way that its model takes no such medium, whatever the status."""
    text = message.lower()
    return any(words in text for words in _CANNOT_SEE)


def _kinds_in(text: str) -> set[str]:
    kinds = {kind for kind, words in _WORDS.items() if any(_has_word(text, word) for word in words)}
    kinds |= {kind for field, kind in _FIELDS.items() if field in text}
    return set(_MEDIA) if not kinds and any(word in text for word in _ANY_MEDIUM) else kinds


def _has_word(text: str, word: str) -> bool:
    """True if the word stands there by itself: not in a name such as `generate_image` or `'image'`."""
    return re.search(rf"(?<![a-z0-9_\-'\"`/.]){word}s?(?![a-z0-9_\-'\"`/])", text) is not None


def _refused_by_filter(visible: Sequence[Message]) -> list[_BlockPosition]:
    since = _first_unanswered(visible)
    notes = sum(block.get("text") == _REFUSED_PROMPT for message in visible[since:] for block in message["content"])
    if notes >= _REFUSALS_IN_A_ROW and (before := list(_blocks(visible, 0, since))):
        return before
    return list(_blocks(visible, since, len(visible)))


class _BlockPosition(Struct, frozen=True):
    """A part that can be left out."""

    message: int
    block: int
    kind: str
    part: int | None = None
    """The part's number in a tool result; None if it is in none."""

    def __str__(self) -> str:
        inner = "" if self.part is None else f".toolResult.content[{self.part}]"
        return f"messages[{self.message}].content[{self.block}]{inner} ({self.kind})"


def _parts(visible: Sequence[Message]) -> Iterator[_BlockPosition]:
    """The media of the messages, those in tool results too, and the containers that answers name."""
    for at, message in enumerate(visible):
        for number, block in enumerate(message["content"]):
            kind = next((kind for kind in _MEDIA if kind in block), None)
            if kind is not None:
                yield _BlockPosition(at, number, kind)
            elif "toolResult" in block:
                for inner, part in enumerate(block["toolResult"]["content"]):
                    if (kind := next((kind for kind in _MEDIA if kind in part), None)) is not None:
                        yield _BlockPosition(at, number, kind, inner)
            elif "providerContent" in block and container_of(block["providerContent"]["content"]) is not None:
                yield _BlockPosition(at, number, "container")


def _first_unanswered(visible: Sequence[Message]) -> int:
    """The position of the first message that no answer of a model has followed; fillers are none."""
    for at in range(len(visible) - 1, -1, -1):
        if visible[at]["role"] == "assistant" and not is_filler(visible[at]):
            return at + 1
    return 0


def _blocks(visible: Sequence[Message], start: int, end: int) -> Iterator[_BlockPosition]:
    """The blocks of messages that hold more than a note."""
    for at in range(start, end):
        for number, block in enumerate(visible[at]["content"] if not is_filler(visible[at]) else ()):
            if block.get("text") != _REFUSED_PROMPT:
                kind = {"toolResult": "tool result", "toolUse": "tool use"}.get(next(iter(block), ""))
                yield _BlockPosition(at, number, kind or next(iter(block), "block"))


def _made(visible: Sequence[Message], refused: Sequence[_BlockPosition], *, whole: bool = False) -> RefusedParts | None:
    if not refused:
        return None
    instead: dict[int, Message] = {}
    for at in dict.fromkeys(each.message for each in refused):
        of_message = {(each.block, each.part): each for each in refused if each.message == at}
        content = [_omitted(block, number, of_message) for number, block in enumerate(visible[at]["content"])]
        instead[at] = {**visible[at], "content": _once(content) if whole else content}
    return RefusedParts(parts=tuple(map(str, refused)), instead=instead)


def _once(content: list[ContentBlock]) -> list[ContentBlock]:
    """The blocks, with one note in the place of several equal ones."""
    return [block for number, block in enumerate(content) if block not in content[:number]]


def _omitted(
    block: ContentBlock, number: int, refused: Mapping[tuple[int, int | None], _BlockPosition]
) -> ContentBlock:
    own = refused.get((number, None))
    if "toolResult" in block:
        result = block["toolResult"]
        if own is not None:
            return _result(result, [{"text": _REFUSED_PROMPT}])
        parts = [
            _note_of(part, refused[number, inner].kind) if (number, inner) in refused else part
            for inner, part in enumerate(result["content"])
        ]
        return block if all(map(_is, parts, result["content"])) else _result(result, parts)
    if own is None:
        return block
    if "toolUse" in block:
        return {"toolUse": {**block["toolUse"], "input": {}}}  # It stays, since its result needs it.
    return cast("ContentBlock", _note_of(cast("Mapping[str, object]", block), own.kind))


def _result(result: ToolResult, content: list[dict[str, object]]) -> ContentBlock:
    return {"toolResult": {**result, "content": content}}


def _note_of(part: Mapping[str, object], kind: str) -> dict[str, object]:
    if kind not in _MEDIA:
        return {"text": _REFUSED_PART if kind == "container" else _REFUSED_PROMPT}
    name = cast("Mapping[str, object]", part[kind]).get("name")
    named = f" named {name!r}" if isinstance(name, str) else ""
    article = "An" if kind in ("image", "audio") else "A"
    what = "audio recording" if kind == "audio" else kind
    return {"text": f"({article} {what}{named} stood here. The model's provider refused it, so it is left out.)"}


def _is(one: object, other: object) -> bool:
    return one is other


def raised_by_model(error: Exception | None) -> Exception | None:
    """The exception of a client library, or of a program's model, that this error was made of; None for errors that the
    SDK whose users we serve has as well, and for one that no coroutine may raise.
    """
    cause = error.__cause__ if isinstance(error, ModelFailed | Unavailable) else None
    never = RepertoryError | StopIteration | StopAsyncIteration
    return cause if isinstance(cause, Exception) and not isinstance(cause, never) else None


def naming(error: RepertoryError, refusal: RefusedParts) -> RepertoryError:
    """The same error, which names what the service refused and says what becomes of it."""
    parts = list(refusal.parts)
    named = type(error)(f"{error}; later calls leave out what was refused", parts=parts)
    named.fields = {**error.fields, "parts": parts}
    named.__cause__ = error.__cause__ or error
    return named
