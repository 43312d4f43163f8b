"""Memory injection: entries found by a search, shown to the model in one call only."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from repertory.actors.hooks.injections import Injection, InjectionContext, InjectionPredicate
from repertory.actors.memory.store import Recall
from repertory.app.tracebacks import log_omission
from repertory.core.memory.merging import merged, unsaid, within_budget
from repertory.core.memory.options import MemoryEntry, Options, read_options
from repertory.core.messages import Message, text_of, tool_results
from repertory.core.window.injection import OCCASIONS, Occasion
from repertory.errors import Invalid
from repertory.logs import WARNING, note

if TYPE_CHECKING:
    from repertory.actors.hooks.events import MessageAddedEvent
    from repertory.actors.memory.consumer import MemoryLink
    from repertory.actors.memory.store import MemoryStoreClient

_log = logging.getLogger("repertory.memory")

NAME = "memory"
MAX_ENTRIES = 5
TIMEOUT_S = 2.0
MAX_TOKENS = 2000
_CALLBACKS_S = 2.0
"""Additional time for the user's own trigger, query and format functions."""


@dataclass(frozen=True, slots=True)
class InjectionFormatContext:
    """The argument of a `format` function."""

    entries: Sequence[MemoryEntry]
    """The entries, the best first."""


InjectionQuery: TypeAlias = "Callable[[InjectionContext], str | Awaitable[str | None] | None]"
Format: TypeAlias = "Callable[[InjectionFormatContext], str | Awaitable[str]]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryInjectionConfig(Options):
    """Memory entries that the model sees before a call. Works as attributes and as a mapping.

    All functions may be asynchronous. A failed, late or unasked store is logged, and the call is made without it. The
    result says so (`metrics.left_out`). So does an event on the caller's span.

    Args:
        trigger: `userTurn` for the first call after a user's message, `everyTurn` before every model call, or a
            function of the `InjectionContext` that decides. The default is `userTurn`.
        max_entries: The most entries of each store's search, and of all stores together.
        query: A function of the `InjectionContext`. It returns the query. None or an empty text makes no search.
        format: A function of an `InjectionFormatContext` that returns the text to show, and has to escape the entries.
        timeout_s: The most seconds that a model call waits for a store, from the start of its search. A store that
            failed five turns in a row is asked by one turn in four.
        max_tokens: The approximate size of all entries together. `metrics.left_out` names those that do not fit: by
            their `id` in the metadata, else by their rank.
    """

    trigger: Occasion | InjectionPredicate = "userTurn"
    max_entries: int = MAX_ENTRIES
    query: InjectionQuery | None = None
    format: Format | None = None
    timeout_s: float = TIMEOUT_S
    max_tokens: int = MAX_TOKENS


def read_injection(given: object) -> MemoryInjectionConfig | None:
    """The setting; None for no injection. Errors: `Invalid` for bad values."""
    if given is None or given is False:
        return None
    config = MemoryInjectionConfig() if given is True else read_options(MemoryInjectionConfig, given, "injection")
    if config.trigger not in OCCASIONS and not callable(config.trigger):
        raise Invalid(f"injection: a trigger is {' or '.join(OCCASIONS)}, or a function", got=config.trigger)
    for name in ("max_entries", "timeout_s", "max_tokens"):
        value = cast("object", getattr(config, name))
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise Invalid(f"injection: {name} is a positive number", got=value)
    return config


class MemoryInjection:
    """Memory injection for one agent's model calls."""

    def __init__(self, config: MemoryInjectionConfig, clients: Sequence[MemoryStoreClient], link: MemoryLink) -> None:
        self._config = config
        self._clients = clients
        self._link = link
        self._recall: Recall | None = None

    @property
    def injection(self) -> Injection:
        """The injection for the agent's hooks."""
        return Injection(
            name=NAME,
            render=self.render,
            trigger=self._config.trigger,
            timeout_s=self._config.timeout_s + _CALLBACKS_S,
            on_omission=log_omission,
        )

    def look_ahead(self, event: MessageAddedEvent) -> None:
        """Begin the search for the next model call, when its query is known already."""
        message, trigger = event.message, self._config.trigger
        between_tools = message["role"] == "assistant" and any("toolUse" in block for block in message["content"])
        fresh = message["role"] == "user" and not any(tool_results(message))
        if self._config.query is not None or callable(trigger):
            return
        if not (fresh or (between_tools and trigger == "everyTurn")):
            return
        query = text_of(message).strip()
        if query:
            self._recall = self._begin(query)

    async def render(self, context: InjectionContext) -> str | None:
        """The text to inject. Stores that have not answered in time are left out, and named in the context."""
        chosen = self._config.query
        found = await _result(partial(chosen, context)) if chosen is not None else default_query(context.shown)
        query = cast("str | None", found)
        if not query:
            return None
        recall, self._recall = self._recall, None
        if recall is None or recall.query != query:
            recall = self._begin(query)
        found = merged(await recall.found())
        for store, why in recall.missed.items():
            _leave_out(context, store, why)
        chosen = within_budget(unsaid(found, context.shown), self._config.max_entries, self._config.max_tokens)
        for entry in chosen.too_long:
            which = (entry.metadata or {}).get("id", found.index(entry) + 1)
            text = "a memory is left out: with those before it, it takes more than max_tokens"
            note(_log, WARNING, text, store=entry.store_name, entry=which, max_tokens=self._config.max_tokens)
            _leave_out(context, f"{entry.store_name} {which}", "too long")
        return await self._rendered(chosen.entries) if chosen.entries else None

    def _begin(self, query: str) -> Recall:
        recall = Recall(query, self._config.max_entries, self._config.timeout_s)
        actors = self._link.stores()
        recall.begin({client: actors.get(client.name) for client in self._clients})
        return recall

    async def _rendered(self, entries: Sequence[MemoryEntry]) -> str:
        if self._config.format is None:
            return memory_block(entries)
        return cast("str", await _result(partial(self._config.format, InjectionFormatContext(entries))))


def _leave_out(context: InjectionContext, what: str, why: str) -> None:
    context.left_out[f"{NAME} {what}"] = why
    log_omission(f"{NAME} {what}", why)


async def _result(callback: Callable[[], Any]) -> object:
    given = callback()
    return await given if inspect.isawaitable(given) else given


def memory_block(entries: Sequence[MemoryEntry]) -> str:
    """The entries in one block, escaped, so that no entry can end it. Empty without entries."""
    if not entries:
        return ""
    lines = [f"<entry{_source(entry)}>{escape(entry.content, quote=False)}</entry>" for entry in entries]
    return "\n".join(["<memory>", *lines, "</memory>"])


def default_query(messages: Sequence[Message]) -> str | None:
    """The query: the last user message; between the tools of a turn the assistant's last text. None without text."""
    for message in reversed(messages):
        text = text_of(message).strip()
        if text:
            return text
        if message["role"] == "user" and not any("toolResult" in block for block in message["content"]):
            return None
    return None


def _source(entry: MemoryEntry) -> str:
    return "" if entry.store_name is None else f' source="{escape(entry.store_name)}"'
