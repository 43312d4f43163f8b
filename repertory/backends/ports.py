"""The ports: what the agent system asks of the outside world. Implementations live in the neighbouring folders.

Actors import this file and never an implementation. Policy (what to write, when, who owns what) lives above the ports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from repertory.core.interrupts import tool_scope
from repertory.core.limits import RESULT_BYTES
from repertory.core.tokens import estimate_tokens, window_of
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.interrupts import Questions
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Message, ToolResult, ToolSpec, ToolUse
    from repertory.core.state import AgentState
    from repertory.errors import RepertoryError

StreamEvent = dict[str, Any]
"""One event of a model's answer, spelled as Converse streams spell it: a dictionary with one key.

`messageStart`, `contentBlockStart`, `contentBlockDelta`, `contentBlockStop`, `messageStop`, `metadata`,
`redactContent`.
"""


class Model(ABC):
    """A language model. Subclass it to bring your own.

    Order of a well-formed stream: `messageStart`, then per block `contentBlockStart` (may be left out for text),
    any number of `contentBlockDelta`, `contentBlockStop`, then `messageStop`, then at most one `metadata`.
    A stream that ends without `messageStop` is broken, never a short answer.

    Errors: `Throttled`, `Unavailable` (retry), `ContextWindowOverflowException` (shorten), `ModelFailed` (give up).
    Cancellation: closing the iterator must release the connection.
    Source: Bedrock `ConverseStream`, and the model interface of the SDK whose users we serve.
    """

    stateful: bool = False
    """Whether the provider keeps the conversation itself."""

    @abstractmethod
    def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        """Ask the model. The messages must not be edited; `options` are the provider's own."""

    def get_config(self) -> Mapping[str, Any]:
        """The settings this model was built with."""
        return {}

    def update_config(self, **settings: Any) -> None:
        """Change settings for later calls. Models without settings refuse."""
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
        """Whether `count_tokens` asks the provider, rather than estimating."""
        return settings_of(self).get("use_native_token_count") is True

    async def count_tokens(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
    ) -> int:
        """Tokens that these would take; an estimate unless the provider counts."""
        return estimate_tokens(messages, tool_specs, system_prompt)

    async def aclose(self) -> None:
        """Release connections. Calling it twice is allowed."""
        return


def settings_of(model: Model) -> Mapping[str, Any]:
    """A model's settings by name, whatever its `get_config` gives: a mapping, an object with attributes, or nothing."""
    config = cast("object", model.get_config())
    return cast("Mapping[str, Any]", config if isinstance(config, Mapping) else getattr(config, "__dict__", {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a running tool may know of its call."""

    tool_use: ToolUse
    agent_id: str
    state: AgentState
    idempotency_key: str
    """The same for every attempt at this call, across restarts, and in forks and snapshots that were taken in the
    middle of it. Hand it to services that deduplicate.
    """
    attempt: int = 1
    invocation_state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    agent: Any = None
    """The `Agent` that the tool runs for, as users know it."""
    on_partial: Callable[[object], Awaitable[None]] | None = None
    """Shows a piece of the result, as it comes, to whoever streams the turn; None when nobody does."""
    on_exception: Callable[[Exception], None] | None = None
    """Notes what was raised, when that becomes an error result."""
    questions: Questions | None = None
    """What was asked and answered before; None where nobody can be asked."""
    result_bytes: int = RESULT_BYTES
    """How much the result may weigh; see `Limits`. The model is not shown a heavier one."""

    def interrupt(
        self, name: str, reason: object = None, response: object = None, *, expires_s: float | None = None
    ) -> Any:
        """Ask a person: the first time the tool stops here and the turn waits, the second time the answer is returned.

        The tool runs anew from its beginning when it has its answer, so ask before anything takes effect. `name` tells
        the questions of one tool use apart; the same name is the same question. `reason` is shown to the person.
        `response`: an answer that is known already. `expires_s`: seconds from now for which the question stands.
        Errors: `Invalid` for what is no JSON, and for two different questions of one name. The exception by which the
        tool stops, `InterruptException`, is not to be caught.
        """
        if self.questions is None:
            raise Invalid("nobody can be asked here: the tool was not called by an agent", name=name)
        scope = tool_scope(self.tool_use["toolUseId"])
        return self.questions.ask(scope, name, reason, response, expires_s)


class Tool(Protocol):
    """Something that the model may call."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> ToolSpec:
        """Name, description and JSON schema as the model is told."""
        ...

    @property
    def effects(self) -> bool:
        """Whether running it changes the world. Its start is durable before it runs."""
        ...

    @property
    def idempotent(self) -> bool:
        """Whether running it twice with the same idempotency key is as good as once."""
        ...

    @property
    def timeout_s(self) -> float | None:
        """Seconds one attempt may take; None means no bound."""
        ...

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Run once. Failures of the tool itself are results with status `error`, not exceptions."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool as its server describes it. The fields mean what they mean for `Tool`."""

    spec: ToolSpec
    effects: bool = True
    idempotent: bool = False
    timeout_s: float | None = None


class ToolConnection(Protocol):
    """An open connection to a server of tools. Calls may overlap.

    Errors of every method: `Unavailable` when the connection has ended, at once for calls in flight. Cancelling a
    call asks the server to drop it.
    """

    async def tools(self) -> Sequence[OfferedTool]:
        """What the server offers now, in its order. Errors: `Failed` when it does not answer in time, or nonsense."""
        ...

    async def call(self, name: str, tool_use: ToolUse, result_bytes: int = RESULT_BYTES) -> ToolResult:
        """Run the tool of that name once. What the server refuses, or says that no one can read, is an error result.

        Errors: `TooLarge` for a result that weighs more than `result_bytes` (`core/limits.py`).
        """
        ...

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        """Whatever else the server's protocol has, by the protocol's name for it.

        Errors: `Failed`, `Invalid`, `TooLarge`.
        """
        ...

    async def changed(self) -> None:
        """Wait until the tools may have changed. Raises `Unavailable` once the connection has ended."""
        ...


@runtime_checkable
class ToolSource(Protocol):
    """Where tools come from that somebody else runs. `name` tells sources apart in messages and in the tree."""

    @property
    def name(self) -> str: ...

    def connect(self) -> AbstractAsyncContextManager[ToolConnection]:
        """Connect, for as long as the block; entered and left in one task, any number of times one after the other.

        Errors, on entering: `Unavailable`, within a bound of the source's own, naming it and what to check.
        """
        ...


class OutputSchema(Protocol):
    """Structured output that a caller wants: a form that the model fills in by calling it as a tool."""

    @property
    def name(self) -> str:
        """The tool's name."""
        ...

    @property
    def spec(self) -> ToolSpec:
        """The form as the model is told of it."""
        ...

    def read(self, value: object) -> tuple[object, str]:
        """What the model filled in (a JSON value, or the text of one), as the caller wants it and as JSON text.

        Errors: `Invalid` with a message that the model can act on.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Ownership of one session. `generation` rises with each owner: it is the fencing token."""

    session_id: str
    owner: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of one session to be appended together or not at all, under its lease.

    `erase` names rows (agent id, sequence number) whose content the same commit destroys.
    """

    lease: Lease
    rows: Sequence[Row]
    erase: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last durable sequence number of an agent's journal."""

    agent_id: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One line of a listing."""

    session_id: str
    agents: Mapping[str, int]
    """Agent id to its last sequence number."""
    created_at: float
    """Epoch seconds."""
    updated_at: float
    owner: str | None
    """Who holds the lease now; None when nobody does."""
    damaged: bool = False
    """Whether something was met that cannot be read; agents that are damaged are left out then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corruption:
    """Something that is wrong with what is stored."""

    where: str
    """The key of an object, the path of a file, or a row."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvagedRows:
    """What can be had of a session, whatever is wrong with it."""

    rows: Sequence[Row] = ()
    """Every row that can be read, of all agents, in any order and not proved; the same one may be there twice."""
    damages: Sequence[Corruption] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found where sessions lie, rather than in one of them."""

    damages: Sequence[Corruption] = ()
    sick: Mapping[str, str] = field(default_factory=dict[str, str])
    """Session to what is wrong with it that reading it need not meet."""
    strays: Sequence[str] = ()
    """What lies among the sessions and is no part of any: left over, or somebody else's. It does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCapabilities:
    """What a `SessionStore` can do besides keeping journals, and what its owner must know of it."""

    others_add: bool = False
    """Whether programs that know no leases may add messages to its sessions at any time. An owner meets what they have
    added with its next append, which is refused with `LeaseLost`; acquiring the session again takes it in.
    """
    maintained: bool = False
    """Whether `maintain` is to run: commits are requests that cost, and leases end by themselves. Sessions do not wait
    for each other then: groups of different sessions may be appended at the same time.
    """
    flush_delay_s: float = 0.0
    """How long records that nobody waits for should gather before they are appended."""
    look_every_s: float | None = None
    """How often an owner should call `asked_for`. None: owners cannot be asked for a session."""
    yields_within_s: float = 1.0
    """How long an idle owner takes, as a rule, from being asked until the session is free."""
    reads_positions: bool = False
    """Whether `load_at` takes what opening there takes, however long the journal is."""
    finds_labels: bool = False
    """Whether `labels` finds the snapshots of a journal without reading the rest of it."""
    quarantines: bool = False
    """Whether damage can be read around, and what is damaged be moved aside: `salvage` and `set_aside`."""
    rebuilds: bool = False
    """Whether all sessions lie in one thing that may be damaged as a whole: `rebuild`."""
    forgets_the_oldest: bool = False
    """Whether the oldest records go by themselves some day, which is no damage: a journal may begin later than it did.
    """


class Named(Protocol):
    """`name` tells two stores apart in one process."""

    @property
    def name(self) -> str: ...


class Maintained(Named, Protocol):
    """What a session store does between commits, and reads besides whole journals."""

    async def maintain(self) -> None:
        """Renew the leases that are held, and tidy up, until cancelled. Run it, supervised, while the store is open.

        Cancelling it is safe at any time, and what fails is tried again.
        """

    async def asked_for(self) -> Sequence[str]:
        """The sessions held by this object that others have asked for since the last look: `acquire` asks whenever it
        is refused with `SessionBusy`. An owner gives such a session up when no turn of it runs. Cheap: no request of
        its own to a store whose requests cost, beyond those by which leases are renewed. Errors: `Unavailable`.
        """
        return ()

    async def load_at(self, session_id: str, agent_id: str, seq: int) -> Sequence[Row]:
        """Rows in order, from the `low` of the row at `seq` up to that one, their content as it is now. Empty when
        there is no such row. Errors: those of `load`; `Invalid` where only whole journals are read.
        """
        raise _unable(self, "read a position by itself", session_id)

    async def labels(self, session_id: str, agent_id: str) -> Sequence[Row]:
        """The rows of kind `snapshot` that have their content, in order. Errors: as `load_at`."""
        raise _unable(self, "find labels by themselves", session_id)


class Repairable(Named, Protocol):
    """What a session store can do about damage."""

    async def inspect(self) -> Inspection:
        """Look at the place as a whole. Changes nothing."""
        return Inspection()

    async def examine(self, session_id: str) -> Sequence[Corruption]:
        """Everything that is damaged of a session where nobody who opens it would meet that. Changes nothing."""
        return ()

    async def salvage(self, session_id: str) -> SalvagedRows:
        """Everything of a session that can be read. Changes nothing."""
        raise _unable(self, "read around damage", session_id)

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Move all that is stored of a session to where nobody reads it, as it is, and store these rows in its place:
        whole journals, from their first rows on. Gives the name of what was moved.

        Errors: `NotFound`, `SessionBusy` (a live owner other than this object has it).
        """
        raise _unable(self, "set anything aside", session_id)

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """What was set aside of a session, by name, the oldest first. Deleting the session removes it as well."""
        return ()

    async def rebuild(self, keep: Callable[[SalvagedRows], Sequence[Row]]) -> str:
        """Make the place anew of the rows that `keep` gives for each session (none: it is left out), and move aside
        what was there. Gives the name of what was moved. `keep` is called in another thread.

        Errors: `SessionBusy` when a live owner other than this object has a session there.
        """
        raise _unable(self, "be made anew", None)

    async def corrupt_files(self) -> Sequence[str]:
        """What was moved aside so, by name, the oldest first. Any session may be in there; nothing removes it."""
        return ()


class SessionStore(Maintained, Repairable, Protocol):
    """Durable, append-only journals, one per agent in a session. `name` tells two stores apart in one process.

    Subclass it: what not every store can do has an answer here, and `capabilities` says what is more than that.

    Contract (proved for every implementation by `repertory.testing.SessionStoreContract`): `append` is one group:
    when it returns, every accepted batch is on stable storage; a batch is accepted whole or refused whole; a refused
    batch never hinders another. A batch is refused with `LeaseLost` when its lease is not the current one or its
    first row does not directly follow the last one stored; with another error when nobody knows whether it is stored.
    A batch without rows proves that its lease is the current one, and changes nothing. Cancellation waits for the
    commit in flight.
    """

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Become the owner. Errors: `SessionBusy` (a live owner; `takeover=True` fences it), `Unavailable`."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the session up. A lease that is no longer current is ignored."""
        ...

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | RepertoryError]:
        """Commit one group; one outcome per batch, in order. Errors: `Unavailable` (nothing is known to be stored)."""
        ...

    async def load(self, session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        """Rows in order, from the last row's `low` on, or all of them. Empty when there are none."""
        ...

    async def sessions(self, session_id: str | None = None) -> Sequence[SessionInfo]:
        """Every session that holds records, the most recently changed first; or that one alone, read without looking
        at the others. One that is damaged is there, without the agents that cannot be read.
        """
        ...

    async def delete(self, session_id: str) -> None:
        """Erase a session. Errors: `NotFound`, `SessionBusy` (owned by a live process other than this one)."""
        ...

    async def aclose(self) -> None:
        """Close. Leases held by this object are given up. Calling it twice is allowed."""
        ...

    @property
    def capabilities(self) -> StoreCapabilities:
        """The same for as long as the store is open. A store that says nothing can do nothing of this."""
        return StoreCapabilities()


def _unable(store: Named, what: str, session_id: str | None) -> Invalid:
    return Invalid(f"this store cannot {what}", name=store.name, session=session_id)


@dataclass(frozen=True, slots=True)
class Create:
    """Put only if no object has the key."""


@dataclass(frozen=True, slots=True)
class Update:
    """Put only if the object that is there is the one that `version` names."""

    version: str


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Put whatever is there. It fences nobody: for what has one writer, or where the last one may win."""


Condition = Create | Update | Overwrite


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object as it was read."""

    body: bytes
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One line of a listing."""

    key: str
    size_bytes: int
    version: str | None
    """None where the store would have to read the object to know it."""
    modified_at: float
    """Epoch seconds, by the store's clock."""


class ObjectStore(Protocol):
    """Durable objects under keys, written under conditions. `name` tells two stores apart in one process.

    Contract (proved for every implementation by `repertory.testing.object_contract`):

    - Keys are what `check_key` takes; a key that is the folder of another one (`a` beside `a/b`) may be refused with
      `Invalid`, since files cannot do it.
    - A `get` sees the whole of one put or nothing of it. When `put` returns, the object survives a crash of the
      machine, and every later `get` and `list`, in whichever process, sees it.
    - Of writers that race with `Create`, or with `Update` from the same version, exactly one wins.
    - A version names a content: it changes with the body, and may come back when the body does. Whoever minds that
      puts a counter into the body.
    - Cancelling a `put` leaves the object whole as before or whole as put. Files wait for the write in flight; on S3 a
      request that was already sent may still land shortly afterwards.

    Errors of every method: `Unavailable` and `Throttled` when retries within the store's own bound did not help (a put
    may have been done all the same: nothing is known), `Failed` when the other side refuses (rights, bucket, clock;
    the message says what to change), `Invalid` for the caller's mistakes and after `aclose`. Never `Corrupt`: what a
    body means is decided above. Objects that others put there are objects like ours; what has no valid key is not seen.
    """

    @property
    def name(self) -> str: ...

    async def get(self, key: str) -> StoredObject:
        """Read an object. Errors: `NotFound` with the key."""
        ...

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object and give its version.

        Errors: `AlreadyExists` (`Create`), `PreconditionFailed` (`Update`: another version is there, or nothing). A
        put whose acknowledgement was lost is recognised and counts as done, unless somebody has replaced the object
        since; then it is a conflict.
        """
        ...

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """All objects whose key begins with `prefix` and follows `start_after`, in the order of the keys' bytes.

        `prefix` is empty, or a key with or without a slash behind it.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove an object for good. One that is not there is no error."""
        ...

    async def aclose(self) -> None:
        """Close. Calling it twice is allowed."""
        ...
