"""How services say that a conversation is too long, and how long to wait."""

from __future__ import annotations

import pytest

from repertory.backends.models.provider import is_overflow, retry_after_s

TOO_LONG = [
    "The model returned the following errors: Input Tokens Exceeded: Number of input tokens exceeds maximum length. "
    "Please update the input to try again.",
    "The decoder prompt (length 10127) is longer than the maximum model length of 8192. Make sure that it fits.",
    "The prompt (total length 25938) is too long to fit into the model (context length 4096).",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length "
    "of only 4096 tokens, which is not enough.",
    "Trying to keep the first 20042 tokens when the context overflows.",
    "request (53192 tokens) exceeds context size (50176 tokens)",
    "request (1207 tokens) exceeds the available context size (512 tokens), try increasing it",
]
OTHERS = [
    "The tool is trying to keep the first row of the table.",
    "The file name exceeds the maximum length of 255 characters.",
    "stop: array longer than the maximum length of 4",
    "The image is too long to fit into the frame.",
    "max_tokens exceeds the number of output tokens of this model.",
    "The text field overflows.",
    "metadata: context is not a field",
    "The number of tools exceeds the maximum of 128.",
    "The request needs more tokens than the account has left today.",
]


@pytest.mark.parametrize("message", TOO_LONG)
def test_a_conversation_that_is_too_long_is_known_by_the_services_words(message: str) -> None:
    assert is_overflow(message)
    assert is_overflow(message.upper())


@pytest.mark.parametrize("message", OTHERS)
def test_other_refusals_are_not_taken_for_it(message: str) -> None:
    assert not is_overflow(message)


def test_a_code_says_it_too() -> None:
    assert is_overflow("The total length of all messages is too long.", "too_many_prompt_tokens")
    assert not is_overflow("The total length of all messages is too long.", "too_many_requests")


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after-ms": "0", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "0"}, 0.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "0", "retry-after": "soon"}, 0.0),
        (
            {
                "retry-after-ms": "0",
                "retry-after": "Fri, 31 Dec 1999 23:59:59 GMT",
                "date": "Fri, 31 Dec 1999 23:59:49 GMT",
            },
            10.0,
        ),
        ({}, None),
    ],
)
def test_no_milliseconds_are_no_word_against_the_seconds(headers: dict[str, str], wait_s: float | None) -> None:
    assert retry_after_s(headers) == wait_s
