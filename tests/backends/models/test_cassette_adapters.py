"""A cassette records every adapter at the wire, and replays it without network: on both loops, streamed and whole."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import anyio
import pytest
from httpx2 import AsyncClient

from repertory import Agent, BedrockEmbedder, OpenAIEmbedder
from repertory.backends.memory_ports import Embedder
from repertory.core.messages import Message
from repertory.errors import CassetteMismatch, ModelFailed, ModelStreamBroken, RepertoryError, Throttled, Unavailable
from repertory.testing.cassette import Cassette
from tests.backends.models.cassette_adapters import (
    ADAPTERS,
    BEDROCK,
    LITELLM,
    NOWHERE,
    SAGEMAKER,
    Adapter,
    events_of,
)
from tests.backends.models.sdk_services import HELLO, needs_litellm
from tests.backends.models.wire_server import AWS_FRAMES, Exchange, Handler, frame, wire_server

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("no_keys", "aws_environment")]
on_every_adapter = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
ANTHROPIC = ADAPTERS[0]
OPENAI = ADAPTERS[1]
BYE: list[Message] = [{"role": "user", "content": [{"text": "Bye"}]}]


@pytest.fixture(autouse=True)
def prices_from_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else importing LiteLLM asks the network for the prices of models."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cassettes" / "one.json"


def interactions(path: Path) -> list[Any]:
    found: list[Any] = json.loads(path.read_text())["interactions"]
    return found


async def recorded(path: Path, adapter: Adapter, handler: Handler, streams: bool = True) -> Any:
    """The events of an answer, or its error, while it is recorded. The server is gone then."""
    async with wire_server(handler) as server, Cassette(path, mode="record"):
        try:
            return await events_of(adapter.make(server.url, streams))
        except RepertoryError as error:
            return error


async def replays_as_recorded(path: Path, adapter: Adapter, streams: bool) -> None:
    said = await recorded(path, adapter, adapter.says_hello, streams)
    async with Cassette(path):
        heard = await events_of(adapter.make(NOWHERE, streams))
    assert heard == said
    text = [event["contentBlockDelta"]["delta"].get("text", "") for event in heard if "contentBlockDelta" in event]
    assert "".join(text) == "Hello"
    assert len([piece for piece in text if piece]) == (2 if streams else 1)


@on_every_adapter
@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
async def test_the_events_of_a_replay_are_those_of_the_recording(path: Path, adapter: Adapter, streams: bool) -> None:
    await replays_as_recorded(path, adapter, streams)


@needs_litellm
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
async def test_litellm_replays_as_it_was_recorded(path: Path, streams: bool) -> None:
    await replays_as_recorded(path, LITELLM, streams)


@needs_litellm
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning")  # LiteLLM does so, of pydantic
async def test_clients_that_litellm_has_made_before_are_recorded_too(path: Path) -> None:
    async with wire_server(LITELLM.says_hello) as server:
        await events_of(LITELLM.make(server.url, True))
        async with Cassette(path, mode="record"):
            said = await events_of(LITELLM.make(server.url, True))
        assert len(server.requests) == 2
    async with Cassette(path, match=["path"]):
        assert await events_of(LITELLM.make(NOWHERE, True)) == said


async def fails_as_recorded(path: Path, adapter: Adapter, handler: Handler, kind: type[RepertoryError]) -> None:
    told = await recorded(path, adapter, handler)
    assert type(told) is kind
    async with Cassette(path):
        with pytest.raises(kind) as caught:
            await events_of(adapter.make(NOWHERE, True))
    assert type(caught.value) is kind
    assert str(caught.value) == str(told)


@on_every_adapter
async def test_a_refusal_is_replayed(path: Path, adapter: Adapter) -> None:
    await fails_as_recorded(path, adapter, adapter.refuses, ModelFailed)


@on_every_adapter
async def test_an_answer_that_broke_off_breaks_off_again(path: Path, adapter: Adapter) -> None:
    await fails_as_recorded(path, adapter, adapter.breaks_off, ModelStreamBroken)
    assert "error" in interactions(path)[0]


@pytest.mark.parametrize("header", [{"Retry_After": "7"}, {"retry_after_ms": "7000"}], ids=str)
async def test_a_replay_does_not_wait_as_long_as_the_service_asked(path: Path, header: dict[str, str]) -> None:
    async def throttles(exchange: Exchange) -> None:
        await exchange.answer(429, ANTHROPIC.refusal, **header)

    told = await recorded(path, ANTHROPIC, throttles)
    async with Cassette(path):
        with pytest.raises(Throttled) as caught:
            await events_of(ANTHROPIC.make(NOWHERE, True))
    assert told.retry_after_s == 7
    assert caught.value.retry_after_s == 0


async def test_a_connection_that_failed_fails_again(path: Path) -> None:
    async with Cassette(path, mode="record"):
        with pytest.raises(Unavailable):
            await events_of(OPENAI.make(NOWHERE, True))
    interaction = interactions(path)[0]
    assert interaction["error"]["class"] == "ConnectError"
    assert "response" not in interaction
    async with wire_server(OPENAI.says_hello) as server, Cassette(path):
        with pytest.raises(Unavailable):
            await events_of(OPENAI.make(server.url, True))
        assert not server.requests


async def changed_prompt_is_told(path: Path, adapter: Adapter) -> None:
    await recorded(path, adapter, adapter.says_hello)
    async with wire_server(adapter.says_hello) as server:
        with pytest.raises(CassetteMismatch, match="not on the cassette") as at_the_end:
            async with Cassette(path):
                with pytest.raises(CassetteMismatch) as caught:
                    await events_of(adapter.make(server.url, True), BYE)
        assert not server.requests
    assert str(at_the_end.value) == str(caught.value)
    told = str(caught.value)
    assert "Hello" in next(line for line in told.splitlines() if line.startswith("- "))
    assert "Bye" in next(line for line in told.splitlines() if line.startswith("+ "))
    assert str(path) in told


@on_every_adapter
async def test_a_changed_prompt_is_told_with_the_difference(path: Path, adapter: Adapter) -> None:
    await changed_prompt_is_told(path, adapter)


@needs_litellm
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_litellm_tells_a_changed_prompt_too(path: Path) -> None:
    await changed_prompt_is_told(path, LITELLM)


async def test_a_replay_streams_piece_by_piece(path: Path) -> None:
    await recorded(path, ANTHROPIC, ANTHROPIC.says_hello)
    chunks = interactions(path)[0]["response"]["chunks"]
    assert len(chunks) > 3
    assert "".join(chunks).encode() == b"".join(ANTHROPIC.pieces)


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("adapter", [ANTHROPIC, OPENAI, BEDROCK, SAGEMAKER], ids=lambda adapter: adapter.name)
async def test_a_stream_in_odd_pieces_is_recorded_whole(path: Path, adapter: Adapter, size: int) -> None:
    data = b"".join(adapter.pieces)
    if adapter.media != AWS_FRAMES:
        data = data.replace(b'"lo"', '"lé"'.encode())
    said = await recorded(path, adapter, adapter.saying(*(data[at : at + size] for at in range(0, len(data), size))))
    async with Cassette(path):
        assert await events_of(adapter.make(NOWHERE, True)) == said
    assert any("contentBlockDelta" in event for event in said)


async def test_frames_of_an_event_stream_can_be_read_in_the_file(path: Path) -> None:
    await recorded(path, BEDROCK, BEDROCK.says_hello)
    frames = [each for chunk in interactions(path)[0]["response"]["chunks"] for each in chunk["frames"]]
    assert frames[1]["headers"][":event-type"] == "contentBlockDelta"
    assert json.loads(frames[1]["payload"])["delta"] == {"text": "Hel"}


async def test_a_damaged_frame_is_replayed_as_it_came(path: Path) -> None:
    damaged = frame("contentBlockDelta", {"contentBlockIndex": 0, "delta": {"text": "x"}})[:-1] + b"!"
    await fails_as_recorded(path, BEDROCK, BEDROCK.saying(*BEDROCK.pieces[:1], damaged), ModelStreamBroken)


async def test_a_reader_that_stops_early_replays_what_it_had_read(path: Path) -> None:
    async def hangs(exchange: Exchange) -> None:
        await exchange.begin(ANTHROPIC.media)
        await exchange.send(*ANTHROPIC.pieces[:3])
        await exchange.until_closed()

    async def first_delta(url: str) -> Any:
        model = ANTHROPIC.make(url, True)
        stream: Any = model.stream(HELLO)
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    if "contentBlockDelta" in event:
                        return event
        finally:
            await model.aclose()

    with anyio.fail_after(20):
        async with wire_server(hangs) as server, Cassette(path, mode="record"):
            said = await first_delta(server.url)
        async with Cassette(path):
            assert await first_delta(NOWHERE) == said
    assert interactions(path)[0]["response"]["cut"] is True


async def test_requests_at_the_same_time_get_each_its_own_answer(path: Path) -> None:
    async def echoes(exchange: Exchange) -> None:
        said = str(exchange.body["messages"][0]["content"][0]["text"])
        answer = {**ANTHROPIC.whole, "content": [{"type": "text", "text": said.upper()}]}
        await exchange.answer(200, answer)

    async def ask_all(url: str, words: list[str]) -> dict[str, str]:
        heard: dict[str, str] = {}

        async def one(word: str) -> None:
            messages: list[Message] = [{"role": "user", "content": [{"text": word}]}]
            events = await events_of(ANTHROPIC.make(url, False), messages)
            heard[word] = next(e["contentBlockDelta"]["delta"]["text"] for e in events if "contentBlockDelta" in e)

        async with anyio.create_task_group() as tasks:
            for word in words:
                tasks.start_soon(one, word)
        return heard

    words = [f"word {number}" for number in range(8)]
    async with wire_server(echoes) as server, Cassette(path, mode="record"):
        said = await ask_all(server.url, words)
    async with Cassette(path):
        assert await ask_all(NOWHERE, words[::-1]) == said == {word: word.upper() for word in words}


async def test_equal_requests_get_their_answers_in_order(path: Path) -> None:
    numbers = iter(range(9))

    async def counts(exchange: Exchange) -> None:
        await exchange.answer(200, {**ANTHROPIC.whole, "id": f"msg_{next(numbers)}"})

    async def thrice(url: str) -> list[Any]:
        return [await events_of(ANTHROPIC.make(url, False)) for _ in range(3)]

    async with wire_server(counts) as server, Cassette(path, mode="record"):
        said = await thrice(server.url)
    assert said[0] != said[1]
    async with Cassette(path):
        assert await thrice(NOWHERE) == said
    with pytest.raises(CassetteMismatch, match="more often"):
        async with Cassette(path):
            await thrice(NOWHERE)
            await events_of(ANTHROPIC.make(NOWHERE, False))


async def test_hosts_that_are_ignored_are_reached_as_without_a_cassette(path: Path) -> None:
    async with wire_server(ANTHROPIC.says_hello) as server, AsyncExitStack() as stack:
        await stack.enter_async_context(Cassette(path, mode="record", ignore_hosts=["127.0.*"]))
        await events_of(ANTHROPIC.make(server.url, False))
        assert len(server.requests) == 1
    assert interactions(path) == []


async def test_a_compressed_answer_is_recorded_as_text(path: Path) -> None:
    async def compresses(exchange: Exchange) -> None:
        assert exchange.headers["accept-encoding"] == "identity"
        body = gzip.compress(json.dumps(ANTHROPIC.whole).encode())
        await exchange.answer(200, body, Content_Encoding="gzip")

    async def asked(url: str) -> object:
        async with AsyncClient() as client:  # as a program brings it: our own refuse such an answer
            return (await client.post(f"{url}/v1/messages", json={})).json()

    async with wire_server(compresses) as server, Cassette(path, mode="record"):
        said = await asked(server.url)
    assert interactions(path)[0]["response"]["json"] == said == ANTHROPIC.whole
    async with Cassette(path):
        assert await asked(NOWHERE) == said


async def openai_vectors(exchange: Exchange) -> None:
    data = [{"object": "embedding", "index": n, "embedding": [0.25, 0.5]} for n, _ in enumerate(exchange.body["input"])]
    await exchange.answer(200, {"object": "list", "data": data, "model": "m", "usage": {}})


async def titan_vectors(exchange: Exchange) -> None:
    await exchange.answer(200, {"embedding": [float(len(exchange.body["inputText"])), 0.5], "inputTextTokenCount": 3})


def openai_embedder(url: str) -> Embedder:
    return OpenAIEmbedder(client_args={"base_url": f"{url}/v1", "api_key": "key"}, dimensions=2)


def titan_embedder(url: str) -> Embedder:
    return BedrockEmbedder(endpoint_url=url, dimensions=256)


@pytest.mark.parametrize(
    ("make", "handler"),
    [(openai_embedder, openai_vectors), (titan_embedder, titan_vectors)],
    ids=["OpenAI", "Titan"],
)
async def test_vectors_of_embedders_are_replayed(path: Path, make: Callable[[str], Embedder], handler: Handler) -> None:
    async def vectors(url: str, *texts: str) -> Any:
        embedder = make(url)
        try:
            return await embedder.embed(texts)
        finally:
            await embedder.aclose()

    async with wire_server(handler) as server, Cassette(path, mode="record"):
        said = await vectors(server.url, "one", "three")
    async with Cassette(path):
        assert await vectors(NOWHERE, "one", "three") == said
    with pytest.raises(CassetteMismatch, match="not on the cassette"):
        async with Cassette(path):
            with pytest.raises(RepertoryError):
                await vectors(NOWHERE, "two", "three")


@pytest.mark.parametrize("adapter", [ANTHROPIC, BEDROCK], ids=lambda adapter: adapter.name)
async def test_an_agent_that_asks_something_else_fails_at_once(path: Path, adapter: Adapter) -> None:
    async def turn(url: str, prompt: str) -> str:
        model = adapter.make(url, True)
        try:
            async with Agent(model, callback_handler=None) as agent:
                return str(await agent.invoke_async(prompt)).strip()
        finally:
            await model.aclose()

    async with wire_server(adapter.says_hello) as server, Cassette(path, mode="record"):
        assert await turn(server.url, "Hi") == "Hello"
    async with Cassette(path):
        assert await turn(NOWHERE, "Hi") == "Hello"
    with pytest.raises(CassetteMismatch):
        async with Cassette(path) as cassette:
            with pytest.raises(CassetteMismatch, match="Ho"):
                await turn(NOWHERE, "Ho")
            assert len(cassette.requests) == 1
