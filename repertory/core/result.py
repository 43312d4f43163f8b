"""The result of a call, also as JSON, and the events that the call streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from repertory.core.interrupts import Interrupt, questions_in_words
from repertory.core.json_bytes import decoded, strict_json
from repertory.core.json_fields import (
    counts_in,
    json_integer,
    json_list,
    json_number,
    json_object,
    json_or,
    json_or_none,
    leave_out,
)
from repertory.core.limits import is_too_deep
from repertory.core.messages import repair_stored_message, text_of
from repertory.core.tokens import prompt_tokens
from repertory.errors import Invalid

if TYPE_CHECKING:
    import typing_extensions

    from repertory.core.messages import Json, Message, Usage

    Output = typing_extensions.TypeVar("Output", default=Any)
    Output_co = typing_extensions.TypeVar("Output_co", covariant=True, default=Any)
else:
    Output = TypeVar("Output")
    Output_co = TypeVar("Output_co", covariant=True)

AnyStopReason: TypeAlias = Literal[
    "cancelled",
    "checkpoint",
    "content_filtered",
    "end_turn",
    "guardrail_intervened",
    "interrupt",
    "limit_cost",
    "limit_output_tokens",
    "limit_time",
    "limit_total_tokens",
    "limit_turns",
    "max_tokens",
    "stop_sequence",
    "tool_use",
]
"""The reason for which a turn has ended. A model may have others, which are passed on; `checkpoint` is of the SDK."""


class StepMetrics(NamedTuple):
    """The cost of one model call."""

    usage: Usage
    latency_ms: float
    """The latency in milliseconds, as the provider measured it; 0 when it did not report one."""
    duration_s: float
    """Seconds from the call to the end of the answer, waits between attempts included."""
    attempts: int
    """Attempts in all, throttled and failed ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolMetrics:
    """The calls of one tool in a turn."""

    call_count: int = 0
    error_count: int = 0
    """Calls that ended with status `error`."""
    total_time: float = 0.0
    """Seconds, summed over calls, which may have run at the same time."""

    @property
    def success_count(self) -> int:
        return self.call_count - self.error_count

    @property
    def average_time(self) -> float:
        """Seconds per call; 0 without calls."""
        return self.total_time / self.call_count if self.call_count else 0.0

    @property
    def success_rate(self) -> float:
        """The share of successful calls, from 0 to 1; 0 without calls."""
        return self.success_count / self.call_count if self.call_count else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Everything here as plain JSON values."""
        return figures_of(self)


class CallFigures(Protocol):
    """The figures of a tool's calls; times in seconds."""

    @property
    def call_count(self) -> int: ...
    @property
    def success_count(self) -> int: ...
    @property
    def error_count(self) -> int: ...
    @property
    def total_time(self) -> float: ...
    @property
    def average_time(self) -> float: ...
    @property
    def success_rate(self) -> float: ...


def figures_of(calls: CallFigures) -> dict[str, Any]:
    """The figures as plain JSON values."""
    return {
        "call_count": calls.call_count,
        "success_count": calls.success_count,
        "error_count": calls.error_count,
        "total_time": calls.total_time,
        "average_time": calls.average_time,
        "success_rate": calls.success_rate,
    }


def no_usage() -> Usage:
    return {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}


@dataclass(frozen=True, slots=True)
class EventLoopCycleMetric:
    """One model call. `event_loop_cycle_id`: its number in the turn, from 1."""

    event_loop_cycle_id: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class AgentInvocation:
    """The model calls of one turn, and their tokens."""

    cycles: list[EventLoopCycleMetric] = field(default_factory=list[EventLoopCycleMetric])
    usage: Usage = field(default_factory=no_usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetrics:
    """The cost of a turn: each step, each tool, and the sums."""

    cycles: tuple[StepMetrics, ...] = ()
    """One entry per answered model call, in order."""
    tool_metrics: Mapping[str, ToolMetrics] = field(default_factory=dict[str, ToolMetrics])
    """The calls of each tool that ran, by its name."""
    duration_s: float = 0.0
    """Seconds of the whole turn."""
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    """The injections that model calls went without, by name (of the injector, or `memory` and the name of a store), and
    the reason: it `failed`, was `late`, or was `skipped` after several failures.
    """

    @property
    def steps(self) -> int:
        """Answered model calls."""
        return len(self.cycles)

    cycle_count = steps

    @property
    def input_tokens(self) -> int:
        """Input tokens of all model calls, as the provider counts them (cached tokens are usually counted apart)."""
        return sum(cycle.usage["inputTokens"] for cycle in self.cycles)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all model calls."""
        return sum(cycle.usage["outputTokens"] for cycle in self.cycles)

    @property
    def model_latency_ms(self) -> float:
        """The latency of all model calls, in milliseconds, as the provider measured it."""
        return sum(cycle.latency_ms for cycle in self.cycles)

    @property
    def tool_calls(self) -> Mapping[str, int]:
        """Tool name to number of calls."""
        return {name: tool.call_count for name, tool in self.tool_metrics.items()}

    @property
    def usage(self) -> Usage:
        """The token counts of all model calls, with the API's keys; cache counts only when reported."""
        total: dict[str, int] = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}
        for cycle in self.cycles:
            for name, tokens in cycle.usage.items():
                total[name] = total.get(name, 0) + (tokens if isinstance(tokens, int) else 0)
        return cast("Usage", total)

    accumulated_usage = usage

    @property
    def accumulated_metrics(self) -> Mapping[str, float]:
        """`latencyMs` over all model calls."""
        return {"latencyMs": self.model_latency_ms}

    @property
    def latest_context_size(self) -> int | None:
        """The tokens that the model read in its last call, cached ones included; None when unreported."""
        return prompt_tokens(self.cycles[-1].usage) or None if self.cycles else None

    @property
    def projected_context_size(self) -> int | None:
        """The tokens that the next call will have at least: those that the model read and wrote in its last call."""
        size = self.latest_context_size
        return None if size is None else size + self.cycles[-1].usage["outputTokens"]

    @property
    def cycle_durations(self) -> list[float]:
        """Seconds of each model call, in order."""
        return [cycle.duration_s for cycle in self.cycles]

    @property
    def agent_invocations(self) -> list[AgentInvocation]:
        """This turn alone: `agent.event_loop_metrics` has those before it."""
        cycles = [EventLoopCycleMetric(str(number), step.usage) for number, step in enumerate(self.cycles, 1)]
        return [AgentInvocation(cycles, self.usage)]

    @property
    def latest_agent_invocation(self) -> AgentInvocation:
        """The model calls of this turn."""
        return self.agent_invocations[-1]

    @property
    def traces(self) -> list[Any]:
        """Empty: there are no traces."""
        return []

    def get_summary(self) -> dict[str, Any]:
        """Everything here as plain JSON values."""
        return {
            **summary_of(self),
            "total_duration": self.duration_s,
            "left_out": dict(self.left_out),
            "cycles": [
                {
                    "usage": dict(one.usage),
                    "latency_ms": one.latency_ms,
                    "duration_s": one.duration_s,
                    "attempts": one.attempts,
                }
                for one in self.cycles
            ],
        }


class WrongResult(Invalid, TypeError):
    """The error for fields that are not those of an agent's result. Read them as what they are."""


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[Output_co]):
    r"""The end of a turn. `str(result)` is the answer's text, citations included; the structured output as JSON if
    there is one; while a person is asked, the questions in words; of a limit, a line that names it.

    For type checkers it is an `AgentResult[T]` after a call with `structured_output_model=T`.

    Args:
        stop_reason: The model's (`end_turn`, `stop_sequence`, `guardrail_intervened`, ...), or `cancelled`,
            `interrupt`, `limit_turns`, `limit_total_tokens`, `limit_output_tokens`, `limit_cost`, `limit_time`.
        message: The final answer; None when the turn ended without one.
        metrics: Tokens, times and tool calls of the turn.
        state: The request state that callback handlers, hooks and tools wrote into.
        interrupts: The questions that the turn waits for, in the order asked.
        structured_output: The model's structured output, when the caller asked for it; None of a turn that ended
            without an answer.
        replayed: True if the turn had been answered before under the same idempotency token; then nothing ran again.

    Examples:
        >>> from repertory import Agent, OfflineModel
        >>> result = Agent(OfflineModel())("My cat is called Byron.")
        >>> result.stop_reason
        'end_turn'
        >>> print(result)
        [offline] Noted: your cat is Byron.
    """

    stop_reason: AnyStopReason
    message: Message | None
    metrics: TurnMetrics = TurnMetrics()
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    interrupts: Sequence[Interrupt] = field(default_factory=list["Interrupt"])
    structured_output: Output_co | Any = None
    replayed: bool = False
    checkpoint: None = None
    """Always None: every turn goes on from its journal."""
    written: ClassVar[Callable[[AgentResult[Any]], str] | None] = None
    """Makes `str(result)`, where programs expect another text than `in_words()`."""

    @property
    def context_size(self) -> int | None:
        """The tokens that the model read in its last call; None when unreported."""
        return self.metrics.latest_context_size

    @property
    def projected_context_size(self) -> int | None:
        """The tokens that the next call will have at least; None when unreported."""
        return self.metrics.projected_context_size

    @property
    def text(self) -> str:
        """The text of the answer, citations included; empty when there is none."""
        return "" if self.message is None else text_of(self.message)

    def __str__(self) -> str:
        return self.in_words() if AgentResult.written is None else AgentResult.written(self)

    def in_words(self) -> str:
        """The text that `str(result)` is, also where programs expect another one of that."""
        if self.interrupts:
            return questions_in_words(self.interrupts)
        written: Callable[[], str] | None = getattr(self.structured_output, "model_dump_json", None)
        if written is not None:
            with suppress(ValueError):  # An object that cannot be written: its text is what the model wrote.
                return written()
        if self.message is None and self.stop_reason.startswith("limit_"):
            return f"Stopped by a limit: {self.stop_reason}."
        return self.text

    def __repr__(self) -> str:
        """The end and the usage of the turn, on one line; no text of messages."""
        from repertory.core.notebook import short_repr  # loaded when used

        metrics = cast("object", self.metrics)
        used: dict[str, object] = {}
        if isinstance(metrics, TurnMetrics):
            tokens, calls = metrics.input_tokens + metrics.output_tokens, sum(metrics.tool_calls.values())
            used = {"steps": metrics.steps, "tokens": tokens or None, "tool_calls": calls or None}
        fields = {
            "stop_reason": self.stop_reason,
            "characters": None if self.message is None else len(text_of(self.message)),
            **used,
            "interrupts": len(self.interrupts or ()) or None,
            "structured_output": None if self.structured_output is None else type(self.structured_output).__name__,
            "replayed": self.replayed or None,
        }
        return short_repr(self, fields)

    def _repr_markdown_(self) -> str:
        """The answer, and a table of its end, tokens, seconds and tools, for notebooks."""
        from repertory.core.notebook import cell, neutral_markdown, table  # loaded when used

        metrics = cast("object", self.metrics)
        head, row = ["ended by"], [cell(self.stop_reason)]
        if isinstance(metrics, TurnMetrics):
            tools = [
                f"{cell(name)} &times; {tool.call_count}"
                + (f" ({tool.error_count} failed)" if tool.error_count else "")
                for name, tool in metrics.tool_metrics.items()
            ]
            head += ["tokens in", "tokens out", "seconds", "model calls", "tools"]
            row += [f"{metrics.input_tokens:,}", f"{metrics.output_tokens:,}", f"{metrics.duration_s:.1f}"]
            row += [str(metrics.steps), ", ".join(tools) or "none"]
        return f"{neutral_markdown(str(self))}\n\n{table(head, [row])}"

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON, in the form of the Strands Agents SDK: `type`, `message`, `stop_reason` and `checkpoint`,
        bytes in marked base64. What else there is has keys of its own: `metrics`, `structured_output`, `state`,
        `interrupts`, `replayed`. It leaves out what JSON cannot hold.
        """
        return written_whole(agent_fields(self, "whole"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AgentResult:
        """The result that `to_dict` gave; a structured output is its JSON. Unknown keys are passed over.

        Args:
            data: What `to_dict` returned.

        Raises:
            Invalid: For anything else. Correct the argument.
        """
        try:
            fields = whole_fields_in(data)
            if fields.get("type") != "agent_result":
                raise WrongResult("these are not the fields of an agent's result", type=fields.get("type"))
            return agent_result({"message": None, "stop_reason": None, **fields})
        except MALFORMED as error:
            if isinstance(error, WrongResult):
                raise
            raise WrongResult("these are not the fields of an agent's result", cause=repr(error)) from error


# Results as JSON: for journals and documents, and for callers.
#
# The JSON is that of the SDK whose users we serve, so that each can read the other's; our own fields are added. What
# JSON cannot hold is left out. Journals and documents have the `stored` form: bytes stay bytes, of metrics only the
# sums are kept, interrupts stand once, beside the result, and an error is its message and the name of its class.

Form: TypeAlias = Literal["stored", "whole"]
"""The form of a result's JSON: for a journal or a document, or for callers, with everything that it holds."""
MALFORMED = (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError)
"""The errors that readers of results raise for JSON of another shape."""


class OutputFields(dict[str, "Json"]):
    """Structured output as JSON: it stands in for the object until the output schema is at hand to parse it."""


def written_whole(fields: Mapping[str, Json]) -> dict[str, Any]:
    """A result's fields as JSON, with bytes in marked base64, and without what JSON cannot hold."""
    return cast("dict[str, Any]", json_or(fields, leave_out, marks=True))


def whole_fields_in(data: Mapping[str, object]) -> dict[str, Json]:
    """The fields of a result from the JSON that `written_whole` gave. Errors: `TypeError`, `ValueError`."""
    return json_object(decoded(dict(data)))


def agent_fields(result: AgentResult, form: Form, known: Sequence[Interrupt] = ()) -> dict[str, Json]:
    """The fields of an agent's result; raw bytes stay bytes. `known`: the interrupts that stand beside it."""
    fields: dict[str, Json] = {
        "type": "agent_result",
        "message": cast("Json", result.message),
        "stop_reason": result.stop_reason,
        "checkpoint": None,
    }
    metrics = cast("object", result.metrics)
    if isinstance(metrics, TurnMetrics) and (figures := _metrics_fields(metrics, form)):
        fields["metrics"] = figures
    if result.structured_output is not None and (output := _output_in(result, form)) is not None:
        fields["structured_output"] = output
    if isinstance(cast("object", result.state), Mapping) and (state := _state_fields(result.state)):
        fields["state"] = state
    if form == "whole" and [*(result.interrupts or ())] != [*known]:
        fields["interrupts"] = [one.to_dict() for one in result.interrupts or ()]
    if form == "whole" and result.replayed:
        fields["replayed"] = True
    return fields


def _metrics_fields(metrics: TurnMetrics, form: Form) -> dict[str, Json]:
    """The fields of a turn's metrics; empty when there is nothing to write."""
    more: dict[str, Json] = {}
    if form == "whole" and metrics.cycles:
        more["cycles"] = [
            {
                "usage": cast("Json", dict(cycle.usage)),
                "latency_ms": cycle.latency_ms,
                "duration_s": cycle.duration_s,
                "attempts": cycle.attempts,
            }
            for cycle in metrics.cycles
        ]
    if form == "whole" and metrics.left_out:
        more["left_out"] = dict(metrics.left_out)
    if not (metrics.cycles or metrics.tool_metrics or more or (form == "whole" and metrics.duration_s)):
        return {}
    fields: dict[str, Json] = {"duration_s": metrics.duration_s}
    if metrics.cycles:
        fields |= {"usage": cast("Json", dict(metrics.usage)), "latency_ms": metrics.model_latency_ms}
    if metrics.tool_metrics:
        fields["tools"] = {
            name: {"call_count": tool.call_count, "error_count": tool.error_count, "total_time": tool.total_time}
            for name, tool in metrics.tool_metrics.items()
        }
    return fields | more


def _output_in(result: AgentResult, form: Form) -> Json:
    """The structured output as JSON: as in the agent's answer, which follows the schema, else converted from the
    object. None when neither works.
    """
    output = cast("object", result.structured_output)
    if isinstance(output, OutputFields):
        return dict(output)
    if form == "whole" and isinstance(output, dict | list | str | int | float):
        return json_or_none(cast("object", output))
    try:
        text = "" if result.message is None else text_of(result.message)
        parsed = cast("Json", strict_json(text))
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) and not is_too_deep(parsed) else json_or_none(output)


def _state_fields(state: Mapping[str, object]) -> dict[str, Json]:
    """The request state as it is now, as far as it is JSON."""
    fields = {name: json_or_none(value) for name, value in state.items() if isinstance(cast("object", name), str)}
    return {name: value for name, value in fields.items() if value is not None or state[name] is None}


def agent_result(fields: Mapping[str, Json], known: Sequence[Interrupt] = ()) -> AgentResult:
    """The result with these fields, in either form. `known`: the interrupts that stand beside it. Errors: those in
    `MALFORMED`.
    """
    output = fields.get("structured_output")
    return AgentResult(
        stop_reason=cast("AnyStopReason", str(fields["stop_reason"])),
        message=repair_stored_message(fields["message"]) if fields["message"] is not None else None,
        metrics=_turn_metrics(fields),
        state=dict(json_object(fields.get("state") or {})),
        interrupts=interrupts_in(fields) if "interrupts" in fields else [*known],
        structured_output=OutputFields(output) if isinstance(output, dict) else output,
        replayed=fields.get("replayed") is True,
    )


def interrupts_in(fields: Mapping[str, Json]) -> list[Interrupt]:
    """The interrupts of a result's fields. Errors: those in `MALFORMED`."""
    return [_interrupt(json_object(each)) for each in json_list(fields.get("interrupts") or [])]


def _interrupt(fields: Mapping[str, Json]) -> Interrupt:
    until = fields.get("expires_at")
    return Interrupt(
        id=str(fields["id"]),
        name=str(fields["name"]),
        reason=fields.get("reason"),
        response=fields.get("response"),
        expires_at=None if until is None else json_number(until),
        tool=None if (tool := fields.get("tool")) is None else str(tool),
        input=fields.get("input"),
        session_id=None if (session_id := fields.get("session_id")) is None else str(session_id),
        may_answer=tuple(map(str, json_list(fields.get("may_answer") or []))),
    )


def _turn_metrics(fields: Mapping[str, Json]) -> TurnMetrics:
    """The metrics of an agent's result; where only the sums are kept, as one step."""
    stored = fields.get("metrics")
    if stored is None:
        return TurnMetrics()
    metrics = json_object(stored)
    duration_s = json_number(metrics.get("duration_s", 0.0))
    cycles: tuple[StepMetrics, ...] = ()
    if "cycles" in metrics:
        cycles = tuple(_step_metrics(json_object(each)) for each in json_list(metrics["cycles"]))
    elif "usage" in metrics:
        usage, latency_ms = cast("Usage", json_object(metrics["usage"])), json_number(metrics.get("latency_ms", 0.0))
        cycles = (StepMetrics(usage, latency_ms, duration_s, 1),)
    tools = {name: _tool_metrics(json_object(each)) for name, each in json_object(metrics.get("tools") or {}).items()}
    left_out = {name: str(why) for name, why in json_object(metrics.get("left_out") or {}).items()}
    return TurnMetrics(cycles=cycles, tool_metrics=tools, duration_s=duration_s, left_out=left_out)


def _step_metrics(fields: Mapping[str, Json]) -> StepMetrics:
    return StepMetrics(
        usage=cast("Usage", {**no_usage(), **counts_in(fields.get("usage") or {})}),
        latency_ms=json_number(fields.get("latency_ms", 0.0)),
        duration_s=json_number(fields.get("duration_s", 0.0)),
        attempts=json_integer(fields.get("attempts", 1)),
    )


def _tool_metrics(fields: Mapping[str, Json]) -> ToolMetrics:
    return ToolMetrics(
        call_count=json_integer(fields["call_count"]),
        error_count=json_integer(fields["error_count"]),
        total_time=json_number(fields.get("total_time", 0.0)),
    )


class Measured(Protocol):
    """The measures of an agent that a summary is made of."""

    @property
    def cycle_count(self) -> int: ...
    @property
    def cycle_durations(self) -> list[float]: ...
    @property
    def tool_metrics(self) -> Mapping[str, CallFigures]: ...
    @property
    def agent_invocations(self) -> list[AgentInvocation]: ...
    @property
    def accumulated_usage(self) -> Usage: ...
    @property
    def accumulated_metrics(self) -> Mapping[str, object]: ...


def summary_of(measured: Measured) -> dict[str, Any]:
    """The figures as plain JSON values."""
    seconds, calls = sum(measured.cycle_durations), measured.cycle_count
    return {
        "total_cycles": calls,
        "total_duration": seconds,
        "average_cycle_time": seconds / calls if calls else 0.0,
        "tool_usage": {
            name: {**figures_of(tool), "tool_info": {"name": name}, "execution_stats": figures_of(tool)}
            for name, tool in measured.tool_metrics.items()
        },
        "traces": [],
        "accumulated_usage": dict(measured.accumulated_usage),
        "accumulated_metrics": dict(measured.accumulated_metrics),
        "agent_invocations": [asdict(turn) for turn in measured.agent_invocations],
    }


TurnEvent: TypeAlias = Mapping[str, object]
"""An event of a turn or a run on its way to callers, who know it as one of `core/stream_events.py`."""


def derived_event(event: Mapping[str, object]) -> TurnEvent | None:
    """The text or reasoning event derived from a raw one; None when it has neither."""
    body = event.get("contentBlockDelta")
    if not isinstance(body, Mapping):
        return None
    delta = cast("Mapping[str, object]", body).get("delta")
    match delta:
        case {"text": str(text)}:
            return {"data": text, "delta": delta}
        case {"reasoningContent": {"text": str(text)}}:
            return {"reasoning": True, "reasoningText": text, "delta": delta}
        case _:
            return None
