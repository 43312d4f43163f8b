"""From a blueprint to the child specs of a session's actors, the user's conversation manager among them."""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from repertory.actors.leases import Durable
from repertory.actors.model_call import Request, call_until_answered
from repertory.actors.persister import PersisterSettings
from repertory.actors.session import SessionParts, SessionSettings, member_specs
from repertory.app.agent.conversation_managers import ConversationManager, PlannedManager, kept_state, restore_state
from repertory.app.sessions.snapshot_marking import marker_of
from repertory.backends.ports import SharedStore
from repertory.backends.tools.schema_library import load_schema_library
from repertory.core.answer import LIMITED
from repertory.core.messages import Json, Message, copy_message, text_of
from repertory.core.window.decision import (
    BLOCK_CHARS_MAX,
    REQUESTS_MAX,
    Decision,
    Edit,
    WindowBudget,
    WindowManager,
    WindowPlan,
    halves,
    is_summary,
    summarised,
)
from repertory.core.window.edits import plan_of_edit
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts
    from repertory.actors.conversation import Summarize
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.actors.persister import MemoryJournal
    from repertory.app.host.blueprint import Blueprint
    from repertory.core.window.decision import SummaryRequest
    from repertory.runtime.ref import ActorRef
    from repertory.runtime.spec import ChildSpec


async def assemble(
    blueprint: Blueprint, keeper: Durable | MemoryJournal, memories: Mapping[str, ActorRef[MemoryStoreMessage]]
) -> Sequence[ChildSpec]:
    """The persister, the conversation manager, the agent and, if it remembers anything, its memory, in starting order.
    `memories`: the actors of its memory stores, by name. Tool schemas are built here, once.

    Errors: `Invalid` from a tool whose parameters have no JSON schema.
    """
    if blueprint.prepare is not None:
        await blueprint.prepare()
    blueprint.parts.mark = marker_of(blueprint, keeper)
    if len(blueprint.parts.tools):
        await load_schema_library()
        await blueprint.parts.tools.prepare()
    settings = SessionSettings(
        persister=PersisterSettings(
            session_id=blueprint.agent.session_id,
            agent_id=blueprint.agent.agent_id,
            takeover=blueprint.takeover,
            patience=blueprint.patience,
            busy_by=blueprint.busy_by,
        ),
        agent=replace(blueprint.agent, others_add=_others_add(keeper)),
        calls=blueprint.calls,
    )
    summarize = Summarizer(blueprint.parts, blueprint.agent.agent_id).write
    parts = SessionParts(
        agent=blueprint.parts,
        manager=window_manager(blueprint.manager, blueprint.parts.owner, summarize),
        summarize=summarize,
        keeper=keeper,
        wall=time.time,
        entropy=os.urandom,
        memory=blueprint.remembers,
        memories=memories,
    )
    return member_specs(settings, parts)


def _others_add(keeper: Durable | MemoryJournal) -> bool:
    """Whether programs that know no leases may add messages to the session."""
    return isinstance(keeper, Durable) and isinstance(keeper.store, SharedStore) and keeper.store.others_add


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


@dataclass(slots=True)
class _Asked:
    """How often a model was asked for one summary."""

    often: int = 0


class Summarizer:
    """Writes the summaries of one agent's conversation, with its `aux_model` or else its model.

    They count towards the budgets that count where they are asked for, as used by `agent_id/summary`.
    """

    def __init__(self, parts: AgentParts, agent_id: str) -> None:
        self._parts = parts
        self._who = f"{agent_id}/summary"

    async def write(self, request: SummaryRequest) -> str:
        """The summary. What is too long for the model's window is shortened and tried again; what is too long even so
        is summarised in halves, and these in halves, and the summaries are summarised. At most `REQUESTS_MAX` requests.

        Errors: what the model or the agent raises; `ContextWindowOverflowException` when even the smallest pieces are
        too long, or there are too many; `LimitReached` when a budget is used up.
        """
        return await self._write(request, request.said, BLOCK_CHARS_MAX, _Asked())

    async def _write(
        self, request: SummaryRequest, said: Sequence[Message], lengths: Sequence[int], asked: _Asked
    ) -> str:
        """The summary of these, their blocks cut to each of the lengths in turn until that fits."""
        refused: ContextWindowOverflowException | None = None
        for chars_max in lengths:
            if asked.often >= REQUESTS_MAX:
                raise ContextWindowOverflowException("too long to be summarised", messages=len(request.messages))
            asked.often += 1
            try:
                return await self._ask(request, said, chars_max)
            except ContextWindowOverflowException as error:
                refused = error
        first, second = halves(said)
        if refused is not None and (not first or not second or all(map(is_summary, said))):
            raise refused
        parts = [summarised(await self._write(request, part, lengths[-1:], asked), part) for part in (first, second)]
        return await self._write(request, parts, BLOCK_CHARS_MAX, asked)

    async def _ask(self, request: SummaryRequest, said: Sequence[Message], chars_max: int) -> str:
        prompt = request.prompt(chars_max, said)
        if request.agent is not None:
            return await _ask_agent(request.agent, prompt)
        return await self._ask_model(prompt, request.system_prompt)

    async def _ask_model(self, prompt: str, system_prompt: str) -> str:
        messages: list[Message] = [{"role": "user", "content": [{"text": prompt}]}]
        question = Request(messages=messages, tool_specs=(), system_prompt=system_prompt)
        model = self._parts.aux_model or self._parts.model
        answer = await call_until_answered(model, question, self._parts.retry, self._who)
        if answer.stop_reason in LIMITED:
            raise ModelFailed("the summary was cut off by a token limit", stop_reason=answer.stop_reason)
        return text_of(answer.message)


async def _ask_agent(agent: Any, prompt: str) -> str:
    """A copy is asked, so that summaries are no part of its own conversation, and nothing is printed."""
    if hasattr(agent, "fresh_copy"):
        agent = agent.fresh_copy()
        agent.callback_handler = None
    return str(await agent.invoke_async(prompt))
