"""The events that a caller who streams a turn or a run gets, as type checkers know them.

Each kind of event forbids the keys of the others by `Never`. So mypy and pyright know `event["data"]` behind `if "data"
in event`, take `event.get("data", "")` for a text, and refuse a misspelt key.

Order: raw events stand before what is derived from them; a message stands after the pieces that it was made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, Never, NotRequired, TypeAlias, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import typing_extensions

    from repertory.core.converse import StreamEvent
    from repertory.core.interrupts import Interrupt
    from repertory.core.messages import Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult
    from repertory.core.run_results import MultiAgentResult, NodeResult

    Run = typing_extensions.TypeVar("Run", bound=MultiAgentResult, default=MultiAgentResult)
else:
    Run = TypeVar("Run")


class _Event(TypedDict, total=False):
    offset: str
    """The position in a turn that is streamed with a token: `attach` reads on behind it."""


class _NoRaw(TypedDict, total=False):
    event: Never


class _NoText(TypedDict, total=False):
    data: Never


class _NoReasoning(TypedDict, total=False):
    reasoning: Never
    reasoningText: Never


class _NoDelta(TypedDict, total=False):
    delta: Never


class _NoMessage(TypedDict, total=False):
    message: Never


class _NoTool(TypedDict, total=False):
    tool_started: Never
    tool_stream_event: Never
    tool_finished: Never
    tool_interrupt_event: Never


class _NoRetry(TypedDict, total=False):
    model_retry: Never


class _NoResult(TypedDict, total=False):
    result: Never


class _NoStep(TypedDict, total=False):
    init_event_loop: Never
    start: Never
    start_event_loop: Never
    force_stop: Never
    force_stop_reason: Never
    tool_cancel_event: Never
    event_loop_throttled_delay: Never
    structured_output: Never
    type: Never
    current_tool_use: Never
    citation: Never
    reasoning_signature: Never
    reasoningRedactedContent: Never


class RawEvent(_Event, _NoText, _NoReasoning, _NoDelta, _NoMessage, _NoTool, _NoRetry, _NoResult, _NoStep):
    """A raw event of the model's stream, as Converse spells it."""

    event: StreamEvent


class TextEvent(_Event, _NoRaw, _NoReasoning, _NoMessage, _NoTool, _NoRetry, _NoResult, _NoStep):
    """A piece of the answer's text."""

    data: str
    delta: Mapping[str, object]


class ReasoningEvent(_Event, _NoRaw, _NoText, _NoMessage, _NoTool, _NoRetry, _NoResult, _NoStep):
    """A piece of the model's reasoning."""

    reasoning: Literal[True]
    reasoningText: str
    delta: Mapping[str, object]


class MessageEvent(_Event, _NoRaw, _NoText, _NoReasoning, _NoDelta, _NoTool, _NoRetry, _NoResult, _NoStep):
    """A message was added to the conversation."""

    message: Message


class ToolPiece(TypedDict):
    """A value that a tool yielded before its result."""

    tool_use: ToolUse
    data: object


class ToolQuestions(TypedDict):
    """The questions to a person about a tool use."""

    tool_use: ToolUse
    interrupts: list[Interrupt]


class ToolEvent(_Event, _NoRaw, _NoText, _NoReasoning, _NoDelta, _NoMessage, _NoRetry, _NoResult, _NoStep, total=False):
    """An event of a tool, with one of these keys."""

    tool_started: ToolUse
    """The tool is about to run."""
    tool_stream_event: ToolPiece
    tool_finished: ToolResult
    tool_interrupt_event: ToolQuestions


class ModelRetry(TypedDict):
    """A repeated call of the model. What it streamed since the last message is void."""

    attempt: int
    """The number of failed attempts."""
    delay_s: float
    """Seconds until the model is asked again."""
    error: Exception | None


class RetryEvent(_Event, _NoRaw, _NoText, _NoReasoning, _NoDelta, _NoMessage, _NoTool, _NoResult, _NoStep):
    """The model is asked again."""

    model_retry: ModelRetry


class ResultEvent(_Event, _NoRaw, _NoText, _NoReasoning, _NoDelta, _NoMessage, _NoTool, _NoRetry, _NoStep):
    """The turn is over: always the last event, and absent if the turn failed."""

    result: AgentResult


class CancelledTool(TypedDict):
    """A tool that a callback kept from running, and what the model is told."""

    tool_use: ToolUse
    message: str


class StepEvent(_Event, _NoRaw, _NoText, _NoMessage, _NoTool, _NoRetry, _NoResult, total=False):
    """An event of a step, or of a piece of the answer that is no text, with some of these keys."""

    init_event_loop: Literal[True]
    start: Literal[True]
    start_event_loop: Literal[True]
    force_stop: Literal[True]
    force_stop_reason: str
    tool_cancel_event: CancelledTool
    event_loop_throttled_delay: float
    structured_output: object
    type: str
    current_tool_use: Mapping[str, object]
    citation: Mapping[str, object]
    reasoning: Literal[True]
    reasoningText: Never
    reasoning_signature: str
    reasoningRedactedContent: bytes
    delta: Mapping[str, object]


AgentStreamEvent: TypeAlias = (
    RawEvent | TextEvent | ReasoningEvent | MessageEvent | ToolEvent | RetryEvent | StepEvent | ResultEvent
)
"""An event of `Agent.stream_async`: a dictionary, known by its keys."""


class _NoNode(TypedDict, total=False):
    node_id: Never


class NodeStarted(_NoResult):
    """A node of a graph or swarm starts."""

    type: Literal["multiagent_node_start"]
    node_id: str
    node_type: str


class NodeStreamed(_NoResult):
    """An event of the agent in a node. That of a graph or swarm in it is one of these again."""

    type: Literal["multiagent_node_stream"]
    node_id: str
    event: AgentStreamEvent


class NodeStopped(_NoResult):
    """A node has ended."""

    type: Literal["multiagent_node_stop"]
    node_id: str
    node_result: NodeResult


class NodeInterrupted(_NoResult):
    """A node asks a person."""

    type: Literal["multiagent_node_interrupt"]
    node_id: str
    interrupts: Sequence[Interrupt]


class NodeCancelled(_NoResult):
    """A callback kept a node from running."""

    type: Literal["multiagent_node_cancel"]
    node_id: str
    message: str


class Handoff(_NoNode, _NoResult):
    """The run goes from some nodes to others."""

    type: Literal["multiagent_handoff"]
    from_node_ids: list[str]
    to_node_ids: list[str]
    message: NotRequired[str]


class RunEnded(_NoNode, Generic[Run]):
    """The run is over. It is the last event."""

    type: Literal["multiagent_result"]
    result: Run


MultiAgentStreamEvent: TypeAlias = (
    NodeStarted | NodeStreamed | NodeStopped | NodeInterrupted | NodeCancelled | Handoff | RunEnded[Run]
)
"""An event of `stream_async` of a graph or swarm: a dictionary, known by its `type`."""
