"""`agent.tool.<name>(...)`: a tool called by the program itself, put on record or not."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol, cast

from repertory.actors.call import Invocation
from repertory.core.limits import MESSAGE_DEPTH_MAX, is_too_deep
from repertory.core.messages import tool_results
from repertory.core.opening import direct_prompt, recorded
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.tool_registry import ToolRegistry
    from repertory.app.host.active_session import ActiveSession
    from repertory.core.messages import Json, Message, ToolResult, ToolUse


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
        from repertory.app.host.blocking import blocking_host

        return blocking_host().run(self.invoke_async, user_message_override, record_direct_tool_call, **arguments)

    async def invoke_async(
        self, user_message_override: str | None = None, record_direct_tool_call: bool | None = None, **arguments: Any
    ) -> ToolResult:
        """Run the tool and give its result; a failure of the tool is a result with status `error`.

        Recorded (as the agent was built, unless said here), the call becomes four messages of the conversation and is
        durable on return; what JSON cannot say of the arguments stands there by the name of its type.
        `user_message_override` stands in front of the user's message. Unrecorded, it may also be made while a turn
        runs. Errors: `AttributeError` for a tool that is not there; `ConcurrencyException` when a recorded call meets a
        running turn; `Invalid` while a turn waits to be finished, and for arguments nested beyond reason.
        """
        return await self._call(self._name, arguments, user_message_override, record_direct_tool_call)


def direct_use(tools: ToolRegistry, name: str, arguments: dict[str, Any]) -> ToolUse:
    """The tool use that a direct call amounts to. Errors: `AttributeError` for a tool that is not there; `Invalid`."""
    tool = tools.get(name)
    if tool is None:
        msg = f"Tool '{name}' not found"
        raise AttributeError(msg)
    if is_too_deep(arguments, MESSAGE_DEPTH_MAX):
        raise Invalid("the arguments are nested too deeply", tool=tool.name, depth_max=MESSAGE_DEPTH_MAX)
    use_id = f"tooluse_{tool.name}_{secrets.randbelow(10**9):09d}"
    return {"toolUseId": use_id, "name": tool.name, "input": cast("Json", arguments)}


async def call_recorded(session: ActiveSession, use: ToolUse, override: str | None) -> ToolResult:
    """The tool's result, taken from its message as that is stored: the window may have dropped it by now."""
    prompt = [direct_prompt(recorded(use), override)]
    found: list[ToolResult] = []
    async with session.stream(Invocation(prompt=prompt, busy="reject", direct=use)) as events:
        async for event in events:
            if "message" in event:
                found.extend(tool_results(cast("Message", event["message"])))
    return found[0]
