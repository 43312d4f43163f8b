"""The facade `Agent`: one agent, called from sync code, from async code, or kept open around many calls.

It decides nothing about turns. It chooses the components, brings the session's actors to life for as long as a call (or
`async with`) lasts, and passes on what was said.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from anyio.lowlevel import current_token

from repertory.actors.agent import CallSettings
from repertory.actors.call import Busy, Invocation
from repertory.actors.mirror import Mirror
from repertory.actors.persister import MemoryJournal
from repertory.actors.registry import ToolRegistry
from repertory.actors.turn_driver import AgentParts, AgentSettings, Durability
from repertory.app.bedrock import default_model
from repertory.app.blueprint import Blueprint
from repertory.app.event_loop import inside_event_loop
from repertory.app.printing import print_events
from repertory.app.seat import hosted
from repertory.core.ids import check_id
from repertory.core.pairing import check_message, repair
from repertory.core.state import AgentState
from repertory.core.window.sliding import SlidingWindowConversationManager
from repertory.errors import Invalid, NotReady

if TYPE_CHECKING:
    from repertory.app.active_session import ActiveSession
    from repertory.app.blocking import BlockingHost
    from repertory.app.sessions import SQLiteSessionManager
    from repertory.backends.ports import Model
    from repertory.core.events import TurnEvent
    from repertory.core.messages import Message, Prompt
    from repertory.core.opening import UnknownOutcome
    from repertory.core.result import AgentResult
    from repertory.core.window.plan import WindowManager

CallbackHandler = Callable[..., object]


def _blocking() -> BlockingHost:
    """The event loop of sync code, loaded by the first sync call."""
    from repertory.app.blocking import blocking_host

    return blocking_host()


class CallOptions(TypedDict, total=False):
    """What every form of a call takes beside the prompt."""

    invocation_state: Mapping[str, Any] | None
    """Values for the tools of this call, as `ToolContext.invocation_state`. Not stored."""
    busy: Busy | None
    """What to do when a turn runs already; None means what the agent was built with."""


class Agent:
    """One agent and its conversation.

    `agent("Hello!")` from sync code, `await agent.invoke_async("Hello!")` from async code (asyncio or trio), and
    `async for event in agent.stream_async("Hello!")` to see it happen. A call returns when its turn is over and
    everything said is durable. Calls that meet queue up unless `busy` says otherwise.

    `model`: a `Model`, the id of a Bedrock model, or None for Bedrock's default. `tools`: functions decorated with
    `@tool`, or anything that is a `Tool`. `session_manager`: where the conversation is kept; without one it lives as
    long as this object. `messages`: what a new conversation starts with; a stored one goes on as it was stored.
    `callback_handler`: called with each event's entries as keywords; prints by default, None is silent. `durability`,
    `busy`, `unknown_tool_outcome`: see `AgentSettings`, `Busy` and `UnknownOutcome`.

    Opening: outside an event loop a session is restored at once, so `messages` is right after the constructor. Inside
    one the constructor does no I/O; `await agent.ready()`, `async with agent` and every call open the session, and
    `messages` before that raises `NotReady`.

    Errors: `Invalid` (a ValueError) for arguments that make no sense, `TypeError` for ones that nobody knows; from
    calls what `repertory.errors` draws.
    """

    def __init__(
        self,
        model: Model | str | None = None,
        messages: Sequence[Message] | None = None,
        tools: Sequence[object] | None = None,
        system_prompt: str | None = None,
        callback_handler: CallbackHandler | None = print_events,
        conversation_manager: WindowManager | None = None,
        *,
        agent_id: str = "default",
        name: str | None = None,
        description: str | None = None,
        state: AgentState | Mapping[str, object] | None = None,
        session_manager: SQLiteSessionManager | None = None,
        durability: Durability = "pipelined",
        busy: Busy = "queue",
        unknown_tool_outcome: UnknownOutcome = "ask",
    ) -> None:
        self.agent_id = check_id(agent_id or "default", "agent_id")
        self.name = name or "Repertory Agent"
        self.description = description
        self.callback_handler = callback_handler
        self.conversation_manager = conversation_manager or SlidingWindowConversationManager()
        self.session_manager = session_manager
        self._state = state if isinstance(state, AgentState) else AgentState(_checked_state(state))
        self.model = default_model(model)
        self.system_prompt = system_prompt
        self._mirror = Mirror()
        self._initial = tuple(repair([check_message(message) for message in messages or ()]))
        self._tools = ToolRegistry(tools or ())
        self._durability = _one_of("durability", durability, ("pipelined", "strict", "relaxed"))
        self._busy = _one_of("busy", busy, ("queue", "reject", "interrupt", "steer"))
        self._unknown = _one_of("unknown_tool_outcome", unknown_tool_outcome, ("ask", "retry", "fail"))
        self._memory = MemoryJournal()
        self._held: ActiveSession | None = None
        self._held_in: object = None
        self._current: ActiveSession | None = None
        self._stack: AsyncExitStack | None = None
        self._opened = session_manager is None
        if session_manager is None:
            self._mirror.show(self._initial)
        elif not inside_event_loop():
            _blocking().run(self.ready)

    @property
    def session_id(self) -> str | None:
        """The session's id; None when the conversation is not kept."""
        return self.session_manager.session_id if self.session_manager is not None else None

    @property
    def state(self) -> AgentState:
        """Values that outlive a turn and are never shown to the model."""
        return self._state

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools, in the order given."""
        return list(self._tools.names)

    @property
    def messages(self) -> list[Message]:
        """A copy of what the model is shown, oldest first. Errors: `NotReady` before the session was opened."""
        if not self._opened:
            raise NotReady("the session is not open yet: await agent.ready(), enter `async with agent`, or make a call")
        return copy.deepcopy(self._mirror.messages())

    def __call__(self, prompt: Prompt = None, **options: Unpack[CallOptions]) -> AgentResult:
        """Run a turn from sync code; takes what `invoke_async` takes. Blocks the calling thread until it is durable."""
        return _blocking().run(self.invoke_async, prompt, **options)

    async def invoke_async(
        self,
        prompt: Prompt = None,
        *,
        invocation_state: Mapping[str, Any] | None = None,
        busy: Busy | None = None,
    ) -> AgentResult:
        """Run a turn. Errors: what the model, the tools' store and the policies raise (`repertory.errors`).

        Cancelled, the turn runs on to its end only as far as the surrounding scope allows; what was said stays, and the
        history stays valid.
        """
        invocation = Invocation(prompt=prompt, busy=busy, invocation_state=invocation_state or {})
        if self.callback_handler is None:
            if self._held is not None:
                return await self._held_here(self._held).invoke(invocation)
            async with self._session(busy) as session:
                return await session.invoke(invocation)
        request_state: dict[str, object] = {}
        async with aclosing(self._stream(invocation)) as events:
            async for event in events:
                self.callback_handler(**event, request_state=request_state)
                if "result" in event:
                    return _with_state(cast("AgentResult", event["result"]), request_state)
        raise AssertionError("a turn's stream ends with its result or an error")

    async def stream_async(
        self,
        prompt: Prompt = None,
        *,
        invocation_state: Mapping[str, Any] | None = None,
        busy: Busy | None = None,
    ) -> AsyncGenerator[TurnEvent]:
        """Run a turn and yield what happens (`core/events.py` lists the shapes); the last event holds the result.

        Leaving the loop early, by `break` inside `contextlib.aclosing`, cancels the turn.
        """
        invocation = Invocation(prompt=prompt, busy=busy, invocation_state=invocation_state or {})
        async with aclosing(self._stream(invocation)) as events:
            async for event in events:
                if self.callback_handler is not None:
                    self.callback_handler(**event)
                yield event

    async def history(self) -> list[Message]:
        """A copy of everything ever said, oldest first, whatever the model is shown."""
        async with self._session() as session:
            return list(await session.history())

    def cancel(self) -> None:
        """Cut the running turn short, if one runs; from any thread. Its call returns with stop reason `cancelled`."""
        if self._current is not None:
            self._current.cancel()

    async def ready(self) -> None:
        """Open the session, so that `messages` and `state` are what was stored."""
        if not self._opened:
            async with self._session():
                pass

    async def __aenter__(self) -> Agent:
        """Keep the session open until the end of the block: no lease changes hands between calls."""
        if self._stack is not None:
            raise Invalid("the agent is open already", agent=self.agent_id)
        self._stack = AsyncExitStack()
        try:
            self._held = await self._stack.enter_async_context(self._active(stays=True))
        except BaseException:
            self._stack = None
            raise
        self._held_in = current_token().native_token
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        stack, self._stack, self._held = self._stack, None, None
        if stack is not None:
            await stack.aclose()

    def __enter__(self) -> Agent:
        """Keep the session open from sync code, until the end of the block or `shutdown()`."""
        _blocking().run(self.__aenter__)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _blocking().run(self.__aexit__, *exc_info)

    def shutdown(self) -> None:
        """Close what `with agent` opened; everything said is durable. Calling it again does nothing."""
        if self._stack is not None:
            _blocking().run(self.__aexit__, None, None, None)

    async def shutdown_async(self) -> None:
        """Close what `async with agent` opened, from the same event loop. Calling it again does nothing."""
        await self.__aexit__(None, None, None)

    @asynccontextmanager
    async def _session(self, busy: Busy | None = None) -> AsyncGenerator[ActiveSession]:
        """The session that is held open, or one brought to life for as long as the block."""
        if self._held is not None:
            yield self._held_here(self._held)
            return
        async with self._active(busy=busy or self._busy) as session:
            yield session

    def _held_here(self, session: ActiveSession) -> ActiveSession:
        if self._held_in is not current_token().native_token:
            raise Invalid("the agent is open in another event loop or thread; call it there", agent=self.agent_id)
        return session

    @asynccontextmanager
    async def _active(self, *, busy: Busy = "queue", stays: bool = False) -> AsyncGenerator[ActiveSession]:
        async with hosted(self._blueprint(), busy=busy, stays=stays) as session:
            self._opened = True
            self._current, self._mirror, self._state = session, session.mirror, session.state
            try:
                yield session
            finally:
                self._current = None

    async def _stream(self, invocation: Invocation) -> AsyncGenerator[TurnEvent]:
        async with self._session(invocation.busy) as session, session.stream(invocation) as events:
            async for event in events:
                yield event

    def _blueprint(self) -> Blueprint:
        """What brings this agent to life: read anew for each call, so that attributes may be changed between calls."""
        manager = self.session_manager
        agent = AgentSettings(
            session_id=manager.session_id if manager is not None else "unsaved",
            agent_id=self.agent_id,
            system_prompt=self.system_prompt,
            durability=self._durability,
            initial=self._initial,
            durable=manager is not None,
        )
        parts = AgentParts(model=self.model, tools=self._tools, state=self._state, mirror=self._mirror, owner=self)
        return Blueprint(
            agent=agent,
            calls=CallSettings(busy=self._busy, unknown_outcome=self._unknown),
            parts=parts,
            manager=self.conversation_manager,
            sessions=manager.sessions if manager is not None else None,
            memory=self._memory,
            place=f"agent {id(self):x}",
            takeover=manager.takeover if manager is not None else False,
        )


def _checked_state(state: object) -> Mapping[str, object]:
    if state is None:
        return {}
    if not isinstance(state, Mapping):
        raise Invalid("state must be an AgentState object or a dict", got=type(state).__name__)
    return cast("Mapping[str, object]", state)


def _one_of(argument: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise Invalid(f"{argument} must be one of {', '.join(allowed)}", got=value)
    return value


def _with_state(result: AgentResult, state: Mapping[str, object]) -> AgentResult:
    return replace(result, state=state) if state else result
