"""The agent turn as a state machine: `step(turn, event) -> (turn, commands)`.

A turn goes from what the user said to the final answer, through any number of steps (one model call and the tools
that it asks for). The machine decides; whoever drives it carries the commands out, in order, and feeds the event that
the last one led to back in. It knows no clock, no task and no store, so resuming after a crash is the same code as
going on.

    READY --Began--> MODEL                  messages to store, then the model is asked
    READY --Continued--> TOOLS              a stored message asked for tools that have no result yet
    MODEL --Answered--> TOOLS               the answer asks for tools
    MODEL --Answered--> MODEL               something was steered in, or the model has left the caller's form empty
    MODEL --Answered--> OVER                the answer is final
    MODEL --RetryModel--> MODEL | OVER      the call failed, or its answer was thrown away, and is made again
    MODEL --Overflowed--> REDUCING | OVER   the window is full; over when reductions lead nowhere
    REDUCING --Reduced--> MODEL
    TOOLS --ToolsEnded--> MODEL | OVER
    TOOLS --ToolsParked--> OVER             a person is asked first, unless the turn is to end anyway
    MODEL | REDUCING --Stopped | Erred--> OVER
    MODEL | REDUCING | TOOLS --Steered--> the same
    READY | MODEL | REDUCING | TOOLS --StopAsked--> the same

Whenever a step is over and another would begin, the caller's limits are looked at. An answer that was cut off or
refused is stored, so that the history says what happened, and fails the turn: it is never taken for a whole one. Any
other pair of phase and event is a mistake of the driver and raises `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from repertory.core.answer import LIMITED, Answer
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse, error_result, is_filler, tool_uses
from repertory.errors import MaxTokensReachedException, ModelRefused, StructuredOutputException

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.errors import ContextWindowOverflowException

REFUSED = frozenset(("refusal", "content_filtered"))
"""The stop reasons of an answer that the model, or the provider's filter, would not give."""
CUT_OFF_TEXT = "Not run: the answer that asked for this tool was cut off by a token limit."
FORM_PROMPT = "You must format the previous response as structured output."


class TurnPhase(StrEnum):
    """Where a turn stands."""

    READY = "ready"
    MODEL = "model"
    REDUCING = "reducing"
    TOOLS = "tools"
    OVER = "over"


# Events: what happened.


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """The caller said something, or wants an unanswered message answered (then there is nothing to store)."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The last stored message asks for these tools; some results may be known already."""

    uses: tuple[ToolUse, ...]
    known: Mapping[str, ToolResult] = field(default_factory=dict["str", "ToolResult"])


@dataclass(frozen=True, slots=True)
class Answered:
    """The model's answer arrived. `filled`: the form as JSON text, when the answer's text is one that fits."""

    answer: Answer
    filled_output: str | None = None


@dataclass(frozen=True, slots=True)
class RetryModel:
    """Ask the model again, after that many seconds. What it sent until now is void."""

    after_s: float
    thrown_away: Answer | None = None
    """The answer that somebody did not want. It counts towards the limits all the same."""


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The model refused: the messages do not fit its window."""

    error: ContextWindowOverflowException


class Size(NamedTuple):
    """How much the model is shown."""

    tokens: int
    """An estimate."""
    messages: int


@dataclass(frozen=True, slots=True)
class Reduced:
    """The conversation manager shortened what the model is shown: so much is left."""

    left: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsEnded:
    """Every tool use of the step has its result, in the order asked."""

    results: tuple[ToolResult, ...]
    stopped: StopReason | None = None
    """The turn is to end here; some tools may have been cut short."""
    closing: tuple[ContentBlock, ...] = ()
    """The turn is to end here, with this as its answer."""
    filled_output: str | None = None
    """The form that the caller wants, filled in, as JSON text."""
    invalid_output: bool = False
    """Whether the model filled the form in wrongly."""
    failed: Exception | None = None
    """The turn fails with this; what had not started did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsParked:
    """Tools or hooks ask a person, so that the step cannot end now."""

    park: Park
    instead: ToolsEnded
    """The end of the step for a turn that is to end: what asks has come to nothing."""


@dataclass(frozen=True, slots=True)
class Steered:
    """The caller added to a running turn."""

    content: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReason:
    """Why a turn is to end without the model's answer."""

    reason: str = "cancelled"
    """The stop reason."""
    text: str | None = None
    """The turn's answer, if it is to have one."""


CANCELLED = StopReason()


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Stop when the tools that run have ended."""

    stop: StopReason


@dataclass(frozen=True, slots=True)
class Stopped:
    """The running command was cut short because the turn is to end."""

    stop: StopReason


@dataclass(frozen=True, slots=True)
class Erred:
    """The running command failed for good."""

    error: Exception


MachineEvent: TypeAlias = (
    Began
    | Continued
    | Answered
    | RetryModel
    | Overflowed
    | Reduced
    | ToolsEnded
    | ToolsParked
    | Steered
    | StopAsked
    | Stopped
    | Erred
)


# Commands: what to do next, as data.


@dataclass(frozen=True, slots=True)
class AppendMessage:
    """Store a message and show it to the model from now on."""

    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class CallModel:
    """Ask the model. Leads to Answered, RetryModel, Overflowed, Erred or Stopped."""

    after_s: float = 0.0
    """Wait that long first."""
    output_only: bool = False
    """It must fill the form in."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Shorten what the model is shown. Leads to Reduced, Erred or Stopped."""

    error: ContextWindowOverflowException
    before: int = 0
    """How often it was shortened for this model call already, and the model refused again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Run tools. Leads to ToolsEnded with one result per use, whatever happens, or to ToolsParked.

    Uses in `known` have their result already and must not run. `invalid` holds the raw input of uses that was not JSON.
    """

    uses: tuple[ToolUse, ...]
    known: Mapping[str, ToolResult]
    invalid: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Park:
    """The turn is over for now, and waits for answers. Its step goes on from what is recorded here."""

    interrupts: tuple[Interrupt, ...]
    results: tuple[ToolResult, ...]
    """Of the tools that ended and whose result is not on record."""
    parked: tuple[str, ...]
    """Ids of tool uses that had started on record and stopped in order to ask."""


@dataclass(frozen=True, slots=True)
class FinishTurn:
    """The turn is over. `message` is the final answer; None when there is none."""

    stop_reason: str
    message: Message | None


@dataclass(frozen=True, slots=True)
class FailTurn:
    """The turn is over without an answer; raise this to the caller."""

    error: Exception


TurnCommand: TypeAlias = "AppendMessage | CallModel | Reduce | RunTools | Park | FinishTurn | FailTurn"


class Turn(NamedTuple):
    """A turn in progress. Immutable: a step returns the next one."""

    phase: TurnPhase = TurnPhase.READY
    limits: TurnLimits = NO_LIMITS
    steps: int = 0
    """Model calls that were answered."""
    total_tokens: int = 0
    output_tokens: int = 0
    reductions: int = 0
    """Reductions since the last answer."""
    smallest: Size | None = None
    """The fewest tokens and the fewest messages that reductions have left since the last answer."""
    vain: int = 0
    """How many of the last reductions in a row have brought neither number down."""
    steering: tuple[ContentBlock, ...] = ()
    """What the caller added and the model has not been shown yet."""
    wants_output: bool = False
    """Whether the caller wants a form filled in (structured output)."""
    output_only: bool = False
    """Whether the model was told to do so, since it would not by itself."""
    invalid_outputs: int = 0
    """How often it failed to."""
    stop: StopReason | None = None
    """Asked for while tools run."""

    @property
    def limit_reached(self) -> str | None:
        """The stop reason of the first of the caller's limits that is reached; None while there is none."""
        return self.limits.reached(self.steps, self.total_tokens, self.output_tokens)


Step: TypeAlias = "tuple[Turn, tuple[TurnCommand, ...]]"


def step(turn: Turn, event: MachineEvent) -> Step:
    """The next turn and what to do now."""
    known = TRANSITIONS.get((turn.phase, type(event)))
    if known is None:
        msg = f"a turn in phase {turn.phase} cannot take {type(event).__name__}"
        raise AssertionError(msg)
    return known[0](turn, event)


def _began(turn: Turn, event: Began) -> Step:
    return turn._replace(phase=TurnPhase.MODEL), (*map(AppendMessage, event.messages), CallModel())


def _continued(turn: Turn, event: Continued) -> Step:
    return turn._replace(phase=TurnPhase.TOOLS), (RunTools(uses=event.uses, known=event.known, invalid={}),)


def _answered(turn: Turn, event: Answered) -> Step:
    answer = event.answer
    message = answer.message
    turn = _counted(turn, answer)._replace(reductions=0, smallest=None, vain=0)
    uses = tuple(tool_uses(message))
    if answer.stop_reason in LIMITED or answer.stop_reason in REFUSED:
        return _cut_off(turn, answer, uses)
    if uses:
        run = RunTools(uses=uses, known={}, invalid=answer.invalid_inputs)
        return turn._replace(phase=TurnPhase.TOOLS), (AppendMessage(message), run)
    if turn.steering:
        prompt: Message = {"role": "user", "content": list(turn.steering)}
        return _next_step(turn._replace(steering=()), AppendMessage(message), AppendMessage(prompt))
    if turn.wants_output and event.filled_output is None:
        return _ask_for_form(turn, message)
    return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FinishTurn(answer.stop_reason, message))


def _counted(turn: Turn, answer: Answer) -> Turn:
    return turn._replace(
        steps=turn.steps + 1,
        total_tokens=turn.total_tokens + answer.usage["totalTokens"],
        output_tokens=turn.output_tokens + answer.usage["outputTokens"],
    )


def is_whole(answer: Message) -> bool:
    """Whether a stored answer is one that was meant to end there: not cut off, not refused, and no filler."""
    return "stop_reason" not in answer.get("metadata", {}).get("custom", {}) and not is_filler(answer)


def _cut_off(turn: Turn, answer: Answer, uses: tuple[ToolUse, ...]) -> Step:
    """The answer is not whole: keep it, run none of its tools, and fail."""
    closing: tuple[TurnCommand, ...] = (AppendMessage(answer.message),)
    if uses:
        results: list[ContentBlock] = [{"toolResult": error_result(use["toolUseId"], CUT_OFF_TEXT)} for use in uses]
        closing = (*closing, AppendMessage({"role": "user", "content": results}))
    error: Exception
    if answer.stop_reason in LIMITED:
        error = MaxTokensReachedException(
            "the answer was cut off by a token limit; what there is of it is in the history, so call again to go on",
            stop_reason=answer.stop_reason,
            output_tokens=answer.usage["outputTokens"],
        )
    else:
        error = ModelRefused("the model would not answer", stop_reason=answer.stop_reason)
    return turn._replace(phase=TurnPhase.OVER), (*closing, FailTurn(error))


def _ask_for_form(turn: Turn, message: Message) -> Step:
    """The model answered and left the form empty: tell it to fill it in, and only that."""
    if turn.output_only:
        turn = turn._replace(forms_wrong=turn.invalid_outputs + 1)
    if turn.invalid_outputs >= turn.limits.invalid_outputs_max:
        return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FailTurn(_no_form(turn)))
    prompt: Message = {"role": "user", "content": [{"text": FORM_PROMPT}]}
    return _next_step(turn._replace(form_only=True), AppendMessage(message), AppendMessage(prompt))


def _no_form(turn: Turn) -> StructuredOutputException:
    return StructuredOutputException("the model did not give the structured output", attempts=turn.invalid_outputs)


def _next_step(turn: Turn, *before: TurnCommand) -> Step:
    """Ask the model once more, unless a limit of the caller's is reached."""
    reason = turn.limit_reached
    if reason is not None:
        return turn._replace(phase=TurnPhase.OVER), (*before, FinishTurn(reason, None))
    return turn._replace(phase=TurnPhase.MODEL), (*before, CallModel(output_only=turn.output_only))


def _retry_model(turn: Turn, event: RetryModel) -> Step:
    if event.thrown_away is not None:
        turn = _counted(turn, event.thrown_away)
        if turn.limit_reached is not None:
            return turn._replace(phase=TurnPhase.OVER), (FinishTurn(turn.limit_reached, None),)
    return turn, (CallModel(after_s=event.after_s, output_only=turn.output_only),)


def _overflowed(turn: Turn, event: Overflowed) -> Step:
    """Shorten and ask again, as long as that leads anywhere. It ends: both numbers of `smallest` can only fall so
    often, and the driver fails the turn when the manager has nothing left to shorten.
    """
    if turn.vain >= turn.limits.vain_reductions_max:
        return turn._replace(phase=TurnPhase.OVER), (FailTurn(event.error),)
    reduce = Reduce(event.error, turn.reductions)
    return turn._replace(phase=TurnPhase.REDUCING, reductions=turn.reductions + 1), (reduce,)


def _reduced(turn: Turn, event: Reduced) -> Step:
    least = turn.smallest or event.left
    smaller = turn.smallest is None or event.left.tokens < least.tokens or event.left.messages < least.messages
    turn = turn._replace(
        phase=TurnPhase.MODEL,
        smallest=Size(min(least.tokens, event.left.tokens), min(least.messages, event.left.messages)),
        vain=0 if smaller else turn.vain + 1,
    )
    return turn, (CallModel(output_only=turn.output_only),)


def _tools_ended(turn: Turn, event: ToolsEnded) -> Step:
    blocks: list[ContentBlock] = [{"toolResult": result} for result in event.results]
    message: Message = {"role": "user", "content": [*blocks, *turn.steering]}
    turn = turn._replace(steering=())
    if event.failed is not None:
        return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FailTurn(event.failed))
    stop = event.stopped or turn.stop
    if stop is not None:
        return _stop(turn, stop, AppendMessage(message))
    if event.closing:
        return _close(turn, event.closing, AppendMessage(message))
    if event.filled_output is not None:
        return _close(turn, ({"text": event.filled_output},), AppendMessage(message))
    if event.invalid_output:
        turn = turn._replace(forms_wrong=turn.invalid_outputs + 1)
        if turn.invalid_outputs >= turn.limits.invalid_outputs_max:
            return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FailTurn(_no_form(turn)))
    return _next_step(turn, AppendMessage(message))


def _tools_parked(turn: Turn, event: ToolsParked) -> Step:
    """Wait for a person. What was steered in stays, for the driver to hand back to who said it."""
    if turn.stop is not None or event.instead.stopped is not None:
        return _tools_ended(turn, event.instead)
    return turn._replace(phase=TurnPhase.OVER), (event.park,)


def _close(turn: Turn, content: tuple[ContentBlock, ...], *before: TurnCommand) -> Step:
    """End the turn with an answer that the model did not give."""
    answer: Message = {"role": "assistant", "content": list(content)}
    return turn._replace(phase=TurnPhase.OVER), (*before, AppendMessage(answer), FinishTurn("end_turn", answer))


def _stop(turn: Turn, stop: StopReason, *before: TurnCommand) -> Step:
    if stop.text is None:
        return turn._replace(phase=TurnPhase.OVER), (*before, FinishTurn(stop.reason, None))
    answer: Message = {"role": "assistant", "content": [{"text": stop.text}]}
    return turn._replace(phase=TurnPhase.OVER), (*before, AppendMessage(answer), FinishTurn(stop.reason, answer))


def _steered(turn: Turn, event: Steered) -> Step:
    return turn._replace(steering=(*turn.steering, *event.content)), ()


def _stop_asked(turn: Turn, event: StopAsked) -> Step:
    return turn._replace(stop=turn.stop or event.stop), ()


def _stopped(turn: Turn, event: Stopped) -> Step:
    """End the turn. Steering that no message took stays in it, for the driver to hand back to who said it."""
    return _stop(turn, event.stop)


def _erred(turn: Turn, event: Erred) -> Step:
    return turn._replace(phase=TurnPhase.OVER), (FailTurn(event.error),)


TRANSITIONS: Final[Mapping[tuple[TurnPhase, type[MachineEvent]], tuple[Callable[..., Step], tuple[TurnPhase, ...]]]] = {
    (TurnPhase.READY, Began): (_began, (TurnPhase.MODEL,)),
    (TurnPhase.READY, Continued): (_continued, (TurnPhase.TOOLS,)),
    (TurnPhase.READY, StopAsked): (_stop_asked, (TurnPhase.READY,)),
    (TurnPhase.MODEL, Answered): (_answered, (TurnPhase.TOOLS, TurnPhase.MODEL, TurnPhase.OVER)),
    (TurnPhase.MODEL, RetryModel): (_retry_model, (TurnPhase.MODEL, TurnPhase.OVER)),
    (TurnPhase.MODEL, Overflowed): (_overflowed, (TurnPhase.REDUCING, TurnPhase.OVER)),
    (TurnPhase.MODEL, Stopped): (_stopped, (TurnPhase.OVER,)),
    (TurnPhase.MODEL, Erred): (_erred, (TurnPhase.OVER,)),
    (TurnPhase.MODEL, Steered): (_steered, (TurnPhase.MODEL,)),
    (TurnPhase.MODEL, StopAsked): (_stop_asked, (TurnPhase.MODEL,)),
    (TurnPhase.REDUCING, Reduced): (_reduced, (TurnPhase.MODEL,)),
    (TurnPhase.REDUCING, Stopped): (_stopped, (TurnPhase.OVER,)),
    (TurnPhase.REDUCING, Erred): (_erred, (TurnPhase.OVER,)),
    (TurnPhase.REDUCING, Steered): (_steered, (TurnPhase.REDUCING,)),
    (TurnPhase.REDUCING, StopAsked): (_stop_asked, (TurnPhase.REDUCING,)),
    (TurnPhase.TOOLS, ToolsEnded): (_tools_ended, (TurnPhase.MODEL, TurnPhase.OVER)),
    (TurnPhase.TOOLS, ToolsParked): (_tools_parked, (TurnPhase.OVER,)),
    (TurnPhase.TOOLS, Steered): (_steered, (TurnPhase.TOOLS,)),
    (TurnPhase.TOOLS, StopAsked): (_stop_asked, (TurnPhase.TOOLS,)),
}
"""By phase and event: what happens, and the phases to which it may lead."""
