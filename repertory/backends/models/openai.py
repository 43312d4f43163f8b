"""Models on OpenAI's service, and on every server with its protocol, through Chat Completions."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from msgspec import Struct

from repertory.backends.models.caching import CacheConfig, cache_routing
from repertory.backends.models.content import (
    BLANK_TEXT,
    block_kind,
    bytes_in,
    cannot_take,
    document_in,
    image_in,
    input_of,
    text_in,
)
from repertory.backends.models.provider import BaseModelConfig, ModelCall, metadata_event
from repertory.backends.models.sdk import (
    ClientSettings,
    ModelService,
    SDKModel,
    with_params,
)
from repertory.core.answer import filled, is_mapping, malformed, mapping_field
from repertory.errors import ModelFailed, ModelStreamBroken

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockDelta, ContentBlockStart, StreamEvent
    from repertory.core.messages import Message, ToolSpec

DEFAULT_MODEL_ID = "gpt-5.4"
OPENAI = ModelService(
    name="OpenAI",
    model="OpenAIModel",
    package="openai",
    client="AsyncOpenAI",
    root_error="OpenAIError",
    resource="chat.completions",
    key_variable="OPENAI_API_KEY",
    url_variable="OPENAI_BASE_URL",
    keyless=True,
)


class OpenAIConfig(BaseModelConfig, total=False):
    """Settings of an `OpenAIModel`."""

    model_id: str
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `temperature` or `max_completion_tokens`. They override ours; None removes
    a field.

    `extra_headers`, `extra_query` and `timeout` are the SDK's.
    """
    streaming: bool | None
    """True to stream the answer (the default), False to get it whole."""
    stream: bool | None
    """The same by another name; either can turn it off."""
    cache_config: CacheConfig | None
    """`cache_key` and `ttl` (`in_memory` or `24h`) are sent; the service caches by itself."""
    reasoning_field: str | None
    """The field of an assistant message that returns earlier reasoning, for servers that require it, such as
    `reasoning_content`. Without it, reasoning is not sent.
    """


class OpenAIModel(SDKModel):
    """A model behind Chat Completions, through the official SDK. Building one connects to nothing.

    OpenAI's own service by default; Ollama, vLLM, llama.cpp and others by `client_args={"base_url": ...}` or
    `OPENAI_BASE_URL`. The key comes from `client_args`, else from `OPENAI_API_KEY`; a server given by its URL needs
    none. Many agents may use one model at once, from several event loops; each loop has its own connections, released
    by `aclose` in that loop.

    The SDK's own retries are off, so that the caller decides about retries. Cancellation: closing the stream early
    releases its connection.

    Args:
        client: A client that you have made; Repertory does not close it.
        client_args: Arguments for the client of the service's own package.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        OpenAIConfig: The type of the settings.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached, or has no capacity now. Call again later.
        ModelStreamBroken: If the answer broke off. Call again.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
        Invalid: For a block that the service cannot take; nothing was sent. Leave it out.
    """

    OpenAIConfig = OpenAIConfig
    _known = OpenAIConfig
    _service = OPENAI.name
    _sdk = OPENAI

    def __init__(
        self,
        client: Any = None,
        client_args: Mapping[str, Any] | None = None,
        *,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[OpenAIConfig],
    ) -> None:
        """`OpenAIConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI` and override the timeouts here. `client` is your own such
        client: it is used as it is, with its own timeouts and retries, and never closed. `read_timeout_s` bounds the
        time between two pieces of an answer, not the whole answer.
        """
        start: OpenAIConfig = {"model_id": DEFAULT_MODEL_ID}
        settings = ClientSettings(client, dict(client_args or {}), connect_timeout_s, read_timeout_s)
        super().__init__(start, config, settings)

    def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        return self._ask(self._arguments(call), CompletionReader())

    def _arguments(self, call: ModelCall) -> dict[str, Any]:
        return completion_arguments(call)


# Builds requests to Chat Completions: settings and a conversation as arguments of the SDK's call.
#
# Pure. What is ours (`metadata`, `tracking_id`) never leaves. Text alone goes as one string, which every server
# understands. Tool results are messages of their own and can hold only text, so their images and documents follow in a
# user message. Cache points are dropped: these services cache by themselves.
#
# Source: the OpenAI API, `POST /v1/chat/completions`.

ATTACHED = "[The attachments of this result follow in the next message.]"
"""Replaces content in a tool result that only a user message can hold."""


def completion_arguments(
    call: ModelCall, service: str = OPENAI.name, fields: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The arguments of one call. `fields`: what the settings say besides those of `OpenAIConfig`; `params` override
    them. Errors: `Invalid` for a block that the service cannot take.
    """
    config: Mapping[str, Any] = call.config
    arguments: dict[str, Any] = {"model": config.get("model_id"), "messages": sent_messages(call, service)}
    if tools := [_tool(spec) for spec in call.tool_specs if "cachePoint" not in spec]:
        arguments["tools"] = tools
        if call.tool_choice:
            arguments["tool_choice"] = _tool_choice(call.tool_choice)
    if streams(config):
        arguments |= {"stream": True, "stream_options": {"include_usage": True}}
    return with_params(arguments, {**cache_routing(config), **(fields or {}), **(config.get("params") or {})})


def streams(config: Mapping[str, Any]) -> bool:
    return config.get("streaming") is not False and config.get("stream") is not False


def sent_messages(call: ModelCall, service: str) -> list[dict[str, Any]]:
    """The conversation as messages of the service."""
    system = call.system_text
    sent: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for message in call.messages:
        if message["role"] == "user":
            sent += _user(message, service)
        else:
            sent.append(_assistant(message, call.config.get("reasoning_field"), service))
    return sent


def _user(message: Message, service: str) -> list[dict[str, Any]]:
    """Tool messages first, directly after the assistant's as required; then everything else as one user message."""
    tools: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in message["content"]:
        if "toolResult" in block:
            text, attached = _tool_content(block["toolResult"]["content"], service)
            tools.append({"role": "tool", "tool_call_id": block["toolResult"]["toolUseId"], "content": text})
            parts += attached
        else:
            parts += _parts(block, service)
    if parts or not tools:
        return [*tools, {"role": "user", "content": _together(parts)}]
    return tools


def _tool_content(content: Sequence[Mapping[str, Any]], service: str) -> tuple[str, list[dict[str, Any]]]:
    """The text of a tool message, and the content that it cannot hold."""
    parts = [part for block in content for part in _parts(block, service)]
    attached = [part for part in parts if part["type"] != "text"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join([*texts, ATTACHED] if attached else texts), attached


def _assistant(message: Message, reasoning_field: str | None, service: str) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    texts: list[str] = []
    thoughts: list[str] = []
    for block in message["content"]:
        text = text_in(block)
        if "toolUse" in block:
            calls.append(_tool_call(block["toolUse"]))
        elif "reasoningContent" in block:
            thoughts.append(_thought(block["reasoningContent"]))
        elif text is not None:
            texts.append(text)
        elif "cachePoint" not in block:
            raise cannot_take(block_kind(block), service, "an assistant message holds only text there", sorted(block))
    shown_text = "\n".join(text for text in texts if text.strip())
    sent: dict[str, Any] = {"role": "assistant", "content": shown_text or (None if calls else BLANK_TEXT)}
    if calls:
        sent["tool_calls"] = calls
    if reasoning_field and any(thoughts):
        sent[reasoning_field] = "\n".join(thoughts)
    return sent


def _thought(reasoning: Mapping[str, Any]) -> str:
    return str(reasoning.get("reasoningText", {}).get("text", ""))


def _tool_call(use: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": use["name"], "arguments": json.dumps(input_of(use), ensure_ascii=False)}
    return {"id": use["toolUseId"], "type": "function", "function": function}


def _together(parts: Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Text alone as one string, anything else as a list."""
    if any(part["type"] != "text" for part in parts):
        return list(parts)
    return "\n".join(part["text"] for part in parts) or BLANK_TEXT


def _parts(block: Mapping[str, Any], service: str) -> list[dict[str, Any]]:
    """The block as parts of a message; none for blank text and marks."""
    text = text_in(block)
    if text is not None:
        return [{"type": "text", "text": text}] if text.strip() else []
    if "image" in block:
        image = image_in(block, service)
        return [{"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{image.data}"}}]
    if "document" in block:
        return [_document(block, service)]
    if "audio" in block:
        audio = block["audio"]
        data = base64.b64encode(bytes_in("audio", audio, service)).decode()
        return [{"type": "input_audio", "input_audio": {"data": data, "format": audio.get("format", "wav")}}]
    if "cachePoint" in block:
        return []
    raise cannot_take(block_kind(block), service, "it has no such blocks", sorted(block))


def _document(block: Mapping[str, Any], service: str) -> dict[str, Any]:
    """A PDF as a file; other documents as text, since the service takes no other files."""
    document = document_in(block, service)
    if document.pdf is None:
        return {"type": "text", "text": "\n".join([f"Document {document.name!r}:", *document.texts])}
    name = document.name if document.name.endswith(".pdf") else f"{document.name}.pdf"
    return {"type": "file", "file": {"filename": name, "file_data": f"data:application/pdf;base64,{document.pdf}"}}


def _tool(spec: ToolSpec) -> dict[str, Any]:
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    return {"type": "function", "function": {**described, "parameters": spec["inputSchema"]["json"]}}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if "tool" in choice:
        return {"type": "function", "function": {"name": choice["tool"]["name"]}}
    return "required" if "any" in choice else "auto"


# One answer of Chat Completions as events of ours.
#
# The service sends text, reasoning and tool calls side by side in the deltas of one message; here each becomes a block
# with a beginning and an end. A whole answer is read as the one delta that would have brought it.
#
# Servers that imitate the service leave much out: usage, ids and indexes of tool calls, the finish reason
# `tool_calls`. None of that matters here. What does matter is a finish reason: without one the answer is broken.
#
# Source: the OpenAI API, `chat.completion` and `chat.completion.chunk` objects; `reasoning_content` and `reasoning` as
# compatible servers send them.

STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "end_turn",
    "function_call": "end_turn",
    "content_filter": "content_filtered",
}
"""Finish reasons in Converse's spelling, for an answer without tool calls; unknown ones are passed on."""
_FINAL = frozenset(("max_tokens", "content_filtered"))
"""Stop reasons that tool calls do not change."""
_SILENCE: Mapping[str, object] = {}
_REASONING = ("reasoning_content", "reasoning")

Voice = Literal["text", "reasoning"]


class CompletionReader:
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = ("_blocks", "_calls", "_finish", "_names", "_refused", "_spoken", "_started", "_usage", "_voice")

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        """How many blocks have started."""
        self._voice: Voice | None = None
        """The kind of the open block, text or reasoning; None when none is open."""
        self._spoken = 0
        """The index of the open block."""
        self._calls = ToolCalls()
        self._finish: str | None = None
        self._refused = False
        self._usage = _SILENCE
        self._names: tuple[object, object] = (None, None)

    def feed(self, chunk: Mapping[str, object]) -> Iterator[StreamEvent]:
        """Our events for the next chunk. Only the first choice is read."""
        if not self._started:
            self._started = True
            yield {"messageStart": {"role": "assistant"}}
        if chunk.get("id"):
            self._names = chunk["id"], chunk.get("model") or self._names[1]
        if is_mapping(usage := chunk.get("usage")):
            self._usage = usage
        for choice in _mappings(chunk, "choices"):
            if not choice.get("index"):
                yield from self._on_delta(
                    mapping_field(choice.get("delta") or {}, "chunk", "delta"), str(chunk.get("id"))
                )
                if choice.get("finish_reason"):
                    self._finish = filled(choice["finish_reason"], "chunk", "finish_reason")

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        choices = _mappings(answer, "choices")
        if not any(is_mapping(choice.get("message")) for choice in choices):
            raise ModelFailed("the model answered without a message", answer=sorted(answer))
        yield from self.feed({**answer, "choices": [{**choice, "delta": choice.get("message")} for choice in choices]})
        self._finish = self._finish or "stop"

    def finish(self) -> Iterator[StreamEvent]:
        """The ends of the blocks, the stop reason and the usage."""
        if self._finish is None:
            raise ModelStreamBroken("the service ended the stream in the middle of an answer")
        if self._finish != "length":
            self._calls.refuse_nameless()
        yield from self._fall_silent()
        for call in self._calls.begun():
            yield {"contentBlockStop": {"contentBlockIndex": call.block}}
        yield {"messageStop": {"stopReason": self._stop_reason(self._finish)}}
        if usage := _counted(self._usage):
            yield {"metadata": metadata_event(usage, *self._names)}

    def _on_delta(self, delta: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        thought = next(
            (reasoning for name in _REASONING if isinstance(reasoning := delta.get(name), str) and reasoning), None
        )
        if thought:
            yield from self._speak("reasoning", {"reasoningContent": {"text": thought}})
        for name in ("content", "refusal"):
            if delta.get(name):
                self._refused = self._refused or name == "refusal"
                yield from self._on_text(delta, name)
        for part in _mappings(delta, "tool_calls"):
            yield from self._on_tool_call(part, answer_id)

    def _on_text(self, holder: Mapping[str, object], name: str) -> Iterator[StreamEvent]:
        """Text, or a list of parts, as Mistral's reasoning models send it."""
        if not isinstance(holder[name], list):
            yield from self._speak("text", {"text": filled(holder[name], "chunk", name)})
            return
        for part in _mappings(holder, name):
            for thought in _mappings(part, "thinking") if part.get("type") == "thinking" else ():
                if thought.get("text"):
                    yield from self._speak("reasoning", {"reasoningContent": {"text": str(thought["text"])}})
            if part.get("type") == "text" and part.get("text"):
                yield from self._speak("text", {"text": filled(part["text"], "chunk", name)})

    def _speak(self, voice: Voice, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        if self._voice != voice:
            yield from self._fall_silent()
            self._voice, self._spoken = voice, self._next_block()
            yield _start(self._spoken, {})
        yield _delta(self._spoken, delta)

    def _fall_silent(self) -> Iterator[StreamEvent]:
        if self._voice is not None:
            self._voice = None
            yield {"contentBlockStop": {"contentBlockIndex": self._spoken}}

    def _on_tool_call(self, part: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        """The pieces of several calls may alternate, so each call keeps its block open to the end."""
        call = self._calls.take(part)
        if call.block is None and call.name:
            yield from self._fall_silent()
            call.block = self._next_block()
            use = {"toolUseId": self._calls.use_id(call, answer_id), "name": call.name}
            yield _start(call.block, {"toolUse": use})
        if call.block is not None and call.pending:
            piece, call.pending = call.pending, ""
            yield _delta(call.block, {"toolUse": {"input": piece}})

    def _next_block(self) -> int:
        self._blocks += 1
        return self._blocks - 1

    def _stop_reason(self, finish: str) -> str:
        reason = "content_filtered" if self._refused else STOP_REASONS.get(finish, finish)
        return "tool_use" if self._calls.begun() and reason not in _FINAL else reason


def _start(index: int, start: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockStart": {"contentBlockIndex": index, "start": cast("ContentBlockStart", start)}}


def _delta(index: int, delta: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": cast("ContentBlockDelta", delta)}}


def _mappings(holder: Mapping[str, object], name: str) -> Sequence[Mapping[str, object]]:
    listed = holder.get(name) or ()
    if not isinstance(listed, list | tuple):
        malformed("chunk", f"a list under '{name}'", listed)
    return [mapping_field(item, "chunk", name) for item in cast("Sequence[object]", listed)]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage in Converse's terms: `inputTokens` excludes cached tokens. Empty when the service sent none."""
    if "prompt_tokens" not in usage:
        return {}
    details = usage.get("prompt_tokens_details")
    cache = details if is_mapping(details) else _SILENCE
    read, written = _number(cache.get("cached_tokens")), _number(cache.get("cache_write_tokens"))
    prompt, completion = _number(usage["prompt_tokens"]), _number(usage.get("completion_tokens"))
    counted = {
        "inputTokens": max(0, prompt - read - written),
        "outputTokens": completion,
        "totalTokens": prompt + completion,
    }
    cached = {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
    return counted | {name: number for name, number in cached.items() if number}


def _number(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


# The tool calls of one Chat Completions answer while their pieces arrive.
#
# The service says with every piece which call it belongs to, by an index. Imitations leave the index out, give all
# calls the same one, or send no ids. A piece belongs to the call of its index, unless it names another id; without an
# index, to the call of its id, and without that a name begins a new call.


class ToolCall(Struct):
    """One call, as far as its pieces have arrived."""

    position: int
    """The index of the call in the answer, from 0."""
    given_id: str = ""
    name: str = ""
    pending: str = ""
    """Arguments that arrived and were not passed on yet."""
    block: int | None = None
    """The index of its content block, once that has started."""


class ToolCalls:
    """The calls of one answer."""

    __slots__ = ("_by_index", "_calls", "_used_ids")

    def __init__(self) -> None:
        self._calls: list[ToolCall] = []
        self._by_index: dict[int, ToolCall] = {}
        self._used_ids: set[str] = set()

    def begun(self) -> Sequence[ToolCall]:
        """The calls whose blocks have started, in order."""
        return [call for call in self._calls if call.block is not None]

    def refuse_nameless(self) -> None:
        """Raise `ModelFailed` when a call never got a name."""
        for call in self._calls:
            filled(call.name, "tool_calls", "function.name")

    def take(self, part: Mapping[str, object]) -> ToolCall:
        """The call that a piece belongs to, with the piece added to it."""
        function = mapping_field(part.get("function") or {}, "tool_calls", "function")
        given_id, name = _text(part.get("id")), _text(function.get("name"))
        call = self._call_of(part.get("index"), given_id, name)
        call.given_id = call.given_id or given_id
        call.name = call.name or name
        arguments = function.get("arguments")
        call.pending += json.dumps(arguments) if is_mapping(arguments) else _text(arguments)
        return call

    def use_id(self, call: ToolCall, answer_id: str) -> str:
        """The id of a call: the service's, or one made from the answer's id when the service gave
        none or repeated one.
        """
        if call.given_id and call.given_id not in self._used_ids:
            self._used_ids.add(call.given_id)
            return call.given_id
        return f"call_{hashlib.sha256(f'{answer_id}/{call.position}/{call.name}'.encode()).hexdigest()[:24]}"

    def _call_of(self, index: object, given_id: str, name: str) -> ToolCall:
        if type(index) is int:
            known = self._by_index.get(index)
            if known is None or (given_id and known.given_id and given_id != known.given_id):
                known = self._by_index[index] = self._new()
            return known
        by_id = next((call for call in self._calls if given_id and call.given_id == given_id), None)
        if by_id is not None:
            return by_id
        return self._new() if name or not self._calls else self._calls[-1]

    def _new(self) -> ToolCall:
        call = ToolCall(len(self._calls))
        self._calls.append(call)
        return call


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        malformed("tool_calls", "a string, or nothing", value)
    return value
