"""One answer of the Responses API as events of ours. A whole answer is read like the stream that would have carried it.

An answer is a list of items. Text, reasoning that may be read, and calls of functions become blocks of their kinds.
Every other item is a part that only the service can read: it stays as it came, in its place, and goes back so. The
little that an item of text or a call of a function has beside its content is a part in front of it.

Source: the OpenAI API, the response object and its streaming events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from repertory.backends.models.answer_reader import AnswerReader, block_delta, block_start, block_stop, metadata_event
from repertory.backends.models.completions import citation_of
from repertory.backends.models.sdk import refusal_error
from repertory.core.answer import count_field, is_mapping, malformed, mapping_field, required_text
from repertory.core.json_bytes import any_base64
from repertory.core.provider_content import MCP_APPROVAL
from repertory.errors import ModelFailed, ModelStreamBroken

if TYPE_CHECKING:
    from repertory.backends.models.sdk import ModelService
    from repertory.core.converse import StreamEvent

_FINISHED = frozenset(("response.completed", "response.incomplete", "response.failed", "response.cancelled"))
_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
}
_LIMITS = {"max_output_tokens": "max_tokens", "content_filter": "content_filtered"}
_UNFINISHED = {
    "queued": "works in the background: remove `background` from params",
    "in_progress": "works in the background: remove `background` from params",
    "cancelled": "was told to cancel the answer",
    "failed": "failed to answer, and does not say why",
}
"""Statuses of a response that is no answer."""
_CALLS_OF_THE_CALLER = frozenset(
    ("custom_tool_call", "tool_search_call", "shell_call", "local_shell_call", "apply_patch_call", "computer_call")
)
"""Items by which the service asks its caller to do something, unless it does it itself."""
_BESIDE_A_CALL = ("namespace", "caller")
"""Fields of a function call that have to go back with it."""


class ResponseReader(AnswerReader):
    """Reads one answer. Errors: `ModelFailed` for nonsense, and for what the service asks of its caller and nobody can
    do here; `ModelStreamBroken` when the end never came; what the service says of a failed answer.
    """

    __slots__ = (
        "_asked",
        "_filled",
        "_open",
        "_refused",
        "_response",
        "_service",
        "_used",
    )

    def __init__(self, service: ModelService, provider: str = "openai") -> None:
        """`provider`: whose answer it is, which marks its parts and its reasoning."""
        super().__init__(provider)
        self._service = service
        self._open: dict[object, int] = {}
        """The numbers of the open blocks, by the kind and the place of their items in the answer."""
        self._filled: set[int] = set()
        """The blocks of tool uses that have got some of their input."""
        self._asked: dict[str, str] = {}
        """The kinds of the calls that the service asks its caller to carry out, by their ids."""
        self._used = False
        self._refused = False
        self._response: Mapping[str, object] | None = None

    def feed(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        yield from self._begin_message()
        kind = event.get("type")
        if isinstance(kind, str) and kind in _DELTAS:
            self._refused = self._refused or kind == "response.refusal.delta"
            yield from self._speak_item(
                _DELTAS[kind], event.get("output_index"), required_text(event.get("delta"), kind, "delta")
            )
        elif kind in _FINISHED:
            self._response = mapping_field(event.get("response"), str(kind), "response")
        elif kind == "response.output_text.annotation.added":
            yield from self._cited(event)
        elif kind == "response.output_item.added":
            yield from self._item(event)
        elif kind == "response.function_call_arguments.delta":
            block = self._open.get(("use", event.get("output_index")))
            if block is not None and event.get("delta"):
                self._filled.add(block)
                yield block_delta(block, {"toolUse": {"input": required_text(event["delta"], str(kind), "delta")}})
        elif kind == "response.output_item.done":
            yield from self._item_done(event)

    def whole(self, answer: Mapping[str, object]) -> Iterator[StreamEvent]:
        output = answer.get("output")
        if not isinstance(output, list):
            malformed("response", "a list under 'output'", answer)
        for index, each in enumerate(cast("Sequence[object]", output)):
            item = mapping_field(each, "response", "output")
            yield from self.feed({"type": "response.output_item.added", "output_index": index, "item": item})
            yield from self.feed({"type": "response.output_item.done", "output_index": index, "item": item})
        yield from self.feed({"type": "response.completed", "response": answer})

    def finish(self) -> Iterator[StreamEvent]:
        """The ends of the blocks, the stop reason and the usage."""
        response = self._response
        if response is None:
            raise ModelStreamBroken("the service ended the stream in the middle of an answer")
        if is_mapping(error := response.get("error")):
            raise refusal_error(self._service, 0, str(error.get("message")), str(error.get("code")))
        if (status := str(response.get("status"))) in _UNFINISHED:
            raise ModelFailed(f"{self._service.name} {_UNFINISHED[status]}", status=status)
        if self._asked:
            raise ModelFailed(
                f"{self._service.name} asks its caller for what nobody can do here: remove the tool from params",
                asked=sorted(set(self._asked.values())),
            )
        yield from self._unfinished(response)
        yield from self._close()
        yield {"messageStop": {"stopReason": self._stop_reason(response)}}
        if is_mapping(usage := response.get("usage")):
            yield {"metadata": metadata_event(_counted(usage), response.get("id"), response.get("model"))}

    # Text and reasoning.

    def _speak_item(self, kind: str, index: object, text: str) -> Iterator[StreamEvent]:
        block = self._open.get((kind, index))
        if block is None:
            block = self._opened((kind, index))
            if kind == "text":
                self._asked.clear()  # A service that goes on to speak waits for nobody.
            yield block_start(block, {} if kind == "text" else self._reasoning_start)
        yield block_delta(block, {"text": text} if kind == "text" else {"reasoningContent": {"text": text}})

    def _part_of(self, index: object, part: Mapping[str, object]) -> Iterator[StreamEvent]:
        kind = {"output_text": "response.output_text.delta", "refusal": "response.refusal.delta"}.get(
            str(part.get("type")), "response.reasoning_text.delta"
        )
        text = part.get("refusal") if part.get("type") == "refusal" else part.get("text")
        if text:
            yield from self.feed({"type": kind, "output_index": index, "delta": text})
        for annotation in _mappings(part, "annotations"):
            made = {"type": "response.output_text.annotation.added", "output_index": index}
            yield from self.feed({**made, "annotation": annotation})

    def _cited(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        block = self._open.get(("text", event.get("output_index")))
        note = event.get("annotation")
        if block is not None and is_mapping(note) and (cited := citation_of(note)) is not None:
            yield block_delta(block, {"citation": cited})

    # Items.

    def _item(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        item = mapping_field(event.get("item"), "response.output_item.added", "item")
        index = event.get("output_index")
        match item.get("type"):
            case "function_call":
                yield from self._function_call(item, index)
            case "message":
                if isinstance(phase := item.get("phase"), str):
                    yield from self._provider_part({"type": "message", "phase": phase})
            case "reasoning" | "image_generation_call" | "mcp_approval_request":
                pass  # They are read when they are whole.
            case _:
                block = self._opened(("part", index))
                yield block_start(block, {"providerContent": {"provider": self._provider}})

    def _function_call(self, item: Mapping[str, object], index: object) -> Iterator[StreamEvent]:
        self._used = True
        use_id = required_text(item.get("call_id"), "item", "call_id")
        if beside := {name: item[name] for name in _BESIDE_A_CALL if item.get(name)}:
            yield from self._provider_part({"type": "function_call", "call_id": use_id, **beside})
        use = {"toolUseId": use_id, "name": required_text(item.get("name"), "item", "name")}
        yield block_start(self._opened(("use", index)), {"toolUse": use})

    def _item_done(self, event: Mapping[str, object]) -> Iterator[StreamEvent]:
        item = mapping_field(event.get("item"), "response.output_item.done", "item")
        index = event.get("output_index")
        block = self._open.get(("use", index))
        if block is not None and block not in self._filled and item.get("arguments"):
            yield block_delta(block, {"toolUse": {"input": required_text(item["arguments"], "item", "arguments")}})
        if (
            item.get("type") in ("message", "reasoning")
            and not {("text", index), ("reasoning", index)} & self._open.keys()
        ):
            for part in _mappings(item, "summary") + _mappings(item, "content"):
                yield from self._part_of(index, part)
        for kind in ("text", "reasoning", "use"):
            if (kind, index) in self._open:
                yield block_stop(self._open.pop((kind, index)))
        match item.get("type"):
            case "message" | "function_call":
                pass
            case "reasoning":
                if item.get("encrypted_content") or item.get("content"):
                    yield from self._provider_part(item)  # Else there is nothing that the service could take back.
            case "image_generation_call":
                yield from self._picture(item)
            case "mcp_approval_request":
                yield from self._approval(item)
            case _:
                self._note_call(item)
                yield from self._provider_part(item, self._open.pop(("part", index), None))

    def _provider_part(self, content: Mapping[str, object], block: int | None = None) -> Iterator[StreamEvent]:
        """A part of the answer in the service's own form. `block`: its block, if it has begun."""
        if not has_readable_ids(content):
            malformed("item", "a string under 'type' and each id", content)
        if block is None:
            yield from self._part(content)
            return
        yield block_delta(block, {"providerContent": {"content": content}})
        yield block_stop(block)

    def _picture(self, item: Mapping[str, object]) -> Iterator[StreamEvent]:
        """A picture that the service has made: its item without the bytes, and directly behind it the bytes."""
        result = item.get("result")
        data = any_base64(result) if isinstance(result, str) else None
        if not data:
            yield from self._provider_part(item)
            return
        yield from self._provider_part({key: value for key, value in item.items() if key != "result"})
        form = _format_of(data, item.get("output_format"))
        yield from self._block({"image": {"format": form}}, {"image": {"source": {"bytes": data}}})

    def _approval(self, item: Mapping[str, object]) -> Iterator[StreamEvent]:
        """A person has to approve a call of the service's own: a tool use whose input is the item."""
        self._used = True
        use = {"toolUseId": required_text(item.get("id"), "item", "id"), "name": MCP_APPROVAL}
        asked = {"toolUse": {"input": json.dumps(item, ensure_ascii=False)}}
        yield from self._block({"toolUse": use}, asked)

    def _note_call(self, item: Mapping[str, object]) -> None:
        """Note what the service asks of its caller, and what it has answered itself."""
        kind, call_id = str(item.get("type")), str(item.get("call_id"))
        if kind.endswith("_output"):
            self._asked.pop(call_id, None)
            return
        if asks_the_caller(item):
            self._asked[call_id] = f"{kind} {item['name']}" if item.get("name") else kind

    def _unfinished(self, response: Mapping[str, object]) -> Iterator[StreamEvent]:
        """Parts whose end never came, from the list in the finished response; without one they are nothing."""
        output = response.get("output")
        items = cast("Sequence[object]", output) if isinstance(output, list) else ()
        for index, item in enumerate(items):
            if ("part", index) in self._open and is_mapping(item):
                yield from self._provider_part(item, self._open.pop(("part", index)))

    def _opened(self, key: object) -> int:
        """The number of the next block, which is open from now on."""
        self._open[key] = block = self._next_block()
        return block

    def _close(self) -> Iterator[StreamEvent]:
        for block in self._open.values():
            yield block_stop(block)
        self._open.clear()

    def _stop_reason(self, response: Mapping[str, object]) -> str:
        details = response.get("incomplete_details")
        if response.get("status") == "incomplete":
            reason = str((details.get("reason") if is_mapping(details) else None) or "max_output_tokens")
            return _LIMITS.get(reason, reason)
        return "content_filtered" if self._refused else "tool_use" if self._used else "end_turn"


def has_readable_ids(item: Mapping[str, object]) -> bool:
    """True if the fields are strings or absent by which items are told apart, and referred to."""
    return all(isinstance(item.get(name), str | None) for name in ("type", "id", "call_id", "approval_request_id"))


def asks_the_caller(item: Mapping[str, object]) -> bool:
    """True if the service does not do itself what the item asks for, as far as the item tells."""
    environment = item.get("environment")
    inside = is_mapping(environment) and str(environment.get("type")).startswith("container")
    return item.get("type") in _CALLS_OF_THE_CALLER and item.get("execution") != "server" and not inside


def _format_of(data: bytes, given: object) -> str:
    """The format of a picture, by its first bytes."""
    for mark, form in ((b"\x89PNG", "png"), (b"\xff\xd8", "jpeg"), (b"RIFF", "webp"), (b"GIF8", "gif")):
        if data.startswith(mark):
            return form
    return given if isinstance(given, str) and given else "png"


def _mappings(holder: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    listed = holder.get(name) or ()
    if not isinstance(listed, list | tuple):
        malformed("response", f"a list under '{name}'", listed)
    return [mapping_field(each, "response", name) for each in cast("Sequence[object]", listed)]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage in Converse's terms: `inputTokens` excludes cached tokens."""
    found = usage.get("input_tokens_details")
    details: Mapping[str, object] = found if is_mapping(found) else {}
    read = count_field(details.get("cached_tokens") or 0, "usage", "cached_tokens")
    written = count_field(details.get("cache_write_tokens") or 0, "usage", "cache_write_tokens")
    given = count_field(usage.get("input_tokens") or 0, "usage", "input_tokens")
    made = count_field(usage.get("output_tokens") or 0, "usage", "output_tokens")
    apart = read + written > given
    counted = {
        "inputTokens": given if apart else given - read - written,
        "outputTokens": made,
        "totalTokens": given + made,
    }
    cached = {"cacheReadInputTokens": read, "cacheWriteInputTokens": written}
    return counted | {name: number for name, number in cached.items() if number}
