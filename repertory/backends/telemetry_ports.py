"""The port of tracing: what the agent system tells of its calls, runs and commits while they happen.

Actors find the trace of the running call with `actors.call.trace_here`; it is None where nobody traces, and then
nothing is told, computed or copied. Nothing here raises, whatever the exporter or a scrubber of the user does. Each
method that gives a context manager gives a span: it is the current one inside its block, and ends with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from msgspec import Struct

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.answer import Answer
    from repertory.core.converse import StreamEvent
    from repertory.core.messages import Message, Prompt, SystemPrompt, ToolResult, ToolSpec, ToolUse


class TracedCall(Struct, frozen=True, kw_only=True):
    """A call of an agent, a graph or a swarm that begins to be served.

    Attributes:
        session_id: The session.
        prompt: The prompt of the call.
        model: The model that will be asked.
    """

    owner: Any
    """The `Agent`, `Graph` or `Swarm` that users know: its name, attributes and tools are read from it."""
    session_id: str
    agent_id: str
    """The id of the agent, graph or swarm."""
    prompt: Prompt
    kind: str = "agent"
    """`agent`, or the kind of the orchestrator."""
    model: Model | None = None
    interrupted: str | None = None
    """The W3C `traceparent` of the turn that this call goes on with, from the journal."""
    direct: bool = False
    """A tool that the program calls itself: the call gets no span, its tools do."""
    wants_output: bool = False
    """True if the caller asks for structured output."""


class CallTelemetry(Protocol):
    """The program's telemetry. It is asked once for each call."""

    def begin(self, call: TracedCall) -> CallTrace:
        """The trace of a call, whose span begins when it is entered.

        Args:
            call: The call.
        """
        ...

    def headers(self) -> dict[str, str]:
        """The current trace for another process, as W3C headers."""
        ...

    def continue_from(self, headers: Mapping[str, str]) -> None:
        """Make the trace of these headers the current one, in the running context.

        Args:
            headers: The headers of another process; unreadable ones are left out.
        """

    def remote(self, agent_id: str, session_id: str, peer: str) -> RemoteTrace:
        """A call that another process serves, as a span that begins now.

        Args:
            agent_id: The id of the agent in its session.
            session_id: The id of the session.
            peer: The name of the other process.
        """
        ...


class RemoteTrace(Protocol):
    """A call that another process serves. Its span is never the current one, so any task may end it."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers for the other process, which make its spans children of this call's."""
        ...

    def close(self, error: BaseException | None = None) -> None:
        """The call is over.

        Args:
            error: The error of the call; None when it succeeded.
        """
        ...


FindTelemetry: TypeAlias = "Callable[[], CallTelemetry | None]"
"""A function that returns the program's telemetry; None if the program has set no provider."""


class CallTrace(Protocol):
    """The trace of one call: what is done for it is a child of its span."""

    def __enter__(self) -> CallTrace: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """The call is over. An error is an attribute of the span, without its message."""
        ...

    def ended(self, result: object) -> None:
        """The call's result, an `AgentResult` or `MultiAgentResult`.

        Args:
            result: The result.
        """
        ...

    traceparent: str | None
    """The W3C `traceparent` that the journal keeps while the call has no answer; None if there is none to find."""

    def step(self, number: int | None) -> None:
        """Begin the step with this number, from 0, unless it runs. The one before ends. None: no more follows.

        Args:
            number: The number of the step, from 0; None for no more.
        """
        ...

    def retried(self, attempt: int, delay_s: float, error: BaseException | None) -> None:
        """The model is asked again after a failed or refused attempt.

        Args:
            attempt: The number of the attempt that failed, from 1.
            delay_s: Seconds until the next attempt.
            error: The error.
        """
        ...

    def model_call(
        self,
        model: Model,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec],
        system_prompt: SystemPrompt,
    ) -> ModelCallTrace:
        """The trace of one attempt of a model call, whose span begins when it is entered.

        Args:
            model: The model.
            messages: The messages that it gets.
            tool_specs: The tools that it may use.
            system_prompt: The system prompt.
        """
        ...

    def tool_call(self, spec: ToolSpec, use: ToolUse, attempt: int) -> ToolCallTrace:
        """The trace of one attempt of a tool, whose span begins when it is entered.

        Args:
            spec: The tool's spec.
            use: The tool use.
            attempt: The number of the attempt, from 1.
        """
        ...

    def tool_step(self, key: str, name: str, use_id: str, attempt: int, *, undoes: bool) -> ToolStepTrace:
        """The trace of a step of a tool, with its repetitions, whose span begins when it is entered.

        Args:
            key: The step's key among those of the tool use.
            name: The step's name.
            use_id: The id of the tool use.
            attempt: The number of the attempt, from 1; those of earlier lives count.
            undoes: True for a compensation.
        """
        ...

    def search(self, store: str, query: str) -> SearchTrace:
        """A search in a memory store. It may begin beside the turn, in another task.

        Args:
            store: The name of the store.
            query: The text to search for.
        """
        ...

    def work(self, name: str, attributes: Mapping[str, Any], *, behind: bool = False) -> AbstractContextManager[object]:
        """Other work for the call, such as a summary or a node.

        Args:
            name: The name of the span.
            attributes: Attributes of the span.
            behind: The call has caused it and does not wait for it, so it is a trace of its own, linked to the call.
        """
        ...

    def commit(self, others: Sequence[CallTrace], attributes: Mapping[str, Any]) -> AbstractContextManager[object]:
        """A group commit: a trace of its own, linked to this call and the others whose rows it has.

        Args:
            others: The traces of the other calls.
            attributes: Attributes of the span.
        """
        ...


class ModelCallTrace(Protocol):
    """The trace of one attempt of a model call."""

    def __enter__(self) -> ModelCallTrace: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...

    def watching(
        self, publish: Callable[[StreamEvent], Awaitable[None]] | None
    ) -> Callable[[StreamEvent], Awaitable[None]]:
        """A `publish` that also notes when the first piece of the answer arrives.

        Args:
            publish: Gets each event; None for nobody.
        """
        ...

    def answered(self, answer: Answer) -> None:
        """The answer has come.

        Args:
            answer: The answer.
        """

    def fitted(self, changes: Sequence[str]) -> None:
        """The conversation was changed to fit the service's rules.

        Args:
            changes: The kinds of changes, without any content.
        """


MODEL_CALL: ContextVar[ModelCallTrace | None] = ContextVar("repertory_model_call", default=None)
"""The trace of the model call that the running code makes; None where nobody traces."""


def note_changes(changes: Sequence[str]) -> None:
    """Note in the trace of the running model call, if there is one, how the conversation was made to fit.

    Args:
        changes: The kinds of changes, without any content.
    """
    trace = MODEL_CALL.get()
    if trace is not None:
        trace.fitted(changes)


class ToolCallTrace(Protocol):
    """The trace of one attempt of a tool."""

    def __enter__(self) -> ToolCallTrace: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...

    def ended(self, result: ToolResult, exception: BaseException | None) -> None:
        """The tool has ended.

        Args:
            result: The result of the tool.
            exception: The error of which the result was made; None for none.
        """


class ToolStepTrace(Protocol):
    """The trace of one step of a tool. An error that leaves the block is its failure."""

    def __enter__(self) -> ToolStepTrace: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...

    def recorded(self) -> None:
        """The step has its result from the record, and does not run."""
        ...

    def retried(self, delay_s: float, error: Exception) -> None:
        """It has failed and is tried again.

        Args:
            delay_s: Seconds until then.
            error: The error.
        """
        ...


class SearchTrace(Protocol):
    """The trace of one search in a memory store."""

    def __enter__(self) -> SearchTrace: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None: ...

    def found(self, texts: Sequence[str]) -> None:
        """Record the texts that were found.

        Args:
            texts: The texts, the best first.
        """
        ...
