"""What AgentCore Memory says with words of its own, as errors of ours; the rest is in `aws_errors.py`.

    not there        no such memory, or event               NotFound
    over a bound     ServiceQuotaExceededException          LimitReached
    leave out        refused by validation                  Unwritable
    give up          not allowed                            Failed

Source: the service model of `bedrock-agentcore` (API version 2024-02-28).
"""

from __future__ import annotations

from repertory.backends.aws_errors import EXPIRED, OF_SESSIONS, UNKNOWN_KEY, WRONG_SIGNATURE, AwsErrors, Refusal
from repertory.errors import RepertoryError, StoreLimitReached, StoreNotFound, Unwritable

_ACCESS = (
    "the identity may not do this: allow bedrock-agentcore:CreateEvent, ListEvents, DeleteEvent and ListSessions on the"
    " memory"
)
_HINTS = {
    "accessdeniedexception": _ACCESS,
    "expiredtokenexception": EXPIRED,
    "unrecognizedclientexception": UNKNOWN_KEY,
    "invalidsignatureexception": WRONG_SIGNATURE,
}
_NO_MEMORY = "there is no such memory here: check memory_id and region_name, or create it and wait until it is active"


def _particular(refusal: Refusal) -> RepertoryError | None:
    if refusal.name == "resourcenotfoundexception":
        said = refusal.message.lower()
        missing = next((part for part in ("event", "session", "actor") if part in said), "memory")
        hint = _NO_MEMORY if missing == "memory" else "there is nothing of that name in the memory"
        return StoreNotFound(f"{hint} ({refusal.message})", missing=missing, **refusal.where)
    if refusal.name in ("validationexception", "invalidinputexception"):
        return Unwritable(f"AgentCore refused the request: {refusal.message}", **refusal.fields)
    if refusal.name == "servicequotaexceededexception":
        text = f"a quota of AgentCore is used up, which AWS can raise: {refusal.message}"
        return StoreLimitReached(text, **refusal.fields)
    return None


AGENTCORE_ERRORS = AwsErrors(service="AgentCore", hints=_HINTS, particular=_particular, kinds=OF_SESSIONS)
