"""`count_tokens`: by the service when it is asked for, else by estimate; and what settings say about the window."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from repertory import AnthropicModel, BedrockModel, Model, OpenAIModel
from repertory.core.messages import Message, ToolSpec
from repertory.core.tokens import estimate_tokens
from repertory.errors import Invalid
from tests.backends.models.wire_server import Exchange, Handler, WireServer, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_environment", "no_keys")]

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello, is anybody there?"}]}]
ADD: list[ToolSpec] = [{"name": "add", "description": "Adds.", "inputSchema": {"json": {"type": "object"}}}]
ESTIMATE = estimate_tokens(HELLO, ADD, "Be brief.")
COUNTING = ["Anthropic", "Bedrock"]


def model_at(service: str, url: str, **config: Any) -> AnthropicModel | BedrockModel:
    if service == "Bedrock":
        return BedrockModel(endpoint_url=url, **config)
    return AnthropicModel(client_args={"base_url": url, "api_key": "key"}, **config)


@asynccontextmanager
async def counting(service: str, handler: Handler) -> AsyncIterator[tuple[Model, WireServer]]:
    """A model that counts natively, and the server that it asks."""
    async with wire_server(handler) as server:
        model = model_at(service, server.url, model_id="my-model", use_native_token_count=True)
        try:
            yield model, server
        finally:
            await model.aclose()


def answering(status: int, body: object) -> Handler:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(status, body)

    return handle


@pytest.mark.parametrize(
    ("service", "path", "body"),
    [
        ("Anthropic", "/v1/messages/count_tokens", {"input_tokens": 77}),
        ("Bedrock", "/model/my-model/count-tokens", {"inputTokens": 77}),
    ],
)
async def test_the_service_counts_when_it_is_asked_to(service: str, path: str, body: dict[str, int]) -> None:
    async with counting(service, answering(200, body)) as (model, server):
        assert await model.count_tokens(HELLO, ADD, "Be brief.") == 77
        (request,) = server.requests
    assert request.path.removeprefix(server.url) == path
    sent = request.body["input"]["converse"] if service == "Bedrock" else request.body
    assert {"messages", "system"} < sent.keys()
    assert "max_tokens" not in sent


@pytest.mark.parametrize("service", COUNTING)
@pytest.mark.parametrize(
    ("status", "body"), [(500, {}), (400, {"message": "no"}), (200, {}), (200, b"{nonsense"), (200, b"[]")]
)
async def test_a_service_that_does_not_count_is_no_error(service: str, status: int, body: object) -> None:
    async with counting(service, answering(status, body)) as (model, server):
        assert await model.count_tokens(HELLO, ADD, "Be brief.") == ESTIMATE
        assert len(server.requests) == 1


async def test_without_being_asked_no_service_is_called() -> None:
    for model in (
        model_at("Anthropic", "http://127.0.0.1:1"),
        model_at("Bedrock", "http://127.0.0.1:1"),
        OpenAIModel(),
    ):
        assert await model.count_tokens(HELLO, ADD, "Be brief.") == ESTIMATE
        content = [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}]
        assert await model.count_tokens(HELLO, ADD, None, content) == ESTIMATE


async def test_what_the_service_cannot_take_is_refused_before_anything_is_sent() -> None:
    async with counting("Anthropic", answering(200, {"input_tokens": 1})) as (model, server):
        with pytest.raises(Invalid, match="video"):
            await model.count_tokens([{"role": "user", "content": [{"video": {}}]}])
        assert not server.requests
