"""Refusals of OpenAI's protocol: filters, errors in the place of an answer, and requests that are sent once more."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.backends.models.openai import OPENAI, unforced
from repertory.backends.models.sdk import refusal_error, stream_error
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelRefused,
    RepertoryError,
    Throttled,
    Unavailable,
)
from tests.backends.models.sdk_services import OPENAI as CHAT
from tests.backends.models.sdk_services import RESPONSES, SdkService, ask, event
from tests.backends.models.test_more_providers import TOOLS, asking_for_a_tool
from tests.backends.models.wire_server import Exchange

AZURE = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {}},
    }
}
on_both = pytest.mark.parametrize("service", [CHAT, RESPONSES], ids=lambda service: service.name)


@pytest.mark.anyio
@pytest.mark.real_time
@on_both
@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("status", [400, 200])
async def test_a_filter_of_the_provider_refuses_the_prompt(service: SdkService, streaming: bool, status: int) -> None:
    async def handle(exchange: Exchange) -> None:
        if status == 200 and streaming:
            await exchange.stream(event(AZURE), media=service.media)
        else:
            await exchange.answer(status, AZURE)

    async with service.serving(handle, streaming=streaming) as (model, server):
        with pytest.raises(ModelRefused, match="content management policy") as caught:
            await ask(model)
        assert caught.value.fields["refused_prompt"] is True
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "message", "codes"),
    [
        (400, "Content Exists Risk", ("invalid_request_error",)),
        (400, "Input data may contain inappropriate content.", ("data_inspection_failed",)),
        (403, "Content violates usage guidelines.", ()),
        (
            400,
            "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
            ("invalid_prompt",),
        ),
        (0, "", ("ResponsibleAIPolicyViolation",)),
    ],
)
def test_filters_have_many_words(status: int, message: str, codes: tuple[str, ...]) -> None:
    assert type(refusal_error(OPENAI, status, message, *codes)) is ModelRefused


@pytest.mark.parametrize(
    "message", ["the content is not allowed here", "Invalid Responses API request", "filter: unknown field"]
)
def test_no_filter_is_meant_by_other_words(message: str) -> None:
    assert type(refusal_error(OPENAI, 400, message, "invalid_prompt")) is ModelFailed


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"message": "rate-limited upstream", "code": 429}, Throttled),
        ({"message": "rate-limited upstream", "code": "429"}, Throttled),
        ({"message": "gone", "code": 502}, Unavailable),
        ({"message": "no credits", "code": 402}, ModelFailed),
        (
            {"message": "This endpoint's maximum context length is 8 tokens", "code": 400},
            ContextWindowOverflowException,
        ),
        ({"message": "bad", "code": 1500}, ModelFailed),
    ],
)
def test_a_status_may_be_the_code_of_an_error(error: dict[str, Any], expected: type[RepertoryError]) -> None:
    assert type(stream_error(OPENAI, {"error": error})) is expected


@pytest.mark.anyio
@pytest.mark.real_time
@on_both
@pytest.mark.parametrize("streaming", [True, False])
async def test_an_error_in_the_place_of_an_answer_keeps_its_words(service: SdkService, streaming: bool) -> None:
    """OpenRouter sends it with status 200."""

    async def handle(exchange: Exchange) -> None:
        body = {"error": {"message": "rate-limited upstream", "code": 429}, "user_id": "u"}
        if streaming:
            await exchange.stream(event(body), media=service.media)
        else:
            await exchange.answer(200, body)

    async with service.serving(handle, streaming=streaming) as (model, _):
        with pytest.raises(Throttled, match="rate-limited upstream"):
            await ask(model)


@pytest.mark.anyio
@pytest.mark.real_time
@on_both
async def test_a_thinking_model_that_may_not_be_forced_is_asked_with_the_tool_alone(service: SdkService) -> None:
    async def handle(exchange: Exchange) -> None:
        if exchange.body["tool_choice"] == "auto":
            await exchange.stream(*asking_for_a_tool(service), media=service.media)
        else:
            await exchange.answer(400, service.error("x", "Thinking mode does not support this tool_choice"))

    other: Any = {**TOOLS[0], "name": "other"}
    async with service.serving(handle) as (model, server):
        answer = await ask(model, tool_specs=[*TOOLS, other], tool_choice={"tool": {"name": "add"}})
    assert answer.stop_reason == "tool_use"
    assert [len(each.body["tools"]) for each in server.requests] == [2, 1]
    assert "add" in str(server.requests[1].body["tools"])


@pytest.mark.parametrize(
    ("choice", "words", "tools"),
    [
        ("required", "Thinking mode does not support this tool_choice", ["a", "b"]),
        ({"type": "function", "function": {"name": "b"}}, "tool_choice ... in thinking mode", ["b"]),
        ({"type": "function", "name": "b"}, "tool_choice: not with reasoning", ["b"]),
        ("auto", "Thinking mode does not support this tool_choice", None),
        (None, "Thinking mode does not support this tool_choice", None),
        ("required", "unknown field tool_choice", None),
        ("required", "thinking is off", None),
    ],
)
def test_a_choice_is_only_left_to_the_model_where_thinking_forbids_it(
    choice: Any, words: str, tools: list[str] | None
) -> None:
    asked = {"tools": [{"function": {"name": "a"}}, {"function": {"name": "b"}}], "tool_choice": choice}
    if isinstance(choice, dict) and "name" in choice:
        asked["tools"] = [{"name": "a"}, {"name": "b"}]
    milder = unforced(asked, ModelFailed(words))
    if tools is None:
        assert milder is None
    else:
        assert milder is not None
        assert milder["tool_choice"] == "auto"
        assert [tool.get("function", tool)["name"] for tool in milder["tools"]] == tools
