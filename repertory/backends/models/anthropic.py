"""Models on Anthropic's own service, through the Messages API."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from repertory.backends.models.caching import CacheConfig, CacheToolsConfig, with_cache_points
from repertory.backends.models.content import (
    BLANK_TEXT,
    block_kind,
    cannot_take,
    document_in,
    image_in,
    input_of,
    mentions_tools,
    text_in,
)
from repertory.backends.models.provider import BaseModelConfig, ModelCall, metadata_event
from repertory.backends.models.sdk import ClientSettings, ModelService, SDKModel, as_plain, ask, with_params
from repertory.core.answer import count_field, filled, is_mapping, malformed, mapping_field
from repertory.errors import ModelStreamBroken

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockDelta, ContentBlockStart, StreamEvent
    from repertory.core.messages import Message

DEFAULT_MODEL_ID = "claude-sonnet-4-6"
DEFAULT_MAX_TOKENS = 8_192
ANTHROPIC = ModelService(
    name="Anthropic",
    model="AnthropicModel",
    package="anthropic",
    client="AsyncAnthropic",
    root_error="AnthropicError",
    resource="messages",
    key_variable="ANTHROPIC_API_KEY",
    url_variable="ANTHROPIC_BASE_URL",
    keyless=False,
)


class AnthropicConfig(BaseModelConfig, total=False):
    """Settings of an `AnthropicModel`."""

    model_id: str
    max_tokens: int
    """The most tokens of one answer. The service requires it; the default is 8192."""
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `temperature` or `thinking`. They override ours; None removes a field.

    `extra_headers`, `extra_query` and `timeout` are the SDK's.
    """
    streaming: bool | None
    """True to stream the answer (the default), False to get it whole."""
    use_native_token_count: bool | None
    """True if `count_tokens` asks the service. False by default, since it is one more network call."""
    cache_config: CacheConfig | None
    """What the service is asked to cache."""
    cache_prompt: str | None
    """Type of the cache point after the system prompt, such as `default`."""
    cache_tools: str | CacheToolsConfig | None
    """Type of the cache point after the tools."""


class AnthropicModel(SDKModel):
    """A model on Anthropic's service, through the official SDK. Building one connects to nothing.

    The key comes from `client_args`, else from `ANTHROPIC_API_KEY`; the SDK reads its other environment variables at
    the first call. Many agents may use one model at once, from several event loops; each loop has its own connections,
    released by `aclose` in that loop.

    The SDK's own retries are off, so that the caller decides about retries. Cancellation: closing the stream early
    releases its connection.

    Args:
        client_args: Arguments for the client of the service's own package.
        client: A client that you have made; Repertory does not close it.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        AnthropicConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the service cannot take; nothing was sent. Leave it out.
    """

    AnthropicConfig = AnthropicConfig
    _known = AnthropicConfig
    _service = ANTHROPIC.name
    _sdk = ANTHROPIC

    def __init__(
        self,
        *,
        client_args: Mapping[str, Any] | None = None,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[AnthropicConfig],
    ) -> None:
        """`AnthropicConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `anthropic.AsyncAnthropic` and override the timeouts here. `client` is your own
        such client: it is used as it is, with its own timeouts and retries, and never closed. `read_timeout_s` bounds
        the time between two pieces of an answer, not the whole answer.
        """
        start: AnthropicConfig = {"model_id": DEFAULT_MODEL_ID, "max_tokens": DEFAULT_MAX_TOKENS}
        settings = ClientSettings(client, dict(client_args or {}), connect_timeout_s, read_timeout_s)
        super().__init__(start, config, settings)

    def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        return self._ask(messages_arguments(call), MessagesReader())

    def _counting(self, call: ModelCall) -> Callable[[], Awaitable[int]]:
        arguments = counting_arguments(call)

        async def count() -> Any:
            return await (await self._clients.get()).messages.count_tokens(**arguments)

        async def counted() -> int:
            answer = mapping_field(as_plain(await ask(ANTHROPIC, count)), "count_tokens", "answer")
            return count_field(answer.get("input_tokens"), "count_tokens", "input_tokens")

        return counted


# Builds requests to the Messages API: settings and a conversation as arguments of the SDK's call.
#
# Pure. Our own fields (`metadata`, `tracking_id`) are never sent. Parts of a sound history that the service would
# refuse (blank text, reasoning without its signature, tool blocks without a tool list, tool results after text) are
# changed so that it accepts them.
#
# Source: the Messages API, `POST /v1/messages`.

_SERVICE = "Anthropic"
_UNCACHEABLE = frozenset(("thinking", "redacted_thinking"))
_PLACEHOLDER_TOOL: dict[str, Any] = {
    "name": "noop",
    "description": "Does nothing. Never call it.",
    "input_schema": {"type": "object", "properties": {}},
}


def messages_arguments(call: ModelCall) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    config: AnthropicConfig = call.config
    arguments = _conversation(call)
    arguments["max_tokens"] = config.get("max_tokens")
    if call.tool_choice and call.tool_specs:
        arguments["tool_choice"] = _tool_choice(call.tool_choice)
    if config.get("streaming") is not False:
        arguments["stream"] = True
    return with_params(arguments, config.get("params"))


def counting_arguments(call: ModelCall) -> dict[str, Any]:
    """The arguments of a call that counts the tokens of such a request."""
    arguments = _conversation(call)
    params: Mapping[str, Any] = call.config.get("params") or {}
    thinking = params.get("thinking")
    return arguments | ({"thinking": thinking} if thinking else {})


def _conversation(call: ModelCall) -> dict[str, Any]:
    call = with_cache_points(call, claude=True, converse=False)
    messages = [_message(message) for message in call.messages]
    sent: dict[str, Any] = {"model": call.config.get("model_id"), "messages": messages}
    if system := _system(call):
        sent["system"] = system
    if tools := _tools(call):
        sent["tools"] = tools
    return sent


def _message(message: Message) -> dict[str, Any]:
    blocks = _marked(message["content"])
    results = [block for block in blocks if block["type"] == "tool_result"]
    others = [block for block in blocks if block["type"] != "tool_result"]
    return {"role": message["role"], "content": [*results, *others] or [{"type": "text", "text": BLANK_TEXT}]}


def _marked(content: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks in the service's form. A cache point marks the block before it."""
    sent: list[dict[str, Any]] = []
    for block in content:
        if "cachePoint" in block:
            markable = [position for position, made in enumerate(sent) if made["type"] not in _UNCACHEABLE]
            if markable:
                sent[markable[-1]] |= _cache_control(block["cachePoint"])
        else:
            sent += _block(block)
    return sent


def _block(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The block in the service's form; none for blocks that the service would refuse and that can be left out."""
    if "toolUse" in block:
        use = block["toolUse"]
        return [{"type": "tool_use", "id": use["toolUseId"], "name": use["name"], "input": input_of(use)}]
    if "toolResult" in block:
        return [_tool_result(block["toolResult"])]
    if "reasoningContent" in block:
        return _thinking(block["reasoningContent"])
    return _shown(block)


def _shown(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Text, an image or a document: the blocks allowed in messages and in tool results."""
    text = text_in(block)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    if "image" in block:
        image = image_in(block, _SERVICE)
        return [{"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": image.data}}]
    if "document" in block:
        return [_document(block)]
    raise cannot_take(block_kind(block), _SERVICE, "it has no such blocks", sorted(block))


def _document(block: Mapping[str, Any]) -> dict[str, Any]:
    document = document_in(block, _SERVICE)
    if document.pdf is not None:
        source: dict[str, Any] = {"type": "base64", "media_type": "application/pdf", "data": document.pdf}
    elif len(document.texts) == 1:
        source = {"type": "text", "media_type": "text/plain", "data": document.texts[0]}
    else:
        source = {"type": "content", "content": [{"type": "text", "text": text} for text in document.texts]}
    extras = {key: block["document"][key] for key in ("context", "citations") if block["document"].get(key)}
    return {"type": "document", "title": document.name, "source": source, **extras}


def _tool_result(result: Mapping[str, Any]) -> dict[str, Any]:
    content = [made for part in result["content"] if "cachePoint" not in part for made in _shown(part)]
    sent: dict[str, Any] = {"type": "tool_result", "tool_use_id": result["toolUseId"]}
    failed = result.get("status") == "error"
    return sent | ({"content": content} if content else {}) | ({"is_error": True} if failed else {})


def _thinking(reasoning: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Reasoning goes back exactly as it came. Another service's reasoning has no signature that this one accepts."""
    if "redactedContent" in reasoning:
        return [{"type": "redacted_thinking", "data": redacted_text(reasoning["redactedContent"])}]
    spoken = reasoning.get("reasoningText", {})
    if not spoken.get("signature"):
        return []
    return [{"type": "thinking", "thinking": spoken.get("text", ""), "signature": spoken["signature"]}]


def redacted_text(data: bytes) -> str:
    """Redacted reasoning as text for this service: its own as sent, another service's bytes in base64."""
    return data.decode() if data.isascii() else base64.b64encode(data).decode()


def _system(call: ModelCall) -> str | list[dict[str, Any]] | None:
    if call.system_prompt_content is None:
        return call.system_text or None
    return _marked(call.system_blocks) or None


def _tools(call: ModelCall) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    for spec in call.tool_specs:
        if "cachePoint" not in spec:
            tools.append(_tool(spec))
        elif tools:
            tools[-1] |= _cache_control(spec["cachePoint"])
    if tools:
        return tools
    return [_PLACEHOLDER_TOOL] if mentions_tools(call.messages) else []


def _tool(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": spec["name"],
        "description": spec["description"] or spec["name"],
        "input_schema": spec["inputSchema"]["json"],
    }


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    if "tool" in choice:
        return {"type": "tool", "name": choice["tool"]["name"]}
    return {"type": "any" if "any" in choice else "auto"}


def _cache_control(point: Mapping[str, Any]) -> dict[str, Any]:
    lifetime = {"ttl": point["ttl"]} if point.get("ttl") else {}
    return {"cache_control": {"type": "ephemeral", **lifetime}}


# One answer of the Messages API as events of ours.
#
# A whole answer is read like the stream that would have carried it. Unknown kinds of blocks (tools that the service
# runs itself) are skipped.
#
# Source: the Messages API, streaming and stop reasons.

STOP_REASONS = {"refusal": "content_filtered"}
"""Stop reasons that Converse spells differently; the rest are the same, or passed on."""
_COUNTS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheWriteInputTokens",
}
_LOCATIONS = {
    "char_location": ("documentChar", "start_char_index", "end_char_index"),
    "page_location": ("documentPage", "start_page_number", "end_page_number"),
    "content_block_location": ("documentChunk", "start_block_index", "end_block_index"),
}


class MessagesReader:
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = ("_ended", "_inputs", "_names", "_open", "_stop_reason", "_usage")

    def __init__(self) -> None:
        self._ended = False
        self._stop_reason: str | None = None
        self._open: set[int] = set()
        self._inputs: dict[int, object] = {}
        """Inputs of tool uses that came whole with the block's start. The service streams inputs; compatible servers
        may not.
        """
        self._usage: dict[str, int] = {}
        self._names: tuple[object, object] = (None, None)

    def feed(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        match event.get("type"):
            case "message_start":
                message = mapping_field(event.get("message"), "message_start", "message")
                self._names = message.get("id"), message.get("model")
                self._count(message.get("usage"))
                yield {"messageStart": {"role": "assistant"}}
            case "content_block_start":
                yield from self._block_start(event)
            case "content_block_delta":
                yield from self._block_delta(event)
            case "content_block_stop":
                yield from self._block_stop(_index(event))
            case "message_delta":
                self._count(event.get("usage"))
                reason = mapping_field(event.get("delta"), "message_delta", "delta").get("stop_reason")
                self._stop_reason = (
                    self._stop_reason if reason is None else filled(reason, "message_delta", "stop_reason")
                )
            case "message_stop":
                self._ended = True
            case _:
                pass

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        content = answer.get("content")
        if not isinstance(content, list):
            malformed("message", "a list under 'content'", answer)
        yield from self.feed({"type": "message_start", "message": answer})
        for index, block in enumerate(cast("Sequence[object]", content)):
            yield from self.feed({"type": "content_block_start", "index": index, "content_block": block})
            yield from self.feed({"type": "content_block_stop", "index": index})
        yield from self.feed({"type": "message_delta", "delta": answer, "usage": answer.get("usage")})
        yield from self.feed({"type": "message_stop"})

    def finish(self) -> Iterator[StreamEvent]:
        """The stop reason and the usage. `inputTokens` excludes cached tokens; the total includes them."""
        if not self._ended:
            raise ModelStreamBroken("Anthropic ended the stream in the middle of an answer")
        reason = filled(self._stop_reason, "message_delta", "stop_reason")
        yield {"messageStop": {"stopReason": STOP_REASONS.get(reason, reason)}}
        if self._usage:
            counted = {**self._usage, "totalTokens": sum(self._usage.values())}
            yield {"metadata": metadata_event(counted, *self._names)}

    def _block_start(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        index, name = _index(event), "content_block_start"
        block = mapping_field(event.get("content_block"), name, "content_block")
        match block.get("type"):
            case "tool_use":
                use = {
                    "toolUseId": filled(block.get("id"), name, "id"),
                    "name": filled(block.get("name"), name, "name"),
                }
                self._inputs[index] = block.get("input")
                yield self._started(index, {"toolUse": use})
            case "text" | "thinking":
                yield self._started(index, {})
                yield from _spoken(index, block)
            case "redacted_thinking":
                yield self._started(index, {})
                data = filled(block.get("data"), name, "data")
                yield _delta(index, {"reasoningContent": {"redactedContent": data.encode()}})
            case _:
                pass

    def _started(self, index: int, start: Mapping[str, object]) -> StreamEvent:
        self._open.add(index)
        return {"contentBlockStart": {"contentBlockIndex": index, "start": cast("ContentBlockStart", start)}}

    def _block_delta(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        index, name = _index(event), "content_block_delta"
        if index not in self._open:
            return
        delta = mapping_field(event.get("delta"), name, "delta")
        match delta.get("type"):
            case "input_json_delta":
                piece = delta.get("partial_json")
                if piece:
                    self._inputs.pop(index, None)
                yield _delta(index, {"toolUse": {"input": piece or ""}})
            case "citations_delta":
                yield _delta(index, {"citation": _citation(mapping_field(delta.get("citation"), name, "citation"))})
            case "text_delta" | "thinking_delta" | "signature_delta":
                yield from _spoken(index, delta)
            case _:
                pass

    def _block_stop(self, index: int) -> Iterator[StreamEvent]:
        if index not in self._open:
            return
        self._open.discard(index)
        if whole_input := self._inputs.pop(index, None):
            yield _delta(index, {"toolUse": {"input": json.dumps(whole_input)}})
        yield {"contentBlockStop": {"contentBlockIndex": index}}

    def _count(self, usage: object) -> None:
        """Take counts over; later ones replace earlier ones, since the service counts up."""
        if is_mapping(usage):
            for key, name in _COUNTS.items():
                if usage.get(key) is not None:
                    self._usage[name] = count_field(usage[key], "usage", key)


def _index(event: Mapping[str, object]) -> int:
    return count_field(event.get("index"), str(event.get("type")), "index")


def _spoken(index: int, piece: Mapping[str, object]) -> Iterator[StreamEvent]:
    """The text, thinking, signature and citations of a block or a delta."""
    if piece.get("text"):
        yield _delta(index, {"text": piece["text"]})
    if piece.get("thinking"):
        yield _delta(index, {"reasoningContent": {"text": piece["thinking"]}})
    if piece.get("signature"):
        yield _delta(index, {"reasoningContent": {"signature": piece["signature"]}})
    for citation in cast("Sequence[object]", piece.get("citations") or ()):
        yield _delta(index, {"citation": _citation(mapping_field(citation, "content_block_start", "citations"))})


def _delta(index: int, delta: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": cast("ContentBlockDelta", delta)}}


def _citation(citation: Mapping[str, object]) -> dict[str, object]:
    cited: dict[str, object] = {"sourceContent": [{"text": citation.get("cited_text") or ""}]}
    if title := citation.get("document_title") or citation.get("title"):
        cited["title"] = title
    kind = citation.get("type")
    if isinstance(kind, str) and kind in _LOCATIONS:
        name, start, end = _LOCATIONS[kind]
        cited["location"] = {
            name: {
                "documentIndex": citation.get("document_index"),
                "start": citation.get(start),
                "end": citation.get(end),
            }
        }
    return cited
