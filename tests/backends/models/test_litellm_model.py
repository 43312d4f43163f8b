"""LiteLLMModel through the library, against a server with OpenAI's protocol.

The library holds OpenAI's SDK below its release 3, so it is no part of the development environment; `make soak` runs
these tests with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from repertory import LiteLLMModel
from repertory.backends.models import litellm
from repertory.errors import ContextWindowOverflowException, ModelFailed, ModelStreamBroken, Throttled, Unavailable
from tests.backends.models.sdk_services import LITELLM_MISSING, OPENAI, ask, needs_litellm, openai_text, reading
from tests.backends.models.test_more_providers import TOOLS, USED
from tests.backends.models.wire_server import SERVER_SENT_EVENTS, Exchange, Handler, WireServer, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys")]
on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)


@pytest.fixture(autouse=True)
def prices_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else importing the library asks the network for the prices of models."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@asynccontextmanager
async def serving(handler: Handler, **config: Any) -> AsyncIterator[tuple[LiteLLMModel, WireServer]]:
    async with wire_server(handler) as server:
        arguments = {"api_key": "key", "api_base": f"{server.url}/v1"}
        model = LiteLLMModel(arguments, **{"model_id": "openai/m", **config})
        try:
            yield model, server
        finally:
            await model.aclose()


@pytest.mark.skipif(not LITELLM_MISSING, reason="litellm is installed")
def test_a_missing_library_says_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"pip install 'repertory\[litellm\]'"):
        LiteLLMModel(model_id="openai/m")


@needs_litellm
@on_asyncio
@pytest.mark.parametrize("streams", [True, False])
async def test_an_answer_comes(streams: bool) -> None:
    async def handle(exchange: Exchange) -> None:
        if streams:
            await exchange.stream(*openai_text("Hel", "lo"), media=SERVER_SENT_EVENTS)
        else:
            await exchange.answer(200, OPENAI.whole)

    async with serving(handle, stream=streams, params={"temperature": 0.5}) as (model, server):
        answer = await ask(model, USED, tool_specs=TOOLS)
    assert answer.message["content"] == [{"text": "Hello"}]
    assert answer.usage["totalTokens"] == 5
    assert server.requests[0].body["temperature"] == 0.5
    assert server.requests[0].body["tools"]


@needs_litellm
@on_asyncio
@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (429, "slow down", Throttled),
        (503, "later", Unavailable),
        (400, "This model's maximum context length is 8 tokens", ContextWindowOverflowException),
        (401, "no", ModelFailed),
        (404, "no", ModelFailed),
    ],
)
async def test_a_refusal_is_asked_once_and_mapped(status: int, message: str, expected: type[Exception]) -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.answer(status, OPENAI.error("x", message))

    async with serving(handle) as (model, server):
        with pytest.raises(expected) as caught:
            await ask(model)
        assert type(caught.value) is expected
        assert len(server.requests) == 1


@needs_litellm
@on_asyncio
async def test_a_stream_that_breaks_off_is_no_short_answer() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.begin(SERVER_SENT_EVENTS)
        await exchange.send(*openai_text("Hel", "lo")[:3])
        await exchange.socket.aclose()

    async with serving(handle) as (model, _):
        with pytest.raises(ModelStreamBroken):
            await ask(model)


@needs_litellm
@on_asyncio
async def test_leaving_the_stream_early_releases_the_connection() -> None:
    async def handle(exchange: Exchange) -> None:
        await exchange.begin(SERVER_SENT_EVENTS)
        await exchange.send(*openai_text("Hel", "lo")[:3])
        await exchange.until_closed()

    async with serving(handle) as (model, server):
        with anyio.fail_after(20):
            async with reading(model) as events:
                async for _ in events:
                    break
        await server.until_idle()


@needs_litellm
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_on_trio_it_says_that_it_cannot_run_there() -> None:
    with pytest.raises(ModelFailed, match="asyncio only"):
        await ask(LiteLLMModel(model_id="openai/m"))


def test_marks_of_the_system_prompt_are_passed_on() -> None:
    blocks = [{"text": "a"}, {"cachePoint": {"type": "default", "ttl": "1h"}}, {"text": "b"}]
    assert litellm._system(blocks) == [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"type": "text", "text": "b"},
    ]
