"""`Agent`: one agent, called from sync code, from async code, or kept open around many calls.

The class decides nothing about turns. It chooses the components, keeps the session's actors alive for as long as a call
(or `async with`) lasts, and passes the calls on to them.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Unpack, cast

from msgspec.structs import force_setattr

from repertory.actors.agent import CallSettings
from repertory.actors.call import CompleteTool
from repertory.actors.context import AgentParts, AgentSettings
from repertory.actors.hooks.calls import fire_sync
from repertory.actors.hooks.events import AgentInitializedEvent, HookRegistry, SameHooks
from repertory.actors.hooks.order import HookOrder
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.journal import ReadModel
from repertory.actors.tool_registry import ToolRegistry
from repertory.actors.tools import call_unrecorded
from repertory.app.agent import extensions
from repertory.app.agent.conversation_managers import ManagerOfAgent, another_manager, chosen_manager
from repertory.app.agent.messages import EditableMessages, edit_made, redaction_made
from repertory.app.agent.printer import PrintingCallbackHandler, TerminalCallbackHandler, TextOfTurn, somebody_watches
from repertory.app.agent.sdk_members import SdkAgentMembers, new_metrics
from repertory.app.agent.session import (
    AgentCalls,
    AgentLife,
    AgentSessionSpec,
    calls_of,
    chosen_busy,
    chosen_handler,
    flush_at_exit,
    for_traces,
    given_manager,
    is_watched,
    one_of,
    read_call,
    refuse_other_ways,
    watched_call,
    with_baggage,
    with_memory,
)
from repertory.app.agent.tools import AgentTool, AgentTools, DirectTools, as_tools, call_recorded, direct_use
from repertory.app.host.blocking import blocking_host, watch_state
from repertory.app.host.model_choice import default_model
from repertory.app.host.plugins import LatePlugins, ModelChooser, as_list
from repertory.app.host.session import SlotClaim
from repertory.app.sessions.sessions import PlacedSession, check_placement
from repertory.app.tracebacks import inside_event_loop, short_errors, telemetry
from repertory.backends.sandbox_ports import check_sandbox
from repertory.core.caller_events import CallerEvents
from repertory.core.ids import check_id
from repertory.core.limits import read_limits
from repertory.core.messages import check_messages, check_system_prompt, copy_message, repair
from repertory.core.retry import DEFAULT_RETRY, check_retry
from repertory.core.state import agent_state
from repertory.core.tools import late_result
from repertory.core.turn import StopReason
from repertory.core.turns.turn_start import DIRECT_WHILE_BUSY
from repertory.errors import AgentBusy, NotReady, RepertoryError, SessionBusy

if TYPE_CHECKING:
    from repertory.actors.call import Busy, Invocation
    from repertory.actors.context import Durability, ToolExecution
    from repertory.actors.hooks.events import EventTypes, HookCallback, HookProvider
    from repertory.actors.hooks.middleware import AnyPhase
    from repertory.actors.memory.consumer import MemoryParts
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.agent.extensions import FollowingManager
    from repertory.app.agent.persisted import Snapshot
    from repertory.app.agent.session import (
        AgentSessionSpec,
        CallbackHandler,
        CallOptions,
        HandlerCalls,
        PlainCallOptions,
    )
    from repertory.app.agent.snapshots import SnapshotLoaded
    from repertory.app.agent.tools import AnyTool, ToolExecutor
    from repertory.app.host.plugins import Intervention, Plugin
    from repertory.app.host.session import ActiveSession
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.sessions.sessions import AnySessionManager, SessionPlacement
    from repertory.backends.ports import Model
    from repertory.backends.sandbox_ports import Sandbox
    from repertory.core.interrupts import Interrupt
    from repertory.core.limits import Limits
    from repertory.core.memory.progress import StoreFlush
    from repertory.core.messages import Message, Prompt, SystemPrompt, ToolResult, ToolStatus
    from repertory.core.result import AgentResult, Output, TurnEvent
    from repertory.core.retry import RetryStrategy, StorePatience
    from repertory.core.snapshots.fields import Preset
    from repertory.core.state import AgentState
    from repertory.core.stream_events import AgentStreamEvent
    from repertory.core.turns.turn_start import UnknownOutcome
    from repertory.core.window.editing import MessagesEdit


T = TypeVar("T")


@short_errors
class Agent(SdkAgentMembers):
    """One agent and its conversation.

    `agent("Hello!")` from sync code, `await agent.invoke_async("Hello!")` from async code (asyncio or trio), and `async
    for event in agent.stream_async("Hello!")` for a stream of events. A call returns when its turn is over and its
    messages are durable. Concurrent calls queue up unless `busy` says otherwise.

    Opening: outside an event loop the constructor restores a session, so `messages` is right after it. Inside one the
    constructor does no I/O; `await agent.ready()`, `async with agent` and every call open the session, and `messages`
    before that raises `NotReady`.

    Errors: calls raise the errors of `repertory.errors`.

    Args:
        model: A `Model`, a `ModelRouter`, the id of a Bedrock model, or None for Bedrock's default.
        messages: The start of a new conversation; a stored one continues as it was stored.
        tools: Functions decorated with `@tool`, agents, MCP clients, or any other `Tool`.
        callback_handler: Called with each event's entries as keywords. The default one prints on a terminal, and only
            calls `agent(...)` whose result nobody takes; None is silent.
        conversation_manager: Decides what the model is shown; None for a sliding window of 40 messages,
            `NullConversationManager()` for all.
        record_direct_tool_call: True records calls by `agent.tool.name()` in the conversation.
        load_tools_from_directory: True loads the tools in the folder `tools`, and loads them again when they change.
        trace_attributes: Additional attributes of all its spans.
        agent_id: The agent's id in its session.
        name: Its name, for people and traces; `Repertory Agent` when None.
        description: The agent's purpose, for agents that use it as a tool.
        context_manager: `auto` adds a `ContextOffloader` and a `SummarizingConversationManager`, `agentic` also tools
            by which the model shortens its conversation, False nothing at all (`docs/guides/agents/context.md`).
        plugins: Plugins, in the order in which they are set up.
        hooks: Callbacks that see events and may change them.
        interventions: Policies that decide about steps.
        structured_output_prompt: The text that the model gets when it answered without the structured output.
        concurrent_invocation_mode: `throw` for `busy="reject"`, `unsafe_reentrant` for `queue`.
        baggage_attributes: Values that its calls carry as OpenTelemetry's baggage (`docs/reference/telemetry.md`).
        storage: The storage of a `ContextOffloader` and a `SnapshotSessionManager` that have none of their own.
        checkpointing: False or None: Repertory has no such mode, since every session is durable.
        background_tasks: False or None: tools defer their results instead.
        session_manager: The manager that stores the conversation; without one it lives as long as this object.
        memory_manager: Memory across conversations.
        structured_output_model: The type of every answer.
        aux_model: A cheaper model for side calls; None for `model`.
        retry_strategy: The rule for repeating a failed model call; None never repeats it.
        limits: The limits of calls that set none.
        snapshot: The conversation continues from it, whatever was stored; see `load_snapshot`.
        sandbox: The place of its tools' commands and files (`docs/guides/agents/sandboxes.md`); it adds its own
            tools, except those whose names are taken.
        enabled_tools: The names of the tools that the model sees, None for all.
        tool_execution: `concurrent` runs the tools of one answer at the same time, `sequential` one after the other.
        tool_executor: An object of the SDK in place of `tool_execution`.
        durability: The waits of a turn for the store: `pipelined` before a tool with effects and before the answer,
            `strict` also before each step, `relaxed` only before a tool with effects.
        busy: The conduct of a call while a turn runs: `queue` waits, `reject` raises `AgentBusy`, `interrupt` ends the
            running turn, `steer` adds the prompt to it.
        unknown_tool_outcome: The fate of a tool that started before a crash and whose end nobody knows: `ask` a
            person, `retry` or `fail`.
        patience: The limits on waiting for the store, and for another process; None for the runtime's value.

    Raises:
        Invalid: For bad arguments. Correct the argument.
        TypeError: For unknown ones. Correct the call.

    Examples:
        An agent with a tool and a session; another agent with the session goes on with it.

        >>> from repertory import Agent, ScriptedModel, SQLiteSessionManager, tool
        >>> @tool(effects=False)
        ... def price(item: str) -> float:
        ...     '''Look up what an item costs.'''
        ...     return 4.2
        >>> use = {"toolUse": {"name": "price", "input": {"item": "loaf"}}}
        >>> model = ScriptedModel([use, "4.20", "You asked for a loaf."])
        >>> session = SQLiteSessionManager("marta", path="shop.db")
        >>> agent = Agent(model, tools=[price], session_manager=session)
        >>> print(agent("What does a loaf cost?"))
        4.20
        >>> again = Agent(model, tools=[price], session_manager=session)
        >>> print(again("What did I ask for?"))
        You asked for a loaf.
        >>> len(again.messages)
        6
    """

    tracks_messages: ClassVar[bool] = False
    """True if each new message gets a `tracking_id`, which stays with it in every copy of the conversation. Assign it
    in a subclass; `repertory.strands.install` assigns it here, since programs of that SDK expect it.
    """

    passes_model_errors: ClassVar[bool] = False
    """True if a call raises what a model's client or code has raised in its first step, rather than an error of
    `repertory.errors` with that as its cause. True for the `Agent` of `repertory.strands`.
    """

    default_handler: ClassVar[type[PrintingCallbackHandler]] = TerminalCallbackHandler
    """The class of the callback handler of agents that are given none. The `Agent` of `repertory.strands` prints
    everywhere.
    """

    _opens_late = False
    """True if another process had the session when the agent was made in sync code."""
    _read_early = False
    """True if what is stored was read inside an event loop, before the session was opened."""

    def __init__(
        self,
        model: Model | ModelChooser | str | None = None,
        messages: Sequence[Message] | None = None,
        tools: Sequence[AnyTool] | None = None,
        system_prompt: SystemPrompt = None,
        callback_handler: CallbackHandler | type[PrintingCallbackHandler] | None = PrintingCallbackHandler,
        conversation_manager: ManagerChoice = None,
        record_direct_tool_call: bool = True,
        load_tools_from_directory: bool = False,
        trace_attributes: Mapping[str, Any] | None = None,
        *,
        agent_id: str = "default",
        name: str | None = None,
        description: str | None = None,
        state: AgentState | Mapping[str, object] | None = None,
        context_manager: Literal["auto", "agentic", False] | None = None,
        plugins: Sequence[Plugin] | None = None,
        hooks: Sequence[HookProvider | HookCallback] | None = None,
        interventions: Sequence[Intervention] | None = None,
        structured_output_prompt: str | None = None,
        concurrent_invocation_mode: str | None = None,
        baggage_attributes: Mapping[str, str] | None = None,
        storage: object = None,
        checkpointing: Literal[False] = False,
        background_tasks: Literal[False] | None = None,
        session_manager: AnySessionManager | None = None,
        memory_manager: MemoryManager | Mapping[str, object] | None = None,
        structured_output_model: type[Any] | None = None,
        aux_model: Model | str | None = None,
        retry_strategy: RetryStrategy | None = DEFAULT_RETRY,
        limits: Limits | None = None,
        snapshot: Mapping[str, Any] | None = None,
        sandbox: Sandbox | None = None,
        enabled_tools: Sequence[str] | None = None,
        tool_execution: ToolExecution = "concurrent",
        tool_executor: ToolExecutor | None = None,
        durability: Durability = "pipelined",
        busy: Busy = "queue",
        unknown_tool_outcome: UnknownOutcome = "ask",
        patience: StorePatience | None = None,
    ) -> None:
        if isinstance(model, ModelChooser):  # It routes between models.
            plugins, model = (*(plugins or ()), model), model.default_model
        refuse_other_ways(model, checkpointing, background_tasks)
        self.agent_id = check_id(agent_id or "default", "agent_id")
        self.name = name or "Repertory Agent"
        self.description = description
        self.callback_handler: CallbackHandler | None = chosen_handler(callback_handler, self.default_handler)
        self.context_manager = context_manager or None
        if context_manager is not None:
            conversation_manager, plugins = extensions.made_by.managed_context(
                context_manager, conversation_manager, plugins or ()
            )
        self.conversation_manager = chosen_manager(conversation_manager)
        self._following_manager: FollowingManager | None = None
        if hasattr(session_manager, "append_message"):
            session_manager, self._following_manager = extensions.made_by.hooked_or_placed(session_manager)
        self.session_manager = session_manager = check_placement(session_manager)
        if storage is not None and hasattr(sessions := getattr(session_manager, "sessions", None), "keep_in"):
            cast("Any", sessions).keep_in(storage)
        self.record_direct_tool_call = record_direct_tool_call
        self.structured_output_model = structured_output_model
        self.structured_output_prompt = structured_output_prompt
        self.hooks = HookRegistry()
        self._state = agent_state(state)
        self._first_state = self._state.get()
        self._read_model = ReadModel()
        # Copies, since the caller may go on to change its list. Repaired, since a history from elsewhere may end in a
        # tool use without a result.
        self._initial = tuple(repair([copy_message(message) for message in check_messages(messages or ())]))
        self._memory_manager = given_manager(
            memory_manager if memory_manager is not None else getattr(session_manager, "memory_manager", None), plugins
        )
        self._plugins = with_memory(plugins, self._memory_manager)
        self.trace_attributes = for_traces(trace_attributes)
        self.baggage_attributes, self.storage = {**(baggage_attributes or {})}, storage
        self._calls = AgentCalls()
        self.load_tools_from_directory = load_tools_from_directory
        self._folder = extensions.made_by.tool_folder(Path.cwd() / "tools") if load_tools_from_directory else None
        self._sandbox = None if sandbox is None else check_sandbox(sandbox)
        self._own_machine = self._enabled = None
        self._tools = self._open_tools = self._all_tools(tools)
        self._parts = AgentParts(
            model=cast("Model", model) if hasattr(type(model), "stream") else default_model(model),
            aux_model=None if aux_model is None else default_model(aux_model),
            tools=self._tools,
            system_prompt=check_system_prompt(system_prompt),
            state=self._state,
            read_model=self._read_model,
            hooks=self.hooks,
            retry=retry_strategy if retry_strategy is DEFAULT_RETRY else check_retry(retry_strategy),
            new_metrics=new_metrics,
            remembers=self._memory_manager is not None,
            owner=self,
            find_telemetry=telemetry,
        )
        if enabled_tools is not None:
            self.enabled_tools = enabled_tools
        self._memory: InMemoryJournal | None = None
        self._given_limits, self._patience = limits, patience
        self._limits = read_limits(limits)
        execution = tool_execution if tool_executor is None else tool_executor.execution
        self._execution = one_of("tool_execution", execution, ("concurrent", "sequential"))
        self._durability = one_of("durability", durability, ("pipelined", "strict", "relaxed"))
        self._busy = chosen_busy(busy, concurrent_invocation_mode)
        self._unknown = one_of("unknown_tool_outcome", unknown_tool_outcome, ("ask", "retry", "fail"))
        # Random: hooks, tools and memories tell conversations by it, also those that nobody stores.
        self._unsaved_id = f"unsaved-{token_hex(8)}"
        self._claim = SlotClaim()
        self._life = AgentLife(self.agent_id, self.spec, self._joined)
        self._opened = session_manager is None and self._following_manager is None
        self._initialized = False
        self._register(hooks, interventions)
        self._begin(session_manager, snapshot)

    def _all_tools(self, given: Iterable[object] | None) -> ToolRegistry:
        added: list[Any] = [tool for plugin in self._plugins for tool in plugin.tools]
        if self._folder is not None:
            added += self._folder.changed()
        tools = given if isinstance(given, ToolRegistry) else ToolRegistry(as_tools(given or ()))
        tools = tools.also(*added)
        if self._sandbox is None:
            return tools
        return tools.also(*(tool for tool in self._sandbox.get_tools() if tool.name not in tools.names))

    def _begin(self, session_manager: SessionPlacement | None, snapshot: Mapping[str, Any] | None) -> None:
        """End the construction of an agent: outside an event loop it opens its session."""
        if session_manager is not None and session_manager.sessions is not None:
            watch_state(self._state, self._store_state, (session_manager.session_id, self.agent_id))
        self._flush_at_exit()
        if session_manager is None:
            self._read_model.show(messages=self._initial)
            if self._late_plugins.done and self._following_manager is None:
                self._announce()
        if snapshot is not None:
            self._load_snapshot(snapshot, None)
        if (
            (session_manager is not None or self._following_manager is not None)
            and not isinstance(session_manager, PlacedSession)
            and not inside_event_loop()
        ):
            # So that `agent.messages` has what is stored right behind the constructor.
            blocking_host().run(self._open_if_free)

    async def _open_if_free(self) -> None:
        """Open the session, unless another process has it: then the first use opens it, which may wait."""
        try:
            # A constructor must not wait for another process that has the session.
            async with self._session("reject"):
                pass
        except (AgentBusy, SessionBusy):
            self._opens_late = True

    def _register(
        self,
        hooks: Sequence[HookProvider | HookCallback] | None,
        interventions: Sequence[Intervention] | None,
    ) -> None:
        """Order: the hooks as given, then those of plugins, then the plugins' own `init_agent`."""
        self.interventions = as_list("interventions", interventions)
        if self._following_manager is not None:
            self.hooks.add_own(self._following_manager)
        for provider in as_list("hooks", hooks):
            self.hooks.add_hook(provider)
        if self.interventions:
            self.hooks.add_hook(extensions.made_by.intervention_registry(self.interventions))
        self.hooks.add_own(ManagerOfAgent(self.conversation_manager, self))
        self._late_plugins = LatePlugins(self)
        for plugin in self._plugins:
            for callback in plugin.hooks:
                self.hooks.add_callback(None, callback)
            self._late_plugins.begin(plugin)

    def _announce(self) -> None:
        """Fire `AgentInitializedEvent`, once."""
        self._opened = True
        if not self._initialized:
            self._initialized = True
            fire_sync(self.hooks, AgentInitializedEvent(agent=self))

    def add_hook(
        self,
        callback: HookCallback,
        event_type: EventTypes = None,
        order: float = HookOrder.DEFAULT,
        *,
        guard: bool | None = None,
    ) -> None:
        """Call `callback` at each event of that type (read from its annotation when None); see
        `HookRegistry.add_callback`.

        Args:
            callback: The function to call; it gets the event. It may be async.
            event_type: The class of the events; None reads it from the annotation of the callback's parameter.
            order: Callbacks of a lower number run first; see `HookOrder`.
            guard: True if the step must fail when the callback fails. None: as its kind of event says.
        """
        self.hooks.add_callback(event_type, callback, order=order, guard=guard)

    def add_middleware(self, stage_or_phase: AnyPhase, handler: Callable[..., Any]) -> None:
        """Put `handler` around each call of the model (`InvokeModelStage`) or of a tool (`ExecuteToolStage`), or at one
        phase of it; see `docs/guides/agents/middleware.md`. Counts from the next such call on.

        Args:
            stage_or_phase: `InvokeModelStage`, `ExecuteToolStage`, or one phase of them.
            handler: The function that stands around the call.

        Raises:
            TypeError: For an argument of another type. Correct the call.
        """
        if self._parts.middleware is None:
            from repertory.actors.hooks.middleware import MiddlewareRegistry  # loaded when used

            self._parts.middleware = MiddlewareRegistry()
        self._parts.middleware.add(stage_or_phase, handler)

    @property
    def tool_registry(self) -> AgentTools:
        """The tools, by name; tools may be added and removed at any time, and count from the next step on."""
        return AgentTools(self._open_tools, self._change_tools)

    def _change_tools(self, change: Callable[[ToolRegistry], ToolRegistry]) -> None:
        self._tools, self._open_tools = change(self._tools), change(self._open_tools)
        self._parts.tools = change(self._parts.tools)

    @property
    def tool(self) -> DirectTools:
        """The tools, for calls by the program: `agent.tool.calculator(expression="2 + 2")`."""
        return DirectTools(self._call_tool)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        preserve_context: bool = False,
        delegate: bool = False,
    ) -> AgentTool:
        """The agent as a tool for another one; see `AgentTool`. With `delegate` its answer is the other one's.

        Args:
            name: The tool's name; None for the agent's.
            description: The tool's description; None for the agent's.
            preserve_context: True keeps the conversation between calls. False begins anew each time.
            delegate: True makes its answer the answer of the calling agent.
        """
        return AgentTool(self, name=name, description=description, preserve_context=preserve_context, delegate=delegate)

    def fresh_copy(self) -> Agent:
        """An agent as this one was built, with a new conversation that is not stored."""
        copy = Agent(
            self.model,
            messages=self._initial,
            tools=cast("Any", self._tools),
            system_prompt=self._parts.system_prompt,
            callback_handler=self.callback_handler,
            conversation_manager=another_manager(self.conversation_manager),
            agent_id=self.agent_id,
            name=self.name,
            description=self.description,
            state=cast("Mapping[str, object]", self._first_state),
            hooks=[SameHooks(self.hooks)],
            structured_output_model=self.structured_output_model,
            aux_model=self._parts.aux_model,
            retry_strategy=self._parts.retry,
            enabled_tools=self.enabled_tools,
            tool_execution=self._execution,
            limits=self._given_limits,
            sandbox=self._sandbox,
        )
        copy._parts.middleware = self._parts.middleware
        copy._memory = InMemoryJournal()
        return copy

    @property
    def state(self) -> AgentState:
        """Values that outlive a turn and that the model never sees."""
        if not self._opened:
            with suppress(NotReady):
                self._check_open(stored=True)
        return self._state

    @property
    def messages(self) -> list[Message]:
        """The messages that the model sees, oldest first. An edit of this list (`append`, `clear`, `del messages[:2]`,
        ...), or an assignment of another one, edits the conversation; `history()` keeps the original.

        Between turns messages may be dropped, changed, one put in front of all others, and new ones behind them. (To
        change a message, replace it: `messages[0] = {...}`.) The edit is stored on return; inside an event loop, where
        a property cannot wait, when the next call begins, at the end of `async with agent`, or after `await
        agent.ready()`. Hook callbacks of a running turn may edit the messages too, and the edit becomes part of the
        turn.

        Inside an event loop the stored messages are there before the session was opened, if they are on this machine.

        Errors: `NotReady` before a session elsewhere was opened; of edits `Invalid` for an invalid message or a changed
        order, `UnpairedTools` for tool uses without their results, `AgentBusy` while a turn runs (then nothing has
        changed), and those of the store.
        """
        self._check_open(stored=True)
        drafted = self._read_model.drafted()
        return EditableMessages(self._read_model.messages(), self._edit_messages) if drafted is None else drafted

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        self._check_open(stored=True)
        if not self._read_model.assign(messages):
            self._edit_messages(messages, messages if isinstance(messages, EditableMessages) else None)

    def _edit_messages(self, wanted: Sequence[Message], read: EditableMessages | None) -> Sequence[Message]:
        """Make `wanted` the shown messages, between two turns; returns them."""
        return self._carry_out(lambda messages: edit_made(wanted, messages, read))

    def _redact_latest(self, message: Message) -> None:
        """Replace the last message for good; in a hook, as an edit of the turn."""
        if self._read_model.drafted() is None:
            self._check_open()
            self._carry_out(lambda messages: redaction_made(message, messages))
        else:
            self.messages[-1] = message

    def _carry_out(self, make_edit: Callable[[Sequence[Message]], MessagesEdit | None]) -> Sequence[Message]:
        if self._read_model.in_a_turn or self._life.in_a_turn:
            text = "a turn is running: edit agent.messages in one of its hooks, or when it is over"
            raise AgentBusy(text, agent=self.agent_id)
        messages = self._read_model.messages()
        edit = make_edit(messages)
        if edit is None:
            return messages
        messages = edit.messages()
        self._read_model.show_edited(messages, waits=edit.keeps_end)
        self._life.loads.append(edit)
        if self.session_manager is not None and not inside_event_loop():
            blocking_host().run(self.ready)
        return messages

    @property
    def interrupts(self) -> list[Interrupt]:
        """The questions to a person that have no answer, in the order asked, also after a restart.

        Expired questions stay listed until a call continues without them. Errors: `NotReady` before the session was
        opened.
        """
        self._check_open()
        return list(self._read_model.pending_tools.waiting_in(self.session_id))

    def _check_open(self, *, stored: bool = False) -> None:
        """Open a session that another process had when the agent was made in sync code, and wait for it. With `stored`,
        what can be read at once is enough.
        """
        if self._opens_late and not self._opened and not inside_event_loop():
            blocking_host().run(self.ready)
        if not self._opened and not (stored and self._read_stored()):
            raise NotReady("the session is not open yet: await agent.ready(), enter `async with agent`, or make a call")

    def save_snapshot(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        preset: Preset = "session",
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
    ) -> Snapshot:
        """The agent as it is now, as JSON, with `metadata`. Also within a turn, from hooks and tools.

        Fields: messages, state, conversation_manager_state, interrupt_state and model_state, the data of plugins that
        are `Snapshottable`, `enabled_tools` when it was set, and those to `include` (`system_prompt`), without those to
        `exclude`.

        Args:
            metadata: Values of your own, as JSON, that the snapshot carries.
            preset: A named set of fields; `session` has all of a conversation.
            include: Further fields.
            exclude: Fields to leave out.

        Raises:
            Invalid: For unknown names and bad values. Correct the argument.
            NotReady: Before the session was opened. Open it first.
        """
        enabled_tools = () if self.enabled_tools is None else ("enabled_tools",)
        return self._snapshot_with(preset, (*enabled_tools, "components", *(include or ())), exclude, metadata)

    def take_snapshot(
        self,
        *,
        preset: Preset | None = None,
        include: Collection[str] | None = None,
        exclude: Collection[str] | None = None,
        app_data: Mapping[str, Any] | None = None,
    ) -> Snapshot:
        """`save_snapshot` as the SDK's newest release spells it: only the fields that preset and `include` name.

        Errors: those of `save_snapshot`.

        Args:
            preset: A named set of fields; `session` has all of a conversation.
            include: Further fields.
            exclude: Fields to leave out.
            app_data: Values of your own, as JSON, that the snapshot carries.

        Raises:
            SnapshotException: For an unknown preset or field, or if none is left. Name one.
        """
        return self._snapshot_with(preset, include, exclude, app_data)

    def _snapshot_with(
        self,
        preset: Preset | None,
        include: Collection[str] | None,
        exclude: Collection[str] | None,
        metadata: Mapping[str, Any] | None,
    ) -> Snapshot:
        from repertory.app.agent.snapshots import take_snapshot  # loaded when used
        from repertory.core.snapshots.fields import fields_wanted

        wanted = fields_wanted(preset, include, exclude)
        self._check_open()
        return take_snapshot(self, self._read_model, wanted, metadata)

    def load_snapshot(
        self, snapshot: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
    ) -> SnapshotLoaded:
        """Continue from a snapshot. Fields that it does not hold stay as they are; `history()` keeps the messages until
        now.

        `messages`, `state` and the conversation manager's state are those of the snapshot at once. The session has
        stored it on return; inside an event loop, where this method cannot wait, when the next call begins:
        `load_snapshot_async` waits. Then nothing has changed.

        Args:
            snapshot: The snapshot, as `save_snapshot` gave it.
            overrides: Other values for some fields, or, by `state.KEY`, for single values of the state.

        Raises:
            SnapshotException: For one that was changed, truncated, or is of another version or kind. Use an intact
                snapshot.
            Invalid: For bad overrides. Correct the argument.
            AgentBusy: From within a turn. Call again when the turn is over.
        """
        loaded = self._load_snapshot(snapshot, overrides)
        if self.session_manager is not None and not inside_event_loop():
            blocking_host().run(self.ready)
        return loaded

    async def load_snapshot_async(
        self, snapshot: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
    ) -> SnapshotLoaded:
        """`load_snapshot` that returns when the session has stored it. If cancelled, the next call stores it.

        Args:
            snapshot: The snapshot, as `save_snapshot` gave it.
            overrides: Other values for some fields, or, by `state.KEY`, for single values of the state.
        """
        loaded = self._load_snapshot(snapshot, overrides)
        await self.ready()
        return loaded

    def _load_snapshot(self, snapshot: object, overrides: Mapping[str, Any] | None) -> SnapshotLoaded:
        from repertory.app.agent.snapshots import show_snapshot  # loaded when used

        if self._life.in_a_turn:
            raise AgentBusy("a turn is running: load the snapshot when it is over", agent=self.agent_id)
        fields, loaded = show_snapshot(self, self._read_model, snapshot, overrides)
        self._life.loads.append(fields)
        return loaded

    @property
    def _memory_parts(self) -> MemoryParts | None:
        return None if self._memory_manager is None else self._memory_manager.parts_for(self)

    async def flush_memory(self) -> Mapping[str, StoreFlush]:
        """Write this conversation's pending memories to every memory store now; see `MemoryManager.flush`.

        By the name of the store: what it stored, what it did not, and why. Errors: those of opening the session.
        """
        return await self._flush_by(math.inf)

    async def _flush_by(self, deadline: float) -> Mapping[str, StoreFlush]:
        if self._memory_manager is None:
            return {}
        async with self._session(deadline=deadline) as session:
            return await session.flush_memory()

    def _flush_at_exit(self) -> None:
        parts = self._memory_parts
        if parts is not None and not inside_event_loop():
            flush_at_exit(self, parts, Agent._flush_before_exit)

    async def _flush_before_exit(self, by: float) -> str | None:
        flushed = await self._flush_by(by)
        return "; ".join(str(each.error) for each in flushed.values() if each.parked) or None

    def __call__(
        self,
        prompt: Prompt = None,
        *,
        structured_output_model: type[Output] | None = None,
        **options: Unpack[PlainCallOptions],
    ) -> AgentResult[Output]:
        """Run a turn from sync code; takes the arguments of `invoke_async`. Blocks the calling thread until the turn is
        durable.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            structured_output_model: The type of the answer, for this call; see `CallOptions`.
            options: The other options of `CallOptions`: `invocation_state`, `limits`, `idempotency_token`,
                `timeout_s`, `drop_interrupts`, `budget`, `busy`, `cancel_signal` and `structured_output_prompt`.

        Raises:
            AgentBusy: With `busy="reject"` while another call runs. Call again when it is over.
        """
        if self._calls.running and (options.get("busy") or self._busy) == "reject":
            token = options.get("idempotency_token")
            if token is None or not self._calls.runs(token):  # Known here even if a model blocks the event loop.
                raise AgentBusy("a concurrent invocation runs", agent=self.agent_id)
        call = partial(self.invoke_async, structured_output_model=structured_output_model)
        host, before = blocking_host(), watched_call.set(somebody_watches())
        try:
            return host.run(call, prompt, **options)
        finally:
            watched_call.reset(before)

    async def invoke_async(
        self,
        prompt: Prompt = None,
        *,
        structured_output_model: type[Output] | None = None,
        **options: Unpack[PlainCallOptions],
    ) -> AgentResult[Output]:
        """Run a turn; `CallOptions` lists the options beside the prompt.

        Errors: what the model, the store, guards and the policies raise (`repertory.errors`). Cancelled, the turn ends
        with the messages until then; the history stays valid.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            structured_output_model: The type of the answer, for this call; see `CallOptions`.
            options: The other options of `CallOptions`, as for a direct call of the agent.
        """
        invocation = self._read_call(prompt, options, structured_output_model)
        with self._calls.running_now(invocation):
            if self._folder is not None:
                await self._folder.renew(self.tool_registry.register_tool)
            watched = is_watched()
            handler = calls_of(self.callback_handler, invocation.invocation_state, self, watched=watched)
            if handler is None:
                return await self._invoke(invocation)
            async with aclosing(self._stream(invocation, handler)) as events:
                async for event in events:
                    if "result" in event:
                        return cast("AgentResult", event["result"])
        raise AssertionError("a turn's stream ends with its result or an error")

    async def _invoke(self, invocation: Invocation) -> AgentResult:
        held = self._life.held_here()
        if held is not None:
            return await held.invoke(invocation)
        async with self._life.session(invocation.busy or self._busy, invocation.deadline, late=True) as session:
            return await session.invoke(invocation)

    async def stream_async(
        self, prompt: Prompt = None, **options: Unpack[CallOptions]
    ) -> AsyncGenerator[AgentStreamEvent]:
        """Run a turn and yield its events (`docs/reference/events.md`); the last event holds the result.

        Leaving the loop early, by `break` inside `contextlib.aclosing`, cancels the turn.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            options: The options of `CallOptions`, as for a direct call of the agent.
        """
        invocation = self._read_call(prompt, options)
        with self._calls.running_now(invocation):
            if self._folder is not None:
                await self._folder.renew(self.tool_registry.register_tool)
            handler = calls_of(self.callback_handler, invocation.invocation_state, self)
            async with aclosing(self._stream(invocation, handler, moves=True)) as events:
                async for event in events:
                    yield cast("AgentStreamEvent", event)

    async def stream_text(self, prompt: Prompt = None, **options: Unpack[CallOptions]) -> AsyncGenerator[str]:
        """Run a turn and yield the text that `print(agent(...))` would print, piece by piece.

        Texts of several messages are on lines of their own, and questions to a person come last. If the model is asked
        again after a part of its answer, a line says so, and its answer begins anew.

        Args:
            prompt: The user's message: a text, content blocks, messages, or answers to interrupts. None goes on with
                what is unfinished.
            options: The options of `CallOptions`, as for a direct call of the agent.

        Examples:
            >>> import anyio
            >>> from repertory import Agent, ScriptedModel
            >>> async def main() -> None:
            ...     agent = Agent(ScriptedModel(["Good morning."], chunk=5))
            ...     async for piece in agent.stream_text("Hi!"):
            ...         print(piece, end="|")
            >>> anyio.run(main)
            Good |morni|ng.|
        """
        text = TextOfTurn()
        async with aclosing(self.stream_async(prompt, **options)) as events:
            async for event in events:
                if piece := text.told(event):
                    yield piece

    def _read_call(
        self, prompt: Prompt, options: CallOptions | PlainCallOptions, output: type[Any] | None = None
    ) -> Invocation:
        """The invocation, which meets a cancellation that stands."""
        stop, self._calls.stop = self._calls.stop, None
        schema, output_prompt = output or self.structured_output_model, self.structured_output_prompt
        if not self.baggage_attributes:
            return read_call(prompt, options, schema, output_prompt, stop)
        with with_baggage(self.baggage_attributes):
            return read_call(prompt, options, schema, output_prompt, stop)

    async def history(self) -> list[Message]:
        """A copy of all messages of the conversation, oldest first, also those that the model no longer sees. A fork
        begins with the messages of its source, as far as they still exist.
        """
        from repertory.app.host.session import whole_history  # loaded when used

        async with self._session() as session:
            return await whole_history(session, self.spec())

    async def complete_tool(self, id: str, result: object, *, status: ToolStatus = "success") -> bool:
        """Give the result of a tool that has deferred; returns when it is stored. The next call tells it to the model,
        also one without a prompt: no turn begins by itself. See `HostedSession.complete_tool`.

        Args:
            id: The id that `tool_context.defer` gave.
            result: The result, as a tool returns it.
            status: `success` or `error`.
        """
        wanted = late_result(result, status, self._limits.sizes.result_bytes)
        async with self._session() as session:
            return await session.complete_tool(CompleteTool(id=id, result=wanted, starts=False))

    def cancel(
        self, message: str | None = None, *, after_current_tools: bool = False, keep_partial: bool = True
    ) -> None:
        """End the running turn early, from any thread. Its call returns with stop reason `cancelled`. While no call
        runs, the next one ends so before anything is done for it.

        `message` becomes the turn's answer. `after_current_tools` lets running tools end first. What the model has said
        of its answer stays in the conversation, with a note that it was stopped there.

        Args:
            message: The text that becomes the turn's answer, or stands for the note behind one that was cut off.
            after_current_tools: True lets running tools end first.
            keep_partial: False takes back what the model has said of its answer.
        """
        stop = StopReason(text=message, keep_partial=keep_partial)
        current, running = self._life.current, bool(self._calls.running)
        if running and not self._read_model.in_a_turn:
            self._calls.stop_before_its_turn(stop)
        if current is not None and current.alive and (running or self._read_model.in_a_turn):
            current.cancel(stop, after_tools=after_current_tools)
        elif not running:
            self._calls.stop = stop

    async def ready(self) -> None:
        """Open the session, so that `messages` and `state` are the stored ones."""
        if not self._opened or self._life.loads:
            async with self._session():
                pass

    async def __aenter__(self) -> Agent:
        """Keep the session open until the end of the block: no lease changes hands between calls."""
        await self._life.enter()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._life.leave()

    def __enter__(self) -> Agent:
        """Keep the session open from sync code, until the end of the block or `shutdown()`."""
        blocking_host().run(self.__aenter__)
        return self

    def __exit__(self, *exc_info: object) -> None:
        blocking_host().run(self.__aexit__, *exc_info)

    def shutdown(self) -> None:
        """Close what `with agent` opened, and what calls have left open. The messages and the state are durable then,
        and a flush of the memory stores was tried. A second call does nothing.
        """
        current = self._life.current
        lives = current is not None and current.alive
        if lives or self._life.is_held or self._state.changed or self._life.edited or self._memory_manager is not None:
            blocking_host().run(self.shutdown_async)

    async def shutdown_async(self) -> None:
        """`shutdown` for `async with agent`, and for calls outside a block, from the same event loop."""
        if self._life.edited and self.session_manager is not None:
            await self.ready()
        await (self._life.leave() if self._life.is_held else self.flush_memory())
        await self._store_state()
        await self._life.end_paused()

    async def _store_state(self, by: float = math.inf) -> None:
        """Store the values of `state` set since the last call; `by` is a time of the event loop's clock."""
        if self.session_manager is not None and self._state.changed:
            async with self._session(deadline=by):
                pass  # Closing the session stores the state.

    def _session(
        self, busy: Busy | None = None, deadline: float = math.inf
    ) -> AbstractAsyncContextManager[ActiveSession]:
        """The session that is held open, or one that lives as long as the block; see `SessionLife.session`."""
        return self._life.session(busy or self._busy, deadline)

    def _joined(self, session: ActiveSession) -> None:
        """Called when the session is open. Another agent object may have opened it: then this one shares its actors."""
        # What was set here before the session opened belongs to the conversation, whose state another object has.
        patch = self._state.take_patch() if session.state is not self._state else None
        self._read_model, self._state = session.read_model, session.state
        if patch is not None:
            self._state.apply(patch)
        self._open_tools = session.tools.whole
        self._announce()

    async def _stream(
        self, invocation: Invocation, handler: HandlerCalls | None, *, moves: bool = False
    ) -> AsyncGenerator[TurnEvent]:
        events = CallerEvents(invocation.invocation_state)
        busy = invocation.busy or self._busy
        # The turn waits for the reader of each event, so that what a handler prints keeps step with the model.
        force_setattr(invocation, "in_step", True)
        failed: RepertoryError | None = None
        async with self._life.stream(invocation, busy, self._calls.end, moves=moves) as turn:
            try:
                async for event in turn:
                    found = events.of(event)
                    if found is None and handler is None:
                        yield event
                        continue
                    for each in (event,) if found is None else found:
                        if handler is not None:
                            await handler.tell(each)
                        yield each
            except RepertoryError as error:
                # Raised behind what is still to be told: a callback handler learns of a failure before the caller does.
                failed = error
            for each in () if failed is None else events.before(failed):
                if handler is not None:
                    await handler.tell(each)
                yield each
            if failed is not None:
                raise failed

    async def _call_tool(
        self, name: str, arguments: dict[str, Any], override: str | None, record: bool | None
    ) -> ToolResult:
        """Call a tool as `DirectTool.invoke_async` does, also one that `enabled_tools` hides from the model."""
        use = direct_use(self._open_tools, name, arguments)
        if not (self.record_direct_tool_call if record is None else record):
            return await call_unrecorded(self._settings(), self._parts, use)
        try:
            async with self._session("reject") as session:
                return await call_recorded(session, use, override)
        except AgentBusy as error:
            raise AgentBusy(DIRECT_WHILE_BUSY, agent=self.agent_id) from error

    async def _restore(self) -> None:
        """Restore the conversation before the first turn, where the session manager keeps it itself."""
        assert self._following_manager is not None
        self._opened = True
        try:
            await self._following_manager.restore(AgentInitializedEvent(agent=self))
        except BaseException:
            self._opened = False
            raise
        await self._late_plugins.finish()

    def _settings(self) -> AgentSettings:
        manager = self.session_manager
        return AgentSettings(
            session_id=manager.session_id if manager is not None else self._unsaved_id,
            agent_id=self.agent_id,
            durability=self._durability,
            initial=self._initial,
            durable=manager is not None and manager.sessions is not None,
            tool_execution=self._execution,
            limits=self._limits,
            tracks_messages=self.tracks_messages,
            marks_questions=manager is not None,
        )

    def spec(self) -> AgentSessionSpec:
        """The agent's session spec, for its host. Built anew for each call, as attributes may change in between."""
        manager = self.session_manager
        if self._memory is None and (manager is None or manager.sessions is None):
            self._memory = InMemoryJournal(random=token_hex(16).encode())
        return AgentSessionSpec(
            agent=self._settings(),
            calls=CallSettings(busy=self._busy, unknown_outcome=self._unknown),
            parts=self._parts,
            manager=self.conversation_manager,
            sessions=manager.sessions if manager is not None else None,
            memory=self._memory,
            own=manager is None or (isinstance(manager, PlacedSession) and manager.unsaved),
            takeover=manager.takeover if manager is not None else False,
            wakes=manager is not None and isinstance(manager, PlacedSession) and manager.wakes,
            patience=self._patience,
            prepare=self._late_plugins.finish if self._following_manager is None else self._restore,
            opened=self._life.join,
            remembers=self._memory_parts,
            claim=self._claim,
        )
