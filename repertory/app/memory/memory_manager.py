"""`MemoryManager`: an agent's memory across conversations, in any number of stores.

    agent = Agent(memory_manager=MemoryManager(stores=[SQLiteMemoryStore()]))

It searches on demand (a tool), injects relevant entries into single model calls, and extracts memories from messages.
Extraction and writes never delay an answer.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import copy_context
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import WeakKeyDictionary, ref

import anyio
from msgspec import Struct

from repertory.actors.hooks.events import MessageAddedEvent
from repertory.actors.memory.consumer import AcceptMemories, MemoryLink, MemoryParts, MemorySource
from repertory.actors.memory.store import AddMemory, MemoryStoreClient, MemoryStoreSettings, SearchMemory, ask_store
from repertory.app.host.host import ambient_host
from repertory.app.host.plugins import Plugin
from repertory.app.host.shared import OpenMemories
from repertory.app.memory.extraction import (
    Extraction,
    ExtractionContext,
    ExtractionTriggerContext,
    Extractor,
    ask_extractor,
    read_extraction,
)
from repertory.app.memory.injection import MemoryInjection, MemoryInjectionConfig, read_injection
from repertory.app.tracebacks import short_errors
from repertory.backends.memory_ports import implements
from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.core.ids import check_id
from repertory.core.memory.merging import merged
from repertory.core.memory.options import (
    AddMessagesContext,
    EntryMetadata,
    MemoryAddOptions,
    MemoryAddToolConfig,
    MemoryEntry,
    MemorySearchOptions,
    MemoryToolConfig,
    read_options,
)
from repertory.core.memory.progress import FlushReport, StoreFlush, together
from repertory.errors import AggregateMemoryError, Invalid, RepertoryError, Unavailable
from repertory.logs import WARNING, note
from repertory.runtime.system import ActorSystem, SystemSettings

if TYPE_CHECKING:
    from repertory.actors.hooks.events import HookRegistry
    from repertory.actors.memory.consumer import Extract
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.core.memory.extracting import ExtractionResult
    from repertory.core.messages import Message
    from repertory.runtime.ref import ActorRef

_log = logging.getLogger("repertory.memory")


@short_errors
class MemoryManager(Plugin):
    """The memory of agents across conversations. One manager may serve many agents, in any number of event loops.

    Configurations may be mappings.

    Extraction is a setting of each store. It runs after the answers: at its triggers, at the end of a block around the
    agent, in `flush`, and in a runtime's drain. Its cursor is in the agent's journal, so with a session manager no
    message is lost to memory when a process is killed: the rest is extracted when the session is open again. A memory
    may then be written twice, under the same idempotency key.

    Args:
        stores: One or more `MemoryStore`s, of different names.
        search_tool_config: The tool `search_memory`; True, False or a `MemoryToolConfig`.
        add_tool_config: The tool `add_memory`; likewise, or a `MemoryAddToolConfig`.
        injection: Entries added to model calls without a tool; True, False or a `MemoryInjectionConfig`.

    Attributes:
        name: The plugin's name.

    Raises:
        Invalid: For bad stores and settings. Correct the argument.
    """

    name = "strands:memory-manager"

    def __init__(
        self,
        stores: object,
        search_tool_config: MemoryToolConfig | Mapping[str, object] | bool = True,
        add_tool_config: MemoryAddToolConfig | Mapping[str, object] | bool = False,
        injection: MemoryInjectionConfig | Mapping[str, object] | bool = True,
    ) -> None:
        self.managed = managed_stores(stores, MemoryStoreSettings())
        """The stores with their capabilities."""
        self._injection = read_injection(injection)
        own = [search_tool(self, search_tool_config), add_tool(self, add_tool_config)]
        self._tools = [
            *(each for each in own if each is not None),
            *(each for one in self.managed for each in one.tools),
        ]
        self._agents: WeakKeyDictionary[Any, MemoryParts] = WeakKeyDictionary()

    @property
    def stores(self) -> list[object]:
        """The stores as given, in order."""
        return [store.client.store for store in self.managed]

    @property
    def tools(self) -> list[Any]:
        """The tools for agents: those of the manager, then those of the stores."""
        return list(self._tools)

    def init_agent(self, agent: Any) -> None:
        """Register injection and extraction triggers with the agent's hooks."""
        parts = self.parts_for(agent)
        hooks = cast("HookRegistry", agent.hooks)
        if self._injection is not None:
            injected = MemoryInjection(self._injection, [store.client for store in self.managed], parts.link)
            hooks.add_injection(injected.injection)
            hooks.add_callback(MessageAddedEvent, injected.look_ahead)
        for store in self.managed:
            for trigger in store.extraction.triggers if store.extraction is not None else ():
                trigger.attach(ExtractionTriggerContext(agent, partial(parts.link.fire, store.name)))

    def parts_for(self, agent: Any) -> MemoryParts:
        """The memory parts of an agent's session: always the same for one agent.

        Args:
            agent: The agent.
        """
        parts = self._agents.get(agent)
        if parts is None:
            sources = tuple(_source(store, agent) for store in self.managed)
            parts = self._agents[agent] = MemoryParts(sources=sources, link=MemoryLink())
        return parts

    async def search(
        self, query: str, options: MemorySearchOptions | Mapping[str, object] | None = None
    ) -> list[MemoryEntry]:
        """Entries for the query: the first of each store, then the second of each, and so on, without repetitions.

        A store that fails is logged and left out; so is, for a while, one that has failed several times. When all have
        failed, the list is empty; the tool `search_memory` says so to the model.

        Args:
            query: The words to look for.
            options: A `MemorySearchOptions` or a mapping.

        Raises:
            Invalid: For an unknown store. Correct the argument.
        """
        read = read_options(MemorySearchOptions, options, "options")
        stores = self.managed if read.stores is None else [self._store(name) for name in dict.fromkeys(read.stores)]
        try:
            return await self.search_stores(query, stores, read.max_search_results)
        except Unavailable:  # The log has the error of each store.
            return []

    async def search_stores(
        self, query: str, stores: Sequence[ManagedStore], results: int | None, agent: Any = None
    ) -> list[MemoryEntry]:
        """`search` in some stores, on behalf of `agent`, if any.

        Args:
            query: The words to look for.
            results: The most entries of each store; None for its own number.
            agent: The agent for which it searches; None for none.
            stores: The stores to search.

        Raises:
            Unavailable: When all have failed. Call again later.
        """
        found: dict[str, Sequence[MemoryEntry]] = {}
        failed: list[RepertoryError] = []

        async def search_one(name: str, ref: ActorRef[MemoryStoreMessage]) -> None:
            search = SearchMemory(query=query, results=results, caller=copy_context())
            try:
                found[name] = await ask_store(ref, search)
            except RepertoryError as error:
                note(_log, WARNING, "a memory store could not be searched", error, store=name)
                failed.append(error)

        async with self._actors(stores, agent) as actors, anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(search_one, store.name, actors[store.name])
        if failed and len(failed) == len(stores):
            names = [store.name for store in stores]
            raise Unavailable("no memory store could be searched", stores=names, error=str(failed[0])) from failed[0]
        return merged([found[store.name] for store in stores if store.name in found])

    async def add(self, content: str, options: MemoryAddOptions | Mapping[str, object] | None = None) -> None:
        """Write one memory to the stores, and wait for that.

        Args:
            content: The text.
            options: A `MemoryAddOptions` or a mapping; without `stores`, all writable ones that take single memories.

        Raises:
            Invalid: For stores that cannot take it, before anything is written. Correct the argument.
            AggregateMemoryError: When some writes failed, while the others succeeded. Read its errors, one for each
                store.
        """
        text = cast("object", content)
        if not isinstance(text, str) or not text.strip():
            raise Invalid("a memory is a text that is not empty: write add('Anna is allergic to nuts')", got=repr(text))
        read = read_options(MemoryAddOptions, options, "options")
        if read.stores is None:
            stores = [store for store in self.managed if store.adds]
        else:
            stores = [self._writable(name) for name in dict.fromkeys(read.stores)]
        if not stores:
            raise Invalid("MemoryManager: no writable store matched")
        failed = await self._write_all(stores, [content], read.metadata, None, None)
        if failed:
            names = ", ".join(name for name, _ in failed)
            raise AggregateMemoryError(f"MemoryManager: store writes failed: {names}", [error for _, error in failed])

    async def flush(self) -> FlushReport:
        """Extract all messages and write all accepted memories of the manager's agents now, whatever the triggers and
        earlier failures, and wait for that.

        It opens sessions that are not open, of agents that still exist. Failed work is tried again later; the report
        names it, and why. Errors: those of opening a session.
        """
        flushed: list[Mapping[str, StoreFlush]] = []

        async def flush_one(agent: Any) -> None:
            flushed.append(await agent.flush_memory())

        async with anyio.create_task_group() as group:
            for agent in list(self._agents):
                group.start_soon(flush_one, agent)
        return together([store.name for store in self.managed], flushed)

    # For the memory tools.

    def in_scope(self, wanted: Sequence[str] | None, *, among: Sequence[str] | None = None) -> list[ManagedStore]:
        """The stores that a model has named, or all of those that it may name. Unknown names are logged.

        Args:
            wanted: The names of stores; None or empty for all.
            among: The names to choose from; None for all.

        Raises:
            Invalid: When no name is known. Correct the argument.
        """
        scope = [store for store in self.managed if among is None or store.name in among]
        found = [store for store in scope if not wanted or store.name in wanted]
        if not found:
            raise Invalid(
                "none of the requested memory stores are available", got=wanted, stores=[store.name for store in scope]
            )
        unknown = [name for name in wanted or () if name not in [store.name for store in found]]
        if unknown:
            note(_log, WARNING, "a model has named unknown memory stores", stores=len(unknown))
        return found

    async def write(self, stores: Sequence[ManagedStore], contents: Sequence[str], *, key: str, agent: Any) -> None:
        """Write each of these to the stores.

        Args:
            contents: The texts.
            key: The name that tells this write from others, so that it is done once.
            agent: The agent.
            stores: The stores to write to.

        Raises:
            AggregateMemoryError: If writes failed; it says how many. Read its errors, one for each store.
        """
        failed = await self._write_all(stores, contents, None, key, agent)
        if failed:
            reasons = "; ".join(dict.fromkeys(str(error) for _, error in failed))
            total = len(contents) * len(stores)
            text = f"MemoryManager: failed to add {len(failed)} of {total} entries: {reasons}"
            raise AggregateMemoryError(text, [error for _, error in failed])

    async def accept(self, agent: Any, stores: Sequence[ManagedStore], contents: Sequence[str], key: str) -> int:
        """Queue memories to be written after the turn; returns how many. Outside any session they are written at once,
        and failures are logged.

        Args:
            agent: The agent.
            contents: The texts.
            key: The name that tells this write from others, so that it is done once.
            stores: The stores to write to.

        Raises:
            LimitReached: When too many wait. Write again when some are stored.
        """
        memory = None if agent is None else self.parts_for(agent).link.ref
        if memory is None:  # The program has called the tool itself.
            for store, error in await self._write_all(stores, contents, None, key, agent):
                note(_log, WARNING, "a memory could not be written", error, store=store)
            return len(contents)
        names = tuple(store.name for store in stores)
        return await memory.ask(AcceptMemories(stores=names, contents=tuple(contents), key=key), timeout_s=10.0)

    async def _write_all(
        self,
        stores: Sequence[ManagedStore],
        contents: Sequence[str],
        metadata: EntryMetadata | None,
        key: str | None,
        agent: Any,
    ) -> list[tuple[str, RepertoryError]]:
        """All stores at the same time, the contents one after the other. Returns the errors, by store."""
        failed: list[tuple[str, RepertoryError]] = []

        async def write_to(store: ManagedStore, ref: ActorRef[MemoryStoreMessage]) -> None:
            for index, content in enumerate(contents):
                context = AddMessagesContext(
                    session_id=agent.session_id if agent is not None else None,
                    agent_id=agent.agent_id if agent is not None else None,
                    idempotency_key=None if key is None else f"{key}/{index}",
                )
                add = AddMemory(content=content, metadata=metadata, context=context, forced=True, caller=copy_context())
                try:
                    await ask_store(ref, add)
                except RepertoryError as error:
                    failed.append((store.name, error))

        async with self._actors(stores, agent) as actors, anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(write_to, store, actors[store.name])
        return failed

    def _actors(
        self, stores: Sequence[ManagedStore], agent: Any
    ) -> AbstractAsyncContextManager[Mapping[str, ActorRef[MemoryStoreMessage]]]:
        link = None if agent is None else self.parts_for(agent).link
        return reached([store.client for store in stores], link)

    def _store(self, name: str) -> ManagedStore:
        found = next((store for store in self.managed if store.name == name), None)
        if found is None:
            raise Invalid(f"MemoryManager: store '{name}' not found")
        return found

    def _writable(self, name: str) -> ManagedStore:
        store = self._store(name)
        if not store.adds:
            why = "is read-only" if not store.writable else "has no add method (only add_messages)"
            raise Invalid(f"MemoryManager: store '{name}' {why}")
        return store


def read_manager(given: object) -> MemoryManager | None:
    """The memory manager of an agent's argument: one, or its keywords. Errors: `Invalid` for anything else."""
    if given is None or isinstance(given, MemoryManager):
        return given
    if isinstance(given, Mapping):
        return MemoryManager(**cast("Mapping[str, Any]", given))
    text = "memory_manager is a MemoryManager, or a mapping of its arguments: MemoryManager(stores=[...])"
    raise Invalid(text, got=type(given).__name__)


def _source(store: ManagedStore, agent: Any) -> MemorySource:
    extraction = store.extraction
    if extraction is None:
        return MemorySource(client=store.client, holds=(store.client.store,))
    cadences = [trigger.every for trigger in extraction.triggers if trigger.every is not None]
    extract = None if extraction.extractor is None else _extracting(extraction.extractor, store.name, agent)
    return MemorySource(
        client=store.client,
        extracts=True,
        every=min(cadences, default=None),
        extract=extract,
        leaves_out=extraction.filter,
        holds=(store.client.store, extraction.extractor),
    )


def _extracting(extractor: Extractor, store: str, agent: Any) -> Extract:
    of = ref(agent)  # Weak, so that the manager does not keep its agents alive.

    async def extract(agent_id: str, messages: Sequence[Message], times: Sequence[float]) -> Sequence[ExtractionResult]:
        agent = of()
        model = agent.aux_model if agent is not None else None
        context = ExtractionContext(agent=agent, agent_id=agent_id, model=model, store_name=store, said_at=tuple(times))
        return await ask_extractor(extractor, messages, context)

    return extract


SEARCH_TOOL, ADD_TOOL = "search_memory", "add_memory"
SEARCH_DESCRIPTION = (
    "Search what is remembered from earlier conversations. Results come with the store that they are from."
)
ADD_DESCRIPTION = (
    "Remember something beyond this conversation: short facts that stand for themselves, one in each entry."
)


class Memory(Protocol):
    """The methods of a manager that the tools need."""

    @property
    def managed(self) -> Sequence[ManagedStore]: ...
    def in_scope(self, wanted: Sequence[str] | None, *, among: Sequence[str] | None = None) -> list[ManagedStore]: ...
    async def search_stores(
        self, query: str, stores: Sequence[ManagedStore], results: int | None, agent: Any
    ) -> Sequence[MemoryEntry]: ...
    async def accept(self, agent: Any, stores: Sequence[ManagedStore], contents: Sequence[str], key: str) -> int: ...
    async def write(self, stores: Sequence[ManagedStore], contents: Sequence[str], *, key: str, agent: Any) -> None: ...


def search_tool(manager: Memory, given: object) -> object | None:
    """The search tool; None when it is turned off."""
    config = _config(MemoryToolConfig, given, "search_tool_config")
    if config is None:
        return None
    stores = manager.managed

    async def search_memory(
        query: str,
        tool_context: ToolContext | None = None,
        max_search_results: int | None = None,
        stores: list[str] | None = None,
    ) -> list[dict[str, Any]]:
        """Search.

        Args:
            query: What to look for, in words that what is remembered may hold.
            max_search_results: At most so many entries of each store.
            stores: The names of the stores to search; all when left out.
        """
        chosen = manager.in_scope(stores)
        agent = None if tool_context is None else tool_context.agent
        found = await manager.search_stores(query, chosen, max_search_results, agent)
        return [
            {"content": entry.content, "store_name": entry.store_name}
            | ({"metadata": dict(entry.metadata)} if entry.metadata else {})
            for entry in found
        ]

    described = _described(config.description or SEARCH_DESCRIPTION, stores)
    name = config.name or SEARCH_TOOL
    return tool(name=name, description=described, effects=False, idempotent=True)(search_memory)


def add_tool(manager: Memory, given: object) -> object | None:
    """The add tool; None when it is turned off. Errors: `Invalid` when there is no store to write to."""
    config = _config(MemoryAddToolConfig, given, "add_tool_config")
    if config is None:
        return None
    scope = _addable(manager.managed, config.stores)
    names = [store.name for store in scope]

    async def add_memory(
        entries: list[str], tool_context: ToolContext | None = None, stores: list[str] | None = None
    ) -> dict[str, int]:
        """Add.

        Args:
            entries: What to remember, one fact in each.
            stores: The names of the stores to add to; all when left out.
        """
        if not entries:
            raise Invalid("there is nothing to remember: add_memory requires at least one entry")
        targets = manager.in_scope(stores, among=names)
        if tool_context is None:  # The program has called the tool as a function.
            agent, key = None, token_hex(16)
        else:
            agent, key = tool_context.agent, tool_context.idempotency_key
        if not config.wait_for_writes:
            return {"accepted": await manager.accept(agent, targets, entries, key)}
        await manager.write(targets, entries, key=key, agent=agent)
        return {"stored": len(entries)}

    described = _described(config.description or ADD_DESCRIPTION, scope)
    return tool(name=config.name or ADD_TOOL, description=described, idempotent=True)(add_memory)


def _config(kind: Any, given: object, what: str) -> Any:
    if given is None or given is False:
        return None
    return kind() if given is True else read_options(kind, given, what)


def _addable(stores: Sequence[ManagedStore], wanted: Sequence[object] | None) -> list[ManagedStore]:
    if wanted is None:
        found = [store for store in stores if store.adds]
        if not found:
            raise Invalid("MemoryManager: add_tool_config is enabled but no writable stores implement add")
        return found
    return [_named(stores, each) for each in wanted]


def _named(stores: Sequence[ManagedStore], wanted: object) -> ManagedStore:
    name = wanted if isinstance(wanted, str) else cast("str", getattr(wanted, "name", repr(wanted)))
    store = next((store for store in stores if store.name == name), None)
    if store is None:
        raise Invalid(f"MemoryManager: add_tool_config store '{name}' not found")
    if not store.writable:
        raise Invalid(f"MemoryManager: add_tool_config store '{name}' is not writable")
    if not store.adds:
        raise Invalid(f"MemoryManager: add_tool_config store '{name}' has no add method (only add_messages)")
    return store


def _described(text: str, stores: Sequence[ManagedStore]) -> str:
    """The description with the list of stores, so that the model can choose among them."""
    lines = [f"- {store.name}: {store.description}" if store.description else f"- {store.name}" for store in stores]
    return "\n".join([text, "", "Stores:", *lines])


_ALONE = SystemSettings(on_fatal=lambda error: None, dead_letters_max=0)
"""The caller learns of a lost actor from its ask."""


class ManagedStore(Struct, frozen=True, kw_only=True):
    """One store with its capabilities."""

    client: MemoryStoreClient
    description: str | None
    writable: bool
    adds: bool
    """True if the store is writable and takes single memories."""
    extraction: Extraction | None

    @property
    def name(self) -> str:
        return self.client.name

    @property
    def tools(self) -> Sequence[object]:
        """The store's own tools."""
        give: Callable[[], Sequence[object]] | None = getattr(self.client.store, "get_tools", None)
        return list(give()) if callable(give) else ()


def managed_stores(given: object, settings: MemoryStoreSettings) -> tuple[ManagedStore, ...]:
    """The stores. Errors: `Invalid`, a ValueError, for one without the needed methods, and for two of one name."""
    if isinstance(given, str) or not isinstance(given, list | tuple):
        given = [given]
    stores = [_managed(store, settings) for store in cast("Sequence[object]", given) if store is not None]
    if not stores:
        raise Invalid("MemoryManager: at least one store is required")
    names = [store.name for store in stores]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"MemoryManager: duplicate store name '{name}'")
    return tuple(stores)


def _managed(store: object, settings: MemoryStoreSettings) -> ManagedStore:
    if not callable(getattr(store, "search", None)):
        raise Invalid("MemoryManager: a store has a method search(query, options)", got=type(store).__name__)
    if not hasattr(store, "name"):
        raise Invalid("MemoryManager: a store has a name", got=type(store).__name__)
    found = cast("Any", store)
    name = check_id(found.name, "store name")
    adds, takes_messages = implements(store, "add"), implements(store, "add_messages")
    writable = bool(getattr(store, "writable", adds or takes_messages))
    if writable and not (adds or takes_messages):
        raise Invalid(f"MemoryManager: store '{name}' is writable but has no add or add_messages method")
    extraction = read_extraction(getattr(store, "extraction", None), has_add=adds, has_add_messages=takes_messages)
    if extraction is not None:
        _check_extraction(name, extraction, writable=writable, adds=adds, takes_messages=takes_messages)
    return ManagedStore(
        client=MemoryStoreClient(store, settings),
        description=getattr(store, "description", None),
        writable=writable,
        adds=writable and adds,
        extraction=extraction,
    )


def _check_extraction(name: str, extraction: Extraction, *, writable: bool, adds: bool, takes_messages: bool) -> None:
    if not writable:
        raise Invalid(f"MemoryManager: store '{name}' has extraction config but is not writable")
    if not extraction.triggers:
        raise Invalid(f"MemoryManager: store '{name}' has extraction config but no triggers")
    if extraction.extractor is not None and not adds:
        raise Invalid(f"MemoryManager: store '{name}' has an extractor but no add method to write the results")
    if extraction.extractor is None and not takes_messages:
        raise Invalid(f"MemoryManager: store '{name}' extracts without an extractor but has no add_messages method")


@asynccontextmanager
async def reached(
    clients: Sequence[MemoryStoreClient], link: MemoryLink | None = None
) -> AsyncGenerator[Mapping[str, ActorRef[MemoryStoreMessage]]]:
    """The actors of these stores, by name, for as long as the block: those of the session of `link`, of the event
    loop's runtime, or of an actor system of this block.
    """
    host = ambient_host()
    if link is not None and link.stores():
        yield link.stores()
    elif host is not None and not host.refusing:
        refs = await host.memories.open(clients)
        try:
            yield refs
        finally:
            # A caller that is cancelled has to let the stores go all the same.
            with anyio.CancelScope(shield=True):
                await host.memories.let_go(clients)
    else:
        async with ActorSystem(_ALONE) as system:
            yield await OpenMemories(system).open(clients)
