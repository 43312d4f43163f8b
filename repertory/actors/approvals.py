"""Asks a person when a provider wants its own call of a remote MCP server approved.

The provider's item arrives as a use of a tool that no agent has. Here is that tool: it interrupts the turn, and its
result is the person's decision, which the model's adapter turns into the provider's own form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from repertory.backends.ports import ToolContext
from repertory.core.messages import Json, ToolResult, ToolSpec, ToolUse
from repertory.core.provider_content import MCP_APPROVAL, approval_of


class McpApproval:
    """A tool that asks a person and does nothing else."""

    name = MCP_APPROVAL
    effects = False
    idempotent = True
    timeout_s: float | None = None

    @property
    def spec(self) -> ToolSpec:
        return {"name": self.name, "description": "", "inputSchema": {"json": {}}}

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        item = tool_use["input"]
        fields = cast("Mapping[str, Json]", item if isinstance(item, dict) else {})
        asked = {"server": fields.get("server_label"), "tool": fields.get("name"), "arguments": fields.get("arguments")}
        decision = approval_of(context.interrupt(MCP_APPROVAL, reason=asked))
        return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"json": decision}]}
