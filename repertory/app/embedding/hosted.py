"""The objects that users call in a runtime: `AgentSpec`, the agents that are made of it, and their sessions."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, cast
from weakref import WeakValueDictionary

from msgspec.structs import replace as replace_fields

from repertory.actors.call import ChangeTimers, CompleteTool, Invocation, callers_call
from repertory.actors.tool_registry import ToolRegistry
from repertory.actors.turn_log import followed_call
from repertory.app.agent import extensions
from repertory.app.agent.agent import Agent
from repertory.app.agent.conversation_managers import another_manager, chosen_manager
from repertory.app.agent.printer import TextOfTurn
from repertory.app.agent.session import given_manager, output_schema_of, read_call, with_memory
from repertory.app.agent.tools import as_tools, check_forgetful
from repertory.app.embedding.call_queue import (
    PostedTurn,
    QueuedCallInfo,
    find_posted,
    given_up,
    queue_at,
    queue_call,
    way_of_posted,
)
from repertory.app.embedding.turn_status import status_of_active, status_of_stored
from repertory.app.host.call_forms import queued_call, read_queued_call
from repertory.app.host.model_choice import default_model
from repertory.app.host.plugins import Plugin, check_plugins
from repertory.app.sessions.sessions import PlacedSession
from repertory.app.tracebacks import short_errors
from repertory.core.callers import check_named_by_callers, check_sources
from repertory.core.ids import check_id
from repertory.core.messages import copy_message
from repertory.core.retry import DEFAULT_RETRY
from repertory.core.state import agent_state
from repertory.core.tenants import stored_id
from repertory.core.tools import late_result
from repertory.core.turns.background_tasks import CUT_TEXT
from repertory.core.turns.subagents import RETAINED
from repertory.core.turns.turn_start import NO_SUCH_TURN, answered_ids, asks_with, read_prompt, way_of_call
from repertory.core.turns.turn_status import AskTurn, pending_turn
from repertory.errors import Gone, InterruptNotFound, Invalid, NotFound, SessionBusy, Unavailable

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.actors.context import Durability, ToolExecution
    from repertory.actors.hooks.events import HookCallback, HookProvider
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.agent.session import CallOptions, PlainCallOptions
    from repertory.app.agent.tools import AnyTool
    from repertory.app.host.call_forms import SessionQuestion
    from repertory.app.host.call_router import CallRouter
    from repertory.app.host.host import Host, SessionUse
    from repertory.app.host.plugins import Intervention
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.peer_ports import QueuedCall
    from repertory.backends.ports import Model, OutputSchema
    from repertory.core.callers import CallerRules
    from repertory.core.deferral import DeferredTool
    from repertory.core.interrupts import Interrupt
    from repertory.core.limits import Limits
    from repertory.core.messages import Message, Prompt, SystemPrompt, ToolResult, ToolStatus
    from repertory.core.pending_work import PendingWork
    from repertory.core.result import AgentResult, Output, TurnEvent
    from repertory.core.retry import RetryStrategy
    from repertory.core.run_results import MultiAgentResult
    from repertory.core.stream_events import AgentStreamEvent
    from repertory.core.timers import Timer
    from repertory.core.turns.background_tasks import BackgroundTasksConfig
    from repertory.core.turns.turn_start import CallAsks, KnownTurn, UnknownOutcome
    from repertory.core.turns.turn_status import PendingTurn, TurnStatus

_log = logging.getLogger("repertory.app")

RunResult = TypeVar("RunResult", bound="MultiAgentResult")
"""The type of a result of a graph or swarm."""
MemoryOf: TypeAlias = "Callable[[str], MemoryManager]"
"""Gives the memory of the session of this id, with the same tools for all. A conversation that is unsaved has the id of
a session of its tenant that there is none of; empty without a tenant."""


@short_errors
class HostedAgent:
    """One agent of a runtime, for any number of sessions."""

    def __init__(
        self, host: Host, spec: AgentSpec, sessions: SessionLocation | None, cluster: Callable[[], CallRouter | None]
    ) -> None:
        """
        Args:
            host: The host that runs its actors.
            sessions: The place of its sessions; None for memory.
            cluster: The peers of the runtime, when it has joined them.
        """
        self._host = host
        self._peers = cluster
        if spec.context_manager is not None:
            manager, more = extensions.made_by.managed_context(
                spec.context_manager, spec.conversation_manager, spec.plugins
            )
            spec = replace(spec, conversation_manager=manager, plugins=more, context_manager=None)
        tools, plugins = as_tools(spec.tools), check_plugins(spec.plugins, Plugin)
        by_session = spec.memory_manager if callable(spec.memory_manager) else None
        memory = given_manager(spec.memory_manager if by_session is None else by_session(""))
        added = [tool for plugin in with_memory(plugins, memory) for tool in plugin.tools]
        with_plugins = ToolRegistry([*tools, *added])
        check_forgetful(with_plugins)
        self._sessions = sessions
        self._manager = None if spec.conversation_manager is None else chosen_manager(spec.conversation_manager)
        """The manager to copy, or to ask its factory, for each session."""
        self._memory_of: MemoryOf | None = None
        # Weak: an agent object for each session that somebody uses, and none for all the others.
        self._agents: WeakValueDictionary[str, Agent] = WeakValueDictionary()
        # A bad spec is refused here; the agent built for that needs no plugins.
        self._spec = replace(spec, model=default_model(spec.model), tools=with_plugins, plugins=(), memory_manager=None)
        self._agent("unsaved", takeover=False)
        self._spec = replace(self._spec, tools=ToolRegistry(tools), plugins=plugins, memory_manager=memory)
        self._memory_of = by_session

    def __repr__(self) -> str:
        return repr(self._spec).replace("AgentSpec", "HostedAgent", 1)

    @property
    def spec(self) -> AgentSpec:
        """The spec of which its agents are made."""
        return self._spec

    def session(self, session_id: str, *, takeover: bool = False) -> HostedSession:
        """One conversation with this agent. The same id is the same conversation, also after a restart.

        Args:
            session_id: The id of the session.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
        """
        agent = self._agents.get(session_id)
        if agent is None or takeover:
            agent = self._agents[session_id] = self._agent(check_id(session_id, "session_id"), takeover=takeover)
        return HostedSession(self._host, agent, self._peers)

    if not TYPE_CHECKING:  # Type checkers know what it has.

        def __getattr__(self, name: str) -> object:
            known = f": write .session('ID').{name}" if hasattr(HostedSession, name) else ""
            raise AttributeError(f"an agent of a runtime has no {name!r}{known}", name=name, obj=self)

    def unsaved(self, tenant: str = "") -> HostedSession:
        """A conversation that the returned object alone has: nothing of it is stored, and nobody else finds it.

        Args:
            tenant: The tenant whose it is: its `session_id` is one of that tenant, for memory, limits, hooks and tools.
        """
        return HostedSession(self._host, self._agent(None, takeover=False, tenant=tenant), lambda: None)

    def forget_sessions(self) -> None:
        """The runtime begins anew: what is in memory alone has ended. For the runtime."""
        self._agents.clear()

    def _agent(self, session_id: str | None, *, takeover: bool, tenant: str = "") -> Agent:
        spec, manager = self._spec, self._manager
        same = {each.name: getattr(spec, each.name) for each in fields(AgentSpec)}
        own: dict[str, Any] = {
            "agent_id": spec.name,
            "callback_handler": None,
            "conversation_manager": spec.conversation_manager if manager is None else another_manager(manager),
            "state": agent_state(spec.state).get(),
        }
        if session_id is not None:
            own["session_manager"] = PlacedSession(session_id, self._sessions, takeover, wakes=True)
        elif tenant:
            session_id = stored_id(tenant, f"unsaved-{token_hex(8)}")
            own["session_manager"] = PlacedSession(session_id, None, unsaved=True)
        if self._memory_of is not None:
            own["memory_manager"] = self._memory_of(session_id or "")
        return Agent(**{**same, **own})


@short_errors
class HostedSession:
    """One conversation in a runtime. Cheap to create, any number of times.

    Args:
        host: The host that runs its actors.
        cluster: The peers of the runtime, when it has joined them.
    """

    def __init__(self, host: Host, agent: Agent, cluster: Callable[[], CallRouter | None]) -> None:
        self._host = host
        self._agent = agent
        self._cluster = cluster
        self._caller: CallerRules | None = None
        self.spec = agent.spec()
        """The instructions by which the runtime starts the session's actors."""

    def __repr__(self) -> str:
        """The ids, on one line."""
        from repertory.core.notebook import short_repr  # loaded when used

        return short_repr(self, {"session_id": self._agent.session_id, "agent": self._agent.agent_id})

    def for_caller(self, rules: CallerRules) -> HostedSession:
        """The conversation for somebody outside of the program: the prompts have only what the rules allow, and
        limits of a call lift none of the agent's, wherever the call is made.

        Args:
            rules: The rules for prompts.
        """
        session = copy(self)
        session._caller = rules
        return session

    @property
    def agent(self) -> Agent:
        """The agent of this conversation, for its tools and hooks."""
        return self._agent

    @property
    def schema(self) -> OutputSchema | None:
        """The structured output of the agent, for the runtime."""
        return output_schema_of(self._agent.structured_output_model)

    async def invoke(
        self,
        prompt: Prompt = None,
        *,
        structured_output_model: type[Output] | None = None,
        **options: Unpack[PlainCallOptions],
    ) -> AgentResult[Output]:
        """Run a turn; see `Agent.invoke_async`. In a runtime with peers it runs where the session is.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished; with an `idempotency_token`, with the turn of that token, and waits for it while
                its call is posted.
            structured_output_model: The type of the answer, for this call; see `CallOptions`.
            options: The other options of `CallOptions`.

        Raises:
            NotFound: For a token of which no turn is known, without a prompt. Say its prompt with it.
        """
        invocation = self._read_call(prompt, options, structured_output_model)
        if (cluster := self._cluster()) is not None:
            invocation = await self._named(invocation)
        posted: PostedTurn | None = None
        while True:
            try:
                if cluster is not None:
                    return await cluster.invoke(self, invocation)
                async with self._use(invocation) as session:
                    return await session.invoke(invocation)
            except NotFound as error:
                posted = posted or PostedTurn(self.posted, invocation)
                await posted.pause(error)

    async def stream(
        self,
        prompt: Prompt = None,
        *,
        token: str | None = None,
        detach: bool = False,
        after: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[AgentStreamEvent]:
        """Run a turn and yield its events; see `Agent.stream_async`. Leaving it cancels the turn.

        `token` names the turn, as `idempotency_token` does, for a reader that may lose its connection. Each event then
        has an `"offset"`, from which `attach` reads on. A second call with the token reads the same turn from its
        beginning, or from the offset `after` on. A message of the answer is told when it is stored. With `detach=True`
        the turn goes on when its reader has left; a drain waits for it as for any other. Both need a token.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            token: The idempotency token of the turn.
            detach: True lets the turn go on when its reader leaves. It needs a token.
            after: The offset of the last event that the reader has; None for all events.
            options: The options of `CallOptions`.

        Raises:
            Invalid: For a token that is no id, and for what is no offset. Correct the argument.
        """
        if token is not None:
            options["idempotency_token"] = token
        invocation = self._read_call(prompt, options)
        if token is None and (detach or after is not None):
            raise Invalid("a turn that is to outlive its reader needs a token, by which it is found again")
        if token is not None:
            invocation = followed_call(invocation, after=after, detach=detach)
        if self._cluster() is not None:
            invocation = await self._named(invocation)
        async with aclosing(self._events(invocation)) as events:
            async for event in events:
                yield cast("AgentStreamEvent", event)

    async def stream_text(self, prompt: Prompt = None, **options: Unpack[CallOptions]) -> AsyncGenerator[str]:
        """Run a turn and yield its text, piece by piece; see `Agent.stream_text`. Leaving it cancels the turn.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            options: The options of `CallOptions`.
        """
        text = TextOfTurn()
        async with aclosing(self.stream(prompt, **options)) as events:
            async for event in events:
                if piece := text.told(event):
                    yield piece

    def _read_call(
        self, prompt: Prompt, options: CallOptions | PlainCallOptions, output: type[Any] | None = None
    ) -> Invocation:
        """Errors: `Invalid` and `TooLarge`, before a session is opened, for what a caller may not say."""
        invocation = read_call(prompt, options, output or self._agent.structured_output_model)
        if self._caller is not None:
            invocation = callers_call(invocation, self._caller, self.spec.agent.limits)
        if invocation.deliver_to:  # After the rules for callers: those learn nothing of what there is besides.
            self._check_destinations(invocation.deliver_to)
        return invocation

    def _check_destinations(self, names: Sequence[str]) -> None:
        from repertory.actors.delivery_events import check_known  # loaded when used

        check_known(self._host.destinations, names)

    async def attach(self, token: str, *, after: str | None = None) -> AsyncGenerator[AgentStreamEvent]:
        """Read a turn that was begun with this token, here or in another process, also before a restart: its events
        after the offset `after`, of an event that the reader has; None for all. Leaving it cancels the turn only where
        that was begun without `detach`, its own caller has gone, and nobody else reads it.

        While the turn runs, the pieces of the answer come as they are told. Once a message is stored it stands for its
        pieces, so a reader gets the message alone where it has missed both. A turn that was cut short goes on. A
        `model_retry` says that the pieces since the last message are void: they were told by a process that was killed.
        The last event is the result. A turn whose call is posted is waited for. Errors: those of the turn.

        Args:
            token: The idempotency token of the turn.
            after: The offset of the last event that the reader has; None for all events.

        Raises:
            NotFound: When no turn of this token is known, or another one has begun after it was cut short. Say its
                prompt again with the token: `stream(prompt, token=...)`.
            Invalid: For what is no offset. Correct the argument.
        """
        async with aclosing(self.follow(token, after, tells_wait=False)) as events:
            async for event in events:
                yield cast("AgentStreamEvent", event)

    def follow(self, token: str, after: str | None = None, *, tells_wait: bool = True) -> AsyncGenerator[TurnEvent]:
        """The events of `attach`. For the HTTP service.

        Args:
            token: The idempotency token of the turn.
            after: The offset of the last event that the reader has; None for all events.
            tells_wait: True tells `accepted` once while the call is posted.
        """
        invocation = read_call(None, {"idempotency_token": token}, self._agent.structured_output_model)
        invocation = followed_call(invocation, after=after, begins=False, detach=True)
        return self._events(invocation, tells_wait=tells_wait)

    async def open_token(self) -> str | None:
        """The token of the latest turn, if it has no answer; None for a turn without a token. For the runtime."""
        newest = await self.told()
        return None if newest is None or newest.state == "answered" else newest.token

    async def _named(self, invocation: Invocation) -> Invocation:
        """The call; in a runtime with peers, one that goes on with a turn has its token, so that it is found again."""
        if invocation.idempotency_token is not None:
            return invocation
        if asks_with(read_prompt(invocation.prompt, self.spec.agent.limits.sizes.prompt_bytes)) == "prompt":
            return invocation
        return replace_fields(invocation, idempotency_token=await self.open_token())

    def _events(self, invocation: Invocation, *, tells_wait: bool = False) -> AsyncGenerator[TurnEvent]:
        return PostedTurn(self.posted, invocation).events(partial(self._events_now, invocation), tells_wait=tells_wait)

    async def _events_now(self, invocation: Invocation) -> AsyncGenerator[TurnEvent]:
        following = invocation.following
        if following is not None and not following.begins and not await self.begun():
            token = invocation.idempotency_token
            raise NotFound(NO_SUCH_TURN, agent=self._agent.agent_id, token=token)
        if (cluster := self._cluster()) is not None:
            async with aclosing(cluster.stream(self, invocation)) as events:
                async for event in events:
                    yield event
            return
        async with self._use(invocation) as session, session.stream(invocation) as events:
            async for event in events:
                yield event

    async def post(self, prompt: Prompt, *, token: str | None = None, **options: Unpack[CallOptions]) -> str:
        """Have a turn run without waiting for it: the call is kept beside the session until it is done, whatever ends
        meanwhile. Returns its token once it is stored; `invoke(idempotency_token=token)` gives the answer later.

        Calls of a session are made in order. The same token is not kept twice. A call that fails for good is parked,
        and `repertory cluster` lists it. Errors: those of the store, with nothing kept.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            token: The idempotency token of the turn.
            options: The options of `CallOptions`.

        Raises:
            Invalid: For sessions outside SQLite and PostgreSQL, and for what JSON cannot hold. Correct the argument.
            NotFound: For a token that no turn has, without a prompt. Say the prompt again with the token.
            Failed: For a posted call that was given up, without a prompt. Begin it again by its token.
        """
        if token is not None:
            options["idempotency_token"] = token
        invocation = self._read_call(prompt, options)
        request = read_prompt(invocation.prompt, self.spec.agent.limits.sizes.prompt_bytes)
        if token is not None and asks_with(request) != "prompt":
            await self._check_known(token, asks_with(request), answered_ids(request))
        ids = self.spec.agent
        boxed = queued_call(invocation, self.schema, ids.session_id, ids.agent_id)
        return await queue_call(self._host, self.spec.sessions, boxed)

    async def _check_known(self, token: str, asks: CallAsks, ids: Collection[str]) -> None:
        """Return if a call that says nothing new has a turn to go on with. Errors: those that it would meet."""
        status = await self.told(token)
        if status is None:
            way, posted = way_of_posted(token, await self.posted(token), asks)
            if way == "fail" and posted is not None:
                raise given_up(posted)
        else:
            known: KnownTurn = "open" if status.newest else "left behind"
            known = "answered" if status.state == "answered" else "under way" if status.state == "runs" else known
            way, _ = way_of_call(token, known, asks)
        if way == "refuse":
            raise NotFound(NO_SUCH_TURN, agent=self._agent.agent_id, token=token)
        if way == "go on" and ids:
            turn = status or await self.told()
            waiting = [] if turn is None else [one.id for one in turn.interrupts]
            missing = sorted({*ids} - {*waiting})
            # Of a turn that was cut short, an outcome may be unknown, for which nobody is asked yet.
            over = await self.pending() is None if turn is None else turn.state in ("asks", "answered")
            if missing and over:
                raise InterruptNotFound("no such interrupt is waiting", interrupt=missing[0], waiting=waiting)

    async def posted(self, token: str) -> QueuedCallInfo | None:
        """The posted call of this token, while it is not done; None if there is none, or not any more. Errors: those of
        the store.

        Args:
            token: The idempotency token of the turn.
        """
        ids = self.spec.agent
        with _while_open(self._host):
            return await find_posted(self._host, self.spec.sessions, ids.session_id, ids.agent_id, token)

    async def keeps_calls(self) -> bool:
        """True if `post` takes calls, as for sessions in SQLite or PostgreSQL."""
        return await queue_at(self._host, self.spec.sessions) is not None

    async def make(self, posted: QueuedCall) -> None:
        """Run the turn of a posted call, or set the timer that was posted. For the runtime. Errors: those of it.

        Args:
            posted: The call that was posted.
        """
        invocation = read_queued_call(posted, self.schema)
        if not isinstance(invocation, Invocation):
            await self._ask(invocation)
            return
        if (cluster := self._cluster()) is not None:
            cluster.check_for(posted)
            await cluster.invoke(self, invocation)
            return
        async with self._use(invocation) as session:
            await session.invoke(invocation)

    async def wake(self, work: PendingWork) -> None:
        """Do the pending work of the session, unless another process has it. For the runtime. Errors: those of a turn.

        Args:
            work: The pending work of the session.
        """
        go_on = read_call(None, {}, self._agent.structured_output_model)
        spec = self.spec.waiting(reject=True, deadline=math.inf)
        try:
            async with self._host.session(spec) as session:
                await session.wake(work.why, go_on)
        except (SessionBusy, Gone):
            return
        finally:
            await self._host.let_go(spec)

    async def begun(self) -> bool:
        """True if the conversation has begun, here or elsewhere; asking this does not begin it. Errors: those of its
        store.
        """
        location, ids = self.spec.sessions, self.spec.agent
        if location is None or self.active:
            return self._host.knows(self.spec)
        with _while_open(self._host):
            found = await (await self._host.store_of(location)).sessions(ids.session_id)
        if found and ids.agent_id in found[0].agents:
            return True
        cluster = self._cluster()
        return cluster is not None and await cluster.has_owner(ids.session_id)

    @property
    def active(self) -> bool:
        """True if the session's actors run in this process."""
        return self._host.holds(self.spec)

    async def let_go(self) -> None:
        """Have this process give the session up, if nobody uses it, so that an operation on what is stored owns it."""
        await self._host.let_go(self.spec)

    def _use(self, invocation: Invocation) -> SessionUse:
        reject = (invocation.busy or self.spec.calls.busy) == "reject"
        spec = self.spec.waiting(reject=reject, deadline=invocation.deadline)
        return self._host.session(spec, invocation.deadline)

    def is_of(self, host: Host) -> bool:
        """True if it is hosted there. For the runtime.

        Args:
            host: The host to compare with.
        """
        return self._host is host

    async def timers(self) -> list[Timer]:
        """The timers of the conversation, the next one first; see `Runtime.schedule`."""
        return cast("list[Timer]", await self._ask("timers"))

    async def cancel_timer(self, id: str) -> bool:
        """Cancel a timer; returns when that is stored. False if there is none of that id: it may have begun its turn,
        which goes on. Errors: those of opening the session and of its store.

        Args:
            id: The timer's id.
        """
        return await self.change_timers(ChangeTimers(timer_id=check_id(id, "timer id")))

    async def change_timers(self, change: ChangeTimers) -> bool:
        """Set or cancel a timer. For the runtime.

        Args:
            change: The timers to set and to cancel.

        Raises:
            Invalid: For destinations that there are not, or that callers may not name. Correct the argument.
        """
        if change.deliver_to:
            if self._caller is not None:
                check_named_by_callers(change.deliver_to, self._caller)
            self._check_destinations(change.deliver_to)
        return cast("bool", await self._ask(change))

    async def deferred(self) -> list[DeferredTool]:
        """The tools of the conversation that wait for results which come later; see `ToolContext.defer`."""
        return cast("list[DeferredTool]", await self._ask("deferred"))

    async def complete_tool(
        self, id: str, result: object, *, status: ToolStatus = "success", start_turn: bool = True
    ) -> bool:
        """Give the result of a tool that has deferred; returns when it is stored. A turn then tells it to the model,
        even if this process ends before; it waits for the turn that runs and for a person who is asked, or joins the
        turn with `busy="steer"`.

        `start_turn=False`: no turn begins, and the next one tells it. False if the tool has a result already, which
        counts: also when an earlier try of this call has given it. Errors: those of opening the session and of its
        store. Cancelled, the result may be given.

        Args:
            id: The id that `tool_context.defer` gave.
            result: The result, as a tool returns it.
            status: `success` or `error`.
            start_turn: False leaves the result to the next turn.

        Raises:
            Gone: When nothing waits under this id, or no longer. Drop the result.
            Invalid: For a result that is not JSON, or a bad id. Correct the argument.
            TooLarge: For more than `limits["result_bytes"]`. Give a smaller value, or raise the bound.
        """
        limits = self.spec.agent.limits.sizes
        wanted = late_result(result, status, limits.result_bytes)
        if self._caller is not None:
            check_sources(wanted["content"], self._caller, "result")
        return cast("bool", await self._ask(CompleteTool(id=id, result=wanted, starts=start_turn)))

    async def cancel_tool(self, id: str) -> bool:
        """Cut short a tool that runs in the background, such as a detached subagent, or give up waiting for one that
        has deferred; returns when that is stored. The ids are those of `deferred()`. Or end the turn of a subagent for
        which a tool waits, by the id that `tool_context.agent_id` is in its tools. The tool has a result with the stop
        reason `cancelled`; the model that has called the agent has an error. If the process is killed before the tool
        has ended, the subagent may go on.

        The tool is cancelled, its compensations run, and the turn of a subagent ends. The result says that it was
        cancelled; the next turn tells it, and none begins for it. False if the tool has a result already, which counts.
        Errors: as `complete_tool`. Cancelled, the tool may be cut short.

        Args:
            id: The id of the task, of the deferred result, or of the subagent.

        Raises:
            Gone: When nothing waits under this id, or no longer. There is nothing to cancel.
        """
        result: ToolResult = {"toolUseId": "", "status": "error", "content": [{"text": CUT_TEXT}]}
        return cast("bool", await self._ask(CompleteTool(id=id, result=result, starts=False, cancels=True)))

    async def cancel(self) -> None:
        """Cut the running turn short, if one runs."""
        await self._ask("cancel")

    async def messages(self) -> list[Message]:
        """A copy of the messages that the model sees, oldest first."""
        return cast("list[Message]", await self._ask("messages"))

    async def interrupts(self) -> list[Interrupt]:
        """The questions to a person that have no answer; see `Agent.interrupts`."""
        return cast("list[Interrupt]", await self._ask("interrupts"))

    async def pending(self) -> PendingTurn | None:
        """The unfinished turn of the conversation, and the reason for it; None for nothing."""
        return cast("PendingTurn | None", await self._ask("pending"))

    async def history(self) -> list[Message]:
        """A copy of all messages of the conversation, oldest first; see `Agent.history`."""
        return cast("list[Message]", await self._ask("history"))

    async def told(self, token: str | None = None, *, cancel: bool = False, stored: bool = False) -> TurnStatus | None:
        """The status of the turn of this token, which does not go on by that; None when no such turn is known, or not
        any more (see `docs/design/turn.md` for how long). Without a token: the newest one that has one.

        A session that is not active here is read from its store. Errors: those of its store.

        Args:
            token: The turn's token; None for the latest turn.
            cancel: Cut it short, if it is the turn that runs; it is told as it was before.
            stored: Return when what is told is durable.
        """
        asked = AskTurn(token, cancel, stored)
        if self.spec.sessions is None and not self._host.knows(self.spec):
            return None
        if self.spec.sessions is None or self._host.holds(self.spec):
            return cast("TurnStatus | None", await self.read_here(asked))
        if cancel and self._cluster() is not None:
            return cast("TurnStatus | None", await self._ask(asked))
        with _while_open(self._host):
            return await status_of_stored(self._host, self.spec, asked)

    async def _ask(self, what: SessionQuestion) -> object:
        cluster = self._cluster()
        return await (self.read_here(what) if cluster is None else cluster.ask(self, what))

    async def read_here(self, what: SessionQuestion) -> object:
        """The answer to a question of another process about the session, for the runtime.

        Args:
            what: The question about the session.
        """
        spec = self.spec if self._cluster() is None else self.spec.waiting(reject=True, deadline=math.inf)
        async with self._host.session(spec) as session:
            match what:
                case "messages":
                    return [copy_message(message) for message in session.messages()]
                case "interrupts":
                    return list(session.read_model.pending_tools.waiting_in(spec.agent.session_id))
                case "pending":
                    read_model = session.read_model
                    pending, deferred = read_model.pending_tools, read_model.now.deferred
                    ids, runs, behind = spec.agent, read_model.in_a_turn, session.slot.waits
                    return pending_turn(
                        pending,
                        deferred,
                        session_id=ids.session_id,
                        runs=runs,
                        behind=behind,
                        untold=read_model.now.untold,
                    )
                case "deferred":
                    return list(session.read_model.now.deferred.values())
                case "history":
                    from repertory.app.host.session import whole_history  # loaded when used

                    return await whole_history(session, spec)
                case "cancel":
                    return session.cancel()
                case "timers":
                    timers = (await session.image()).timers.values()
                    return sorted(timers, key=lambda timer: (timer.at, timer.id))
                case CompleteTool():
                    return await session.complete_tool(what)
                case AskTurn():
                    return await status_of_active(self._host, session, spec, what)
                case _:
                    return await session.change_timers(what)


@contextmanager
def _while_open(host: Host) -> Generator[None]:
    """Stores of a runtime that has ended meanwhile are closed, which is not the caller's doing. Errors: `Unavailable`
    then; `Invalid` in another event loop than the runtime's.
    """
    host.check_loop()
    try:
        yield
    except Invalid as error:
        if not host.refusing:
            raise
        raise Unavailable(host.refusing) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """An agent for any number of sessions. The fields have the meaning of `Agent`'s arguments.

    Each session has its own messages, state, system prompt and conversation manager: copies of those here that provably
    share nothing, or a factory's (`conversation_manager=lambda: Mine(...)`). Model, tools, hooks, plugins,
    interventions, memory manager and retry strategy are shared by all sessions, so they store data of a conversation
    only under its agent (`event.agent`, `context.agent`) or its session. `Runtime.agent` refuses, with `Invalid`,
    conversation managers that cannot be copied, and agents as tools with `preserve_context=True`.

    Args:
        model: The model; an id stands for a Bedrock model.
        tools: Functions decorated with `@tool`, and other tools.
        system_prompt: A text or content blocks; None for none.
        conversation_manager: Decides what the model is shown; None for a sliding window.
        messages: The start of each new conversation.
        state: The values with which a new session begins.
        durability: The waits of a turn for the store: `pipelined`, `strict` or `relaxed`.
        busy: The conduct of a call while a turn runs: `queue`, `reject`, `interrupt` or `steer`.
        unknown_tool_outcome: The fate of a tool, or of a step, whose end nobody knows: `ask`, `retry` or `fail`.
        description: The agent's purpose.
        hooks: Hook providers or single callbacks.
        plugins: Plugins, in the order in which they are set up.
        interventions: Policies that decide about events.
        context_manager: `auto` moves large results and summarizes; False does nothing.
        structured_output_model: The type of every answer.
        aux_model: A cheaper model for side calls; None for `model`.
        retry_strategy: The rule for repeating a failed model call; None never repeats it.
        limits: Bounds of each call; see `Limits`.
        enabled_tools: The names of the tools that the model sees; None for all.
        tool_execution: `concurrent` or `sequential`.
        trace_attributes: Further attributes of all spans.
        background_tasks: The tools that run in the background; see `Agent`.
        retain_subagents: The number of subagents that stay in a session when they have ended; None for all.
    """

    name: str = "default"
    """The agent's id within each session."""
    model: Model | str | None = None
    tools: Sequence[AnyTool] = ()
    system_prompt: SystemPrompt = None
    conversation_manager: ManagerChoice = None
    messages: Sequence[Message] = ()
    state: Mapping[str, object] = field(default_factory=dict[str, object])
    durability: Durability = "pipelined"
    busy: Busy = "queue"
    unknown_tool_outcome: UnknownOutcome = "ask"
    description: str | None = None
    hooks: Sequence[HookProvider | HookCallback] = ()
    plugins: Sequence[Plugin] = ()
    interventions: Sequence[Intervention] = ()
    context_manager: Literal["auto", False] | None = None
    memory_manager: MemoryManager | Mapping[str, object] | MemoryOf | None = None
    """The memory manager; None for the runtime's. A function of the session id gives each tenant its own."""
    structured_output_model: type[Any] | None = None
    aux_model: Model | str | None = None
    retry_strategy: RetryStrategy | None = DEFAULT_RETRY
    limits: Limits | None = None
    enabled_tools: Sequence[str] | None = None
    tool_execution: ToolExecution = "concurrent"
    trace_attributes: Mapping[str, Any] | None = None
    background_tasks: bool | BackgroundTasksConfig | None = None
    retain_subagents: int | None = RETAINED

    def __repr__(self) -> str:
        """Names and counts on one line; no prompts, messages or state."""
        from repertory.app.agent.shown_agents import model_named  # loaded when used
        from repertory.core.notebook import short_repr

        tools = list(self.tools) if isinstance(cast("object", self.tools), Collection) else None
        fields = {"name": self.name, "model": model_named(self.model), "tools": None if tools is None else len(tools)}
        return short_repr(self, fields)

    def __post_init__(self) -> None:
        """Errors: `Invalid` (a ValueError) for a name that is not an id."""
        check_id(self.name, "name")
