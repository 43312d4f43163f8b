"""What a caller who streams a turn sees: dictionaries with a stable shape.

    {"event": {...}}                     a raw event of the model's stream, as Converse spells it
    {"data": str, "delta": {...}}        a piece of the answer's text
    {"reasoning": True, "reasoningText": str, "delta": {...}}   a piece of the model's reasoning
    {"message": Message}                 a message was added to the conversation
    {"tool_started": ToolUse}            a tool is about to run
    {"tool_stream_event": {"tool_use": ToolUse, "data": object}}   a piece of a tool's result, as it comes
    {"tool_finished": ToolResult}        a tool ended so
    {"tool_interrupt_event": {"tool_use": ToolUse, "interrupts": list[Interrupt]}}   a person is asked about a tool
    {"model_retry": {"attempt": int, "delay_s": float, "error": Exception | None}}
                                         the model is asked again after that wait: what it streamed since the last
                                         message is void; `attempt` counts failed attempts from 1
    {"result": AgentResult}              the turn is over; always the last event, and only when the turn did not fail

Order: raw events stand before what is derived from them; a message stands after the pieces that it was made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias, cast

TurnEvent: TypeAlias = dict[str, object]


def derived_event(event: Mapping[str, object]) -> TurnEvent | None:
    """The event that a caller most often wants from a raw one: its text or reasoning. None when it has neither."""
    body = event.get("contentBlockDelta")
    if not isinstance(body, Mapping):
        return None
    delta = cast("Mapping[str, object]", body).get("delta")
    match delta:
        case {"text": str(text)}:
            return {"data": text, "delta": delta}
        case {"reasoningContent": {"text": str(text)}}:
            return {"reasoning": True, "reasoningText": text, "delta": delta}
        case _:
            return None
