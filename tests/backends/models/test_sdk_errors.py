"""Tables: refusals as errors of ours, how long to wait, what counts as too long, and how server-sent events are cut."""

from __future__ import annotations

import random

import pytest

from repertory.backends.models.anthropic import ANTHROPIC
from repertory.backends.models.openai import OPENAI
from repertory.backends.models.provider import is_overflow, retry_after_s
from repertory.backends.models.sdk import EventDecoder, ModelService, refusal_error, stream_error
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    RepertoryError,
    Throttled,
    Unavailable,
)


@pytest.mark.parametrize("service", [ANTHROPIC, OPENAI], ids=lambda service: service.name)
@pytest.mark.parametrize(
    ("status", "codes", "message", "expected"),
    [
        (429, (), "Too many requests", Throttled),
        (0, ("rate_limit_error",), "", Throttled),
        (0, ("rate_limit_exceeded", "requests"), "", Throttled),
        (429, ("insufficient_quota",), "You exceeded your current quota", ModelFailed),
        (402, ("billing_error",), "", ModelFailed),
        (500, (), "", Unavailable),
        (502, (), "", Unavailable),
        (529, ("overloaded_error",), "Overloaded", Unavailable),
        (0, ("overloaded_error",), "Overloaded", Unavailable),
        (0, ("api_error",), "", Unavailable),
        (408, (), "", Unavailable),
        (409, (), "", Unavailable),
        (400, ("context_length_exceeded", "invalid_request_error"), "", ContextWindowOverflowException),
        (400, ("exceed_context_size_error",), "", ContextWindowOverflowException),
        (400, ("invalid_request_error",), "prompt is too long: 9 > 8", ContextWindowOverflowException),
        (
            400,
            ("invalid_request_error",),
            "input length and `max_tokens` exceed context limit: 9 + 9 > 10",
            ContextWindowOverflowException,
        ),
        (
            429,
            ("rate_limit_exceeded", "tokens"),
            "Request too large: the input or output tokens must be reduced in order to run successfully.",
            ContextWindowOverflowException,
        ),
        (413, (), "Payload too large", ContextWindowOverflowException),
        (400, ("invalid_request_error",), "bad", ModelFailed),
        (401, (), "", ModelFailed),
        (403, (), "", ModelFailed),
        (404, (), "", ModelFailed),
        (422, (), "", ModelFailed),
        (0, (), "", ModelFailed),
    ],
)
def test_a_refusal_is_named_by_the_callers_next_move(
    service: ModelService, status: int, codes: tuple[str, ...], message: str, expected: type[RepertoryError]
) -> None:
    error = refusal_error(service, status, message, *codes)
    assert type(error) is expected
    assert error.fields == {**({"status": status} if status else {}), **({"code": codes[0]} if codes else {})}


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, Unavailable),
        ({"error": {"code": 429, "type": "rate_limit_exceeded", "message": "slow down"}}, Throttled),
        ({"error": "something went wrong"}, ModelFailed),
        ({"object": "error", "message": "maximum context length is 8"}, ContextWindowOverflowException),
        ({"error": ["?"]}, ModelFailed),
    ],
)
def test_an_error_within_an_answer_is_read_in_any_spelling(
    piece: dict[str, object], expected: type[RepertoryError]
) -> None:
    assert type(stream_error(OPENAI, piece)) is expected


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "7", "retry-after-ms": "250"}, 0.25),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:27:00 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 99999999999999999999 07:28:30 GMT", "date": "no date"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 99999999999:28:30 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 +9999999999999999999999"}, None),
    ],
)
def test_the_wait_that_a_service_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.parametrize(
    ("message", "too_long"),
    [
        ("This model's maximum context length is 8192 tokens. However, you requested 9000 tokens", True),
        ("the request exceeds the available context size (4096), try increasing it", True),
        ("Input tokens exceed the configured limit of 272000 tokens", True),
        ("Your input exceeds the context window of this model", True),
        ("The input token count (9) exceeds the maximum number of tokens allowed (8)", True),
        ("PROMPT IS TOO LONG", True),
        ("max_tokens: 9 > 8, which is the maximum allowed number of output tokens", False),
        ("messages: text content blocks must be non-empty", False),
        ("", False),
    ],
)
def test_what_counts_as_too_long(message: str, too_long: bool) -> None:
    assert is_overflow(message) is too_long


EVENTS = (
    b'data: {"a": 1}\n\n'
    b": a comment\r\nevent: x\r\ndata:two\r\ndata:  lines\r\n\r\n"
    b"id: 3\n\n\n"
    b"data: \xc3\xa9\n\n"
    b"data: cut"
)


def test_events_are_cut_alike_however_the_bytes_arrive(rng: random.Random) -> None:
    expected = ['{"a": 1}', "two\n lines", "é"]
    assert list(EventDecoder().feed(EVENTS)) == expected
    for _ in range(50):
        cuts = sorted(rng.sample(range(len(EVENTS)), rng.randrange(1, 12)))
        decoder = EventDecoder()
        chunks = [EVENTS[start:end] for start, end in zip([0, *cuts], [*cuts, len(EVENTS)], strict=True)]
        assert [data for chunk in chunks for data in decoder.feed(chunk)] == expected


def test_events_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        list(EventDecoder().feed(b"data: \xff\n\n"))
