"""The events of an agent that callbacks can listen to.

    BeforeInvocation, MessageAdded (the prompt),
      BeforeModelCall, AfterModelCall, MessageAdded (the answer),
        BeforeTools, (BeforeToolCall, AfterToolCall)*, AfterTools, MessageAdded (the results),
      BeforeModelCall, ...
    AfterInvocation

A turn that waits for a person ends after AfterTools, with the tools that have ended by then, or after BeforeTools if
the question was asked there. The call that continues it begins with BeforeInvocation, BeforeTools. A tool that asks has
no end yet, so AfterToolCall is not fired for it.

A direct tool call fires BeforeToolCall, AfterToolCall and MessageAdded only. An event's fields are read-only except
those that its class names in `writable`: callbacks assign them to change what happens next. Callbacks of events with
`cleanup` run in reverse, so the callback that ran first before the action runs last after it.

Names, fields and order are those of the SDK whose users we serve; what a failing callback does is our decision (see
`HookRegistry.add_callback`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from repertory.core.interrupts import STEP_SCOPE, hook_scope
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.interrupts import Questions
    from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse
    from repertory.core.result import AgentResult


@dataclass(kw_only=True)
class HookEvent:
    """The base of all events."""

    writable: ClassVar[frozenset[str]] = frozenset()
    """The fields that callbacks may assign."""
    cleanup: ClassVar[bool] = False
    """True if callbacks run in reverse order."""
    guards: ClassVar[bool] = False
    """True if a callback that raises fails the turn, unless it was registered otherwise."""

    agent: Any
    """The `Agent` of the event."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__ or (name in self.__dict__ and name not in self.writable):
            msg = f"Property {name} is not writable"
            raise AttributeError(msg)
        object.__setattr__(self, name, value)


@dataclass(kw_only=True)
class AgentInitializedEvent(HookEvent):
    """The agent is built and its session is open. Fired once; its callbacks are synchronous."""


@dataclass(kw_only=True)
class BeforeSnapshotEvent(HookEvent):
    """A snapshot of the agent is about to be taken (`action` is "save") or loaded ("load").

    Callbacks are synchronous; one that raises prevents it. `metadata`: the caller's metadata for a new snapshot; add to
    it, or assign another. `snapshot`: the one that is loaded. `source`: the orchestrator, for an orchestrator's
    snapshot; `agent` is None then.
    """

    writable = frozenset(("metadata",))
    guards = True

    action: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    snapshot: Any = None
    source: Any = None


@dataclass(kw_only=True)
class AfterSnapshotEvent(HookEvent):
    """A snapshot was taken or loaded. Callbacks are synchronous.

    `loaded`: a `SnapshotLoaded`, after a load. `source`: the orchestrator, for an orchestrator's snapshot; `agent` is
    None then.
    """

    cleanup = True

    action: str
    snapshot: Any
    loaded: Any = None
    source: Any = None


@dataclass(kw_only=True)
class BeforeInvocationEvent(HookEvent):
    """A call is about to begin. Nothing of it is stored yet.

    `messages`: copies of the caller's messages (None: interrupt responses); edit them or assign others. `cancel`: True
    or a text ends the call here, with that text as its answer and nothing stored.
    """

    writable = frozenset(("messages", "cancel"))
    guards = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: Sequence[Message] | None = None
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterInvocationEvent(HookEvent):
    """A call has ended, even one that could not begin. Agent state that callbacks set is committed with the turn.

    `result`: None if the call failed. `resume`: assign any prompt to begin another turn in the same call, whose result
    the caller then gets, unless the call has reached a limit or was cut short.
    """

    writable = frozenset(("resume",))
    cleanup = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    result: AgentResult | None = None
    resume: Any = None


@dataclass(kw_only=True)
class MessageAddedEvent(HookEvent):
    """A message is being added to the conversation. In-place edits of `message` are stored, shown and answered.

    Role, tool uses and tool results stay where they are; their inputs and contents may be edited. Tools run with the
    input that the model asked for: `BeforeToolCallEvent` changes that.
    """

    message: Message


@dataclass(kw_only=True)
class BeforeModelCallEvent(HookEvent):
    """The model is about to be asked.

    `projected_input_tokens`: an estimate of the request. `cancel`: True or a text is the answer, and the model is not
    asked.
    """

    writable = frozenset(("cancel",))
    guards = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    projected_input_tokens: int | None = None
    cancel: bool | str = False


@dataclass(kw_only=True)
class ModelStopResponse:
    """The model's message and its stop reason."""

    message: Message
    stop_reason: str


@dataclass(kw_only=True)
class AfterModelCallEvent(HookEvent):
    """The model has answered (`stop_response`), failed (`exception`), or was cut short (neither).

    `retry`: True throws the answer or the failure away and asks again. After a failure that the retry strategy will
    retry it is True already; False then gives up at once.
    """

    writable = frozenset(("retry",))
    cleanup = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    stop_response: ModelStopResponse | None = None
    exception: Exception | None = None
    retry: bool = False


class Asking:
    """The base of events whose callbacks may ask a person."""

    questions: Questions | None
    scope: str

    def interrupt(
        self, name: str, reason: object = None, response: object = None, *, expires_s: float | None = None
    ) -> Any:
        """Ask a person: the first time the callback stops here and the turn waits; with the response, it is returned.

        The other callbacks still run, and may ask too. After the responses all of them are called again. Arguments and
        errors are those of `ToolContext.interrupt`.
        """
        if self.questions is None:
            raise Invalid("nobody can be asked here", name=name)
        return self.questions.ask(self.scope, name, reason, response, expires_s)


@dataclass(kw_only=True)
class BeforeToolsEvent(Asking, HookEvent):
    """The tools of one answer are about to run, or to continue after a person was asked.

    `cancel`: True or a text is the error result of each tool use that has none. `interrupt` asks a person.
    """

    writable = frozenset(("cancel",))
    guards = True
    scope = STEP_SCOPE

    message: Message
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    cancel: bool | str = False
    questions: Questions | None = field(default=None, repr=False)


@dataclass(kw_only=True)
class AfterToolsEvent(HookEvent):
    """The tools of one answer have ended; `message` holds their results and is about to be added.

    `end_turn`: True, a text or content blocks end the turn here, with that as its answer.
    """

    writable = frozenset(("end_turn",))
    cleanup = True

    message: Message
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    end_turn: bool | str | list[ContentBlock] = False


@dataclass(kw_only=True)
class BeforeToolCallEvent(Asking, HookEvent):
    """One tool is about to run; its start is not recorded yet. `interrupt` asks a person about it.

    `selected_tool`: the tool, None if its name is unknown; assign another to run that. `tool_use`: a copy; edit its
    input or assign another to run with that; its id and the history stay. `cancel_tool`: True or a text is the error
    result, and the tool does not run.
    """

    writable = frozenset(("selected_tool", "tool_use", "cancel_tool"))
    guards = True

    selected_tool: Any
    tool_use: ToolUse
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    cancel_tool: bool | str = False
    questions: Questions | None = field(default=None, repr=False)
    scope: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.scope = hook_scope(self.tool_use["toolUseId"])


@dataclass(kw_only=True)
class AfterToolCallEvent(HookEvent):
    """One tool has ended, was cut short, or was kept from running.

    `result`: assign another to change what the model is shown. `retry`: True throws the result away and runs the tool
    again. `exception`: what the tool raised. `cancel_message`: why it did not run, or not to its end. `duration`:
    seconds; None if it did not run to its end.
    """

    writable = frozenset(("result", "retry"))
    cleanup = True

    selected_tool: Any
    tool_use: ToolUse
    invocation_state: dict[str, Any]
    result: ToolResult
    exception: Exception | None = None
    cancel_message: str | None = None
    duration: float | None = None
    retry: bool = False
