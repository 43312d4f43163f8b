"""AnthropicModel and OpenAIModel against aimock, a model server of another project that speaks both protocols.

What aimock says is its own reading of the services, so these tests find what our own server would repeat by mistake.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from typing import Any

import anyio
import pytest

from repertory import MistralModel
from repertory.core.answer import Answer
from repertory.core.messages import Message, ToolSpec, text_of
from repertory.errors import ModelFailed, ModelStreamBroken, Throttled, Unavailable
from tests.backends.models.aimock_server import aimock
from tests.backends.models.sdk_services import GEMINI, OLLAMA, PROVIDERS, WRITER, SdkModel, SdkService, ask, reading
from tests.read_streams import text_delta

pytestmark = [pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

SPOKEN = [service for service in PROVIDERS if service not in (GEMINI, OLLAMA, WRITER)]
"""What aimock speaks. Of Ollama it knows no usage, limits and reasoning, of Writer nothing, and Gemini's SDK refuses
its reason for a tool.
"""
on_spoken = pytest.mark.parametrize("service", SPOKEN, ids=lambda service: service.name)
STORY = "Once upon a time there was a model that never answered in one piece, however short the question was."
PARALLEL = [
    {"name": "calculator", "arguments": '{"expression": "6*7"}', "id": "call_2"},
    {"name": "calculator", "arguments": '{"expression": "6*8"}', "id": "call_3"},
]
FIXTURES: list[dict[str, Any]] = [
    {"match": {"userMessage": "hello"}, "response": {"content": "Hello from a peer."}},
    {"match": {"userMessage": "story"}, "response": {"content": STORY}, "chunkSize": 3},
    {
        "match": {"userMessage": "sum", "hasToolResult": False},
        "response": {"toolCalls": [{"name": "calculator", "arguments": '{"expression": "6*7"}', "id": "call_1"}]},
        "chunkSize": 4,
    },
    {"match": {"toolCallId": "call_1"}, "response": {"content": "It is 42."}},
    {"match": {"toolCallId": sha256(b"call_1").hexdigest()[:9]}, "response": {"content": "It is 42."}},
    {"match": {"userMessage": "both", "hasToolResult": False}, "response": {"content": "Wait.", "toolCalls": PARALLEL}},
    {"match": {"userMessage": "think"}, "response": {"content": "42", "reasoning": "Let me think about it."}},
    {
        "match": {"userMessage": "usage"},
        "response": {
            "content": "ok",
            "usage": {"input_tokens": 7, "output_tokens": 2, "prompt_tokens": 7, "completion_tokens": 2},
            "finishReason": "length",
        },
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
ASKED = {"tool_specs": CALCULATOR, "system_prompt": "Be brief."}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with aimock(FIXTURES, tmp_path_factory.mktemp("aimock")) as url:
        yield url


@pytest.fixture(params=SPOKEN, ids=lambda service: service.name)
async def model(request: pytest.FixtureRequest, server: str, no_keys: pytest.MonkeyPatch) -> AsyncIterator[SdkModel]:
    model = request.param.model(server)
    yield model
    await model.aclose()


def user(text: str) -> Message:
    return {"role": "user", "content": [{"text": text}]}


def use(use_id: str, expression: str) -> dict[str, Any]:
    return {"toolUse": {"toolUseId": use_id, "name": "calculator", "input": {"expression": expression}}}


async def said(model: SdkModel, text: str, **options: Any) -> str:
    return text_of((await ask(model, [user(text)], **ASKED, **options)).message)


def shown(answer: Answer) -> list[Any]:
    """The answer without what only its provider can read, such as encrypted reasoning."""
    return [block for block in answer.message["content"] if "providerContent" not in block]


streams = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])


@streams
@pytest.mark.anyio
async def test_text(model: SdkModel, streaming: bool) -> None:
    answer = await ask(model, [user("hello")], streaming=streaming, **ASKED)
    assert shown(answer) == [{"text": "Hello from a peer."}]
    assert answer.stop_reason == "end_turn"


@pytest.mark.anyio
async def test_text_arrives_in_pieces(model: SdkModel) -> None:
    async with reading(model, [user("story")]) as events:
        pieces = [text async for event in events if (text := text_delta(event)) is not None]
    assert len(pieces) > 10
    assert "".join(pieces) == STORY


@streams
@pytest.mark.anyio
async def test_a_tool_use_and_the_answer_to_its_result(model: SdkModel, streaming: bool) -> None:
    asked = await ask(model, [user("sum")], streaming=streaming, **ASKED)
    assert shown(asked) == [use("call_1", "6*7")]
    assert asked.stop_reason == "tool_use"
    result: Message = {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "42"}]}}],
    }
    answer = await ask(model, [user("sum"), asked.message, result], streaming=streaming, **ASKED)
    assert text_of(answer.message) == "It is 42."


@streams
@pytest.mark.anyio
async def test_text_and_two_tool_uses(model: SdkModel, streaming: bool) -> None:
    answer = await ask(model, [user("both")], streaming=streaming, **ASKED)
    assert shown(answer) == [{"text": "Wait."}, use("call_2", "6*7"), use("call_3", "6*8")]
    assert answer.stop_reason == "tool_use"


@streams
@pytest.mark.anyio
async def test_reasoning(model: SdkModel, streaming: bool) -> None:
    thought, text = shown(await ask(model, [user("think")], streaming=streaming))
    assert thought["reasoningContent"]["reasoningText"]["text"] == "Let me think about it."
    assert text == {"text": "42"}


@streams
@pytest.mark.anyio
async def test_usage_and_the_token_limit(model: SdkModel, streaming: bool) -> None:
    answer = await ask(model, [user("usage")], streaming=streaming)
    if isinstance(model, MistralModel) and streaming:
        assert answer.stop_reason == "max_tokens"
        return  # The service sends the usage unasked, aimock only when `stream_options` ask for it.
    assert answer.usage == {"inputTokens": 7, "outputTokens": 2, "totalTokens": 9}
    assert answer.stop_reason == "max_tokens"


@streams
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
    model: SdkModel, text: str, expected: type[Exception], streaming: bool
) -> None:
    with pytest.raises(expected):
        await said(model, text, streaming=streaming)
    assert await said(model, "hello") == "Hello from a peer."


@pytest.mark.anyio
async def test_the_wait_that_the_service_asks_for_is_passed_on(model: SdkModel) -> None:
    with pytest.raises(Throttled) as caught:
        await said(model, "throttle")
    assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(("streaming", "expected"), [(True, ModelStreamBroken), (False, ModelFailed)])
@pytest.mark.anyio
async def test_a_malformed_answer_is_refused(model: SdkModel, expected: type[Exception], streaming: bool) -> None:
    with pytest.raises(expected):
        await said(model, "garble", streaming=streaming)


@pytest.mark.anyio
async def test_a_connection_cut_within_an_answer_is_broken(model: SdkModel) -> None:
    with pytest.raises(ModelStreamBroken):
        await said(model, "cut")
    assert await said(model, "hello") == "Hello from a peer."


@on_spoken
@pytest.mark.anyio
async def test_a_model_that_hangs_times_out(service: SdkService, server: str) -> None:
    model = service.model(server, read_timeout_s=0.3)
    with pytest.raises(Unavailable):
        await said(model, "stall")
    await model.aclose()


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_the_model_usable(model: SdkModel) -> None:
    with anyio.move_on_after(0.2) as scope:
        await said(model, "slow")
    assert scope.cancelled_caught
    assert await said(model, "hello") == "Hello from a peer."


@pytest.mark.anyio
async def test_concurrent_calls_do_not_mix(model: SdkModel) -> None:
    texts = {"hello": "Hello from a peer.", "story": STORY, "think": "42"}
    heard: list[tuple[str, str]] = []

    async def one(question: str) -> None:
        heard.append((question, await said(model, question)))

    async with anyio.create_task_group() as tasks:
        for question in list(texts) * 10:
            tasks.start_soon(one, question)
    assert sorted(heard) == sorted((question, texts[question]) for question in list(texts) * 10)


@on_spoken
@pytest.mark.parametrize("backends", [("asyncio", "asyncio"), ("trio", "trio"), ("asyncio", "trio")])
def test_one_model_serves_one_loop_after_another(service: SdkService, server: str, backends: tuple[str, str]) -> None:
    """A synchronous caller may get a new loop per call."""
    model = service.model(server)

    async def once() -> str:
        text = await said(model, "hello")
        await model.aclose()
        return text

    assert [anyio.run(once, backend=backend) for backend in backends] == ["Hello from a peer."] * 2
    gc.collect()


@on_spoken
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_ended_without_closing_does_not_spoil_the_next(service: SdkService, server: str) -> None:
    model = service.model(server)

    async def without_closing() -> str:
        return await said(model, "hello")

    async def with_closing() -> str:
        text = await said(model, "hello")
        await model.aclose()
        return text

    assert [anyio.run(without_closing), anyio.run(with_closing)] == ["Hello from a peer."] * 2
    gc.collect()


@on_spoken
def test_one_model_serves_two_loops_at_once(service: SdkService, server: str) -> None:
    model = service.model(server)
    heard: list[str] = []

    async def several() -> None:
        for _ in range(5):
            heard.append(await said(model, "story"))
        await model.aclose()

    def run(backend: str) -> None:
        anyio.run(several, backend=backend)

    threads = [threading.Thread(target=run, args=(backend,)) for backend in ("asyncio", "trio")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert heard == [STORY] * 10
