"""The OpenAPI 3.1 document, made of the table of operations that also makes the routes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from repertory.service.http.bodies import Id, Label
from repertory.service.http.service import RequestHandler
from repertory.service.http.sse import MEDIA_TYPE as EVENTS

_REF: Final = "#/components/schemas/{name}"
_NAME_IN_PATH = re.compile(r"\{(\w+)\}")


class QueryOrHeader(Struct, frozen=True, kw_only=True):
    """A parameter of a query, or a header."""

    name: str
    schema: Mapping[str, Any]
    about: str
    place: str = "query"


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: str
    path: str
    """The path after the prefix of the API."""
    name: str
    """The unique name of its route."""
    about: str
    handler: RequestHandler
    answers: Mapping[int, type[Struct] | None]
    """The class of the answer's body by status; None for no body. Errors are problems, and not in it."""
    body: type[Struct] | None = None
    parameters: Sequence[QueryOrHeader] = ()
    streams: bool = False
    """True if the answer may be server-sent events."""
    admit: bool = True
    """True if a request counts towards the limits, and needs a caller."""
    top: bool = False
    """True if the path has no prefix."""


_PROBLEMS: Mapping[str, str] = {
    "400": "No JSON, or a broken request",
    "401": "Nobody who is known",
    "403": "Not allowed",
    "404": "It does not exist, or no longer",
    "406": "No such form of the answer",
    "409": "Somebody else was first: look again, then decide",
    "413": "Too large",
    "415": "The body is not JSON",
    "421": "Not the name of this service",
    "422": "The request is wrong: change it",
    "429": "Too many requests: wait as Retry-After says",
    "502": "A model, a tool or a hook failed",
    "503": "Not at the moment: wait as Retry-After says",
}
_PROBLEM: Mapping[str, Any] = {
    "type": "object",
    "description": "An error, as RFC 9457 says.",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "urn:repertory:error:CLASS, or about:blank."},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "instance": {"type": "string"},
        "group": {
            "description": "What to do next, as a class of repertory.errors.",
            "enum": ["Invalid", "Retryable", "Conflict", "Gone", "LimitReached", "Corrupt", "Failed"],
        },
    },
}
_RETRY_AFTER: Mapping[str, Any] = {
    "schema": {"type": "integer", "minimum": 1},
    "description": "When to come again, in seconds.",
}


def document(operations: Sequence[Operation], prefix: str, version: str, *, secured: bool) -> dict[str, Any]:
    """The document. `secured`: whether callers say who they are."""
    kinds = {kind for one in operations for kind in (one.body, *one.answers.values()) if kind is not None}
    named = sorted(kinds, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(named, ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        path = one.path if one.top else f"{prefix}{one.path}"
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, secured=secured and one.admit)
    components: dict[str, Any] = {"schemas": {**schemas, "Problem": _PROBLEM}}
    if secured:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Repertory", "version": version, "description": "Durable agents over HTTP."},
        "paths": paths,
        "components": components,
    }


def _operation(one: Operation, *, secured: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.about,
        "parameters": [*map(_in_path, _NAME_IN_PATH.findall(one.path)), *map(_parameter, one.parameters)],
        "responses": {str(status): _answer(one, kind) for status, kind in one.answers.items()},
    }
    if one.admit:
        made["responses"] |= {status: _problem(status, about) for status, about in _PROBLEMS.items()}
    if one.body is not None:
        content = {"application/json": {"schema": {"$ref": _REF.format(name=one.body.__name__)}}}
        made["requestBody"] = {"required": True, "content": content}
    if secured:
        made["security"] = [{"bearer": []}]
    return made


def _in_path(name: str) -> dict[str, Any]:
    schema = msgspec.json.schema(Label if name == "label" else Id)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _parameter(one: QueryOrHeader) -> dict[str, Any]:
    return {"name": one.name, "in": one.place, "description": one.about, "schema": dict(one.schema)}


def _answer(one: Operation, kind: type[Struct] | None) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done, or nothing to tell."}
    content: dict[str, Any] = {}
    if kind is not Events:  # First, since generators of clients read the first kind of an answer alone.
        content["application/json"] = {"schema": {"$ref": _REF.format(name=kind.__name__)}}
    if one.streams:
        content[EVENTS] = {}  # What one event holds is not for this version of OpenAPI to say.
    return {"description": (kind.__doc__ or "").strip(), "content": content}


def _problem(status: str, about: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name="Problem")}
    made: dict[str, Any] = {"description": about, "content": {"application/problem+json": {"schema": schema}}}
    if status in ("429", "503"):
        made["headers"] = {"Retry-After": _RETRY_AFTER}
    return made


class Events(Struct):
    """Server-sent events, each with an id to go on after."""
