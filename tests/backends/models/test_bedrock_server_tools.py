"""Tools that Bedrock runs itself: stored as they came, sent back unchanged, and never run as the caller's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory.backends.models.bedrock import BedrockModel, converse_request, events_of_whole
from repertory.backends.models.provider import model_call
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message
from tests.backends.models.wire_server import Exchange, Handler, frame, wire_server

wire = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_environment")]

NOVA = "us.amazon.nova-2-lite-v1:0"
HELLO: Message = {"role": "user", "content": [{"text": "Hello"}]}
MORE: Message = {"role": "user", "content": [{"text": "And now?"}]}
USE = {
    "toolUse": {
        "toolUseId": "s1",
        "name": "nova_code_interpreter",
        "type": "server_tool_use",
        "input": {"snippet": "1 + 1"},
    }
}
RESULT = {
    "toolResult": {
        "toolUseId": "s1",
        "type": "nova_code_interpreter_result",
        "status": "success",
        "content": [{"json": {"stdOut": "2"}}, {"text": "done"}],
    }
}
STORED: list[Any] = [
    {"text": "Let me see."},
    {"providerContent": {"provider": "bedrock", "content": USE}},
    {"providerContent": {"provider": "bedrock", "content": RESULT}},
    {"reasoningContent": {"reasoningText": {"text": "Hm"}, "provider": "bedrock"}},
    {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1}}},
]
OWN_USE = {"toolUse": {"toolUseId": "t1", "name": "add", "type": "tool_use", "input": {"a": 1}}}
WHOLE: dict[str, Any] = {
    "output": {
        "message": {
            "role": "assistant",
            "content": [
                {"text": "Let me see."},
                USE,
                RESULT,
                {"reasoningContent": {"reasoningText": {"text": "Hm"}}},
                OWN_USE,
            ],
        }
    },
    "stopReason": "tool_use",
    "usage": {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5},
    "metrics": {"latencyMs": 7},
}


def delta(index: int, **piece: Any) -> bytes:
    return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": piece})


def begin(index: int, **start: Any) -> bytes:
    return frame("contentBlockStart", {"contentBlockIndex": index, "start": start})


def stop(index: int) -> bytes:
    return frame("contentBlockStop", {"contentBlockIndex": index})


def without(block: dict[str, Any], kind: str, *names: str) -> dict[str, Any]:
    return {name: value for name, value in block[kind].items() if name not in names}


STREAM = [
    frame("messageStart", {"role": "assistant"}),
    delta(0, text="Let me "),
    delta(0, text="see."),
    stop(0),
    begin(1, toolUse=without(USE, "toolUse", "input")),
    delta(1, toolUse={"input": '{"snip'}),
    delta(1, toolUse={"input": 'pet":"1 + 1"}'}),
    stop(1),
    begin(2, toolResult=without(RESULT, "toolResult", "content")),
    delta(2, toolResult=[{"json": {"stdOut": "2"}}]),
    delta(2, toolResult=[{"text": "do"}]),
    delta(2, toolResult=[{"text": "ne"}]),
    stop(2),
    delta(3, reasoningContent={"text": "H"}),
    delta(3, reasoningContent={"text": "m"}),
    stop(3),
    begin(4, toolUse=without(OWN_USE, "toolUse", "input")),
    delta(4, toolUse={"input": '{"a":1}'}),
    stop(4),
    frame("messageStop", {"stopReason": "tool_use"}),
    frame("metadata", {"usage": WHOLE["usage"], "metrics": {"latencyMs": 7}}),
]


@asynccontextmanager
async def bedrock(handler: Handler, **config: Any) -> AsyncIterator[BedrockModel]:
    async with wire_server(handler) as server:
        model = BedrockModel(endpoint_url=server.url, **{"model_id": NOVA, **config})
        try:
            yield model
        finally:
            await model.aclose()


async def ask(model: BedrockModel) -> Answer:
    assembler = Assembler()
    with anyio.fail_after(20):
        async for event in model.stream([HELLO]):
            assembler.feed(event)
    return assembler.finish()


def assembled(response: dict[str, Any]) -> Answer:
    assembler = Assembler()
    for event in events_of_whole(response):
        assembler.feed(event)
    return assembler.finish()


def answer_of(*blocks: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": list(blocks)}
    return {**WHOLE, "output": {"message": message}, "stopReason": "end_turn"}


class TestOnTheWire:
    pytestmark = wire

    @pytest.mark.parametrize("size", [1, 11, 100_000])
    async def test_a_stream_in_odd_pieces_stores_the_services_own_tools(self, size: int) -> None:
        said = b"".join(STREAM)

        async def handle(exchange: Exchange) -> None:
            await exchange.stream(*(said[at : at + size] for at in range(0, len(said), size)))

        async with bedrock(handle) as model:
            answer = await ask(model)
        assert answer.message["content"] == STORED
        assert answer.stop_reason == "tool_use"

    async def test_a_whole_answer_stores_the_same(self) -> None:
        async def handle(exchange: Exchange) -> None:
            await exchange.answer(200, WHOLE)

        async with bedrock(handle, streaming=False) as model:
            assert (await ask(model)).message["content"] == STORED

    @pytest.mark.parametrize(
        ("model_id", "provider"), [(NOVA, "bedrock"), ("global.anthropic.claude-sonnet-4-6", "anthropic")]
    )
    @pytest.mark.parametrize("streaming", [True, False])
    async def test_reasoning_says_whose_it_is(self, model_id: str, provider: str, streaming: bool) -> None:
        async def handle(exchange: Exchange) -> None:
            if streaming:
                await exchange.stream(STREAM[0], *STREAM[13:16], *STREAM[-2:])
            else:
                await exchange.answer(200, answer_of({"reasoningContent": {"reasoningText": {"text": "Hm"}}}))

        async with bedrock(handle, model_id=model_id, streaming=streaming) as model:
            (block,) = (await ask(model)).message["content"]
        assert block == {"reasoningContent": {"reasoningText": {"text": "Hm"}, "provider": provider}}

    async def test_an_image_of_an_answer_is_a_block(self) -> None:
        frames = [
            STREAM[0],
            begin(0, image={"format": "png"}),
            delta(0, image={"source": {"bytes": "AAE="}}),
            delta(0, image={"error": {"message": "no"}}),
            stop(0),
            *STREAM[-2:],
        ]

        async def handle(exchange: Exchange) -> None:
            await exchange.stream(*frames)

        async with bedrock(handle) as model:
            content = (await ask(model)).message["content"]
        assert content == [{"image": {"format": "png", "source": {"bytes": b"\x00\x01"}}}]


def sent(model_id: str, *messages: Message) -> list[Any]:
    request = converse_request(model_call({"model_id": model_id}, messages, None, None, {}))
    assert request["toolConfig"]["tools"]
    return request["messages"]


def test_they_go_back_to_nova_unchanged_in_each_later_request() -> None:
    answer: Message = {"role": "assistant", "content": STORED}
    results: Message = {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "4"}]}}],
    }
    expected = [{"text": "Let me see."}, USE, RESULT]
    assert sent(NOVA, HELLO, answer, results)[1]["content"][:3] == expected
    four: Message = {"role": "assistant", "content": [{"text": "4."}]}
    assert sent(NOVA, HELLO, answer, results, four, MORE)[1]["content"][:3] == expected
    assert len(sent(NOVA, HELLO, answer, results)[1]["content"]) == 5


def test_an_answer_with_nothing_else_needs_a_tool_list_when_it_goes_back() -> None:
    """The service refuses tool blocks without one."""
    message = assembled(answer_of(USE, RESULT, {"text": "Two."})).message
    assert sent(NOVA, HELLO, message, MORE)[1]["content"] == [USE, RESULT, {"text": "Two."}]


@pytest.mark.parametrize("model_id", ["anthropic.claude-x", "us.meta.llama4-maverick-17b-instruct-v1:0"])
def test_other_models_get_a_text_in_their_place(model_id: str) -> None:
    message = assembled(answer_of(USE, RESULT, {"text": "Two."})).message
    call = model_call({"model_id": model_id}, [HELLO, message, MORE], None, None, {})
    content = converse_request(call)["messages"][1]["content"]
    assert [*map(list, content)] == [["text"]] * 3
    assert "1 + 1" in content[0]["text"]
    assert "stdOut" in content[1]["text"]


def test_a_use_that_never_got_its_result_is_left_out_later() -> None:
    message = assembled(answer_of({"text": "Hm."}, USE)).message
    call = model_call({"model_id": NOVA}, [HELLO, message, MORE], None, None, {})
    assert converse_request(call)["messages"][1]["content"] == [{"text": "Hm."}]


def test_a_block_of_another_kind_is_stored_as_it_came_and_one_that_botocore_does_not_know_is_passed_over() -> None:
    found = {"searchResult": {"source": "a", "title": "A", "content": [{"text": "b"}]}}
    unknown = {"SDK_UNKNOWN_MEMBER": {"name": "hologram"}}
    message = assembled(answer_of(found, unknown, {"text": "Two."})).message
    assert message["content"] == [
        {"providerContent": {"provider": "bedrock", "content": found}},
        {"text": "Two."},
    ]


def test_the_public_translation_says_whose_the_reasoning_is() -> None:
    model = BedrockModel(model_id="anthropic.claude-x", region_name="us-east-1")
    assembler = Assembler()
    for event in model.convert_non_streaming_to_streaming(WHOLE):
        assembler.feed(event)
    assert assembler.finish().message["content"][3]["reasoningContent"]["provider"] == "anthropic"
