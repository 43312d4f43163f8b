"""What knowledge bases say with words of their own, as errors of ours; the rest is in `aws_errors.py`.

    try again        the knowledge base is being changed, or its database wakes up     Unavailable
    not there        no such knowledge base, or data source                            NotFound
    over a bound     ServiceQuotaExceededException                                     LimitReached
    fix the call     an access control list is missing                                 Invalid
    give up          not allowed, refused by validation                                Failed

Source: the service models of `bedrock-agent` (2023-06-05) and `bedrock-agent-runtime` (2023-07-26).
"""

from __future__ import annotations

from repertory.backends.aws_errors import EXPIRED, UNKNOWN_KEY, WRONG_SIGNATURE, AwsErrors, Refusal
from repertory.errors import Invalid, LimitReached, NotFound, RepertoryError, Unavailable

NOT_ALLOWED = "accessdeniedexception"
_ACCESS = (
    "the identity may not do this: allow bedrock:Retrieve on the knowledge base, and to write"
    " bedrock:IngestKnowledgeBaseDocuments"
)
_HINTS = {
    NOT_ALLOWED: _ACCESS,
    "expiredtokenexception": EXPIRED,
    "unrecognizedclientexception": UNKNOWN_KEY,
    "invalidsignatureexception": WRONG_SIGNATURE,
}
_ACCESS_LIST = (
    "the data source wants to know who may see a document: give the store an access_control_list, and a scope or"
    " metadata"
)


def _particular(refusal: Refusal) -> RepertoryError | None:
    said = refusal.message.lower()
    # An Aurora database that has paused itself is woken by the request that is refused so.
    if refusal.name in ("conflictexception", "dependencyfailedexception") or "auto-paused" in said:
        return Unavailable(f"the knowledge base is not ready: {refusal.message}", **refusal.fields)
    if refusal.name == "resourcenotfoundexception":
        hint = "there is no such knowledge base or data source here: check their ids and region_name"
        return NotFound(f"{hint} ({refusal.message})", **refusal.where)
    if refusal.name == "servicequotaexceededexception":
        text = f"a quota of knowledge bases is used up, which AWS can raise: {refusal.message}"
        return LimitReached(text, **refusal.fields)
    if refusal.name == "validationexception" and "accesscontrollist" in said:
        return Invalid(f"{_ACCESS_LIST} ({refusal.message})", **refusal.fields)
    return None


KNOWLEDGE_BASE_ERRORS = AwsErrors(service="the knowledge base", hints=_HINTS, particular=_particular)
