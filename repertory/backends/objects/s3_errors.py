"""What goes wrong between us and S3, as errors of ours. The one place where its errors and botocore's are named.

    slow down        503 SlowDown, status 429, throttling                                 Throttled
    try again        other 5xx, no connection, no or half an answer, two writes at once   Unavailable
    not there        the object; never the bucket                                         NotFound
    conflict         status 412                                                           PreconditionFailed
    fix the call     no credentials, no region, no such profile, a bad bucket name        Invalid
    give up          no such bucket, wrong region, not allowed, wrong clock, all else     Failed

Source: Amazon S3 API reference, "Error responses".
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from repertory.errors import (
    Failed,
    Invalid,
    LimitReached,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    Throttled,
    Unavailable,
)

_THROTTLED = frozenset(
    (
        "slowdown",
        "throttling",
        "throttlingexception",
        "toomanyrequests",
        "toomanyrequestsexception",
        "requestlimitexceeded",
        "bandwidthlimitexceeded",
    )
)
_UNAVAILABLE = frozenset(
    ("internalerror", "serviceunavailable", "requesttimeout", "operationaborted", "conditionalrequestconflict")
)
_ACCESS = (
    "the identity may not do this: allow s3:GetObject, s3:PutObject and s3:DeleteObject on the bucket's objects, and"
    " s3:ListBucket on the bucket, without which S3 answers the same for an object that is not there"
)
_REGION = "the bucket is in another region: pass its region_name, or set AWS_REGION"
_CLOCK = "this machine's clock is too far from that of S3: set it, for example by NTP"
_EXPIRED = "the AWS credentials have expired: refresh them, for example with `aws sso login`"
_REFUSED = {
    "nosuchbucket": "there is no such bucket: create it, or name another",
    "accessdenied": _ACCESS,
    "allaccessdisabled": _ACCESS,
    "forbidden": _ACCESS,
    "403": _ACCESS,
    "permanentredirect": _REGION,
    "temporaryredirect": _REGION,
    "authorizationheadermalformed": _REGION,
    "illegallocationconstraintexception": _REGION,
    "301": _REGION,
    "requesttimetooskewed": _CLOCK,
    "requestexpired": _CLOCK,
    "invalidaccesskeyid": "AWS does not know these credentials: check AWS_ACCESS_KEY_ID",
    "signaturedoesnotmatch": "the signature does not match: check AWS_SECRET_ACCESS_KEY and the clock",
    "expiredtoken": _EXPIRED,
    "tokenrefreshrequired": _EXPIRED,
    "invalidtoken": _EXPIRED,
    "notimplemented": "this service does not know conditional writes, which keep two writers apart",
}
_NO_CREDENTIALS = (
    "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE,"
    " or pass boto_session"
)
_NO_REGION = "no AWS region is known: set AWS_REGION, or pass region_name"


def foreign_errors() -> tuple[type[Exception], ...]:
    """The classes that `from_foreign` knows. An `except` clause evaluates this only when something was raised."""
    import httpx2

    boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
    ours = (boto.BotoCoreError, boto.ClientError, parsers.ResponseParserError)
    return (*ours, httpx2.HTTPError, httpx2.StreamError)


def from_foreign(error: Exception, *, bucket: str, key: str) -> RepertoryError:
    """The error of ours for one of `foreign_errors`. Raise it `from` the original."""
    import httpx2

    boto, parsers = import_module("botocore.exceptions"), import_module("botocore.parsers")
    where: dict[str, object] = {"bucket": bucket, "key": key}
    match error:
        case boto.ClientError():
            return _from_response(error.response, where)
        case boto.NoCredentialsError() | boto.PartialCredentialsError() | boto.NoAuthTokenError():
            return Invalid(_NO_CREDENTIALS, **where)
        case boto.NoRegionError():
            return Invalid(_NO_REGION, **where)
        case boto.ProfileNotFound() | boto.ParamValidationError() | boto.InvalidRegionError():
            return Invalid(f"S3 cannot be asked so: {error}", **where)
        case boto.HTTPClientError() | boto.ConnectionError() | httpx2.HTTPError() | httpx2.StreamError():
            return Unavailable(f"S3 cannot be reached: {type(error).__name__}: {error}", **where)
        case parsers.ResponseParserError():
            return Unavailable(f"the answer is not one of S3: {error}", **where)
        case _:
            return Failed(f"the request to S3 failed: {error}", **where)


def _from_response(response: Mapping[str, Any], where: Mapping[str, object]) -> RepertoryError:
    details, meta = response.get("Error", {}), response.get("ResponseMetadata", {})
    code, message = str(details.get("Code", "unknown")), str(details.get("Message", "no message"))
    name, status = code.lower(), int(meta.get("HTTPStatusCode", 0))
    fields: dict[str, Any] = {**where, "code": code, "status": status}
    if name in _THROTTLED or status == 429:
        return Throttled(f"S3 asks for fewer requests: {message}", **fields)
    if name in _UNAVAILABLE or (status >= 500 and name not in _REFUSED):
        return Unavailable(f"S3 is not available: {message}", **fields)
    if name in ("nosuchkey", "404"):
        return NotFound("no such object", **where)
    if status == 412:
        return PreconditionFailed("the object is not the one that the condition wants", **where)
    if name == "keytoolongerror":
        return Invalid("the key is too long together with the prefix", **fields)
    if name == "entitytoolarge":
        return LimitReached("the object is too large", **fields)
    region = details.get("Region") or meta.get("HTTPHeaders", {}).get("x-amz-bucket-region")
    if region:
        fields["region"] = region
    hint = _REFUSED.get(name) or (_REGION if status in (301, 307) else None)
    return Failed(f"{hint} ({message})" if hint else f"S3 refused the request: {message}", **fields)
