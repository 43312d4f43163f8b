"""Models behind SDKs against a server that says, byte by byte, what services say, and what they should not.

All are held to the same promises, so each test runs for all, unless it is about what only some SDKs have.
"""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import anthropic
import anyio
import openai
import pytest

from repertory.backends.models.sdk import http_library
from repertory.core.answer import Answer
from repertory.core.messages import Message
from repertory.errors import (
    ContextWindowOverflowException,
    ModelFailed,
    ModelStreamBroken,
    RepertoryError,
    Throttled,
    Unavailable,
)
from tests.backends.models.sdk_services import SdkService, ask, on_all, on_both, reading, with_events
from tests.backends.models.wire_server import Exchange, Handler, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]

HELLO = [{"text": "Hello"}]


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


def hello(service: SdkService) -> Handler:
    return service.streaming(*service.text("Hel", "lo"))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@on_all
async def test_an_answer_streams_and_assembles(service: SdkService) -> None:
    async with service.serving(hello(service)) as (model, server):
        answer = await ask(model)
    assert answer.message == {"role": "assistant", "content": HELLO}
    assert answer.stop_reason == "end_turn"
    assert answer.usage == {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}
    assert server.requests[0].path == service.path


@on_all
@pytest.mark.parametrize("anyio_backend", ["uvloop"], indirect=True)
async def test_an_answer_streams_on_uvloop_too(service: SdkService) -> None:
    async with service.serving(hello(service)) as (model, _):
        assert (await ask(model)).message["content"] == HELLO


@on_all
async def test_the_stream_is_well_formed(service: SdkService) -> None:
    async with service.serving(hello(service)) as (model, _), reading(model) as events:
        names = [name async for piece in events for name in piece]
    deltas = ["contentBlockDelta"] * 2
    assert names == ["messageStart", "contentBlockStart", *deltas, "contentBlockStop", "messageStop", "metadata"]


@on_all
async def test_events_arrive_while_the_model_is_still_speaking(service: SdkService) -> None:
    heard = anyio.Event()
    *first, last = service.text("Hel", "lo")

    async def handle(exchange: Exchange) -> None:
        await exchange.begin(service.media)
        await exchange.send(*first)
        await heard.wait()
        await exchange.send(last)
        await exchange.end()

    async with service.serving(handle) as (model, _):
        with anyio.fail_after(20):
            async with reading(model) as events:
                async for piece in events:
                    if "contentBlockDelta" in piece:
                        heard.set()
    assert heard.is_set()


@on_all
async def test_without_streaming_the_whole_answer_comes_as_the_same_events(service: SdkService) -> None:
    async with service.serving(answering(200, service.whole), streaming=False) as (model, server):
        answer = await ask(model)
    assert not server.requests[0].body.get("stream")
    assert answer.message == {"role": "assistant", "content": HELLO}
    assert answer.usage == {"inputTokens": 3, "outputTokens": 2, "totalTokens": 5}


@on_both
@pytest.mark.parametrize("body", [b"{nonsense", b"[]", {}, {"choices": [], "content": None}, b'"text"'])
async def test_without_streaming_nonsense_is_refused(service: SdkService, body: object) -> None:
    async with service.serving(answering(200, body), streaming=False) as (model, _):
        with pytest.raises(ModelFailed):
            await ask(model)


@on_both
async def test_the_request_says_what_was_configured_and_nothing_of_ours(service: SdkService) -> None:
    message: Message = {"role": "user", "content": [{"text": "a"}], "metadata": {"custom": {}}, "tracking_id": "x"}
    settings = {
        "model_id": "my-model",
        "params": {"temperature": 0.5, "made_up": {"a": 1}, "extra_headers": {"x": "y"}},
    }
    async with service.serving(hello(service), **settings) as (model, server):
        await ask(model, [message])
        (request,) = server.requests
    assert (request.body["model"], request.body["temperature"]) == ("my-model", 0.5)
    assert request.body["made_up"] == {"a": 1}
    assert request.headers["x"] == "y"
    assert request.body["messages"][0].keys() == {"role", "content"}
    assert "key" in request.headers.get("x-api-key", "") + request.headers.get("authorization", "")


@on_both
async def test_settings_may_change_for_one_call(service: SdkService) -> None:
    async with service.serving(hello(service)) as (model, server):
        await ask(model, model_id="other")
        await ask(model)
    assert [request.body["model"] for request in server.requests] == ["other", model.get_config()["model_id"]]


REFUSALS: list[tuple[int, str, str, type[RepertoryError]]] = [
    (429, "rate_limit_error", "Slow down", Throttled),
    (500, "api_error", "Internal server error", Unavailable),
    (503, "server_error", "Try later", Unavailable),
    (529, "overloaded_error", "Overloaded", Unavailable),
    (408, "timeout_error", "Too slow", Unavailable),
    (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", ContextWindowOverflowException),
    (400, "invalid_request_error", "This model's maximum context length is 8 tokens", ContextWindowOverflowException),
    (413, "request_too_large", "Request exceeds the maximum size", ContextWindowOverflowException),
    (400, "invalid_request_error", "messages: something is wrong", ModelFailed),
    (401, "authentication_error", "invalid x-api-key", ModelFailed),
    (403, "permission_error", "not allowed", ModelFailed),
    (404, "not_found_error", "model: nope", ModelFailed),
]


@on_all
@pytest.mark.parametrize("streams", [True, False], ids=["streaming", "whole"])
@pytest.mark.parametrize(("status", "kind", "message", "expected"), REFUSALS)
async def test_a_refusal_is_asked_once_and_mapped(
    service: SdkService, status: int, kind: str, message: str, expected: type[RepertoryError], streams: bool
) -> None:
    """The SDKs' own retries are off: the agent retries, visibly."""
    handler = answering(status, service.error(kind, message), Retry_After="7")
    async with service.serving(handler, streaming=streams) as (model, server):
        with pytest.raises(expected) as caught:
            await ask(model)
        assert type(caught.value) is expected
        assert message in str(caught.value)
        assert caught.value.__cause__ is not None
        assert len(server.requests) == 1
    if isinstance(caught.value, Throttled):
        assert caught.value.retry_after_s == 7


@on_both
async def test_a_refusal_says_what_to_set(service: SdkService) -> None:
    for status, words in ((401, service.key_variable), (403, "model_id"), (404, "model_id")):
        async with service.serving(answering(status, service.error("x", "no"))) as (model, _):
            with pytest.raises(ModelFailed, match=words):
                await ask(model)


@on_all
@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad gateway</html>", b"[]", b'{"error": "no"}', b'{"error": {"code": 5}}']
)
async def test_a_refusal_in_any_spelling_is_mapped_by_its_status(service: SdkService, body: bytes) -> None:
    for status, expected in ((502, Unavailable), (400, ModelFailed), (429, Throttled)):
        async with service.serving(answering(status, body)) as (model, _):
            with pytest.raises(expected):
                await ask(model)


@on_both
@pytest.mark.parametrize(
    ("kind", "message", "expected"),
    [
        ("overloaded_error", "Overloaded", Unavailable),
        ("rate_limit_error", "slow down", Throttled),
        ("server_error", "oops", Unavailable),
        ("invalid_request_error", "prompt is too long", ContextWindowOverflowException),
        ("invalid_request_error", "bad", ModelFailed),
    ],
)
async def test_an_error_within_the_stream_is_mapped_and_the_next_call_works(
    service: SdkService, kind: str, message: str, expected: type[RepertoryError]
) -> None:
    broken = service.streaming(*service.text("Hel")[:3], service.event(service.error(kind, message)))
    async with service.serving(in_turn(broken, hello(service))) as (model, _):
        with pytest.raises(expected, match=message) as caught:
            await ask(model)
        assert type(caught.value) is expected
        assert (await ask(model)).message["content"] == HELLO


async def cut_off(service: SdkService, exchange: Exchange) -> None:
    await exchange.begin(service.media)
    await exchange.send(*service.text("Hel", "lo")[:3])
    await exchange.socket.aclose()


async def no_end(service: SdkService, exchange: Exchange) -> None:
    await exchange.stream(*service.text("Hel", "lo")[:3], media=service.media)


async def nothing(service: SdkService, exchange: Exchange) -> None:
    await exchange.stream(media=service.media)


@on_all
@pytest.mark.parametrize("breaks", [cut_off, no_end, nothing], ids=lambda breaks: breaks.__name__)
async def test_a_stream_that_breaks_off_is_no_short_answer(
    service: SdkService, breaks: Callable[[SdkService, Exchange], Awaitable[None]]
) -> None:
    async def handle(exchange: Exchange) -> None:
        await breaks(service, exchange)

    async with service.serving(in_turn(handle, hello(service))) as (model, _):
        with pytest.raises(ModelStreamBroken):
            await ask(model)
        assert (await ask(model)).message["content"] == HELLO


@with_events
async def test_a_page_instead_of_an_answer_is_no_short_answer(service: SdkService) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.stream(b"<html>Sorry, this is a proxy and not the model</html>", media="text/html")

    async with service.serving(in_turn(handle, hello(service))) as (model, _):
        with pytest.raises(ModelStreamBroken):
            await ask(model)
        assert (await ask(model)).message["content"] == HELLO


@on_both
@pytest.mark.parametrize(
    "piece",
    [
        b"{nonsense",
        b"[]",
        b"3",
        b"\xff\xfe",
        b'{"type": "content_block_delta", "index": 0, "delta": 3, "choices": 3}',
        b'{"type": "content_block_delta", "index": "x", "choices": [{"delta": 3}]}',
    ],
    ids=["no json", "list", "number", "no utf-8", "wrong delta", "wrong index"],
)
async def test_a_malformed_event_fails_and_the_next_call_works(service: SdkService, piece: bytes) -> None:
    events = service.text("Hel", "lo")
    broken = service.streaming(*events[:2], b"event: content_block_delta\ndata: " + piece + b"\n\n", *events[2:])
    async with service.serving(in_turn(broken, hello(service))) as (model, server):
        with pytest.raises(ModelFailed):
            await ask(model)
        assert (await ask(model)).message["content"] == HELLO
        assert server.open_connections == 1


@on_all
async def test_events_may_be_cut_anywhere(service: SdkService) -> None:
    data = b"".join(service.text("Hél", "lo"))

    async def handle(exchange: Exchange) -> None:
        await exchange.begin(service.media)
        await exchange.send(*(data[start : start + 7] for start in range(0, len(data), 7)))
        await exchange.end()

    async with service.serving(handle) as (model, _):
        assert (await ask(model)).message["content"] == [{"text": "Héllo"}]


@on_all
async def test_silence_within_an_answer_ends_it(service: SdkService) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.begin(service.media)
        await exchange.send(*service.text("Hel", "lo")[:3])
        await exchange.until_closed()

    async with service.serving(in_turn(handle, hello(service)), read_timeout_s=0.2) as (model, _):
        with pytest.raises(ModelStreamBroken, match="Timeout"):
            await ask(model)
        assert (await ask(model)).message["content"] == HELLO


@on_all
async def test_silence_before_an_answer_is_unavailable(service: SdkService) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.until_closed()

    async with service.serving(handle, read_timeout_s=0.2) as (model, server):
        with pytest.raises(Unavailable, match="Timeout"):
            await ask(model)
        assert len(server.requests) == 1


@on_all
async def test_a_server_that_is_not_there_is_unavailable(service: SdkService) -> None:
    async with wire_server(hello(service)) as server:
        pass
    model = service.model(server.url)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await ask(model)
    await model.aclose()


@on_both
@pytest.mark.parametrize(
    ("client_args", "words"),
    [({"base_url": "localhost:1/v1"}, "base_url"), ({"api_key": "a\nb"}, "api_key"), ({"nonsense": 1}, "nonsense")],
)
async def test_a_client_that_cannot_work_says_why(service: SdkService, client_args: dict[str, Any], words: str) -> None:
    async with service.serving(hello(service), client_args=client_args) as (model, server):
        with pytest.raises(ModelFailed, match=words):
            await ask(model)
        assert not server.requests


@on_both
async def test_a_missing_key_says_what_to_set(service: SdkService, no_keys: pytest.MonkeyPatch) -> None:
    model = type(service.model("http://127.0.0.1:1"))()
    with pytest.raises(ModelFailed, match=f"set {service.key_variable}"):
        await ask(model)


@on_both
async def test_the_key_and_the_url_may_come_from_the_environment(
    service: SdkService, no_keys: pytest.MonkeyPatch
) -> None:
    async with wire_server(hello(service)) as server:
        no_keys.setenv(service.key_variable, "from-the-environment")
        no_keys.setenv(f"{service.name.upper()}_BASE_URL", server.url)
        model = type(service.model(server.url))()
        assert (await ask(model)).message["content"] == HELLO
        await model.aclose()
        assert "from-the-environment" in str(server.requests[0].headers)


@on_all
async def test_cancellation_while_waiting_releases_the_connection_and_the_next_call_works(service: SdkService) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin(service.media)
        await exchange.send(*service.text("Hel", "lo")[:3])
        await exchange.until_closed()

    async with service.serving(in_turn(endless, hello(service))) as (model, server):
        async with anyio.create_task_group() as tasks:
            heard = anyio.Event()

            async def listen() -> None:
                async with reading(model) as events:
                    async for piece in events:
                        if "contentBlockDelta" in piece:
                            heard.set()

            tasks.start_soon(listen)
            with anyio.fail_after(30):
                await heard.wait()
            tasks.cancel_scope.cancel()
        await server.until_idle()
        assert (await ask(model)).message["content"] == HELLO


@on_all
async def test_leaving_the_stream_early_releases_the_connection(service: SdkService) -> None:
    """Also between two events of one chunk, where the SDKs leave generators behind that trio complains of."""

    async def handle(exchange: Exchange) -> None:
        await exchange.begin(service.media)
        await exchange.send(b"".join(service.text("Hel", "lo")[:3]))
        await exchange.until_closed()

    async with service.serving(in_turn(handle, hello(service))) as (model, server):
        async with reading(model) as events:
            async for _ in events:
                break
        await server.until_idle()
        assert (await ask(model)).message["content"] == HELLO
    gc.collect()


@on_all
async def test_a_whole_answer_gives_its_connection_back(service: SdkService) -> None:
    async with service.serving(hello(service)) as (model, server):
        for _ in range(5):
            await ask(model)
        assert server.open_connections == 1


@on_all
async def test_many_answers_stream_at_the_same_time(service: SdkService) -> None:
    """All calls are held at a gate until the last one has come."""
    calls, arrived, gate = 40, 0, anyio.Event()

    async def handle(exchange: Exchange) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == calls:
            gate.set()
        await gate.wait()
        await exchange.stream(*service.text(service.said(exchange.body)), media=service.media)

    answers: dict[str, Answer] = {}
    async with service.serving(handle) as (model, _):

        async def one(text: str) -> None:
            answers[text] = await ask(model, [{"role": "user", "content": [{"text": text}]}])

        async with anyio.create_task_group() as tasks:
            for number in range(calls):
                tasks.start_soon(one, f"call {number}")
    assert len(answers) == calls
    assert all(answer.message["content"] == [{"text": text}] for text, answer in answers.items())


@on_all
async def test_no_file_stays_open_after_closing(service: SdkService) -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.begin(service.media)
        await exchange.send(*service.text("Hel", "lo")[:3])
        await exchange.until_closed()

    async def one_model() -> None:
        async with service.serving(in_turn(hello(service), endless)) as (model, _):
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


@on_all
async def test_a_closed_model_opens_again_when_it_is_asked(service: SdkService) -> None:
    async with service.serving(hello(service)) as (model, _):
        await ask(model)
        await model.aclose()
        await model.aclose()
        assert (await ask(model)).message["content"] == HELLO


def sdk_client(service: SdkService, url: str) -> Any:
    """A client of the SDK, as a user makes it."""
    if service.name == "Anthropic":
        return anthropic.AsyncAnthropic(api_key="mine", base_url=url)
    return openai.AsyncOpenAI(api_key="mine", base_url=f"{url}/v1")


@on_both
async def test_a_client_of_the_users_own_is_used_and_not_closed(service: SdkService) -> None:
    async with wire_server(hello(service)) as server:
        async with sdk_client(service, server.url) as client:
            model = type(service.model(""))(client=client)
            await ask(model)
            await model.aclose()
            await ask(model)
        assert "mine" in str(server.requests[0].headers)


@on_both
async def test_an_http_client_of_the_users_own_is_used_and_not_closed(service: SdkService) -> None:
    http_client = http_library(service.sdk).AsyncClient(headers={"x-mine": "yes"})
    async with http_client, service.serving(hello(service), client_args={"http_client": http_client}) as serving:
        model, server = serving
        await ask(model)
        await model.aclose()
        assert not http_client.is_closed
        assert server.requests[0].headers["x-mine"] == "yes"


class Observed:
    """A call of the SDK and its streams, wrapped as tracing libraries do: they look at the pieces as they pass."""

    def __init__(self, create: Callable[..., Awaitable[Any]]) -> None:
        self._create = create
        self._stream: Any = None
        self.seen = 0

    async def create(self, **arguments: Any) -> Observed:
        self._stream = await self._create(**arguments)
        return self

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for piece in self._stream:
            self.seen += 1
            yield piece

    async def close(self) -> None:
        await self._stream.close()


@on_both
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_stream_that_somebody_has_wrapped_is_read_through_the_wrapper(service: SdkService) -> None:
    """The SDK's own generators are at work then, and trio complains of those that OpenAI's leaves behind."""
    async with wire_server(in_turn(hello(service), hello(service))) as server:
        async with sdk_client(service, server.url) as client:
            calls = client.messages if service.name == "Anthropic" else client.chat.completions
            observed = Observed(calls.create)
            wrapper = SimpleNamespace(messages=observed, chat=SimpleNamespace(completions=observed))
            model = type(service.model(""))(client=wrapper)
            assert (await ask(model)).message["content"] == HELLO
            async with reading(model) as events:
                async for _ in events:
                    break
        await server.until_idle()
    assert observed.seen > 3
    gc.collect()
