"""BedrockModel against a server that says, byte by byte, what Bedrock would say, and what it should never say."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory.backends.models.bedrock import DEFAULT_MODEL_ID, BedrockModel
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)
from tests.backends.models.wire_server import Exchange, Handler, WireServer, frame, text_frames, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_environment")]

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
TEXT = text_frames("Hel", "lo")


def reading(model: BedrockModel, messages: list[Message] = HELLO, **options: Any) -> aclosing[Any]:
    """The stream, closed at the end of the block as every reader must."""
    stream: Any = model.stream(messages, **options)
    return aclosing(stream)


async def ask(model: BedrockModel, messages: list[Message] = HELLO, **options: Any) -> Answer:
    assembler = Assembler()
    with anyio.fail_after(20):
        async with reading(model, messages, **options) as events:
            async for event in events:
                assembler.feed(event)
    return assembler.finish()


@asynccontextmanager
async def bedrock(handler: Handler, **config: Any) -> AsyncIterator[tuple[BedrockModel, WireServer]]:
    """A model and the server that it speaks to."""
    async with wire_server(handler) as server:
        model = BedrockModel(endpoint_url=server.url, **config)
        try:
            yield model, server
        finally:
            await model.aclose()


def streaming(*frames: bytes) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.stream(*frames)

    return handle


def answering(status: int, body: object, **headers: str) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(status, body, **headers)

    return handle


def in_turn(*handlers: Handler) -> Handler:
    """The first handler for the first request, and so on; the last one for all others."""
    waiting = list(handlers)

    async def handle(exchange: Exchange) -> None:
        await (waiting.pop(0) if len(waiting) > 1 else waiting[0])(exchange)

    return handle


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_an_answer_streams_and_assembles() -> None:
    async with bedrock(streaming(*TEXT)) as (model, _):
        answer = await ask(model)
    assert answer.message == {"role": "assistant", "content": [{"text": "Hello"}]}
    assert answer.usage == {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
    assert answer.latency_ms == 7


@pytest.mark.parametrize("anyio_backend", ["uvloop"], indirect=True)
async def test_an_answer_streams_on_uvloop_too() -> None:
    async with bedrock(streaming(*TEXT)) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_events_arrive_while_the_model_is_still_speaking() -> None:
    heard = anyio.Event()

    async def handle(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(*TEXT[:2])
        await heard.wait()
        await exchange.send(*TEXT[2:])
        await exchange.end()

    async with bedrock(handle) as (model, _):
        with anyio.fail_after(20):
            async with reading(model) as events:
                async for event in events:
                    if "contentBlockDelta" in event:
                        heard.set()
    assert heard.is_set()


async def test_the_request_says_what_was_configured_and_nothing_of_ours() -> None:
    message: Message = {"role": "user", "content": [{"text": "a"}], "metadata": {"custom": {}}, "tracking_id": "x"}
    async with bedrock(streaming(*TEXT), model_id="my-model", temperature=0.5) as (model, server):
        await ask(model, [message], max_tokens=10)
        (request,) = server.requests
    assert request.path.endswith("/model/my-model/converse-stream")
    assert request.body == {
        "messages": [{"role": "user", "content": [{"text": "a"}]}],
        "inferenceConfig": {"temperature": 0.5, "maxTokens": 10},
    }
    assert "/us-east-1/bedrock/" in request.headers["authorization"]


async def test_reasoning_arrives_with_signature_and_redacted_bytes() -> None:
    """Blobs travel as base64 and arrive as bytes."""

    def delta(index: int, **reasoning: str) -> bytes:
        return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": {"reasoningContent": reasoning}})

    stop = frame("contentBlockStop", {"contentBlockIndex": 0})
    frames = [delta(0, text="Hm"), delta(0, signature="sig"), stop, delta(1, redactedContent="AAE="), *TEXT[-2:]]
    async with bedrock(streaming(*frames)) as (model, _):
        content = (await ask(model)).message["content"]
    assert content == [
        {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "sig"}, "provider": "anthropic"}},
        {"reasoningContent": {"redactedContent": b"\x00\x01", "provider": "anthropic"}},
    ]


async def test_unknown_events_are_passed_over() -> None:
    async with bedrock(streaming(TEXT[0], frame("somethingNew", {"x": 1}), *TEXT[1:])) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_frames_may_be_cut_anywhere() -> None:
    data = b"".join(TEXT)

    async def handle(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(*(data[start : start + 7] for start in range(0, len(data), 7)))
        await exchange.end()

    async with bedrock(handle) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


CONTENT = [{"text": "Hi"}, {"toolUse": {"toolUseId": "t", "name": "n", "input": {"a": 1}}}]
WHOLE: dict[str, Any] = {
    "output": {"message": {"role": "assistant", "content": CONTENT}},
    "stopReason": "tool_use",
    "usage": {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3},
    "metrics": {"latencyMs": 4},
}


async def test_without_streaming_the_whole_answer_comes_as_the_same_events() -> None:
    async with bedrock(answering(200, WHOLE), streaming=False) as (model, server):
        answer = await ask(model)
    assert server.requests[0].path.endswith("/converse")
    assert answer.message == {"role": "assistant", "content": CONTENT}
    assert (answer.stop_reason, answer.usage, answer.latency_ms) == ("tool_use", WHOLE["usage"], 4.0)


@pytest.mark.parametrize(
    "body", [b"{nonsense", b"[]", {}, {"output": {}}, {"output": {"message": None}, "stopReason": "x"}]
)
async def test_without_streaming_nonsense_is_refused(body: object) -> None:
    async with bedrock(answering(200, body), streaming=False) as (model, _):
        with pytest.raises(ModelFailed):
            await ask(model)


REFUSALS: list[tuple[int, str, str, type[RepertoryError]]] = [
    (429, "ThrottlingException", "Too many requests", Throttled),
    (503, "ServiceUnavailableException", "Try later", Unavailable),
    (500, "InternalServerException", "oops", Unavailable),
    (400, "ValidationException", "Input is too long for requested model.", ContextWindowOverflowException),
    (400, "ValidationException", "The provided model identifier is invalid.", ModelFailed),
    (403, "AccessDeniedException", "You don't have access to the model", ModelFailed),
]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(("status", "code", "message", "expected"), REFUSALS)
async def test_a_refusal_is_asked_once_and_mapped(
    status: int, code: str, message: str, expected: type[RepertoryError], *, streams: bool
) -> None:
    """botocore's own retries are off: the agent retries, visibly."""
    handler = answering(status, {"message": message}, **{"x-amzn-ErrorType": code, "Retry-After": "7"})
    async with bedrock(handler, streaming=streams) as (model, server):
        with pytest.raises(expected) as caught:
            await ask(model)
        assert type(caught.value) is expected
        assert message in str(caught.value)
        assert len(server.requests) == 1
    if isinstance(caught.value, Throttled):
        assert caught.value.retry_after_s == 7


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        ("throttlingException", "slow down", Throttled),
        ("modelStreamErrorException", "the model stumbled", ModelStreamBroken),
        ("internalServerException", "oops", Unavailable),
        ("serviceUnavailableException", "later", Unavailable),
        ("validationException", "prompt is too long: 9 > 8", ContextWindowOverflowException),
        ("validationException", "bad", ModelFailed),
    ],
)
async def test_an_error_within_the_stream_is_mapped_and_the_next_call_works(
    name: str, message: str, expected: type[RepertoryError]
) -> None:
    broken = streaming(*TEXT[:2], frame(name, {"message": message}, kind="exception"))
    async with bedrock(in_turn(broken, streaming(*TEXT))) as (model, _):
        with pytest.raises(expected, match=message.split(":")[0]) as caught:
            await ask(model)
        assert type(caught.value) is expected
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def cut_off(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(*TEXT[:2])
    await exchange.socket.aclose()


async def cut_off_within_a_frame(exchange: Exchange) -> None:
    await exchange.stream(*TEXT[:2], TEXT[2][:20])


async def damaged(exchange: Exchange) -> None:
    await exchange.stream(*TEXT[:2], TEXT[2][:-1] + b"\x00")


async def no_frames_at_all(exchange: Exchange) -> None:
    await exchange.stream(b"<html>Sorry, this is a proxy and not the model</html>")


BREAKS: list[Callable[[Exchange], Awaitable[None]]] = [
    cut_off,
    cut_off_within_a_frame,
    damaged,
    no_frames_at_all,
    streaming(*TEXT[:2]),
    streaming(),
]


@pytest.mark.parametrize("handler", BREAKS, ids=["reset", "half a frame", "damaged", "no frames", "no end", "nothing"])
async def test_a_stream_that_breaks_off_is_no_short_answer(handler: Handler) -> None:
    async with bedrock(in_turn(handler, streaming(*TEXT))) as (model, _):
        with pytest.raises(ModelStreamBroken):
            await ask(model)
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


@pytest.mark.parametrize(
    "payload",
    [b"{nonsense", b"", b"[]", {"contentBlockIndex": 0, "delta": 3}, {"contentBlockIndex": 0, "delta": {"text": 1}}],
)
async def test_a_malformed_event_fails_by_name(payload: object) -> None:
    async with bedrock(streaming(TEXT[0], frame("contentBlockDelta", payload), *TEXT[1:])) as (model, _):
        with pytest.raises(ModelFailed, match="contentBlockDelta"):
            await ask(model)


async def test_a_block_start_that_says_nothing_is_passed_over() -> None:
    """The block is known by its first piece."""
    start = frame("contentBlockStart", {"contentBlockIndex": 0, "start": {}})
    async with bedrock(streaming(TEXT[0], start, *TEXT[1:])) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_silence_within_an_answer_ends_it() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(*TEXT[:2])
        await exchange.until_closed()

    async with bedrock(in_turn(handle, streaming(*TEXT)), read_timeout_s=0.2) as (model, _):
        with pytest.raises(ModelStreamBroken, match="Timeout"):
            await ask(model)
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_silence_before_an_answer_is_unavailable() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.until_closed()

    async with bedrock(handle, read_timeout_s=0.2) as (model, _):
        with pytest.raises(Unavailable):
            await ask(model)


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    async with wire_server(streaming()) as server:
        pass
    model = BedrockModel(endpoint_url=server.url)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await ask(model)
    await model.aclose()


async def endless(exchange: Exchange) -> None:
    await exchange.begin()
    await exchange.send(*TEXT[:2])
    await exchange.until_closed()


async def test_cancellation_while_waiting_releases_the_connection_and_the_next_call_works() -> None:
    async with bedrock(in_turn(endless, streaming(*TEXT))) as (model, server):
        async with anyio.create_task_group() as tasks:
            heard = anyio.Event()

            async def listen() -> None:
                async with reading(model) as events:
                    async for event in events:
                        if "contentBlockDelta" in event:
                            heard.set()

            tasks.start_soon(listen)
            with anyio.fail_after(30):
                await heard.wait()
            tasks.cancel_scope.cancel()
        await server.until_idle()
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_leaving_the_stream_early_releases_the_connection() -> None:
    """Also between two events of one chunk, where httpx leaves generators behind that trio complains of."""

    async def handle(exchange: Exchange) -> None:
        await exchange.begin()
        await exchange.send(b"".join(TEXT[:3]))
        await exchange.until_closed()

    async with bedrock(in_turn(handle, streaming(*TEXT))) as (model, server):
        async with reading(model) as events:
            async for _ in events:
                break
        await server.until_idle()
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]
    gc.collect()


async def test_a_whole_answer_gives_its_connection_back() -> None:
    async with bedrock(streaming(*TEXT)) as (model, server):
        for _ in range(5):
            await ask(model)
        assert server.open_connections == 1


async def test_many_answers_stream_at_the_same_time() -> None:
    """All calls are held at a gate until the last one has come."""
    calls, arrived, gate = 40, 0, anyio.Event()

    async def handle(exchange: Exchange) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == calls:
            gate.set()
        await gate.wait()
        await exchange.stream(*text_frames(exchange.body["messages"][0]["content"][0]["text"]))

    answers: dict[str, Answer] = {}
    async with bedrock(handle) as (model, _):

        async def one(text: str) -> None:
            answers[text] = await ask(model, [{"role": "user", "content": [{"text": text}]}])

        async with anyio.create_task_group() as tasks:
            for number in range(calls):
                tasks.start_soon(one, str(number))
    assert {text: answer.message["content"][0]["text"] for text, answer in answers.items()} == {
        str(number): str(number) for number in range(calls)
    }


async def test_no_file_stays_open_after_closing() -> None:
    async def one_model() -> None:
        async with bedrock(in_turn(streaming(*TEXT), endless)) as (model, _):
            await ask(model)
            async with reading(model) as events:
                async for _ in events:
                    break

    await one_model()
    before = open_files()
    for _ in range(3):
        await one_model()
    gc.collect()
    assert open_files() <= before


async def test_a_closed_model_opens_again_when_it_is_asked() -> None:
    async with bedrock(streaming(*TEXT)) as (model, _):
        await ask(model)
        await model.aclose()
        await model.aclose()
        assert (await ask(model)).message["content"] == [{"text": "Hello"}]


async def test_missing_credentials_say_what_to_set(aws_environment: pytest.MonkeyPatch) -> None:
    aws_environment.delenv("AWS_ACCESS_KEY_ID")
    async with bedrock(streaming(*TEXT)) as (model, server):
        with pytest.raises(ModelFailed, match="set AWS_ACCESS_KEY_ID"):
            await ask(model)
        assert not server.requests


async def test_a_missing_region_says_what_to_set(aws_environment: pytest.MonkeyPatch) -> None:
    aws_environment.delenv("AWS_REGION")
    model = BedrockModel()
    with pytest.raises(ModelFailed, match="AWS_REGION"):
        await ask(model)


async def test_a_session_lends_its_credentials_and_region(aws_environment: pytest.MonkeyPatch) -> None:
    """A boto3 session wraps such a botocore session and has the same two methods."""
    from botocore.session import Session

    aws_environment.delenv("AWS_ACCESS_KEY_ID")
    session = Session()
    session.set_credentials("OTHERKEY", "secret")
    session.set_config_variable("region", "eu-west-1")
    async with bedrock(streaming(*TEXT), boto_session=session) as (model, server):
        await ask(model)
        assert "Credential=OTHERKEY/" in server.requests[0].headers["authorization"]
        assert "/eu-west-1/bedrock/" in server.requests[0].headers["authorization"]


async def test_a_guardrails_verdict_becomes_a_redaction() -> None:
    topic = {"name": "x", "type": "DENY", "action": "BLOCKED"}
    trace = {"guardrail": {"inputAssessment": {"g": {"topicPolicy": {"topics": [topic]}}}}}
    usage = {"inputTokens": 1, "outputTokens": 1, "totalTokens": 2}
    metadata = {"usage": usage, "metrics": {"latencyMs": 1}, "trace": trace}
    frames = [*TEXT[:-2], frame("messageStop", {"stopReason": "guardrail_intervened"}), frame("metadata", metadata)]
    async with bedrock(streaming(*frames), guardrail_id="g", guardrail_version="1") as (model, _):
        answer = await ask(model)
    assert answer.redact_user == "[User input redacted.]"


async def test_settings_are_checked_by_name() -> None:
    with pytest.raises(TypeError, match="temprature"):
        BedrockModel(temprature=1)  # type: ignore[call-arg]
    model = BedrockModel(context_window_limit=128_000)
    with pytest.raises(TypeError, match="colour"):
        model.update_config(colour="red")
    with pytest.raises(TypeError, match="colour"):
        await ask(model, colour="red")
    model.update_config(temperature=0.1)
    assert model.context_window_limit == 128_000
    assert model.get_config() == {"model_id": DEFAULT_MODEL_ID, "context_window_limit": 128_000, "temperature": 0.1}


async def test_a_region_and_a_session_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="region_name"):
        BedrockModel(region_name="us-east-1", boto_session=object())
