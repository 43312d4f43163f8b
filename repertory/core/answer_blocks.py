"""The content blocks of an answer while their pieces arrive.

A block takes deltas with `add` and becomes a content block with `build`. A delta of another known kind is malformed;
kinds and keys that we do not know are ignored, since providers add them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import NoReturn, Protocol, cast

from repertory.core.depth import is_too_deep
from repertory.core.messages import ContentBlock, Json
from repertory.core.sizes import VALUE_BYTES, Scale
from repertory.core.stream_event import malformed, mapping

_DELTA = "contentBlockDelta"
_KINDS = ("text", "citation", "reasoningContent", "toolUse")


class BlockBuilder(Protocol):
    """A content block under construction."""

    ended: bool
    """Whether its `contentBlockStop` has come."""

    def add(self, delta: Mapping[str, object], /) -> int:
        """Take the next piece. Gives what is kept of it, in bytes, with `VALUE_BYTES` more for each value of JSON.
        Errors: `ModelFailed`.
        """
        ...

    def cut_off(self) -> bool:
        """Whether the block is worth nothing because its end is missing."""
        ...

    def build(self) -> ContentBlock:
        """The block from all pieces so far."""
        ...


def builder_for(delta: Mapping[str, object]) -> BlockBuilder | None:
    """The builder of the block that a first delta begins; None for kinds that we do not know."""
    if "text" in delta or "citation" in delta:
        return TextBuilder()
    if "reasoningContent" in delta:
        return ReasoningBuilder()
    if "toolUse" in delta:
        malformed(_DELTA, "a contentBlockStart before the input of a tool use", delta)
    return None


class TextBuilder:
    """Text, with its citations when it has any."""

    __slots__ = ("_citations", "_parts", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._parts: list[str] = []
        self._citations: list[Mapping[str, object]] = []

    def add(self, delta: Mapping[str, object]) -> int:
        text = delta.get("text")
        if type(text) is str:
            self._parts.append(text)
            return _size(text)
        if "citation" in delta:
            citation = mapping(delta["citation"], _DELTA, "citation")
            self._citations.append(citation)
            return _weight(citation)
        if _known(delta):
            malformed(_DELTA, "a string under 'text', since the block is text", delta)
        return 0

    def cut_off(self) -> bool:
        return False

    def build(self) -> ContentBlock:
        text = _well_formed("".join(self._parts))
        if not self._citations:
            return {"text": text}
        return {"citationsContent": {"content": [{"text": text}], "citations": list(self._citations)}}


class ReasoningBuilder:
    """What the model thought before it spoke. Its signature and redacted bytes go back to the provider unchanged."""

    __slots__ = ("_parts", "_redacted", "_signature", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._parts: list[str] = []
        self._signature: list[str] = []
        self._redacted: list[bytes] = []

    def add(self, delta: Mapping[str, object]) -> int:
        if "reasoningContent" not in delta and not _known(delta):
            return 0
        size = 0
        piece = mapping(delta.get("reasoningContent"), _DELTA, "reasoningContent")
        for key, value in piece.items():
            match key, value:
                case "text", str():
                    self._parts.append(value)
                    size += _size(value)
                case "signature", str():
                    self._signature.append(value)
                    size += _size(value)
                case "redactedContent", bytes():
                    self._redacted.append(value)
                    size += len(value)
                case "text" | "signature" | "redactedContent", _:
                    malformed(_DELTA, "strings and bytes under 'reasoningContent'", piece)
                case _:
                    pass
        return size

    def cut_off(self) -> bool:
        return False

    def build(self) -> ContentBlock:
        if self._redacted:
            return {"reasoningContent": {"redactedContent": b"".join(self._redacted)}}
        reasoning = {"text": _well_formed("".join(self._parts))}
        if self._signature:
            reasoning["signature"] = "".join(self._signature)
        return {"reasoningContent": {"reasoningText": reasoning}}


class ToolUseBuilder:
    """A tool use whose input arrives as pieces of JSON text. No text at all means `{}`."""

    __slots__ = ("_name", "_parts", "_read", "ended", "use_id")

    def __init__(self, use_id: str, name: str) -> None:
        self.ended = False
        self.use_id = use_id
        self._name = name
        self._parts: list[str] = []
        self._read: tuple[Json, str | None] | None = None
        """The input, and its raw text when that is no JSON; None until the answer has ended."""

    def add(self, delta: Mapping[str, object]) -> int:
        if "toolUse" not in delta and not _known(delta):
            return 0
        piece = mapping(delta.get("toolUse"), _DELTA, "toolUse").get("input", "")
        if type(piece) is not str:
            malformed(_DELTA, "a string under 'toolUse.input'", piece)
        self._parts.append(piece)
        # There are no more values in JSON than commas and opening brackets, and one.
        return _size(piece) + VALUE_BYTES * sum(map(piece.count, ",[{"))

    def cut_off(self) -> bool:
        return self.invalid_input() is not None or (not self.ended and not any(map(str.strip, self._parts)))

    def invalid_input(self) -> str | None:
        """The raw text when it is not JSON, else None. Ask when there are no more pieces to come."""
        return self._whole()[1]

    def build(self) -> ContentBlock:
        return {"toolUse": {"toolUseId": self.use_id, "name": self._name, "input": self._whole()[0]}}

    def _whole(self) -> tuple[Json, str | None]:
        if self._read is None:
            raw = "".join(self._parts).strip()
            try:
                self._read = _parsed(raw), None
            except (ValueError, RecursionError):
                self._read = {}, _well_formed(raw)
        return self._read


def _known(delta: Mapping[str, object]) -> bool:
    return any(kind in delta for kind in _KINDS)


def _parsed(raw: str) -> Json:
    """The JSON value. `ValueError` or `RecursionError` when it is none, too large or deep, or cannot be UTF-8."""
    if not raw:
        return {}
    value = cast("Json", _STRICT_JSON.decode(raw))
    if "\\u" in raw or not raw.isascii():
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is refused here
    if is_too_deep(value):
        raise ValueError("nested too deeply")
    return value


def _not_json(constant: str) -> NoReturn:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


_STRICT_JSON = json.JSONDecoder(parse_constant=_not_json)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def _weight(value: object) -> int:
    scale = Scale(sys.maxsize)
    scale.put(value)
    return scale.weight


def _well_formed(text: str) -> str:
    """The text with surrogate pairs joined (deltas may split them) and lone halves replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
