"""The events of calls of models and tools that are their results, for code that stands around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from repertory.core.answer import Answer
    from repertory.core.messages import Message, ToolResult


class TypedEvent(dict[str, object]):
    """One event of a call: the entries that callers of the turn get."""

    @property
    def is_callback_event(self) -> bool:
        """True if a callback handler is called with it; results come as the turn's own events."""
        return True

    def as_dict(self) -> dict[str, object]:
        """The entries as a plain dictionary."""
        return dict(self)

    def prepare(self, invocation_state: Mapping[str, object]) -> None:
        """Add entries of the call's state to the event: none, unless a subclass says otherwise."""


class ModelStopReason(TypedEvent):
    """The result of a model call."""

    answer: Answer | None = None
    """The model's own answer, if nobody has made another result of it."""

    def __init__(
        self, stop_reason: str, message: Message, usage: Mapping[str, object], metrics: Mapping[str, object]
    ) -> None:
        super().__init__(stop=(stop_reason, message, usage, metrics))

    @property
    def is_callback_event(self) -> bool:
        """False: the result comes as the turn's own event."""
        return False

    @property
    def _stop(self) -> tuple[str, Message, Mapping[str, object], Mapping[str, object]]:
        return cast("tuple[str, Message, Mapping[str, object], Mapping[str, object]]", self["stop"])

    @property
    def stop_reason(self) -> str:
        """The model's reason to stop."""
        return self._stop[0]

    @property
    def message(self) -> Message:
        """The model's answer."""
        return self._stop[1]

    @property
    def usage(self) -> Mapping[str, object]:
        """The token counts of the model call."""
        return self._stop[2]

    @property
    def metrics(self) -> Mapping[str, object]:
        """The duration of the model call, in milliseconds, as `latencyMs`."""
        return self._stop[3]


class ToolResultEvent(TypedEvent):
    """The result of a tool call: the last piece that a tool yields."""

    def __init__(
        self, tool_result: ToolResult, exception: Exception | None = None, *, backgrounded: bool = False
    ) -> None:
        """
        Args:
            exception: The exception that an error result was made of.
            backgrounded: True if the tool goes on elsewhere, and this result only says so.
        """
        super().__init__({"type": "tool_result", "tool_result": tool_result})
        self._exception = exception
        self._backgrounded = backgrounded

    @property
    def exception(self) -> Exception | None:
        """The exception behind an error result, as far as it is known."""
        return self._exception

    @property
    def backgrounded(self) -> bool:
        """True if the tool goes on elsewhere; no tool here does so by itself."""
        return self._backgrounded

    @property
    def is_callback_event(self) -> bool:
        """False: the result comes as the turn's own event."""
        return False

    @property
    def tool_result(self) -> ToolResult:
        """The result."""
        return cast("ToolResult", self["tool_result"])

    @property
    def tool_use_id(self) -> str:
        """The id of the tool use that the result answers."""
        return self.tool_result["toolUseId"]
