"""BedrockModel against aimock, a model server of another project that speaks Converse and ConverseStream.

What aimock says is its own reading of the service, so these tests find what our own server would repeat by mistake.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import pytest

from repertory.backends.models.bedrock import BedrockModel
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message, ToolSpec, text_of
from repertory.errors import ModelFailed, ModelStreamBroken, Throttled, Unavailable
from tests.backends.models.aimock_server import aimock
from tests.read_streams import text_delta

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("aws_environment")]

STORY = "Once upon a time there was a model that never answered in one piece, however short the question was."
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello from a peer."}},
    {"match": {"userMessage": "story"}, "response": {"content": STORY}, "chunkSize": 3},
    {
        "match": {"userMessage": "sum", "hasToolResult": False},
        "response": {"toolCalls": [{"name": "calculator", "arguments": '{"expression": "6*7"}', "id": "call_1"}]},
    },
    {"match": {"toolCallId": "call_1"}, "response": {"content": "It is 42."}},
    {"match": {"userMessage": "think"}, "response": {"content": "42", "reasoning": "Let me think about it."}},
    {
        "match": {"userMessage": "usage"},
        "response": {"content": "ok", "usage": {"input_tokens": 7, "output_tokens": 2}, "finishReason": "length"},
    },
    {"match": {"userMessage": "throttle"}, "response": {"error": {"message": "no"}, "status": 429, "retryAfter": 7}},
    {"match": {"userMessage": "overload"}, "response": {"error": {"message": "no"}, "status": 503}},
    {"match": {"userMessage": "refuse"}, "response": {"error": {"message": "no"}, "status": 400}},
    {"match": {"userMessage": "drop"}, "chaos": {"dropRate": 1}, "response": {"content": "x"}},
    {"match": {"userMessage": "limit"}, "chaos": {"rateLimitRate": 1}, "response": {"content": "x"}},
    {"match": {"userMessage": "garble"}, "chaos": {"malformedRate": 1}, "response": {"content": "x"}},
    {"match": {"userMessage": "hang up"}, "chaos": {"disconnectRate": 1}, "response": {"content": "x"}},
    {
        "match": {"userMessage": "cut"},
        "response": {"content": STORY},
        "chunkSize": 5,
        "latency": 10,
        "truncateAfterChunks": 5,
    },
    {"match": {"userMessage": "stall"}, "response": {"content": STORY}, "chunkSize": 5, "latency": 5_000},
    {"match": {"userMessage": "slow"}, "response": {"content": STORY}, "chunkSize": 2, "latency": 20},
]
CALCULATOR: list[ToolSpec] = [
    {"name": "calculator", "description": "Adds.", "inputSchema": {"json": {"type": "object", "properties": {}}}}
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


@pytest.fixture
async def model(server: str, aws_environment: pytest.MonkeyPatch) -> AsyncIterator[BedrockModel]:
    model = BedrockModel(endpoint_url=server)
    yield model
    await model.aclose()


def user(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def reading(model: BedrockModel, *messages: Message, **options: Any) -> aclosing[Any]:
    stream: Any = model.stream(messages, CALCULATOR, "Be brief.", **options)
    return aclosing(stream)


async def ask(model: BedrockModel, *messages: Message, **options: Any) -> Answer:
    assembler = Assembler()
    with anyio.fail_after(20):
        async with reading(model, *messages, **options) as events:
            async for event in events:
                assembler.feed(event)
    return assembler.finish()


both = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])


@both
@pytest.mark.anyio
async def test_text(model: BedrockModel, *, streaming: bool) -> None:
    answer = await ask(model, user("hello"), streaming=streaming)
    assert answer.message == {"role": "assistant", "content": [{"text": "Hello from a peer."}]}
    assert answer.stop_reason == "end_turn"


@pytest.mark.anyio
async def test_text_arrives_in_pieces(model: BedrockModel) -> None:
    async with reading(model, user("story")) as events:
        pieces = [text async for event in events if (text := text_delta(event)) is not None]
    assert len(pieces) > 10
    assert "".join(pieces) == STORY


@both
@pytest.mark.anyio
async def test_a_tool_use_and_the_answer_to_its_result(model: BedrockModel, *, streaming: bool) -> None:
    asked = await ask(model, user("sum"), streaming=streaming)
    use = {"toolUseId": "call_1", "name": "calculator", "input": {"expression": "6*7"}}
    assert asked.message["content"] == [{"toolUse": use}]
    assert asked.stop_reason == "tool_use"
    result: Message = {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "42"}]}}],
    }
    assert text_of((await ask(model, user("sum"), asked.message, result, streaming=streaming)).message) == "It is 42."


@both
@pytest.mark.anyio
async def test_reasoning(model: BedrockModel, *, streaming: bool) -> None:
    content = (await ask(model, user("think"), streaming=streaming)).message["content"]
    spoken = {"reasoningText": {"text": "Let me think about it."}, "provider": "anthropic"}
    assert content == [{"reasoningContent": spoken}, {"text": "42"}]


@both
@pytest.mark.anyio
async def test_usage_and_the_token_limit(model: BedrockModel, *, streaming: bool) -> None:
    answer = await ask(model, user("usage"), streaming=streaming)
    assert answer.usage == {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}
    assert answer.stop_reason == "max_tokens"


@both
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("throttle", Throttled),
        ("limit", Throttled),
        ("overload", Unavailable),
        ("drop", Unavailable),
        ("hang up", Unavailable),
        ("refuse", ModelFailed),
    ],
)
@pytest.mark.anyio
async def test_failures_are_mapped_and_the_next_call_works(
    model: BedrockModel, text: str, expected: type[Exception], *, streaming: bool
) -> None:
    with pytest.raises(expected):
        await ask(model, user(text), streaming=streaming)
    assert text_of((await ask(model, user("hello"))).message) == "Hello from a peer."


@pytest.mark.anyio
async def test_the_wait_that_the_service_asks_for_is_passed_on(model: BedrockModel) -> None:
    with pytest.raises(Throttled) as caught:
        await ask(model, user("throttle"))
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(("streaming", "expected"), [(True, ModelStreamBroken), (False, ModelFailed)])
@pytest.mark.anyio
async def test_a_malformed_answer_is_refused(
    model: BedrockModel, expected: type[Exception], *, streaming: bool
) -> None:
    with pytest.raises(expected):
        await ask(model, user("garble"), streaming=streaming)


@pytest.mark.anyio
async def test_a_connection_cut_within_an_answer_is_broken(model: BedrockModel) -> None:
    with pytest.raises(ModelStreamBroken):
        await ask(model, user("cut"))
    assert text_of((await ask(model, user("hello"))).message) == "Hello from a peer."


@pytest.mark.anyio
async def test_a_model_that_hangs_times_out(server: str) -> None:
    model = BedrockModel(endpoint_url=server, read_timeout_s=0.3)
    with pytest.raises(Unavailable):
        await ask(model, user("stall"))
    await model.aclose()


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_the_model_usable(model: BedrockModel) -> None:
    with anyio.move_on_after(0.2) as scope:
        await ask(model, user("slow"))
    assert scope.cancelled_caught
    assert text_of((await ask(model, user("hello"))).message) == "Hello from a peer."


@pytest.mark.anyio
async def test_concurrent_calls_do_not_mix(model: BedrockModel) -> None:
    texts = {"hello": "Hello from a peer.", "story": STORY, "think": "42"}
    heard: list[tuple[str, str]] = []

    async def one(question: str) -> None:
        heard.append((question, text_of((await ask(model, user(question))).message)))

    async with anyio.create_task_group() as tasks:
        for question in list(texts) * 10:
            tasks.start_soon(one, question)
    assert sorted(heard) == sorted((question, texts[question]) for question in list(texts) * 10)


@pytest.mark.parametrize("backends", [("asyncio", "asyncio"), ("trio", "trio"), ("asyncio", "trio")])
def test_one_model_serves_one_loop_after_another(server: str, backends: tuple[str, str]) -> None:
    """A synchronous caller may get a new loop per call."""
    model = BedrockModel(endpoint_url=server)

    async def once() -> str:
        text = text_of((await ask(model, user("hello"))).message)
        await model.aclose()
        return text

    assert [anyio.run(once, backend=backend) for backend in backends] == ["Hello from a peer."] * 2
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ended_without_closing_does_not_spoil_the_next(server: str) -> None:
    model = BedrockModel(endpoint_url=server)

    async def once(*, close: bool) -> str:
        text = text_of((await ask(model, user("hello"))).message)
        if close:
            await model.aclose()
        return text

    async def without_closing() -> str:
        return await once(close=False)

    async def with_closing() -> str:
        return await once(close=True)

    assert [anyio.run(without_closing), anyio.run(with_closing)] == ["Hello from a peer."] * 2
    gc.collect()


def test_one_model_serves_two_loops_at_once(server: str) -> None:
    model = BedrockModel(endpoint_url=server)
    heard: list[str] = []

    async def several() -> None:
        for _ in range(5):
            heard.append(text_of((await ask(model, user("story"))).message))
        await model.aclose()

    def run(backend: str) -> None:
        anyio.run(several, backend=backend)

    threads = [threading.Thread(target=run, args=(backend,)) for backend in ("asyncio", "trio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert heard == [STORY] * 10
