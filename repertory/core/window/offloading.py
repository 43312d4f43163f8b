"""Offloading: a preview in the place of a large tool result, with references to find the whole again.

A reference names the tool use, the digest of the whole content, and the block: `<toolUseId>_<digest>_<number>`. So it
never leads to other content, whatever tool use ids a model makes up. Source of the preview's text: the SDK whose users
we serve; the digest is ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, cast

from msgspec import Struct

from repertory.core.journal.codec import dump
from repertory.core.limits import is_too_deep
from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse, tool_results, tool_uses
from repertory.core.tokens import TEXT_FORMATS, estimate_tokens
from repertory.core.window.decision import WindowPlan
from repertory.errors import Invalid

RETRIEVAL_TOOL = "retrieve_offloaded_content"
"""The tool that reads offloaded results; its own results are never offloaded."""
LISTED_MAX = 40
"""The most references in a preview; later blocks continue the numbering."""
_KINDS = frozenset(("text", "json", "image", "document"))
_BYTES_PER_TOKEN = 4
_INDENTED = 8
"""The levels of JSON that is indented."""
_DIGEST_CHARS = 12
_REFERENCE = re.compile(rf"^  (\S+_[0-9a-f]{{{_DIGEST_CHARS}}})_\d+ \(", re.MULTILINE)


class OffloadSettings(Struct, frozen=True, kw_only=True):
    """The size above which a tool result is offloaded, and the size of its preview, in estimated tokens."""

    max_result_tokens: int = 2_500
    """The estimated tokens above which a result is offloaded."""
    preview_tokens: int = 1_000
    tool: bool = True
    """True if the model is told of the retrieval tool."""
    tool_name: str = RETRIEVAL_TOOL

    def __post_init__(self) -> None:
        if self.max_result_tokens <= 0:
            raise Invalid("max_result_tokens must be positive", got=self.max_result_tokens)
        if self.preview_tokens < 0:
            raise Invalid("preview_tokens must be non-negative", got=self.preview_tokens)
        if self.preview_tokens >= self.max_result_tokens:
            raise Invalid("preview_tokens must be less than max_result_tokens", got=self.preview_tokens)


class Reference(NamedTuple):
    """A parsed reference to a block of an offloaded tool result."""

    tool_use_id: str
    digest: str
    block: int

    @property
    def content(self) -> str:
        """The name of the whole result, without the block."""
        return f"{self.tool_use_id}_{self.digest}"


def read_reference(text: str) -> Reference:
    """Errors: `Invalid` for a malformed reference."""
    use_id, _, rest = text.strip().rpartition("_")
    use_id, _, digest = use_id.rpartition("_")
    if not (use_id and len(digest) == _DIGEST_CHARS and rest.isascii() and rest.isdigit() and len(rest) < 9):
        raise Invalid(f"reference not found: {text[:200]}: take one as it stands under [Stored references:]")
    return Reference(use_id, digest, int(rest))


def result_digest(content: Sequence[Mapping[str, object]]) -> str:
    """The digest by which references name the content of a tool result."""
    # Models repeat tool use ids, so the id alone could lead to another result.
    return sha256(dump(list(content))).hexdigest()[:_DIGEST_CHARS]


def tokens_of(result: ToolResult) -> int:
    """The estimated tokens of a result."""
    return estimate_tokens([{"role": "user", "content": [{"toolResult": result}]}])


def is_large(result: ToolResult, settings: OffloadSettings) -> bool:
    """True if the result should be offloaded, whatever its text says: a hostile result may begin as a preview does."""
    parts = [part for part in result["content"] if not _KINDS.isdisjoint(part)]
    return bool(parts) and tokens_of(result) > settings.max_result_tokens


def previewed(result: ToolResult, settings: OffloadSettings) -> ToolResult:
    """The result with a preview and references as its content. Blocks of unknown kinds stay, after the preview."""
    parts = [(at, part) for at, part in enumerate(result["content"]) if not _KINDS.isdisjoint(part)]
    rest = [part for part in result["content"] if _KINDS.isdisjoint(part)]
    name = f"{result['toolUseId']}_{result_digest(result['content'])}"
    lines = [f"[Offloaded: {len(parts)} blocks, ~{tokens_of(result):,} tokens]"]
    lines += _beginning([part for _, part in parts], settings.preview_tokens * _BYTES_PER_TOKEN)
    lines.append("[Stored references:]")
    lines += [f"  {name}_{at} ({_described(part)})" for at, part in parts[:LISTED_MAX]]
    if len(parts) > LISTED_MAX:
        lines.append(f"  ... and so on, up to {name}_{parts[-1][0]}")
    if settings.tool:
        lines.append(f"[Read more with {settings.tool_name}: give a reference, and a pattern or a line_range.]")
    return {**result, "content": [{"text": "\n".join(lines)}, *rest]}


def offload_plan(
    visible: Sequence[Message], unseen: int, settings: OffloadSettings, protected: Collection[str] = ()
) -> WindowPlan:
    """The plan that shows previews of large tool results among the last `unseen` messages. None of these is a preview
    already.

    `protected`: ids of tool uses whose results stay, as do those of the retrieval tool.
    """
    replaced: dict[int, Message] = {}
    for position in range(max(0, len(visible) - unseen), len(visible)):
        message = visible[position]
        asked = tool_uses(visible[position - 1]) if position else ()
        # What the model has asked to read must not be hidden from it again.
        stay = {use["toolUseId"] for use in asked if retrieves(use, settings)}
        large = {
            result["toolUseId"]
            for result in tool_results(message)
            if result["toolUseId"] not in protected and result["toolUseId"] not in stay and is_large(result, settings)
        }
        if large:
            blocks = [_with_preview(block, large, settings) for block in message["content"]]
            replaced[position] = {**message, "content": blocks}
    return WindowPlan(replaced=replaced, reason="offloaded")


def find_content(messages: Iterable[Message], reference: Reference) -> list[dict[str, object]] | None:
    """The content that the reference names; None when no message holds it."""
    for message in messages:
        for result in tool_results(message):
            if result["toolUseId"] == reference.tool_use_id and result_digest(result["content"]) == reference.digest:
                return result["content"]
    return None


def named_contents(messages: Iterable[Message]) -> set[str]:
    """The names of the contents whose previews stand in these messages; one at most for each tool result. A preview
    lists its references at its end, and they begin with the id of its tool use; what else looks like one does not
    count.
    """
    found: set[str] = set()
    for result in (each for message in messages for each in tool_results(message)):
        for part in result["content"][:1]:
            names = _REFERENCE.findall(str(part.get("text", "")))
            # A result of a hostile tool may contain lines that look like references to other sessions' contents.
            found.update(name for name in names[-1:] if name.startswith(f"{result['toolUseId']}_"))
    return found


def text_of_part(part: Mapping[str, object]) -> str | None:
    """The part as text: JSON, indented unless it is deep, or the text of a text document. None for other parts."""
    match part:
        case {"text": str(text)}:
            return text
        case {"json": value}:
            indent = None if is_too_deep(value, _INDENTED) else 1  # Deep values become many times as large by it.
            return json.dumps(value, ensure_ascii=False, indent=indent, default=str)
        case {"document": {"format": str(kind), "source": {"bytes": bytes(data)}}} if kind in TEXT_FORMATS:
            return data.decode(errors="replace")
        case {"document": {"source": {"text": str(text)}}}:
            return text
        case _:
            return None


def retrieves(use: ToolUse, settings: OffloadSettings) -> bool:
    """True if this was the offloader's own tool, and no other one of its name."""
    return settings.tool and use["name"] == settings.tool_name


def _with_preview(block: ContentBlock, large: Collection[str], settings: OffloadSettings) -> ContentBlock:
    if "toolResult" not in block or block["toolResult"]["toolUseId"] not in large:
        return block
    return {"toolResult": previewed(block["toolResult"], settings)}


def _beginning(parts: Sequence[Mapping[str, object]], size_bytes: int) -> list[str]:
    """The beginning of the parts, in order, up to this many bytes."""
    found: list[str] = []
    for part in parts:
        if size_bytes <= 0:
            break
        text = text_of_part(part)
        if text is None:
            text = f"[{_described(part)}]"
        begun = text[:size_bytes].encode(errors="replace")[:size_bytes]
        found.append(begun.decode(errors="ignore"))
        size_bytes -= len(begun)
    return found


def _described(part: Mapping[str, object]) -> str:
    """The kind and size of a part, for a reference line."""
    kind = next(iter(_KINDS & part.keys()))
    if kind in ("text", "json"):
        return f"{kind}, {len(text_of_part(part) or ''):,} chars"
    media = _fields(part[kind])
    data, name = _fields(media.get("source")).get("bytes"), media.get("name")
    size = f"{len(data):,} bytes" if isinstance(data, bytes) else "kept elsewhere"
    return f"{kind}/{media.get('format', 'unknown')}{f' {name!r}' if name else ''}, {size}"


def _fields(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else {}


# Reading a part of a long text: numbered lines, a range or those around matches, as many as fit.
#
# Lines are wrapped, so that line numbers reach everything however long a line is.

LINE_CHARS_MAX = 2_000
CONTEXT_LINES_MAX = 50
_NOTES_BYTES = 300
"""The bytes reserved for the notes on what is missing."""


def wrapped_lines(text: str) -> list[str]:
    """The lines, wrapped at `LINE_CHARS_MAX`; at least one."""
    lines: list[str] = []
    for line in text.splitlines() or [""]:
        lines += [line[at : at + LINE_CHARS_MAX] for at in range(0, len(line), LINE_CHARS_MAX)] or [""]
    return lines


def check_range(start: int, end: int, count: int) -> range:
    """The indices of these lines; `start` and `end` count from 1, inclusive. Errors: `Invalid` if there are none."""
    if start < 1 or end < start:
        raise Invalid("line_range counts from 1, and its end is not before its start", start=start, end=end)
    if start > count:
        raise Invalid(f"there are {count:,} lines only", start=start)
    return range(start - 1, min(end, count))


def whole_or_beginning(text: str, size_bytes: int) -> str:
    """The whole text if it fits, else its first lines."""
    if len(text.encode(errors="replace")) <= size_bytes:
        return text
    lines = wrapped_lines(text)
    return excerpt(lines, range(len(lines)), size_bytes)


def excerpt(lines: Sequence[str], places: range, size_bytes: int) -> str:
    """These lines with their numbers; only the first ones when not all fit."""
    numbered, last = _numbered(lines, places, size_bytes - _NOTES_BYTES)
    header = f"[lines {places.start + 1:,}-{last + 1:,} of {len(lines):,}]"
    if last + 1 < places.stop:
        header = f"{header[:-1]}; there is no room for more: go on with line_range from {last + 2}]"
    return "\n".join([header, *numbered])


def matches_text(lines: Sequence[str], found: Sequence[int], pattern: str, context_lines: int, size_bytes: int) -> str:
    """The matches, each with `context_lines` lines before and after it, as many as fit."""
    what = f"{len(found):,} match{'' if len(found) == 1 else 'es'} for /{pattern[:100]}/ in {len(lines):,} lines"
    around = min(context_lines, CONTEXT_LINES_MAX)
    output: list[str] = []
    remaining, last, listed = size_bytes - _NOTES_BYTES, -1, 0
    for index in found:
        places = range(max(last + 1, index - around), min(len(lines), index + around + 1))
        numbered, end = _numbered(lines, places, remaining, least=not output)
        if output and end + 1 < places.stop:
            break
        if end < index and not output:
            numbered, end = _numbered(lines, range(index, index + 1), remaining)
        if output and places.start > last + 1 and around:
            output.append("--")
        output += numbered
        remaining -= sum(map(_size, numbered))
        last, listed = max(last, end), listed + 1
    if listed < len(found):
        what = f"{what}; there is room for the first {listed:,}: narrow the pattern, or give a line_range"
    return "\n".join([f"[{what}]", *output])


def places_of(lines: Sequence[str], places: Iterable[int], text: str) -> list[int]:
    """The indices of the lines that contain the text exactly."""
    return [index for index in places if text in lines[index]]


def _numbered(lines: Sequence[str], places: range, size_bytes: int, *, least: bool = True) -> tuple[list[str], int]:
    """The first lines, numbered, that fit into `size_bytes` (with `least`, one at least), and the index of the last."""
    numbered: list[str] = []
    last = places.start - 1
    for index in places:
        line = f"{index + 1}: {lines[index]}"
        size_bytes -= _size(line)
        if size_bytes < 0 and (numbered or not least):
            break
        numbered.append(line)
        last = index
    return numbered, last


def _size(line: str) -> int:
    return len(line.encode(errors="replace")) + 1
