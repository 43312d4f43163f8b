"""The tool calls of one Chat Completions answer while their pieces arrive.

The service says with every piece which call it belongs to, by an index. Imitations leave the index out, give all calls
the same one, or send no ids. A piece belongs to the call of its index, unless it names another id; without an index,
to the call of its id, and without that a name begins a new call.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from repertory.core.stream_event import filled, is_mapping, malformed, mapping


@dataclass(slots=True)
class ToolCall:
    """One call, as far as it is known."""

    position: int
    """Which call of the answer it is, from 0."""
    given_id: str = ""
    name: str = ""
    pending: str = ""
    """Arguments that came and were not passed on yet."""
    block: int | None = None
    """The index of its content block, once that has begun."""


class ToolCalls:
    """The calls of one answer."""

    __slots__ = ("_by_index", "_calls", "_used_ids")

    def __init__(self) -> None:
        self._calls: list[ToolCall] = []
        self._by_index: dict[int, ToolCall] = {}
        self._used_ids: set[str] = set()

    def begun(self) -> Sequence[ToolCall]:
        """The calls whose blocks have begun, in order."""
        return [call for call in self._calls if call.block is not None]

    def refuse_nameless(self) -> None:
        """Raise `ModelFailed` when a call never got a name, so that nobody knows what was asked for."""
        for call in self._calls:
            filled(call.name, "tool_calls", "function.name")

    def take(self, part: Mapping[str, object]) -> ToolCall:
        """The call that a piece belongs to, with the piece added to it."""
        function = mapping(part.get("function") or {}, "tool_calls", "function")
        given_id, name = _text(part.get("id")), _text(function.get("name"))
        call = self._call_of(part.get("index"), given_id, name)
        call.given_id = call.given_id or given_id
        call.name = call.name or name
        arguments = function.get("arguments")
        call.pending += json.dumps(arguments) if is_mapping(arguments) else _text(arguments)
        return call

    def use_id(self, call: ToolCall, answer_id: str) -> str:
        """The id of a call: the service's, or one made from the answer's when it gave none, or one twice."""
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
