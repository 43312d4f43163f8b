"""Maps errors of AWS services to ours. Errors of one service alone are mapped beside the code that calls it.

    slow down        throttling in any spelling, status 429                       Throttled
    try again        other 5xx, no connection, no or half an answer               Unavailable
    fix the call     no credentials, no region, no such profile, no such request  Invalid
    give up          refused by the service, all else                             Failed

Source: the error types common to AWS services, and those of the service models that we use.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import anyio
from msgspec import Struct, field

from repertory.errors import (
    Failed,
    Invalid,
    RepertoryError,
    Retryable,
    StoreFailed,
    StoreThrottled,
    StoreUnavailable,
    Throttled,
    Unavailable,
)

EXPIRED = "the AWS credentials have expired: refresh them, for example with `aws sso login`"
UNKNOWN_KEY = "AWS does not know these credentials: check AWS_ACCESS_KEY_ID"
WRONG_SIGNATURE = "the signature does not match: check AWS_SECRET_ACCESS_KEY and the clock"

THROTTLED = frozenset(
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
UNAVAILABLE = frozenset(
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
NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE,"
    " or pass boto_session"
)
NO_REGION = "no AWS region is known: set AWS_REGION, or pass region_name='us-east-1'"


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


class AwsKinds(Struct, frozen=True, kw_only=True):
    """The error classes for one service."""

    unavailable: type[Unavailable] = Unavailable
    throttled: type[Throttled] = Throttled
    failed: type[Failed] = Failed


OF_SESSIONS = AwsKinds(unavailable=StoreUnavailable, throttled=StoreThrottled, failed=StoreFailed)


class Refusal(Struct, frozen=True, kw_only=True):
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
        text = f"{hint} ({self.message})" if hint else f"{self.service} refused the request: {self.message}"
        return self.kinds.failed(text, **self.fields, **(more or {}))


class AwsErrors(Struct, frozen=True, kw_only=True):
    service: str
    hints: Mapping[str, str]
    """The advice for an error, by its code in lower case. These are no outages, whatever their status."""
    particular: Callable[[Refusal], RepertoryError | None]
    """Maps the service's own errors; None for errors that all services share."""
    kinds: AwsKinds = field(default_factory=AwsKinds)

    def from_foreign(self, error: Exception, where: Mapping[str, object]) -> RepertoryError:
        """Our error for one of `aws_client_errors`, with `where` as fields. Raise it `from` the original."""
        import httpx2

        boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
        match error:
            case boto.ClientError():
                return self._from_response(error.response, where)
            case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.NoAuthTokenError():
                return Invalid(NO_CREDENTIALS, **where)
            case boto.NoRegionError():
                return Invalid(NO_REGION, **where)
            case boto.ProfileNotFound() | boto.ParamValidationError() | boto.InvalidRegionError():
                return Invalid(f"{self.service} cannot be asked so: {error}", **where)
            case boto.HTTPClientError() | httpx2.DecodingError() if reason := unread_answer(error):
                return self.kinds.failed(f"the answer of {self.service} is not read: {reason}", **where)
            case boto.HTTPClientError() | boto.ConnectionError() | httpx2.HTTPError() | httpx2.StreamError():
                text = f"{type(error).__name__}: {error}"
                return self.kinds.unavailable(f"{self.service} cannot be reached: {text}", **where)
            case parsers.ResponseParserError():
                return self.kinds.unavailable(f"the answer is not one of {self.service}: {error}", **where)
            case _:
                return self.kinds.failed(f"the request to {self.service} failed: {error}", **where)

    def _from_response(self, response: Mapping[str, Any], where: Mapping[str, object]) -> RepertoryError:
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
        if refusal.name in THROTTLED or refusal.status == 429:
            return self.kinds.throttled(f"{self.service} asks for fewer requests: {refusal.message}", **refusal.fields)
        if refusal.name in UNAVAILABLE or (refusal.status >= 500 and refusal.name not in self.hints):
            return self.kinds.unavailable(f"{self.service} is not available: {refusal.message}", **refusal.fields)
        return self.particular(refusal) or refusal.failed(self.hints.get(refusal.name))


def unread_answer(error: Exception) -> str | None:
    """The reason why an answer was refused (`bound_answers`); None for another error."""
    import httpx2

    reason = getattr(error, "kwargs", {}).get("error", error)
    return str(reason) if isinstance(reason, httpx2.DecodingError) else None


def aws_client_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_foreign` maps. An `except` clause evaluates this only when something was raised."""
    import httpx2

    boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
    ours = (boto.BotoCoreError, boto.ClientError, parsers.ResponseParserError)
    return (*ours, httpx2.HTTPError, httpx2.StreamError)


T = TypeVar("T")


# Retries within a time limit: exponential backoff with jitter.


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """The bounds for retrying a call while its errors are `Retryable`."""

    timeout_s: float = 20.0
    """Seconds for all attempts of a call and the delays between them; a longer attempt is cut off."""
    first_delay_s: float = 0.1
    """Seconds before the second attempt. Each further delay doubles; a random part of up to half is left out."""
    delay_max_s: float = 5.0
    unavailable: type[Unavailable] = Unavailable
    """The error when no attempt finished in time."""


async def with_retries(call: Callable[[], Awaitable[T]], retry_policy: RetryPolicy, jitter: Callable[[], float]) -> T:
    """The result of `call`, retried. `jitter` returns numbers from 0 up to 1. Cancellation ends the attempt, or the
    delay.

    Errors: an error of the call that is not `Retryable`, at once; otherwise the last one when the time is over, or
    `Unavailable` when no attempt had finished by then.
    """
    deadline = anyio.current_time() + retry_policy.timeout_s
    delay_s = retry_policy.first_delay_s
    last: Retryable = retry_policy.unavailable("no answer in time", timeout_s=retry_policy.timeout_s)
    with anyio.move_on_at(deadline):
        while True:
            try:
                return await call()
            except Retryable as error:
                last = error
            await anyio.sleep(delay_s * (1 - jitter() / 2))
            delay_s = min(2 * delay_s, retry_policy.delay_max_s)
    raise last
