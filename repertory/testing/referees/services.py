"""All referees by the names of their services, and all rules in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from repertory.errors import Invalid
from repertory.testing.referees import anthropic, bedrock, gemini, mistral, ollama, openai_chat, openai_responses
from repertory.testing.referees.rules import ServiceRefusal, ServiceRule, WireRequest

Referee = Callable[[WireRequest], ServiceRefusal | None]
"""A function that takes a request as it goes over the wire, and returns the service's refusal, or None."""

REFEREES: Mapping[str, Referee] = {
    "anthropic": anthropic.anthropic_refusal,
    "bedrock": bedrock.bedrock_refusal,
    "gemini": gemini.gemini_refusal,
    "mistral": mistral.mistral_refusal,
    "ollama": ollama.ollama_refusal,
    "openai-responses": openai_responses.openai_responses_refusal,
    **{
        name: partial(openai_chat.openai_chat_refusal, service=name)
        for name in ("openai", "azure", "deepseek", "groq", "moonshot", "openrouter", "compatible")
    },
}
"""The referee of each service; `compatible` is any other one with the protocol of Chat Completions."""

RULES: Mapping[str, ServiceRule] = {
    rule_id: rule
    for module in (anthropic, bedrock, gemini, mistral, ollama, openai_chat, openai_responses)
    for rule_id, rule in module.RULES.items()
}
"""Every rule of every service by its id."""


def service_refusal(service: str, request: WireRequest) -> ServiceRefusal | None:
    """The refusal of a service; None if it accepts the request.

    Args:
        service: A name of `REFEREES`, such as `anthropic`.
        request: The request as it goes over the wire.

    Raises:
        Invalid: For a service without a referee. Choose one that the error names.

    Examples:
        >>> service_refusal("openai", {"model": "gpt-5.4", "messages": [{"role": "user", "content": []}]}).rule
        'openai-chat-content'
    """
    if service not in REFEREES:
        raise Invalid("there is no referee of this service", service=service, known=", ".join(sorted(REFEREES)))
    return REFEREES[service](request)
