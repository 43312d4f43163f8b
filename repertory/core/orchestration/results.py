"""The results of nodes and runs: for callers, and as JSON for journals and documents.

The JSON is that of the SDK whose users we serve, so that each can read the other's; our own fields are added
(`structured_output`, `metrics` and `state` of an agent's result, `reason`, `cause`). What JSON cannot hold is left out:
such values in the request state and the structured output; of metrics all but the sums; of an error all but its message
and class name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Never, Self, TypeAlias, TypedDict, TypeVar, cast

from repertory.core.budget import Spent
from repertory.core.interrupts import Interrupt
from repertory.core.limits import is_too_deep
from repertory.core.messages import Json, Usage, copy_message, repair_stored_message, text_of, texts_in
from repertory.core.result import AgentResult, StepMetrics, ToolMetrics, TurnMetrics
from repertory.core.state import plain_value
from repertory.errors import Corrupt, Failed

NO_USAGE: Usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}


class FilledIn(dict[str, Json]):
    """Structured output as JSON: it stands in for the object until the output schema is at hand to parse it."""


class Status(Enum):
    """The progress of a node or a run."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    """A node that is started, and waits for the store before it begins."""
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


def _no_usage() -> Usage:
    return {**NO_USAGE}


def _no_metrics() -> dict[str, float]:
    return {"latencyMs": 0}


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The result of one node. `str(result)` is its text."""

    result: AgentResult | MultiAgentResult | Exception
    """The error, if the node failed."""
    execution_time: int = 0
    """Milliseconds."""
    status: Status = Status.PENDING
    accumulated_usage: Usage = field(default_factory=_no_usage)
    """Tokens of all agents below it, in the attempt that gave this result; none for an attempt that raised an error. A
    `Budget` counts all attempts.
    """
    accumulated_metrics: Mapping[str, float] = field(default_factory=_no_metrics)
    execution_count: int = 0
    """Turns of the agents below it."""
    interrupts: Sequence[Interrupt] = field(default_factory=list["Interrupt"])
    """The interrupts that it waits for."""

    def get_agent_results(self) -> list[AgentResult]:
        """The results of all agents below it, in order."""
        match self.result:
            case AgentResult():
                return [self.result]
            case MultiAgentResult():
                return [found for node in self.result.results.values() for found in node.get_agent_results()]
            case _:
                return []

    def to_dict(self) -> dict[str, Json]:
        """As JSON; raw bytes in messages stay bytes."""
        return {
            "result": _outcome_fields(self.result),
            "execution_time": self.execution_time,
            "status": self.status.value,
            "accumulated_usage": cast("Json", dict(self.accumulated_usage)),
            "accumulated_metrics": cast("Json", dict(self.accumulated_metrics)),
            "execution_count": self.execution_count,
            "interrupts": _interrupts_fields(self.interrupts),
        }

    def to_record(self) -> dict[str, Json]:
        """`to_dict` for journals: without fields that follow from the others."""
        fields = self.to_dict()
        outcome = cast("dict[str, Json]", fields["result"])
        if outcome.get("checkpoint", ...) is None:
            del outcome["checkpoint"]
        alone: Mapping[str, Json] = {"result": outcome}
        known: dict[str, Json] = {
            "accumulated_usage": dict(usage_in(alone)),
            "accumulated_metrics": {"latencyMs": latency_in(alone)},
            "execution_count": 1,
            "interrupts": [],
        }
        return {name: value for name, value in fields.items() if name not in known or known[name] != value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> NodeResult:
        """The result that `to_dict` or `to_record` gave. Errors: `Corrupt` for anything else."""
        try:
            return _node_result(data)
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise Corrupt("not the result of a node", cause=repr(error)) from error

    def __str__(self) -> str:
        result = self.result
        if isinstance(result, AgentResult) and result.message is not None:
            return "\n".join(texts_in(result.message))  # The same of a result that was read back.
        return str(result)


@dataclass(frozen=True, slots=True)
class MultiAgentResult:
    """The end of a run, or where it waits. `str(result)` is each node's text, with its name."""

    status: Status = Status.PENDING
    results: Mapping[str, NodeResult] = field(default_factory=dict[str, NodeResult])
    """The latest result of each node, in the order of their first executions."""
    accumulated_usage: Usage = field(default_factory=_no_usage)
    accumulated_metrics: Mapping[str, float] = field(default_factory=_no_metrics)
    execution_count: int = 0
    execution_time: int = 0
    """Working time in milliseconds, over all calls of the run."""
    interrupts: Sequence[Interrupt] = field(default_factory=list["Interrupt"])
    """The interrupts that the run waits for."""
    run: int = 0
    """The number of the run, from 1."""
    resumed: bool = False
    """True if this call went on with a run that an earlier call began."""
    replayed: bool = False
    """True if the run with this idempotency token was over before the call; nothing ran again."""
    reason: str | None = None
    """Why it ended before its work was done."""
    spent: Mapping[str, Spent] = field(default_factory=dict[str, Spent])
    """What this call has used so far, by agent as in `Budget.by`, with failed attempts, summaries, and agents called by
    tools. Not stored with the run.
    """

    def to_dict(self) -> dict[str, Json]:
        """As JSON; raw bytes in messages stay bytes."""
        fields: dict[str, Json] = {
            "type": "multiagent_result",
            "status": self.status.value,
            "results": {node: result.to_dict() for node, result in self.results.items()},
            "accumulated_usage": cast("Json", dict(self.accumulated_usage)),
            "accumulated_metrics": cast("Json", dict(self.accumulated_metrics)),
            "execution_count": self.execution_count,
            "execution_time": self.execution_time,
            "interrupts": _interrupts_fields(self.interrupts),
        }
        if self.reason is not None:
            fields["reason"] = self.reason
        return fields

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Self:
        """The result that `to_dict` gave, without fields specific to graphs or swarms. Errors: `Corrupt` for anything
        else.
        """
        try:
            if data["type"] != "multiagent_result":
                raise ValueError(data["type"])
            return cls(**_of_run(data))
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise Corrupt("not the result of several agents", cause=repr(error)) from error

    def __str__(self) -> str:
        if self.interrupts:
            return str(_interrupts_fields(self.interrupts))
        texts = {node: str(result) for node, result in self.results.items()}
        return "\n".join(f"{node}: {text}" for node, text in texts.items() if text)


NodeOutcome: TypeAlias = AgentResult | MultiAgentResult | Exception


def node_result_of(outcome: NodeOutcome, execution_time: int) -> NodeResult:
    """The result of a node with this outcome. `execution_time`: milliseconds."""
    if isinstance(outcome, MultiAgentResult):
        return NodeResult(
            result=outcome,
            status=outcome.status,
            execution_time=execution_time,
            accumulated_usage=outcome.accumulated_usage,
            accumulated_metrics=outcome.accumulated_metrics,
            execution_count=outcome.execution_count,
            interrupts=outcome.interrupts,
        )
    if isinstance(outcome, Exception):
        return NodeResult(result=outcome, status=Status.FAILED, execution_time=execution_time, execution_count=1)
    status = Status.COMPLETED
    if outcome.stop_reason == "interrupt":
        status = Status.INTERRUPTED
    elif outcome.stop_reason == "cancelled":
        status = Status.FAILED
    return NodeResult(
        result=replace(outcome, message=None if outcome.message is None else copy_message(outcome.message)),
        status=status,
        execution_time=execution_time,
        accumulated_usage=_measured(outcome, "accumulated_usage", _no_usage()),
        accumulated_metrics=_measured(outcome, "accumulated_metrics", _no_metrics()),
        execution_count=1,
        interrupts=outcome.interrupts,
    )


_Figures = TypeVar("_Figures", bound=Mapping[str, object])


def _measured(outcome: AgentResult, name: str, without: _Figures) -> _Figures:
    """The figures of an agent's result. A node of a program may give metrics of any kind, or none."""
    found: object = getattr(outcome.metrics, name, None)
    return cast("_Figures", found) if isinstance(found, Mapping) else without


def sum_of(usages: Mapping[str, int], more: Mapping[str, object]) -> dict[str, int]:
    """Token counts added up; a key that only one of them has counts as it is."""
    total = dict(usages)
    for name, count in more.items():
        if isinstance(count, int):
            total[name] = total.get(name, 0) + count
    return total


def usage_in(fields: Mapping[str, Json]) -> Mapping[str, int]:
    """The token counts in a node result's JSON; when absent, those of its agent."""
    return counts_in(fields.get("accumulated_usage") or _metrics_in(fields).get("usage") or cast("Json", NO_USAGE))


def counts_in(value: Json) -> Mapping[str, int]:
    """Counts by name. Errors: `TypeError` for anything else."""
    return {name: _whole(count) for name, count in json_object(value).items()}


def latency_in(fields: Mapping[str, Json]) -> float:
    """The latency of its model calls, in milliseconds, from the same JSON."""
    metrics = fields.get("accumulated_metrics")
    kept = json_object(metrics).get("latencyMs", 0) if metrics else _metrics_in(fields).get("latency_ms", 0)
    return json_number(kept)


def executions_in(fields: Mapping[str, Json]) -> int:
    """The turns of the agents below it, from the same JSON."""
    return _whole(fields.get("execution_count", 1))


def _metrics_in(fields: Mapping[str, Json]) -> Mapping[str, Json]:
    return json_object(json_object(fields["result"]).get("metrics") or {})


def _outcome_fields(outcome: NodeOutcome) -> dict[str, Json]:
    if isinstance(outcome, MultiAgentResult):
        return outcome.to_dict()
    if isinstance(outcome, Exception):
        return {"type": "exception", "message": str(outcome), "cause": type(outcome).__name__}
    fields: dict[str, Json] = {
        "type": "agent_result",
        "message": cast("Json", outcome.message),
        "stop_reason": outcome.stop_reason,
        "checkpoint": None,
    }
    metrics = cast("object", outcome.metrics)
    if isinstance(metrics, TurnMetrics) and (metrics.steps or metrics.tool_metrics):
        fields["metrics"] = _metrics_fields(metrics)
    if outcome.structured_output is not None and (filled := _filled_in(outcome)) is not None:
        fields["structured_output"] = filled
    if outcome.state and (state := _state_fields(outcome.state)):
        fields["state"] = state
    return fields


def _metrics_fields(metrics: TurnMetrics) -> dict[str, Json]:
    fields: dict[str, Json] = {"duration_s": metrics.duration_s}
    if metrics.steps:
        fields |= {"usage": cast("Json", dict(metrics.usage)), "latency_ms": metrics.model_latency_ms}
    if metrics.tool_metrics:
        fields["tools"] = {
            name: {"call_count": tool.call_count, "error_count": tool.error_count, "total_time": tool.total_time}
            for name, tool in metrics.tool_metrics.items()
        }
    return fields


def _filled_in(result: AgentResult) -> Json:
    """The structured output as JSON: as in the agent's answer, which follows the schema, else converted from the
    object. None when neither works.
    """
    if isinstance(result.structured_output, FilledIn):
        return dict(result.structured_output)
    try:
        said = "" if result.message is None else text_of(result.message)
        parsed = cast("Json", json.loads(said, parse_constant=_no_number))
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) and not is_too_deep(parsed) else _plain(result.structured_output)


def _state_fields(state: Mapping[str, object]) -> dict[str, Json]:
    """The request state as it is now, as far as it is JSON."""
    fields = {name: _plain(value) for name, value in state.items() if isinstance(cast("object", name), str)}
    return {name: value for name, value in fields.items() if value is not None or state[name] is None}


def _plain(value: object) -> Json:
    """A copy of the value as JSON; None when it is not JSON."""
    try:
        copy = cast("Json", json.loads(json.dumps(value, allow_nan=False, default=plain_value)))
    except (TypeError, ValueError, RecursionError):
        return None
    return None if is_too_deep(copy) else copy


def _no_number(constant: str) -> Never:
    raise ValueError(constant)


def _interrupts_fields(interrupts: Sequence[Interrupt]) -> list[Json]:
    return [interrupt.to_dict() for interrupt in interrupts]


_Fields: TypeAlias = "Mapping[str, Json]"


def _node_result(fields: _Fields) -> NodeResult:
    interrupts = _interrupts(fields)
    return NodeResult(
        result=_outcome(json_object(fields["result"]), interrupts),
        status=Status(fields.get("status", "pending")),
        execution_time=_whole(fields.get("execution_time", 0)),
        accumulated_usage=cast("Usage", usage_in(fields)),
        accumulated_metrics=_metrics(fields, latency_in(fields)),
        execution_count=executions_in(fields),
        interrupts=interrupts,
    )


def _outcome(fields: _Fields, interrupts: Sequence[Interrupt]) -> NodeOutcome:
    match fields["type"]:
        case "agent_result":
            filled = fields.get("structured_output")
            return AgentResult(
                stop_reason=str(fields["stop_reason"]),
                message=repair_stored_message(fields["message"]) if fields["message"] is not None else None,
                metrics=_sums(fields),
                state=dict(json_object(fields.get("state") or {})),
                interrupts=[*interrupts],
                structured_output=FilledIn(filled) if isinstance(filled, dict) else filled,
            )
        case "multiagent_result":
            return MultiAgentResult(**_of_run(fields))
        case "exception":
            return Failed(str(fields.get("message", "the node failed")))
        case other:
            raise ValueError(other)


class _OfRun(TypedDict):
    status: Status
    results: Mapping[str, NodeResult]
    accumulated_usage: Usage
    accumulated_metrics: Mapping[str, float]
    execution_count: int
    execution_time: int
    interrupts: Sequence[Interrupt]
    reason: str | None


def _of_run(fields: _Fields) -> _OfRun:
    reason = fields.get("reason")
    return {
        "status": Status(fields["status"]),
        "results": {node: _node_result(json_object(each)) for node, each in json_object(fields["results"]).items()},
        "accumulated_usage": _usage(fields),
        "accumulated_metrics": _metrics(fields, 0),
        "execution_count": _whole(fields.get("execution_count", 0)),
        "execution_time": _whole(fields.get("execution_time", 0)),
        "interrupts": _interrupts(fields),
        "reason": None if reason is None else str(reason),
    }


def _sums(fields: _Fields) -> TurnMetrics:
    """The stored sums of an agent's metrics, as one step."""
    kept = fields.get("metrics")
    if kept is None:
        return TurnMetrics()
    metrics = json_object(kept)
    duration_s = json_number(metrics["duration_s"])
    cycles: tuple[StepMetrics, ...] = ()
    if "usage" in metrics:
        usage, latency_ms = cast("Usage", json_object(metrics["usage"])), json_number(metrics["latency_ms"])
        cycles = (StepMetrics(usage, latency_ms, duration_s, 1),)
    tools = {name: _tool(json_object(each)) for name, each in json_object(metrics.get("tools") or {}).items()}
    return TurnMetrics(cycles=cycles, tool_metrics=tools, duration_s=duration_s)


def _tool(fields: _Fields) -> ToolMetrics:
    return ToolMetrics(
        call_count=_whole(fields["call_count"]),
        error_count=_whole(fields["error_count"]),
        total_time=json_number(fields["total_time"]),
    )


def _usage(fields: _Fields) -> Usage:
    return cast("Usage", counts_in(fields.get("accumulated_usage") or cast("Json", NO_USAGE)))


def _metrics(fields: _Fields, latency_ms: float) -> Mapping[str, float]:
    return {
        name: json_number(each)
        for name, each in json_object(fields.get("accumulated_metrics") or {"latencyMs": latency_ms}).items()
    }


def _interrupts(fields: _Fields) -> list[Interrupt]:
    return [_interrupt(json_object(each)) for each in cast("list[Json]", fields.get("interrupts") or ())]


def _interrupt(fields: _Fields) -> Interrupt:
    until = fields.get("expires_at")
    return Interrupt(
        id=str(fields["id"]),
        name=str(fields["name"]),
        reason=fields.get("reason"),
        expires_at=None if until is None else json_number(until),
    )


def json_object(value: Json) -> dict[str, Json]:
    """The value as an object. Errors: `TypeError`."""
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def json_number(value: Json) -> float:
    """The value as a number. Errors: `TypeError`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(value)
    return value


def _whole(value: Json) -> int:
    return int(json_number(value))


def json_texts(value: Json) -> tuple[str, ...]:
    """The value as a tuple of texts. Errors: `TypeError`."""
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(value)
    return tuple(cast("list[str]", value))
