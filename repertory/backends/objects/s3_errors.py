"""What S3 says with words of its own, as errors of ours; the rest is in `aws_errors.py`.

    try again        two writes at once                                                   Unavailable
    not there        the object; never the bucket                                         NotFound
    conflict         status 412                                                           PreconditionFailed
    fix the call     a bad bucket name, a key that is too long                            Invalid
    over a bound     the object is too large                                              LimitReached
    give up          no such bucket, wrong region, not allowed, wrong clock, all else     Failed

Source: Amazon S3 API reference, "Error responses".
"""

from __future__ import annotations

from repertory.backends.aws_errors import EXPIRED, OF_SESSIONS, UNKNOWN_KEY, WRONG_SIGNATURE, AwsErrors, Refusal
from repertory.errors import Invalid, NotFound, PreconditionFailed, RepertoryError, StoreLimitReached

_ACCESS = (
    "the identity may not do this: allow s3:GetObject, s3:PutObject and s3:DeleteObject on the bucket's objects, and"
    " s3:ListBucket on the bucket, without which S3 answers the same for an object that is not there"
)
_REGION = "the bucket is in another region: pass its region_name, or set AWS_REGION"
_CLOCK = "this machine's clock is too far from that of S3: set it, for example by NTP"
_HINTS = {
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
    "invalidaccesskeyid": UNKNOWN_KEY,
    "signaturedoesnotmatch": WRONG_SIGNATURE,
    "expiredtoken": EXPIRED,
    "tokenrefreshrequired": EXPIRED,
    "invalidtoken": EXPIRED,
    "notimplemented": "this service does not know conditional writes, which keep two writers apart",
}


def _particular(refusal: Refusal) -> RepertoryError | None:
    if refusal.name in ("nosuchkey", "404"):
        return NotFound("no such object", **refusal.where)
    if refusal.status == 412:
        return PreconditionFailed("the object is not the one that the condition wants", **refusal.where)
    if refusal.name == "keytoolongerror":
        return Invalid("the key is too long together with the prefix", **refusal.fields)
    if refusal.name == "entitytoolarge":
        return StoreLimitReached("the object is too large", **refusal.fields)
    headers = refusal.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = refusal.response.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
    hint = _HINTS.get(refusal.name) or (_REGION if refusal.status in (301, 307) else None)
    return refusal.failed(hint, {"region": region} if region else None)


S3_ERRORS = AwsErrors(service="S3", hints=_HINTS, particular=_particular, kinds=OF_SESSIONS)
