"""The moments of an agent's life that callbacks are told of, as events.

    BeforeInvocation, MessageAdded (the prompt),
      BeforeModelCall, AfterModelCall, MessageAdded (the answer),
        BeforeTools, (BeforeToolCall, AfterToolCall)*, AfterTools, MessageAdded (the results),
      BeforeModelCall, ...
    AfterInvocation

A turn that waits for a person ends behind AfterTools, with what has ended until then, or behind BeforeTools when that
is where the question was asked; the call that goes on begins with BeforeInvocation, BeforeTools. A tool that asks has
no end yet, so that AfterToolCall is not fired.

A direct tool call fires BeforeToolCall, AfterToolCall and MessageAdded only. An event's fields are read-only but for
those that its class names in `writable`: through them a callback changes what happens next. Callbacks of the events
with `cleanup` run in reverse, so that whoever looked first looks last.

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
    """What every event has."""

    writable: ClassVar[frozenset[str]] = frozenset()
    """The fields that callbacks may assign."""
    cleanup: ClassVar[bool] = False
    """Whether callbacks run in reverse order."""
    guards: ClassVar[bool] = False
    """Whether a callback that raises fails the turn, unless it was registered otherwise."""

    agent: Any
    """The `Agent` that it happens to."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__dataclass_fields__ or (name in self.__dict__ and name not in self.writable):
            msg = f"Property {name} is not writable"
            raise AttributeError(msg)
        object.__setattr__(self, name, value)


@dataclass(kw_only=True)
class AgentInitializedEvent(HookEvent):
    """The agent is ready: built, and its session opened. Fired once; its callbacks are synchronous."""


@dataclass(kw_only=True)
class BeforeSnapshotEvent(HookEvent):
    """A snapshot of the agent is about to be taken (`action` is "save") or loaded ("load"). Callbacks are synchronous;
    one that raises keeps it from happening.

    `metadata`: what the caller gives to a snapshot that is taken; add to it, or assign another. `snapshot`: the one
    that is loaded. `source`: the orchestrator, when it is one's; `agent` is None then.
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

    `loaded`: a `SnapshotLoaded`, when it was loaded. `source`: the orchestrator, when it is one's; `agent` is None
    then.
    """

    cleanup = True

    action: str
    snapshot: Any
    loaded: Any = None
    source: Any = None


@dataclass(kw_only=True)
class BeforeInvocationEvent(HookEvent):
    """A call is about to begin. Nothing of it is stored yet.

    `messages`: copies of what the caller said (None: answers to interrupts); edit them or assign others to change it.
    `cancel`: True or a text ends the call there, with that text as its answer and nothing stored.
    """

    writable = frozenset(("messages", "cancel"))
    guards = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    messages: Sequence[Message] | None = None
    cancel: bool | str = False


@dataclass(kw_only=True)
class AfterInvocationEvent(HookEvent):
    """A call is over, whichever way, even one that could not begin. Agent state that its callbacks set is committed
    with the turn.

    `result`: None when the call failed. `resume`: anything that a call takes as a prompt begins another turn in the
    same call, whose result the caller gets then, unless a limit of the call is reached or it was cut short.
    """

    writable = frozenset(("resume",))
    cleanup = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    result: AgentResult | None = None
    resume: Any = None


@dataclass(kw_only=True)
class MessageAddedEvent(HookEvent):
    """A message is being added to the conversation. Edits of `message` in place are what is stored, shown and answered.

    Role, tool uses and tool results stay where they are; their inputs and contents may be edited. Tools run with the
    input that the model asked for: `BeforeToolCallEvent` changes that.
    """

    message: Message


@dataclass(kw_only=True)
class BeforeModelCallEvent(HookEvent):
    """The model is about to be asked.

    `projected_input_tokens`: an estimate of the request. `cancel`: True or a text makes that text the answer, and the
    model is not asked.
    """

    writable = frozenset(("cancel",))
    guards = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    projected_input_tokens: int | None = None
    cancel: bool | str = False


@dataclass(kw_only=True)
class ModelStopResponse:
    """What the model said, and why it stopped."""

    message: Message
    stop_reason: str


@dataclass(kw_only=True)
class AfterModelCallEvent(HookEvent):
    """The model has answered (`stop_response`), failed (`exception`), or was cut short (neither).

    `retry`: assign True to throw the answer away, or the failure, and ask again; on a failure that the retry strategy
    is going to retry it is True already, and False gives up at once.
    """

    writable = frozenset(("retry",))
    cleanup = True

    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    stop_response: ModelStopResponse | None = None
    exception: Exception | None = None
    retry: bool = False


class Asking:
    """What an event has whose callbacks may ask a person."""

    questions: Questions | None
    scope: str

    def interrupt(
        self, name: str, reason: object = None, response: object = None, *, expires_s: float | None = None
    ) -> Any:
        """Ask a person: the first time the callback stops here and the turn waits, the second time the answer is
        returned.

        The other callbacks run all the same, and may ask, too. With the answers, all of them are called anew. Arguments
        and errors are those of `ToolContext.interrupt`.
        """
        if self.questions is None:
            raise Invalid("nobody can be asked here", name=name)
        return self.questions.ask(self.scope, name, reason, response, expires_s)


@dataclass(kw_only=True)
class BeforeToolsEvent(Asking, HookEvent):
    """The tools of one answer are about to run, or to go on after a person was asked.

    `cancel`: True or a text is the error result of each of them that has none. `interrupt` asks a person.
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

    `end_turn`: True, a text or content blocks end the turn there, with that as its answer.
    """

    writable = frozenset(("end_turn",))
    cleanup = True

    message: Message
    invocation_state: dict[str, Any] = field(default_factory=dict[str, Any])
    end_turn: bool | str | list[ContentBlock] = False


@dataclass(kw_only=True)
class BeforeToolCallEvent(Asking, HookEvent):
    """One tool is about to run, and its start is not recorded yet. `interrupt` asks a person about it.

    `selected_tool`: the tool, None when nobody knows its name; assign another to run that. `tool_use`: a copy; edit its
    input or assign another to run with that; its id, and what the history says, stay. `cancel_tool`: True or a text is
    the error result, and the tool does not run.
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

    `result`: assign another to change what the model is told. `retry`: True throws the result away and runs the tool
    again. `exception`: what the tool raised. `cancel_message`: why it did not run, or not to its end. `duration`:
    seconds; None when it did not run to its end.
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
