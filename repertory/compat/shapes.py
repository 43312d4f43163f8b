"""Types of the SDK that only its programs use: content blocks as objects, its base class of tools, and short names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.actors.hooks.events import HookEvent
from repertory.backends.sdk_members import SdkMembers
from repertory.core.call_events import TypedEvent
from repertory.core.converse import (
    AudioContent,
    AudioFormat,
    ImageContent,
    ImageFormat,
    MediaSource,
    SystemContentBlock,
    ToolResultContent,
    ToolUseChoice,
)
from repertory.core.interrupts import Interrupt
from repertory.core.messages import (
    ContentBlock,
    Message,
    MessageMetadata,
    SystemPrompt,
    ToolResult,
    ToolSpec,
    ToolStatus,
    ToolUse,
)
from repertory.core.result import AgentResult
from repertory.core.retry import DEFAULT_RETRY

MultiAgentInput: TypeAlias = str | list[ContentBlock] | None
SnapshotField = Literal[
    "messages", "state", "conversation_manager_state", "interrupt_state", "model_state", "system_prompt"
]
SnapshotPreset = Literal["session"]
DEFAULT_BEDROCK_REGION = "us-west-2"
"""The region that the SDK's `BedrockModel` takes where none is set; the one here asks for a region."""
INITIAL_DELAY, MAX_DELAY = DEFAULT_RETRY.initial_delay, DEFAULT_RETRY.max_delay
MAX_ATTEMPTS = DEFAULT_RETRY.max_attempts
JSONSchema: TypeAlias = dict[str, Any]
ToolGenerator: TypeAlias = AsyncGenerator[Any, None]
RunToolHandler: TypeAlias = Callable[[ToolUse], AsyncGenerator[dict[str, Any], None]]
SpanValue: TypeAlias = "str | bool | float | int | list[str] | list[bool] | list[float] | list[int] | None"
SpanAttributes: TypeAlias = "dict[str, SpanValue] | None"


class ToolDescription(TypedDict):
    """A tool in a request."""

    toolSpec: ToolSpec


class ToolConfig(TypedDict):
    """The tools of a request."""

    tools: list[ToolDescription]
    toolChoice: ToolUseChoice


class DeltaContent(TypedDict, total=False):
    """A piece of a block."""

    text: str
    toolUse: dict[Literal["input"], str]


class IndexedDelta(TypedDict):
    """A piece of the block with this index."""

    contentBlockIndex: int
    delta: DeltaContent


class ContentBlockStop(TypedDict):
    """The end of the block with this index."""

    contentBlockIndex: int


class ToolFunc(Protocol):
    """A function with a `TOOL_SPEC` beside it."""

    __name__: str

    def __call__(self, *args: Any, **kwargs: Any) -> ToolResult | Awaitable[ToolResult]: ...


class SdkTool(ABC):
    """A tool as an object: subclass it, and give an instance to `Agent(tools=[...])`."""

    def __init__(self) -> None:
        self._is_dynamic = False

    @property
    @abstractmethod
    def tool_name(self) -> str:
        """The name that the model calls."""

    @property
    @abstractmethod
    def tool_spec(self) -> ToolSpec:
        """Name, description and JSON schema, as the model sees them."""

    @property
    @abstractmethod
    def tool_type(self) -> str:
        """The kind of tool, such as `function`."""

    @property
    def supports_hot_reload(self) -> bool:
        """True if the tool may be replaced while the agent lives."""
        return False

    @property
    def is_dynamic(self) -> bool:
        """True if the tool was loaded from a file."""
        return self._is_dynamic

    def mark_dynamic(self) -> None:
        """Note that the tool was loaded from a file."""
        self._is_dynamic = True

    @abstractmethod
    def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> ToolGenerator:
        """Run the tool: yield any pieces, and the result as the last one."""

    def get_display_properties(self) -> dict[str, str]:
        """The properties of the tool for display, by label."""
        return {"Name": self.tool_name, "Type": self.tool_type}


SdkTool.register(SdkMembers)  # Every tool of Repertory.


@runtime_checkable
class AgentBase(Protocol):
    """The methods of every agent: of `Agent`, and of objects of others that are used like one."""

    def __call__(self, prompt: Any = None, **options: Any) -> AgentResult:
        """The answer, for sync code."""
        ...

    async def invoke_async(self, prompt: Any = None, **options: Any) -> AgentResult:
        """The answer."""
        ...

    def stream_async(self, prompt: Any = None, **options: Any) -> AsyncIterator[Any]:
        """The events of the turn; the last one holds the answer."""
        ...


class ConcurrentInvocationMode(StrEnum):
    """The rule for a call while another one runs: it is refused, or it waits."""

    THROW = "throw"
    UNSAFE_REENTRANT = "unsafe_reentrant"


@dataclass(kw_only=True)
class MessageUpdatedEvent(HookEvent):
    """A message was replaced by another one. Never fired: only agents that speak replace messages."""

    tracking_id: str
    message: Message


BedrockMantleConfig: TypeAlias = dict[str, Any]
"""Settings of the SDK for OpenAI's protocol at Bedrock, which no model takes here: `BedrockModel` speaks to it."""


class ToolStreamEvent(TypedEvent):
    """A piece that a tool yields before its result."""

    def __init__(self, tool_use: ToolUse, tool_stream_data: object) -> None:
        super().__init__(type="tool_stream", tool_stream_event={"tool_use": tool_use, "data": tool_stream_data})

    @property
    def tool_use_id(self) -> str:
        """The id of the call that yields it."""
        return cast("Any", self["tool_stream_event"])["tool_use"]["toolUseId"]


class ToolInterruptEvent(TypedEvent):
    """Questions to a person, in the place of a tool's result."""

    def __init__(self, tool_use: ToolUse, interrupts: list[Interrupt]) -> None:
        super().__init__(tool_interrupt_event={"tool_use": tool_use, "interrupts": interrupts})

    @property
    def tool_use_id(self) -> str:
        """The id of the call that asks."""
        return cast("Any", self["tool_interrupt_event"])["tool_use"]["toolUseId"]

    @property
    def interrupts(self) -> list[Interrupt]:
        """The questions."""
        return cast("Any", self["tool_interrupt_event"])["interrupts"]


@dataclass
class TextBlock:
    """Text in a message."""

    text: str

    def to_dict(self) -> ContentBlock:
        """The block as a dictionary."""
        return {"text": self.text}


@dataclass
class ToolResultBlock:
    """A tool's result in a message."""

    tool_use_id: str
    status: ToolStatus
    content: list[ToolResultContent]

    def to_dict(self) -> dict[str, Any]:
        """The block as a dictionary."""
        return {"toolResult": {"toolUseId": self.tool_use_id, "status": self.status, "content": self.content}}


@dataclass
class MessageImage:
    """An image in a message."""

    format: ImageFormat
    source: MediaSource

    def to_dict(self) -> dict[str, ImageContent]:
        """The block as a dictionary."""
        return {"image": {"format": self.format, "source": self.source}}


@dataclass
class AudioBlock:
    """Sound in a message."""

    format: AudioFormat
    source: MediaSource

    def to_dict(self) -> dict[str, AudioContent]:
        """The block as a dictionary."""
        return {"audio": {"format": self.format, "source": self.source}}


def split_system_prompt(system_prompt: SystemPrompt) -> tuple[str | None, list[SystemContentBlock] | None]:
    """A system prompt as one text, and as blocks; None where there is none."""
    if isinstance(system_prompt, str):
        return system_prompt, [{"text": system_prompt}]
    if system_prompt is None:
        return None, None
    texts = [str(block["text"]) for block in system_prompt if "text" in block]
    return "\n".join(texts) if texts else None, cast("list[SystemContentBlock]", system_prompt)


def get_message_metadata(message: Message) -> MessageMetadata:
    """The data that are stored with a message and sent to no model; empty if there are none."""
    return message.get("metadata", {})
