"""The agent turn as a state machine: `step(turn, event) -> (turn, commands)`.

A turn goes from what the user said to the final answer, through any number of steps (one model call and the tools
that it asks for). The machine decides; whoever drives it carries the commands out, in order, and feeds the event that
the last one led to back in. It knows no clock, no task and no store, so resuming after a crash is the same code as
going on.

    READY --Began--> MODEL            messages to store, then the model is asked
    READY --Continued--> TOOLS        a stored message asked for tools that have no result yet
    MODEL --Answered--> TOOLS | OVER  the answer asks for tools, or is final (a steered prompt goes back to MODEL)
    MODEL --Overflowed--> REDUCING    the window is full
    REDUCING --Reduced--> MODEL
    TOOLS --ToolsEnded--> MODEL | OVER
    MODEL, REDUCING --Cancelled | Erred--> OVER
    MODEL, REDUCING, TOOLS --Steered--> the same phase

Any other pair is a mistake of the driver and raises `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse, tool_uses

if TYPE_CHECKING:
    from repertory.core.answer import Answer
    from repertory.errors import ContextWindowOverflowException


class Phase(StrEnum):
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
    """The model's answer arrived whole."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The model refused: the messages do not fit its window."""

    error: ContextWindowOverflowException


@dataclass(frozen=True, slots=True)
class Reduced:
    """The conversation manager shortened what the model is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsEnded:
    """Every tool use of the step has its result, in the order asked; `cancelled` says that some were cut short."""

    results: tuple[ToolResult, ...]
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Steered:
    """The caller added to a running turn."""

    content: tuple[ContentBlock, ...]


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The running command was cut short because the turn was cancelled."""


@dataclass(frozen=True, slots=True)
class Erred:
    """The running command failed for good."""

    error: Exception


Event: TypeAlias = "Began | Continued | Answered | Overflowed | Reduced | ToolsEnded | Steered | Cancelled | Erred"


# Commands: what to do next, as data.


@dataclass(frozen=True, slots=True)
class Append:
    """Store a message and show it to the model from now on."""

    message: Message


@dataclass(frozen=True, slots=True)
class CallModel:
    """Ask the model. Leads to Answered, Overflowed, Erred or Cancelled."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Shorten what the model is shown. Leads to Reduced, Erred or Cancelled."""

    error: ContextWindowOverflowException


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTools:
    """Run tools. Leads to ToolsEnded with one result per use, whatever happens.

    Uses in `known` have their result already and must not run. `invalid` holds the raw input of uses that was not JSON.
    """

    uses: tuple[ToolUse, ...]
    known: Mapping[str, ToolResult]
    invalid: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Finish:
    """The turn is over. `message` is the final answer; None when there is none."""

    stop_reason: str
    message: Message | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The turn is over without an answer; raise this to the caller."""

    error: Exception


Command: TypeAlias = "Append | CallModel | Reduce | RunTools | Finish | Fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """Bounds of one turn."""

    reductions_max: int = 3
    """How often one model call may be retried with a shorter view."""


class Turn(NamedTuple):
    """A turn in progress. Immutable: a step returns the next one."""

    phase: Phase = Phase.READY
    limits: TurnLimits = TurnLimits()
    steps: int = 0
    """Model calls that were answered."""
    reductions: int = 0
    """Reductions since the last answer."""
    steering: tuple[ContentBlock, ...] = ()
    """What the caller added and the model has not been shown yet."""


Step: TypeAlias = "tuple[Turn, tuple[Command, ...]]"


def step(turn: Turn, event: Event) -> Step:
    """The next turn and what to do now."""
    transition = _TRANSITIONS.get((turn.phase, type(event)))
    if transition is None:
        msg = f"a turn in phase {turn.phase} cannot take {type(event).__name__}"
        raise AssertionError(msg)
    return transition(turn, event)


def _began(turn: Turn, event: Began) -> Step:
    return turn._replace(phase=Phase.MODEL), (*map(Append, event.messages), CallModel())


def _continued(turn: Turn, event: Continued) -> Step:
    return turn._replace(phase=Phase.TOOLS), (RunTools(uses=event.uses, known=event.known, invalid={}),)


def _answered(turn: Turn, event: Answered) -> Step:
    answer = event.answer
    message = answer.message
    turn = turn._replace(steps=turn.steps + 1, reductions=0)
    uses = tuple(tool_uses(message))
    if uses:
        run = RunTools(uses=uses, known={}, invalid=answer.invalid_inputs)
        return turn._replace(phase=Phase.TOOLS), (Append(message), run)
    if turn.steering:
        prompt: Message = {"role": "user", "content": list(turn.steering)}
        turn = turn._replace(phase=Phase.MODEL, steering=())
        return turn, (Append(message), Append(prompt), CallModel())
    return turn._replace(phase=Phase.OVER), (Append(message), Finish(answer.stop_reason, message))


def _overflowed(turn: Turn, event: Overflowed) -> Step:
    if turn.reductions >= turn.limits.reductions_max:
        return _over(turn, Fail(event.error))
    return turn._replace(phase=Phase.REDUCING, reductions=turn.reductions + 1), (Reduce(event.error),)


def _reduced(turn: Turn, event: Reduced) -> Step:
    del event
    return turn._replace(phase=Phase.MODEL), (CallModel(),)


def _tools_ended(turn: Turn, event: ToolsEnded) -> Step:
    blocks: list[ContentBlock] = [{"toolResult": result} for result in event.results]
    message: Message = {"role": "user", "content": [*blocks, *turn.steering]}
    turn = turn._replace(steering=())
    if event.cancelled:
        return turn._replace(phase=Phase.OVER), (Append(message), Finish("cancelled", None))
    return turn._replace(phase=Phase.MODEL), (Append(message), CallModel())


def _steered(turn: Turn, event: Steered) -> Step:
    return turn._replace(steering=(*turn.steering, *event.content)), ()


def _cancelled(turn: Turn, event: Cancelled) -> Step:
    del event
    return _over(turn, Finish("cancelled", None))


def _erred(turn: Turn, event: Erred) -> Step:
    return _over(turn, Fail(event.error))


def _over(turn: Turn, command: Finish | Fail) -> Step:
    """End the turn. Steering that no message took stays in it, for the driver to hand back to who said it."""
    return turn._replace(phase=Phase.OVER), (command,)


_TRANSITIONS: Mapping[tuple[Phase, type], Callable[..., Step]] = {
    (Phase.READY, Began): _began,
    (Phase.READY, Continued): _continued,
    (Phase.MODEL, Answered): _answered,
    (Phase.MODEL, Overflowed): _overflowed,
    (Phase.MODEL, Cancelled): _cancelled,
    (Phase.MODEL, Erred): _erred,
    (Phase.MODEL, Steered): _steered,
    (Phase.REDUCING, Reduced): _reduced,
    (Phase.REDUCING, Cancelled): _cancelled,
    (Phase.REDUCING, Erred): _erred,
    (Phase.REDUCING, Steered): _steered,
    (Phase.TOOLS, ToolsEnded): _tools_ended,
    (Phase.TOOLS, Steered): _steered,
}
