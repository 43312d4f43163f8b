"""A memory as a document of a knowledge base: its id, its attributes, and how it is handed over.

A CUSTOM data source takes the text itself. An S3 data source takes the place of an object, and of a second one beside
it, `<key>.metadata.json`, that says its attributes.

Source: the service model of `bedrock-agent` (IngestKnowledgeBaseDocuments) and the user guide of Amazon Bedrock on
metadata files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, TypeAlias, cast

from repertory.core.memory.entry import Metadata
from repertory.core.memory.options import AddMessagesContext
from repertory.core.messages import Json
from repertory.errors import Invalid, LimitReached

ATTRIBUTES_MAX = 50
KEY_CHARS_MAX = 200
TEXT_CHARS_MAX = 2_048
"""Of one attribute's text."""
TEXTS_MAX = 10
"""Texts that one attribute may list."""
CONTENT_CHARS_MAX = 5_242_880

Attributes: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Key to value as the service spells it."""
Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AccessControlEntry:
    """Who may, or may not, see what is written."""

    access: str
    """`ALLOW` or `DENY`, which counts more."""
    name: str
    type: str


def document_id(scope: Sequence[str | None], idempotency_key: str) -> str:
    """The id of a document that is written again whenever the key comes again: it replaces itself then."""
    return blake2b(json.dumps([*scope, idempotency_key]).encode(), digest_size=16).hexdigest()


def client_token(document: Document, content: str) -> str:
    """The same for every attempt at this document with this content, which it may only name the place of."""
    return blake2b(json.dumps([document, content], sort_keys=True).encode(), digest_size=32).hexdigest()


def attributes_of(metadata: Metadata | None, context: AddMessagesContext, scope: tuple[str, str] | None) -> Attributes:
    """What stands beside a memory: its metadata, where it comes from, and its scope, which nothing can replace.

    What JSON nests is kept as its text; what says nothing is left out. Errors: `Invalid` for what is too much, or no
    JSON.
    """
    said_at = None if context.said_at is None else f"{datetime.fromtimestamp(context.said_at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    source = {"session_id": context.session_id, "agent_id": context.agent_id, "said_at": said_at}
    values = {**source, **(metadata or {}), **({scope[0]: scope[1]} if scope else {})}
    attributes = {key: value for key, given in values.items() if (value := _value(key, given)) is not None}
    if len(attributes) > ATTRIBUTES_MAX:
        raise Invalid("too many metadata for a knowledge base", count=len(attributes), count_max=ATTRIBUTES_MAX)
    return attributes


def check_content(content: str) -> str:
    """The content, when a document may have it. Errors: `Invalid` for a blank one, `LimitReached`."""
    if not content.strip():
        raise Invalid("a memory says something", got=content)
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise Invalid("a memory has no lone surrogates", cause=str(error)) from error
    if len(content) > CONTENT_CHARS_MAX:
        raise LimitReached("too long for a knowledge base", chars=len(content), chars_max=CONTENT_CHARS_MAX)
    return content


def inline_document(name: str, content: str, attributes: Attributes, access: Sequence[AccessControlEntry]) -> Document:
    """A document for a CUSTOM data source. Errors: `Invalid` for an access control list without an attribute."""
    document: Document = {
        "content": {
            "dataSourceType": "CUSTOM",
            "custom": {
                "customDocumentIdentifier": {"id": name},
                "sourceType": "IN_LINE",
                "inlineContent": {"type": "TEXT", "textContent": {"data": content}},
            },
        }
    }
    if access and not attributes:
        raise Invalid("an access_control_list needs an attribute beside it: give the store a scope, or add metadata")
    described: dict[str, Any] = {}
    if attributes:
        inline = [{"key": key, "value": value} for key, value in attributes.items()]
        described = document["metadata"] = {"type": "IN_LINE_ATTRIBUTE", "inlineAttributes": inline}
    if access:
        described["accessControlList"] = [
            {"name": entry.name, "type": entry.type, "access": entry.access} for entry in access
        ]
    return document


def sidecar(attributes: Attributes, access: Sequence[AccessControlEntry]) -> bytes | None:
    """What the object beside a memory's says; None when there is nothing to say. Attributes are not embedded."""
    said: dict[str, object] = {
        "metadataAttributes": {key: {"value": value, "includeForEmbedding": False} for key, value in attributes.items()}
    }
    if access:
        said["accessControlList"] = [
            {"Name": entry.name, "Type": entry.type, "Access": entry.access} for entry in access
        ]
    return json.dumps(said, ensure_ascii=False).encode() if attributes or access else None


def stored_document(uri: str, sidecar_uri: str | None) -> Document:
    """A document for an S3 data source."""
    document: Document = {"content": {"dataSourceType": "S3", "s3": {"s3Location": {"uri": uri}}}}
    if sidecar_uri is not None:
        document["metadata"] = {"type": "S3_LOCATION", "s3Location": {"uri": sidecar_uri}}
    return document


def _value(key: str, given: Json) -> Mapping[str, Any] | None:
    if not 1 <= len(key) <= KEY_CHARS_MAX:
        raise Invalid("a metadata key has some characters", got=key, chars_max=KEY_CHARS_MAX)
    match given:
        case None | "" | []:
            return None
        case dict() if not given:
            return None
        case bool():
            return {"type": "BOOLEAN", "booleanValue": given}
        case int() | float() if math.isfinite(given):
            return {"type": "NUMBER", "numberValue": given}
        case str():
            return {"type": "STRING", "stringValue": _short(key, given)}
        case list() if len(given) <= TEXTS_MAX and all(isinstance(text, str) and text for text in given):
            return {"type": "STRING_LIST", "stringListValue": [_short(key, text) for text in cast("list[str]", given)]}
        case _:
            return {"type": "STRING", "stringValue": _short(key, _json(key, given))}


def _short(key: str, text: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise Invalid("metadata too long for a knowledge base", key=key, chars=len(text), chars_max=TEXT_CHARS_MAX)
    return text


def _json(key: str, given: object) -> str:
    try:
        return json.dumps(given, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Invalid("metadata are JSON", key=key, cause=str(error)) from error
