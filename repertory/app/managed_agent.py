"""Conversation managers that users write, as the agent system asks them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from repertory.app.conversation_managers import ConversationManager, PlannedManager, kept_state, restore_state
from repertory.core.messages import Json, Message, copy_message
from repertory.core.window.decision import Decision, Edit, WindowBudget, WindowManager
from repertory.core.window.edits import plan_of_edit
from repertory.core.window.plan import WindowPlan
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.conversation import Summarize


def window_manager(manager: ConversationManager, owner: Any, summarize: Summarize) -> WindowManager:
    """What asks this manager. `owner` is the `Agent` that it manages, as the manager's methods get it."""
    if isinstance(manager, PlannedManager) and manager.only_plans:
        return manager
    return CustomManager(manager, owner, summarize)


class ManagedAgent:
    """What `apply_management` and `reduce_context` get: the agent, but with messages that may be edited."""

    def __init__(self, owner: Any, messages: list[Message], summarize: Summarize) -> None:
        self._owner = owner
        self.messages = messages
        self.summarize = summarize
        """Has a summary written, for managers that extend the summarising one."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._owner, name)

    def __setattr__(self, name: str, value: object) -> None:
        """The messages are its own; whatever else is assigned is the agent's."""
        if name in ("_owner", "messages", "summarize"):
            super().__setattr__(name, value)
        else:
            setattr(self._owner, name, value)


class CustomManager:
    """Asks a manager that plans or edits by code of its own."""

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
        return kept_state(self._manager, removed)

    def restore(self, removed: int, state: Mapping[str, Json]) -> None:
        restore_state(self._manager, removed, state)

    def manages_before_call(self, model_calls: int) -> bool:
        """As a manager that extends a ready one says."""
        return isinstance(self._manager, PlannedManager) and self._manager.manages_before_call(model_calls)

    def manage(self, shown: Sequence[Message]) -> Decision:
        if self._manager.plan is not None:
            return self._plan(shown, WindowBudget())
        return self._edit(shown, self._manager.apply_management)

    def reduce(self, shown: Sequence[Message], budget: WindowBudget) -> Decision:
        if self._manager.plan is not None:
            return self._plan(shown, budget)
        return self._edit(shown, partial(self._manager.reduce_context, e=budget.error))

    def _plan(self, shown: Sequence[Message], budget: WindowBudget) -> Decision:
        planned = self._manager.plan(tuple(shown), budget)
        return Edit(partial(_awaited_plan, planned)) if inspect.isawaitable(planned) else _checked(planned)

    def _edit(self, shown: Sequence[Message], edit: Callable[[Any], Awaitable[None] | None]) -> Decision:
        shown = tuple(shown)
        given = [copy_message(message) for message in shown]
        agent = ManagedAgent(self._owner, list(given), self._summarize)
        edited = edit(agent)
        if inspect.isawaitable(edited):
            return Edit(partial(_awaited_edit, edited, shown, given, agent))
        return plan_of_edit(shown, given, agent.messages)


async def _awaited_plan(planned: Awaitable[object]) -> WindowPlan:
    return _checked(await planned)


async def _awaited_edit(
    edited: Awaitable[object], shown: Sequence[Message], given: Sequence[Message], agent: ManagedAgent
) -> WindowPlan:
    await edited
    return plan_of_edit(shown, given, agent.messages)


def _checked(planned: object) -> WindowPlan:
    if not isinstance(planned, WindowPlan):
        raise Invalid("plan returns a WindowPlan", got=type(planned).__name__)
    return planned
