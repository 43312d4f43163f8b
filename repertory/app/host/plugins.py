"""Plugins: hooks and tools that belong together, given to an agent as one object.

class Audit(Plugin):
    name = "audit"

    @hook
    def on_message(self, event: MessageAddedEvent) -> None: ...

    @tool
    def audit_log(self) -> str:
        "What was said so far."
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload

from repertory.actors.hooks.events import check_callback
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import HookFailed, Invalid, RepertoryError
from repertory.runtime.faults import failure_of, repr_of

if TYPE_CHECKING:
    from repertory.backends.ports import Model

_Callback = TypeVar("_Callback", bound=Callable[..., Any])
_MARK = "__repertory_hook__"


@overload
def hook(func: _Callback) -> _Callback: ...


@overload
def hook(func: None = None) -> Callable[[_Callback], _Callback]: ...


def hook(func: _Callback | None = None) -> _Callback | Callable[[_Callback], _Callback]:
    """Mark a method of a `Plugin` as a callback; the annotation of its parameter says for which events. `@hook` and
    `@hook()` are the same.

    Args:
        func: The method; the event's class is read from its annotation.

    Raises:
        Invalid: For an annotation that names no events. Correct the argument.
    """
    if func is None:
        return hook
    check_callback(func)
    setattr(func, _MARK, True)
    return func


class Plugin:
    """Extends agents by its methods that are marked with `@hook` and `@tool`. Subclass it and give it a `name`.

    One object may serve many agents. `init_agent` may do more. An asynchronous one runs before the agent's first call;
    when it fails, so does the call, and the next call tries it again.

    Attributes:
        name: The plugin's name; an agent has one plugin of each name.
    """

    name: str = ""
    may_repeat: bool = False
    """True if an agent may have several plugins of this name, because the program named none of them."""

    @property
    def hooks(self) -> list[Callable[..., Any]]:
        """The marked callbacks, base classes first, in the order in which they were written. A callback that you take
        out of this list before an agent gets the plugin is not registered.
        """
        return cached_list(self, "hooks", marked_callbacks)

    @property
    def tools(self) -> list[FunctionTool[Any]]:
        """The tools among the methods, base classes first, in the order in which they were written; as `hooks`."""
        return cached_list(self, "tools", _marked_tools)

    def init_agent(self, agent: Any) -> Awaitable[None] | None:
        """Prepare an `Agent` that got this plugin; its hooks and tools are registered already.

        Args:
            agent: The agent.
        """
        del agent


class ModelChooser(Plugin):
    """A plugin that chooses among models, and that an agent is given in the place of one: `ModelRouter`."""

    @property
    def default_model(self) -> Model:
        """The model that is used where nothing is chosen."""
        raise NotImplementedError


class Intervention(Protocol):
    """A policy, as an agent takes it: an object of a subclass of `InterventionHandler`."""

    name: str


_Member = TypeVar("_Member")


def cached_list(plugin: object, what: str, find: Callable[[object], list[_Member]]) -> list[_Member]:
    """The members that were found in the plugin at first, as the program has changed them since."""
    members = cast("dict[str, list[_Member]]", vars(plugin).setdefault("__repertory_plugin__", {}))
    if what not in members:
        members[what] = find(plugin)
    return members[what]


def _marked_tools(plugin: object) -> list[FunctionTool[Any]]:
    return [getattr(plugin, name) for name in _names(plugin) if isinstance(getattr(type(plugin), name), FunctionTool)]


def marked_callbacks(plugin: object) -> list[Callable[..., Any]]:
    """The methods marked with `@hook`, base classes first, in the order in which they were written."""
    return [getattr(plugin, name) for name in _names(plugin) if hasattr(getattr(type(plugin), name), _MARK)]


class NamedPlugin(Protocol):
    """Plugins of agents, graphs and swarms."""

    name: str


P = TypeVar("P", bound=NamedPlugin)


def check_plugins(plugins: object, kind: type[P]) -> list[P]:
    """The plugins as a list. Errors: `Invalid` for objects of another kind, without a name, or with one name twice."""
    found = list(cast("Sequence[object]", plugins)) if isinstance(plugins, list | tuple) else [plugins]
    checked: list[P] = []
    for plugin in found:
        if not isinstance(plugin, kind) or not plugin.name:
            raise Invalid(f"a plugin is an object of a subclass of {kind.__name__} with a name", got=repr(plugin))
        for other in checked:
            both = plugin is not other and all(getattr(each, "may_repeat", False) for each in (plugin, other))
            if plugin.name == other.name and not both:
                raise Invalid("two plugins have the same name", name=plugin.name)
        checked.append(plugin)
    return checked


class LatePlugins:
    """The work before the first call of an agent: to restore its conversation, and to finish plugins whose `init_agent`
    is asynchronous.
    """

    __slots__ = ("_agent", "_remaining", "_restore")

    def __init__(self, agent: Any, restore: Callable[[], Awaitable[None]] | None = None) -> None:
        """`restore`: called before each start of the session; None for nothing."""
        self._agent = agent
        self._restore = restore
        self._remaining: list[tuple[Plugin, Awaitable[None] | None]] = []
        """The plugins in order, each with its awaitable if `init_agent` was called already."""

    @property
    def done(self) -> bool:
        return self._restore is None and not self._remaining

    def begin(self, plugins: Iterable[Plugin]) -> None:
        """Register the callbacks of each plugin, and then call its `init_agent`, or leave that to `finish` when it is a
        coroutine function.
        """
        for plugin in plugins:
            for callback in plugin.hooks:
                self._agent.hooks.add_callback(None, callback)
            is_async = inspect.iscoroutinefunction(plugin.init_agent)
            begun = None if is_async else plugin.init_agent(self._agent)
            if is_async or begun is not None:
                self._remaining.append((plugin, begun))

    async def finish(self) -> None:
        """Await what is left, one by one. Errors: `HookFailed`, or a `RepertoryError` that a plugin raised."""
        if self._restore is not None:
            await self._restore()
        while self._remaining:
            plugin, begun = self._remaining[0]
            self._remaining[0] = (plugin, None)
            try:
                await (begun or plugin.init_agent(self._agent) or _nothing())
            except RepertoryError:
                raise
            except BaseException as error:
                failure_of(error)  # What is none goes on.
                raise HookFailed("a plugin could not be prepared", plugin=plugin.name, error=repr_of(error)) from error
            del self._remaining[0]


async def _nothing() -> None: ...


def _names(plugin: object) -> list[str]:
    """The attributes of the plugin's classes, base classes first; an overridden one keeps its first place."""
    names = [name for kind in reversed(type(plugin).__mro__) for name in vars(kind)]
    return [name for name in dict.fromkeys(names) if name not in ("hooks", "tools")]


# What is given beside plugins.


def as_list(name: str, given: Iterable[_Member] | None) -> tuple[_Member, ...]:
    """The list of an argument. Errors: `Invalid` for anything else, such as one of its members alone."""
    if not isinstance(cast("object", given), Iterable | None):
        raise Invalid(f"{name} is a list: write {name}=[...]", got=type(given).__name__)
    return tuple(given or ())
