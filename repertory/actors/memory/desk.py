"""Asking one memory store, whatever it is: synchronous or not, with all methods or only some, its own or anybody's.

Not an actor: searches of many turns run at the same time. Writes go through the store's actor (`store.py`).
What is known of the store's health belongs to one event loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

import anyio
from anyio.lowlevel import RunVar

from repertory.backends.worker_threads import run_foreign
from repertory.core.memory.breaker import Breaker, TurnBreaker
from repertory.core.memory.entry import MemoryEntry
from repertory.core.memory.options import AddMessagesContext, SearchOptions
from repertory.core.messages import Json, Message
from repertory.errors import Failed, RepertoryError, Retryable, Unavailable

RESULTS = 3
"""Entries of one store, where neither the caller nor the store says how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskSettings:
    """How long one store may take."""

    search_timeout_s: float = 10.0
    write_timeout_s: float = 30.0


@dataclass(slots=True)
class Health:
    """How a store has answered in this event loop."""

    preparing: anyio.Lock = field(default_factory=anyio.Lock)
    writing: anyio.Lock = field(default_factory=anyio.Lock)
    """One write at a time."""
    searches: Breaker = field(default_factory=Breaker)
    turns: TurnBreaker = field(default_factory=TurnBreaker)
    """Of the searches that turns wait for."""
    writes: Breaker = field(default_factory=Breaker)
    error: str | None = None
    """The last one; None when the last call went through."""


_healths: RunVar[WeakKeyDictionary[StoreDesk, Health]] = RunVar("repertory_memory_health")


class StoreDesk:
    """One memory store. Errors of all calls: `Unavailable` when it cannot be reached or does not answer in time,
    `Failed` when it raised anything else (the cause), and what it raises of `repertory.errors`.
    """

    def __init__(self, store: object, settings: DeskSettings | None = None) -> None:
        self.store: Any = store
        self.name: str = self.store.name
        self._settings = settings or DeskSettings()
        self.prepared = not callable(getattr(store, "initialize", None))
        """Whether the store is ready to be used."""
        self._takes_context = {method: _takes(store, method, "context") for method in ("add", "add_messages")}
        self._takes_options = _takes_two(self.store.search)

    @property
    def health(self) -> Health:
        """How it is doing here."""
        healths = _healths.get(None)
        if healths is None:
            healths = WeakKeyDictionary[StoreDesk, Health]()
            _healths.set(healths)
        health = healths.get(self)
        if health is None:
            health = healths[self] = Health()
        return health

    async def prepare(self) -> None:
        """Have the store prepare itself ahead of need. Errors: none; whoever needs it meets them."""
        if not self.prepared:
            with suppress(RepertoryError):
                await self._answered("initialize", self._settings.write_timeout_s, self._prepare)

    async def search(self, query: str, results: int | None = None, *, forced: bool = False) -> list[MemoryEntry]:
        """What the store knows of that, the best first, at most `results`, each with the store's name. `forced`: also
        while the store is not asked after it has failed.
        """
        health = self.health
        if not forced and not health.searches.allows(anyio.current_time()):
            raise Unavailable("the memory store is not asked for a while, after it has failed", store=self.name)
        limit = results or self.store.max_search_results or RESULTS
        options = (SearchOptions(max_search_results=limit),) if self._takes_options else ()
        try:
            found = await self._ask("search", self._settings.search_timeout_s, (query, *options))
            entries = [self._entry(each) for each in _listed(found, self.name)[:limit]]
        except RepertoryError as error:
            health.searches, health.error = health.searches.failed(anyio.current_time()), str(error)
            raise
        health.searches, health.error = health.searches.succeeded(), None
        return entries

    async def add(self, content: str, metadata: Mapping[str, Json] | None, context: AddMessagesContext) -> None:
        """Store one memory. On return the store has it."""
        given = dict(metadata) if metadata else None
        await self._write("add", (content, given), context)

    async def add_messages(self, messages: Sequence[Message], context: AddMessagesContext) -> None:
        """Hand a batch over. On return the store has it."""
        await self._write("add_messages", (list(messages),), context)

    @property
    def forgets(self) -> bool:
        """Whether the store can forget what was taken from a message."""
        return callable(getattr(self.store, "forget", None))

    async def forget(self, session_id: str, agent_id: str, seq: int) -> int:
        """Have the store forget what was taken from that message. Gives how many entries it says it has erased."""
        named: dict[str, object] = {"session_id": session_id, "agent_id": agent_id, "seq": seq}
        async with self.health.writing:
            count = await self._ask("forget", self._settings.write_timeout_s, (), named)
        return count if isinstance(count, int) else 0

    async def _write(self, method: str, given: tuple[object, ...], context: AddMessagesContext | None) -> None:
        health = self.health
        named = {"context": context} if self._takes_context[method] and context is not None else {}
        async with health.writing:
            try:
                await self._ask(method, self._settings.write_timeout_s, given, named)
            except RepertoryError as error:
                if isinstance(error, Retryable):  # Other errors may be those of what was written.
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
        """What it gives, in time, or an error of ours."""
        try:
            with anyio.fail_after(timeout_s) as scope:
                return await ask(scope.deadline)
        except RepertoryError:
            raise
        except TimeoutError as error:
            text = "the memory store did not answer in time"
            raise Unavailable(text, store=self.name, method=method, timeout_s=timeout_s) from error
        except OSError as error:
            raise Unavailable("the memory store could not be reached", store=self.name, error=repr(error)) from error
        except Exception as error:
            raise Failed(
                "the memory store raised an error", store=self.name, method=method, error=repr(error)
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
    """What the store gives. A synchronous one that does not return is waited for until then, and no longer."""
    if inspect.iscoroutinefunction(method):
        return await method()
    # In a tuple, since trio refuses threads that give something to be awaited.
    (answer,) = await run_foreign(lambda: (method(),), by=by)
    return await answer if inspect.isawaitable(answer) else answer


def _takes(store: object, method: str, parameter: str) -> bool:
    found = getattr(store, method, None)
    if not callable(found):
        return False
    parameters = inspect.signature(found).parameters.values()
    return any(each.name == parameter or each.kind is each.VAR_KEYWORD for each in parameters)


def _takes_two(search: Callable[..., object]) -> bool:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(search).parameters.values()
    return sum(each.kind in kinds for each in parameters) > 1 or any(
        each.kind is each.VAR_POSITIONAL for each in parameters
    )
