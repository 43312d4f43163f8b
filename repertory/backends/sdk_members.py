"""The members of a tool that programs of the Strands Agents SDK use: `tool_name`, `tool_spec`, `stream` and more."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar, cast

from repertory.backends.ports import Tool, ToolContext
from repertory.core.call_events import ToolResultEvent
from repertory.core.deferral import Deferral
from repertory.core.messages import ToolResult, ToolSpec, ToolUse
from repertory.core.tools import tool_result
from repertory.errors import Failed, Invalid

T = TypeVar("T")

running_call: ContextVar[ToolContext | None] = ContextVar("repertory_running_call", default=None)
"""The context of the tool that runs now: a tool that asks another by `stream` shares its questions and its state."""


def stream_event(tool_use: ToolUse, data: object) -> dict[str, Any]:
    """A piece of a result, as `stream` yields it."""
    return {"tool_stream_event": {"tool_use": tool_use, "data": data}}


class ToolLike:
    """The common base of what an agent takes as a tool, so that a list of several kinds has a type."""

    __slots__ = ()


class SdkMembers(ToolLike):
    """The members of a tool that follow from `name`, `spec` and `run`."""

    tool_type = "function"
    supports_hot_reload = False
    is_dynamic = False
    """True if the tool was loaded from a file."""
    spec_changes = 0
    """The number of assignments to `tool_spec`."""

    @property
    def tool_name(self) -> str:
        """The name that the model calls."""
        return cast("Tool", self).name

    @property
    def tool_spec(self) -> ToolSpec:
        """Name, description and JSON schema. Agents show the model a spec assigned here from their next step on.

        Errors: `Invalid` for a spec with another name, without a description or without a schema.
        """
        return self._given_spec()

    @tool_spec.setter
    def tool_spec(self, spec: ToolSpec) -> None:
        if spec.get("name") != self.tool_name:
            raise Invalid("cannot change tool name via tool_spec", name=self.tool_name, got=spec.get("name"))
        for key in ("description", "inputSchema"):
            if key not in spec:
                raise Invalid(f"tool_spec must contain '{key}'", tool=self.tool_name)
        self._take_spec(spec)
        self.spec_changes += 1

    def _given_spec(self) -> ToolSpec:
        return cast("Tool", self).spec

    def _take_spec(self, spec: ToolSpec) -> None:
        raise Invalid("this tool's spec is not its own to change", tool=self.tool_name)

    def mark_dynamic(self) -> None:
        """Note that the tool was loaded from a file."""
        self.is_dynamic = True

    def get_display_properties(self) -> dict[str, str]:
        """The properties of the tool for display, by label."""
        return {"Name": self.tool_name, "Type": self.tool_type}

    async def stream(
        self, tool_use: ToolUse, invocation_state: Mapping[str, Any], **kwargs: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run the tool by hand: yields the pieces of the result when it is there, and a `ToolResultEvent` last."""
        del kwargs
        pieces: list[object] = []
        failures: list[Exception] = []

        async def keep(piece: object) -> None:
            pieces.append(piece)

        context = replace(called_by_hand(self.tool_name, tool_use, invocation_state, failures.append), on_partial=keep)
        result = await cast("Tool", self).run(context.tool_use, context)
        for piece in pieces:
            yield stream_event(context.tool_use, piece)
        yield ToolResultEvent(result, failures[-1] if failures else None)


def called_by_hand(
    name: str,
    tool_use: Mapping[str, Any],
    invocation_state: Mapping[str, Any],
    on_exception: Callable[[Exception], None],
) -> ToolContext:
    """The context of a tool that its caller runs by `stream`."""
    use = cast("ToolUse", {"toolUseId": "unknown", "name": name, "input": {}, **tool_use})
    agent = invocation_state.get("agent")
    outer = running_call.get()
    if outer is not None and outer.tool_use["toolUseId"] == use["toolUseId"]:
        return replace(
            outer, tool_use=use, invocation_state=invocation_state, on_partial=None, on_exception=on_exception
        )
    about: dict[str, Any] = {} if agent is None else {"agent_id": getattr(agent, "agent_id", "default")}
    if agent is not None and hasattr(agent, "cancel_signal"):
        about["signal"] = lambda: agent.cancel_signal
    return ToolContext(tool_use=use, invocation_state=invocation_state, agent=agent, on_exception=on_exception, **about)


def result_as_text(tool_use_id: str, value: object) -> ToolResult:
    """A tool result as the SDK makes it of what a function returns: a finished result as it is, and JSON as text;
    what is not JSON by its `str`.
    """
    if isinstance(value, dict) and "status" in value and "content" in value:
        return cast("ToolResult", {**cast("dict[str, Any]", value), "toolUseId": tool_use_id})
    return {"toolUseId": tool_use_id, "status": "success", "content": [{"text": _text(value)}]}


def text_result(tool_use_id: str, value: object, bytes_max: int) -> ToolResult:
    """`result_as_text`, within bounds: a finished result, a medium and an exception are what `tool_result` makes of
    them. Errors: those of `tool_result`.
    """
    try:
        made = tool_result(tool_use_id, value, bytes_max)
    except Failed:  # It is no JSON.
        return tool_result(tool_use_id, str(value), bytes_max)
    finished = isinstance(value, dict) and "status" in value and "content" in value
    if finished or isinstance(value, str | BaseException | Deferral) or made["content"][0].keys() - {"text", "json"}:
        return made
    return tool_result(tool_use_id, _text(value), bytes_max)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        if hasattr(value, "model_dump_json"):
            return value.model_dump_json()
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


class PaginatedList(list[T], Generic[T]):
    """One page of a longer list. `pagination_token`: for the next page; None for the last."""

    def __init__(self, data: list[T], token: str | None = None) -> None:
        super().__init__(data)
        self.pagination_token = token


class ForeignObject(Protocol):
    """A tool object of the SDK (its `AgentTool`)."""

    @property
    def tool_name(self) -> str: ...

    @property
    def tool_spec(self) -> Any:
        """A `ToolSpec`, by whatever class."""
        ...

    def stream(self, tool_use: Any, invocation_state: dict[str, Any], **kwargs: Any) -> AsyncIterator[Any]:
        """Events, of which the last is the result."""
        ...


class ToolProvider(Protocol):
    """A provider of tools of the SDK, such as its MCP client."""

    async def load_tools(self) -> Sequence[ForeignObject]: ...

    def add_consumer(self, consumer_id: Any) -> None: ...

    def remove_consumer(self, consumer_id: Any) -> None: ...
