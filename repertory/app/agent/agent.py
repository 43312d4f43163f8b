"""`Agent`: one agent, called from sync code, from async code, or kept open around many calls.

The class decides nothing about turns. It chooses the components, keeps the session's actors alive for as long as a call
(or `async with`) lasts, and passes the calls on to them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Unpack, cast

from msgspec.structs import replace

from repertory.actors.agent import CallSettings
from repertory.actors.call import CompleteTool
from repertory.actors.context import AgentParts, AgentSettings
from repertory.actors.hooks.events import HookRegistry, SameHooks
from repertory.actors.hooks.order import HookOrder
from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.journal import ReadModel
from repertory.app.agent import extensions
from repertory.app.agent.conversation_managers import ManagerOfAgent, another_manager, chosen_manager
from repertory.app.agent.messages import EditableMessages
from repertory.app.agent.printer import PrintingCallbackHandler, TerminalCallbackHandler, TextOfTurn, somebody_watches
from repertory.app.agent.sdk_members import SdkAgentMembers, new_metrics
from repertory.app.agent.session import (
    AgentLife,
    AgentSessionSpec,
    agent_call,
    calls_of,
    chosen_busy,
    chosen_handler,
    for_traces,
    given_manager,
    is_watched,
    one_of,
    refuse_other_ways,
    watched_call,
    with_memory,
)
from repertory.app.agent.subagents import SubagentStarter
from repertory.app.agent.tools import AgentTool, AgentTools, DirectTools, all_tools, run_in_background
from repertory.app.host.blocking import blocking_host
from repertory.app.host.model_choice import default_model
from repertory.app.host.plugins import LatePlugins, ModelChooser, as_list
from repertory.app.sessions.sessions import PlacedSession, check_placement
from repertory.app.tracebacks import short_errors, telemetry
from repertory.backends.sandbox_ports import check_sandbox
from repertory.core.ids import check_id
from repertory.core.limits import read_limits
from repertory.core.messages import check_messages, check_system_prompt, copy_message, repair
from repertory.core.retry import DEFAULT_RETRY, check_retry
from repertory.core.state import agent_state
from repertory.core.tools import late_result
from repertory.core.turn import StopReason
from repertory.core.turns.subagents import RETAINED
from repertory.errors import AgentBusy, Invalid, NotReady

if TYPE_CHECKING:
    from repertory.actors.call import Busy
    from repertory.actors.context import Durability, ToolExecution
    from repertory.actors.hooks.events import EventTypes, HookCallback, HookProvider
    from repertory.actors.hooks.middleware import AnyPhase
    from repertory.app.agent.conversation_managers import ManagerChoice
    from repertory.app.agent.extensions import FollowingManager
    from repertory.app.agent.persisted import Snapshot
    from repertory.app.agent.session import (
        AgentSessionSpec,
        CallbackHandler,
        CallOptions,
        PlainCallOptions,
    )
    from repertory.app.agent.snapshots import SnapshotLoaded
    from repertory.app.agent.tools import AnyTool, ToolExecutor
    from repertory.app.host.plugins import Intervention, Plugin
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.app.sessions.sessions import AnySessionManager
    from repertory.backends.ports import Model
    from repertory.backends.sandbox_ports import Sandbox
    from repertory.core.interrupts import Interrupt
    from repertory.core.limits import Limits
    from repertory.core.memory.progress import StoreFlush
    from repertory.core.messages import Json, Message, Prompt, SystemPrompt, ToolStatus
    from repertory.core.result import AgentResult, Output
    from repertory.core.retry import RetryStrategy, StorePatience
    from repertory.core.snapshots.fields import Preset
    from repertory.core.state import AgentState
    from repertory.core.stream_events import AgentStreamEvent
    from repertory.core.turns.background_tasks import BackgroundTasksConfig
    from repertory.core.turns.turn_start import UnknownOutcome


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
        retain_subagents: The number of subagents (`tool_context.spawn`, agents as tools) whose conversations stay in
            the session when they have ended; a fourth more may stay, then the oldest go. None keeps all.
        background_tasks: True lets the model run tools in the background; a `BackgroundTasksConfig` says which, and
            whether a call waits for them. None: those tools alone that say `@tool(background=True)`; False: none.
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
        unknown_tool_outcome: The fate of a tool, or of a step, that started before a crash and whose end nobody knows:
            `ask` a person, `retry` or `fail`.
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

    kept_by: object
    """The session manager that keeps the conversation itself, by hooks, or None.

    `docs/guides/coming-from-strands.md` describes such managers.
    """

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
        background_tasks: bool | BackgroundTasksConfig | None = None,
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
        retain_subagents: int | None = RETAINED,
    ) -> None:
        if isinstance(model, ModelChooser):  # It routes between models.
            plugins, model = (*(plugins or ()), model), model.default_model
        refuse_other_ways(model, checkpointing)
        if retain_subagents is not None and (type(retain_subagents) is not int or retain_subagents < 0):
            raise Invalid("retain_subagents is a number, 0 or more, or None for all", got=retain_subagents)
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
        following: FollowingManager | None = None
        if hasattr(session_manager, "append_message"):
            session_manager, following = extensions.made_by.hooked_or_placed(session_manager)
        self.session_manager = placement = check_placement(session_manager, storage)
        self.kept_by = None if following is None else following.manager
        self.record_direct_tool_call = record_direct_tool_call
        self.structured_output_model = structured_output_model
        self.structured_output_prompt = structured_output_prompt
        self.hooks = HookRegistry()
        placed_memory = getattr(placement, "memory_manager", None)
        self._memory_manager = given_manager(placed_memory if memory_manager is None else memory_manager, plugins)
        self._plugins = with_memory(plugins, self._memory_manager)
        self.trace_attributes = for_traces(trace_attributes)
        self.baggage_attributes, self.storage = {**(baggage_attributes or {})}, storage
        self.load_tools_from_directory = load_tools_from_directory
        self._folder = extensions.made_by.tool_folder(Path.cwd() / "tools") if load_tools_from_directory else None
        self._sandbox = None if sandbox is None else check_sandbox(sandbox)
        self._parts = AgentParts(
            model=cast("Model", model) if hasattr(type(model), "stream") else default_model(model),
            aux_model=None if aux_model is None else default_model(aux_model),
            tools=all_tools(tools, self._plugins, self._folder, self._sandbox),
            system_prompt=check_system_prompt(system_prompt),
            state=agent_state(state),
            read_model=ReadModel(),
            hooks=self.hooks,
            retry=retry_strategy if retry_strategy is DEFAULT_RETRY else check_retry(retry_strategy),
            new_metrics=new_metrics,
            remembers=self._memory_manager is not None,
            owner=self,
            find_telemetry=telemetry,
        )
        self._given_background = run_in_background(self._parts, background_tasks)
        execution = tool_execution if tool_executor is None else tool_executor.execution
        self._settings = AgentSettings(
            # Random: hooks, tools and memories tell conversations by it, also those that nobody stores.
            session_id=f"unsaved-{token_hex(8)}",
            # Copies, since the caller may go on to change its list. Repaired, since a history from elsewhere may end in
            # a tool use without a result.
            initial=tuple(repair([copy_message(message) for message in check_messages(messages or ())])),
            initial_state=cast("Mapping[str, Json]", self._parts.state.get()),
            durability=one_of("durability", durability, ("pipelined", "strict", "relaxed")),
            tool_execution=one_of("tool_execution", execution, ("concurrent", "sequential")),
            limits=read_limits(limits),
            unknown_outcome=one_of("unknown_tool_outcome", unknown_tool_outcome, ("ask", "retry", "fail")),
            retain_subagents=retain_subagents,
        )
        busy = chosen_busy(busy, concurrent_invocation_mode)
        self._call_settings = CallSettings(busy=busy)
        self._patience = patience
        life = self._life = AgentLife(self._parts, placement, busy, follows=following is not None)
        if enabled_tools is not None:
            self.enabled_tools = enabled_tools
        self.interventions = as_list("interventions", interventions)
        _register(self, following, as_list("hooks", hooks))
        self._late_plugins = LatePlugins(self, None if following is None else partial(life.restore, following))
        self._late_plugins.begin(self._plugins)
        life.work_at_exit(None if self._memory_manager is None else self._memory_manager.parts_for(self))
        life.begin(self._settings.initial, snapshot, announces=self._late_plugins.done)

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
        return AgentTools(self._parts, self._life)

    @property
    def tool(self) -> DirectTools:
        """The tools, for calls by the program: `agent.tool.calculator(expression="2 + 2")`."""
        return DirectTools(self.tool_registry)

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
            messages=self._settings.initial,
            tools=cast("Any", self._parts.tools.given),
            system_prompt=self._parts.system_prompt,
            callback_handler=self.callback_handler,
            conversation_manager=another_manager(self.conversation_manager),
            agent_id=self.agent_id,
            name=self.name,
            description=self.description,
            state=self._settings.initial_state,
            hooks=[SameHooks(self.hooks)],
            structured_output_model=self.structured_output_model,
            aux_model=self._parts.aux_model,
            retry_strategy=self._parts.retry,
            enabled_tools=self.enabled_tools,
            tool_execution=self._settings.tool_execution,
            limits=cast("Any", self._settings.limits),
            background_tasks=self._given_background,
            retain_subagents=self._settings.retain_subagents,
        )
        copy._parts.middleware, copy._sandbox = self._parts.middleware, self._sandbox
        copy._life.memory = InMemoryJournal()
        return copy

    @property
    def session_id(self) -> str | None:
        """The session's id; None when the conversation is not stored."""
        manager: Any = self.session_manager or self.kept_by
        return manager.session_id if manager is not None else None

    @property
    def state(self) -> AgentState:
        """Values that outlive a turn and that the model never sees."""
        with suppress(NotReady):
            self._life.check_open(stored=True)
        return self._life.state

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
        life = self._life
        life.check_open(stored=True)
        drafted = life.read_model.drafted()
        return EditableMessages(life.read_model.messages(), life.edit) if drafted is None else drafted

    @messages.setter
    def messages(self, messages: Sequence[Message]) -> None:
        life = self._life
        life.check_open(stored=True)
        if not life.read_model.assign(messages):
            life.edit(messages, messages if isinstance(messages, EditableMessages) else None)

    @property
    def interrupts(self) -> list[Interrupt]:
        """The questions to a person that have no answer, in the order asked, also after a restart.

        Expired questions stay listed until a call continues without them. Errors: `NotReady` before the session was
        opened.
        """
        self._life.check_open()
        return list(self._life.read_model.pending_tools.waiting_in(self.session_id))

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
        include = (*enabled_tools, "components", *(include or ()))
        return self.take_snapshot(preset=preset, include=include, exclude=exclude, app_data=metadata)

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
        from repertory.app.agent.snapshots import take_snapshot  # loaded when used
        from repertory.core.snapshots.fields import fields_wanted

        wanted = fields_wanted(preset, include, exclude)
        self._life.check_open()
        return take_snapshot(self, self._life.read_model, wanted, app_data)

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
        loaded = self._life.load(snapshot, overrides)
        self._life.store_loads()
        return loaded

    async def load_snapshot_async(
        self, snapshot: Mapping[str, Any], *, overrides: Mapping[str, Any] | None = None
    ) -> SnapshotLoaded:
        """`load_snapshot` that returns when the session has stored it. If cancelled, the next call stores it.

        Args:
            snapshot: The snapshot, as `save_snapshot` gave it.
            overrides: Other values for some fields, or, by `state.KEY`, for single values of the state.
        """
        loaded = self._life.load(snapshot, overrides)
        await self._life.ready()
        return loaded

    async def flush_memory(self) -> Mapping[str, StoreFlush]:
        """Write this conversation's pending memories to every memory store now; see `MemoryManager.flush`.

        By the name of the store: what it stored, what it did not, and why. Errors: those of opening the session.
        """
        return await self._life.flush_memory()

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
        if self._life.refuses(options.get("busy"), options.get("idempotency_token")):
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
        invocation = agent_call(self, prompt, options, structured_output_model)
        with self._life.running_now(invocation):
            if self._folder is not None:
                await self._folder.renew(self.tool_registry.register_tool)
            watched = is_watched()
            handler = calls_of(self.callback_handler, invocation.invocation_state, self, watched=watched)
            if handler is None:
                return await self._life.invoke(invocation)
            async with aclosing(self._life.events(invocation, handler)) as events:
                async for event in events:
                    if "result" in event:
                        return cast("AgentResult", event["result"])
        raise AssertionError("a turn's stream ends with its result or an error")

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
        invocation = agent_call(self, prompt, options)
        with self._life.running_now(invocation):
            if self._folder is not None:
                await self._folder.renew(self.tool_registry.register_tool)
            handler = calls_of(self.callback_handler, invocation.invocation_state, self)
            async with aclosing(self._life.events(invocation, handler, moves=True)) as events:
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

    async def history(self) -> list[Message]:
        """A copy of all messages of the conversation, oldest first, also those that the model no longer sees. A fork
        begins with the messages of its source, as far as they still exist.
        """
        from repertory.app.host.session import whole_history  # loaded when used

        async with self._life.session() as session:
            return await whole_history(session, self.spec())

    async def complete_tool(self, id: str, result: object, *, status: ToolStatus = "success") -> bool:
        """Give the result of a tool that has deferred; returns when it is stored. The next call tells it to the model,
        also one without a prompt: no turn begins by itself. See `HostedSession.complete_tool`.

        Args:
            id: The id that `tool_context.defer` gave.
            result: The result, as a tool returns it.
            status: `success` or `error`.
        """
        wanted = late_result(result, status, self._settings.limits.sizes.result_bytes)
        async with self._life.session() as session:
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
        self._life.cancel(stop, after_tools=after_current_tools)

    async def ready(self) -> None:
        """Open the session, so that `messages` and `state` are the stored ones."""
        await self._life.ready()

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
        if self._life.needs_shutdown:
            blocking_host().run(self.shutdown_async)

    async def shutdown_async(self) -> None:
        """`shutdown` for `async with agent`, and for calls outside a block, from the same event loop."""
        await self._life.shut_down()

    def spec(self) -> AgentSessionSpec:
        """The agent's session spec, for its host. Built anew for each call, as attributes may change in between."""
        manager, settings, life = self.session_manager, self._settings, self._life
        if life.memory is None and (manager is None or manager.sessions is None):
            life.memory = InMemoryJournal(random=token_hex(16).encode())
        return AgentSessionSpec(
            agent=replace(
                settings,
                session_id=settings.session_id if manager is None else manager.session_id,
                agent_id=self.agent_id,
                durable=manager is not None and manager.sessions is not None,
                tracks_messages=self.tracks_messages,
                marks_questions=manager is not None,
            ),
            calls=self._call_settings,
            parts=self._parts,
            manager=self.conversation_manager,
            subagents=SubagentStarter,
            sessions=manager.sessions if manager is not None else None,
            memory=life.memory,
            own=manager is None or (isinstance(manager, PlacedSession) and manager.unsaved),
            takeover=manager.takeover if manager is not None else False,
            wakes=manager is not None and isinstance(manager, PlacedSession) and manager.wakes,
            patience=self._patience,
            prepare=self._late_plugins.finish,
            opened=life.join,
            remembers=None if self._memory_manager is None else self._memory_manager.parts_for(self),
            claim=life.claim,
        )


def _register(agent: Agent, following: FollowingManager | None, hooks: Sequence[HookProvider | HookCallback]) -> None:
    """Register the callbacks of a new agent: those of the manager that stores its conversation, the hooks as given, the
    policies, and those of the conversation manager. Those of plugins follow.
    """
    if following is not None:
        agent.hooks.add_own(following)
    for provider in hooks:
        agent.hooks.add_hook(provider)
    if agent.interventions:
        agent.hooks.add_hook(extensions.made_by.intervention_registry(agent.interventions))
    agent.hooks.add_own(ManagerOfAgent(agent.conversation_manager, agent))
