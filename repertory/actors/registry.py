"""The tools of an agent by name. Not an actor: a registry is built once and never changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import cast

import anyio.lowlevel

from repertory.backends.ports import Tool
from repertory.core.messages import ToolSpec
from repertory.errors import Invalid

_HOW_TO = "decorate a function with @tool, or pass an object with name, spec, effects, idempotent, timeout_s and run"
_MEMBERS = ("name", "spec", "effects", "idempotent", "timeout_s", "run")


class ToolRegistry:
    """Tools in the order they were given. Lookup costs one dictionary access; hyphens and underscores are the same."""

    def __init__(self, tools: Iterable[object] = ()) -> None:
        """Errors: `Invalid` for something that is no tool, and for two names that are the same but for hyphens."""
        self._tools: dict[str, Tool] = {}
        for candidate in tools:
            self._add(_checked(candidate))

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def __len__(self) -> int:
        return len(self._tools)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _key(name) in self._tools

    def get(self, name: str) -> Tool | None:
        """The tool of that name, or None."""
        return self._tools.get(_key(name))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names as the tools spell them, in order."""
        return tuple(tool.name for tool in self)

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as the model is told of them, in order, built at first use and kept.

        Errors: `Invalid` from a tool whose parameters have no JSON schema; nothing is kept then.
        """
        return tuple(tool.spec for tool in self)

    async def prepare(self) -> None:
        """Build every spec, letting other tasks run in between: a schema takes about a millisecond.

        Errors: as `specs`.
        """
        for tool in self:
            _ = tool.spec
            await anyio.lowlevel.checkpoint()

    def only(self, names: Iterable[str]) -> ToolRegistry:
        """A registry of these tools alone, in this registry's order. Errors: `Invalid`, naming unknown ones."""
        keys = {_key(name): name for name in names}
        unknown = [name for key, name in keys.items() if key not in self._tools]
        if unknown:
            raise Invalid("no such tools", unknown=unknown, known=list(self.names))
        return ToolRegistry(tool for tool in self if _key(tool.name) in keys)

    def _add(self, tool: Tool) -> None:
        other = self._tools.setdefault(_key(tool.name), tool)
        if other is not tool:
            names = [other.name, tool.name]
            raise Invalid("two tools have the same name; give one another with @tool(name=...)", names=names)


def _key(name: str) -> str:
    return name.replace("-", "_")


def _checked(candidate: object) -> Tool:
    """The candidate if it has a tool's members. They are looked up without being run: building a spec is not cheap."""
    missing = [member for member in _MEMBERS if not _has(candidate, member)]
    if isinstance(candidate, type) or missing:
        raise Invalid(f"not a tool: {_HOW_TO}", got=candidate, missing=missing)
    tool = cast("Tool", candidate)
    if not isinstance(cast("object", tool.name), str) or not tool.name:
        raise Invalid("a tool's name is a string that is not empty", got=tool.name, tool=candidate)
    return tool


def _has(candidate: object, member: str) -> bool:
    return hasattr(type(candidate), member) or member in getattr(candidate, "__dict__", ())
