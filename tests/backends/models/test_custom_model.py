"""Models that users bring along, written for the SDK that they come from, work as they are.

Source: the model interface of that SDK, whose methods take these names.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from repertory import Agent, CacheConfig, ContextInjector, Model, SlidingWindowConversationManager, tool
from repertory.actors.turn import ModelRequest, call_model
from repertory.core.messages import Message
from repertory.errors import ModelFailed

USAGE = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
HI: list[Message] = [{"role": "user", "content": [{"text": "Hi"}]}]
T = TypeVar("T", bound=BaseModel)


class EchoModel(Model):
    """Asks for a tool, then says what it heard."""

    class EchoConfig(TypedDict, total=False):
        model_id: str
        context_window_limit: int

    def __init__(self, **model_config: Any) -> None:
        self.config = EchoModel.EchoConfig(**model_config)
        self.asked: list[dict[str, Any]] = []

    def update_config(self, **model_config: Any) -> None:
        self.config.update(model_config)  # type: ignore[typeddict-item]

    def get_config(self) -> EchoConfig:  # type: ignore[override]
        return self.config

    async def structured_output(
        self, output_model: type[T], prompt: Any, system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncGenerator[dict[str, T | Any], None]:
        yield {"output": output_model()}

    async def stream(  # type: ignore[override]
        self,
        messages: Any,
        tool_specs: Any = None,
        system_prompt: str | None = None,
        *,
        tool_choice: Any = None,
        system_prompt_content: Any = None,
        invocation_state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> AsyncIterable[dict[str, Any]]:
        self.asked.append({"tool_choice": tool_choice, "system": system_prompt, "content": system_prompt_content})
        yield {"messageStart": {"role": "assistant"}}
        if tool_specs and len(self.asked) == 1:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": tool_specs[0]["name"], "toolUseId": "t1"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"x": 16}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            for block in messages[-1]["content"]:
                heard = block["toolResult"]["content"][0]["text"] if "toolResult" in block else block["text"]
                yield {"contentBlockDelta": {"delta": {"text": f"heard {heard}"}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
        yield {
            "metadata": {"usage": {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}, "metrics": {"latencyMs": 1}}
        }


@tool(effects=False)
def root(x: float) -> str:
    """The square root."""
    return str(math.isqrt(int(x)))


@pytest.mark.anyio
async def test_a_turn_with_a_tool() -> None:
    model = EchoModel(model_id="echo")
    async with Agent(model, tools=[root], system_prompt="Listen.", callback_handler=None) as agent:
        assert str(await agent.invoke_async("What is the root of 16?")) == "heard 4"
    assert [asked["system"] for asked in model.asked] == ["Listen.", "Listen."]


@pytest.mark.anyio
async def test_the_options_of_a_call_reach_it_by_their_names() -> None:
    model = EchoModel()
    content = [{"text": "Listen."}]
    options = {"tool_choice": {"auto": {}}, "system_prompt_content": content}
    request = ModelRequest(
        messages=[{"role": "user", "content": [{"text": "Hi"}]}],
        tool_specs=(),
        system_prompt="Listen.",
        options=options,
    )
    answer = await call_model(model, request, None)
    assert answer.message["content"] == [{"text": "heard Hi"}]
    assert model.asked == [{"tool_choice": {"auto": {}}, "system": "Listen.", "content": content}]


@pytest.mark.anyio
async def test_what_it_raises_is_the_cause() -> None:
    class Broken(EchoModel):
        async def stream(self, *arguments: Any, **options: Any) -> AsyncIterable[dict[str, Any]]:  # type: ignore[override]
            yield {"messageStart": {"role": "assistant"}}
            raise KeyError("choices")

    request = ModelRequest(messages=HI, tool_specs=(), system_prompt=None)
    with pytest.raises(ModelFailed, match="Broken") as caught:
        await call_model(Broken(), request, None)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.anyio
async def test_its_settings_and_its_estimate_work() -> None:
    model = EchoModel(context_window_limit=9)
    assert model.context_window_limit == 9
    model.update_config(context_window_limit=10)
    assert model.context_window_limit == 10
    assert await model.count_tokens([{"role": "user", "content": [{"text": "four"}]}]) == 1
    assert not model.stateful
    await model.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize("settings", [None, "echo", 3, object()], ids=["nothing", "a name", "a number", "an object"])
async def test_what_it_gives_for_its_settings_matters_to_no_turn(settings: object) -> None:
    class Unset(EchoModel):
        def get_config(self) -> Any:
            return settings

    manager = SlidingWindowConversationManager(window_size=4, per_turn=True)
    async with Agent(Unset(), tools=[root], conversation_manager=manager, callback_handler=None) as agent:
        assert str(await agent.invoke_async("What is the root of 16?")) == "heard 4"
        assert str(await agent.invoke_async("Good", limits={"total_tokens": 1_000})) == "heard Good"
    assert Unset().context_window_limit is None


@pytest.mark.anyio
async def test_what_is_added_for_one_call_is_counted_for_a_model_that_caches() -> None:
    """Else its cache point would stand behind what changes with each call, and nothing would be found again."""
    told: list[object] = []

    class Caching(EchoModel):
        def stream(self, messages: Any, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
            told.append((len(messages[-1]["content"]), options.get("dynamic_trailing_blocks")))
            return super().stream(messages, *arguments, **options)

    def noon() -> str:
        return "It is noon."

    for config, expected in (({"cache_config": CacheConfig()}, (2, 1)), ({}, (2, None))):
        injector = ContextInjector(lambda context: noon())
        async with Agent(Caching(**config), plugins=[injector], callback_handler=None) as agent:
            await agent.invoke_async("Hi")
        assert told.pop() == expected
