"""SageMakerAIModel against a server that frames what a container says, as the service does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from repertory import SageMakerAIModel
from repertory.core.messages import Message, ToolSpec
from repertory.errors import (
    ContextWindowOverflowException,
    Invalid,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)
from tests.backends.models.sdk_services import DONE, HELLO, OPENAI, USAGE, ask, chunk, event, openai_text, reading
from tests.backends.models.wire_server import Exchange, Handler, WireServer, frame, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_environment")]

USED: list[Message] = [
    {"role": "user", "content": [{"text": "2+2?"}]},
    {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "4"}]}}]},
]
TOOLS: list[ToolSpec] = [{"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object"}}}]


@asynccontextmanager
async def serving(
    handler: Handler, payload: dict[str, Any] | None = None, **endpoint: Any
) -> AsyncIterator[tuple[SageMakerAIModel, WireServer]]:
    async with wire_server(handler) as server:
        config: Any = {"endpoint_name": "mine", "region_name": "us-east-1", **endpoint}
        model = SageMakerAIModel(config, payload or {"max_tokens": 9}, endpoint_url=server.url)  # type: ignore[arg-type]
        try:
            yield model, server
        finally:
            await model.aclose()


def saying(*parts: bytes) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.stream(*(frame("PayloadPart", part) for part in parts))

    return handle


async def test_an_answer_streams_and_assembles() -> None:
    async with serving(saying(*openai_text("Hel", "lo"))) as (model, server):
        answer = await ask(model)
    assert answer.message == {"role": "assistant", "content": [{"text": "Hello"}]}
    assert answer.usage == {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
    assert server.requests[0].path.endswith("/endpoints/mine/invocations-response-stream")
    assert server.requests[0].body["max_tokens"] == 9
    assert server.requests[0].body["stream"] is True


@pytest.mark.parametrize("size", [1, 7, 1_000_000])
async def test_parts_may_be_cut_anywhere(size: int) -> None:
    data = b"".join(openai_text("Hé", "llo"))
    async with serving(saying(*(data[start : start + size] for start in range(0, len(data), size)))) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Héllo"}]


@pytest.mark.parametrize("framing", [b"%s\n", b"data: %s\n", b"data:%s\n\n"])
async def test_containers_frame_their_lines_in_several_ways(framing: bytes) -> None:
    lines = [event(each).removeprefix(b"data: ").strip() for each in (chunk({"content": "Hi"}), chunk({}, "stop"))]
    async with serving(saying(b"".join(framing % each for each in lines).rstrip())) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Hi"}]


async def test_a_tool_is_used_and_its_result_told() -> None:
    call = {"index": 0, "id": "t1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    parts = [event(chunk({"tool_calls": [call]})), event(chunk({}, "tool_calls")), event(chunk(usage=USAGE)), DONE]
    async with serving(saying(*parts)) as (model, server):
        answer = await ask(model, USED, tool_specs=TOOLS)
        sent = server.requests[0].body["messages"][2]
    assert answer.stop_reason == "tool_use"
    assert sent == {"role": "tool", "tool_call_id": "t1", "content": "4"}


async def test_results_may_be_told_by_the_user() -> None:
    async with serving(saying(*openai_text("x")), {"tool_results_as_user_messages": True}) as (model, server):
        await ask(model, USED, tool_specs=TOOLS)
        assert server.requests[0].body["messages"][2]["role"] == "user"


async def test_without_streaming_the_whole_answer_comes_as_the_same_events() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(200, OPENAI.whole)

    settings = {"stream": False, "top_k": 3, "additional_args": {"seed": 1}}
    names = {"inference_component_name": "part", "target_variant": "blue"}
    async with serving(handle, settings, **names) as (model, server):
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]
        request = server.requests[0]
    assert request.path.endswith("/endpoints/mine/invocations")
    assert (request.body["top_k"], request.body["seed"], request.body["stream"]) == (3, 1, False)
    assert request.headers["x-amzn-sagemaker-inference-component"] == "part"
    assert request.headers["x-amzn-sagemaker-target-variant"] == "blue"


@pytest.mark.parametrize(
    ("status", "code", "body", "expected"),
    [
        (429, "ThrottlingException", {}, Throttled),
        (503, "ServiceUnavailable", {}, Unavailable),
        (500, "InternalFailure", {}, Unavailable),
        (400, "ValidationError", {"message": "maximum context length is 8 tokens"}, ContextWindowOverflowException),
        (400, "ValidationError", {"message": "no such endpoint"}, ModelFailed),
        (424, "ModelError", {"Message": "no", "OriginalStatusCode": 500}, Unavailable),
        (424, "ModelError", {"Message": "no", "OriginalStatusCode": 422}, ModelFailed),
    ],
)
async def test_a_refusal_is_asked_once_and_mapped(
    status: int, code: str, body: dict[str, Any], expected: type[RepertoryError]
) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(status, {"message": "no", **body}, X_Amzn_ErrorType=code)

    async with serving(handle) as (model, server):
        with pytest.raises(expected) as caught:
            await ask(model)
        assert type(caught.value) is expected
        assert len(server.requests) == 1


async def test_a_stream_that_breaks_off_is_no_short_answer() -> None:
    async with serving(saying(*openai_text("Hel", "lo")[:2])) as (model, _):
        with pytest.raises(ModelStreamBroken):
            await ask(model)


@pytest.mark.parametrize("part", [b"data: {nonsense\n\n", b"data: 3\n\n", b"data: \xff\n\n", b"{nonsense\n"])
async def test_nonsense_fails_and_the_next_call_works(part: bytes) -> None:
    answers = [[part], openai_text("Hello")]

    async def handle(exchange: Exchange) -> None:
        await saying(*answers.pop(0))(exchange)

    async with serving(handle) as (model, _):
        with pytest.raises(ModelFailed):
            await ask(model)
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_leaving_the_stream_early_releases_the_connection() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(*(frame("PayloadPart", part) for part in openai_text("Hel", "lo")[:2]))
        await exchange.until_closed()

    async with serving(handle) as (model, server):
        async with reading(model, HELLO) as events:
            async for _ in events:
                break
        await server.until_idle()


async def test_an_endpoint_has_a_name() -> None:
    async with serving(saying(), endpoint_name="") as (model, server):
        with pytest.raises(Invalid, match="endpoint_name"):
            await ask(model)
        assert not server.requests


def test_settings_are_checked_by_name() -> None:
    with pytest.raises(TypeError, match="colour"):
        SageMakerAIModel({"endpoint_name": "x"}, {"colour": 1})  # type: ignore[typeddict-unknown-key]
    with pytest.raises(TypeError, match="colour"):
        SageMakerAIModel({"colour": 1}, {})  # type: ignore[typeddict-unknown-key]
    model = SageMakerAIModel({"endpoint_name": "x"}, {"max_tokens": 5})
    assert (model.endpoint_config["endpoint_name"], model.payload_config["max_tokens"]) == ("x", 5)
