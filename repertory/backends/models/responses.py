"""Models on OpenAI's service through the Responses API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

import msgspec

from repertory.backends.models.caching import CacheConfig, cache_routing
from repertory.backends.models.content import (
    BLANK_TEXT,
    block_kind,
    cannot_take,
    document_in,
    image_in,
    input_of,
    text_in,
)
from repertory.backends.models.openai import DEFAULT_MODEL_ID, OPENAI, streams
from repertory.backends.models.provider import BaseModelConfig, ModelCall, metadata_event
from repertory.backends.models.sdk import ClientSettings, SDKModel, as_plain, ask, refusal_error, with_params
from repertory.core.answer import count_field, filled, is_mapping, malformed, mapping_field
from repertory.errors import ModelStreamBroken

if TYPE_CHECKING:
    from repertory.core.converse import ContentBlockDelta, ContentBlockStartToolUse, StreamEvent
    from repertory.core.messages import Message, ToolSpec

RESPONSES = msgspec.structs.replace(OPENAI, model="OpenAIResponsesModel", resource="responses")


class OpenAIResponsesConfig(BaseModelConfig, total=False):
    """Settings of an `OpenAIResponsesModel`."""

    model_id: str
    params: Mapping[str, Any] | None
    """Further fields of the request, such as `max_output_tokens`, `reasoning`, or the service's own `tools`. They
    override ours, except that `tools` come in addition; None removes a field.
    """
    stateful: bool | None
    """Accepted, without an effect: the conversation is the session's, so all of it is sent each time."""
    streaming: bool | None
    """True to stream the answer (the default), False to get it whole."""
    use_native_token_count: bool | None
    """True if `count_tokens` asks the service. False by default, since it is one more network call."""
    cache_config: CacheConfig | None
    """`cache_key` and `ttl` (`in_memory` or `24h`) are sent; the service caches by itself."""


class OpenAIResponsesModel(SDKModel):
    """A model behind the Responses API, through OpenAI's SDK. Building one connects to nothing.

    The key comes from `client_args`, else from `OPENAI_API_KEY`; a server given by its URL needs none. Connections,
    errors and cancellation are those of `OpenAIModel`. The service is asked to store nothing (`store`).

    Args:
        client_args: Arguments for the client of the service's own package.
        client: A client that you have made; Repertory does not close it.
        connect_timeout_s: Seconds to open a connection.
        read_timeout_s: Seconds without a byte of the answer.
        config: The settings by name; `update_config` changes them.

    Attributes:
        OpenAIResponsesConfig: The type of the settings.
    """

    OpenAIResponsesConfig = OpenAIResponsesConfig
    _known = OpenAIResponsesConfig
    _service = RESPONSES.name
    _sdk = RESPONSES

    def __init__(
        self,
        client_args: Mapping[str, Any] | None = None,
        *,
        client: Any = None,
        connect_timeout_s: float = 10.0,
        read_timeout_s: float = 120.0,
        **config: Unpack[OpenAIResponsesConfig],
    ) -> None:
        """`OpenAIResponsesConfig` documents the fields of `config`; an unknown name is a `TypeError`.

        `client_args` are arguments of `openai.AsyncOpenAI`. `client` is your own such client, which is never closed.
        """
        start: OpenAIResponsesConfig = {"model_id": DEFAULT_MODEL_ID}
        settings = ClientSettings(client, dict(client_args or {}), connect_timeout_s, read_timeout_s)
        super().__init__(start, config, settings)

    def _answer(self, call: ModelCall) -> AsyncGenerator[StreamEvent]:
        return self._ask(response_arguments(call), ResponseReader())

    def _counting(self, call: ModelCall) -> Callable[[], Awaitable[int]]:
        arguments = _conversation(call)

        async def count() -> Any:
            return await (await self._clients.get()).responses.input_tokens.count(**arguments)

        async def counted() -> int:
            answer = mapping_field(as_plain(await ask(RESPONSES, count)), "input_tokens", "answer")
            return count_field(answer.get("input_tokens"), "input_tokens", "input_tokens")

        return counted


# Builds requests to the Responses API. Pure.
#
# Source: the OpenAI API, `POST /v1/responses`.

_SERVICE = "OpenAI"


def response_arguments(call: ModelCall) -> dict[str, Any]:
    """The arguments of one call. Errors: `Invalid` for a block that the service cannot take."""
    arguments = _conversation(call) | {"store": False}
    if call.tool_choice and call.tool_specs:
        arguments["tool_choice"] = _tool_choice(call.tool_choice)
    if streams(call.config):
        arguments["stream"] = True
    params: dict[str, Any] = dict(call.config.get("params") or {})
    if params.get("tools"):
        arguments["tools"] = [*arguments.get("tools", ()), *params.pop("tools")]
    return with_params(arguments, {**cache_routing(call.config), **params})


def _conversation(call: ModelCall) -> dict[str, Any]:
    sent: list[dict[str, Any]] = []
    for message in call.messages:
        sent += _items(message)
    arguments: dict[str, Any] = {"model": call.config.get("model_id"), "input": sent}
    if system := call.system_text:
        arguments["instructions"] = system
    if tools := [_tool(spec) for spec in call.tool_specs if "cachePoint" not in spec]:
        arguments["tools"] = tools
    return arguments


def _items(message: Message) -> list[dict[str, Any]]:
    """Results of tools first, as their uses stand directly before them; then what was said; then uses."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    uses: list[dict[str, Any]] = []
    spoken = "input_text" if message["role"] == "user" else "output_text"
    for block in message["content"]:
        if "toolResult" in block:
            results.append(_result(block["toolResult"]))
        elif "toolUse" in block:
            use = block["toolUse"]
            arguments = json.dumps(input_of(use), ensure_ascii=False)
            made = {"type": "function_call", "call_id": use["toolUseId"], "name": use["name"], "arguments": arguments}
            uses.append(made)
        elif "reasoningContent" not in block:
            parts += _parts(block, spoken)
    if not parts and not results and not uses:
        parts = [{"type": spoken, "text": BLANK_TEXT}]
    said = [{"role": message["role"], "content": parts}] if parts else []
    return [*results, *said, *uses]


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    parts = [part for block in result["content"] for part in _parts(block, "input_text")]
    plain = all(part["type"] == "input_text" for part in parts)
    output = "\n".join(part["text"] for part in parts) if plain else parts
    return {"type": "function_call_output", "call_id": result["toolUseId"], "output": output}


def _parts(block: Mapping[str, Any], spoken: str) -> list[dict[str, Any]]:
    text = text_in(block)
    if text is not None:
        return [{"type": spoken, "text": text}] if text.strip() else []
    if "image" in block:
        image = image_in(block, _SERVICE)
        return [{"type": "input_image", "image_url": f"data:{image.media_type};base64,{image.data}"}]
    if "document" in block:
        document = document_in(block, _SERVICE)
        if document.pdf is None:
            return [{"type": spoken, "text": "\n".join([f"Document {document.name!r}:", *document.texts])}]
        name = document.name if document.name.endswith(".pdf") else f"{document.name}.pdf"
        data = f"data:application/pdf;base64,{document.pdf}"
        return [{"type": "input_file", "filename": name, "file_data": data}]
    if "cachePoint" in block:
        return []
    raise cannot_take(block_kind(block), _SERVICE, "it has no such blocks", sorted(block))


def _tool(spec: ToolSpec) -> dict[str, Any]:
    described = {"name": spec["name"], "description": spec["description"] or spec["name"]}
    return {"type": "function", **described, "parameters": spec["inputSchema"]["json"], "strict": False}


def _tool_choice(choice: Mapping[str, Any]) -> str | dict[str, Any]:
    if "tool" in choice:
        return {"type": "function", "name": choice["tool"]["name"]}
    return "required" if "any" in choice else "auto"


# One answer of the Responses API as events of ours. A whole answer is read like the stream that would have carried it.

_FINISHED = frozenset(("response.completed", "response.incomplete", "response.failed"))
_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
_LIMITS = {"max_output_tokens": "max_tokens", "content_filter": "content_filtered"}


class ResponseReader:
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came; what the
    service says of a failed answer.
    """

    __slots__ = ("_blocks", "_filled", "_open", "_refused", "_response", "_started", "_used")

    def __init__(self) -> None:
        self._started = False
        self._blocks = 0
        """How many blocks have started."""
        self._open: dict[object, int] = {}
        """What is open, with its block: an item of the answer, by its place and its kind."""
        self._filled: set[int] = set()
        """The blocks of tool uses that have got some of their input."""
        self._used = False
        self._refused = False
        self._response: Mapping[str, object] | None = None

    def feed(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        if not self._started:
            self._started = True
            yield {"messageStart": {"role": "assistant"}}
        kind = event.get("type")
        if kind in _FINISHED:
            self._response = mapping_field(event.get("response"), str(kind), "response")
        elif isinstance(kind, str) and kind in _DELTAS:
            self._refused = self._refused or kind == "response.refusal.delta"
            yield from self._spoken(_DELTAS[kind], event.get("output_index"), filled(event.get("delta"), kind, "delta"))
        elif kind == "response.output_text.annotation.added":
            yield from self._cited(event)
        elif kind == "response.output_item.added":
            yield from self._item(event)
        elif kind == "response.function_call_arguments.delta":
            block = self._open.get(("use", event.get("output_index")))
            if block is not None and event.get("delta"):
                self._filled.add(block)
                yield _delta(block, {"toolUse": {"input": filled(event["delta"], str(kind), "delta")}})
        elif kind == "response.output_item.done":
            yield from self._item_done(event)

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        output = answer.get("output")
        if not isinstance(output, list):
            malformed("response", "a list under 'output'", answer)
        for index, each in enumerate(cast("Sequence[object]", output)):
            item = mapping_field(each, "response", "output")
            yield from self.feed({"type": "response.output_item.added", "output_index": index, "item": item})
            for part in _mappings(item, "summary") + _mappings(item, "content"):
                yield from self._part(index, part)
            yield from self.feed({"type": "response.output_item.done", "output_index": index, "item": item})
        yield from self.feed({"type": "response.completed", "response": answer})

    def finish(self) -> Iterator[StreamEvent]:
        """The ends of the blocks, the stop reason and the usage."""
        response = self._response
        if response is None:
            raise ModelStreamBroken("the service ended the stream in the middle of an answer")
        if is_mapping(error := response.get("error")):
            raise refusal_error(RESPONSES, 0, str(error.get("message")), str(error.get("code")))
        yield from self._close()
        yield {"messageStop": {"stopReason": self._stop_reason(response)}}
        if is_mapping(usage := response.get("usage")):
            yield {"metadata": metadata_event(_counted(usage), response.get("id"), response.get("model"))}

    def _part(self, index: int, part: Mapping[str, object]) -> Iterator[StreamEvent]:
        kind = {"output_text": "response.output_text.delta", "refusal": "response.refusal.delta"}.get(
            str(part.get("type")), "response.reasoning_text.delta"
        )
        text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
        if text:
            yield from self.feed({"type": kind, "output_index": index, "delta": text})
        for annotation in _mappings(part, "annotations"):
            made = {"type": "response.output_text.annotation.added", "output_index": index}
            yield from self.feed({**made, "annotation": annotation})

    def _spoken(self, kind: str, place: object, text: str) -> Iterator[StreamEvent]:
        block = self._open.get((kind, place))
        if block is None:
            block = self._begin((kind, place))
            yield {"contentBlockStart": {"contentBlockIndex": block, "start": {}}}
        yield _delta(block, {"text": text} if kind == "text" else {"reasoningContent": {"text": text}})

    def _cited(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        block = self._open.get(("text", event.get("output_index")))
        note = event.get("annotation")
        if block is not None and is_mapping(note) and note.get("type") == "url_citation":
            location = {"web": {"url": str(note.get("url"))}}
            cited = {"title": str(note.get("title") or ""), "location": location, "sourceContent": [{"text": ""}]}
            yield _delta(block, {"citation": cited})

    def _item(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        item = mapping_field(event.get("item"), "response.output_item.added", "item")
        if item.get("type") == "function_call":
            self._used = True
            block = self._begin(("use", event.get("output_index")))
            use: ContentBlockStartToolUse = {
                "toolUseId": filled(item.get("call_id"), "item", "call_id"),
                "name": _name(item),
            }
            yield {"contentBlockStart": {"contentBlockIndex": block, "start": {"toolUse": use}}}

    def _item_done(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        item = mapping_field(event.get("item"), "response.output_item.done", "item")
        place = event.get("output_index")
        block = self._open.get(("use", place))
        if block is not None and block not in self._filled and item.get("arguments"):
            yield _delta(block, {"toolUse": {"input": filled(item["arguments"], "item", "arguments")}})
        for kind in ("text", "reasoning", "use"):
            if (kind, place) in self._open:
                yield {"contentBlockStop": {"contentBlockIndex": self._open.pop((kind, place))}}

    def _begin(self, key: object) -> int:
        self._open[key] = self._blocks
        self._blocks += 1
        return self._open[key]

    def _close(self) -> Iterator[StreamEvent]:
        for block in self._open.values():
            yield {"contentBlockStop": {"contentBlockIndex": block}}
        self._open.clear()

    def _stop_reason(self, response: Mapping[str, object]) -> str:
        details = response.get("incomplete_details")
        if response.get("status") == "incomplete":
            reason = str((details.get("reason") if is_mapping(details) else None) or "max_output_tokens")
            return _LIMITS.get(reason, reason)
        return "content_filtered" if self._refused else "tool_use" if self._used else "end_turn"


def _name(item: Mapping[str, object]) -> str:
    return filled(item.get("name"), "item", "name")


def _delta(index: int, delta: Mapping[str, object]) -> StreamEvent:
    return {"contentBlockDelta": {"contentBlockIndex": index, "delta": cast("ContentBlockDelta", delta)}}


def _mappings(holder: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    listed = holder.get(name) or ()
    if not isinstance(listed, list | tuple):
        malformed("response", f"a list under '{name}'", listed)
    return [mapping_field(each, "response", name) for each in cast("Sequence[object]", listed)]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage in Converse's terms: `inputTokens` excludes cached tokens."""
    details = usage.get("input_tokens_details")
    cached = count_field(details.get("cached_tokens") or 0, "usage", "cached_tokens") if is_mapping(details) else 0
    given = count_field(usage.get("input_tokens") or 0, "usage", "input_tokens")
    made = count_field(usage.get("output_tokens") or 0, "usage", "output_tokens")
    counted = {"inputTokens": max(0, given - cached), "outputTokens": made, "totalTokens": given + made}
    return counted | ({"cacheReadInputTokens": cached} if cached else {})
