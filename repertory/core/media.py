"""Files that callers send and tools give, as the content blocks that models read."""

from __future__ import annotations

import binascii
import re
from typing import TYPE_CHECKING, NamedTuple, cast
from urllib.parse import unquote_to_bytes

from repertory.core.json_bytes import from_base64
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import ContentBlock

IMAGES = {"image/gif": "gif", "image/jpeg": "jpeg", "image/jpg": "jpeg", "image/png": "png", "image/webp": "webp"}
_VIDEOS = {
    "video/3gpp": "three_gp",
    "video/mp4": "mp4",
    "video/mpeg": "mpeg",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/x-matroska": "mkv",
    "video/x-ms-wmv": "wmv",
}
_VIDEO_FORMATS = frozenset(_VIDEOS.values()) | {"mpg"}
DOCUMENTS = {
    "application/pdf": "pdf",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": "xlsx",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
_DOCUMENT_FORMATS = frozenset(DOCUMENTS.values())
MEDIA_TYPES = {form: kind for kind, form in reversed([*IMAGES.items(), *_VIDEOS.items(), *DOCUMENTS.items()])}
"""The MIME types of formats; the first of several."""
_NOT_IN_NAMES = re.compile(r"[^\w()\[\] -]+|\s{2,}", re.ASCII)


class File(NamedTuple):
    """A file by its contents."""

    data: bytes
    mime_type: str
    """The MIME type without parameters, in lower case; empty when unknown."""


def media_block(data: bytes, mime_type: str, name: str) -> ContentBlock:
    """A file as the block that a model reads; what it was, as text, where there is none."""
    stem, _, suffix = name.rpartition(".")
    suffix = suffix.lower()
    if mime_type in IMAGES:
        return cast("ContentBlock", {"image": {"format": IMAGES[mime_type], "source": {"bytes": data}}})
    if mime_type.startswith("video/"):
        kind = _VIDEOS.get(mime_type, suffix if suffix in _VIDEO_FORMATS else "mp4")
        return cast("ContentBlock", {"video": {"format": kind, "source": {"bytes": data}}})
    kind = DOCUMENTS.get(mime_type, suffix if suffix in _DOCUMENT_FORMATS else None)
    if kind is not None or mime_type.startswith(("text/", "application/")):
        return cast(
            "ContentBlock",
            {"document": {"format": kind or "txt", "name": stem or name, "source": {"bytes": data}}},
        )
    return {"text": f"File {name}: {len(data)} bytes of {mime_type or 'unknown type'}, which cannot be shown"}


def plain_name(name: str) -> str:
    """A file's name with nothing in it that a provider refuses: letters, digits, single spaces, `()[]-_`."""
    stem, dot, suffix = name.rpartition(".")
    return f"{_NOT_IN_NAMES.sub(' ', stem or name).strip()[:200] or 'file'}{dot}{suffix}"


def read_base64(text: str, what: str) -> bytes:
    """Errors: `Invalid` for what is no base64; `what` names it."""
    try:
        return from_base64(text)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"{what} is no base64: {error}") from None


def read_data_url(url: str, what: str) -> File:
    """The file in a `data:` URL. Errors: `Invalid` for another one: nothing is fetched from where a caller says."""
    head, comma, body = url.partition(",")
    if not head.lower().startswith("data:") or not comma:
        raise Invalid(f"{what} is a data: URL; other addresses are not fetched")
    mime_type, *settings = head[len("data:") :].split(";")
    encoded = bool(settings) and settings[-1].strip().lower() == "base64"
    data = read_base64(body.strip(), what) if encoded else unquote_to_bytes(body)
    return File(data, mime_type.strip().lower())
