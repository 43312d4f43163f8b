"""The tools of an agent by name. Not an actor: a registry changes only with what a tool server offers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import anyio.lowlevel

from repertory.actors.tool_server import ServerLink
from repertory.backends.ports import Tool
from repertory.backends.tool_ports import ToolSource, checked_tool, is_tool_source
from repertory.core.limits import clip
from repertory.core.messages import ToolSpec
from repertory.core.provider_content import MCP_APPROVAL
from repertory.errors import Invalid

_log = logging.getLogger("repertory.tools")


class ToolRegistry:
    """Tools in the order they were given, then those of servers. Lookup costs one dictionary access. No two names
    differ only in hyphens and underscores.

    A source of tools has no tools until its server runs (`opened`), and from then on those that the server offers. A
    name belongs to the tool that was given under it, else to the server that has offered it first: what another server
    offers under it is left out. The registries that are made from one agree on the servers.
    """

    def __init__(self, tools: Iterable[object] = (), completed: Callable[[ToolSpec], ToolSpec] | None = None) -> None:
        """`completed` makes of a tool's spec the one for the model.

        Errors: `Invalid` for an object that is no tool, and for two names that differ only in hyphens and underscores.
        """
        self._completed = completed
        self._given: list[Tool | ToolSource] = []
        for candidate in tools:
            if not any(candidate is given for given in self._given):
                self._given.append(candidate if is_tool_source(candidate) else checked_tool(candidate))
        self._enabled: Mapping[str, str] | None = None
        self._links: Sequence[ServerLink] = ()
        self._offered: tuple[Sequence[Tool], ...] = ()
        self._owners: dict[str, ToolSource] = {}
        """The source of each name that a server offers, by key. Shared with the registries made from this one."""
        self._omitted: list[str] = []
        self._tools = self._put_together()
        self._specs: tuple[ToolSpec, ...] | None = None
        self._specs_changed = 0

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._now().values())

    def __len__(self) -> int:
        return len(self._now())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _key(name) in self._now()

    @property
    def sources(self) -> tuple[ToolSource, ...]:
        """The sources among what was given, in order."""
        return tuple(given for given in self._given if is_tool_source(given))

    def opened(self, links: Sequence[ServerLink]) -> ToolRegistry:
        """A registry whose sources have the tools of their servers: one link per source, in the order of `sources`.

        The registry follows the offers. Errors: `Invalid` when two servers begin with tools of one name.
        """
        return self._copy(self._enabled, links, strict=True) if self.sources else self

    @property
    def whole(self) -> ToolRegistry:
        """A registry of all tools, without the choice that `only` made."""
        return self if self._enabled is None else self._copy(None, self._links)

    @property
    def given(self) -> ToolRegistry:
        """A registry of what was given, as if no server ran and `only` had chosen nothing."""
        return self._copy(None, ())

    @property
    def enabled(self) -> tuple[str, ...] | None:
        """The names of the tools that `only` has chosen, also of those whose server does not run; None without it."""
        if self._enabled is None:
            return None
        unknown = [name for key, name in self._enabled.items() if key not in self._now()]
        return (*self.names, *unknown)

    def get(self, name: str) -> Tool | None:
        """The tool of this very name. Rules about tools (approvals, policies, hooks) go by the name that the model has
        written, so another spelling would pass them by.
        """
        tool = self.find(name)
        return tool if tool is not None and tool.name == name else None

    def find(self, name: str) -> Tool | None:
        """The tool of this name for a program, which writes `agent.tool.my_tool` for `my-tool`."""
        return self._now().get(_key(name))

    def source_of(self, name: str) -> ToolSource | None:
        """The source whose server offers the tool of this name; None for a tool that was given."""
        return self._owners.get(_key(name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names as the tools spell them, in order."""
        return tuple(tool.name for tool in self)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The specs for the model, in order, built at first use and kept while nothing changes, `spec_changes` of a
        tool among it.

        Errors: `Invalid` from a tool whose parameters have no JSON schema; nothing is kept then.
        """
        tools = self._now().values()
        # Counters only grow, so their sum tells a change without comparing schemas.
        changed = sum([getattr(tool, "spec_changes", 0) for tool in tools])
        if self._specs is None or changed != self._specs_changed:
            specs = tuple(tool.spec for tool in tools)
            self._specs, self._specs_changed = tuple(map(self._completed, specs)) if self._completed else specs, changed
        return self._specs

    async def prepare(self) -> None:
        """Build every spec; other tasks run in between: a schema takes about a millisecond. Errors: as `specs`."""
        tools = tuple(self)
        if self._specs is not None:
            return
        for tool in tools:
            _ = tool.spec
            # Fifty tools would otherwise hold the loop for fifty milliseconds at the first call.
            await anyio.lowlevel.checkpoint()
        _ = self.specs

    def only(self, names: Iterable[str]) -> ToolRegistry:
        """A registry of these tools alone, in this registry's order.

        Errors: `Invalid` with the unknown names, unless a source whose server does not run yet may have them.
        """
        keys = {_key(name): name for name in names}
        unknown = [name for key, name in keys.items() if key not in self._now()]
        if unknown and len(self._links) == len(self.sources):
            raise Invalid("no such tools", unknown=unknown, known=list(self.names))
        return self._copy(keys, self._links)

    def has_given(self, name: str) -> bool:
        """True for the name of a tool that was given, and not offered by a server."""
        tool = self.find(name)
        return tool is not None and any(tool is given for given in self._given)

    def also(self, *tools: object) -> ToolRegistry:
        """A registry with these tools added, whatever `only` has chosen. Errors: `Invalid` for a name twice."""
        if not tools:
            return self
        enabled = self._enabled
        if enabled is not None:
            enabled = {**enabled, **{_key(name): name for name in (checked_tool(tool).name for tool in tools)}}
        return self._copy(enabled, self._links, [*self._given, *tools])

    def without(self, name: str) -> ToolRegistry:
        """A registry without the tool of this name; the tools of sources stay."""
        key = _key(name)
        given = [each for each in self._given if is_tool_source(each) or _key(checked_tool(each).name) != key]
        return self._copy(self._enabled, self._links, given)

    def _copy(
        self,
        enabled: Mapping[str, str] | None,
        links: Sequence[ServerLink],
        given: Iterable[object] | None = None,
        *,
        strict: bool = False,
    ) -> ToolRegistry:
        registry = ToolRegistry(self._given if given is None else given, self._completed)
        registry._enabled, registry._links = enabled, links
        registry._owners, registry._omitted = self._owners, self._omitted
        registry._offered = tuple(link.tools for link in links)
        registry._tools = registry._put_together(strict=strict)
        return registry

    def _now(self) -> dict[str, Tool]:
        offered = tuple(link.tools for link in self._links)
        if offered != self._offered:
            self._offered, self._specs = offered, None
            self._tools = self._put_together()
        return self._tools

    def _put_together(self, *, strict: bool = False) -> dict[str, Tool]:
        """The tools by key. Errors: `Invalid` for a name twice among those given; if strict, among new servers too."""
        own: dict[str, Tool] = {}
        for tool in (checked_tool(given) for given in self._given if not is_tool_source(given)):
            _check_same(own.setdefault(_key(tool.name), tool), tool)
        offered = {
            (_key(tool.name), id(source))
            for source, some in zip(self.sources, self._offered, strict=False)
            for tool in some
        }
        owners = {key: source for key, source in self._owners.items() if (key, id(source)) in offered}
        tools: dict[str, Tool] = {}
        omitted: list[str] = []
        offers = iter(self._offered)
        for given in self._given:  # In the order of the program, which is the order for the model.
            if not is_tool_source(given):
                tool = checked_tool(given)
                tools[_key(tool.name)] = tool
                continue
            for tool in next(offers, ()):
                key = _key(tool.name)
                reserved = key in own or key == MCP_APPROVAL
                if not reserved and owners.setdefault(key, given) is given and tools.setdefault(key, tool) is tool:
                    continue
                omitted.append(tool.name)
                if strict and not reserved and not self._owners:
                    _check_same(tools[key], tool)
        # Kept in place, since the registries made from this one share the dictionary.
        if self._offered:
            self._owners.clear()
            self._owners.update(owners)
        if omitted and omitted != self._omitted:
            _log.warning("left out tools of servers whose names are in use: %s", clip(", ".join(omitted), 200))
        self._omitted = omitted
        return {key: tool for key, tool in tools.items() if self._enabled is None or key in self._enabled}


def _check_same(tool: Tool, other: Tool) -> None:
    if other is not tool:
        how_to = "give one another with @tool(name=...) or Agent(name=...), or a client's tools a prefix"
        raise Invalid(f"two tools have the same name; {how_to}", names=[tool.name, other.name])


def _key(name: str) -> str:
    return name.replace("-", "_")
