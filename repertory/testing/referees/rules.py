"""The types of the referees: a request, a rule of a service, and a refusal by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class ServiceRule(Struct, frozen=True, kw_only=True):
    """A thing that a service does not accept.

    Attributes:
        id: The rule's name, such as `anthropic-blank-text`. It is unique among all referees.
        applies_to: The service, or the models of it, that have this rule.
        words: The rule in one plain sentence.
        source: The public page or issue that says so.
        refused: False if the service accepts the request and then answers badly. A referee refuses it all the same.

    Examples:
        >>> from repertory.testing.referees.services import RULES
        >>> RULES["mistral-call-id"].words
        'The id of a tool call has exactly nine letters and digits.'
    """

    id: str
    applies_to: str
    words: str
    source: str
    refused: bool = True


class ServiceRefusal(Struct, frozen=True, kw_only=True):
    """A service's answer to a request that it does not accept.

    Attributes:
        rule: The id of the rule that the request breaks.
        path: The part of the request that breaks it, such as `messages.2.content.0`.
        message: The service's own words.
        status: The HTTP status.
        code: The service's own code, such as `invalid_request_error`.

    Examples:
        >>> from repertory.testing.referees.services import service_refusal
        >>> service_refusal("ollama", {"messages": []})
        ServiceRefusal(rule='ollama-model', path='model', message='model is required', status=400, code='bad_request')
    """

    rule: str
    path: str
    message: str
    status: int = 400
    code: str = "invalid_request_error"


WireRequest = Mapping[str, Any]
"""A request as it goes over the wire."""
