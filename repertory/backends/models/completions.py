"""One answer of Chat Completions as events of ours.

The service sends text, reasoning and tool calls side by side in the deltas of one message; here each becomes a block
with a beginning and an end. A whole answer is read as the one delta that would have brought it.

Servers that imitate the service leave much out: usage, ids and indexes of tool calls, the finish reason `tool_calls`.
None of that matters here. What does matter is an end: a finish reason, or `[DONE]` after the usage; without one the
answer is broken.

Source: the OpenAI API, `chat.completion` and `chat.completion.chunk` objects; `reasoning_content`, `reasoning`,
`reasoning_details`, `images`, `citations` and `search_results` as compatible servers send them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, cast

from msgspec import Struct, field

from repertory.backends.models.answer_reader import (
    AnswerReader,
    block_delta,
    block_start,
    block_stop,
    metadata_event,
    token_count,
)
from repertory.backends.models.chat_services import OPENAI_CHAT, ChatService
from repertory.backends.models.held_back import HeldBack
from repertory.core.answer import TOOL_USES_MAX, is_mapping, malformed, mapping_field, required_text
from repertory.core.json_bytes import any_base64
from repertory.errors import ModelFailed, ModelStreamBroken, TooLarge

if TYPE_CHECKING:
    from repertory.core.converse import StreamEvent

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
_DETAILS = "reasoning_details"
_RARE = frozenset(("annotations", "audio", "images"))


class CompletionReader(AnswerReader):
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelStreamBroken` when the end never came."""

    __slots__ = (
        "_calls",
        "_citations",
        "_details",
        "_done",
        "_finish",
        "_held",
        "_names",
        "_refused",
        "_sound",
        "_sources",
        "_usage",
    )

    def __init__(self, service: ChatService = OPENAI_CHAT, *, audio_format: str | None = None) -> None:
        """`service`: whose answer it is, which marks its reasoning. `audio_format`: of the sound that was asked for."""
        super().__init__(service.name, service.reasoning_name)
        self._held = HeldBack()
        self._calls = ToolCalls(self._held)
        self._finish: str | None = None
        self._done = False
        """True if the service has said that nothing follows."""
        self._refused = False
        self._usage = _SILENCE
        self._names: tuple[object, object] = (None, None)
        self._details = _Details(self._held)
        self._citations: list[Mapping[str, object]] = []
        """Sources that wait for the end of the text."""
        self._sources = _SILENCE
        """The piece with the sources of the whole answer, as Perplexity sends them."""
        self._sound = _Sound(audio_format)

    def feed(self, chunk: Mapping[str, object]) -> Iterator[StreamEvent]:
        """Our events for the next chunk. Only the first choice is read."""
        yield from self._begin_message()
        if chunk.get("id"):
            self._names = chunk["id"], chunk.get("model") or self._names[1]
        if is_mapping(usage := chunk.get("usage")):
            self._usage = usage
            if "citations" in chunk or "search_results" in chunk:
                self._sources = chunk
        for choice in mappings_in(chunk, "choices"):
            # Missing or 0. With `n` above one the others would be mixed into the answer.
            if not choice.get("index"):
                yield from self._on_delta(
                    mapping_field(choice.get("delta") or {}, "chunk", "delta"), str(chunk.get("id"))
                )
                if choice.get("finish_reason"):
                    self._finish = required_text(choice["finish_reason"], "chunk", "finish_reason")
                    if is_mapping(error := choice.get("error")):  # as OpenRouter tells of a provider that broke off
                        raise ModelStreamBroken(f"the service broke off the answer: {error.get('message')}")

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        choices = mappings_in(answer, "choices")
        filtered = any(choice.get("finish_reason") == "content_filter" for choice in choices)
        if not filtered and not any(is_mapping(choice.get("message")) for choice in choices):
            raise ModelFailed("the model answered without a message", answer=sorted(answer))
        if "citations" in answer or "search_results" in answer:
            self._sources = answer
        yield from self.feed({**answer, "choices": [{**choice, "delta": choice.get("message")} for choice in choices]})
        self._finish = self._finish or "stop"

    def ended(self) -> None:
        """The service has said that nothing follows."""
        self._done = True

    def finish(self) -> Iterator[StreamEvent]:
        """The ends of the blocks, the stop reason and the usage."""
        if self._finish is None:
            # Both: servers that leave the finish reason out do send these two at a sound end, and neither when they
            # break off.
            if not (self._done and self._usage):
                raise ModelStreamBroken("the service ended the stream in the middle of an answer")
            self._finish = "stop"
        # A call that was cut off may well lack its name; the answer counts as cut off then.
        if self._finish != "length":
            self._calls.refuse_nameless()
        if self._sources:
            self._citations += _sources_of(self._sources)
        if self._citations and self._voice != "text":
            yield from self._begin("text")
        yield from self._fall_silent()
        for call in self._calls.begun():
            if (rest := call.rest()) is not None:
                yield block_delta(cast("int", call.block), {"toolUse": {"input": rest}})
            yield block_stop(cast("int", call.block))
        if self._details.some:
            yield from self._part({_DETAILS: self._details.whole()})
        yield from self._medium("audio", *self._sound.finish())
        yield {"messageStop": {"stopReason": self._stop_reason(self._finish)}}
        if usage := _counted(self._usage):
            yield {"metadata": metadata_event(usage, *self._names)}

    def _on_delta(self, delta: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        # The one path for speed: a long answer has thousands of such pieces.
        text, size = delta.get("content"), len(delta)
        if text and type(text) is str and (size == 1 or (size == 2 and "role" in delta)):  # as almost every delta is
            yield from self._speak("text", {"text": text})
            return
        yield from self._on_reasoning(delta)
        for name in ("content", "refusal"):
            if delta.get(name):
                self._refused = self._refused or name == "refusal"
                yield from self._on_text(delta, name)
        if delta.get("tool_calls"):
            for part in mappings_in(delta, "tool_calls"):
                yield from self._on_tool_call(part, answer_id)
        if not _RARE.isdisjoint(delta):
            yield from self._on_rest(delta)

    def _on_rest(self, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        """Read the rarer fields of a piece: annotations, audio and images."""
        if delta.get("annotations"):
            cited = [cited for note in mappings_in(delta, "annotations") if (cited := citation_of(note))]
            self._held.add(*cited)
            self._citations += cited
        if is_mapping(audio := delta.get("audio")):
            self._sound.add(audio, self._held)
            if audio.get("transcript"):
                yield from self._speak("text", {"text": required_text(audio["transcript"], "audio", "transcript")})
        if delta.get("images"):
            for image in mappings_in(delta, "images"):
                yield from self._on_image(image)

    def _on_reasoning(self, delta: Mapping[str, object]) -> Iterator[StreamEvent]:
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if not isinstance(thought, str):
            thought = ""
        if delta.get(_DETAILS):
            details = mappings_in(delta, _DETAILS)
            for detail in details:
                self._details.add(detail)
            thought = thought or "".join(map(_text_of_detail, details))
        if thought:
            yield from self._speak("reasoning", {"reasoningContent": {"text": thought}})

    def _on_text(self, holder: Mapping[str, object], name: str) -> Iterator[StreamEvent]:
        """Text, a list of parts, as Mistral's reasoning models send it, or an object, as Cloudflare does."""
        if is_mapping(holder[name]):
            yield from self._speak("text", {"text": json.dumps(holder[name], ensure_ascii=False)})
            return
        if not isinstance(holder[name], list):
            yield from self._speak("text", {"text": required_text(holder[name], "chunk", name)})
            return
        for part in mappings_in(holder, name):
            for thought in mappings_in(part, "thinking") if part.get("type") == "thinking" else ():
                if thought.get("text"):
                    yield from self._speak("reasoning", {"reasoningContent": {"text": str(thought["text"])}})
            if part.get("type") == "text" and part.get("text"):
                yield from self._speak("text", {"text": required_text(part["text"], "chunk", name)})

    def _fall_silent(self) -> Iterator[StreamEvent]:
        if self._voice == "text" and self._citations:
            for cited in self._citations:
                yield block_delta(self._spoken, {"citation": cited})
            self._citations = []
        yield from super()._fall_silent()

    def _on_tool_call(self, part: Mapping[str, object], answer_id: str) -> Iterator[StreamEvent]:
        """The pieces of several calls may alternate, so each call keeps its block open to the end."""
        call = self._calls.take(part)
        if call.block is None and call.name:
            yield from self._fall_silent()
            call.block = self._next_block()
            use = {"toolUseId": self._calls.use_id(call, answer_id), "name": call.name}
            if call.signature:
                use["reasoningSignature"] = call.signature
            yield block_start(call.block, {"toolUse": use})
        if call.block is not None and call.pending:
            piece, call.pending = "".join(call.pending), []
            if piece:
                yield block_delta(call.block, {"toolUse": {"input": piece}})

    def _on_image(self, image: Mapping[str, object]) -> Iterator[StreamEvent]:
        """A picture of the answer, as OpenRouter sends it: its bytes in a data URL."""
        url = mapping_field(image.get("image_url") or {}, "images", "image_url").get("url")
        if isinstance(url, str) and url.startswith("data:image/"):
            head, _, data = url.removeprefix("data:image/").partition(",")
            yield from self._fall_silent()
            yield from self._medium("image", head.partition(";")[0], [medium_bytes(data)])

    def _medium(self, kind: Literal["image", "audio"], form: str, pieces: Sequence[bytes]) -> Iterator[StreamEvent]:
        if pieces:
            deltas = ({kind: {"source": {"bytes": piece}}} for piece in pieces)
            yield from self._block({kind: {"format": form}}, *deltas)

    def _stop_reason(self, finish: str) -> str:
        reason = "content_filtered" if self._refused else STOP_REASONS.get(finish, finish)
        return "tool_use" if self._calls.begun() and reason not in _FINAL else reason


class _Sound:
    """The sound of an answer, whose pieces are base64 each. Its words are the answer's text."""

    def __init__(self, form: str | None) -> None:
        self._form = {"pcm16": "pcm"}.get(form or "", form) or "wav"
        self._pieces: list[bytes] = []

    def add(self, audio: Mapping[str, object], held: HeldBack) -> None:
        if audio.get("data"):
            piece = medium_bytes(required_text(audio["data"], "audio", "data"))
            held.add(piece)
            self._pieces.append(piece)

    def finish(self) -> tuple[str, Sequence[bytes]]:
        return self._form, self._pieces


def medium_bytes(data: str) -> bytes:
    """The bytes of base64. Errors: `ModelFailed`."""
    found = any_base64(data)
    if found is None:
        raise ModelFailed("the model's answer cannot be read: a medium of it is no base64")
    return found


def citation_of(note: Mapping[str, object]) -> Mapping[str, object] | None:
    """The source that an annotation names, in Converse's form; None for annotations of other kinds."""
    kind = note.get("type")
    held = note.get(str(kind))
    fields = held if is_mapping(held) else note  # Chat Completions has them one level deeper than Responses.
    match kind:
        case "url_citation":
            location: Mapping[str, object] = {"web": {"url": str(fields.get("url") or "")}}
            title = fields.get("title")
        case "file_citation" | "file_path":
            location = {"file": _named(fields, _FILE)}
            title = fields.get("filename")
        case "container_file_citation":
            names = _named(fields, {"containerId": "container_id", **_FILE})
            location, title = {"container": names}, fields.get("filename")
        case _:
            return None
    text = fields.get("content")
    return {
        "title": str(title or ""),
        "location": location,
        "sourceContent": [{"text": text if isinstance(text, str) else ""}],
    }


_FILE = {"fileId": "file_id", "filename": "filename"}
"""Our names of what an annotation tells of a file, with the service's."""


def _named(fields: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    return {ours: fields[theirs] for ours, theirs in names.items() if fields.get(theirs)}


def _sources_of(piece: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """The sources of a whole answer, as Perplexity sends them: with titles, or URLs alone."""
    found = piece.get("search_results") or piece.get("citations")
    for source in cast("Sequence[object]", found) if isinstance(found, list) else ():
        fields: Mapping[str, object] = source if is_mapping(source) else {"url": source, "title": ""}
        if isinstance(fields.get("url"), str):
            made = {"url": fields["url"], "title": fields.get("title"), "content": fields.get("snippet")}
            yield cast("Mapping[str, object]", citation_of({"type": "url_citation", **made}))


_GROWING = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The fields of reasoning details that come in pieces."""


def _text_of_detail(detail: Mapping[str, object]) -> str:
    text = detail.get(_GROWING.get(str(detail.get("type")), ""))
    return text if isinstance(text, str) else ""


class _Details:
    """The reasoning in the service's own form, its pieces put together."""

    def __init__(self, held: HeldBack) -> None:
        self._details: list[tuple[dict[str, object], list[str]]] = []
        self._held = held

    @property
    def some(self) -> bool:
        return bool(self._details)

    def add(self, piece: Mapping[str, object]) -> None:
        """Add a piece to the detail that it continues: the last one, if that has its type and index."""
        grows, text = _GROWING.get(str(piece.get("type"))), _text_of_detail(piece)
        last = self._details[-1][0] if self._details else _SILENCE
        if grows is None or any(last.get(key) != piece.get(key) for key in ("type", "index")):
            self._held.add(piece)
            self._details.append((dict(piece), [text] if text else []))
            return
        known, texts = self._details[-1]
        changed = {key: value for key, value in piece.items() if value is not None and known.get(key) != value}
        changed = {key: value for key, value in changed.items() if key != grows or key not in known}
        if changed:
            self._held.add(changed)
            known.update(changed)
        if text:
            self._held.add_text(text)
            texts.append(text)

    def whole(self) -> list[dict[str, object]]:
        for detail, texts in self._details:
            if texts:
                detail[_GROWING[str(detail["type"])]] = "".join(texts)
        return [detail for detail, _ in self._details]


def mappings_in(holder: Mapping[str, object], name: str) -> Sequence[Mapping[str, object]]:
    """The mappings in a list of a chunk; none if it has no such list. Errors: `ModelFailed`."""
    found = holder.get(name) or ()
    if not isinstance(found, list | tuple):
        malformed("chunk", f"a list under '{name}'", found)
    return [mapping_field(item, "chunk", name) for item in cast("Sequence[object]", found)]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage in Converse's terms: `inputTokens` excludes cached tokens. Empty when the service sent none.

    Some services count reasoning, or the sound of a prompt, in their total alone.
    """
    if "prompt_tokens" not in usage:
        return {}
    details = usage.get("prompt_tokens_details")
    cache = details if is_mapping(details) else _SILENCE
    read, written = token_count(cache.get("cached_tokens")), token_count(cache.get("cache_write_tokens"))
    prompt, completion = token_count(usage["prompt_tokens"]), token_count(usage.get("completion_tokens"))
    beside = max(0, token_count(usage.get("total_tokens")) - prompt - completion)
    if beside and token_count(cache.get("audio_tokens")) >= beside:
        prompt += beside
    else:
        completion += beside
    apart = read + written > prompt  # Grok on Azure counts what it read from the cache beside the prompt.
    counted = {
        "inputTokens": prompt if apart else prompt - read - written,
        "outputTokens": completion,
        "totalTokens": prompt + completion,
    }
    cached = {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
    return counted | {name: number for name, number in cached.items() if number}


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
    pending: list[str] = field(default_factory=list[str])
    """Arguments that arrived and were not passed on yet."""
    custom: list[str] | None = None
    """The input of a custom tool, which is text of any kind; None for a function."""
    signature: str = ""
    """Ties the reasoning before it to the call, as Gemini has it."""
    block: int | None = None
    """The index of its content block, once that has started."""

    def rest(self) -> str | None:
        """The input that can be passed on only when it is whole."""
        return None if self.custom is None else json.dumps({"input": "".join(self.custom)}, ensure_ascii=False)


class ToolCalls:
    """The calls of one answer."""

    __slots__ = ("_by_index", "_calls", "_held", "_used_ids")

    def __init__(self, held: HeldBack) -> None:
        self._held = held
        self._calls: list[ToolCall] = []
        self._by_index: dict[int, ToolCall] = {}
        self._used_ids: set[str] = set()

    def begun(self) -> Sequence[ToolCall]:
        """The calls whose blocks have started, in order."""
        return [call for call in self._calls if call.block is not None]

    def refuse_nameless(self) -> None:
        """Raise `ModelFailed` when a call never got a name."""
        for call in self._calls:
            required_text(call.name, "tool_calls", "function.name")

    def take(self, part: Mapping[str, object]) -> ToolCall:
        """The call that a piece belongs to, with the piece added to it."""
        function = mapping_field(part.get("function") or {}, "tool_calls", "function")
        custom = part.get("custom")
        if is_mapping(custom) and any(custom.values()) and not any(function.values()):
            return self._take_custom(part, custom)
        given_id, name = _text(part.get("id")), _text(function.get("name"))
        call = self._call_of(part.get("index"), given_id, name)
        if call.block is None and (given_id or name):
            self._held.add(given_id, name, part.get("extra_content"), part.get("provider_specific_fields"))
        call.given_id = call.given_id or given_id
        call.name = call.name or name
        arguments = function.get("arguments")
        piece = json.dumps(arguments) if is_mapping(arguments) else _text(arguments)
        if call.block is None:
            self._held.add_text(piece)
        call.pending.append(piece)
        if "extra_content" in part or "provider_specific_fields" in part:
            call.signature = call.signature or _signature_of(part)
        return call

    def _take_custom(self, part: Mapping[str, object], custom: Mapping[str, object]) -> ToolCall:
        given_id, name = _text(part.get("id")), _text(custom.get("name"))
        call = self._call_of(part.get("index"), given_id, name)
        call.given_id = call.given_id or given_id
        call.name = call.name or name
        piece = _text(custom.get("input"))
        self._held.add_text(f"{given_id}{name}{piece}")
        call.custom = call.custom or []
        call.custom.append(piece)
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
        if len(self._calls) >= TOOL_USES_MAX:
            raise TooLarge(f"the model's answer is too large: it has more than {TOOL_USES_MAX:,} tool uses")
        call = ToolCall(len(self._calls))
        self._calls.append(call)
        return call


def _signature_of(part: Mapping[str, object]) -> str:
    """The signature of Gemini, as Google's own endpoint and LiteLLM send it with a tool call."""
    extra, fields = part.get("extra_content"), part.get("provider_specific_fields")
    google = extra.get("google") if is_mapping(extra) else fields
    signature = google.get("thought_signature") if is_mapping(google) else None
    return signature if isinstance(signature, str) else ""


def _text(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        malformed("tool_calls", "a string, or nothing", value)
    return value
