"""The actor of one memory store: makes every search of it and every write to it, for all conversations of its system.

State: none of its own; the store's health belongs to the event loop (`MemoryStoreClient.health`), so it outlives the
actors. Fails: by a bug alone; what a store raises is the asker's answer. Pace: the store's; a slow store delays no
other. Supervised by the root, permanent; started before and stopped after every session.

Each search and each write is a job of the actor, so a search waits for no other work. Writes run one after the other,
in the order in which they were asked for. A stop lets writes finish and ends searches; `ask_store` then raises
`Unavailable` for the askers that still wait.
"""

from __future__ import annotations

import contextvars
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, assert_never, cast
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar
from msgspec import Struct, field

from repertory.actors.call import trace_here
from repertory.backends.memory_ports import implements
from repertory.backends.worker_threads import run_foreign
from repertory.core.memory.breaker import Breaker, TurnBreaker
from repertory.core.memory.options import AddMessagesContext, MemoryEntry, SearchOptions
from repertory.core.messages import Json, Message
from repertory.errors import ActorDead, ActorFailed, Failed, RepertoryError, Retryable, Unavailable
from repertory.logs import WARNING, note
from repertory.runtime.actor import Actor, Job
from repertory.runtime.faults import failure_of, repr_of
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Ask, Next, ReplySlot, carry_on
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec

R = TypeVar("R")

_log = logging.getLogger("repertory.memory")

RESULTS = 3
"""Entries of one store, if neither the caller nor the store sets a number."""
_MAILBOX = MailboxSettings(capacity=10_000)
"""Messages here wait only to be handled; the work runs in jobs."""


class SearchMemory(Struct, Ask[list[MemoryEntry]], frozen=True, kw_only=True):
    """The entries that match best, the best first, each with the store's name. It is cancelled with its asker.

    Errors: those of `MemoryStoreClient`; `Unavailable` while the store is not asked because it has failed.
    """

    query: str
    results: int | None = None
    """The most results; None: the store's own number."""
    caller: contextvars.Context | None = None
    """The context variables that the store sees; None: the actor's own."""


class SearchForTurn(Struct, frozen=True, kw_only=True):
    """Search the store for a turn. The result is put into the recall, which the turn reads when it needs it.

    The store is asked even after failures, unless it has failed five turns in a row: then one turn in four asks it.
    """

    recall: Recall


class AddMemory(Struct, Ask[None], frozen=True, kw_only=True):
    """Store one memory; answered when the store has it. Errors: those of `MemoryStoreClient`."""

    content: str
    metadata: Mapping[str, Json] | None = None
    context: AddMessagesContext
    forced: bool = False
    """True to try also while the store is not asked because it has failed."""
    caller: contextvars.Context | None = None
    """The context variables that the store sees, of a program whose cancellation ends the write. None: the actor's own,
    and the write goes on without its asker.
    """


class AddBatch(Struct, Ask[None], frozen=True, kw_only=True):
    """Hand over messages; answered when the store has them. Errors: those of `MemoryStoreClient`."""

    messages: tuple[Message, ...]
    context: AddMessagesContext
    forced: bool = False


class ForgetMemories(Struct, Ask[int], frozen=True, kw_only=True):
    """Have the store forget, with the arguments of its `forget`; answers how many entries it says it has erased."""

    given: tuple[object, ...] = ()
    named: Mapping[str, object] = {}


class PrepareStore(Struct, frozen=True, kw_only=True):
    """Have the store prepare itself ahead of need."""


StoreWrite: TypeAlias = AddMemory | AddBatch | ForgetMemories
MemoryStoreMessage: TypeAlias = SearchMemory | SearchForTurn | StoreWrite | PrepareStore


class MemoryStoreActor(Actor[MemoryStoreMessage]):
    """Serves one store. While the store fails, only probes get through, at growing intervals."""

    def __init__(self, client: MemoryStoreClient) -> None:
        self._client = client
        self._searching = self._written = 0
        self._last_write: anyio.Event | None = None
        """Set when the last requested write is over."""

    def summary(self) -> object:
        health = self._client.health
        state: dict[str, object] = {"store": self._client.name, "written": self._written, "searching": self._searching}
        if health.writes.failures or health.searches.failures:
            state |= {"failures": health.writes.failures, "failed_searches": health.searches.failures}
            state |= {"error": health.error}
        return state

    async def handle(self, message: MemoryStoreMessage) -> Next:
        match message:
            case SearchMemory():
                slot: ReplySlot[list[MemoryEntry]] = self.context.defer()
                job = self._job(partial(self._search, message, slot), "search", message.caller)
                slot.on_gone(job.cancel)
            case SearchForTurn(recall=recall):
                self.context.job(self._search_for_turn, recall, name="search")
            case AddMemory() | AddBatch() | ForgetMemories():
                self._begin_write(message)
            case PrepareStore():
                self.context.job(self._client.prepare, name="prepare")
            case _:
                assert_never(message)
        return carry_on()

    def _job(self, work: Callable[[], Awaitable[object]], name: str, caller: contextvars.Context | None) -> Job:
        start = partial(self.context.job, work, name=name, finish=name != "search")
        return start() if caller is None else caller.run(start)

    async def _search(self, message: SearchMemory, slot: ReplySlot[list[MemoryEntry]]) -> None:
        self._searching += 1
        try:
            slot.reply(await self._client.search(message.query, message.results))
        except RepertoryError as error:
            slot.fail(error)
        finally:
            self._searching -= 1

    async def _search_for_turn(self, recall: Recall) -> None:
        self._searching += 1
        try:
            await recall.search(self._client)
        finally:
            self._searching -= 1

    def _begin_write(self, message: StoreWrite) -> None:
        slot: ReplySlot[object] = self.context.defer()
        # A chain of events and no queue: each write waits for the one before it, also where that was cancelled.
        before, self._last_write = self._last_write, anyio.Event()
        caller = message.caller if isinstance(message, AddMemory) else None
        job = self._job(partial(self._write, message, slot, before, self._last_write), "write", caller)
        if caller is not None:
            slot.on_gone(job.cancel)

    async def _write(
        self, message: StoreWrite, slot: ReplySlot[object], before: anyio.Event | None, over: anyio.Event
    ) -> None:
        try:
            if before is not None:
                await before.wait()
            slot.reply(await self._written_to(message))
            self._written += not isinstance(message, ForgetMemories)
        except RepertoryError as error:
            slot.fail(error)
        finally:
            # Also after an error or a cancellation: the next write waits for it.
            over.set()

    async def _written_to(self, message: StoreWrite) -> object:
        client = self._client
        match message:
            case ForgetMemories(given=given, named=named):
                return await client.forget(given, named)
            case AddMemory(forced=False) | AddBatch(forced=False) if not client.health.writes.allows(
                anyio.current_time()
            ):
                raise Unavailable("the memory store has failed and is not asked for a while", store=client.name)
            case AddMemory(content=content, metadata=metadata, context=context):
                return await client.add(content, metadata, context)
            case AddBatch(messages=messages, context=context):
                return await client.add_messages(messages, context)


def memory_store_spec(client: MemoryStoreClient) -> ChildSpec:
    """The child spec of a store's actor."""
    return ChildSpec(name=f"memory {client.name}", factory=lambda: MemoryStoreActor(client), mailbox=_MAILBOX)


async def ask_store(ref: ActorRef[MemoryStoreMessage], message: Ask[R]) -> R:
    """The store's answer. Errors: those of the message; `Unavailable` when the actor ends before it answers."""
    try:
        return await ref.ask(message, timeout_s=math.inf)
    except (ActorDead, ActorFailed) as error:
        raise Unavailable("the memory store was let go before it answered", actor=ref.path) from error


# Calling the store itself: a user's object, synchronous or not, with all methods or only some.


class MemoryStoreSettings(Struct, frozen=True, kw_only=True):
    """Time limits for one store."""

    search_timeout_s: float = 10.0
    write_timeout_s: float = 30.0


class Health(Struct):
    """The health of a store in this event loop, as its answers show it."""

    preparing: anyio.Lock = field(default_factory=anyio.Lock)
    writing: anyio.Lock = field(default_factory=anyio.Lock)
    searches: Breaker = field(default_factory=Breaker)
    turns: TurnBreaker = field(default_factory=TurnBreaker)
    """The breaker of the searches that turns wait for."""
    writes: Breaker = field(default_factory=Breaker)
    error: str | None = None
    """The last error; None if the last call succeeded."""


_healths: RunVar[WeakKeyDictionary[MemoryStoreClient, Health]] = RunVar("repertory_memory_health")


class MemoryStoreClient:
    """One memory store. Errors of all calls: `Unavailable` if it cannot be reached or does not answer in time, `Failed`
    if it raised anything else (the cause), and the `repertory.errors` that it raises itself.
    """

    def __init__(self, store: object, settings: MemoryStoreSettings | None = None) -> None:
        self.store: Any = store
        self.name: str = self.store.name
        self._settings = settings or MemoryStoreSettings()
        self.prepared = not implements(store, "initialize")
        """True if the store needs no `initialize`, or it is done."""
        self._takes_context = {method: _takes(store, method, "context") for method in ("add", "add_messages")}
        self._takes_options = _takes_two(self.store.search)

    @property
    def health(self) -> Health:
        healths = _healths.get(None)
        if healths is None:
            # By event loop, since locks belong to one; weak, so that a client that nobody uses takes its health along.
            healths = WeakKeyDictionary[MemoryStoreClient, Health]()
            _healths.set(healths)
        health = healths.get(self)
        if health is None:
            health = healths[self] = Health()
        return health

    async def prepare(self) -> None:
        """Have the store prepare itself ahead of need. Raises nothing: later calls meet its errors."""
        if not self.prepared:
            with suppress(RepertoryError):
                await self._answered("initialize", self._settings.write_timeout_s, self._prepare)

    async def search(self, query: str, results: int | None = None, *, forced: bool = False) -> list[MemoryEntry]:
        """The entries that match best, the best first, at most `results`, each with the store's name. `forced`: also
        while the store is not asked because it has failed.
        """
        health = self.health
        if not forced and not health.searches.allows(anyio.current_time()):
            raise Unavailable("the memory store is not asked for a while, after it has failed", store=self.name)
        limit = results or getattr(self.store, "max_search_results", None) or RESULTS
        options = (SearchOptions(max_search_results=limit),) if self._takes_options else ()
        try:
            trace = trace_here()
            if trace is None:
                entries = await self._searched(query, options, limit)
            else:
                with trace.search(self.name, query) as search:
                    entries = await self._searched(query, options, limit)
                    search.found([entry.content for entry in entries])
        except RepertoryError as error:
            health.searches, health.error = health.searches.failed(anyio.current_time()), str(error)
            raise
        health.searches, health.error = health.searches.succeeded(), None
        return entries

    async def _searched(self, query: str, options: tuple[object, ...], limit: int) -> list[MemoryEntry]:
        found = await self._ask("search", self._settings.search_timeout_s, (query, *options))
        return [self._entry(each) for each in _listed(found, self.name)[:limit]]

    async def add(self, content: str, metadata: Mapping[str, Json] | None, context: AddMessagesContext) -> None:
        """Store one memory. On return the store has it."""
        given = dict(metadata) if metadata else None
        await self._write("add", (content, given), context)

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext) -> None:
        """Hand over messages. On return the store has them."""
        await self._write("add_messages", (list(messages),), context)

    @property
    def forgets(self) -> bool:
        """True if the store can forget what was extracted from a message."""
        return callable(getattr(self.store, "forget", None))

    async def forget(self, given: tuple[object, ...], named: Mapping[str, object]) -> int:
        """Have the store forget. Returns how many entries it says it has erased."""
        async with self.health.writing:
            # Behind a write that runs: an erasure beside it could come before what it is to erase.
            count = await self._ask("forget", self._settings.write_timeout_s, given, named)
        return count if isinstance(count, int) else 0

    async def _write(self, method: str, given: tuple[object, ...], context: AddMessagesContext | None) -> None:
        health = self.health
        named = {"context": context} if self._takes_context[method] and context is not None else {}
        async with health.writing:
            trace = trace_here()
            attributes = {"gen_ai.data_source.id": self.name}
            try:
                with nullcontext() if trace is None else trace.work(f"repertory.memory.{method}", attributes):
                    await self._ask(method, self._settings.write_timeout_s, given, named)
            except RepertoryError as error:
                if isinstance(error, Retryable):  # Other errors may lie in the write itself.
                    health.writes = health.writes.failed(anyio.current_time())
                health.error = str(error)
                raise
            health.writes, health.error = health.writes.succeeded(), None

    async def _ask(
        self, method: str, timeout_s: float, given: tuple[object, ...], named: Mapping[str, object] | None = None
    ) -> object:
        async def ask(by: float) -> object:
            await self._prepare(by)
            return await _called(partial(getattr(self.store, method), *given, **(named or {})), by)

        return await self._answered(method, timeout_s, ask)

    async def _answered(self, method: str, timeout_s: float, ask: Callable[[float], Awaitable[object]]) -> object:
        """The call's result in time, or one of our errors."""
        try:
            # A user's store may hang for ever, and its actor's writes follow each other.
            with anyio.fail_after(timeout_s) as scope:
                return await ask(scope.deadline)
        except RepertoryError:
            raise
        except TimeoutError as error:
            text = "the memory store did not answer in time"
            raise Unavailable(text, store=self.name, method=method, timeout_s=timeout_s) from error
        except OSError as error:
            raise Unavailable("the memory store could not be reached", store=self.name, error=repr_of(error)) from error
        except BaseException as error:
            failure_of(error)  # What is none goes on.
            raise Failed(
                "the memory store raised an error", store=self.name, method=method, error=repr_of(error)
            ) from error

    async def _prepare(self, by: float) -> None:
        if self.prepared:
            return
        async with self.health.preparing:
            if not self.prepared:
                await _called(self.store.initialize, by)
                self.prepared = True

    def _entry(self, found: object) -> MemoryEntry:
        content, metadata = _field(found, "content"), _field(found, "metadata")
        if not isinstance(content, str) or not isinstance(metadata, Mapping | None):
            raise Failed("the memory store gave something that is no entry", store=self.name, got=type(found).__name__)
        return MemoryEntry(content, self.name, cast("Mapping[str, Json] | None", metadata))


def _listed(found: object, name: str) -> Sequence[object]:
    if not isinstance(found, list | tuple):
        raise Failed("the memory store gave no list of entries", store=name, got=type(found).__name__)
    return cast("Sequence[object]", found)


def _field(found: object, name: str) -> object:
    return cast("Mapping[str, object]", found).get(name) if isinstance(found, Mapping) else getattr(found, name, None)


async def _called(method: Callable[[], Any], by: float) -> object:
    """The method's result. A synchronous method that does not return is waited for until `by` and no longer."""
    if inspect.iscoroutinefunction(method):
        return await method()
    # In a tuple, since trio refuses threads that return an awaitable.
    answer = await run_foreign(method, by=by)
    return await answer if inspect.isawaitable(answer) else answer


def _takes(store: object, method: str, parameter: str) -> bool:
    found = getattr(store, method, None)
    if not callable(found):
        return False
    parameters = _parameters(found)
    return parameters is None or any(each.name == parameter or each.kind is each.VAR_KEYWORD for each in parameters)


def _takes_two(search: Callable[..., object]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = _parameters(search)
    if parameters is None:
        return True
    several = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    return several or sum(each.kind in kinds for each in parameters) > 1


def _parameters(function: Callable[..., object]) -> Sequence[inspect.Parameter] | None:
    """A function's parameters; None where Python cannot say, such as of one that is not written in Python."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


# One search of all stores at once, for one turn, which waits for each store within a bound.

Miss = Literal["failed", "late", "skipped"]
"""The reason why a turn has nothing from a store: it raised, was late, or was not asked."""


class Recall:
    """One search of all stores for one turn."""

    def __init__(self, query: str, results: int, patience_s: float) -> None:
        """`results`: the most entries of each store. `patience_s`: the seconds that the turn waits for them."""
        self.query = query
        self.began_at = anyio.current_time()
        self._results = results
        self._patience_s = patience_s
        self._answers: dict[MemoryStoreClient, anyio.Event] = {}
        self._found: dict[MemoryStoreClient, Sequence[MemoryEntry]] = {}
        self._missed: dict[MemoryStoreClient, Miss] = {}

    def begin(self, stores: Mapping[MemoryStoreClient, ActorRef[MemoryStoreMessage] | None]) -> None:
        """Start a search in each store, beside the turn. None: a store that has no actor here."""
        for client, ref in stores.items():
            self._answers[client] = anyio.Event()
            if ref is None:
                self._answers[client].set()
            else:
                ref.tell(SearchForTurn(recall=self))

    async def found(self) -> list[Sequence[MemoryEntry]]:
        """The entries of each store, in the order of the stores; empty for one that is late or failed."""
        with anyio.CancelScope(deadline=self.began_at + self._patience_s):
            for answered in self._answers.values():
                await answered.wait()
        for client, answered in self._answers.items():
            if not answered.is_set():
                self._miss(client, "late")
            elif client not in self._found:
                self._miss(client, "failed")
        return [self._found[client] for client in self._answers if client in self._found]

    @property
    def missed(self) -> Mapping[str, Miss]:
        """The stores that gave nothing, by name."""
        return {client.name: why for client, why in self._missed.items()}

    async def search(self, client: MemoryStoreClient) -> None:
        """Search one store. Raises nothing: errors are logged."""
        health = client.health
        try:
            if not health.turns.allows:
                health.turns = health.turns.passed_over()
                self._miss(client, "skipped")
                return
            health.turns = health.turns.asked()
            self._found[client] = await client.search(self.query, self._results, forced=True)
            if client not in self._missed:
                health.turns = health.turns.answered()
        except RepertoryError as error:
            self._miss(client, "failed", error)
        finally:
            self._answers[client].set()

    def _miss(self, client: MemoryStoreClient, why: Miss, error: RepertoryError | None = None) -> None:
        """Note that a store gave nothing, and report it once."""
        if client in self._missed:
            return
        self._missed[client] = why
        if why != "skipped":
            client.health.turns = client.health.turns.failed()
        missed = client.health.turns.missed
        text = "a turn goes on without a memory store"
        note(_log, WARNING, text, error, store=client.name, why=why, in_a_row=missed)
