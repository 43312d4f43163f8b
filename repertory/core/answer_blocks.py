"""The content blocks of an answer while their pieces arrive.

A block takes deltas with `add` and becomes a content block with `build`. A delta of another known kind is malformed;
kinds and keys that we do not know are ignored, since providers add them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn, Protocol, cast

from repertory.core.depth import is_too_deep
from repertory.core.messages import ContentBlock, Json
from repertory.core.stream_event import malformed, mapping

_DELTA = "contentBlockDelta"
_KINDS = ("text", "citation", "reasoningContent", "toolUse")


class BlockBuilder(Protocol):
    """A content block under construction."""

    ended: bool
    """Whether its `contentBlockStop` has come."""

    def add(self, delta: Mapping[str, object], /) -> None:
        """Take the next piece. Errors: `ModelFailed`."""
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

    def add(self, delta: Mapping[str, object]) -> None:
        text = delta.get("text")
        if type(text) is str:
            self._parts.append(text)
        elif "citation" in delta:
            self._citations.append(mapping(delta["citation"], _DELTA, "citation"))
        elif _known(delta):
            malformed(_DELTA, "a string under 'text', since the block is text", delta)

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

    def add(self, delta: Mapping[str, object]) -> None:
        if "reasoningContent" not in delta and not _known(delta):
            return
        piece = mapping(delta.get("reasoningContent"), _DELTA, "reasoningContent")
        for key, value in piece.items():
            match key, value:
                case "text", str():
                    self._parts.append(value)
                case "signature", str():
                    self._signature.append(value)
                case "redactedContent", bytes():
                    self._redacted.append(value)
                case "text" | "signature" | "redactedContent", _:
                    malformed(_DELTA, "strings and bytes under 'reasoningContent'", piece)
                case _:
                    pass

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

    __slots__ = ("_name", "_parts", "ended", "use_id")

    def __init__(self, use_id: str, name: str) -> None:
        self.ended = False
        self.use_id = use_id
        self._name = name
        self._parts: list[str] = []

    def add(self, delta: Mapping[str, object]) -> None:
        if "toolUse" not in delta and not _known(delta):
            return
        piece = mapping(delta.get("toolUse"), _DELTA, "toolUse").get("input", "")
        if type(piece) is not str:
            malformed(_DELTA, "a string under 'toolUse.input'", piece)
        self._parts.append(piece)

    def cut_off(self) -> bool:
        raw = self._raw()
        return self.invalid_input() is not None or (not raw and not self.ended)

    def invalid_input(self) -> str | None:
        """The raw text when it is not JSON, else None."""
        try:
            _parsed(self._raw())
        except (ValueError, RecursionError):
            return _well_formed(self._raw())
        return None

    def build(self) -> ContentBlock:
        try:
            value = _parsed(self._raw())
        except (ValueError, RecursionError):
            value = {}
        return {"toolUse": {"toolUseId": self.use_id, "name": self._name, "input": value}}

    def _raw(self) -> str:
        return "".join(self._parts).strip()


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


def _well_formed(text: str) -> str:
    """The text with surrogate pairs joined (deltas may split them) and lone halves replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
