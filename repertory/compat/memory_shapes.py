"""Types of the SDK for memory, context injection and offloading that only its programs name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Required, TypeAlias

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.actors.hooks.injections import InjectionContext
from repertory.app.memory.extraction import Extractor, Triggers
from repertory.app.memory.injection import InjectionFormatContext
from repertory.backends.memory_ports import MemoryStore
from repertory.backends.ports import Model
from repertory.core.memory.options import MemoryMessageFilter

Metadata: TypeAlias = dict[str, Any]
MemoryContentBlockType = Literal[
    "text",
    "toolUse",
    "toolResult",
    "image",
    "document",
    "reasoningContent",
    "video",
    "guardContent",
    "citationsContent",
    "cachePoint",
]
DEFAULT_MEMORY_MESSAGE_FILTER = MemoryMessageFilter()


class ExtractionDict(TypedDict, total=False):
    """`repertory.ExtractionConfig` as a dictionary, which the SDK's programs change."""

    trigger: Triggers
    extractor: Extractor
    filter: MemoryMessageFilter


class ProactiveCompressionConfig(TypedDict, total=False):
    """The share of the window at which a conversation manager compresses before a model call."""

    compression_threshold: float


class TriggerCallback(Protocol):
    """Decides whether to inject at a model call."""

    def __call__(self, context: InjectionContext) -> bool: ...


InjectionTrigger = Literal["userTurn", "everyTurn"]
InjectionTriggerPredicate: TypeAlias = InjectionTrigger | Callable[[InjectionContext], bool] | TriggerCallback


class InjectionConfig(TypedDict, total=False):
    """The trigger of an injection."""

    trigger: InjectionTriggerPredicate


class InjectionQueryCallback(Protocol):
    """Gives the query for a model call; None for no search."""

    def __call__(self, context: InjectionContext) -> str | None: ...


class InjectionFormatCallback(Protocol):
    """Gives the text to show of the entries."""

    def __call__(self, context: InjectionFormatContext) -> str: ...


InjectionFormat: TypeAlias = Callable[[InjectionFormatContext], str] | InjectionFormatCallback


@dataclass
class ExtractorContext:
    """The argument of an extractor. `default_model`: for extractors without a model of their own."""

    default_model: Model | None = None


class MemoryManagerConfig(TypedDict, total=False):
    """The arguments of a `MemoryManager`, as a dictionary."""

    stores: Required[list[MemoryStore]]
    search_tool_config: Any
    add_tool_config: Any
    injection: Any


class MemoryStoreConfig(TypedDict, total=False):
    """The arguments of every memory store, as a dictionary."""

    name: Required[str]
    description: str
    max_search_results: int
    writable: bool
    extraction: Any


class FileMemoryStoreConfig(MemoryStoreConfig, total=False):
    """The settings of a `FileMemoryStore`."""

    storage: Any


class TestMemoryStoreConfig(MemoryStoreConfig, total=False):
    """The settings of a `TestMemoryStore`."""

    persist: bool
    path: str


type.__setattr__(TestMemoryStoreConfig, "__test__", False)  # pytest would take it for a class of tests.


class BedrockKnowledgeBaseAccessControlEntry(TypedDict):
    """One entry of a document's access list: a user or group that may see it, or may not."""

    access: Literal["ALLOW", "DENY"]
    name: str
    type: str


class BedrockKnowledgeBaseStoreConfig(MemoryStoreConfig, total=False):
    """The arguments of a `BedrockKnowledgeBaseStore`, as a dictionary."""

    config: Required[Any]
    scope: str
    filter: dict[str, Any]
    access_control_list: list[BedrockKnowledgeBaseAccessControlEntry]
    min_score: float
    max_score: float
