"""How services say that a conversation does not fit the model's window.

None of them has a status of its own for it that all models use, so it is known by its words. Gateways pass on what the
service behind them said, hence one list for all.

Source: the services' own messages, as they were seen.
"""

from __future__ import annotations

_CODES = frozenset(("context_length_exceeded", "exceed_context_size_error", "request_too_large"))
_WORDS = (
    "input is too long",
    "prompt is too long",
    "input length and `max_tokens` exceed context limit",
    "input length exceeds context window",
    "input and output tokens exceed your context limit",
    "exceeds the context window",
    "exceeds the available context size",
    "exceeds the maximum number of tokens",
    "greater than the context length",
    "maximum context length",
    "input tokens exceed the configured limit",
    "must be reduced in order to run successfully",
    "request size exceeds model context window",
    "too many input tokens",
    "too many total text bytes",
)


def is_overflow(message: str, *codes: str) -> bool:
    """Whether a refusal means that the messages must become shorter. Codes are compared in lower case."""
    text = message.lower()
    return any(code.lower() in _CODES for code in codes) or any(words in text for words in _WORDS)
