"""The ports of tool servers: what offers tools that run outside this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast, runtime_checkable

from msgspec import Struct

from repertory.core.limits import RESULT_BYTES
from repertory.core.provider_content import MCP_APPROVAL
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import Tool
    from repertory.core.messages import ToolResult, ToolSpec, ToolUse


class OfferedTool(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it. The fields have the same meaning as in `Tool`."""

    spec: ToolSpec
    effects: bool = True
    idempotent: bool = False
    timeout_s: float | None = None
    origin: object = None
    """The server's own description of the tool, as its protocol's package reads it."""

    @property
    def tool_name(self) -> str:
        """The name that the model calls."""
        return self.spec["name"]

    @property
    def tool_spec(self) -> ToolSpec:
        """Name, description and JSON schema."""
        return self.spec


class CallDetails(Struct, frozen=True, kw_only=True, eq=False):
    """The values that go with one call of a server's tool besides its input."""

    meta: Mapping[str, object] | None = None
    """The metadata sent with the call; None: those that the connection sends with every call."""
    on_progress: Callable[[float, float | None, str | None], Awaitable[None]] | None = None
    """Called with the call's progress, its total and a text; None: the connection's own function."""
    as_sent: bool = False
    """True adds the protocol's own parts to the result: for MCP `structuredContent`, `metadata` and `isError`."""


class ToolConnection(Protocol):
    """An open connection to a tool server. Calls may overlap.

    Errors of every method: `Unavailable` when the connection has ended, at once for calls in flight. Cancelling a call
    asks the server to stop it.
    """

    async def tools(self) -> Sequence[OfferedTool]:
        """The server's tools now, in its order.

        Raises:
            Failed: When it does not answer in time or answers with nonsense. Read its cause.
        """
        ...

    async def call(
        self, name: str, tool_use: ToolUse, result_bytes: int = RESULT_BYTES, details: CallDetails | None = None
    ) -> ToolResult:
        """Run the named tool once. A refusal, or an answer that cannot be read, is an error result.

        Args:
            name: The tool's name on the server.
            tool_use: The tool use: its id, the name of the tool, and its input.
            result_bytes: The largest weight of a result.
            details: The values that go with the call besides its input; None for none.

        Raises:
            TooLarge: For a result of more than `result_bytes` (`core/limits.py`). Ask for less, or raise the bound.
        """
        ...

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        """Call any other method of the server's protocol, by the protocol's name for it.

        Args:
            method: The protocol's name of the method.
            arguments: The arguments, as JSON values.

        Raises:
            Failed: If the server refuses, or does not answer in time. Read its cause.
            Invalid: If there is no such method. Correct the name.
            TooLarge: For an answer above the size limit. Ask for less.
        """
        ...

    async def changed(self) -> None:
        """Wait until the tools may have changed. Raises `Unavailable` once the connection has ended."""
        ...


@runtime_checkable
class ToolSource(Protocol):
    """A source of tools that run outside this process. `name` tells sources apart in messages and in the tree.

    Attributes:
        name: The name.
    """

    @property
    def name(self) -> str: ...

    def connect(self) -> AbstractAsyncContextManager[ToolConnection]:
        """A connection for the length of the block. Enter and leave it in one task, as often as needed, one after the
        other.

        Errors, on entering: `Unavailable`, within the source's own time limit; it names the source and what to check.
        """
        ...


_HOW_TO = (
    "decorate a function with @tool, pass an object with name, spec, effects, idempotent, timeout_s and run, or an"
    " MCPClient"
)
_MEMBERS = ("name", "spec", "effects", "idempotent", "timeout_s", "run")


def is_tool_source(candidate: object) -> TypeGuard[ToolSource]:
    """True for a source of tools."""
    if isinstance(candidate, type) or _has(candidate, "run"):
        return False
    return _has(candidate, "name") and _has(candidate, "connect")


def is_tool(candidate: object) -> bool:
    """True for a tool, and for a source of tools."""
    whole = not isinstance(candidate, type) and all(_has(candidate, member) for member in _MEMBERS)
    return whole or is_tool_source(candidate)


def checked_tool(candidate: object) -> Tool:
    """The candidate, if it has a tool's members. They are looked up without being run: building a spec is slow."""
    missing = [member for member in _MEMBERS if not _has(candidate, member)]
    if isinstance(candidate, type) or missing:
        raise Invalid(f"not a tool: {_HOW_TO}", got=candidate, missing=missing)
    tool = cast("Tool", candidate)
    if not isinstance(cast("object", tool.name), str) or not tool.name:
        raise Invalid("a tool's name is a string that is not empty", got=tool.name, tool=candidate)
    if tool.name.replace("-", "_") == MCP_APPROVAL:
        raise Invalid("this name is that of requests by model services; rename the tool", name=tool.name)
    return tool


def _has(candidate: object, member: str) -> bool:
    return hasattr(type(candidate), member) or member in getattr(candidate, "__dict__", ())
