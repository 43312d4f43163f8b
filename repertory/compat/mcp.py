"""Tools of an MCP server one by one, as programs of the SDK make and name them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.compat.shapes import SdkTool
from repertory.core.call_events import ToolResultEvent
from repertory.core.messages import ToolSpec, ToolUse

if TYPE_CHECKING:
    from mcp_types import Tool

    from repertory.mcp.choice import ToolFilters
    from repertory.mcp.client import MCPClient, MCPClientCredentials

MCPTransport: TypeAlias = AbstractAsyncContextManager[Any]
"""A transport of the `mcp` package."""
ToolsChangedCallback: TypeAlias = Callable[[list[str], list[Any]], object]


class MCPServerConfig(TypedDict, total=False):
    """A server in a file of servers, as desktop programs keep them; see `MCPClient.load_servers`."""

    command: str
    args: list[str]
    env: dict[str, str]
    cwd: str
    url: str
    headers: dict[str, str]
    transport: str
    auth: MCPClientCredentials
    disabled: bool
    continue_on_error: bool
    prefix: str
    tool_filters: ToolFilters
    startup_timeout: int
    application_name: str
    application_version: str


class MCPAgentTool(SdkTool):
    """One tool of a server, run through its client, which is open meanwhile: `Agent(tools=[MCPAgentTool(...)])`.

    `name_override`: the name that the model sees. `timeout`: the bound for one call; None for the client's.
    """

    def __init__(
        self, mcp_tool: Tool, mcp_client: MCPClient, name_override: str | None = None, timeout: timedelta | None = None
    ) -> None:
        super().__init__()
        self.mcp_tool = mcp_tool
        self.mcp_client = mcp_client
        self.timeout = timeout
        self._name = name_override or mcp_tool.name

    @property
    def tool_name(self) -> str:
        return self._name

    @property
    def tool_type(self) -> str:
        return "python"

    @property
    def tool_spec(self) -> ToolSpec:
        """The tool's spec, with the server's output schema and annotations, where it has some."""
        given = self.mcp_tool
        described = given.description or f"Tool which performs {given.name}"
        spec: dict[str, Any] = {
            "name": self._name,
            "description": described,
            "inputSchema": {"json": given.input_schema},
        }
        if given.output_schema:
            spec["outputSchema"] = {"json": given.output_schema}
        hints = {} if given.annotations is None else given.annotations.model_dump(by_alias=True, exclude_none=True)
        if hints:
            spec["annotations"] = hints
        return cast("ToolSpec", spec)

    async def stream(
        self, tool_use: ToolUse, invocation_state: dict[str, Any], **_: Any
    ) -> AsyncGenerator[ToolResultEvent]:
        """Run the tool on the server."""
        arguments = cast("dict[str, Any]", tool_use["input"])
        result = await self.mcp_client.call_tool_async(
            tool_use["toolUseId"], self.mcp_tool.name, arguments, read_timeout_seconds=self.timeout
        )
        yield ToolResultEvent(result)
