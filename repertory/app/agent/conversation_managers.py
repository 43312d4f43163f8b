"""The conversation managers of the public API, and the interface for custom ones.

A custom manager either returns a plan of what to hide, in `plan`, or shortens `agent.messages` in place, in
`apply_management` and `reduce_context`. Source: the documented interface of the SDK whose users we serve; `plan` is
our own decision: a pure function cannot lose anything.
"""

from __future__ import annotations

import datetime
import inspect
import re
import warnings
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
from msgspec import Struct, structs

from repertory.actors.call import background_work
from repertory.actors.hooks.events import BeforeModelCallEvent
from repertory.actors.side_calls import call_until_answered
from repertory.actors.turn import ModelRequest
from repertory.app.tracebacks import inside_event_loop
from repertory.core.answer import LIMITED
from repertory.core.messages import copy_message, text_of
from repertory.core.state import AgentState
from repertory.core.window.decision import (
    BLOCK_CHARS_MAX,
    REQUESTS_MAX,
    UNKNOWN_WINDOW,
    Compression,
    CustomEdit,
    WindowBudget,
    WindowDecision,
    WindowManager,
    WindowPlan,
    apply_plan,
    halves,
    is_full,
    is_summary,
    own_state,
    read_threshold,
    summarised,
)
from repertory.core.window.edits import plan_of_edit
from repertory.core.window.sliding import SlidingWindow, Summarizing
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts, AgentSettings
    from repertory.actors.conversation import Summarize
    from repertory.backends.ports import Model
    from repertory.core.messages import Json, Message
    from repertory.core.window.decision import SummaryRequest


class ConversationManager:
    """Base class of conversation managers. Subclass it to decide yourself what the model sees.

    `apply_management(agent)` is called after each turn, `reduce_context(agent, e)` when the model's window is full (`e`
    is the model's error, or None for proactive compression): repeatedly, until the request fits or it raises. Both may
    be coroutines, and shorten `agent.messages` in place: they may drop messages, edit them, and put one in front, as
    long as tool uses keep their results. Hidden messages stay in the history. `register_hooks` and `init_agent` add
    hooks to the agent's, which may shorten `event.agent.messages` as well.

    Instead of both define `plan(history, budget) -> WindowPlan`, or `reduce(agent, error) -> bool`: it shortens
    `agent.messages` when the window is full, and returns False if it could not.

    A failure then is logged and changes nothing.

    An error of `apply_management` is logged; one of `reduce_context` ends the turn, unless it compressed ahead.

    Args:
        proactive_compression: `True` calls `reduce_context` before a model call whose request takes 0.7 of the window,
            `{"compression_threshold": r}` at r of it.
    """

    removed_message_count: int = 0
    """Messages that were hidden since the last turn."""
    proactive_compression: Compression = None

    plan: Any = None
    """`plan(history, budget) -> WindowPlan` of a manager that plans, which may be a coroutine; None otherwise."""

    reduce: Any = None
    """`reduce(agent, error) -> bool`, or `reduce(options) -> bool` with both as attributes, which may be a coroutine;
    None for a manager that has the other methods.
    """

    def __init__(self, *, proactive_compression: Compression = None) -> None:
        self.proactive_compression = proactive_compression
        read_threshold(proactive_compression)

    @property
    def name(self) -> str:
        """The name of this manager in journals and other layouts."""
        return type(self).__name__

    @property
    def compression_threshold(self) -> float | None:
        """The share of the window from which to compress before a call; None for never."""
        return read_threshold(self.proactive_compression)

    def apply_management(self, agent: Any, **kwargs: Any) -> Awaitable[None] | None:
        """Shorten `agent.messages` after a turn, if necessary.

        Args:
            agent: The agent.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        if self.reduce is None:
            raise NotImplementedError

    def reduce_context(
        self, agent: Any, e: ContextWindowOverflowException | None = None, **kwargs: Any
    ) -> Awaitable[None] | None:
        """Shorten `agent.messages`: the model's window is full, or nearly. Raise when nothing can be dropped.

        Args:
            agent: The agent.
            e: The error of the model that found the conversation too long; None before a call.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        if self.reduce is None:
            raise NotImplementedError
        named = inspect.signature(self.reduce).parameters
        given = {"agent": agent, "error": e}
        if given.keys() & named.keys():
            reduced = self.reduce(**{name: value for name, value in given.items() if name in named})
        else:
            reduced = self.reduce(ReduceOptions(**given))
        if inspect.isawaitable(reduced):
            return _reduced(reduced, e)
        _check_reduced(reduced, e)
        return None

    def get_state(self) -> dict[str, Json]:
        """The state to store with the session, as JSON; `restore_from_session` gets it back."""
        return {"__name__": self.name, "removed_message_count": self.removed_message_count}

    def restore_from_session(self, state: dict[str, Any]) -> Sequence[Message] | None:
        """Restore what `get_state` gave. The return value is ignored: the session stores the shown messages.

        Args:
            state: The state that `get_state` returned when the session was stored.

        Raises:
            Invalid: For the state of another kind of manager. Correct the argument.
        """
        if state.get("__name__") != self.name:
            raise Invalid("this is no state of this conversation manager", manager=self.name, got=state.get("__name__"))
        self.removed_message_count = int(state.get("removed_message_count", 0))
        return None

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        """Add the manager's own hooks to the agent's. An `Agent` calls `apply_management` and `reduce_context` itself;
        in any other registry, a hook before each model call does.

        Args:
            registry: The registry to which it adds callbacks.
            kwargs: Further values of a later version; pass them on, or ignore them.
        """
        del kwargs
        if not getattr(registry, "of_agent", False):
            registry.add_callback(BeforeModelCallEvent, self._before_model_call, guard=False)

    def init_agent(self, agent: Any) -> None:
        """Prepare for an agent that is being made; `agent.add_hook` adds hooks.

        Args:
            agent: The agent.
        """

    def _before_model_call(self, event: BeforeModelCallEvent) -> Awaitable[None] | None:
        """Compress when the request nearly fills the window. The hooks log a failure."""
        threshold, tokens = self.compression_threshold, event.projected_input_tokens
        if threshold is None or tokens is None:
            return None
        window = getattr(event.agent.model, "context_window_limit", None)
        if window is None:
            warnings.warn(
                f"the model's context_window_limit is unknown: using default {UNKNOWN_WINDOW}",
                UserWarning,
                stacklevel=2,
            )
        return self.reduce_context(event.agent) if is_full(tokens, window, threshold) else None


class ReduceOptions(NamedTuple):
    """The argument of a `reduce(options)`."""

    agent: Any
    error: ContextWindowOverflowException | None
    """The error of the model that found the conversation too long; None before a call."""


class ManagerOfAgent(NamedTuple):
    """A manager, and the agent to which it adds its hooks."""

    manager: ConversationManager
    agent: Any

    def register_hooks(self, registry: Any) -> None:
        self.manager.register_hooks(registry)
        self.manager.init_agent(self.agent)


async def _reduced(reduced: Awaitable[object], error: ContextWindowOverflowException | None) -> None:
    _check_reduced(await reduced, error)


def _check_reduced(reduced: object, error: ContextWindowOverflowException | None) -> None:
    if reduced is False and error is not None:
        raise error


_factories: WeakKeyDictionary[ConversationManager, Callable[[], object]] = WeakKeyDictionary()
"""The factory that made a manager, for managers made by one."""

ManagerChoice: TypeAlias = "ConversationManager | Callable[[], ConversationManager] | None"
"""A manager, a function that makes one for each conversation, or None for the default."""


class PlannedManager(ConversationManager):
    """A manager that decides by plans. Its `apply_management` and `reduce_context` apply such a plan."""

    @property
    def summarizes(self) -> bool:
        return False

    def keep(self, removed: int) -> Mapping[str, Json]:
        """The additional state of a custom `get_state`."""
        return recorded_state(self, removed)

    def restore(self, removed: int, state: Mapping[str, Json]) -> None:
        """Restore the state that `keep` gave."""
        restore_state(self, removed, state)

    def manages_before_call(self, model_calls: int) -> bool:
        del model_calls
        return False

    def manage(self, visible: Sequence[Message]) -> WindowPlan:
        """The plan after a turn."""
        del visible
        return WindowPlan()

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> WindowPlan | SummaryRequest:
        """The plan when the window is full."""
        raise NotImplementedError

    def apply_management(self, agent: Any, **kwargs: Any) -> Awaitable[None] | None:
        _apply(self, agent, self.manage(agent.messages))
        return None

    def reduce_context(
        self, agent: Any, e: ContextWindowOverflowException | None = None, **kwargs: Any
    ) -> Awaitable[None] | None:
        """Apply the plan for a full window. Without `e`, what cannot be reduced stays as it is; in code without an
        event loop, a summary is written before this returns.
        """
        messages = cast("Sequence[Message]", agent if isinstance(agent, list) else agent.messages)
        try:
            decision = self.reduce(messages, WindowBudget(error=e, full=e is None))
        except ContextWindowOverflowException:
            if e is not None:
                raise
            decision = self.manage(messages)
        if isinstance(decision, WindowPlan):
            _apply(self, agent, decision)
            return None
        summarizing = _summarize(self, agent, decision)
        if isinstance(agent, ManagedAgent) or inside_event_loop():
            return summarizing
        # Code without an event loop expects shortened messages on return.
        return anyio.run(lambda: summarizing)

    @property
    def only_plans(self) -> bool:
        """True if no subclass has overridden `apply_management`, `reduce_context` or `plan`."""
        kind = type(self)
        applies = kind.apply_management is PlannedManager.apply_management
        return applies and kind.reduce_context is PlannedManager.reduce_context and self.plan is None


class _Setting:
    """A setting of a manager as its attribute; assigned, it counts from the next decision on."""

    def __init__(self, field: str, *, attribute: str | None = None) -> None:
        self._field = field
        self._attribute = attribute or field

    def __get__(self, manager: Any, owner: type | None = None) -> Any:
        return self if manager is None else getattr(manager.settings, self._attribute)

    def __set__(self, manager: Any, value: object) -> None:
        """Errors: as those of the constructor."""
        manager.settings = structs.replace(manager.settings, **{self._field: value})


class NullConversationManager(PlannedManager):
    """Hides nothing, ever. An overflow of the model's window reaches the caller as it is.

    `proactive_compression` is accepted like in the other managers, and has no effect.
    """

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> WindowPlan:
        """Hide nothing: when the model has refused, the turn fails with its `ContextWindowOverflowException`."""
        del visible
        if budget.error is not None:
            raise budget.error
        return WindowPlan()


class SlidingWindowConversationManager(PlannedManager):
    """Shows at most `window_size` messages (messages, not pairs), unless a cut there would split a tool pair.

    Pinned messages (`pin_message`) are always shown as well.

    Args:
        window_size: The most messages that the model is shown.
        should_truncate_results: On overflow, first shorten the oldest long tool result, before hiding messages.
        per_turn: False trims after each turn; True also before each model call; n before every n-th.
        pin_first: Messages at the start that are always shown, with the partners of their tool uses.
        proactive_compression: Hide the oldest messages before a call that nearly fills the model's window.

    Attributes:
        settings: The settings as one value.

    Raises:
        Invalid: For a negative window, or `per_turn` or `pin_first` below 1. Correct the argument.
    """

    window_size = _Setting("window_size")
    should_truncate_results = _Setting("should_truncate_results")
    per_turn = _Setting("per_turn")
    pin_first = _Setting("pin_first")

    def __init__(
        self,
        window_size: int = 40,
        should_truncate_results: bool = True,
        *,
        per_turn: bool | int = False,
        pin_first: int | None = None,
        proactive_compression: Compression = None,
    ) -> None:
        super().__init__(proactive_compression=proactive_compression)
        if window_size == 0:
            text = "window_size=0 shows the model nothing of earlier turns: NullConversationManager() shows all of them"
            warnings.warn(text, stacklevel=2)
        self.settings = SlidingWindow(
            window_size=window_size,
            should_truncate_results=should_truncate_results,
            per_turn=per_turn,
            pin_first=pin_first,
        )
        self._model_calls = 0
        """Model calls so far, where no `Agent` counts them."""

    def manage(self, visible: Sequence[Message]) -> WindowPlan:
        """The plan that keeps the newest `window_size` messages."""
        return self.settings.manage(visible)

    def manages_before_call(self, model_calls: int) -> bool:
        """True before the model calls that `per_turn` names.

        Args:
            model_calls: The number of the model call in its turn, from 1.
        """
        return self.settings.manages_before_call(model_calls)

    def _before_model_call(self, event: BeforeModelCallEvent) -> Awaitable[None] | None:
        self._model_calls += 1
        if self.manages_before_call(self._model_calls):
            self.apply_management(event.agent)
        return super()._before_model_call(event)

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> WindowPlan:
        """The plan after the model refused: it shortens results first, then hides the oldest messages."""
        return self.settings.reduce(visible, budget)


class SummarizingConversationManager(PlannedManager):
    """Replaces the oldest messages by a summary when the model's window is full, or before (`proactive_compression`).

    Args:
        summary_ratio: The share of the shown messages that goes into a summary, clamped to 0.1 to 0.8.
        preserve_recent_messages: Messages at the end that are never summarized.
        summarization_agent: An `Agent` that writes the summaries, with its own model, tools and system prompt; the
            agent's own model (or its `aux_model`) when None.
        summarization_system_prompt: Instead of the default; not both.
        model: The model that writes the summaries, in the place of the agent's own.
        pin_first: Messages at the start that are always shown, with the partners of their tool uses; so are pinned
            messages (`pin_message`).
        proactive_compression: When to summarize before the model refuses; None waits for its refusal.

    Attributes:
        settings: The settings as one value.
        summarizes: True: its plans need a model.

    Raises:
        Invalid: For a setting out of range, and for an agent together with a prompt or a model. Correct the argument.
    """

    summary_ratio = _Setting("summary_ratio", attribute="ratio")
    preserve_recent_messages = _Setting("preserve_recent_messages")
    summarization_agent = _Setting("agent")
    summarization_system_prompt = _Setting("system_prompt")
    model = _Setting("model")
    pin_first = _Setting("pin_first")

    def __init__(
        self,
        summary_ratio: float = 0.3,
        preserve_recent_messages: int = 10,
        summarization_agent: Any = None,
        summarization_system_prompt: str | None = None,
        *,
        model: Any = None,
        pin_first: int | None = None,
        proactive_compression: Compression = None,
    ) -> None:
        super().__init__(proactive_compression=proactive_compression)
        self.settings = Summarizing(
            summary_ratio=summary_ratio,
            preserve_recent_messages=preserve_recent_messages,
            agent=summarization_agent,
            system_prompt=summarization_system_prompt,
            model=model,
            pin_first=pin_first,
        )

    @property
    def summarizes(self) -> bool:
        return True

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> SummaryRequest | WindowPlan:
        """The plan that replaces the oldest messages by a summary."""
        return self.settings.reduce(visible, budget)


def chosen_manager(choice: object) -> ConversationManager:
    """The conversation manager, the one that a factory makes, or the default. Errors: `Invalid`."""
    if choice is None:
        return SlidingWindowConversationManager()
    if isinstance(choice, ConversationManager) or not callable(choice):
        return check_manager(choice)
    manager = check_manager(choice())
    _factories[manager] = choice
    return manager


def another_manager(manager: ConversationManager) -> ConversationManager:
    """A manager with the same settings and state for another conversation: from the same factory, or a deep copy.

    Errors: `Invalid` saying what to write instead, for one that cannot be copied.
    """
    made_by = _factories.get(manager)
    if made_by is not None:
        another = chosen_manager(made_by)
        if another is manager:
            raise Invalid("the factory of a conversation manager makes a new one each time", manager=manager.name)
        return another
    # Settings are frozen, and a summarising agent is itself copied for each summary: both may be shared.
    settings = getattr(manager, "settings", None)
    try:
        return own_copy(manager, (settings,) if isinstance(settings, SlidingWindow | Summarizing) else ())
    except Invalid as error:
        raise Invalid(
            "each conversation has a conversation manager of its own, and this one cannot be copied: "
            f"write conversation_manager=lambda: {manager.name}(...)",
            cause=str(error),
        ) from error


def check_manager(manager: object) -> ConversationManager:
    """Return the object. Errors: `Invalid` if it is no conversation manager, or defines no decision."""
    if not isinstance(manager, ConversationManager):
        raise Invalid(
            "a conversation manager is a ConversationManager, or a function that makes one", got=type(manager).__name__
        )
    base, kind = ConversationManager, type(manager)
    edits = kind.apply_management is not base.apply_management and kind.reduce_context is not base.reduce_context
    if not edits and manager.plan is None and manager.reduce is None:
        raise Invalid(
            "a conversation manager defines apply_management and reduce_context, or reduce, or plan",
            manager=manager.name,
        )
    return manager


def recorded_state(manager: ConversationManager, removed: int) -> Mapping[str, Json]:
    """Sets the number of hidden messages; returns the state of `get_state` to store with the session, without that
    count. Errors: `Invalid` for what is not JSON; whatever `get_state` raises.
    """
    manager.removed_message_count = removed
    if type(manager).get_state is ConversationManager.get_state:
        return {}
    return cast("Mapping[str, Json]", AgentState(own_state(dict(manager.get_state()))).get())


def restore_state(manager: ConversationManager, removed: int, state: Mapping[str, Json]) -> None:
    """Restore a manager's stored state. Errors: whatever its `restore_from_session` raises."""
    manager.restore_from_session({**state, "__name__": manager.name, "removed_message_count": removed})


async def _summarize(manager: PlannedManager, agent: Any, request: SummaryRequest) -> None:
    if isinstance(agent, ManagedAgent):
        text = await agent.summarize(request)
    else:
        text = await _written(agent, request)
    _apply(manager, agent, request.plan(text))


async def _written(agent: Any, request: SummaryRequest) -> str:
    """A summary for whatever has messages and a model."""
    prompt = request.prompt(BLOCK_CHARS_MAX[0])
    writer = cast("Any", request.agent)
    if writer is not None:
        result = await writer.invoke_async(prompt) if hasattr(writer, "invoke_async") else writer(prompt)
        return text_of(result.message)
    from repertory.actors.turn import ModelRequest, call_model  # loaded when used

    messages: list[Message] = [{"role": "user", "content": [{"text": prompt}]}]
    question = ModelRequest(messages=messages, tool_specs=(), system_prompt=request.system_prompt)
    return text_of((await call_model(cast("Any", request.model) or agent.aux_model, question, None)).message)


def _apply(manager: PlannedManager, agent: Any, plan: WindowPlan) -> None:
    messages = agent.messages
    gone = [message for at, message in enumerate(messages[: plan.drop]) if at not in plan.pinned]
    front = [] if plan.summary is None else [plan.summary]
    if plan.changes:
        messages[:] = [*front, *apply_plan(messages, plan)]
    manager.removed_message_count += len(gone) - sum(map(is_summary, gone))


# A copy of a user's object that provably shares nothing mutable with it.
#
# `copy.deepcopy` alone proves nothing: a class may return itself as its copy, and functions share the lists in their
# closures.

T = TypeVar("T")

_UNCHANGING = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, ModuleType, BuiltinFunctionType, Enum),
    *(re.Pattern, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, Decimal),
)
_CONTAINERS = (tuple, frozenset, FunctionType)
"""Types that are immutable, though their contents may not be."""


def own_copy(value: T, shared: Collection[object] = ()) -> T:
    """A deep copy. `shared`: objects that both may have.

    Errors: `Invalid` for what cannot be copied, and for a mutable part that both would share, with its path.
    """
    try:
        copied = deepcopy(value, {id(one): one for one in shared})
    except Exception as error:
        raise Invalid("an object cannot be copied", type=type(value).__name__, cause=repr(error)) from error
    known = {id(one) for one in shared}
    originals = {id(one) for _, one in _parts(value, known) if not isinstance(one, _CONTAINERS)}
    for path, one in _parts(copied, known):
        if id(one) in originals:
            raise Invalid("a copy of an object would share a part with it", type=type(value).__name__, part=path)
    return copied


def _parts(value: object, known: Collection[int]) -> Iterator[tuple[str, object]]:
    """Every reachable object that is mutable or a container, with its path."""
    seen = dict[int, object]((one, None) for one in known)  # Holds the objects, so that no id is reused.
    waiting = [(type(value).__name__, value)]
    while waiting:
        path, one = waiting.pop()
        if isinstance(one, _UNCHANGING) or id(one) in seen:
            continue
        seen[id(one)] = one
        yield path, one
        waiting += [(f"{path}.{name}", inner) for name, inner in _within(one)]


def _within(one: object) -> Iterator[tuple[str, object]]:
    if isinstance(one, Mapping):
        for key, value in cast("Mapping[object, object]", one).items():
            yield "key", key
            yield repr(key)[:40], value
    elif isinstance(one, tuple | list | set | frozenset):
        for number, value in enumerate(cast("Collection[object]", one)):
            yield str(number), value
    elif isinstance(one, FunctionType):
        yield from _captured_by(one)
    elif isinstance(one, MethodType):
        yield "self", one.__self__
    elif isinstance(one, partial):
        held = cast("partial[object]", one)
        yield from (("func", held.func), ("args", held.args), ("keywords", held.keywords))
    yield from _attributes(cast("object", one))


def _captured_by(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The defaults and the closure of a function."""
    yield "defaults", (function.__defaults__, function.__kwdefaults__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # The cell is empty.
            continue


def _attributes(one: object) -> Iterator[tuple[str, object]]:
    yield from getattr(one, "__dict__", {}).items()
    for kind in type(one).__mro__:
        slots = cast("object", vars(kind).get("__slots__", ()))
        for name in (slots,) if isinstance(slots, str) else cast("Collection[str]", slots):
            if name not in ("__dict__", "__weakref__") and hasattr(one, name):
                yield name, getattr(one, name)


# Calling a custom manager.


def window_manager(manager: ConversationManager, owner: Any, summarize: Summarize) -> WindowManager:
    """The manager as the conversation calls it. `owner`: the `Agent` that a custom manager's methods get."""
    if isinstance(manager, PlannedManager) and manager.only_plans:
        return manager
    return CustomManager(manager, owner, summarize)


class ManagedAgent:
    """The argument of `apply_management` and `reduce_context`: the agent, with messages that may be edited."""

    def __init__(self, owner: Any, messages: list[Message], summarize: Summarize) -> None:
        self._owner = owner
        self.messages = messages
        self.summarize = summarize
        """Writes a summary, for subclasses of the summarising manager."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def __setattr__(self, name: str, value: object) -> None:
        """`messages` and `summarize` are set here, every other attribute on the agent."""
        if name in ("_owner", "messages", "summarize"):
            super().__setattr__(name, value)
        else:
            setattr(self._owner, name, value)


class CustomManager:
    """Calls a manager with a custom `plan`, or custom edits."""

    def __init__(self, manager: ConversationManager, owner: Any, summarize: Summarize) -> None:
        self._manager = manager
        self._owner = owner
        self._summarize = summarize

    @property
    def name(self) -> str:
        return self._manager.name

    @property
    def compression_threshold(self) -> float | None:
        return self._manager.compression_threshold

    @property
    def summarizes(self) -> bool:
        return False

    def keep(self, removed: int) -> Mapping[str, Json]:
        return recorded_state(self._manager, removed)

    def restore(self, removed: int, state: Mapping[str, Json]) -> None:
        restore_state(self._manager, removed, state)

    def manages_before_call(self, model_calls: int) -> bool:
        return isinstance(self._manager, PlannedManager) and self._manager.manages_before_call(model_calls)

    def manage(self, visible: Sequence[Message]) -> WindowDecision:
        if self._manager.plan is not None:
            return self._plan(visible, WindowBudget())
        return self._edit(visible, self._manager.apply_management)

    def reduce(self, visible: Sequence[Message], budget: WindowBudget) -> WindowDecision:
        if self._manager.plan is not None:
            return self._plan(visible, budget)
        return self._edit(visible, partial(self._manager.reduce_context, e=budget.error))

    def _plan(self, messages: Sequence[Message], budget: WindowBudget) -> WindowDecision:
        planned = self._manager.plan(tuple(messages), budget)
        return CustomEdit(partial(_awaited_plan, planned)) if inspect.isawaitable(planned) else _checked(planned)

    def _edit(self, messages: Sequence[Message], edit: Callable[[Any], Awaitable[None] | None]) -> WindowDecision:
        messages = tuple(messages)
        # Copies: a manager edits in place, and the comparison needs the messages as they were given.
        given = [copy_message(message) for message in messages]
        agent = ManagedAgent(self._owner, list(given), self._summarize)
        edited = edit(agent)
        if inspect.isawaitable(edited):
            return CustomEdit(partial(_awaited_edit, edited, messages, given, agent))
        return plan_of_edit(messages, given, agent.messages)


async def _awaited_plan(planned: Awaitable[object]) -> WindowPlan:
    return _checked(await planned)


async def _awaited_edit(
    edited: Awaitable[object], messages: Sequence[Message], given: Sequence[Message], agent: ManagedAgent
) -> WindowPlan:
    await edited
    return plan_of_edit(messages, given, agent.messages)


def _checked(planned: object) -> WindowPlan:
    if not isinstance(planned, WindowPlan):
        raise Invalid("plan returns a WindowPlan", got=type(planned).__name__)
    return planned


# Writing summaries.


class _Asked(Struct):
    """The number of requests for one summary."""

    often: int = 0


class Summarizer:
    """Writes the summaries of one agent's conversation, with its `aux_model` or else its model.

    Their tokens count towards the active budgets, as used by `agent_id/summary`.
    """

    __slots__ = ("_parts", "_session_id", "_who")

    def __init__(self, parts: AgentParts, settings: AgentSettings) -> None:
        self._parts = parts
        self._session_id = settings.session_id
        self._who = f"{settings.agent_id}/summary"

    async def write(self, request: SummaryRequest) -> str:
        """The summary. Messages too long for the model's window are shortened and tried again; those still too long are
        summarised in halves, recursively, and the summaries are summarised. At most `REQUESTS_MAX` requests.

        Errors: what the model or the agent raises; `ContextWindowOverflowException` when even the smallest pieces are
        too long, or there are too many; `LimitReached` when a budget is used up.
        """
        with background_work(self._session_id):
            return await self._write(request, request.to_summarise, BLOCK_CHARS_MAX, _Asked())

    async def _write(
        self, request: SummaryRequest, messages: Sequence[Message], lengths: Sequence[int], asked: _Asked
    ) -> str:
        """Tries each block length in `lengths` in turn until the request fits."""
        refused: ContextWindowOverflowException | None = None
        for chars_max in lengths:
            if asked.often >= REQUESTS_MAX:
                raise ContextWindowOverflowException("too long to be summarized", messages=len(request.messages))
            asked.often += 1
            try:
                return await self._ask(request, messages, chars_max)
            except ContextWindowOverflowException as error:
                refused = error
        first, second = halves(messages)
        if refused is not None and (not first or not second or all(map(is_summary, messages))):
            raise refused
        parts = [summarised(await self._write(request, part, lengths[-1:], asked), part) for part in (first, second)]
        return await self._write(request, parts, BLOCK_CHARS_MAX, asked)

    async def _ask(self, request: SummaryRequest, messages: Sequence[Message], chars_max: int) -> str:
        prompt = request.prompt(chars_max, messages)
        if request.agent is not None:
            return await _ask_agent(request.agent, prompt)
        asked: list[Message] = [{"role": "user", "content": [{"text": prompt}]}]
        question = ModelRequest(messages=asked, tool_specs=(), system_prompt=request.system_prompt)
        model = cast("Model | None", request.model) or self._parts.aux_model or self._parts.model
        answer = await call_until_answered(model, question, self._parts.retry, self._who)
        if answer.stop_reason in LIMITED:
            raise ModelFailed("the summary was cut off by a token limit", stop_reason=answer.stop_reason)
        return text_of(answer.message)


async def _ask_agent(agent: Any, prompt: str) -> str:
    """Asks a copy, so that summaries are no part of the agent's own conversation, and nothing is printed."""
    if hasattr(agent, "fresh_copy"):
        agent = agent.fresh_copy()
        agent.callback_handler = None
    return str(await agent.invoke_async(prompt))
