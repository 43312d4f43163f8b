"""The events of a call as the caller of an agent gets them: those of its turn, and those that programs of the Strands
Agents SDK expect among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from repertory.core.messages import tool_results
from repertory.errors import Throttled

if TYPE_CHECKING:
    from repertory.core.messages import Message
    from repertory.core.result import TurnEvent


class CallerEvents:
    """The events of one call. `invocation_state`: what the caller gave; it stands in the events of pieces, and in the
    first one.
    """

    def __init__(self, invocation_state: Mapping[str, object]) -> None:
        self._given = {name: value for name, value in invocation_state.items() if name != "request_state"}
        self._begun = False
        self._cycles = 0
        self._use: dict[str, object] = {}

    def of(self, event: TurnEvent) -> Sequence[TurnEvent] | None:
        """The events that the caller gets for this event of the turn, in order; None for the event unchanged."""
        if "delta" in event:
            return [{**event, **self._given}] if self._given else None
        raw = event.get("event")
        if raw is None:
            return self._of_step(event)
        meaning = self._meaning(cast("Mapping[str, object]", raw))
        return None if meaning is None else [event, {**meaning, **self._given}]

    def before(self, error: Exception) -> Sequence[TurnEvent]:
        """The event before the error of a turn that had begun."""
        return [{"force_stop": True, "force_stop_reason": str(error.__cause__ or error)}] if self._begun else []

    def _of_step(self, event: TurnEvent) -> Sequence[TurnEvent] | None:
        if "init_event_loop" in event:
            self._begun = True
            return [{**event, **self._given}]
        if "start_event_loop" in event:
            self._cycles += 1
            start: TurnEvent = {"start": True}
            return [start, event] if self._cycles == 1 else [start, start, event]
        match event:
            case {"message": message} if _is_prompt(cast("Message", message)):
                return []
            case {"tool_stream_event": _}:
                return [{"type": "tool_stream", **event}]
            case {"model_retry": {"error": Throttled()}}:
                delay_s = _inside(event, "model_retry")["delay_s"]
                return [event, {"event_loop_throttled_delay": delay_s, **self._given}]
            case {"result": result} if (output := getattr(result, "structured_output", None)) is not None:
                return [{"structured_output": output}, event]
            case _:
                return None

    def _meaning(self, raw: Mapping[str, object]) -> TurnEvent | None:
        delta = _inside(raw, "contentBlockDelta", "delta")
        if "text" in delta:
            return None
        if use := _inside(raw, "contentBlockStart", "start", "toolUse"):
            self._use = {"toolUseId": use.get("toolUseId"), "name": use.get("name"), "input": ""}
        elif self._use and (piece := _inside(delta, "toolUse").get("input")) is not None:
            self._use["input"] = f"{self._use['input']}{piece}"
            return {"type": "tool_use_stream", "current_tool_use": dict(self._use), "delta": delta}
        elif "citation" in delta:
            return {"citation": delta["citation"], "delta": delta}
        elif thought := _inside(delta, "reasoningContent"):
            names = {"signature": "reasoning_signature", "redactedContent": "reasoningRedactedContent"}
            named: TurnEvent = {names[name]: value for name, value in thought.items() if name in names}
            return {**named, "delta": delta, "reasoning": True} if named else None
        return None


def _inside(value: Mapping[str, object], *names: str) -> Mapping[str, object]:
    """The mapping nested under these names; empty if there is none."""
    for name in names:
        found = value.get(name)
        if not isinstance(found, dict):
            return {}
        value = cast("dict[str, object]", found)
    return value


def is_of_piece(event: TurnEvent) -> bool:
    """True for an event of a piece of an answer, in the provider's form or derived from that."""
    return "delta" in event or "contentBlockDelta" in cast("Mapping[str, object]", event.get("event", ()))


def is_start(event: TurnEvent) -> bool:
    """True for the events of starts, which only a caller that reads in step gets."""
    return "init_event_loop" in event or "start_event_loop" in event


def _is_prompt(message: Message) -> bool:
    return message["role"] == "user" and not any(tool_results(message))
