"""A model for tests that refuses what a real service would refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from repertory import Agent, tool
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message, ToolSpec
from repertory.errors import ContextWindowOverflowException, Invalid, LimitReached, ModelFailed
from repertory.testing.referees import anthropic, bedrock, rules
from repertory.testing.referees.services import REFEREES
from repertory.testing.strict_provider import StrictProvider

pytestmark = pytest.mark.anyio

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
LOOK: list[ToolSpec] = [{"name": "look", "description": "Looks.", "inputSchema": {"json": {"type": "object"}}}]
LOOKED: list[Message] = [
    *HELLO,
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "tooluse_1", "name": "look", "input": {"at": 1}}}]},
    {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "tooluse_1", "status": "success", "content": [{"text": "8"}]}}],
    },
]
OUT_OF_NOWHERE: dict[str, dict[str, Any]] = {
    "anthropic": {"params": {"messages": []}},
    "bedrock": {"additional_args": {"messages": [{"role": "user", "content": []}]}},
    "openai": {"params": {"messages": []}},
    "openai-responses": {"params": {"input": [{"type": "nonsense"}]}},
    "mistral": {"params": {"messages": []}},
    "ollama": {"additional_args": {"model": ""}},
}
"""Settings by which a program breaks its own requests, whatever the adapter mends."""


async def ask(
    model: StrictProvider, messages: Sequence[Message] = HELLO, specs: Sequence[ToolSpec] | None = None, **options: Any
) -> Answer:
    assembler = Assembler()
    async for event in model.stream(messages, specs, "Be brief.", **options):
        assembler.feed(event)
    return assembler.finish()


@pytest.mark.parametrize("service", sorted(REFEREES))
async def test_a_conversation_that_a_service_accepts_gets_the_answers_of_the_script(service: str) -> None:
    model = StrictProvider(service, [{"toolUse": {"name": "look"}}, "Eight."])
    assert (await ask(model, HELLO, LOOK)).stop_reason == "tool_use"
    assert (await ask(model, LOOKED, LOOK)).message["content"] == [{"text": "Eight."}]
    assert len(model.calls) == len(model.requests) == 2
    assert model.calls[1].messages == LOOKED
    assert not model.refusals


@pytest.mark.parametrize("service", sorted(OUT_OF_NOWHERE))
async def test_a_request_that_a_service_refuses_raises_its_words_and_takes_no_reply(service: str) -> None:
    model = StrictProvider(service, ["Hi."], **OUT_OF_NOWHERE[service])
    with pytest.raises(ModelFailed) as caught:
        await ask(model)
    (refusal,) = model.refusals
    assert refusal.message in str(caught.value)
    assert caught.value.fields["code"] == refusal.code
    assert caught.value.fields["status"] == refusal.status
    assert caught.value.__notes__ == [f"rule {refusal.rule}, at {refusal.path}"]
    model.update_config(**dict.fromkeys(OUT_OF_NOWHERE[service]))
    assert (await ask(model)).message["content"] == [{"text": "Hi."}]


@pytest.mark.parametrize("service", ["anthropic", "bedrock", "gemini", "mistral", "openai", "openai-responses"])
async def test_an_agent_goes_on_with_tools_and_a_second_prompt(service: str) -> None:
    @tool
    async def look(at: int) -> str:
        """Look."""
        return f"{at} is nice"

    replies = [{"toolUse": {"name": "look", "input": {"at": 1}}}, "Nice.", "You are welcome."]
    model = StrictProvider(service, replies)
    agent = Agent(model, tools=[look], callback_handler=None)
    assert str(await agent.invoke_async("What is at 1?")).strip() == "Nice."
    assert str(await agent.invoke_async("Thank you.")).strip() == "You are welcome."
    assert len(model.requests) == 3


async def test_an_agent_gets_the_refusal_as_a_failure_of_its_model() -> None:
    model = StrictProvider("openai", ["Hi."], params={"messages": [{"role": "tool", "content": "8"}]})
    agent = Agent(model, callback_handler=None)
    with pytest.raises(ModelFailed, match="must be a response to a preceeding message"):
        await agent.invoke_async("Hello")
    model.update_config(params=None)
    assert str(await agent.invoke_async("Hello again")).strip() == "Hi."


async def test_the_model_of_a_call_decides_about_its_rules() -> None:
    model = StrictProvider("bedrock", ["Hi."], model_id="us.meta.llama4-maverick-17b-instruct-v1:0")
    forced: dict[str, Any] = {"tool_choice": {"any": {}}}
    with pytest.raises(ModelFailed, match="toolConfig"):
        await ask(model, HELLO, LOOK, **forced)
    model.update_config(model_id="us.amazon.nova-pro-v1:0")
    assert (await ask(model, HELLO, LOOK, **forced)).message["content"] == [{"text": "Hi."}]
    assert model.get_config()["model_id"] == "us.amazon.nova-pro-v1:0"


async def test_a_refusal_without_permission_is_mapped_as_the_service_maps_it() -> None:
    model = StrictProvider("bedrock", ["Hi."], model_id="us.deepseek.r1-v1:0")
    point: dict[str, Any] = {"additional_args": {"system": [{"text": "Hi"}, {"cachePoint": {"type": "default"}}]}}
    with pytest.raises(ModelFailed, match="may not use this model") as caught:
        await ask(model, **point)
    assert caught.value.fields["status"] == 403


async def test_a_script_can_end_in_an_error_of_its_own() -> None:
    model = StrictProvider("anthropic", [ContextWindowOverflowException("too long"), "Short."])
    with pytest.raises(ContextWindowOverflowException):
        await ask(model)
    assert (await ask(model)).message["content"] == [{"text": "Short."}]


async def test_a_script_that_is_used_up_raises_and_a_loop_repeats_its_last_reply() -> None:
    model = StrictProvider("anthropic", "Hi.")
    await ask(model)
    with pytest.raises(LimitReached):
        await ask(model)
    again = StrictProvider("anthropic", "Hi.", loop=True)
    for _ in range(3):
        await ask(again)
    assert len(again.requests) == 3


async def test_fields_that_an_sdk_takes_apart_stand_in_the_recorded_request() -> None:
    model = StrictProvider("anthropic", "Hi.", params={"thinking": {"type": "enabled", "budget_tokens": 1024}})
    await ask(model)
    assert model.requests[0]["thinking"] == {"type": "enabled", "budget_tokens": 1024}
    assert "extra_body" not in model.requests[0]


async def test_thinking_with_a_forced_tool_is_refused() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    model = StrictProvider("anthropic", "Hi.", params={"thinking": thinking, "tool_choice": {"type": "any"}})
    with pytest.raises(ModelFailed, match="Thinking may not be enabled"):
        await ask(model, HELLO, LOOK)


def test_an_unknown_service_and_an_unknown_setting_are_refused() -> None:
    with pytest.raises(Invalid, match="no referee"):
        StrictProvider("nobody", [])
    with pytest.raises(TypeError, match="has no setting nonsense"):
        StrictProvider("anthropic", [], nonsense=1)


@pytest.mark.real_time
def test_the_packages_of_the_services_are_not_loaded() -> None:
    program = (
        "import sys, repertory.testing.strict_provider\n"
        "for name in ('anthropic', 'openai', 'google.genai', 'aiobotocore', 'botocore', 'httpx', 'httpx2', 'ollama'):\n"
        "    assert name not in sys.modules, name\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr


def test_referees_are_functions_of_one_request() -> None:
    request: rules.WireRequest = {"modelId": "us.amazon.nova-pro-v1:0", "messages": [{"role": "user", "content": []}]}
    assert bedrock.bedrock_refusal(request) == bedrock.bedrock_refusal(request)
    assert anthropic.anthropic_refusal({"messages": []}) == anthropic.anthropic_refusal({"messages": []})
