"""What an MCP server answered, as a tool result.

Text stays text. Images and documents that the Converse API knows become blocks with bytes; what it has no block for
(sound, other types of file) becomes a line of text that says what it was. A structured value becomes a `json` block, in
place of the text that repeats it for clients that know no structured values; unless it only wraps that text.

Source: Model Context Protocol, revision 2026-07-28, "Tool Result"; Amazon Bedrock API reference, `ImageBlock` and
`DocumentBlock`.
"""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlsplit

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from repertory.core.limits import RESULT_BYTES
from repertory.core.messages import ToolResult
from repertory.core.sizes import Scale
from repertory.core.tool_results import result_too_large, tool_result

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

IMAGES = {"image/gif": "gif", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/png": "png", "image/webp": "webp"}
DOCUMENTS = {
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
_NOT_IN_A_DOCUMENT_NAME = re.compile(r"[^a-zA-Z0-9()\[\]-]+")
_DOCUMENT_NAME_MAX = 200


def result_of(use_id: str, answer: CallToolResult, bytes_max: int = RESULT_BYTES) -> ToolResult:
    """The answer as a tool result, in the server's order.

    Errors: `ValueError` when bytes are not base64; `Failed` for what JSON cannot say; `TooLarge` for what weighs more
    than `bytes_max` (`core/sizes.py`), before anything is done with it.
    """
    structured: object = answer.structured_content
    scale = Scale(bytes_max)
    if not scale.put(structured) or not all(scale.put(_told_by(part)) for part in answer.content):
        raise result_too_large(scale)
    texts = [part.text for part in answer.content if isinstance(part, TextContent)]
    parts = list(answer.content)
    blocks: list[dict[str, object]] = []
    if structured is not None and not _wraps(structured, texts):
        parts = [part for part in parts if not (isinstance(part, TextContent) and _is_json(part.text, structured))]
        blocks.append({"json": structured} if isinstance(structured, dict) else {"text": json.dumps(structured)})
    blocks = [*(block for part in parts for block in _blocks(part)), *blocks] or [{"text": ""}]
    return tool_result(use_id, {"status": "error" if answer.is_error else "success", "content": blocks}, sys.maxsize)


def _wraps(structured: object, texts: Sequence[str]) -> bool:
    """Whether it is `{"result": ...}` around what the texts say: servers wrap what is no object that way."""
    fields = cast("dict[str, object]", structured) if isinstance(structured, dict) else {}
    if fields.keys() != {"result"}:
        return False
    inner = fields["result"]
    if len(texts) == 1 and _says(texts[0], inner):
        return True
    items = cast("list[object]", inner) if isinstance(inner, list) else []
    return 0 < len(items) == len(texts) and all(map(_says, texts, items))


def _says(text: str, value: object) -> bool:
    return text == value or _is_json(text, value)


def _is_json(text: str, value: object) -> bool:
    try:
        return json.loads(text) == value
    except (ValueError, RecursionError):
        return False


def _told_by(part: ContentBlock) -> str:
    """Most of what a part takes."""
    match part:
        case TextContent(text=text) | EmbeddedResource(resource=TextResourceContents(text=text)):
            return text
        case ImageContent(data=data) | AudioContent(data=data):
            return data
        case EmbeddedResource(resource=BlobResourceContents(blob=data)):
            return data
        case _:
            return ""


def _blocks(part: ContentBlock) -> Iterator[dict[str, object]]:
    match part:
        case TextContent(text=text):
            yield {"text": text}
        case ImageContent(data=data, mime_type=mime_type):
            yield _media(b64decode(data, validate=True), mime_type, "image")
        case AudioContent(data=data, mime_type=mime_type):
            yield _left_out(b64decode(data, validate=True), mime_type, "sound")
        case ResourceLink(uri=uri, name=name, description=description):
            yield {"text": f"{name}: {uri}" if description is None else f"{name}: {uri} ({description})"}
        case EmbeddedResource(resource=TextResourceContents(text=text)):
            yield {"text": text}
        case EmbeddedResource(resource=resource):
            yield _blob(resource)


def _blob(resource: BlobResourceContents | TextResourceContents) -> dict[str, object]:
    assert not isinstance(resource, TextResourceContents)
    mime_type = resource.mime_type or "application/octet-stream"
    return _media(b64decode(resource.blob, validate=True), mime_type, resource.uri)


def _media(data: bytes, mime_type: str, place: str) -> dict[str, object]:
    kind = mime_type.partition(";")[0].strip().lower()
    if kind in IMAGES:
        return {"image": {"format": IMAGES[kind], "source": {"bytes": data}}}
    if kind in DOCUMENTS:
        return {"document": {"format": DOCUMENTS[kind], "name": _document_name(place), "source": {"bytes": data}}}
    return _left_out(data, mime_type, place)


def _left_out(data: bytes, mime_type: str, place: str) -> dict[str, object]:
    return {"text": f"[{place}: {len(data)} bytes of {mime_type}, which cannot be shown here]"}


def _document_name(uri: str) -> str:
    """A name that Converse takes, from the last part of a URI."""
    last = unquote(urlsplit(uri).path).rstrip("/").rpartition("/")[2]
    stem = last.rpartition(".")[0] or last
    return _NOT_IN_A_DOCUMENT_NAME.sub("-", stem).strip("-")[:_DOCUMENT_NAME_MAX] or "document"
