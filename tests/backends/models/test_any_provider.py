"""A conversation goes on with any provider, whatever it holds and whoever said it: referees accept each request."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repertory.backends.models.provider import ModelCall
from repertory.backends.wire_json import body
from repertory.core.messages import Message
from repertory.core.provider_content import MCP_APPROVAL
from repertory.testing.referees.services import REFEREES
from repertory.testing.strict_provider import _service
from tests.backends.models.any_history import NATIVE, histories
from tests.backends.models.test_responses_items import SHELL_OUTPUT

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("anthropic", "claude-opus-4-8"),
    ("bedrock", "global.anthropic.claude-sonnet-4-6"),
    ("bedrock", "us.amazon.nova-pro-v1:0"),
    ("bedrock", "us.amazon.nova-2-lite-v1:0"),
    ("bedrock", "us.meta.llama4-maverick-17b-instruct-v1:0"),
    ("bedrock", "us.deepseek.r1-v1:0"),
    ("bedrock", "mistral.mistral-large-2407-v1:0"),
    ("bedrock", "minimax.minimax-m2"),
    ("bedrock", "openai.gpt-oss-120b-1:0"),
    ("openai", "gpt-5.4"),
    ("azure", "gpt-5.4"),
    ("deepseek", "deepseek-reasoner"),
    ("groq", "llama-3.3-70b-versatile"),
    ("moonshot", "kimi-k2-thinking"),
    ("openrouter", "anthropic/claude-sonnet-4.5"),
    ("compatible", "any"),
    ("openai-responses", "gpt-5.4"),
    ("gemini", "gemini-2.5-flash"),
    ("gemini", "gemini-3-pro-preview"),
    ("mistral", "mistral-large-latest"),
    ("ollama", "llama3.2"),
]
TOOLS: list[Any] = [
    {"name": name, "description": "A tool.", "inputSchema": {"json": {"type": "object", "properties": {}}}}
    for name in ("fetch", "look_up", "x" * 90)
]


def strict_request(service: str, call: ModelCall) -> dict[str, Any]:
    return body(_service(service).request(call))


def call(messages: list[Message], model_id: str, tools: list[Any]) -> ModelCall:
    return ModelCall(
        config={"model_id": model_id, "max_tokens": 100} if "claude" in model_id else {"model_id": model_id},
        messages=messages,
        tool_specs=tools,
        system_prompt="Be brief.",
        system_prompt_content=None,
        tool_choice=None,
    )


def accepted(service: str, model_id: str, messages: list[Message], tools: list[Any]) -> None:
    before = deepcopy(messages)
    request = strict_request(service, call(messages, model_id, tools))
    refusal = REFEREES[service](request)
    assert refusal is None, f"{service} {model_id}: {refusal}\n{request}"
    assert messages == before  # What is stored never changes.
    assert strict_request(service, call(messages, model_id, tools)) == request  # So caches hold.


@pytest.mark.parametrize(("service", "model_id"), MODELS, ids=[f"{service} {model}" for service, model in MODELS])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(messages=histories(), tools=st.sampled_from([[], TOOLS]))
def test_any_history_is_accepted(service: str, model_id: str, messages: list[Message], tools: list[Any]) -> None:
    accepted(service, model_id, messages, tools)


@pytest.mark.parametrize(("service", "model_id"), MODELS, ids=[f"{service} {model}" for service, model in MODELS])
@pytest.mark.parametrize("native", NATIVE, ids=[str(number) for number in range(len(NATIVE))])
def test_each_kind_of_server_side_part_is_accepted_or_left_out(
    service: str, model_id: str, native: list[dict[str, Any]]
) -> None:
    answer: Any = {"role": "assistant", "content": [{"text": "I look."}, *native, {"text": "Found."}]}
    messages: list[Any] = [{"role": "user", "content": [{"text": "Go."}]}, answer]
    accepted(service, model_id, [*messages, {"role": "user", "content": [{"text": "And now?"}]}], [])


@pytest.mark.parametrize(("service", "model_id"), MODELS, ids=[f"{service} {model}" for service, model in MODELS])
@pytest.mark.parametrize("odd", [{"a": [1]}, [{}], None, 5], ids=["object", "list", "null", "number"])
def test_odd_values_in_a_stored_server_side_part_end_no_conversation(service: str, model_id: str, odd: Any) -> None:
    """The service that made the part may refuse it. Building the request does not fail, whoever asks."""
    question: Any = {"role": "user", "content": [{"text": "Go."}]}
    approval = {"type": MCP_APPROVAL, "id": "mcpr_1", "server_label": "s", "name": "n", "arguments": "{}"}
    parts = [block["providerContent"] for native in NATIVE for block in native]
    parts += [{"provider": "openai", "content": each} for each in (approval, SHELL_OUTPUT)]
    for part in parts:
        for name in part["content"]:
            spoiled = {"provider": part["provider"], "content": {**part["content"], name: odd}}
            use = {"toolUseId": "u", "name": MCP_APPROVAL, "input": {**approval, "id": odd}}
            content = [
                {"text": "I"},
                {"providerContent": spoiled},
                {"cachePoint": {"type": "default"}},
                {"toolUse": use},
            ]
            answer: Any = {"role": "assistant", "content": content}
            result: Any = {"toolResult": {"toolUseId": "u", "content": [{"text": "no"}], "status": "error"}}
            strict_request(service, call([question, answer, {"role": "user", "content": [result]}], model_id, []))
