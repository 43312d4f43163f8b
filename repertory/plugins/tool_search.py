"""`ToolSearch`: one tool that finds others, in place of hundreds of definitions.

The tools that are deferred stay the agent's tools: only their definitions are left out of requests until the model has
found them. What it has found stands in the agent's state, so it is on record like the rest of the conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast
from weakref import WeakKeyDictionary

from repertory.actors.hooks.events import AfterInvocationEvent
from repertory.app.host.plugins import Plugin, hook
from repertory.backends.tool_ports import is_tool_source
from repertory.backends.tools.decorator import tool
from repertory.backends.worker_threads import run_in_thread
from repertory.core.recall.tool_search import FoundTools, ToolIndex
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts
    from repertory.actors.tool_registry import ToolRegistry
    from repertory.backends.tool_ports import ToolSource
    from repertory.core.messages import ToolSpec
    from repertory.core.state import AgentState

STATE_KEY = "tool_search"
"""The key of the agent's state under which the names of the found tools stand."""
_DESCRIPTION_CHARS_MAX = 160


class ToolSearch(Plugin):
    """Shows the model a tool `search_tools` in place of the definitions of deferred tools, and those that it finds.

    Deferred are the tools that say so (`@tool(deferred=True)`), and those of `deferred`. A tool that was found can be
    called from the next step of the same turn on. Found tools stand behind all others, in the order found, and stay for
    the conversation: their names are in its state, so a restart, a rewind or a fork has those of its moment. A call of
    a deferred tool that was not found gets an error that names `search_tools`. Programs may call each tool as ever
    (`agent.tool.name(...)`). One object may serve many agents.

    Args:
        deferred: Further deferred tools: patterns of names (`"github_*"`), and tool servers, all of whose tools are.
        results_max: The most tools that one search finds.
        found_max: The most found tools that a turn begins with. At a turn's end those that were not used for longest
            leave; within a turn none does.
        provider: `"auto"` leaves the search to the service of a model that has `tool_search=True` (`AnthropicModel`,
            `OpenAIResponsesModel`); `"never"` uses the search of Repertory everywhere.

    Attributes:
        name: The plugin's name.

    Raises:
        Invalid: For bounds that are not positive, for another `provider`, and for what is neither a pattern nor a tool
            server. Correct the argument.

    Examples:
        >>> from repertory import Agent, ScriptedModel, ToolSearch, tool
        >>> @tool(deferred=True)
        ... def send_invoice(customer: str) -> str:
        ...     '''Send a customer the bill.'''
        ...     return f"sent to {customer}"
        >>> agent = Agent(ScriptedModel("Done."), tools=[send_invoice], plugins=[ToolSearch()])
        >>> print(agent.tool.search_tools(query="bill a customer")["content"][0]["text"])
        These can be called from your next step on:
        send_invoice: Send a customer the bill.
    """

    name = "tool_search"

    def __init__(
        self,
        deferred: Sequence[str | ToolSource] = (),
        *,
        results_max: int = 5,
        found_max: int = 40,
        provider: Literal["auto", "never"] = "auto",
    ) -> None:
        for what, bound in (("results_max", results_max), ("found_max", found_max)):
            if isinstance(cast("object", bound), bool) or not isinstance(cast("object", bound), int) or bound < 1:
                raise Invalid(f"{what} is a positive number", got=bound)
        if provider not in ("auto", "never"):
            raise Invalid("provider is 'auto' or 'never'", got=provider)
        given: list[object] = [deferred] if isinstance(deferred, str) else list(deferred)
        self._patterns = tuple(each for each in given if isinstance(each, str))
        self._sources = tuple(each for each in given if is_tool_source(each))
        if len(self._patterns) + len(self._sources) < len(given):
            raise Invalid("deferred has patterns of names, and tool servers", got=repr(deferred)[:200])
        self._results_max = results_max
        self._found_max = found_max
        self._provider = provider
        self._catalogs: WeakKeyDictionary[ToolRegistry, _Catalog] = WeakKeyDictionary()
        """The deferred tools of each agent, as long as they do not change."""

    def init_agent(self, agent: Any) -> None:
        """Choose the tools that the agent's model is shown.

        Args:
            agent: The agent.
        """
        agent.spec().parts.deferral = self

    def visible_specs(self, parts: AgentParts) -> tuple[ToolSpec, ...]:
        """The definitions for the next request: those that are not deferred, then those found, in the order found.

        Args:
            parts: The agent's parts.
        """
        catalog = self._catalog(parts.tools)
        if self._searched_by_provider(parts):
            return catalog.for_provider
        names = _found(parts.state).names
        if names != catalog.visible_names:
            found = (catalog.deferred[name] for name in names if name in catalog.deferred)
            catalog.visible_names, catalog.visible = names, (*catalog.first, *found)
        return catalog.visible

    def why_hidden(self, name: str, parts: AgentParts) -> str | None:
        """The answer to a call of a tool that the model is not shown; None for one that it is.

        Args:
            name: The name as the model has written it.
            parts: The agent's parts.
        """
        if self._searched_by_provider(parts):
            return None
        found = _found(parts.state).names
        if name in self._catalog(parts.tools).deferred:
            instead = f"{name} is not enabled. Find it with {_SEARCH} first, then call it in your next step."
            return None if name in found else instead
        if parts.tools.get(name) is not None:
            return None
        # Without the list of hundreds of names that an agent of few tools gives here.
        return f"Unknown tool: {name}. Find tools by what they do with {_SEARCH}."

    @tool(effects=False, idempotent=True)
    async def search_tools(self, query: str, tool_context: Any) -> str:
        """Find further tools by what they do. You see only some of your tools; before you say that something cannot be
        done, search for a tool that does it. Those found can be called from your next step on.

        Args:
            query: The action and its object in a few words, with the service if you know it: "send an email with an
                attachment".
            tool_context: Filled in by the runtime.
        """
        parts: AgentParts = tool_context.agent.spec().parts
        catalog = self._catalog(parts.tools)
        # The index of hundreds of tools takes some tens of milliseconds, once.
        index = await run_in_thread(lambda: catalog.index)
        names = index.search(query, self._results_max)
        if not names:
            return "No tool was found. Try other words for the action or its object."
        state = parts.state
        state.set(STATE_KEY, _found(state).with_used(names).written)
        lines = (f"{name}: {_short(catalog.deferred[name]['description'])}" for name in names)
        return "\n".join(("These can be called from your next step on:", *lines))

    @hook
    def _on_after_invocation(self, event: AfterInvocationEvent) -> None:
        """Note which found tools the turn has used, and let go those that were not used for longest."""
        result = event.result
        if result is None or result.stop_reason == "interrupt":  # The turn goes on.
            return
        state: AgentState = event.agent.spec().parts.state
        before = _found(state)
        used = [name for name in result.metrics.tool_metrics if name in before.names]
        after = before.with_used(used).without_oldest(self._found_max)
        if after != before:
            state.set(STATE_KEY, after.written)

    def _searched_by_provider(self, parts: AgentParts) -> bool:
        # Middleware may send the request to a model of another service.
        allowed = self._provider == "auto" and parts.middleware is None
        return allowed and bool(getattr(parts.model, "searches_tools", False))

    def _catalog(self, tools: ToolRegistry) -> _Catalog:
        specs, known = tools.specs, self._catalogs.get(tools)
        if known is None or known.specs is not specs:
            deferred = [self._is_deferred(each, tools) for each in tools]
            known = self._catalogs[tools] = _Catalog(specs, deferred)
        return known

    def _is_deferred(self, each: Any, tools: ToolRegistry) -> bool:
        name: str = each.name
        if name == _SEARCH:
            return False
        named = any(fnmatchcase(name, pattern) for pattern in self._patterns)
        source = tools.source_of(name) if self._sources else None
        return named or bool(getattr(each, "deferred", False)) or any(source is mine for mine in self._sources)


_SEARCH = ToolSearch.search_tools.name


class _Catalog:
    """The definitions of an agent's tools, those at first and those deferred."""

    def __init__(self, specs: tuple[ToolSpec, ...], deferred: Sequence[bool]) -> None:
        """`deferred`: for each of the tools, in their order."""
        self.specs = specs
        marked = tuple(zip(specs, deferred, strict=True))
        self.first = tuple(spec for spec, later in marked if not later)
        self.deferred = {spec["name"]: spec for spec, later in marked if later}
        self.visible_names: tuple[str, ...] = ()
        """The found names for which `visible` was made."""
        self.visible = self.first

    @cached_property
    def index(self) -> ToolIndex:
        """The words of the deferred tools, read at the first search."""
        return ToolIndex(tuple(self.deferred.values()))

    @cached_property
    def for_provider(self) -> tuple[ToolSpec, ...]:
        """All definitions for a service that searches itself: it keeps the deferred ones from its model."""
        first = (spec for spec in self.first if spec["name"] != _SEARCH)
        later: list[ToolSpec] = [{**spec, "deferLoading": True} for spec in self.deferred.values()]
        return (*first, *later)


def _found(state: AgentState) -> FoundTools:
    return FoundTools.read(state.get(STATE_KEY))


def _short(description: str) -> str:
    line = description.strip().partition("\n")[0]
    return line if len(line) <= _DESCRIPTION_CHARS_MAX else f"{line[: _DESCRIPTION_CHARS_MAX - 3]}..."
