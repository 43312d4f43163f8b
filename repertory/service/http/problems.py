"""Errors as answers of an HTTP service: RFC 9457, with the status that says what the client does next.

What an error says of the caller's own request is told. What it says of this machine, its stores and the services behind
it (owners, hosts, paths, causes) is not, unless the service is made with `details=True`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import Response

from repertory.core.wire import error_to_json
from repertory.errors import (
    ActorDead,
    CommandTimeout,
    Conflict,
    Corrupt,
    EncryptionNeeded,
    Failed,
    Gone,
    Invalid,
    KeyErased,
    LimitReached,
    MayNotAnswer,
    NotReady,
    RepertoryError,
    RestartLimitReached,
    Retryable,
    StoreLimitReached,
    Throttled,
    TooLarge,
)

if TYPE_CHECKING:
    from repertory.core.messages import Json

STATUSES: tuple[tuple[type[RepertoryError], int], ...] = (
    (Throttled, 429),
    (Conflict, 409),
    (Retryable, 503),
    (NotReady, 503),  # The program has not entered its runtime: no client can mend that.
    (ActorDead, 503),
    (KeyErased, 410),
    (Gone, 404),
    (EncryptionNeeded, 500),
    (MayNotAnswer, 403),
    (Invalid, 422),
    (TooLarge, 413),
    (CommandTimeout, 504),
    (StoreLimitReached, 507),
    (RestartLimitReached, 503),
    (LimitReached, 422),
    (Corrupt, 500),
    (Failed, 502),
    (RepertoryError, 500),
)
"""The status of each class of errors; the first class that an error is of counts."""
MEDIA_TYPE = "application/problem+json"
TYPES = "urn:repertory:error:"
"""The prefix of a problem's `type`; the name of the error's class in `repertory.errors` follows."""
RETRY_AFTER_S = 1.0
"""Seconds until the client should try again, where the error has no number."""
_PUBLIC_FIELDS = frozenset(
    {
        *("agent", "budget", "bytes_max", "doing", "got", "id", "interrupt", "label", "limit", "missing", "position"),
        *("seq", "store", "token", "tool", "unknown", "waiting"),
    }
)
"""The fields of errors that answers have: they name what the caller has sent or may send."""
_UNTOLD = {
    429: "a service behind this one asks for fewer requests: wait, then try again",
    500: "something went wrong here; the request id leads to what is known of it",
    502: "a model, a tool or a hook tried and failed",
    503: "it cannot be done at the moment: try again later",
    504: "a command took too long",
    507: "the store has no room",
}


class Problem(Exception):
    """An answer that is an error. Raised by handlers; `Service.endpoint` sends it.

    Args:
        status: The HTTP status.
        detail: This case in words.
        title: The kind in words, the same every time.
        type: A URI of its kind.
        headers: Further headers of the answer.
        fields: Further members of the body.
    """

    def __init__(
        self,
        status: int,
        detail: str = "",
        *,
        title: str = "",
        type: str = "about:blank",
        headers: Mapping[str, str] | None = None,
        **fields: Json,
    ) -> None:
        super().__init__(status, detail)
        self.status = status
        self.title = title or HTTPStatus(status).phrase
        self.detail = detail
        self.type = type
        self.headers: dict[str, str] = dict(headers or {})
        self.fields = fields

    @property
    def words(self) -> str:
        """This case in words, or its kind where nothing more is told."""
        return self.detail or self.title

    def as_json(self, instance: str = "") -> dict[str, Json]:
        """The members of its body.

        Args:
            instance: The path of the request.
        """
        members: dict[str, Json] = {"type": self.type, "title": self.title, "status": self.status}
        if self.detail:
            members["detail"] = self.detail
        if instance:
            members["instance"] = instance
        return {**self.fields, **members}


def ask_again(detail: str, headers: Mapping[str, str] | None = None, **fields: str) -> Problem:
    """The refusal, with 503, of a request that may be sent again in the same way."""
    return Problem(503, detail, headers={**(headers or {}), "retry-after": str(math.ceil(RETRY_AFTER_S))}, **fields)


def problem_of(error: BaseException, *, details: bool = False) -> Problem:
    """The problem that an error is.

    Anything that is no `RepertoryError` is a plain 500. Never fails.

    Args:
        error: The error.
        details: True also tells what concerns this machine and the services behind it.
    """
    if isinstance(error, Problem):
        return error
    encoded = error_to_json(error)
    if not isinstance(error, RepertoryError):
        return Problem(500, str(encoded["text"]) if details else _UNTOLD[500])
    status = next(status for kind, status in STATUSES if isinstance(error, kind))
    own = encoded.get("fields")
    fields: dict[str, Json] = {"group": encoded["group"]}
    if details:
        fields |= {name: value for name, value in encoded.items() if name in ("fields", "cause", "context", "errors")}
    elif isinstance(own, dict) and status < 500:
        fields |= {name: value for name, value in own.items() if name in _PUBLIC_FIELDS}
    headers: dict[str, str] = {}
    if isinstance(error, Retryable | ActorDead) and status in (409, 429, 503):
        wait_s = (error.retry_after_s if isinstance(error, Throttled) else None) or RETRY_AFTER_S
        headers["retry-after"] = str(math.ceil(max(wait_s, 1)))
    detail = str(encoded["text"]) if details else _public_text(error, status)
    name = str(encoded["type"])
    return Problem(status, detail, title=_in_words(name), type=f"{TYPES}{name}", headers=headers, **fields)


def problem_response(problem: Problem, instance: str = "") -> Response:
    """The answer that a problem is.

    Args:
        problem: The problem.
        instance: The path of the request.
    """
    body = json.dumps(problem.as_json(instance)).encode() + b"\n"
    return Response(body, problem.status, {"cache-control": "no-store", **problem.headers}, MEDIA_TYPE)


def _public_text(error: RepertoryError, status: int) -> str:
    """The error's text without its fields, where it is about the caller's own request."""
    text = _UNTOLD.get(status)
    return text if text is not None else _without_fields(error) or _in_words(type(error).__name__)


def _without_fields(error: RepertoryError) -> str:
    text = str(error)
    for name, value in reversed(error.fields.items()):
        text = text.removesuffix(f"{name}={value!r}").rstrip()
    return "" if any(f"{name}=" in text for name in error.fields) else text


def _in_words(name: str) -> str:
    """The name of a class in words: `AgentBusy` as `Agent busy`."""
    words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()
    return words[:1].upper() + words[1:]
