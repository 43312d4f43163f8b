"""Requests: an id that logs and the answer have, the caller's trace, headers of safety, and how handlers read one and
answer it.
"""

from __future__ import annotations

import json
import re
import sys
from secrets import token_hex
from typing import TYPE_CHECKING, TypeVar

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from repertory.app.tracebacks import telemetry
from repertory.service.decisions.heads import is_ambiguous
from repertory.service.http.problems import Problem, problem_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

T = TypeVar("T")
REQUEST_ID = "repertory.request_id"
"""The key under which a request's scope has its id."""
_FIT = re.compile(r"[A-Za-z0-9._-]{1,128}")
_TRACE = ("traceparent", "tracestate", "baggage")


class EachRequest:
    """Middleware. A request that says `X-Request-ID` keeps it, if it is of letters and digits. One that a proxy before
    this server may have read as another one is answered with 400.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = scope[REQUEST_ID] = given if _FIT.fullmatch(given) else token_hex(8)

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered["x-request-id"] = request_id
                answered["x-content-type-options"] = "nosniff"
                answered.setdefault("cache-control", "no-store")
            await send(message)

        if is_ambiguous(scope["headers"]):
            problem = Problem(400, "the head of the request is ambiguous", headers={"connection": "close"})
            await problem_response(problem, scope["path"])(scope, receive, telling)
            return
        if telemetry() is not None:
            _go_on_with_trace(headers)
        await self._app(scope, receive, telling)


def _go_on_with_trace(headers: Headers) -> None:
    """Make the caller's trace the current one, unless a middleware around this one has done so."""
    given = {name: value for name in _TRACE if (value := headers.get(name)) is not None}
    tracing = sys.modules.get("opentelemetry.trace")
    if not given or tracing is None or tracing.get_current_span().get_span_context().is_valid:
        return
    from repertory.telemetry.propagation import continue_from  # loaded when something is traced

    continue_from(given)


def idempotency_key(headers: Headers) -> str | None:
    """The request's key; None without one. Errors: `Problem` 422 for an empty one."""
    key = headers.get("idempotency-key")
    if key is not None and not key.strip():
        raise Problem(422, "the header Idempotency-Key has no text: give it one, or leave it out")
    return key


def read_body(value: object, kind: type[T]) -> T:
    """The body as a value of that class. Errors: `Problem` 422 that says where it is wrong."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Problem(422, str(error)) from None


def number_in(request: Request, name: str, default: int, most: int) -> int:
    """A number of the query, from 1 to `most`. Errors: `Problem` 422."""
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 10 and 1 <= int(given) <= most):
        raise Problem(422, f"{name} is a number from 1 to {most}")
    return int(given)


def flag_in(request: Request, name: str) -> bool:
    """A yes or no of the query; no without it. Errors: `Problem` 422."""
    given = request.query_params.get(name, "false")
    if given not in ("true", "false"):
        raise Problem(422, f"{name} is true or false")
    return given == "true"


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer whose body is a struct, or anything of JSON."""
    return Response(as_json(value), status, headers, "application/json")


def as_json(value: object) -> bytes:
    """A struct, or anything of JSON, as the body of an answer."""
    try:
        return msgspec.json.encode(value)  # A third to a tenth of the time: a large answer holds up the others.
    except (UnicodeEncodeError, OverflowError):  # Half a pair of surrogates; an integer of more than 64 bits.
        return json.dumps(msgspec.to_builtins(value), separators=(",", ":")).encode()
