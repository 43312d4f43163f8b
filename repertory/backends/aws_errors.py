"""Maps errors of AWS services to ours. Errors of one service alone are mapped beside the code that calls it.

    slow down        throttling in any spelling, status 429                       Throttled
    try again        other 5xx, no connection, no or half an answer               Unavailable
    fix the call     no credentials, no region, no such profile, no such request  Invalid
    give up          refused by the service, all else                             Failed

Source: the error types common to AWS services, and those of the service models that we use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from repertory.errors import (
    Failed,
    Invalid,
    RepertoryError,
    StoreFailed,
    StoreThrottled,
    StoreUnavailable,
    Throttled,
    Unavailable,
)

EXPIRED = "the AWS credentials have expired: refresh them, for example with `aws sso login`"
UNKNOWN_KEY = "AWS does not know these credentials: check AWS_ACCESS_KEY_ID"
WRONG_SIGNATURE = "the signature does not match: check AWS_SECRET_ACCESS_KEY and the clock"

_THROTTLED = frozenset(
    (
        "slowdown",
        "throttling",
        "throttledexception",
        "throttlingexception",
        "toomanyrequests",
        "toomanyrequestsexception",
        "requestlimitexceeded",
        "bandwidthlimitexceeded",
    )
)
_UNAVAILABLE = frozenset(
    (
        "internalerror",
        "internalserverexception",
        "serviceexception",
        "serviceunavailable",
        "requesttimeout",
        "operationaborted",
        "conditionalrequestconflict",
        "retryableconflictexception",
    )
)
_NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE,"
    " or pass boto_session"
)
_NO_REGION = "no AWS region is known: set AWS_REGION, or pass region_name='us-east-1'"


class PageTokens:
    """The page tokens of one listing. Refuses a repeated token, which would make the listing endless."""

    def __init__(self) -> None:
        self._given: set[str] = set()

    def next(self, token: str | None) -> str | None:
        """The token for the next page; None when there is none. Errors: `Failed` for a repeated one."""
        if not token:
            return None
        if token in self._given:
            raise Failed("a listing of the service has no end: it gives the same page again", token=token)
        self._given.add(token)
        return token


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsKinds:
    """The error classes for one service."""

    unavailable: type[Unavailable] = Unavailable
    throttled: type[Throttled] = Throttled
    failed: type[Failed] = Failed


OF_SESSIONS = AwsKinds(unavailable=StoreUnavailable, throttled=StoreThrottled, failed=StoreFailed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    service: str
    code: str
    message: str
    status: int
    response: Mapping[str, Any]
    where: Mapping[str, object]
    kinds: AwsKinds

    @property
    def name(self) -> str:
        """The code in lower case: services do not agree on capitals."""
        return self.code.lower()

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.where, "code": self.code, "status": self.status}

    def failed(self, hint: str | None, more: Mapping[str, Any] | None = None) -> Failed:
        """An error with advice, if there is any. `more` are further fields."""
        said = f"{hint} ({self.message})" if hint else f"{self.service} refused the request: {self.message}"
        return self.kinds.failed(said, **self.fields, **(more or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsErrors:
    service: str
    hints: Mapping[str, str]
    """Lower-case code to advice. These are no outages, whatever their status."""
    particular: Callable[[Refusal], RepertoryError | None]
    """Maps the service's own errors; None for errors that all services share."""
    kinds: AwsKinds = field(default_factory=AwsKinds)

    def from_foreign(self, error: Exception, where: Mapping[str, object]) -> RepertoryError:
        """Our error for one of `aws_client_errors`, with `where` as fields. Raise it `from` the original."""
        import httpx2

        boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
        match error:
            case boto.ClientError():
                return self._told(error.response, where)
            case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.NoAuthTokenError():
                return Invalid(_NO_CREDENTIALS, **where)
            case boto.NoRegionError():
                return Invalid(_NO_REGION, **where)
            case boto.ProfileNotFound() | boto.ParamValidationError() | boto.InvalidRegionError():
                return Invalid(f"{self.service} cannot be asked so: {error}", **where)
            case boto.HTTPClientError() | boto.ConnectionError() | httpx2.HTTPError() | httpx2.StreamError():
                said = f"{type(error).__name__}: {error}"
                return self.kinds.unavailable(f"{self.service} cannot be reached: {said}", **where)
            case parsers.ResponseParserError():
                return self.kinds.unavailable(f"the answer is not one of {self.service}: {error}", **where)
            case _:
                return self.kinds.failed(f"the request to {self.service} failed: {error}", **where)

    def _told(self, response: Mapping[str, Any], where: Mapping[str, object]) -> RepertoryError:
        details, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
        refusal = Refusal(
            service=self.service,
            code=str(details.get("Code", "unknown")),
            message=str(details.get("Message", "no message")),
            status=int(meta.get("HTTPStatusCode", 0)),
            response=response,
            where=where,
            kinds=self.kinds,
        )
        if refusal.name in _THROTTLED or refusal.status == 429:
            return self.kinds.throttled(f"{self.service} asks for fewer requests: {refusal.message}", **refusal.fields)
        if refusal.name in _UNAVAILABLE or (refusal.status >= 500 and refusal.name not in self.hints):
            return self.kinds.unavailable(f"{self.service} is not available: {refusal.message}", **refusal.fields)
        return self.particular(refusal) or refusal.failed(self.hints.get(refusal.name))


def aws_client_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_foreign` maps. An `except` clause evaluates this only when something was raised."""
    import httpx2

    boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
    ours = (boto.BotoCoreError, boto.ClientError, parsers.ResponseParserError)
    return (*ours, httpx2.HTTPError, httpx2.StreamError)
