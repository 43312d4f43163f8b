"""What goes wrong between us and AgentCore Memory, as errors of ours. The one place where its errors are named.

    slow down        ThrottledException, status 429                                        Throttled
    try again        ServiceException, RetryableConflictException, 5xx, no or half answer  Unavailable
    not there        no such memory, or event                                              NotFound
    over a bound     ServiceQuotaExceededException                                         LimitReached
    fix the call     no credentials, no region, no such profile                            Invalid
    give up          not allowed, refused by validation, all else                          Failed

Source: the service model of `bedrock-agentcore` (API version 2024-02-28).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from repertory.errors import Failed, Invalid, LimitReached, NotFound, RepertoryError, Throttled, Unavailable

_THROTTLED = frozenset(("throttledexception", "throttlingexception", "toomanyrequestsexception"))
_UNAVAILABLE = frozenset(("serviceexception", "retryableconflictexception", "internalserverexception"))
_ACCESS = (
    "the identity may not do this: allow bedrock-agentcore:CreateEvent, ListEvents, DeleteEvent and ListSessions on the"
    " memory"
)
_EXPIRED = "the AWS credentials have expired: refresh them, for example with `aws sso login`"
_REFUSED = {
    "accessdeniedexception": _ACCESS,
    "expiredtokenexception": _EXPIRED,
    "unrecognizedclientexception": "AWS does not know these credentials: check AWS_ACCESS_KEY_ID",
    "invalidsignatureexception": "the signature does not match: check AWS_SECRET_ACCESS_KEY and the clock",
    "validationexception": "AgentCore refused the request",
    "invalidinputexception": "AgentCore refused the request",
}
_NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE,"
    " or pass boto_session"
)
_NO_REGION = "no AWS region is known: set AWS_REGION, or pass region_name"
_NO_MEMORY = "there is no such memory here: check memory_id and region_name, or create it and wait until it is active"


def foreign_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_foreign` knows. An `except` clause evaluates this only when something was raised."""
    import httpx2

    boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
    ours = (boto.BotoCoreError, boto.ClientError, parsers.ResponseParserError)
    return (*ours, httpx2.HTTPError, httpx2.StreamError)


def from_foreign(error: Exception, where: Mapping[str, object]) -> RepertoryError:
    """The error of ours for one of `foreign_errors`, with `where` as fields. Raise it `from` the original."""
    import httpx2

    boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
    match error:
        case boto.ClientError():
            return _from_response(error.response, where)
        case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.NoAuthTokenError():
            return Invalid(_NO_CREDENTIALS, **where)
        case boto.NoRegionError():
            return Invalid(_NO_REGION, **where)
        case boto.ProfileNotFound() | boto.ParamValidationError() | boto.InvalidRegionError():
            return Invalid(f"AgentCore cannot be asked so: {error}", **where)
        case boto.HTTPClientError() | boto.ConnectionError() | httpx2.HTTPError() | httpx2.StreamError():
            return Unavailable(f"AgentCore cannot be reached: {type(error).__name__}: {error}", **where)
        case parsers.ResponseParserError():
            return Unavailable(f"the answer is not one of AgentCore: {error}", **where)
        case _:
            return Failed(f"the request to AgentCore failed: {error}", **where)


def _from_response(response: Mapping[str, Any], where: Mapping[str, object]) -> RepertoryError:
    details, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, message = str(details.get("Code", "unknown")), str(details.get("Message", "no message"))
    name, status = code.lower(), int(meta.get("HTTPStatusCode", 0))
    fields: dict[str, Any] = {**where, "code": code, "status": status}
    if name in _THROTTLED or status == 429:
        return Throttled(f"AgentCore asks for fewer requests: {message}", **fields)
    if name in _UNAVAILABLE or status >= 500:
        return Unavailable(f"AgentCore is not available: {message}", **fields)
    if name == "resourcenotfoundexception":
        missing = next((part for part in ("event", "session", "actor") if part in message.lower()), "memory")
        hint = _NO_MEMORY if missing == "memory" else "there is nothing of that name in the memory"
        return NotFound(f"{hint} ({message})", missing=missing, **where)
    if name == "servicequotaexceededexception":
        return LimitReached(f"a quota of AgentCore is used up, which AWS can raise: {message}", **fields)
    hint = _REFUSED.get(name)
    return Failed(f"{hint} ({message})" if hint else f"AgentCore refused the request: {message}", **fields)
