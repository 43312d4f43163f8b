"""What programs ask a model themselves, outside of agents."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from pydantic import BaseModel

from repertory import BedrockModel, Model
from repertory.backends.models.scripted import ScriptedModel
from repertory.core.messages import Message
from repertory.errors import ModelFailed, StructuredOutputException, Throttled

HI: list[Message] = [{"role": "user", "content": [{"text": "Who is it?"}]}]
ANNA = {"name": "Anna", "age": 40}


class Person(BaseModel):
    name: str
    age: int


class Window(Model):
    """Has a window, and answers with a person whatever it is asked, if `stream` is not told of a tool choice."""

    def __init__(self, window: int | None) -> None:
        self.window = window

    @property
    def context_window_limit(self) -> int | None:
        return self.window

    async def stream(  # type: ignore[override]
        self, messages: Any, tool_specs: Any = None, system_prompt: str | None = None
    ) -> AsyncIterator[Any]:
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"delta": {"text": '{"name": "Anna", "age": 40}'}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


async def given(model: Model, prompt: Sequence[Message] = HI) -> list[dict[str, Any]]:
    return [event async for event in model.structured_output(Person, prompt, "Be short.")]


@pytest.mark.anyio
async def test_the_tool_use_of_the_answer_is_the_object_and_comes_after_the_events() -> None:
    model = ScriptedModel([{"toolUse": {"name": "Person", "input": ANNA}}])
    *events, last = await given(model)
    assert last == {"output": Person(name="Anna", age=40)}
    assert {"messageStart": {"role": "assistant"}} in [event["event"] for event in events]
    assert model.calls[0].system_prompt == "Be short."
    assert [spec["name"] for spec in model.calls[0].tool_specs or ()] == ["Person"]


@pytest.mark.anyio
async def test_a_model_without_tool_choices_may_write_the_object_as_text() -> None:
    assert (await given(Window(100)))[-1] == {"output": Person(name="Anna", age=40)}


@pytest.mark.anyio
@pytest.mark.parametrize("reply", ["It is Anna.", {"toolUse": {"name": "Person", "input": {"name": "Anna"}}}])
async def test_an_answer_without_a_valid_object_is_an_error(reply: Any) -> None:
    with pytest.raises(StructuredOutputException, match=r"Person|structured output"):
        await given(ScriptedModel([reply]))


@pytest.mark.anyio
async def test_errors_of_the_model_are_raised() -> None:
    with pytest.raises(Throttled):
        await given(ScriptedModel([Throttled("slower")]))


@pytest.mark.anyio
async def test_the_system_prompt_may_be_counted_as_blocks() -> None:
    model = Window(100)
    blocks: list[dict[str, Any]] = [{"text": "Be kind."}, {"cachePoint": {"type": "default"}}]
    as_blocks = await model.count_tokens(
        HI, system_prompt="A much longer text than that.", system_prompt_content=blocks
    )
    assert as_blocks == await model.count_tokens(HI, system_prompt="Be kind.")


def test_the_share_of_the_window_is_told() -> None:
    assert Window(100_000).estimate_utilization(50_000) == 0.5
    assert Window(1_000).estimate_utilization(1_500) == 1.5


@pytest.mark.parametrize("window", [None, 0])
def test_of_an_unknown_window_a_usual_one_is_assumed_with_a_warning(window: int | None) -> None:
    with pytest.warns(UserWarning, match="context_window_limit is not set on the model"):
        assert Window(window).estimate_utilization(100_000) == 0.5


def test_that_warning_is_given_once() -> None:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("default", UserWarning)
        Window(None).estimate_utilization(1)
        Window(None).estimate_utilization(2)
    assert len(heard) == 1


def test_a_request_to_bedrock_can_be_looked_at() -> None:
    model = BedrockModel(model_id="m", max_tokens=5)
    request = model.format_request(HI, system_prompt_content=[{"text": "Be short."}])
    assert request == {
        "modelId": "m",
        "messages": HI,
        "system": [{"text": "Be short."}],
        "inferenceConfig": {"maxTokens": 5},
    }


def test_a_whole_answer_of_bedrock_is_told_as_events() -> None:
    usage = {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}
    message = {
        "role": "assistant",
        "content": [{"text": "Hi"}, {"toolUse": {"toolUseId": "t", "name": "add", "input": {}}}],
    }
    response = {"output": {"message": message}, "stopReason": "tool_use", "usage": usage}
    events = [*BedrockModel().convert_non_streaming_to_streaming(response)]
    assert [next(iter(event)) for event in events] == [
        "messageStart",
        *("contentBlockDelta", "contentBlockStop"),
        *("contentBlockStart", "contentBlockDelta", "contentBlockStop"),
        *("messageStop", "metadata"),
    ]
    assert events[-1] == {"metadata": {"usage": usage}}
    with pytest.raises(ModelFailed, match="without a message"):
        list(BedrockModel().convert_non_streaming_to_streaming({"output": {}}))
