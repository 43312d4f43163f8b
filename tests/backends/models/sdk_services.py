"""The services behind SDKs, as a test speaks for them: models that ask, and answers in their spelling.

Source: the Messages API, the Chat Completions and Responses APIs, and those of Ollama, Gemini and Mistral.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import anyio
import pytest

from repertory.backends.models import anthropic, compatible, gemini, ollama, openai, responses
from repertory.backends.models.anthropic import AnthropicModel
from repertory.backends.models.compatible import LlamaAPIModel, LlamaCppModel, MistralModel, WriterModel
from repertory.backends.models.gemini import GeminiModel
from repertory.backends.models.ollama import OllamaModel
from repertory.backends.models.openai import OpenAIModel
from repertory.backends.models.provider import ProviderModel
from repertory.backends.models.responses import OpenAIResponsesModel
from repertory.backends.models.sdk import ModelService
from repertory.core.answer import Answer, Assembler
from repertory.core.messages import Message
from tests.backends.models.wire_server import SERVER_SENT_EVENTS, Exchange, Handler, WireServer, wire_server

LITELLM_MISSING = find_spec("litellm") is None
HELLO: list[Message] = [{"role": "user", "content": [{"text": "Hello"}]}]
SdkModel = ProviderModel


def needs_litellm(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test with LiteLLM where it is installed. What the library warns of in its own classes fails no test."""
    ignored = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
    missing = pytest.mark.skipif(LITELLM_MISSING, reason="litellm is not installed: `make soak` runs this")
    return ignored(missing(test))


def event(data: object) -> bytes:
    """One event of the Messages API, or one chunk of Chat Completions. Bytes are sent as they are."""
    if isinstance(data, bytes):
        return data
    name = f"event: {data['type']}\n" if isinstance(data, dict) and "type" in data else ""
    return f"{name}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


@dataclass(frozen=True, kw_only=True)
class SdkService:
    """One service."""

    name: str
    sdk: ModelService
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
    media: str = SERVER_SENT_EVENTS
    """The type of a stream."""
    event: Callable[[object], bytes] = event
    """One event of a stream."""

    def said(self, body: dict[str, Any]) -> str:
        """The text of the first message of a request."""
        message = (body.get("messages") or body.get("input") or body.get("contents"))[0]
        content = message.get("content") or message.get("parts")
        return content if isinstance(content, str) else content[0]["text"]

    def streaming(self, *events: bytes) -> Handler:
        """A server that answers every request with these events."""

        async def handle(exchange: Exchange) -> None:
            await exchange.stream(*events, media=self.media)

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
    sdk=anthropic.ANTHROPIC,
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
    sdk=openai.OPENAI,
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


def _like_openai(sdk: ModelService, make: Callable[..., SdkModel], path: str = OPENAI.path) -> SdkService:
    return replace(OPENAI, name=sdk.name, sdk=sdk, model=make, key_variable=sdk.key_variable, path=path)


def _at(url: str, config: dict[str, Any]) -> dict[str, Any]:
    return {"base_url": url, "api_key": "key", **config.pop("client_args", {})}


MISTRAL = _like_openai(
    compatible.MISTRAL,
    lambda url, **config: MistralModel(client_args=_at(f"{url}/v1", config), **{"model_id": "m", **config}),
)
LLAMA_API = _like_openai(
    compatible.LLAMA_API,
    lambda url, **config: LlamaAPIModel(client_args=_at(f"{url}/v1", config), **{"model_id": "m", **config}),
)
LLAMA_CPP = _like_openai(
    compatible.LLAMA_CPP,
    lambda url, **config: LlamaCppModel(url, client_args={"api_key": "key", **config.pop("client_args", {})}, **config),
)
WRITER = _like_openai(
    compatible.WRITER,
    lambda url, **config: WriterModel(client_args=_at(url, config), **{"model_id": "m", **config}),
    "/v1/chat",
)


def _response(text: str) -> dict[str, Any]:
    said = {"type": "output_text", "text": text, "annotations": []}
    return {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "error": None,
        "output": [{"type": "message", "id": "msg_1", "role": "assistant", "content": [said]}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5, "input_tokens_details": {}},
    }


def responses_text(*pieces: str) -> list[bytes]:
    """A whole answer of text."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    created = {"type": "response.created", "response": {"id": "resp_1", "error": None}}
    deltas = [{"type": "response.output_text.delta", "output_index": 0, "delta": piece} for piece in pieces]
    return [
        event(created),
        event({"type": "response.output_item.added", "output_index": 0, "item": item}),
        *map(event, deltas),
        event({"type": "response.output_item.done", "output_index": 0, "item": item}),
        event({"type": "response.completed", "response": _response("".join(pieces))}),
    ]


RESPONSES = replace(
    OPENAI,
    name="Responses",
    sdk=responses.RESPONSES,
    path="/v1/responses",
    model=lambda url, **config: OpenAIResponsesModel(client_args=_at(f"{url}/v1", config), **config),
    text=responses_text,
    whole=_response("Hello"),
)


def line(data: object) -> bytes:
    """One line of JSON."""
    return data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n"


def ollama_piece(content: str, **fields: Any) -> dict[str, Any]:
    """One piece of an answer of Ollama."""
    message = {"role": "assistant", "content": content, **fields.pop("message", {})}
    return {"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False, **fields}


OLLAMA_END = {"done": True, "done_reason": "stop", "prompt_eval_count": 3, "eval_count": 2, "total_duration": 7_000_000}


def ollama_text(*pieces: str) -> list[bytes]:
    """A whole answer of text."""
    return [*(line(ollama_piece(piece)) for piece in ("", *pieces)), line(ollama_piece("", **OLLAMA_END))]


OLLAMA = SdkService(
    name="Ollama",
    sdk=ollama.OLLAMA,
    path="/api/chat",
    model=lambda url, **config: OllamaModel(
        url, ollama_client_args=config.pop("client_args", {}), **{"model_id": "m", **config}
    ),
    text=ollama_text,
    whole=ollama_piece("Hello", **OLLAMA_END),
    error=lambda kind, message: {"error": message},
    key_variable="OLLAMA_API_KEY",
    media="application/x-ndjson",
    event=line,
)


def gemini_piece(*parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    """One piece of an answer of Gemini."""
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {"promptTokenCount": 3, "candidatesTokenCount": 2, "totalTokenCount": 5}
    return {"candidates": [candidate], "usageMetadata": usage}


def gemini_text(*pieces: str) -> list[bytes]:
    """A whole answer of text."""
    return [*(event(gemini_piece({"text": piece})) for piece in ("", *pieces)), event(gemini_piece(finish="STOP"))]


_GEMINI_CODES = {
    "rate_limit_error": (429, "RESOURCE_EXHAUSTED"),
    "overloaded_error": (503, "UNAVAILABLE"),
    "server_error": (500, "INTERNAL"),
}


def _gemini_error(kind: str, message: str) -> dict[str, Any]:
    code, status = _GEMINI_CODES.get(kind, (400, "INVALID_ARGUMENT"))
    return {"error": {"code": code, "message": message, "status": status}}


def _gemini_model(url: str, **config: Any) -> GeminiModel:
    given = {
        "api_key": "key",
        "http_options": {"base_url": url, "api_version": "v1beta"},
        **config.pop("client_args", {}),
    }
    return GeminiModel(client_args=given, **{"model_id": "m", **config})


GEMINI = SdkService(
    name="Gemini",
    sdk=gemini.GEMINI,
    path="/v1beta/models/m:streamGenerateContent?alt=sse",
    model=_gemini_model,
    text=gemini_text,
    whole=gemini_piece({"text": "Hello"}, finish="STOP"),
    error=_gemini_error,
    key_variable="GEMINI_API_KEY",
)
WITH_EVENTS = (*SERVICES, MISTRAL, LLAMA_API, LLAMA_CPP, WRITER, RESPONSES)
"""Those whose server-sent events we read ourselves."""
PROVIDERS = (*WITH_EVENTS, OLLAMA, GEMINI)
with_events = pytest.mark.parametrize("service", WITH_EVENTS, ids=lambda service: service.name)
on_all = pytest.mark.parametrize("service", PROVIDERS, ids=lambda service: service.name)


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
