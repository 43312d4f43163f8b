"""The agents that tools of one session have started: where they live, and how they go on after a kill.

Where the parent is stored, a subagent is another agent of its session. Its turn has a token that follows from the tool
call, so the same call gets the same turn, in whatever process it is made again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from repertory.actors.call import BUDGETS
from repertory.actors.spawning import SubagentAnswer, turn_name
from repertory.app.agent.session import agent_call, calls_of
from repertory.app.agent.subagent_retention import SubagentRetention
from repertory.app.agent.subagent_spending import PastSpending
from repertory.backends.ports import settings_of
from repertory.core.caller_events import CallerEvents
from repertory.core.interrupts import InterruptException, agent_prefix
from repertory.core.limits import read_limits
from repertory.core.tenants import one_to_drop
from repertory.core.turn import STOPPED_BY_CALLER
from repertory.core.turns.subagents import SHARE, Beginning, UnshownCalls, bounding, budget_of, pool_in, subagent_id
from repertory.errors import InterruptNotFound, Invalid, RepertoryError

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.actors.context import AgentParts, AgentSettings
    from repertory.actors.leases import Durable
    from repertory.actors.spawning import SubagentCall, SubagentsPort
    from repertory.app.agent.session import AgentSessionSpec, CallbackHandler
    from repertory.app.host.session import ActiveSession, SessionHost
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.ports import Tool
    from repertory.core.budget import Budget
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Json, Prompt
    from repertory.core.result import AgentResult
    from repertory.core.stream_events import AgentStreamEvent

WAITING_MAX = 256
"""Subagents without a journal that wait for a person; beyond this the oldest of whoever has most of them is dropped."""
LOST = (
    "The agent did not go on: its turn, which waited for a person, is not there any more, and the answer was not used. "
    "Do not report this as done."
)


class Copyable(Protocol):
    """The members of an `Agent` by which it works as a subagent."""

    name: str
    model: Any
    callback_handler: CallbackHandler | None

    @property
    def agent_id(self) -> str: ...
    @property
    def interrupts(self) -> list[Interrupt]: ...

    def spec(self) -> AgentSessionSpec: ...
    def fresh_copy(self) -> Copyable: ...
    def stream_async(self, prompt: Prompt) -> AsyncGenerator[AgentStreamEvent]: ...


class _Working(Struct, frozen=True):
    """A subagent that works."""

    session: ActiveSession
    subagents: SubagentsPort | None
    """The starter of its own subagents; None where there can be none."""
    ended: anyio.Event


class SubagentStarter(Struct):
    """Starts the subagents of one session."""

    parent: AgentSettings
    parts: AgentParts
    """The parent's."""
    host: SessionHost
    sessions: SessionLocation | None
    """The location where the subagents are stored; None for those that have no journal."""
    keeper: Durable | None
    """The store there; None for those that have no journal."""
    retention: SubagentRetention | None = None
    """The bound on those that have ended; None before the first one."""
    working: dict[str, _Working] = {}
    """The subagents that are stored and work now, by id."""
    spending: PastSpending | None = None
    """The spending that their journals have on record; None before it is asked for."""

    def keeps(self, tool: Tool) -> bool:
        """True if this tool does all of its work in subagents that are stored: it may run again after a kill."""
        return self.sessions is not None and getattr(tool, "works_in_subagents", False) is True

    async def run(self, call: SubagentCall) -> SubagentAnswer:
        """The answer of the subagent. Raises `InterruptException` when it asks a person. Errors: those of its turn,
        `LimitReached`, `Invalid`.
        """
        if not hasattr(type(call.agent), "fresh_copy"):
            raise Invalid("a subagent is an Agent", got=type(call.agent).__name__)
        child = subagent_id(self.parent.agent_id, call.context.idempotency_key, call.label)
        if self.sessions is None:
            return await run_unstored(call, self.parts.waiting_subagents)
        retention = self.retention = self.retention or SubagentRetention(self.parent, self.keeper)
        retention.begun()
        try:
            return await self._run_stored(call, child, self.sessions)
        finally:
            retention.ended()

    async def _run_stored(self, call: SubagentCall, child: str, sessions: SessionLocation) -> SubagentAnswer:
        copy = cast("Copyable", call.agent).fresh_copy()
        spec = self._spec(copy, child, sessions)
        around = await self._around(call)
        session = await self.host.enter(spec)
        working = self.working[child] = _Working(session, spec.parts.subagents, anyio.Event())
        turn = turn_name() if call.pool is None else call.pool[0]
        beginning = Beginning(child, self.parent.agent_id, turn, copy.agent_id, _id_of(copy.model))
        before = BUDGETS.set((*around, UnshownCalls(beginning)))
        try:
            budgets = around if call.budget is None else (*around, call.budget)
            if budgets:
                begun = bool((await session.image()).message_count)
                await self._spending().tell(budgets, child, begun=begun)
            answers = _answers(call)
            given: Prompt = call.prompt
            asked = [one.id for one in copy.interrupts if one.id in answers]
            if asked:
                given = _responses(asked, answers)
            invocation = _invocation(copy, given, call, token=child)
            try:
                result = await _followed(session, copy, invocation, call)
            except InterruptNotFound:  # The answers were stored before a kill.
                result = await _followed(session, copy, replace(invocation, prompt=None), call)
        finally:
            BUDGETS.reset(before)
            self.working.pop(child, None)
            working.ended.set()
            await self.host.leave(spec, ends=True)
        return _unless_asking(result, call, copy)

    async def cancel(self, child: str) -> bool:
        """End the turn of a subagent, or of one below it, and wait for that. False if none of this id works here."""
        found = self.working.get(child)
        if found is None:
            below = [each.subagents for each in self.working.values() if each.subagents is not None]
            return any([await each.cancel(child) for each in below])
        found.session.cancel(STOPPED_BY_CALLER)
        await found.ended.wait()
        return True

    async def _around(self, call: SubagentCall) -> tuple[Budget, ...]:
        """The budgets of the call that the subagent works for."""
        known = bounding(BUDGETS.get())
        if known or call.pool is None:
            return known
        return await self._spending().pool(*call.pool, _id_of(self.parts.model))

    def _spending(self) -> PastSpending:
        if self.spending is None:
            assert self.keeper is not None  # What is stored has a store.
            self.spending = PastSpending(self.parent.session_id, self.parent.agent_id, self.keeper.store)
        return self.spending

    def _spec(self, copy: Copyable, child: str, sessions: SessionLocation) -> AgentSessionSpec:
        own = copy.spec()
        settings = replace(
            own.agent,
            session_id=self.parent.session_id,
            agent_id=child,
            durable=True,
            marks_questions=True,
            # Nobody brings a subagent to life for a result that comes later.
            defers=False,
        )
        return replace(own, agent=settings, sessions=sessions, memory=None, own=False, joins=True, wakes=False)


def _id_of(model: object) -> str:
    return str(settings_of(cast("Any", model)).get("model_id", ""))


async def run_unstored(call: SubagentCall, waiting: dict[str, Any]) -> SubagentAnswer:
    """The answer of a subagent that has no journal. `waiting`: those that wait for a person, the oldest first. Errors:
    as `SubagentStarter.run`.
    """
    key, answers = f"{call.context.idempotency_key}\0{call.label}", _answers(call)
    # By the key of the call, which is the same when the outer turn goes on after the answer.
    agent: Any = waiting.pop(key, None) if answers else None
    given: Prompt = call.prompt
    if agent is not None:
        await agent.ready()
    if answers and (agent is not None or not call.label):
        asked = [] if agent is None else [one.id for one in agent.interrupts if one.id in answers]
        if not asked:
            return SubagentAnswer(None, agent, LOST)
        given = _responses(asked, answers)
    agent = agent or cast("Copyable", call.agent).fresh_copy()
    limits = None if call.limits is None else read_limits(call.limits).within(agent.spec().agent.limits)
    options = {"budget": call.budget, "limits": limits, "invocation_state": call.invocation_state}
    try:
        return await _streamed(agent, given, call, {key: each for key, each in options.items() if each is not None})
    except InterruptException:
        waiting[key] = agent
        if len(waiting) > WAITING_MAX:
            del waiting[one_to_drop(waiting)]
        raise


async def run_own(call: SubagentCall) -> SubagentAnswer:
    """The answer of the agent itself, in its own conversation. Errors: those of its turn."""
    agent, answers = cast("Any", call.agent), _answers(call)
    given: Prompt = call.prompt
    if answers:
        await agent.ready()
        asked = [one.id for one in agent.interrupts if one.id in answers]
        if not asked:
            return SubagentAnswer(None, agent, LOST)
        given = _responses(asked, answers)
    return await _streamed(agent, given, call, {})


async def _streamed(agent: Any, prompt: Prompt, call: SubagentCall, options: Mapping[str, Any]) -> SubagentAnswer:
    async with aclosing(agent.stream_async(prompt, **options)) as events:
        async for event in events:
            if call.context.on_partial is not None:
                await call.context.on_partial(event)
            if "result" in event:
                return _unless_asking(event["result"], call, agent)
    return SubagentAnswer(None, agent, "The agent gave no answer.")


def bounded_call(call: SubagentCall, share: object) -> SubagentCall:
    """The call with the bounds that `CanSpawn.spawn` has put into the input of its tool. Errors: `Invalid`."""
    if not isinstance(share, Mapping):
        return call
    given = cast("Mapping[str, Any]", share)
    # A model may have written it: it lifts no limit.
    limits = read_limits(given.get("limits")).within(read_limits(call.limits))
    pool, shared = None, pool_in({SHARE: given})
    if shared is not None and (budget := budget_of(shared[1])) is not None:
        pool = (shared[0], budget)
    return replace(call, budget=budget_of(given.get("budget")), limits=limits, pool=pool)


def _answers(call: SubagentCall) -> Mapping[str, Json]:
    """The answers of a person to questions of subagents of this call."""
    questions = call.context.questions
    return {} if questions is None else questions.answers_below(agent_prefix(call.context.tool_use["toolUseId"]))


def _responses(asked: list[str], answers: Mapping[str, Json]) -> Prompt:
    blocks = [{"interruptResponse": {"interruptId": each, "response": answers[each]}} for each in asked]
    return cast("Prompt", blocks)


def _unless_asking(result: AgentResult, call: SubagentCall, agent: Any) -> SubagentAnswer:
    """The answer. Raises `InterruptException` if it is a question to a person."""
    if not result.interrupts:
        return SubagentAnswer(result, agent)
    questions = call.context.questions
    if questions is None:
        return SubagentAnswer(None, agent, "The agent asks a person, and nobody can be asked here.")
    raise questions.pass_on(agent_prefix(call.context.tool_use["toolUseId"]), result.interrupts)


def _invocation(copy: Copyable, prompt: Prompt, call: SubagentCall, *, token: str) -> Invocation:
    options: dict[str, Any] = {"idempotency_token": token, "budget": call.budget}
    if call.invocation_state is not None:
        options["invocation_state"] = call.invocation_state
    made = agent_call(copy, prompt, cast("Any", options))
    limits = read_limits(call.limits).within(copy.spec().agent.limits)
    return replace(made, limits=limits, budget_owner=copy.agent_id, outer_ended=call.ended)


async def _followed(session: ActiveSession, copy: Copyable, invocation: Invocation, call: SubagentCall) -> AgentResult:
    """The result of the turn, whose events go to the agent's callback handler and to the stream of the tool."""
    handler, show = calls_of(copy.callback_handler, invocation.invocation_state, copy), call.context.on_partial
    if handler is None and show is None:
        return await session.invoke(invocation)
    # The turn waits for the reader of each event, so that what a handler prints keeps step with the model.
    force_setattr(invocation, "in_step", True)
    events, failed = CallerEvents(invocation.invocation_state), None
    async with session.stream(invocation) as turn:
        try:
            async for event in turn:
                seen = events.of(event)
                for each in (event,) if seen is None else seen:
                    if handler is not None:
                        await handler.tell(each)
                    if show is not None:
                        await show(each)
                if "result" in event:
                    return cast("AgentResult", event["result"])
        except RepertoryError as error:
            failed = error
        for each in () if failed is None else events.before(failed):
            if handler is not None:
                await handler.tell(each)
            if show is not None:
                await show(each)
    raise failed or AssertionError("a stream ends with its result or an error")
