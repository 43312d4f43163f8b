"""One answer of Gemini as events of ours.

A signature of a thought stays with its part: on a tool use, in the reasoning that it came with, or in a block of
reasoning of its own behind a text or a medium. A part that holds nothing but a signature, and every part of another
kind, stays in the service's own form. What the service says of an answer's sources becomes citations of the text
before it, and a part of its own, since it also has what users of the search must be shown.

Source: the Gemini API.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from repertory.backends.models.answer_reader import AnswerReader, Voice, block_delta, block_start, metadata_event
from repertory.backends.models.gemini_request import MEDIA_TYPES, PROVIDER
from repertory.backends.models.held_back import HeldBack
from repertory.core.answer import is_mapping, malformed, mapping_field, required_text
from repertory.core.json_bytes import to_base64
from repertory.errors import ModelFailed, ModelRefused, ModelStreamBroken

if TYPE_CHECKING:
    from repertory.core.converse import (
        Citation,
        ContentBlockStartToolUse,
        StreamEvent,
    )

_STOPS = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens", "SAFETY": "guardrail_intervened"}
"""Converse's stop reasons by Gemini's. Others that are no errors are passed on in lower case, such as `other` or
`too_many_tool_calls`: a new try may end the same way, and what was said until then counts."""
_FILTERS = frozenset(
    (
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "MODEL_ARMOR",
        "ESCALATION",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "IMAGE_RECITATION",
    )
)
_MALFORMED = frozenset(("MALFORMED_FUNCTION_CALL", "MALFORMED_RESPONSE"))
"""The model has made what nobody can read: the next try is another one."""
_FAULTS = frozenset(("MISSING_THOUGHT_SIGNATURE", "PUP_LIMITED_DISABLED"))
"""Faults of the request or of the account, which a new try has again."""
_MEDIA = ("image", "audio", "video")


class ContentReader(AnswerReader):
    """Reads one answer. Errors: `ModelFailed` for nonsense, `ModelRefused` for a prompt that a filter blocks,
    `ModelStreamBroken` when the end never came, or for a call that cannot be read.
    """

    __slots__ = (
        "_behind",
        "_call",
        "_citations",
        "_finish",
        "_grounding",
        "_held",
        "_names",
        "_pages",
        "_seed",
        "_signature",
        "_usage",
        "_used",
        "_why",
    )

    def __init__(self, seed: str) -> None:
        """`seed`: the id of a tool use is made from it when the service gives none."""
        super().__init__(PROVIDER)
        self._seed = seed
        self._signature: str | None = None
        """The signature that came with the open block."""
        self._behind: list[Mapping[str, object]] = []
        """Parts with nothing but a signature, which follow the open block."""
        self._call: _PartialCall | None = None
        """The function call whose arguments still arrive."""
        self._used = 0
        self._finish: str | None = None
        self._why = ""
        self._usage: Mapping[str, object] = {}
        self._names: tuple[object, object] = (None, None)
        self._grounding: dict[str, object] = {}
        self._held = HeldBack()
        self._citations: dict[str, Mapping[str, object]] = {}
        self._pages: Sequence[Mapping[str, object]] = ()

    def feed(self, piece: Mapping[str, object]) -> Iterator[StreamEvent]:
        yield from self._begin_message()
        if is_mapping(usage := piece.get("usage_metadata")):
            self._usage = usage
        if piece.get("response_id"):
            self._names = piece["response_id"], piece.get("model_version") or self._names[1]
        if is_mapping(feedback := piece.get("prompt_feedback")) and feedback.get("block_reason"):
            raise _refused_prompt(feedback)
        for candidate in _first(piece.get("candidates")):
            content = candidate.get("content")
            for part in _each(content.get("parts")) if is_mapping(content) else ():
                yield from self._read(part)
            if reason := candidate.get("finish_reason"):
                self._finish = str(_plain(reason))
                self._why = str(candidate.get("finish_message") or "")
            self._note_sources(candidate)

    def finish(self) -> Iterator[StreamEvent]:
        finish = self._finish
        if finish is None:
            raise ModelStreamBroken("Gemini ended the stream in the middle of an answer")
        if finish in _MALFORMED:
            raise ModelStreamBroken(f"the model broke off: {finish} {self._why}".rstrip())
        if finish in _FAULTS:
            raise ModelFailed(f"Gemini gave no answer: {finish} {self._why}".rstrip(), code=finish)
        if finish == "MAX_TOKENS" and self._call is not None:
            yield from self._cut_off()
        yield from self._end_call()
        yield from self._cite()
        yield from self._fall_silent()
        if self._grounding:
            yield from self._part({"groundingMetadata": _rest_form("GroundingMetadata", self._grounding)})
        stop = "content_filtered" if finish in _FILTERS else _STOPS.get(finish, finish.lower())
        # An unexpected call names a tool that there is not: it is answered so, and the model goes on.
        used = self._used and stop in ("end_turn", "unexpected_tool_call")
        yield {"messageStop": {"stopReason": "tool_use" if used else stop}}
        if self._usage:
            yield {"metadata": metadata_event(_counted(self._usage), *self._names)}

    # Parts.

    def _read(self, part: Mapping[str, object]) -> Iterator[StreamEvent]:
        if is_mapping(called := part.get("function_call")):
            yield from self._called(called, _text_of(part.get("thought_signature")))
            return
        if self._call is not None:
            yield from self._end_call()
        text = part.get("text")
        if text:
            voice: Voice = "reasoning" if part.get("thought") else "text"
            yield from self._say(voice, required_text(text, "part", "text"), _text_of(part.get("thought_signature")))
        elif not part.keys() - {"text", "thought", "thought_signature"}:
            if signature := _text_of(part.get("thought_signature")):
                thought = {"thought": True} if part.get("thought") else {}
                yield from self._stand_behind({"text": "", **thought, "thoughtSignature": signature})
        elif is_mapping(inline := part.get("inline_data")) and not part.get("thought") and _is_medium(inline):
            yield from self._medium(inline, _text_of(part.get("thought_signature")))
        else:
            yield from self._fall_silent()
            yield from self._part(_rest_form("Part", part))

    def _say(self, voice: Voice, text: str, signed: str | None) -> Iterator[StreamEvent]:
        # One signature for each block: a second one needs a block of its own, or it would take the place of the first.
        if self._behind or (signed and self._signature):
            yield from self._fall_silent()
        yield from self._speak(voice, {"text": text} if voice == "text" else {"reasoningContent": {"text": text}})
        if signed:
            self._signature = signed

    def _stand_behind(self, part: Mapping[str, object]) -> Iterator[StreamEvent]:
        """Keep a part for behind the open block, which stays open: the sources of its text come last."""
        if self._voice is None:
            yield from self._part(part)
        else:
            self._held.add(part)
            self._behind.append(part)

    def _fall_silent(self) -> Iterator[StreamEvent]:
        """End the open block. Its signature is part of reasoning, and stands behind anything else."""
        voice, signature, behind = self._voice, self._signature, self._behind
        self._signature, self._behind = None, []
        if signature and voice == "reasoning":
            yield block_delta(self._spoken, {"reasoningContent": {"signature": signature}})
        yield from super()._fall_silent()
        if signature and voice == "text":
            yield from self._sign(signature)
        for part in behind:
            yield from self._part(part)

    def _sign(self, signature: str) -> Iterator[StreamEvent]:
        return self._block(self._reasoning_start, {"reasoningContent": {"signature": signature}})

    def _medium(self, inline: Mapping[str, object], signed: str | None) -> Iterator[StreamEvent]:
        yield from self._fall_silent()
        media_type = str(inline["mime_type"])
        kind, _, form = media_type.partition("/")
        known = (name for name, other in MEDIA_TYPES.items() if other == media_type)
        start = {kind: {"format": next(known, form)}}
        yield from self._block(start, {kind: {"source": {"bytes": inline["data"]}}})
        if signed:
            yield from self._sign(signed)

    # Function calls.

    def _called(self, called: Mapping[str, object], signed: str | None) -> Iterator[StreamEvent]:
        if called.get("name"):
            yield from self._end_call()
            self._call = _PartialCall(called, signed, self._held)
        elif self._call is not None:
            self._call.add(called, signed)
        elif called:
            malformed("function_call", "a non-empty string under 'name'", called.get("name"))
        if not called.get("will_continue"):
            yield from self._end_call()

    def _end_call(self) -> Iterator[StreamEvent]:
        call = self._call
        if call is None:
            return
        self._call = None
        text = json.dumps(call.whole())
        yield from self._fall_silent()
        yield from self._block({"toolUse": self._use(call, text)}, {"toolUse": {"input": text}})

    def _cut_off(self) -> Iterator[StreamEvent]:
        """Begin the use of a tool whose arguments never ended, so that the answer counts as cut off."""
        call = self._call
        self._call = None
        if call is not None:
            yield from self._fall_silent()
            yield block_start(self._next_block(), {"toolUse": self._use(call, "")})

    def _use(self, call: _PartialCall, text: str) -> ContentBlockStartToolUse:
        # Made of the call and not drawn: reading the same recording again gives the same ids.
        made = hashlib.sha256(f"{self._seed}/{self._used}/{call.name}/{text}".encode()).hexdigest()[:24]
        use: ContentBlockStartToolUse = {"toolUseId": call.call_id or f"call_{made}", "name": call.name}
        if call.signature:
            use["reasoningSignature"] = call.signature
        self._used += 1
        return use

    # Sources.

    def _note_sources(self, candidate: Mapping[str, object]) -> None:
        if is_mapping(grounding := candidate.get("grounding_metadata")):
            self._grounding |= grounding
        if is_mapping(cited := candidate.get("citation_metadata")):
            for each in _each(cited.get("citations")):
                if (known := json.dumps(each, sort_keys=True, default=str)) not in self._citations:
                    self._held.add(known, each)
                    self._citations[known] = each
        if is_mapping(read := candidate.get("url_context_metadata")):
            self._pages = list(_each(read.get("url_metadata")))

    def _cite(self) -> Iterator[StreamEvent]:
        """Add the sources to the open text, or to a text without words behind everything else."""
        sources = [*_grounds(self._grounding, self._held), *map(_cited, self._citations.values())]
        known = {_url_of(each) for each in sources}
        sources += [each for each in map(_read, self._pages) if each and _url_of(each) not in known]
        deltas = [{"citation": each} for each in sources if each]
        if not deltas:
            return
        if self._voice != "text":
            yield from self._fall_silent()
            yield from self._block({}, *deltas)
            return
        for delta in deltas:
            yield block_delta(self._spoken, delta)


class _PartialCall:
    """A function call, whose arguments come whole or piece by piece, each with a JSON path.

    Source: the Gemini API, `PartialArg`; RFC 9535 for the paths.
    """

    __slots__ = ("_args", "_held", "_open", "_target", "_texts", "call_id", "name", "signature")

    def __init__(self, called: Mapping[str, object], signature: str | None, held: HeldBack) -> None:
        self.name = required_text(called.get("name"), "function_call", "name")
        self.call_id = ""
        self.signature: str | None = None
        self._args: dict[str, object] = {}
        self._held = held
        self._open: str | None = None
        """The path of the text that the next piece continues."""
        self._target: tuple[object, str | int] = (self._args, "")
        """The object or list that holds this text, and its name or index there."""
        self._texts: list[str] = []
        """The pieces of this text."""
        self.add(called, signature)

    def add(self, called: Mapping[str, object], signature: str | None) -> None:
        self.call_id = self.call_id or str(called.get("id") or "")
        self.signature = self.signature or signature
        if called.get("args"):
            self._held.add(called["args"])
            self._args |= mapping_field(called["args"], "function_call", "args")
        for piece in _each(called.get("partial_args")):
            self._put(piece)

    def whole(self) -> Mapping[str, object]:
        """The arguments as far as they have come."""
        if self._texts:
            _set(*self._target, "".join(self._texts), self._held)
            self._texts = []
        return self._args

    def _put(self, piece: Mapping[str, object]) -> None:
        path = required_text(piece.get("json_path"), "partial_args", "json_path")
        value = _value_of(piece)
        if not (self._open == path and isinstance(value, str)):
            self.whole()
            self._held.add(value)
            self._target = self._set_first(path, value)
        if isinstance(value, str):
            self._held.add_text(value)
            self._texts.append(value)
        self._open = path if piece.get("will_continue") else None

    def _set_first(self, path: str, value: object) -> tuple[object, str | int]:
        """Set what the path names to the first piece of its value. Returns what holds it, and its name or index."""
        steps = _steps(path)
        if not steps:
            self._args |= mapping_field(value, "partial_args", "$")
            return self._args, ""
        into: Any = self._args
        for step, following in pairwise(steps):
            into = _inside(into, step, [] if isinstance(following, int) else {}, self._held)
        _set(into, steps[-1], value, self._held)
        return into, steps[-1]


_STEP = re.compile(r"""\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_INDEX_MAX = 10_000
"""A higher index of a list is nonsense, and would fill the memory."""


def _steps(path: str) -> list[str | int]:
    """The names and indexes of a path such as `$.recipe.steps[0]['a name']`."""
    at, steps = 1, list[str | int]()
    if not path.startswith("$"):
        malformed("partial_args", "a JSON path", path)
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None or (found[2] and int(found[2]) > _INDEX_MAX):
            malformed("partial_args", "a JSON path of names and indexes", path)
        name, index, quoted, double = found.groups()
        if index is not None:
            steps.append(int(index))
        else:
            steps.append(name if name is not None else re.sub(r"\\(.)", r"\1", quoted if double is None else double))
        at = found.end()
    return steps


def _inside(into: object, step: str | int, otherwise: object, held: HeldBack) -> object:
    """The value at the step; `otherwise`, which is stored there, if it has none yet."""
    if isinstance(into, list) and isinstance(step, int):
        items = cast("list[object]", into)
        if step >= len(items) or items[step] is None:
            _set(items, step, otherwise, held)
        return items[step]
    if not isinstance(into, dict) or not isinstance(step, str):
        malformed("partial_args", "a path through objects and lists", step)
    return cast("dict[str, object]", into).setdefault(step, otherwise)


def _set(into: object, step: str | int, value: object, held: HeldBack) -> None:
    if isinstance(into, list) and isinstance(step, int):
        items = cast("list[object]", into)
        missing = max(0, step + 1 - len(items))
        held.add_values(missing)  # An index of four digits makes ten thousand values.
        items += [None] * missing
        items[step] = value
    elif isinstance(into, dict) and isinstance(step, str):
        cast("dict[str, object]", into)[step] = value
    else:
        malformed("partial_args", "a path through objects and lists", step)


def _value_of(piece: Mapping[str, object]) -> object:
    if "string_value" in piece:
        return piece["string_value"]
    if "bool_value" in piece:
        return piece["bool_value"]
    number = piece.get("number_value")  # A float in the SDK, whatever was written.
    return int(number) if isinstance(number, float) and number.is_integer() else number


# Sources as citations.


def _grounds(grounding: Mapping[str, object], held: HeldBack) -> list[Citation]:
    """The sources of a grounded answer: those of each of its statements, then those that no statement names."""
    chunks = [_chunk(each) for each in _each(grounding.get("grounding_chunks"))]
    found: list[Citation] = []
    named: set[int] = set()
    for support in _each(grounding.get("grounding_supports")):
        segment = support.get("segment")
        words = segment.get("text") if is_mapping(segment) else None
        for number in cast("Sequence[object]", support.get("grounding_chunk_indices") or ()):
            if isinstance(number, int) and 0 <= number < len(chunks) and (chunk := chunks[number]):
                named.add(number)
                held.add_values(1)
                found.append({**chunk, "supports": words} if isinstance(words, str) and words else chunk)
    return found + [chunk for number, chunk in enumerate(chunks) if chunk and number not in named]


def _chunk(chunk: Mapping[str, object]) -> Citation:
    """The citation for one source; empty if it says nothing of itself."""
    for kind in ("web", "maps", "image"):
        if is_mapping(source := chunk.get(kind)):
            return _citation(source.get("uri") or source.get("source_uri"), source.get("title"), source.get("domain"))
    if not is_mapping(source := chunk.get("retrieved_context")):
        return {}
    found = _citation(source.get("uri"), source.get("title"))
    file_id = source.get("document_name") or source.get("file_search_store")
    if "location" not in found and isinstance(file_id, str):
        found["location"] = {"file": {"fileId": file_id}}
    text = source.get("text")
    if isinstance(text, str) and text:
        found["sourceContent"] = [{"text": text}]
    return found


def _cited(citation: Mapping[str, object]) -> Citation:
    return _citation(citation.get("uri"), citation.get("title"))


def _read(page: Mapping[str, object]) -> Citation:
    """The citation for a page that the service has read for the model; empty if it could not."""
    read = str(_plain(page.get("url_retrieval_status"))).endswith("_SUCCESS")
    return _citation(page.get("retrieved_url")) if read else {}


def _citation(url: object, title: object = None, domain: object = None) -> Citation:
    found: Citation = {}
    if isinstance(title, str) and title:
        found["title"] = title
    if isinstance(url, str) and url:
        found["location"] = {"web": {"url": url}}
        if isinstance(domain, str) and domain:
            found["location"] = {"web": {"url": url, "domain": domain}}
    return found


def _url_of(citation: Citation) -> object:
    location = cast("Mapping[str, Mapping[str, object]]", citation.get("location", {}))
    return location.get("web", {}).get("url")


# Reading the SDK's values.


def _refused_prompt(feedback: Mapping[str, object]) -> ModelRefused:
    reason = str(_plain(feedback["block_reason"]))
    words = f"Gemini refused the prompt: {reason} {feedback.get('block_reason_message') or ''}".rstrip()
    return ModelRefused(words, refused_prompt=True)


def _is_medium(inline: Mapping[str, object]) -> bool:
    kind, _, form = str(inline.get("mime_type") or "").partition("/")
    return kind in _MEDIA and bool(form) and isinstance(inline.get("data"), bytes)


def _rest_form(kind: str, fields: Mapping[str, object]) -> dict[str, object]:
    """The SDK's value of this kind as JSON, spelled as in the service's REST API."""
    made: Any = getattr(import_module("google.genai.types"), kind).model_validate(fields)
    return cast("dict[str, object]", _plain(made.model_dump(by_alias=True, exclude_unset=True, warnings=False)))


def _plain(value: object) -> object:
    """The value as JSON: bytes as base64, and members of an enumeration as their names in the API."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return to_base64(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[object]", value)]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _text_of(signature: object) -> str | None:
    return to_base64(signature) if isinstance(signature, bytes) and signature else None


def _each(listed: object) -> Iterator[Mapping[str, object]]:
    for each in cast("Sequence[object]", listed or ()):
        yield mapping_field(each, "content", "list")


def _first(listed: object) -> Sequence[Mapping[str, object]]:
    return list(_each(listed))[:1]


def _counted(usage: Mapping[str, object]) -> dict[str, int]:
    """The usage in Converse's terms: `inputTokens` excludes cached tokens; thoughts are output."""
    number = {name: value for name, value in usage.items() if isinstance(value, int)}
    cached = number.get("cached_content_token_count", 0)
    given = number.get("prompt_token_count", 0) + number.get("tool_use_prompt_token_count", 0)
    total = number.get("total_token_count", 0)
    made = number.get("candidates_token_count", -1)
    out = max(0, total - given) if made < 0 else made + number.get("thoughts_token_count", 0)
    counted = {"inputTokens": max(0, given - cached), "outputTokens": out, "totalTokens": given + out}
    return counted | ({"cacheReadInputTokens": cached} if cached else {})
