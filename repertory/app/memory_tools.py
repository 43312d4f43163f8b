"""The tools by which a model searches its memory and adds to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from repertory.app.memory_stores import ManagedStore
from repertory.backends.ports import ToolContext
from repertory.backends.tools.decorator import tool
from repertory.core.memory.options import MemoryAddToolConfig, MemoryToolConfig, read_options
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.memory.entry import MemoryEntry

SEARCH_TOOL, ADD_TOOL = "search_memory", "add_memory"
_SEARCH = "Search what is remembered from earlier conversations. Results come with the store that they are from."
_ADD = "Remember something beyond this conversation: short facts that stand for themselves, one in each entry."


class Memory(Protocol):
    """What the tools do their work with."""

    @property
    def managed(self) -> Sequence[ManagedStore]: ...
    def in_scope(self, wanted: Sequence[str] | None, *, among: Sequence[str] | None = None) -> list[ManagedStore]: ...
    async def search_stores(
        self, query: str, stores: Sequence[ManagedStore], results: int | None
    ) -> Sequence[MemoryEntry]: ...
    async def accept(self, agent: Any, stores: Sequence[ManagedStore], contents: Sequence[str], key: str) -> int: ...
    async def write(self, stores: Sequence[ManagedStore], contents: Sequence[str], *, key: str, agent: Any) -> None: ...


def search_tool(manager: Memory, given: object) -> object | None:
    """The tool that searches; None when it is not wanted."""
    config = _config(MemoryToolConfig, given, "search_tool_config")
    if config is None:
        return None
    stores = manager.managed

    async def search_memory(
        query: str, max_search_results: int | None = None, stores: list[str] | None = None
    ) -> list[dict[str, Any]]:
        """Search.

        Args:
            query: What to look for, in words that what is remembered may hold.
            max_search_results: At most so many entries of each store.
            stores: The names of the stores to search; all when left out.
        """
        found = await manager.search_stores(query, manager.in_scope(stores), max_search_results)
        return [
            {"content": entry.content, "store_name": entry.store_name}
            | ({"metadata": dict(entry.metadata)} if entry.metadata else {})
            for entry in found
        ]

    described = _described(config.description or _SEARCH, stores)
    name = config.name or SEARCH_TOOL
    return tool(name=name, description=described, effects=False, idempotent=True)(search_memory)


def add_tool(manager: Memory, given: object) -> object | None:
    """The tool that adds; None when it is not wanted. Errors: `Invalid` when there is nothing that it could add to."""
    config = _config(MemoryAddToolConfig, given, "add_tool_config")
    if config is None:
        return None
    scope = _addable(manager.managed, config.stores)
    names = [store.name for store in scope]

    async def add_memory(
        entries: list[str], tool_context: ToolContext, stores: list[str] | None = None
    ) -> dict[str, int]:
        """Add.

        Args:
            entries: What to remember, one fact in each.
            stores: The names of the stores to add to; all when left out.
        """
        targets = manager.in_scope(stores, among=names)
        key = tool_context.idempotency_key
        if not config.wait_for_writes:
            return {"accepted": await manager.accept(tool_context.agent, targets, entries, key)}
        await manager.write(targets, entries, key=key, agent=tool_context.agent)
        return {"stored": len(entries)}

    described = _described(config.description or _ADD, scope)
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
    """The description, with the stores folded in, so that the model can choose among them."""
    lines = [f"- {store.name}: {store.description}" if store.description else f"- {store.name}" for store in stores]
    return "\n".join([text, "", "Stores:", *lines])
