"""The ports: what the agent system needs from the outside world. Implementations live in the neighbouring folders.

Actors import this file and never an implementation. Policy (what to write, when, who owns what) lives above the ports.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, Unpack, cast

import anyio
from msgspec import Struct

from repertory.backends.encryption_ports import Sealing
from repertory.backends.model_members import SdkModelMembers
from repertory.backends.shields import Uncut
from repertory.backends.spawn_ports import CanSpawn, SpawnPort
from repertory.backends.step_ports import HasSteps, InnerToolsPort, ToolStepsPort
from repertory.core.deferral import Deferral, MayDefer
from repertory.core.deliveries import check_names
from repertory.core.interrupts import Response, response_as, tool_scope
from repertory.core.limits import RESULT_BYTES
from repertory.core.state import AgentState
from repertory.core.timers import NOBODY_WAKES, CalendarOptions, DueTimes
from repertory.core.tokens import estimate_tokens, window_of
from repertory.errors import AlreadyExists, Invalid, LeaseLost, RepertoryError

if TYPE_CHECKING:
    from threading import Thread

    from repertory.backends.peer_ports import CallQueue, Directory
    from repertory.core.converse import StreamEvent as StreamEvent
    from repertory.core.interrupts import Questions
    from repertory.core.journal.rows import Row
    from repertory.core.journal.sealing import Seal
    from repertory.core.messages import Message, ToolResult, ToolSpec, ToolUse
    from repertory.core.pending_work import DueTime, PendingWork, StalledAgent
    from repertory.core.timers import ToolTimers


def __getattr__(name: str) -> object:
    """`StreamEvent`, as `repertory` has it; its module is loaded when it is named."""
    if name == "StreamEvent":
        from repertory.core import converse  # loaded when used

        return converse.StreamEvent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class ModelGate(Protocol):
    """A gate before a model, which lets calls begin when they may.

    Examples:
        >>> from repertory import Agent, OfflineModel
        >>> class CountingGate:
        ...     calls = 0
        ...     def stream_of(self, model):
        ...         self.calls += 1
        ...         return model.stream
        >>> model = OfflineModel()
        >>> model.gate = CountingGate()
        >>> reply = Agent(model, callback_handler=None)("Hello.")
        >>> model.gate.calls
        1
    """

    def stream_of(self, model: Model) -> Callable[..., AsyncIterator[StreamEvent]]:
        """The model's `stream`, behind the gate.

        Args:
            model: The model.
        """
        ...


class Model(SdkModelMembers, ABC):
    """A language model. Subclass it to bring your own.

    Order of a well-formed stream: `messageStart`, then per block `contentBlockStart` (may be left out for text), any
    number of `contentBlockDelta`, `contentBlockStop`, then `messageStop`, then at most one `metadata`. A stream that
    ends without `messageStop` is broken, never a short answer.

    Cancellation: closing the iterator must release the connection. Source: Bedrock `ConverseStream`, and the model
    interface of the Strands Agents SDK.

    Raises:
        Throttled: If the service asks for fewer requests. Call again later, less often.
        Unavailable: If the service cannot be reached. Call again later.
        ContextWindowOverflowException: If the conversation is too long for the model. Shorten it.
        ModelFailed: If the service refused the request, or gave an answer that cannot be read. The message says what to
            set; the same request again does not help.
    """

    stateful: bool = False
    """True if the provider keeps the conversation itself."""
    gate: ModelGate | None = None
    """The gate that calls of agents pass on their way to `stream`, such as a quota; None for none."""

    @abstractmethod
    def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model. The messages must not be edited; `options` are the provider's own.

        Args:
            messages: The messages, oldest first.
            tool_specs: The tools that the model may use.
            system_prompt: The system prompt; None for none.
            options: Options of this model, by name.
        """

    def get_config(self) -> Mapping[str, Any]:
        """The settings this model was built with."""
        return {}

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. Models without settings refuse.

        Args:
            settings: The settings to change, by name.
        """
        msg = f"{type(self).__name__} has no settings to update: {', '.join(settings)}"
        raise TypeError(msg)

    @property
    def context_window_limit(self) -> int | None:
        """The window in tokens: as configured, else as known of `model_id`, else None."""
        config = settings_of(self)
        limit = config.get("context_window_limit")
        return limit if isinstance(limit, int) else window_of(str(config.get("model_id", "")))

    @property
    def counts_tokens(self) -> bool:
        """True if `count_tokens` asks the provider; False if it estimates."""
        return settings_of(self).get("use_native_token_count") is True

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        system_prompt_content: Sequence[Mapping[str, Any]] | None = None,
    ) -> int:
        """The tokens that these would take; an estimate unless the provider counts. The system prompt as content blocks
        overrides the string.

        Args:
            messages: The messages, oldest first.
            tool_specs: The tools that the model may use.
            system_prompt: The system prompt; None for none.
            system_prompt_content: The system prompt as content blocks, in place of `system_prompt`.
        """
        if system_prompt_content:
            system_prompt = "\n".join(str(block["text"]) for block in system_prompt_content if "text" in block)
        return estimate_tokens(messages, tool_specs, system_prompt)

    async def aclose(self) -> None:
        """Release connections. Calling it twice is allowed."""
        return


@lru_cache(maxsize=128)
def estimates_tokens(model: type) -> bool:
    """True if the model's class has a `count_tokens` of its own, and does not say itself whether that counts."""
    names = {"count_tokens", "counts_tokens"}
    first = next((vars(kind) for kind in model.__mro__ if names & vars(kind).keys()), {"counts_tokens": False})
    return "counts_tokens" not in first


def settings_of(model: Model) -> Mapping[str, Any]:
    """A model's settings by name: the mapping or the attributes that its `get_config` returns, or nothing."""
    config: object = model.get_config() if hasattr(type(model), "get_config") else None
    return cast("Mapping[str, Any]", config if isinstance(config, Mapping) else getattr(config, "__dict__", {}))


def gated_stream(model: Model) -> Callable[..., AsyncIterator[StreamEvent]]:
    """The model's `stream`, behind its gate. Any object that streams is a model, and a mock has every attribute: what
    is no gate has a class without `stream_of`.
    """
    gate: ModelGate | None = getattr(model, "gate", None)
    return model.stream if gate is None or not hasattr(type(gate), "stream_of") else gate.stream_of(model)


_CALL_ARGUMENTS = ("agent_metadata", "cancel_signal", "invocation_state")


def known_names(model: Model) -> tuple[str, ...]:
    """The names of arguments that its `stream` has: what this model wants to know of the call."""
    stream = getattr(type(model), "stream", None)
    return _CALL_ARGUMENTS if stream is None else _names_in(stream)


@lru_cache(maxsize=128)
def _names_in(stream: Callable[..., object]) -> tuple[str, ...]:
    parameters = signature(stream).parameters
    return tuple(name for name in _CALL_ARGUMENTS if name in parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMetadata:
    """The agent that asks a model whose `stream` has an argument `agent_metadata`."""

    session_id: str | None = None
    """The id of the session; None if the conversation is not stored."""


TOOL_TASK: ContextVar[int] = ContextVar("repertory_tool_task")
"""The id of the task in which a tool's function runs. Tasks that the tool starts inherit the value, and have other ids:
so steps in the tool's own order are told from those beside it.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext(MayDefer, HasSteps, CanSpawn):
    """A running tool knows its call by this object. `ToolContext[X]` is the same type.

    Args:
        tool_use: The tool use: its id, the name of the tool, and its input.
        agent_id: The agent that runs the tool.
        state: The agent's state.
        attempt: The number of this attempt, from 1.
        invocation_state: Values of the caller for the hooks and tools of this call. The model never sees them.
        new_deferred_id: Makes the id of a deferral; the runtime gives it.
        on_deferred: Records a deferral; the runtime gives it.
        find_steps: Gives the durable steps of a call; the runtime gives it.
        find_inner: Gives the calls of other tools that a call makes; the runtime gives it.
        find_spawner: Gives the subagents of a call; the runtime gives it.

    Examples:
        >>> from repertory import Agent, ScriptedModel, ToolContext, tool
        >>> @tool
        ... def pay(amount: int, tool_context: ToolContext) -> str:
        ...     '''Pay an amount.'''
        ...     answer = tool_context.interrupt("approve", reason={"amount": amount})
        ...     return f"paid {amount}" if answer == "yes" else "refused"
        >>> model = ScriptedModel([{"toolUse": {"name": "pay", "input": {"amount": 5}}}, "It is paid."])
        >>> agent = Agent(model, tools=[pay])
        >>> asked = agent("Pay 5.").interrupts[0]
        >>> asked.name, asked.reason
        ('approve', {'amount': 5})
        >>> print(agent([{"interruptResponse": {"interruptId": asked.id, "response": "yes"}}]))
        It is paid.
    """

    def __class_getitem__(cls, of: object) -> type[ToolContext]:
        return cls

    tool_use: ToolUse
    agent_id: str = "default"
    state: AgentState = field(default_factory=AgentState)
    idempotency_key: str = ""
    """The same for every attempt at this call: across restarts, and in forks and snapshots taken during it. Pass it to
    services that deduplicate.
    """
    attempt: int = 1
    invocation_state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    agent: Any = None
    """The `Agent` that the tool runs for, as users know it."""
    on_partial: Callable[[object], Awaitable[None]] | None = None
    """Sends a piece of the result to the stream of the turn; None when nothing streams the turn."""
    on_exception: Callable[[Exception], None] | None = None
    """Records an exception that the tool turned into an error result."""
    questions: Questions | None = None
    """The tool's earlier questions and their answers; None where no person can be asked."""
    signal: Callable[[], threading.Event] | None = None
    """A function that returns `cancel_signal`."""
    timers: ToolTimers | None = None
    """The timers of `wake_at`; None where nobody wakes the session."""
    new_deferred_id: Callable[[str], str] | None = None
    on_deferred: Callable[[Deferral], None] | None = None
    find_steps: Callable[[ToolContext], ToolStepsPort] | None = None
    find_inner: Callable[[ToolContext], InnerToolsPort] | None = None
    find_spawner: Callable[[ToolContext], SpawnPort] | None = None
    result_bytes: int = RESULT_BYTES
    """The largest result in bytes; see `Limits`. The model is not shown a larger one."""

    @property
    def cancel_signal(self) -> threading.Event:
        """Set when the turn is to end while the tool still runs: for tools that work in threads, which nothing else
        stops.
        """
        return threading.Event() if self.signal is None else self.signal()

    def interrupt(
        self,
        name: str,
        reason: object = None,
        response: object = None,
        *,
        expires_s: float | None = None,
        response_model: type[Response] | None = None,
        may_answer: Sequence[str] = (),
    ) -> Response:
        """Ask a person. The first call stops the tool and the turn waits; once there is an answer, the call returns it.

        The tool then runs again from its beginning, so ask before anything takes effect. `name` tells the questions of
        one tool use apart; the same name is the same question. `reason` is shown to the person. Do not catch
        `InterruptException`: it is what stops the tool.

        Args:
            name: The question's name; the same name is the same question.
            reason: The details for the person, as JSON.
            response: An answer that is known already.
            expires_s: Seconds from now during which the question is open.
            response_model: The type of the answer, such as `bool` or a pydantic model.
            may_answer: The names or roles of the people who may answer: kept and shown with the question. The program
                that takes the answer holds them to it.

        Raises:
            Invalid: For a value that is not JSON, for two different questions with one name, and for an answer that is
                not of the type. Correct the argument.
        """
        if self.questions is None:
            raise Invalid("no person can be asked here: the tool was not called by an agent", name=name)
        scope = tool_scope(self.tool_use["toolUseId"])
        answer = self.questions.ask(scope, name, reason, response, expires_s, may_answer)
        return response_as(response_model, answer, name)

    def wake_at(
        self,
        at: object = None,
        prompt: str = "",
        *,
        in_s: object = None,
        every_s: object = None,
        id: str | None = None,
        deliver_to: str | Sequence[str] | None = None,
        **again: Unpack[CalendarOptions],
    ) -> str:
        """Have the session run a turn with this prompt at a time, even if nobody calls; returns the timer's id.

        The timer is stored with the tool's result.

        Args:
            at: An aware datetime or epoch seconds; or `in_s`, seconds from now.
            prompt: The prompt of the turn.
            in_s: Seconds from now, in place of `at`.
            every_s: Again and again, at this period.
            id: Replaces the timer of that id; without one, every attempt at this tool use sets the same timer.
            deliver_to: The destinations of `Runtime.deliver` that are told of the timer's turns, by name. None: those
                that the caller of this turn has named for it.
            again: `every`: as `every_s`, or a cron expression such as `0 8 * * 1-5` in the time zone `tz` (UTC without
                one). `missed`: one turn for all times that were missed (`one`), one each (`all`), or none (`none`).

        Raises:
            Invalid: Outside a `Runtime` with SQLite, for wrong values, and for more than 1,000 timers. Correct the
                argument.
            TooLarge: For a prompt above `limits["prompt_bytes"]`, or above 128 KiB with those of all timers. Give a
                smaller value, or raise the bound.
        """
        if self.timers is None:
            raise Invalid(NOBODY_WAKES)
        every, tz, missed = again.get("every"), again.get("tz"), again.get("missed", "one")
        if every_s is not None and every is not None:
            raise Invalid("say the period by every or by every_s, not by both", every=every, every_s=every_s)
        due = DueTimes(at=at, in_s=in_s, every=every_s if every is None else every, tz=tz, missed=missed)
        to = None if deliver_to is None else check_names(deliver_to)
        return self.timers.set(id, prompt, due, attempt=self.attempt, deliver_to=to)


class Tool(Protocol):
    """A tool that the model may call.

    Attributes:
        name: The name by which the model asks for it.

    Examples:
        >>> from repertory import Agent, ScriptedModel, Tool
        >>> class Clock(Tool):
        ...     name = "clock"
        ...     spec = {"name": "clock", "description": "The time.", "inputSchema": {"json": {"type": "object"}}}
        ...     async def run(self, tool_use, context):
        ...         return {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": "noon"}]}
        >>> agent = Agent(ScriptedModel("Noon."), tools=[Clock()])
        >>> agent.tool.clock()["content"]
        [{'text': 'noon'}]
    """

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> ToolSpec:
        """Name, description and JSON schema as the model sees them."""
        ...

    @property
    def effects(self) -> bool:
        """True if running it changes the outside world. Its start is durable before it runs."""
        return True

    @property
    def idempotent(self) -> bool:
        """True if running it twice with the same idempotency key has the effect of one run."""
        return False

    @property
    def timeout_s(self) -> float | None:
        """Seconds one attempt may take; None means no bound."""
        return None

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run once. Failures of the tool itself are results with status `error`, not exceptions.

        Args:
            tool_use: The tool use: its id, the name of the tool, and its input.
            context: The call's context.
        """
        ...


class OutputSchema(Protocol):
    """Structured output that a caller asked for: an output schema that the model fills in by calling it as a tool."""

    @property
    def kind(self) -> type[Any]:
        """The type that the caller gave."""
        ...

    @property
    def name(self) -> str:
        """The tool's name."""
        ...

    @property
    def spec(self) -> ToolSpec:
        """The output schema as the model sees it."""
        ...

    def read(self, value: object) -> tuple[object, str]:
        """The model's answer (a JSON value, or its text) as the value that the caller asked for, and as JSON text.

        Args:
            value: The model's answer.

        Raises:
            Invalid: With a message that the model can act on. Correct the argument.
        """
        ...


class Lease(Struct, frozen=True, kw_only=True, weakref=True):
    """Ownership of one session. `generation` rises with each owner: it is the fencing token.

    Attributes:
        session_id: The session that is owned.
        owner: The id of the owner.
        generation: The fencing token.
    """

    session_id: str
    owner: str
    generation: int
    taken_from: str | None = None
    """The owner before, if it ended, or was silent too long: it is for logs, and not a part of the lease."""

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Lease) and self._title == other._title)

    def __hash__(self) -> int:
        return hash(self.session_id)

    def release_now(self) -> bool:
        """Give the session up within this step of the event loop. False where that has to wait, and nothing has
        changed: call `SessionStore.release`.
        """
        return False

    def acquire_now(self) -> bool:
        """Own the session again under this lease, which was released, within this step of the event loop. False where
        that cannot be, or has to wait: call `SessionStore.acquire`.
        """
        return False

    @property
    def _title(self) -> tuple[str, str, int]:
        return self.session_id, self.owner, self.generation


class OwnedRows(NamedTuple):
    """A lease, and the rows of one agent that were loaded under it.

    Attributes:
        lease: The lease.
    """

    lease: Lease
    rows: Sequence[Row] | RepertoryError = ()
    """The error, if they could not be loaded: the lease is held all the same. Empty if no agent was named."""


class Batch(Struct, frozen=True, kw_only=True):
    """Rows of one session, appended all or none, under its lease.

    `erase` names rows (agent id, sequence number) whose content the same commit destroys. `due` says when one of the
    session's agents must be woken if nobody calls; None: as before. Stores without `waking` ignore it.

    Attributes:
        lease: The lease under which the rows are appended.
        rows: The rows, in the order of their sequence numbers.
        erase: Rows (agent id, sequence number) whose content the commit destroys.
        forget: Agents whose journals the commit removes; the batch has no rows of theirs. Those that there are not are
            ignored, and one of that id may begin anew later. A store may ignore all of it, as those do whose layout
            other programs read.
        due: The time to wake an agent of the session; None: as before.
        release: True if this is the last commit under the lease for now. A store whose `acquires_again` is `commit` may
            give the session up with it, and says so in `Position.released`; others ignore it.
        take: True for a lease that was given up in such a store: the commit takes the session again on the condition of
            `SessionStore.acquire` with `again`, and is refused with `LeaseLost` otherwise. Nothing is taken where the
            lease is the current one.
    """

    lease: Lease
    rows: Sequence[Row]
    erase: Sequence[tuple[str, int]] = ()
    due: DueTime | None = None
    release: bool = False
    take: bool = False
    forget: Sequence[str] = ()


class Position(Struct, frozen=True, kw_only=True):
    """The last durable sequence number of an agent's journal.

    Attributes:
        agent_id: The agent.
        seq: The sequence number.
        released: True if the commit has given the session up, as `Batch.release` wanted.
    """

    agent_id: str
    seq: int
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session's entry in a listing.

    Args:
        session_id: The id of the session.
        updated_at: Epoch seconds.
    """

    session_id: str
    agents: Mapping[str, int]
    """Agent id to its last sequence number."""
    created_at: float
    """Epoch seconds."""
    updated_at: float
    owner: str | None
    """The owner that holds the lease now; None when there is none."""
    damaged: bool = False
    """True if part of the session cannot be read; `agents` then lacks the damaged agents."""
    erased: bool = False
    """True if the session's key was erased: nobody can read it, and its rows still prove what was there."""


class SessionEnds(NamedTuple):
    """A session, and for each of its agents the rows from the last one's `low` on.

    Attributes:
        info: The line of the session in a listing.
        rows: The rows by agent id, in order.
    """

    info: SessionInfo
    rows: Mapping[str, Sequence[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Damage that was found in stored data.

    Args:
        what: The defect, in words.
    """

    where: str
    """The key of an object, the path of a file, or a row."""
    what: str


class SalvagedRows(Struct, frozen=True, kw_only=True):
    """The rows that can still be read of a session.

    Attributes:
        damages: The damage that was met.
    """

    rows: Sequence[Row] = ()
    """Every readable row, of all agents, in any order and unverified; the same row may appear twice."""
    damages: Sequence[Corruption] = ()


class Inspection(Struct, frozen=True, kw_only=True):
    """The findings of an inspection of a whole store, beyond single sessions.

    Attributes:
        damages: The damage that was found.
    """

    damages: Sequence[Corruption] = ()
    sick: Mapping[str, str] = {}
    """Defects that reading a session need not meet, by session id."""
    strays: Sequence[str] = ()
    """Objects or files among the sessions that belong to none: leftovers, or another program's. They do no harm."""


class IdPage(NamedTuple):
    """A page of a listing, in the order of the code points of the ids.

    Attributes:
        prefix: The beginning of the ids; empty for all.
        after: The last id of the page before; empty for the first page.
        limit: The most lines. A page with fewer of them is the last one.
        asking: True: sessions that surely ask no person anything may be left out. Every one that asks is there.
    """

    prefix: str = ""
    after: str = ""
    limit: int = 1000
    asking: bool = False

    def of(self, infos: Iterable[SessionInfo]) -> list[SessionInfo]:
        """The lines of the page among these.

        Args:
            infos: The lines of a listing, in any order.
        """
        found = [info for info in infos if info.session_id.startswith(self.prefix) and info.session_id > self.after]
        return sorted(found, key=lambda info: info.session_id)[: self.limit]


UntilFree: TypeAlias = Callable[[str, float], Awaitable[None]]
"""`await until_free(owner, within_s)` returns when that owner may have given the session up, after `within_s` seconds
at the latest. It may return early.
"""


@asynccontextmanager
async def by_the_clock(session_id: str = "") -> AsyncGenerator[UntilFree]:
    """A `StoreSharing.waiting` that waits all of the time: nobody says when a session is free."""
    del session_id
    yield lambda owner, within_s: anyio.sleep(within_s)


class Positions(Struct, frozen=True, kw_only=True):
    """Reads of a part of a journal that cost as much as opening there, however long the journal is. Errors of each:
    those of `SessionStore.load`.
    """

    load_at: Callable[[str, str, int], Awaitable[Sequence[Row]]]
    """`await load_at(session_id, agent_id, seq)`: rows in order, from the `low` of the row at `seq` up to that row,
    with their current content. Empty when there is no such row.
    """
    load_range: Callable[[str, str, int, int], Awaitable[Sequence[Row]]]
    """`await load_range(session_id, agent_id, first, last)`: the rows with these sequence numbers, in order, as far as
    there are such rows, with their current content.
    """
    labels: Callable[[str, str], Awaitable[Sequence[Row]]] | None = None
    """`await labels(session_id, agent_id)`: the rows of kind `snapshot` whose content is not erased, in order. None:
    they are found by reading the whole journal.
    """


class WorkQuery(Struct, frozen=True):
    """The works that a caller of `Waking.claim_due` can do now.

    Attributes:
        now: Epoch seconds.
        limit: The most works.
        agents: The ids of the agents; others are left out.
        stalled: Agents of sessions that the store's object owns, in which nothing is under way.
        passing: Tenants whose sessions are passed over, each as `tenant_part` of their ids.
    """

    now: float
    limit: int
    agents: Collection[str]
    stalled: Collection[StalledAgent] = ()
    passing: Collection[str] = ()


class Waking(Struct, frozen=True, kw_only=True):
    """The sessions that must be woken, as `Batch.due` has said."""

    claim_due: Callable[[WorkQuery], Awaitable[Sequence[PendingWork]]]
    """`await claim_due(query)`: claim works of these agents that are due, in sessions that no live owner has (one that
    this object owns: see `may_claim`), the longest due first. Each is then due again as `next_due` says, so that of
    many callers one gets it; parked work is left out. Releasing a session sets the claims of its work back to 0.
    Errors: `Unavailable`: call again later.
    """
    pending_work: Callable[[str | None], Awaitable[Sequence[PendingWork]]]
    """`await pending_work(session_id)`: the work of one session, or (None) of all, the first due first, with what is
    parked. Errors: `Unavailable`.
    """


async def _nothing(*given: object) -> Sequence[Any]:
    del given
    return ()


class StoreRepair(Struct, frozen=True, kw_only=True):
    """Damage is found and repaired by these calls. Those that look change nothing."""

    salvage: Callable[[str], Awaitable[SalvagedRows]]
    """`await salvage(session_id)`: everything of a session that can be read."""
    set_aside: Callable[[str, Sequence[Row]], Awaitable[str]]
    """`await set_aside(session_id, keep)`: move all stored data of a session aside, unchanged, where no store reads
    it, and store the rows `keep` in its place: whole journals, from their first rows on. Returns the name of the moved
    data. Errors: `NotFound` if there is no such session; `SessionBusy` if a live owner other than this object has it.
    """
    quarantined: Callable[[str], Awaitable[Sequence[str]]]
    """`await quarantined(session_id)`: the names of a session's data that was set aside, oldest first. Deleting the
    session removes that data as well.
    """
    inspect: Callable[[], Awaitable[Inspection]] | None = None
    """`await inspect()`: a look at the store as a whole. None: there is nothing to see beyond its sessions."""
    examine: Callable[[str], Awaitable[Sequence[Corruption]]] = _nothing
    """`await examine(session_id)`: all damage of a session that opening it would not meet."""
    rebuild: Callable[[Callable[[SalvagedRows], Sequence[Row]]], Awaitable[str]] | None = None
    """`await rebuild(keep)`: move the whole store aside and build a new one from the rows that `keep` returns for each
    session (none: the session is left out). Returns the name of the moved data. `keep` is called in another thread.
    Errors: `SessionBusy` when a live owner other than this object has a session there. None: the sessions share no file
    that may be damaged as a whole.
    """
    corrupt_files: Callable[[], Awaitable[Sequence[str]]] = _nothing
    """`await corrupt_files()`: the names of what `rebuild` moved aside, oldest first. They may hold any session;
    nothing removes them.
    """
    forgets_the_oldest: bool = False
    """True if the oldest records expire by themselves: a journal that begins later than before is not damaged."""


class StoreSharing(Struct, frozen=True, kw_only=True):
    """Other owners share the sessions of the store, and ask its owner for them by these calls."""

    asked_for: Callable[[], Awaitable[Sequence[str]]]
    """`await asked_for()`: the sessions that this object holds or is acquiring, and that others have asked for since
    the last call: `acquire` asks whenever it is refused with `SessionBusy`. An owner releases such a session when no
    turn of it runs. Cheap: where requests cost money, it sends none beyond those that renew leases. Errors:
    `Unavailable`.
    """
    look_every_s: float = 0.25
    """Seconds from one call of `asked_for` to the next, besides those that `listen` asks for."""
    yields_within_s: float = 1.0
    """Seconds in which an idle owner usually frees a session after it was asked."""
    listen: Callable[[Callable[[], None]], Awaitable[None]] | None = None
    """`await listen(asked)`: call `asked` as soon as another owner has asked for a session, until cancelled. Run it,
    supervised, while the store is open and holds sessions. It may miss a request, and returns where none can be heard.
    None: nobody can be heard here.
    """
    waiting: Callable[[str], AbstractAsyncContextManager[UntilFree]] = by_the_clock
    """`async with waiting(session_id) as until_free`: for a caller that was refused with `SessionBusy` and wants to try
    again, the way to wait in between.
    """
    abandon: Callable[[], Thread | None] = lambda: None
    """`abandon()`: called instead of `aclose` when the event loop was closed and none of its tasks will run again. Lets
    go of the sessions, and closes what needs no loop. Returns at once, with the thread that still closes something.
    """
    directory: Callable[[], Directory] | None = None
    """`directory()`: the runtimes that share these sessions, of which this store's owner is one. The same object each
    time. None: they do not find each other here.
    """
    call_queue: Callable[[], CallQueue] | None = None
    """`call_queue()`: the calls that are kept beside these sessions, as this store's owner sees them. The same object
    each time. None: no calls are kept.
    """


class StoreCapabilities(Struct, frozen=True, kw_only=True):
    """The optional parts of a `SessionStore`, each None where it has none, and what its owner must know about it.

    Attributes:
        positions: Reads of parts of a journal.
        waking: The sessions that must be woken.
        repair: Finding and repairing damage.
        sharing: Other owners of the sessions.
        sealing: The keys of the sessions; None where rows are stored in plain text.
    """

    positions: Positions | None = None
    waking: Waking | None = None
    repair: StoreRepair | None = None
    sharing: StoreSharing | None = None
    sealing: Sealing | None = None
    maintained: bool = False
    """True if `maintain` must run: commits are requests that cost money, and leases expire. Groups of different
    sessions may then be appended at the same time, so sessions do not wait for each other.
    """
    others_add: bool = False
    """True if programs which know no leases may add messages. The owner's next batch without rows is then refused with
    `LeaseLost`, and such a batch costs no request, so the owner asks before each turn. Acquiring the session again
    reads the added messages.
    """
    shares_turns: bool = False
    """True if programs of the Strands Agents SDK may go on with its turns: questions to a person have the ids that the
    SDK gives them, which may repeat.
    """
    acquires_again: Literal["call", "commit"] | None = None
    """`call` if `acquire` with `again` costs less than opening the session anew: then it may be released after each
    call. `commit` if commits can do that as well, and give sessions up: `Batch.take` and `Batch.release`.
    """


_RELEASES_MAX = 64  # How many sessions are released at the same time, where a store takes each by itself.


class SessionStore(Protocol):
    """Durable, append-only journals, one per agent in a session. `name` tells two stores apart in one process.

    Subclass it. Its `capabilities` have the parts that not every store has.

    Contract (proved for every implementation by `repertory.testing.SessionStoreContract`): `append` is one group: when
    it returns, every accepted batch is on stable storage; a batch is accepted whole or refused whole; a refused batch
    never hinders another. A batch is refused with `LeaseLost` when its lease is not the current one, or its first row
    does not directly follow the last one stored. Another error says that it is unknown whether it is stored. A batch
    without rows proves that its lease is the current one, and changes nothing. Cancellation waits for the commit in
    flight.

    Attributes:
        name: The name.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> StoreCapabilities:
        """Constant while the store is open. The default has no part."""
        return StoreCapabilities()

    async def acquire(
        self, session_id: str, *, takeover: bool = False, load: str | None = None, again: Lease | None = None
    ) -> OwnedRows:
        """Become the owner of the session.

        Args:
            session_id: The id of the session.
            takeover: True fences another owner of the session, whose next write fails with `LeaseLost`. False refuses
                with `SessionBusy`.
            load: The id of an agent whose rows are loaded with it, as by `load`. Their errors are in the result.
            again: A lease of the session that this object has released: it is the current one again if nobody has owned
                the session since, and the journals are as its owner left them.

        Raises:
            SessionBusy: If a live owner has it. Call again later, or let the other process release it.
            LeaseLost: If the session cannot be owned `again` under that lease. Nothing has changed; acquire it anew.
            Unavailable: If the store cannot be reached. Call again later.
        """
        ...

    async def release(self, leases: Sequence[Lease]) -> Sequence[RepertoryError | None]:
        """Give sessions up, in any order: of each, why it failed, or None. A lease that is no longer current is
        ignored.

        Args:
            leases: The leases.

        Raises:
            Unavailable: If it is unknown of all of them. Release them again.
        """
        ...

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit one group; one outcome per batch, in order.

        Args:
            batches: The batches, of any sessions.

        Raises:
            Unavailable: If it is unknown whether anything is stored. Acquire the session again, and read what is there.
        """
        ...

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on; with `whole`, all of them. Empty when there are none.

        Args:
            session_id: The id of the session.
            agent_id: The id of the agent in its session.
            whole: True for all rows.
        """
        ...

    async def sessions(self, session_id: str | None = None, *, page: IdPage | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, most recently changed first. A damaged session is listed without the agents
        that cannot be read.

        Args:
            session_id: That session alone, read without looking at the others; None for all.
            page: The lines of this page alone, in its order. They cost by the sessions with its prefix, however many
                others there are, unless the store can only list all of them.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Erase a session.

        Args:
            session_id: The id of the session.

        Raises:
            NotFound: If there is no such session. Check the id.
            SessionBusy: If a live process other than this one owns it. Let that one release it, then call again.
        """
        ...

    async def maintain(self) -> None:
        """Renew the held leases and tidy up, until cancelled. Run it, supervised, while the store is open.

        Cancelling it is safe at any time. Work that fails is tried again.
        """

    async def aclose(self) -> None:
        """Close, and release the leases held by this object. Calling it twice is allowed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPublished:
    """An agent whose snapshots or documents lack its last records, since they could not be written.

    The journal has the records, and the next owner of the session writes what is missing.

    Args:
        session_id: The id of the session.
        agent_id: The id of the agent in its session.
        error: The reason why they could not be written.
    """

    session_id: str
    agent_id: str
    error: str


class PublishingStore(ABC):
    """A session store adds this where it writes its journals in a layout for other programs, besides."""

    @abstractmethod
    def not_published(self) -> Sequence[NotPublished]:
        """The agents whose last try to write has failed, as far as this object knows. Also after `aclose`."""
        ...


# What follows from the port, for every store.


async def give_up(store: SessionStore, lease: Lease) -> None:
    """Release one lease. Errors: those with which `SessionStore.release` answers."""
    (error,) = await store.release([lease])
    if error is not None:
        raise error


async def owned_rows(store: SessionStore, lease: Lease, agent_id: str | None) -> OwnedRows:
    """The result of `SessionStore.acquire` where loading is a call of its own."""
    if agent_id is None:
        return OwnedRows(lease)
    try:
        return OwnedRows(lease, await store.load(lease.session_id, agent_id))
    except RepertoryError as error:
        return OwnedRows(lease, error)
    except BaseException:
        with suppress(RepertoryError), Uncut():
            await store.release([lease])
        raise


def not_again(lease: Lease) -> LeaseLost:
    """The error of `SessionStore.acquire` when a lease cannot be the current one again."""
    text = "the session may have had another owner since it was released: acquire it anew"
    return LeaseLost(text, session=lease.session_id, generation=lease.generation)


async def release_each(
    release: Callable[[Lease], Awaitable[None]], leases: Sequence[Lease]
) -> Sequence[RepertoryError | None]:
    """Release each lease by a call of its own, some of them at the same time."""
    outcomes: list[RepertoryError | None] = [None] * len(leases)
    numbers = iter(range(len(leases)))

    async def work() -> None:
        for number in numbers:
            try:
                await release(leases[number])
            except RepertoryError as error:
                outcomes[number] = error

    if len(leases) == 1:
        await work()
        return outcomes
    async with anyio.create_task_group() as group:
        for _ in range(min(_RELEASES_MAX, len(leases))):
            group.start_soon(work)
    return outcomes


async def begin(store: SessionStore, session_id: str, rows: Sequence[Row]) -> None:
    """Store a new session that nobody owns: all rows, which begin its journals, or none. An encrypted store gets them
    sealed.

    Errors: those of `SessionStore.acquire` and `SessionStore.append`.

    Raises:
        AlreadyExists: When `sessions` would list it. Choose another id, or delete the old one first.
        LeaseLost: When another owner was faster, or the rows do not begin journals. Read what is stored now.
    """
    if await store.sessions(session_id):
        raise taken(session_id)
    from repertory.core.journal.sealing import LOCKED, sealed_journals  # loaded when used

    lease, _ = await store.acquire(session_id)
    held = [lease]
    try:
        try:
            seal = await seal_of(store, session_id)
        except LOCKED as error:
            raise taken(session_id) from error
        rows = rows if seal is None else sealed_journals(rows, seal)
        (outcome,) = await store.append([Batch(lease=lease, rows=rows, release=True)])
        held = [] if isinstance(outcome, Position) and outcome.released else held
        if held and store.capabilities.maintained and isinstance(outcome, Position):
            (outcome,) = await store.append([Batch(lease=lease, rows=())])  # The lease may have expired meanwhile.
        if isinstance(outcome, RepertoryError):
            raise outcome
    finally:
        with suppress(RepertoryError), Uncut():  # What is not released here expires.
            await store.release(held)


async def ends(store: SessionStore, session_id: str) -> SessionEnds | None:
    """Load a session's entry in the listing, and the rows of each of its agents. None: there is no such session."""
    found = await store.sessions(session_id)
    if not found:
        return None
    return SessionEnds(found[0], {agent_id: await store.load(session_id, agent_id) for agent_id in found[0].agents})


async def load_range(store: SessionStore, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
    """Load rows as `Positions.load_range` does; from the whole journal where the store has no such part."""
    if (positions := store.capabilities.positions) is not None:
        return await positions.load_range(session_id, agent_id, first, last)
    return await rows_between(store, session_id, agent_id, first, last)


async def rows_between(store: SessionStore, session_id: str, agent_id: str, first: int, last: int) -> Sequence[Row]:
    """The rows with these sequence numbers, from the whole journal."""
    rows = await store.load(session_id, agent_id, whole=True)
    return [row for row in rows if first <= row.seq <= last]


async def pending_work_of(store: SessionStore, session_id: str | None = None) -> Sequence[PendingWork]:
    """The pending work of sessions; nothing where the store wakes no sessions."""
    waking = store.capabilities.waking
    return () if waking is None else await waking.pending_work(session_id)


async def seal_of(store: SessionStore, session_id: str) -> Seal | None:
    """The store's `Sealing.seal`; None where rows are stored as they are."""
    sealing = store.capabilities.sealing
    return None if sealing is None else await sealing.seal(session_id)


def call_queue_of(store: SessionStore) -> CallQueue | None:
    """The store's queue of calls; None where no calls are kept."""
    sharing = store.capabilities.sharing
    return None if sharing is None or sharing.call_queue is None else sharing.call_queue()


def taken(session_id: str) -> AlreadyExists:
    """The error for a session that is not new."""
    return AlreadyExists("another session has this id; choose one that is free", session=session_id)


class Create(Struct, frozen=True):
    """Put only if no object has the key."""


class Update(Struct, frozen=True):
    """Put only if the stored object has this `version`.

    Attributes:
        version: The version that the stored object must have.
    """

    version: str


class Overwrite(Struct, frozen=True):
    """Put unconditionally. It fences no writer: use it for objects with one writer, or where the last write wins."""


Condition = Create | Update | Overwrite


class StoredObject(Struct, frozen=True, kw_only=True):
    """An object as it was read.

    Attributes:
        body: The bytes.
        version: The version, for `Update`.
    """

    body: bytes
    version: str


class ObjectInfo(Struct, frozen=True, kw_only=True):
    """An object's entry in a listing.

    Attributes:
        key: The object's key.
        size_bytes: The object's size in bytes.
    """

    key: str
    size_bytes: int
    version: str | None
    """The object's version; None where the store would have to read the object to find it."""
    modified_at: float
    """The time of the last change, in epoch seconds by the store's clock."""


class NoObject(Invalid):
    """A link, a pipe, or a file that no put has made has the key of an object. Remove it, or restore the object."""


class ObjectStore(Protocol):
    """Durable objects under keys, written under conditions. `name` tells two stores apart in one process.

    Contract (proved for every implementation by `repertory.testing.object_contract`):

    - Keys are what `check_key` accepts. A key that is the folder of another one (`a` beside `a/b`) may be refused with
    `Invalid`, since file systems cannot hold both.
    - A `get` sees the whole of one put or nothing of it. When `put` returns, the object survives a crash of the
    machine, and every later `get` and `list`, in any process, sees it.
    - Of writers that race with `Create`, or with `Update` from the same version, exactly one wins.
    - A version names a content: it changes with the body, and may come back when the body does. A caller that must tell
    equal bodies apart puts a counter into the body.
    - Cancelling a `put` leaves the object whole, either old or new. Files wait for the write in flight; on S3 a request
    that was already sent may still take effect shortly afterwards.

    Every method raises `Unavailable` or `Throttled` when retries within the store's own bound did not help. A put may
    have been stored all the same. `Failed` says that the service refuses, and its message what to change: permissions,
    bucket or clock. `Invalid` is for the caller's mistakes, and for calls after `aclose`. No method raises `Corrupt`:
    the callers decide what a body means. Objects of other programs count like those of Repertory; objects without a
    valid key are not listed.

    Attributes:
        name: The name that tells it from other stores.
    """

    @property
    def name(self) -> str: ...

    async def get(self, key: str) -> StoredObject:
        """Read an object.

        Args:
            key: The object's key.

        Raises:
            NotFound: If there is no such object; the error has the key.
        """
        ...

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object and return its version.

        A put whose response was lost is recognized and counts as done, unless another writer has replaced the object
        since; then it is a conflict.

        Args:
            key: The object's key.
            body: The bytes.
            condition: `Create()`, `Update(version)` or `Overwrite()`.

        Raises:
            AlreadyExists: With `Create`, if there is such an object. Read it, then decide.
            PreconditionFailed: With `Update`, if there is another version, or no object. Read again, and repeat the
                change.
        """
        ...

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """All objects whose key begins with `prefix` and follows `start_after`, in the byte order of their keys.

        `prefix` is empty, or a key with or without a slash at its end.

        Args:
            prefix: The beginning of the keys; empty for all.
            start_after: Only keys after this one.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object for good. A missing object is no error.

        Args:
            key: The object's key.
        """
        ...

    async def aclose(self) -> None:
        """Close. Calling it twice is allowed."""
        ...
