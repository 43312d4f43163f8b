"""Reads Converse content blocks for services with other formats.

A block that a service cannot take is `Invalid`, with the block and the service, before anything is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from repertory.core.json_bytes import to_base64
from repertory.errors import Invalid

BLANK_TEXT = "[blank text]"
"""Replaces an empty text: services refuse messages without text."""

_IMAGE_FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "gif": "gif", "webp": "webp"}
_TEXT_FORMATS = frozenset(("txt", "md", "csv", "html"))


class ImageBlock(Struct, frozen=True):
    """A picture: its media type and its bytes as base64."""

    media_type: str
    data: str

    @property
    def url(self) -> str:
        """The picture as a data URL."""
        return f"data:{self.media_type};base64,{self.data}"


class DocumentBlock(Struct, frozen=True, kw_only=True):
    """A document: either a PDF as base64, or texts."""

    name: str
    pdf: str | None = None
    texts: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The document for a service that takes its words only."""
        return "\n".join([f"Document {self.name!r}:", *self.texts])

    @property
    def file(self) -> dict[str, str]:
        """A PDF for OpenAI's services."""
        name = self.name if self.name.endswith(".pdf") else f"{self.name}.pdf"
        return {"filename": name, "file_data": f"data:application/pdf;base64,{self.pdf}"}


def mentions_tools(messages: Iterable[Mapping[str, Any]]) -> bool:
    """True if a tool was used, so that the service wants a list of tools."""
    return any("toolUse" in block or "toolResult" in block for message in messages for block in message["content"])


def text_in(block: Mapping[str, Any]) -> str | None:
    """The text of a text-like block: plain, guarded, cited or JSON. None for any other."""
    if "text" in block:
        return str(block["text"])
    if "json" in block:
        return json.dumps(block["json"], ensure_ascii=False)
    if "guardContent" in block:
        return str(block["guardContent"].get("text", {}).get("text", ""))
    if "citationsContent" in block:
        return "".join(str(part.get("text", "")) for part in block["citationsContent"].get("content", ()))
    return None


def input_of(tool_use: Mapping[str, Any]) -> dict[str, Any]:
    """The input of a tool use as an object: services accept nothing else, but a model may have produced it."""
    value = tool_use["input"]
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {"input": value}


def image_in(block: Mapping[str, Any], service: str) -> ImageBlock:
    """The picture of an `image` block."""
    image = block["image"]
    kind = _IMAGE_FORMATS.get(image.get("format", ""))
    if kind is None:
        raise cannot_take("image", service, "a format other than png, jpeg, gif and webp", image.get("format"))
    return ImageBlock(f"image/{kind}", base64_in("image", image, service))


def document_in(block: Mapping[str, Any], service: str) -> DocumentBlock:
    """The document of a `document` block: PDF, plain text of any kind, or text blocks."""
    document = block["document"]
    name, kind, source = document.get("name") or "document", document.get("format"), document.get("source", {})
    if "text" in source:
        return DocumentBlock(name=name, texts=(source["text"],))
    if "content" in source:
        return DocumentBlock(name=name, texts=tuple(text_in(part) or "" for part in source["content"]))
    if kind == "pdf":
        return DocumentBlock(name=name, pdf=base64_in("document", document, service))
    if kind not in _TEXT_FORMATS:
        raise cannot_take("document", service, "a format other than pdf, txt, md, csv and html", kind)
    try:
        return DocumentBlock(name=name, texts=(bytes_in("document", document, service).decode(),))
    except UnicodeDecodeError as error:
        raise cannot_take("document", service, "text that is not UTF-8", name) from error


def described(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The name and the description of a tool: services want both."""
    return {"name": spec["name"], "description": spec["description"] or spec["name"]}


def chat_tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as in Chat Completions."""
    return {"type": "function", "function": {**described(spec), "parameters": spec["inputSchema"]["json"]}}


def cannot_take(
    block: str, service: str, what: str, got: object, *, message: int | None = None, content_block: int | None = None
) -> Invalid:
    """The error for a block that a service cannot take. `message` and `content_block`: the numbers of its message and
    of the block in it, where they are known.
    """
    numbers = {"message": message, "content_block": content_block}
    known = {name: number for name, number in numbers.items() if number is not None}
    return Invalid(f"{service} cannot take this {block} block: {what}", block=block, service=service, got=got, **known)


def block_kind(block: Mapping[str, Any]) -> str:
    return next(iter(block), "empty")


def bytes_in(kind: str, body: Mapping[str, Any], service: str) -> bytes:
    """The bytes of a medium."""
    source = body.get("source", {})
    data = source.get("bytes")
    if not isinstance(data, bytes | bytearray):
        raise cannot_take(kind, service, "only bytes can be sent as its source", sorted(source))
    return bytes(data)


def base64_in(kind: str, body: Mapping[str, Any], service: str) -> str:
    """The bytes of a medium as base64."""
    return to_base64(bytes_in(kind, body, service))
