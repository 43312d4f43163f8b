"""After a service has refused a request for something in the conversation: which parts are left out from then on.

A stored picture that the service cannot read would be sent with every later call, and each would be refused. So after
the first refusal the model is shown a note in its place. The message itself stays in the history.

Services rarely say which part they mean. If the error has the numbers of a message and its block, that part is meant.
Otherwise it is the parts of the kind that it speaks of: those which no answer has followed yet, or all of them if there
are none of these.

Source: the messages of refusals, as services wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from msgspec import Struct

from repertory.core.messages import ContentBlock, Message, ToolResult, is_filler
from repertory.core.provider_content import container_of
from repertory.errors import ModelFailed, ModelRefused

_STATUSES = frozenset((0, 200, 400, 413, 415, 422))
"""The statuses of a refusal of the request's content; 0 where the service gave none."""
_MEDIA = ("image", "document", "video", "audio")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "image": ("image", "picture", "jpeg", "png"),
    "document": ("document", "pdf", "file"),
    "video": ("video",),
    "audio": ("audio", "sound"),
    "container": ("container",),
}
_ANY_MEDIUM = ("media", "attachment", "base64", "inline_data", "inlinedata", "mime")
_REFUSED_PROMPT = "(A message stood here that the model's provider refused to read. It is left out.)"

_REFUSED_PART = "(A part is left out that the model's provider refused.)"


class RefusedParts(Struct, frozen=True, kw_only=True):
    """What is left out from now on."""

    parts: tuple[str, ...]
    """The refused parts, such as `messages[2].content[0] (image)`."""
    instead: Mapping[int, Message]
    """By position among the shown messages: the message with notes in the place of those parts."""


def refusal_of(error: Exception, shown: Sequence[Message]) -> RefusedParts | None:
    """What the service's refusal is about; None if it is about nothing in these messages."""
    if not isinstance(error, ModelFailed):
        return None
    if error.fields.get("refused_prompt"):
        return _made(shown, list(_unanswered_blocks(shown)), whole=True)
    if isinstance(error, ModelRefused) or error.fields.get("status", 0) not in _STATUSES:
        return None
    text = str(error).lower()
    found = list(_parts(shown))
    at, block = error.fields.get("message"), error.fields.get("content_block")
    there = [place for place in found if place.message == at]
    exact = [place for place in there if place.block == block]
    return _made(shown, exact or there) or _by_words(shown, found, text)


def _by_words(shown: Sequence[Message], found: Sequence[_Place], text: str) -> RefusedParts | None:
    kinds = {kind for kind, words in _WORDS.items() if any(_has_word(text, word) for word in words)}
    if not kinds and any(word in text for word in _ANY_MEDIUM):
        kinds = set(_MEDIA)
    of_kind = [place for place in found if place.kind in kinds]
    since = _first_unanswered(shown)
    return _made(shown, [place for place in of_kind if place.message >= since] or of_kind)


def _has_word(text: str, word: str) -> bool:
    return re.search(rf"(?<![a-z]){word}s?(?![a-z])", text) is not None


class _Place(Struct, frozen=True):
    """A part that can be left out."""

    message: int
    block: int
    kind: str
    part: int | None = None
    """Its number in a tool result; None if it is no part of one."""

    def __str__(self) -> str:
        inner = "" if self.part is None else f".toolResult.content[{self.part}]"
        return f"messages[{self.message}].content[{self.block}]{inner} ({self.kind})"


def _parts(shown: Sequence[Message]) -> Iterator[_Place]:
    """The media of the messages, those in tool results too, and the containers that answers name."""
    for at, message in enumerate(shown):
        for number, block in enumerate(message["content"]):
            kind = next((kind for kind in _MEDIA if kind in block), None)
            if kind is not None:
                yield _Place(at, number, kind)
            elif "toolResult" in block:
                for inner, part in enumerate(block["toolResult"]["content"]):
                    if (kind := next((kind for kind in _MEDIA if kind in part), None)) is not None:
                        yield _Place(at, number, kind, inner)
            elif "providerContent" in block and container_of(block["providerContent"]["content"]) is not None:
                yield _Place(at, number, "container")


def _first_unanswered(shown: Sequence[Message]) -> int:
    """The position of the first message that no answer of a model has followed; fillers are none."""
    for at in range(len(shown) - 1, -1, -1):
        if shown[at]["role"] == "assistant" and not is_filler(shown[at]):
            return at + 1
    return 0


def _unanswered_blocks(shown: Sequence[Message]) -> Iterator[_Place]:
    since = _first_unanswered(shown)
    for at in range(since, len(shown)):
        if shown[at]["role"] == "user":
            for number, block in enumerate(shown[at]["content"]):
                yield _Place(at, number, "tool result" if "toolResult" in block else next(iter(block), "block"))


def _made(shown: Sequence[Message], places: Sequence[_Place], *, whole: bool = False) -> RefusedParts | None:
    if not places:
        return None
    instead: dict[int, Message] = {}
    for at in dict.fromkeys(place.message for place in places):
        of_message = {(place.block, place.part): place for place in places if place.message == at}
        content = [_left_out(block, number, of_message) for number, block in enumerate(shown[at]["content"])]
        instead[at] = {**shown[at], "content": _once(content) if whole else content}
    return RefusedParts(parts=tuple(map(str, places)), instead=instead)


def _once(content: list[ContentBlock]) -> list[ContentBlock]:
    """The blocks, with one note in the place of several equal ones."""
    return [block for number, block in enumerate(content) if block not in content[:number]]


def _left_out(block: ContentBlock, number: int, places: Mapping[tuple[int, int | None], _Place]) -> ContentBlock:
    place = places.get((number, None))
    if "toolResult" in block:
        result = block["toolResult"]
        if place is not None:
            return _result(result, [{"text": _REFUSED_PROMPT}])
        parts = [
            _note_of(part, places[number, inner].kind) if (number, inner) in places else part
            for inner, part in enumerate(result["content"])
        ]
        return block if all(map(_is, parts, result["content"])) else _result(result, parts)
    if place is None:
        return block
    return cast("ContentBlock", _note_of(cast("Mapping[str, object]", block), place.kind))


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
