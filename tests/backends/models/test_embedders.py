"""Embedders that ask a service, on loopback. Source: the Embeddings API, and Titan Text Embeddings V2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from repertory import BedrockEmbedder, OpenAIEmbedder
from repertory.errors import Invalid, ModelFailed, Throttled, Unavailable
from tests.backends.models.wire_server import Exchange, Handler, WireServer, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@asynccontextmanager
async def openai(handler: Handler, **settings: Any) -> AsyncIterator[tuple[OpenAIEmbedder, WireServer]]:
    async with wire_server(handler) as server:
        embedder = OpenAIEmbedder(client_args={"base_url": f"{server.url}/v1"}, **settings)
        try:
            yield embedder, server
        finally:
            await embedder.aclose()


@asynccontextmanager
async def bedrock(handler: Handler, **settings: Any) -> AsyncIterator[tuple[BedrockEmbedder, WireServer]]:
    async with wire_server(handler) as server:
        embedder = BedrockEmbedder(endpoint_url=server.url, **settings)
        try:
            yield embedder, server
        finally:
            await embedder.aclose()


async def openai_answers(exchange: Exchange) -> None:
    texts = exchange.body["input"]
    data = [{"object": "embedding", "index": n, "embedding": [float(len(text)), 0.5]} for n, text in enumerate(texts)]
    await exchange.answer(200, {"object": "list", "model": "m", "data": data[::-1], "usage": {}})


async def titan_answers(exchange: Exchange) -> None:
    text = exchange.body["inputText"]
    await exchange.answer(200, {"embedding": [float(len(text)), 0.5], "inputTextTokenCount": 3})


def refuses(status: int, body: object) -> Callable[[Exchange], Any]:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(status, body)

    return handle


async def test_openai_is_asked_once_and_answers_in_order(no_keys: pytest.MonkeyPatch) -> None:
    async with openai(openai_answers, dimensions=2) as (embedder, server):
        assert (embedder.name, embedder.dimensions) == ("text-embedding-3-small", 2)
        assert await embedder.embed(["a", "bbb", "cc"]) == [[1.0, 0.5], [3.0, 0.5], [2.0, 0.5]]
        (asked,) = server.requests
        assert asked.path == "/v1/embeddings"
        assert asked.body == {
            "model": "text-embedding-3-small",
            "input": ["a", "bbb", "cc"],
            "encoding_format": "float",
            "dimensions": 2,
        }


async def test_titan_is_asked_for_each_text(aws_keys: pytest.MonkeyPatch) -> None:
    async with bedrock(titan_answers, dimensions=256) as (embedder, server):
        texts = ["x" * length for length in range(1, 21)]
        assert await embedder.embed(texts) == [[float(length), 0.5] for length in range(1, 21)]
        assert {asked.path.removeprefix(server.url) for asked in server.requests} == {
            "/model/amazon.titan-embed-text-v2%3A0/invoke"
        }
        assert sorted(asked.body["inputText"] for asked in server.requests) == texts
        assert server.requests[0].body["dimensions"] == 256


@pytest.mark.parametrize(("status", "error"), [(429, Throttled), (503, Unavailable), (401, ModelFailed)])
async def test_refusals_of_openai_are_errors_of_ours(
    status: int, error: type[Exception], no_keys: pytest.MonkeyPatch
) -> None:
    async with openai(refuses(status, {"error": {"message": "no"}})) as (embedder, _):
        with pytest.raises(error):
            await embedder.embed(["a"])


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, {"message": "slow down"}, Throttled),
        (503, {"message": "later"}, Unavailable),
        (403, {"message": "no"}, ModelFailed),
        (200, {"nothing": 1}, ModelFailed),
        (200, {"embedding": "none"}, ModelFailed),
        (200, b"no json", ModelFailed),
    ],
)
async def test_refusals_of_bedrock_are_errors_of_ours(
    status: int, body: object, error: type[Exception], aws_keys: pytest.MonkeyPatch
) -> None:
    async with bedrock(refuses(status, body)) as (embedder, _):
        with pytest.raises(error):
            await embedder.embed(["a", "b", "c"])


async def test_too_few_vectors_are_refused(no_keys: pytest.MonkeyPatch) -> None:
    async with openai(refuses(200, {"object": "list", "model": "m", "data": [], "usage": {}})) as (embedder, _):
        with pytest.raises(ModelFailed, match="number of vectors"):
            await embedder.embed(["a"])


def test_dimensions_are_those_that_the_service_has() -> None:
    with pytest.raises(Invalid, match="256, 512 or 1024"):
        BedrockEmbedder(dimensions=100)
    with pytest.raises(Invalid, match="positive"):
        OpenAIEmbedder(dimensions=0)
