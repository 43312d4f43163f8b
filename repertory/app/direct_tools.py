"""`agent.tool.<name>(...)`: a tool called by the program itself, put on record or not."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from repertory.core.messages import ToolResult


class CallDirectly(Protocol):
    """How an agent runs one of its tools for the program; see `DirectTool.invoke_async`."""

    def __call__(
        self, name: str, arguments: dict[str, Any], override: str | None, record: bool | None, /
    ) -> Awaitable[ToolResult]: ...


class DirectTools:
    """The tools of an agent as attributes; underscores also match hyphens. The name is looked up when it is called."""

    def __init__(self, call: CallDirectly) -> None:
        self._call = call

    def __getattr__(self, name: str) -> DirectTool:
        if name.startswith("__"):
            raise AttributeError(name)
        return DirectTool(name, self._call)


class DirectTool:
    """One tool of an agent, to be called with the tool's own arguments as keywords."""

    def __init__(self, name: str, call: CallDirectly) -> None:
        self._name = name
        self._call = call

    def __call__(
        self, user_message_override: str | None = None, record_direct_tool_call: bool | None = None, **arguments: Any
    ) -> ToolResult:
        """`invoke_async` from sync code."""
        from repertory.app.blocking import blocking_host

        return blocking_host().run(self.invoke_async, user_message_override, record_direct_tool_call, **arguments)

    async def invoke_async(
        self, user_message_override: str | None = None, record_direct_tool_call: bool | None = None, **arguments: Any
    ) -> ToolResult:
        """Run the tool and give its result; a failure of the tool is a result with status `error`.

        Recorded (as the agent was built, unless said here), the call becomes four messages of the conversation and is
        durable on return; what JSON cannot say of the arguments stands there by the name of its type.
        `user_message_override` stands in front of the user's message. Unrecorded, it may also be made while a turn
        runs. Errors: `AttributeError` for a tool that is not there; `ConcurrencyException` when a recorded call meets a
        running turn; `Invalid` while a turn waits to be finished.
        """
        return await self._call(self._name, arguments, user_message_override, record_direct_tool_call)
