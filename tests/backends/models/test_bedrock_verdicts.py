"""Two tables: errors of the service as errors of ours, and what a guardrail's verdict replaces."""

from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions as boto

from repertory.app.host.model_choice import bedrock_configured
from repertory.backends.models.bedrock import (
    REDACTED_INPUT,
    REDACTED_OUTPUT,
    BedrockConfig,
    from_bedrock_error,
    redaction,
    service_error,
)
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)


@pytest.mark.parametrize(
    ("code", "status", "message", "expected"),
    [
        ("ThrottlingException", 429, "Too many requests", Throttled),
        ("throttlingException", 0, "Too many requests", Throttled),
        ("TooManyRequestsException", 429, "", Throttled),
        ("ServiceQuotaExceededException", 400, "", Throttled),
        ("Unknown", 429, "", Throttled),
        ("ModelNotReadyException", 429, "", Unavailable),
        ("ModelTimeoutException", 408, "", Unavailable),
        ("ModelErrorException", 424, "", Unavailable),
        ("ServiceUnavailableException", 503, "", Unavailable),
        ("serviceUnavailableException", 0, "", Unavailable),
        ("internalServerException", 0, "", Unavailable),
        ("Unknown", 502, "", Unavailable),
        ("modelStreamErrorException", 0, "", ModelStreamBroken),
        ("ValidationException", 400, "Input is too long for requested model.", ContextWindowOverflowException),
        (
            "ValidationException",
            400,
            "input length and `max_tokens` exceed context limit: 9 + 9 > 10",
            ContextWindowOverflowException,
        ),
        ("ValidationException", 400, "too many total text bytes: 9 > 8", ContextWindowOverflowException),
        ("validationException", 0, "prompt is too long: 9 tokens > 8 maximum", ContextWindowOverflowException),
        ("ModelErrorException", 424, "This model's maximum context length is 8", ContextWindowOverflowException),
        ("ValidationException", 400, "The model id is invalid.", ModelFailed),
        ("AccessDeniedException", 403, "User is not authorized", ModelFailed),
        ("ResourceNotFoundException", 404, "", ModelFailed),
        ("SomethingNew", 400, "", ModelFailed),
    ],
)
def test_a_refusal_is_named_by_the_callers_next_move(
    code: str, status: int, message: str, expected: type[RepertoryError]
) -> None:
    assert type(service_error(code, status, message)) is expected


@pytest.mark.parametrize(
    ("error", "expected", "words"),
    [
        (boto.NoCredentialsError(), ModelFailed, "set AWS_ACCESS_KEY_ID"),
        (boto.PartialCredentialsError(provider="env", cred_var="x"), ModelFailed, "set AWS_ACCESS_KEY_ID"),
        (boto.NoRegionError(), ModelFailed, "set AWS_REGION"),
        (boto.ProfileNotFound(profile="x"), ModelFailed, "profile"),
        (boto.EndpointConnectionError(endpoint_url="http://x"), Unavailable, "cannot be reached"),
        (boto.ReadTimeoutError(endpoint_url="http://x"), Unavailable, "cannot be reached"),
        (boto.ConnectTimeoutError(endpoint_url="http://x"), Unavailable, "cannot be reached"),
        (boto.ParamValidationError(report="x"), ModelFailed, "the model call failed"),
    ],
)
def test_client_errors_say_what_to_do(error: Exception, expected: type[RepertoryError], words: str) -> None:
    found = from_bedrock_error(error)
    assert type(found) is expected
    assert words in str(found)


BLOCKED = {"g": {"topicPolicy": {"topics": [{"name": "x", "action": "BLOCKED", "detected": True}]}}}
NOT_DETECTED = {"g": {"topicPolicy": {"topics": [{"name": "x", "action": "BLOCKED", "detected": False}]}}}
ANONYMISED = {"g": {"piiEntities": [{"action": "ANONYMIZED", "detected": True}]}}


@pytest.mark.parametrize(
    ("config", "trace", "redacted"),
    [
        ({}, {"inputAssessment": BLOCKED}, {"redactUserContentMessage": REDACTED_INPUT}),
        ({}, {"outputAssessments": {"g": [BLOCKED]}}, {}),
        (
            {"guardrail_redact_output": True},
            {"outputAssessments": {"g": [BLOCKED]}},
            {"redactAssistantContentMessage": REDACTED_OUTPUT},
        ),
        ({}, {"inputAssessment": NOT_DETECTED}, {}),
        ({}, {"inputAssessment": ANONYMISED}, {}),
        ({}, None, {"redactUserContentMessage": REDACTED_INPUT}),
        ({"guardrail_redact_input": False}, {"inputAssessment": BLOCKED}, {}),
        ({"guardrail_redact_input_message": "-"}, {"inputAssessment": BLOCKED}, {"redactUserContentMessage": "-"}),
    ],
    ids=["input", "output left", "output", "not detected", "anonymised", "no trace", "switched off", "own text"],
)
def test_what_was_blocked_is_replaced_and_nothing_else(
    config: BedrockConfig, trace: dict[str, Any] | None, redacted: dict[str, str]
) -> None:
    """The SDK whose users we serve redacts clean input for blocked output, and nothing when there is no trace."""
    metadata = {} if trace is None else {"trace": {"guardrail": trace}}
    expected = {"redactContent": redacted} if redacted else None
    assert redaction(config, "guardrail_intervened", metadata) == expected
    assert redaction(config, "end_turn", metadata) is None


@pytest.mark.parametrize(
    ("environ", "configured"),
    [
        ({}, False),
        ({"AWS_REGION": "us-east-1"}, False),
        ({"AWS_ACCESS_KEY_ID": "a"}, False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, True),
        ({"AWS_PROFILE": "work"}, True),
        ({"AWS_PROFILE": ""}, False),
        ({"AWS_BEARER_TOKEN_BEDROCK": "x"}, True),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/x"}, True),
    ],
)
def test_bedrock_is_configured_when_the_environment_names_credentials(
    environ: dict[str, str], configured: bool
) -> None:
    assert bedrock_configured(environ) is configured
