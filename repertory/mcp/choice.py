"""The choice of an MCP server's tools that the model sees, with their names, and whether they have effects.

Loads nothing of the `mcp` package.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct, field
from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.backends.tool_ports import CallDetails, OfferedTool
from repertory.errors import Invalid

if TYPE_CHECKING:
    from mcp_types import Tool

NAME_LENGTH_MAX = 64
"""The length of a tool's name that every provider accepts."""

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")

ToolMatcher: TypeAlias = "str | re.Pattern[str] | Callable[[Any], bool]"
"""A tool's name on the server, a pattern that matches the start of the name, or a predicate on a `ToolToChoose`."""


class ToolFilters(TypedDict, total=False):
    """Takes the tools that `allowed` matches (all without it), except those that `rejected` matches."""

    allowed: Sequence[ToolMatcher]
    rejected: Sequence[ToolMatcher]


class Introduction(Struct, frozen=True, kw_only=True):
    """A client's description of itself to a server, its answers to questions, and the details of each of its calls."""

    name: str | None = None
    """The program's name; None for that of the package."""
    version: str | None = None
    elicit: Any = None
    """The function that answers the server's questions to a person; None: it asks none."""
    details: CallDetails = CallDetails()
    """The details of calls that have none of their own."""
    block_of: Callable[[Any], Any] | None = None
    """The function that makes a block of a content of the `mcp` package, or None of it; None: as `connection.py`."""


class ToolChoice(Struct, frozen=True, kw_only=True):
    """The rules by which a server's tools become ours."""

    filters: ToolFilters = field(default_factory=ToolFilters)
    prefix: str | None = None
    """The text before each name, with an underscore between."""
    effects: bool | None = None
    """True if tools have effects; None: the opposite of the server's `readOnlyHint`, True without one."""
    idempotent: bool | None = None
    """True if calls may be repeated; None: the server's `idempotentHint`, False without one."""
    call_timeout_s: float | None = None

    def __post_init__(self) -> None:
        unknown = sorted(self.filters.keys() - ToolFilters.__annotations__.keys())
        if unknown:
            raise Invalid("tool_filters has the keys allowed and rejected", unknown=unknown)
        if self.prefix is not None and _NOT_IN_A_NAME.search(self.prefix):
            raise Invalid("a prefix is made of a-z, A-Z, 0-9, _ and -", prefix=self.prefix)

    def takes(self, tool: Tool) -> bool:
        """True if the filters accept it."""
        if not self.filters:
            return True
        name = self.offer(tool).spec["name"]
        allowed, rejected = self.filters.get("allowed"), self.filters.get("rejected", ())
        if allowed is not None and not any(_matches(matcher, tool, name) for matcher in allowed):
            return False
        return not any(_matches(matcher, tool, name) for matcher in rejected)

    def offer(self, tool: Tool) -> OfferedTool:
        """The tool as the agent sees it. Characters that providers refuse in a name become underscores."""
        hints = tool.annotations
        read_only = hints is not None and hints.read_only_hint is True
        repeatable = hints is not None and hints.idempotent_hint is True
        name = tool.name if self.prefix is None else f"{self.prefix}_{tool.name}"
        return OfferedTool(
            origin=tool,
            spec={
                "name": _NOT_IN_A_NAME.sub("_", name)[:NAME_LENGTH_MAX],
                "description": tool.description or tool.title or tool.name,
                "inputSchema": {"json": tool.input_schema},
            },
            effects=not read_only if self.effects is None else self.effects,
            idempotent=repeatable if self.idempotent is None else self.idempotent,
            timeout_s=self.call_timeout_s,
        )


class ToolToChoose:
    """The subject of a predicate: the `mcp` tool, with all of its fields, and `tool_name`, the name for the model."""

    def __init__(self, tool: Tool, name: str) -> None:
        self.mcp_tool = tool
        self.tool_name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mcp_tool, name)


def _matches(matcher: ToolMatcher, tool: Tool, name: str) -> bool:
    if isinstance(matcher, str):
        return matcher == tool.name
    if isinstance(matcher, re.Pattern):
        return matcher.match(tool.name) is not None
    return matcher(ToolToChoose(tool, name))
