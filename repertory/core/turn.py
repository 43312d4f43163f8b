"""The agent turn as a state machine: `step(turn, event) -> (turn, commands)`.

A turn goes from a prompt to the final answer, in any number of steps (one model call and the tools that it asks for).
The machine decides; its driver carries out the commands, in order, and feeds back the event that the last one led to.
The machine knows no clock, no task and no store, so resuming after a crash is the same code as going on.

    READY --Began--> MODEL                  messages to store, then the model is asked
    READY --Continued--> TOOLS              a stored message asked for tools that have no result yet
    MODEL --Answered--> TOOLS               the answer asks for tools
    MODEL --Answered--> MODEL               something was steered in, the model has left the caller's form empty, or its
                                            provider paused and goes on when it gets the answer back
    MODEL --Answered--> OVER                the answer is final
    MODEL --RetryModel--> MODEL | OVER      the call failed, or its answer was thrown away, and is made again
    MODEL --Overflowed--> REDUCING | OVER   the window is full; over when reductions lead nowhere
    REDUCING --Reduced--> MODEL
    TOOLS --ToolsEnded--> MODEL | OVER
    TOOLS --ToolsParked--> OVER             a person is asked first, unless the turn is to end anyway
    TOOLS --Stopped--> OVER                 the process ends, and a durable tool goes on in the next one
    MODEL | REDUCING --Stopped | Erred--> OVER  what the model has said may stay, as an answer that was cut off
    MODEL | REDUCING | TOOLS --Steered--> the same
    READY | MODEL | REDUCING | TOOLS --StopAsked--> the same

Between two steps the caller's limits are checked. An answer that was cut off or refused is stored, so that the history
shows it, and fails the turn: it is never taken for a whole one. Any other pair of phase and event is a mistake of the
driver and raises `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.answer import LIMITED, Answer
from repertory.core.limits import NO_LIMITS, Scale, TurnLimits
from repertory.core.messages import (
    PAUSED,
    STOPPED,
    STOPPED_TEXT,
    ContentBlock,
    Message,
    MessageMetadata,
    ToolResult,
    ToolUse,
    error_result,
    is_filler,
    tool_uses,
)
from repertory.errors import MaxTokensReachedException, ModelRefused, StructuredOutputException

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.errors import ContextWindowOverflowException

REFUSED = frozenset(("refusal", "content_filtered"))
"""The stop reasons of an answer that the model, or the provider's filter, refused to give."""
CUT_OFF_TEXT = "Not run: the answer that asked for this tool was cut off by a token limit."
OUTPUT_PROMPT = "You must format the previous response as structured output."


class TurnPhase(StrEnum):
    """The phase of a turn."""

    READY = "ready"
    MODEL = "model"
    REDUCING = "reducing"
    TOOLS = "tools"
    OVER = "over"


# Events: what happened.


class Began(Struct, frozen=True, kw_only=True):
    """The caller sent messages; none to get an unanswered message answered."""

    messages: tuple[Message, ...]


class Continued(Struct, frozen=True, kw_only=True):
    """The last stored message asks for these tools; some results may be known already."""

    uses: tuple[ToolUse, ...]
    known: Mapping[str, ToolResult] = {}


class Answered(Struct, frozen=True):
    """The model's answer arrived. `filled_output`: its text as JSON, when it fits the output schema."""

    answer: Answer
    filled_output: str | None = None


class RetryModel(Struct, frozen=True):
    """Call the model again after this many seconds. What it streamed until now is void."""

    after_s: float
    thrown_away: Answer | None = None
    """The answer that a hook or guard rejected. It counts towards the limits all the same."""


class Overflowed(Struct, frozen=True):
    """The model refused: the messages exceed its window."""

    error: ContextWindowOverflowException


class Size(NamedTuple):
    """The size of the messages that the model gets."""

    tokens: int
    """The estimated tokens."""
    messages: int


class Reduced(Struct, frozen=True):
    """The conversation manager shortened the messages that the model gets, to this size."""

    size: Size


class ToolsEnded(Struct, frozen=True, kw_only=True):
    """Every tool use of the step has its result, in the order asked."""

    results: tuple[ToolResult, ...]
    stopped: StopReason | None = None
    """The reason to end the turn here, after which some tools may have been cut short."""
    closing: tuple[ContentBlock, ...] = ()
    """The answer with which the turn must end here; empty when it goes on."""
    filled_output: str | None = None
    """The structured output that the caller wants, as JSON text."""
    invalid_output: bool = False
    """True if the model's structured output did not fit the schema."""
    failed: Exception | None = None
    """The error with which the turn fails; tools that had not started did not run."""


class ToolsParked(Struct, frozen=True, kw_only=True):
    """Tools or hooks ask a person, so the step cannot end now."""

    park: Park
    instead: ToolsEnded
    """The end of the step if the turn is to stop: the questions are dropped."""


class Steered(Struct, frozen=True):
    """The caller added content to a running turn."""

    content: tuple[ContentBlock, ...]


class StopReason(Struct, frozen=True, kw_only=True):
    """The reason of a turn that ends without the model's answer."""

    reason: str = STOPPED
    text: str | None = None
    """The turn's answer, if any."""
    keep_partial: bool = False
    """True if the answer so far stays in the conversation, as one that was cut off."""


CANCELLED = StopReason()
STOPPED_BY_CALLER = StopReason(keep_partial=True)
CANCELLED_TEXT = "Cancelled by user"
"""The message of the result when there is no other. It is no part of the conversation, which can go on."""


class StopAsked(Struct, frozen=True):
    """Stop when the running tools have ended."""

    stop: StopReason


class Stopped(Struct, frozen=True):
    """The running command was cut short because the turn is to stop."""

    stop: StopReason
    partial: Answer | None = None
    """The part of the model's answer that stays, made by `stopped_answer`."""


class Erred(Struct, frozen=True):
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


class AppendMessage(Struct, frozen=True):
    """Store a message and show it to the model from now on."""

    message: Message


class CallModel(Struct, frozen=True, kw_only=True):
    """Call the model. Leads to Answered, RetryModel, Overflowed, Erred or Stopped."""

    after_s: float = 0.0
    """The seconds to wait first."""
    output_only: bool = False
    """True if the model must give the structured output."""


class Reduce(Struct, frozen=True):
    """Shorten the messages that the model gets. Leads to Reduced, Erred or Stopped."""

    error: ContextWindowOverflowException
    before: int = 0
    """The number of earlier reductions for this model call, after which the model refused again."""


class RunTools(Struct, frozen=True, kw_only=True):
    """Run tools. Leads to ToolsEnded with one result per use, whatever happens, or to ToolsParked.

    Uses in `known` have a result already and must not run. `invalid`: tool use id to raw input that was not JSON.
    """

    uses: tuple[ToolUse, ...]
    known: Mapping[str, ToolResult]
    invalid: Mapping[str, str]


class Park(Struct, frozen=True, kw_only=True):
    """The turn is over for now and waits for answers. Its step goes on from what is recorded here."""

    interrupts: tuple[Interrupt, ...]
    results: tuple[ToolResult, ...]
    """Results of tools that ended and are not recorded yet."""
    parked: tuple[str, ...]
    """Ids of tool uses recorded as started that stopped to ask."""


class FinishTurn(Struct, frozen=True):
    """The turn is over. `message` is the final answer; None when there is none."""

    stop_reason: str
    message: Message | None


class FailTurn(Struct, frozen=True):
    """The turn is over without an answer; raise this error to the caller."""

    error: Exception


TurnCommand: TypeAlias = "AppendMessage | CallModel | Reduce | RunTools | Park | FinishTurn | FailTurn"


class Turn(NamedTuple):
    """A turn in progress. Immutable: a step returns the next one."""

    phase: TurnPhase = TurnPhase.READY
    limits: TurnLimits = NO_LIMITS
    steps: int = 0
    """Answered model calls."""
    total_tokens: int = 0
    output_tokens: int = 0
    reductions: int = 0
    """Reductions since the last answer."""
    smallest: Size | None = None
    """The fewest tokens and the fewest messages that any reduction has left since the last answer."""
    vain: int = 0
    """The number of latest reductions in a row that lowered neither number."""
    steering: tuple[ContentBlock, ...] = ()
    """Content that the caller added and the model has not been shown yet."""
    wants_output: bool = False
    """True if the caller wants structured output."""
    output_prompt: str = OUTPUT_PROMPT
    """The prompt for a model that has answered without the structured output."""
    output_only: bool = False
    """True if the model was told to give the structured output, since it did not by itself."""
    invalid_outputs: int = 0
    """The number of failed attempts to give the structured output."""
    stop: StopReason | None = None
    """The stop that was requested while tools run."""
    paused: tuple[ContentBlock, ...] = ()
    """The parts of the answer that came before its provider paused, and are stored already."""

    @property
    def limit_reached(self) -> str | None:
        """The stop reason of the first limit that is reached; None if none is."""
        return self.limits.reached(self.steps, self.total_tokens, self.output_tokens)


Step: TypeAlias = "tuple[Turn, tuple[TurnCommand, ...]]"


def step(turn: Turn, event: MachineEvent) -> Step:
    """The next turn and the commands to carry out now."""
    known = TRANSITIONS.get((turn.phase, type(event)))
    if known is None:
        msg = f"a turn in phase {turn.phase} cannot take {type(event).__name__}"
        raise AssertionError(msg)
    return known[0](turn, event)


def with_steered(turn: Turn, content: tuple[ContentBlock, ...], bytes_max: int) -> Turn | None:
    """The turn with this content for its next step; None if it is over, or would hold more than one prompt may."""
    if turn.phase in (TurnPhase.READY, TurnPhase.OVER) or not Scale(bytes_max).put([*turn.steering, *content]):
        return None
    return step(turn, Steered(content))[0]


def _began(turn: Turn, event: Began) -> Step:
    return turn._replace(phase=TurnPhase.MODEL), (*map(AppendMessage, event.messages), CallModel())


def _continued(turn: Turn, event: Continued) -> Step:
    return turn._replace(phase=TurnPhase.TOOLS), (RunTools(uses=event.uses, known=event.known, invalid={}),)


def _answered(turn: Turn, event: Answered) -> Step:
    answer = event.answer
    message = answer.message
    # Counted before anything is decided: an answer that is cut off or refused was paid for as well.
    turn = _counted(turn, answer)._replace(reductions=0, smallest=None, vain=0)
    uses = tuple(tool_uses(message))
    if answer.stop_reason in LIMITED or answer.stop_reason in REFUSED:
        return _cut_off(turn, answer, uses)
    # With tool uses it is an ordinary answer: its provider waits for their results, not for the answer itself.
    if answer.stop_reason in PAUSED and not uses and _has_content(message):
        if turn.stop is not None:
            return _stop(turn, turn.stop, AppendMessage(message))
        if turn.limit_reached is not None:
            finish = FinishTurn(turn.limit_reached, message)
            return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), finish)
        turn = turn._replace(paused=(*turn.paused, *message["content"]))
        return _next_step(turn, AppendMessage(message))  # What was steered in waits: it would end the pause.
    if uses:
        # Limits are not looked at here: providers refuse a history in which a tool use has no result, so the step is
        # finished first.
        run = RunTools(uses=uses, known={}, invalid=answer.invalid_inputs)
        return turn._replace(phase=TurnPhase.TOOLS), (AppendMessage(message), run)
    # Not final after all: what the caller has added meanwhile would otherwise stay without an answer.
    if turn.steering:
        prompt: Message = {"role": "user", "content": list(turn.steering)}
        return _next_step(turn._replace(steering=()), AppendMessage(message), AppendMessage(prompt))
    # The model has ended without the structured output; asked once more, it gets this one tool alone.
    if turn.wants_output and event.filled_output is None:
        return _ask_for_output(turn, message)
    return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FinishTurn(answer.stop_reason, message))


def _has_content(message: Message) -> bool:
    """False for an empty answer: a provider that pauses with nothing would pause for ever."""
    return any(block.get("text") != "" for block in message["content"])


def _counted(turn: Turn, answer: Answer) -> Turn:
    return turn._replace(
        steps=turn.steps + 1,
        total_tokens=turn.total_tokens + answer.usage["totalTokens"],
        output_tokens=turn.output_tokens + answer.usage["outputTokens"],
    )


def is_whole(answer: Message) -> bool:
    """True if a stored answer ended by itself: not cut off, not refused, and no filler."""
    return "stop_reason" not in answer.get("metadata", {}).get("custom", {}) and not is_filler(answer)


def stopped_answer(partial: Answer, stop: StopReason) -> Answer:
    """The answer to store of a turn that was stopped: its part so far, and behind that a text that says so. It does not
    end with a space, as some services refuse that; the text itself is what was streamed.
    """
    note = STOPPED_TEXT if stop.text is None or not stop.text.strip() else stop.text.rstrip()
    content: list[ContentBlock] = [*partial.message["content"], {"text": note}]
    metadata: MessageMetadata = {"custom": {"stop_reason": STOPPED}}
    # Most providers tell the usage with the last event, which a stopped stream has not seen: zeros would look like a
    # free call.
    if partial.usage["totalTokens"]:
        metadata["usage"] = partial.usage
    return replace(partial, message={"role": "assistant", "content": content, "metadata": metadata})


def _cut_off(turn: Turn, answer: Answer, uses: tuple[ToolUse, ...]) -> Step:
    """The answer is not whole: store it, run none of its tools, and fail."""
    closing: tuple[TurnCommand, ...] = (AppendMessage(answer.message),)
    if uses:
        results: list[ContentBlock] = [{"toolResult": error_result(use["toolUseId"], CUT_OFF_TEXT)} for use in uses]
        # The uses are in the history, so they need results, though the input of the last one may be half of a JSON
        # text.
        closing = (*closing, AppendMessage({"role": "user", "content": results}))
    error: Exception
    if answer.stop_reason in LIMITED:
        error = MaxTokensReachedException(
            "the answer was cut off by a token limit; what there is of it is in the history, so call with a prompt "
            "to go on",
            stop_reason=answer.stop_reason,
            output_tokens=answer.usage["outputTokens"],
        )
    else:
        error = ModelRefused("the model would not answer", stop_reason=answer.stop_reason)
    return turn._replace(phase=TurnPhase.OVER), (*closing, FailTurn(error))


def _ask_for_output(turn: Turn, message: Message) -> Step:
    """The model answered without structured output: tell it to give only that."""
    # The first answer without the output is no failed attempt: the model had not been told that it must give it.
    if turn.output_only:
        turn = turn._replace(invalid_outputs=turn.invalid_outputs + 1)
    if turn.invalid_outputs >= turn.limits.invalid_outputs_max:
        return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FailTurn(_no_output(turn)))
    prompt: Message = {"role": "user", "content": [{"text": turn.output_prompt}]}
    return _next_step(turn._replace(output_only=True), AppendMessage(message), AppendMessage(prompt))


def _no_output(turn: Turn) -> StructuredOutputException:
    return StructuredOutputException("the model did not give the structured output", attempts=turn.invalid_outputs)


def _next_step(turn: Turn, *before: TurnCommand) -> Step:
    """Call the model once more, unless a limit is reached."""
    # Here and not in the model's call: the messages in `before` are stored whether the turn goes on or not.
    reason = turn.limit_reached
    if reason is not None:
        return turn._replace(phase=TurnPhase.OVER), (*before, FinishTurn(reason, None))
    return turn._replace(phase=TurnPhase.MODEL), (*before, CallModel(output_only=turn.output_only))


def _retry_model(turn: Turn, event: RetryModel) -> Step:
    if event.thrown_away is not None:
        # Otherwise a guard that rejects every answer would call the model for ever.
        turn = _counted(turn, event.thrown_away)
        if turn.limit_reached is not None:
            return turn._replace(phase=TurnPhase.OVER), (FinishTurn(turn.limit_reached, None),)
    return turn, (CallModel(after_s=event.after_s, output_only=turn.output_only),)


def _overflowed(turn: Turn, event: Overflowed) -> Step:
    """Shorten and call again, as long as that helps. It terminates: the numbers in `smallest` can fall only so often,
    and the driver fails the turn when the manager has nothing left to shorten.
    """
    # A measure of progress, not a number of attempts: a long history may need many reductions, and each of them helps.
    if turn.vain >= turn.limits.vain_reductions_max:
        return turn._replace(phase=TurnPhase.OVER), (FailTurn(event.error),)
    reduce = Reduce(event.error, turn.reductions)
    return turn._replace(phase=TurnPhase.REDUCING, reductions=turn.reductions + 1), (reduce,)


def _reduced(turn: Turn, event: Reduced) -> Step:
    least = turn.smallest or event.size
    # Either number will do: tokens are an estimate, which may rise although messages went; compared with the least so
    # far, so that two reductions that undo each other count as vain.
    smaller = turn.smallest is None or event.size.tokens < least.tokens or event.size.messages < least.messages
    turn = turn._replace(
        phase=TurnPhase.MODEL,
        smallest=Size(min(least.tokens, event.size.tokens), min(least.messages, event.size.messages)),
        vain=0 if smaller else turn.vain + 1,
    )
    return turn, (CallModel(output_only=turn.output_only),)


def _tools_ended(turn: Turn, event: ToolsEnded) -> Step:
    blocks: list[ContentBlock] = [{"toolResult": result} for result in event.results]
    # In one message: providers want the results right behind their uses, and two messages of the user in a row are
    # refused by some.
    message: Message = {"role": "user", "content": [*blocks, *turn.steering]}
    # The pause is over: with results behind it, the answer of before is no longer what the next one goes on with.
    turn = turn._replace(steering=(), paused=())
    # Results first, error afterwards: the history stays valid, and what tools did is on record.
    if event.failed is not None:
        return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FailTurn(event.failed))
    # Before `closing`: who stops a turn does not want the answer that a hook or a delegate gives at the same time.
    stop = event.stopped or turn.stop
    if stop is not None:
        return _stop(turn, stop, AppendMessage(message))
    if event.closing:
        return _close(turn, event.closing, AppendMessage(message))
    if event.filled_output is not None:
        return _close(turn, ({"text": event.filled_output},), AppendMessage(message))
    if event.invalid_output:
        turn = turn._replace(invalid_outputs=turn.invalid_outputs + 1)
        if turn.invalid_outputs >= turn.limits.invalid_outputs_max:
            return turn._replace(phase=TurnPhase.OVER), (AppendMessage(message), FailTurn(_no_output(turn)))
    return _next_step(turn, AppendMessage(message))


def _tools_parked(turn: Turn, event: ToolsParked) -> Step:
    """Wait for a person. Steering stays in the turn, for the driver to return to its caller."""
    # A question that was asked while the turn is told to end would wait for a person who has just left.
    if turn.stop is not None or event.instead.stopped is not None:
        return _tools_ended(turn, event.instead)
    return turn._replace(phase=TurnPhase.OVER), (event.park,)


def _close(turn: Turn, content: tuple[ContentBlock, ...], *before: TurnCommand) -> Step:
    """End the turn with an answer that did not come from the model."""
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
    # The first reason counts: it is the one that the caller is told.
    return turn._replace(stop=turn.stop or event.stop), ()


def _stopped(turn: Turn, event: Stopped) -> Step:
    """End the turn. Steering that no message took stays in it, for the driver to return to its caller."""
    if event.partial is None:
        return _stop(turn, event.stop)
    answer = event.partial.message
    return turn._replace(phase=TurnPhase.OVER), (AppendMessage(answer), FinishTurn(event.stop.reason, answer))


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
    (TurnPhase.TOOLS, Stopped): (_stopped, (TurnPhase.OVER,)),
    (TurnPhase.TOOLS, Steered): (_steered, (TurnPhase.TOOLS,)),
    (TurnPhase.TOOLS, StopAsked): (_stop_asked, (TurnPhase.TOOLS,)),
}
"""Phase and event to the handler, and the phases that it may lead to."""
