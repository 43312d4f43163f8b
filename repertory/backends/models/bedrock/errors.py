"""What goes wrong between us and Bedrock, as errors of ours. The one place where its errors and botocore's are named.

    slow down        throttling, quotas, status 429                                       Throttled
    try again        5xx, model not ready or timed out, no connection, read timeout       Unavailable
    broke off        the connection or the model ended in the middle of an answer         ModelStreamBroken
    shorten          the messages do not fit the window                                   ContextWindowOverflowException
    give up          refused, not allowed, no credentials, no region, nonsense            ModelFailed

Source: Amazon Bedrock API reference, errors of `ConverseStream`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from repertory.backends.models.overflow import is_overflow
from repertory.backends.models.retry_after import retry_after_s
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)

NONSENSE = (ValueError, TypeError, LookupError, AttributeError)
"""What botocore's parsers raise for JSON of another shape than the service model's."""

_THROTTLED = frozenset(
    (
        "throttling",
        "throttlingexception",
        "throttledexception",
        "toomanyrequests",
        "toomanyrequestsexception",
        "requestlimitexceeded",
        "limitexceededexception",
        "servicequotaexceededexception",
        "slowdown",
    )
)
_UNAVAILABLE = frozenset(
    (
        "internalserverexception",
        "internalfailure",
        "serviceunavailable",
        "serviceunavailableexception",
        "modelnotreadyexception",
        "modeltimeoutexception",
        "modelerrorexception",
        "requesttimeout",
        "requesttimeoutexception",
    )
)
_BROKEN_OFF = "modelstreamerrorexception"
_ACCESS = {
    "accessdeniedexception": "the identity may not use this model: allow bedrock:InvokeModel and enable the model",
    "unrecognizedclientexception": "AWS does not know these credentials: check AWS_ACCESS_KEY_ID and its secret",
    "invalidsignatureexception": "the signature does not match: check AWS_SECRET_ACCESS_KEY and the clock",
    "expiredtokenexception": "the AWS credentials have expired: refresh them, for example with `aws sso login`",
    "expiredtoken": "the AWS credentials have expired: refresh them, for example with `aws sso login`",
}
_NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE,"
    " or pass boto_session"
)
_NO_REGION = "no AWS region is known: set AWS_REGION, or pass region_name='us-east-1'"


def service_error(code: str, status: int, message: str, retry_after_s: float | None = None) -> RepertoryError:
    """An answer of the service that says no. `code` in any spelling, `status` 0 when it came inside a stream."""
    name = code.lower()
    fields: dict[str, object] = {"code": code, "status": status} if status else {"code": code}
    if is_overflow(message):
        return ContextWindowOverflowException(message, **fields)
    if name == _BROKEN_OFF:
        return ModelStreamBroken(f"the model broke off: {message}", **fields)
    if name in _UNAVAILABLE:
        return Unavailable(f"the model is not available: {message}", **fields)
    if name in _THROTTLED or status == 429:
        return Throttled(f"Bedrock asks for fewer requests: {message}", retry_after_s=retry_after_s, **fields)
    if status >= 500:
        return Unavailable(f"Bedrock is not available: {message}", **fields)
    hint = _ACCESS.get(name)
    return ModelFailed(f"{hint} ({message})" if hint else f"Bedrock refused the request: {message}", **fields)


def foreign_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_foreign` knows. An `except` clause evaluates this only when something was raised."""
    import httpx2

    boto = import_module("botocore.exceptions")
    frames, parsers = import_module("botocore.eventstream"), import_module("botocore.parsers")
    ours = (boto.BotoCoreError, boto.ClientError, frames.ParserError, parsers.ResponseParserError)
    return (*ours, httpx2.HTTPError, httpx2.StreamError)


def from_foreign(error: Exception) -> RepertoryError:
    """The error of ours for one of `foreign_errors`. Raise it `from` the original."""
    import httpx2

    boto, frames = import_module("botocore.exceptions"), import_module("botocore.eventstream")
    match error:
        case boto.ClientError():
            return _from_response(error.response)
        case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.NoAuthTokenError():
            return ModelFailed(_NO_CREDENTIALS)
        case boto.NoRegionError():
            return ModelFailed(_NO_REGION)
        case boto.HTTPClientError() | boto.ConnectionError():
            return Unavailable(f"Bedrock cannot be reached: {error}")
        case httpx2.HTTPError() | httpx2.StreamError():
            return ModelStreamBroken(f"the connection ended within an answer: {type(error).__name__}: {error}")
        case frames.ParserError():
            return ModelStreamBroken(f"the answer arrived damaged: {error}")
        case _:
            return ModelFailed(f"the model call failed: {error}")


def _from_response(response: Mapping[str, Any]) -> RepertoryError:
    details, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, message = str(details.get("Code", "Unknown")), str(details.get("Message", "no message"))
    return service_error(code, meta.get("HTTPStatusCode", 0), message, retry_after_s(meta.get("HTTPHeaders", {})))
