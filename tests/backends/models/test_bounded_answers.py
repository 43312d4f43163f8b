"""Model services whose answers would fill the memory: packed ones, endless ones, and errors of any size."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AnthropicModel,
    BedrockModel,
    GeminiModel,
    OllamaModel,
    OpenAIEmbedder,
    OpenAIModel,
    OpenAIResponsesModel,
)
from repertory.backends import http_answers
from repertory.backends.models.sdk import EventDecoder, LineCutter
from repertory.errors import ModelFailed, Unavailable
from tests.backends.models.wire_server import Exchange, wire_server
from tests.backends.recorded_http import recorded_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

MODELS: dict[str, Callable[..., Any]] = {
    "anthropic": lambda url, **more: AnthropicModel(
        client_args={"api_key": "k", "base_url": url}, model_id="m", max_tokens=9, **more
    ),
    "openai": lambda url, **more: OpenAIModel(client_args={"api_key": "k", "base_url": url}, model_id="m", **more),
    "responses": lambda url, **more: OpenAIResponsesModel(
        client_args={"api_key": "k", "base_url": url}, model_id="m", **more
    ),
    "gemini": lambda url, **more: GeminiModel(
        client_args={"api_key": "k", "http_options": {"base_url": url}}, model_id="m", **more
    ),
    "ollama": lambda url, **more: OllamaModel(url, model_id="m", **more),
    "bedrock": lambda url, **more: BedrockModel(endpoint_url=url, model_id="m", region_name="us-east-1", **more),
}
MEDIA = {"ollama": "application/x-ndjson", "bedrock": "application/vnd.amazon.eventstream"}
UNPACKED = 32 * 1024 * 1024
PACKED = gzip.compress(bytes(UNPACKED), 1)


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")


def agent_of(name: str, url: str, *, streaming: bool) -> Agent:
    return Agent(MODELS[name](url, streaming=streaming), callback_handler=None, retry_strategy=None)


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("name", MODELS)
async def test_a_packed_answer_is_not_asked_for_and_not_unpacked(name: str, streaming: bool) -> None:
    media = MEDIA.get(name, "text/event-stream") if streaming else "application/json"
    headers = {"content-encoding": "gzip", "content-type": media}
    with recorded_server(lambda _: (200, headers, PACKED)) as service:
        agent = agent_of(name, service.url, streaming=streaming)
        with pytest.raises(ModelFailed, match="is packed"):  # loads the SDK
            await agent.invoke_async("hello")
        tracemalloc.start()
        try:
            with pytest.raises(ModelFailed, match="is packed"):
                await agent.invoke_async("hello")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < UNPACKED / 8
        assert {each.headers["accept-encoding"] for each in service.heard} == {"identity"}


@pytest.mark.parametrize("streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bedrock"])
async def test_an_answer_without_an_end_is_left_at_the_bound(
    name: str, streaming: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_answers.bound_answers, "__defaults__", (1_000_000, None))
    sent = 0

    async def endless(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.begin(MEDIA.get(name, "text/event-stream") if streaming else "application/json")
        await exchange.send(b'data: {"a": "')
        with pytest.raises((anyio.BrokenResourceError, anyio.ClosedResourceError)):
            while True:
                await exchange.send(b"x" * 65_536)
                sent += 65_536

    async with wire_server(endless) as service:
        with pytest.raises(ModelFailed, match="too large to be read"):
            await agent_of(name, service.url, streaming=streaming).invoke_async("hello")
    assert sent < 1_000_000 * 16  # The rest of it lay in the buffers of the sockets.


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "plain"])
@pytest.mark.parametrize("name", MODELS)
async def test_of_a_large_error_the_status_decides(name: str, packed: bool) -> None:
    body = b'{"error": {"message": "' + b"x" * (2 * http_answers.REFUSAL_BYTES_MAX)
    headers = {"content-type": "application/json", **({"content-encoding": "gzip"} if packed else {})}
    with recorded_server(lambda _: (503, headers, gzip.compress(body) if packed else body)) as service:
        with pytest.raises(Unavailable) as raised:
            await agent_of(name, service.url, streaming=True).invoke_async("hello")
        assert len(str(raised.value)) <= 1.5 * http_answers.REFUSAL_BYTES_MAX


async def test_an_embedder_reads_no_packed_answer() -> None:
    with recorded_server(lambda _: (200, {"content-encoding": "gzip"}, PACKED)) as service:
        embedder = OpenAIEmbedder("m", dimensions=3, client_args={"api_key": "k", "base_url": service.url})
        with pytest.raises(ModelFailed, match="is packed"):
            await embedder.embed(["hello"])
        await embedder.aclose()


def test_lines_are_cut_anywhere_and_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = LineCutter()
    assert [line for piece in (b"a", b"", b"b\nc\n", b"\nd", b"e\n") for line in lines.feed(piece)] == [
        b"ab", b"c", b"", b"de",
    ]  # fmt: skip
    assert lines.rest == b""
    events = EventDecoder()
    assert list(events.feed(b"data: \xc3")) == []
    assert list(events.feed(b"\xa4\r\ndata:b\r\n\r\n: no\n\n")) == ["ä\nb"]
    monkeypatch.setattr("repertory.backends.models.sdk.BODY_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="longer than 100 bytes"):
        for _ in range(101):
            lines.feed(b"x")


@pytest.mark.parametrize("name", ["openai", "anthropic", "responses", "ollama"])
async def test_an_answer_that_is_nested_too_deeply_cannot_be_read(name: str) -> None:
    deep = b'{"id":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    body = deep if name == "ollama" else b"data: " + deep + b"\n"
    headers = {"content-type": MEDIA.get(name, "text/event-stream")}
    answers = recorded_server(lambda _: (200, headers, body))
    with answers as service, pytest.raises(ModelFailed, match=r"cannot be read|the model call failed"):
        await agent_of(name, service.url, streaming=True).invoke_async("hello")
