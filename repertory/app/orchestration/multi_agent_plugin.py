"""Plugins of orchestrators: hooks that belong together, given to a graph or a swarm as one object."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from repertory.app.agent.plugins import marked_callbacks
from repertory.errors import Invalid


class MultiAgentPlugin:
    """Extends graphs and swarms by its methods that are marked with `@hook`. Subclass it and give it a `name`.

    A class may be a `Plugin` as well: then it extends agents, too. One object may serve many orchestrators.
    `init_multi_agent` may do more, and may be asynchronous: then it runs before the orchestrator's first call. When it
    fails, so does the call, and the next call tries it again.
    """

    name: str = ""

    @property
    def hooks(self) -> list[Callable[..., Any]]:
        """The marked callbacks, base classes first, in the order in which they were written."""
        return marked_callbacks(self)

    def init_multi_agent(self, orchestrator: Any) -> Awaitable[None] | None:
        """Prepare an orchestrator that got this plugin; its hooks are registered already."""
        del orchestrator


def check_multi_agent_plugins(plugins: Sequence[object]) -> list[MultiAgentPlugin]:
    """The plugins as a list. Errors: `Invalid` for what is none, for one without a name, for two of one name."""
    checked: list[MultiAgentPlugin] = []
    for plugin in plugins:
        if not isinstance(plugin, MultiAgentPlugin) or not plugin.name:
            raise Invalid("a plugin is an object of a subclass of MultiAgentPlugin with a name", got=repr(plugin))
        if any(plugin.name == other.name for other in checked):
            raise Invalid("two plugins have the same name", name=plugin.name)
        checked.append(plugin)
    return checked


class LateInits:
    """What plugins, and callbacks that were told of it, have to do before the first call."""

    def __init__(self, orchestrator: object, plugins: Sequence[MultiAgentPlugin]) -> None:
        """Whatever is synchronous is done here. Errors: what a plugin raises."""
        self._orchestrator = orchestrator
        self._waiting: list[tuple[MultiAgentPlugin, Awaitable[None]]] = []
        self._following: list[Callable[[], Awaitable[None]]] = []
        for plugin in plugins:
            self._begin(plugin)

    def _begin(self, plugin: MultiAgentPlugin) -> None:
        begun = cast("object", plugin.init_multi_agent(self._orchestrator))
        if inspect.isawaitable(begun):
            self._waiting.append((plugin, begun))

    def follow(self, callbacks: Sequence[Callable[[], Awaitable[None]]]) -> None:
        """Have these awaited behind the plugins."""
        self._following.extend(callbacks)

    async def finish(self) -> None:
        """Do what is left. One that fails is begun anew by the next call."""
        while self._waiting:
            plugin, begun = self._waiting.pop(0)
            try:
                await begun
            except BaseException:
                self._begin(plugin)
                raise
        while self._following:
            await self._following.pop(0)()
