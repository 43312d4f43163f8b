"""The stores of a memory manager: what each can do, checked once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from repertory.actors.memory.desk import DeskSettings, StoreDesk
from repertory.app.memory.extraction import Extraction, read_extraction
from repertory.core.ids import check_id
from repertory.errors import Invalid

_FIELDS = ("name", "description", "max_search_results", "writable", "extraction")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedStore:
    """One store, and what it can do."""

    desk: StoreDesk
    description: str | None
    writable: bool
    adds: bool
    """Whether it takes single memories in, and may."""
    extraction: Extraction | None

    @property
    def name(self) -> str:
        """As its users call it."""
        return self.desk.name

    @property
    def tools(self) -> Sequence[object]:
        """Its own tools."""
        give: Callable[[], Sequence[object]] | None = getattr(self.desk.store, "get_tools", None)
        return list(give()) if callable(give) else ()


def managed_stores(given: object, settings: DeskSettings) -> tuple[ManagedStore, ...]:
    """The stores. Errors: `Invalid`, a ValueError, for one that cannot do what it says, and for two of one name."""
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


def _managed(store: object, settings: DeskSettings) -> ManagedStore:
    if not callable(getattr(store, "search", None)):
        raise Invalid("MemoryManager: a store has a method search(query, options)", got=type(store).__name__)
    missing = [field for field in _FIELDS if not hasattr(store, field)]
    if missing:
        raise Invalid("MemoryManager: a store says of itself what these attributes say", missing=missing)
    found = cast("Any", store)
    name = check_id(found.name, "store name")
    adds, takes_messages = _can(store, "add"), _can(store, "add_messages")
    writable = bool(found.writable)
    if writable and not (adds or takes_messages):
        raise Invalid(f"MemoryManager: store '{name}' is writable but has no add or add_messages method")
    extraction = read_extraction(found.extraction, has_add=adds, has_add_messages=takes_messages)
    if extraction is not None:
        _check_extraction(name, extraction, writable=writable, adds=adds, takes_messages=takes_messages)
    return ManagedStore(
        desk=StoreDesk(store, settings),
        description=found.description,
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


def _can(store: object, method: str) -> bool:
    """Whether the store has it, of its own: what a protocol that it subclasses only declares does not count."""
    found = getattr(store, method, None)
    function = getattr(found, "__func__", found)
    return callable(found) and not getattr(function, "__module__", "").endswith("memory_ports")
