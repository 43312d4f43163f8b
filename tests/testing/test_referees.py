"""Referees of model services: each rule refuses what it says, and lets its neighbour pass."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from repertory.errors import Invalid
from repertory.testing.referees import anthropic, bedrock, gemini, mistral, ollama, openai_chat, openai_responses
from repertory.testing.referees.rules import ServiceRule
from repertory.testing.referees.services import REFEREES, RULES, service_refusal
from tests.testing.referee_examples import EXAMPLES, SAYS, Example, chat, claude

MODULES = (anthropic, bedrock, gemini, mistral, ollama, openai_chat, openai_responses)
CASES = [
    pytest.param(rule, example, id=f"{rule}-{number}")
    for rule, examples in EXAMPLES.items()
    for number, example in enumerate(examples)
]


@pytest.mark.parametrize(("rule", "example"), CASES)
def test_a_rule_refuses_its_example_and_accepts_what_stands_beside_it(rule: str, example: Example) -> None:
    service, accepted, refused = example
    assert service_refusal(service, accepted) is None
    refusal = service_refusal(service, refused)
    assert refusal is not None
    assert refusal.rule == rule, refusal
    assert refusal.status >= 400
    assert refusal.message
    assert refusal.path
    assert refusal.code


def test_every_rule_has_an_example() -> None:
    assert RULES.keys() == EXAMPLES.keys()


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.id)
def test_a_rule_is_one_sentence_with_a_public_source(rule: ServiceRule) -> None:
    assert rule.source.startswith("https://")
    assert rule.words.endswith(".")
    assert rule.words[0].isupper()
    assert rule.applies_to


def test_no_two_rules_have_one_id() -> None:
    assert len(RULES) == sum(len(module.RULES) for module in MODULES)
    assert all(rule.id == name for name, rule in RULES.items())


def test_a_service_without_a_referee_is_named() -> None:
    with pytest.raises(Invalid, match="no referee"):
        service_refusal("nobody", {})


def test_the_first_part_that_breaks_a_rule_is_named() -> None:
    refusal = service_refusal(
        "anthropic", claude({"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "x"}]})
    )
    assert refusal is not None
    assert refusal.path == "messages.0.content.1"


def test_a_request_of_another_service_is_judged_by_that_services_rules() -> None:
    long_id = "x" * 41
    calls: list[Any] = [{"id": long_id, "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    asked = {"role": "assistant", "content": None, "tool_calls": calls}
    request = chat(SAYS, asked, {"role": "tool", "tool_call_id": long_id, "content": "8"})
    assert service_refusal("openai", request) is not None
    assert service_refusal("openrouter", request) is None


JSON = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.text(max_size=3)
    | some.sampled_from(["user", "assistant", "tool"]),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(
            some.sampled_from(
                [
                    "role",
                    "content",
                    "type",
                    "text",
                    "parts",
                    "toolUse",
                    "toolResult",
                    "functionCall",
                    "tool_calls",
                    "image",
                    "id",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("service", sorted(REFEREES))
@given(messages=JSON, tools=JSON)
def test_no_request_confuses_a_referee(service: str, messages: object, tools: object) -> None:
    request = dict.fromkeys(("messages", "contents", "input", "system"), messages) | {
        "tools": tools,
        "toolConfig": tools,
        "model": "gemini-3-pro",
        "modelId": "claude",
        "thinking": {"type": "enabled"},
    }
    refusal = service_refusal(service, request)
    assert refusal is None or refusal.rule in RULES
