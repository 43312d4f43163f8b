"""The two services behind official SDKs, as a test speaks for them: models that ask, and answers in their spelling.

Source: the Messages API and the Chat Completions API.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from repertory.backends.models.anthropic import AnthropicModel
from repertory.backends.models.openai import OpenAIModel
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message
from tests.backends.models.wire_server import SERVER_SENT_EVENTS, Exchange, Handler, WireServer, wire_server

HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
SdkModel = AnthropicModel | OpenAIModel


@dataclass(frozen=True, kw_only=True)
class SdkService:
    """One service."""

    name: str
    path: str
    model: Callable[..., SdkModel]
    """Takes the URL of a server and the model's settings."""
    text: Callable[..., list[bytes]]
    """The events of a whole answer of text."""
    whole: dict[str, Any]
    """An answer that comes at once: the text "Hello"."""
    error: Callable[[str, str], dict[str, Any]]
    """The body of an error of this type with this message."""
    key_variable: str

    def streaming(self, *events: bytes) -> Handler:
        """A server that answers every request with these events."""

        async def handle(exchange: Exchange) -> None:
            await exchange.stream(*events, media=SERVER_SENT_EVENTS)

        return handle

    @asynccontextmanager
    async def serving(self, handler: Handler, **config: Any) -> AsyncIterator[tuple[SdkModel, WireServer]]:
        """A model and the server that it speaks to."""
        async with wire_server(handler) as server:
            model = self.model(server.url, **config)
            try:
                yield model, server
            finally:
                await model.aclose()


def event(data: object) -> bytes:
    """One event of the Messages API, or one chunk of Chat Completions. Bytes are sent as they are."""
    if isinstance(data, bytes):
        return data
    name = f"event: {data['type']}\n" if isinstance(data, dict) and "type" in data else ""
    return f"{name}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def message_start(**usage: int) -> bytes:
    """The first event of the Messages API."""
    counts = {"input_tokens": 3, "output_tokens": 1, **usage}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": counts}
    return event({"type": "message_start", "message": message})


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[bytes]:
    """A content block of the Messages API."""
    return [
        event({"type": "content_block_start", "index": index, "content_block": start}),
        *(event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas),
        event({"type": "content_block_stop", "index": index}),
    ]


def message_end(stop_reason: str, **usage: int) -> list[bytes]:
    """The last events of the Messages API."""
    counts = {"output_tokens": 2, **usage}
    delta = {"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": None}, "usage": counts}
    return [event(delta), event({"type": "message_stop"})]


def anthropic_text(*pieces: str, stop_reason: str = "end_turn") -> list[bytes]:
    """A whole answer of text."""
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return [message_start(), *block(0, {"type": "text", "text": ""}, *deltas), *message_end(stop_reason)]


def chunk(delta: dict[str, Any] | None = None, finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    """One chunk of Chat Completions; without a delta and a reason it has no choices."""
    choices = [] if delta is None and finish_reason is None else [{"index": 0, "delta": delta or {}}]
    if finish_reason:
        choices[0]["finish_reason"] = finish_reason
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        **fields,
    }


DONE = event("[DONE]")
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def openai_text(*pieces: str, finish_reason: str = "stop") -> list[bytes]:
    """A whole answer of text."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
    last = [chunk({}, finish_reason), chunk(usage=USAGE)]
    return [*map(event, [*(chunk(delta) for delta in deltas), *last]), DONE]


def _anthropic_model(url: str, **config: Any) -> AnthropicModel:
    arguments = {"base_url": url, "api_key": "key", **config.pop("client_args", {})}
    return AnthropicModel(client_args=arguments, **config)


def _openai_model(url: str, **config: Any) -> OpenAIModel:
    arguments = {"base_url": f"{url}/v1", "api_key": "key", **config.pop("client_args", {})}
    return OpenAIModel(client_args=arguments, **config)


ANTHROPIC = SdkService(
    name="Anthropic",
    path="/v1/messages",
    model=_anthropic_model,
    text=anthropic_text,
    whole={
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    },
    error=lambda kind, message: {"type": "error", "error": {"type": kind, "message": message}},
    key_variable="ANTHROPIC_API_KEY",
)
OPENAI = SdkService(
    name="OpenAI",
    path="/v1/chat/completions",
    model=_openai_model,
    text=openai_text,
    whole={
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": None}, "finish_reason": "stop"}
        ],
        "usage": USAGE,
    },
    error=lambda kind, message: {"error": {"message": message, "type": kind, "param": None, "code": None}},
    key_variable="OPENAI_API_KEY",
)
SERVICES = (ANTHROPIC, OPENAI)
on_both = pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)


def reading(model: SdkModel, messages: list[Message] = HELLO, **options: Any) -> aclosing[Any]:
    """The stream, closed at the end of the block as every reader must."""
    stream: Any = model.stream(messages, **options)
    return aclosing(stream)


async def ask(model: SdkModel, messages: list[Message] = HELLO, **options: Any) -> Answer:
    """The model's answer, within 20 s."""
    assembler = Assembler()
    with anyio.fail_after(20):
        async with reading(model, messages, **options) as events:
            async for piece in events:
                assembler.feed(piece)
    return assembler.finish()
