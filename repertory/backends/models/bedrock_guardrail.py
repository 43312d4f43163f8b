"""What a guardrail's verdict means for the conversation: which of the two messages is to be replaced.

Pure. The trace of the answer tells whether the input or the output was blocked. Without a trace nobody can tell, so
blocked then means the input too: keeping a text that was refused is worse than hiding one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from repertory.backends.models.bedrock_request import BedrockConfig
    from repertory.backends.ports import StreamEvent

INTERVENED = "guardrail_intervened"
"""The stop reason of an answer that a guardrail has replaced."""
REDACTED_INPUT = "[User input redacted.]"
REDACTED_OUTPUT = "[Assistant output redacted.]"


def redaction(config: BedrockConfig, stop_reason: str | None, metadata: Mapping[str, Any]) -> StreamEvent | None:
    """The `redactContent` event that a blocked answer calls for, None when nothing is to be replaced."""
    if stop_reason != INTERVENED:
        return None
    trace = metadata.get("trace", {}).get("guardrail")
    body: dict[str, str] = {}
    if config.get("guardrail_redact_input") is not False and (not trace or _blocked(trace.get("inputAssessment"))):
        body["redactUserContentMessage"] = config.get("guardrail_redact_input_message") or REDACTED_INPUT
    if config.get("guardrail_redact_output") and (not trace or _blocked(trace.get("outputAssessments"))):
        body["redactAssistantContentMessage"] = config.get("guardrail_redact_output_message") or REDACTED_OUTPUT
    return {"redactContent": body} if body else None


def _blocked(assessment: object) -> bool:
    """Whether anything in the assessment was found and blocked, however deep it stands."""
    if isinstance(assessment, Mapping):
        found = cast("Mapping[str, object]", assessment)
        blocked = found.get("action") == "BLOCKED" and found.get("detected", True) is True
        return blocked or any(_blocked(value) for value in found.values())
    if isinstance(assessment, list | tuple):
        return any(_blocked(value) for value in cast("Sequence[object]", assessment))
    return False
