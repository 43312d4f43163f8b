"""The results of nodes and runs: for callers, and as JSON for journals and documents.

The JSON is that of the SDK whose users we serve, with fields of our own; `core/result.py` has the forms, and says what
is left out. A run's `stored` form is without what only its call knows: `run`, `resumed`, `replayed` and `spent`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Self, TypeAlias, TypedDict, TypeVar, cast

from repertory.core.budget import Spent
from repertory.core.error_json import error_fields, error_in
from repertory.core.interrupts import Interrupt, questions_in_words
from repertory.core.json_fields import counts_in, json_integer, json_number, json_object
from repertory.core.messages import Json, Usage, copy_message, text_of
from repertory.core.result import (
    MALFORMED,
    AgentResult,
    Form,
    agent_fields,
    agent_result,
    interrupts_in,
    whole_fields_in,
    written_whole,
)
from repertory.errors import Corrupt, Failed

NO_USAGE: Usage = {"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}


class Status(Enum):
    """The progress of a node or a run.

    Attributes:
        PENDING: It has not begun.
        EXECUTING: It runs.
        COMPLETED: It ended with a result.
        FAILED: It ended with an error.
        INTERRUPTED: It waits for a person.
    """

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
    """The result of one node. `str(result)` is its text.

    Args:
        status: How the node ended.
        accumulated_metrics: `latencyMs`, the milliseconds of its model calls.
    """

    result: AgentResult | MultiAgentResult | Exception
    """The result of the node's agent or of its run; the error, if the node failed."""
    execution_time: int = 0
    """The duration, in milliseconds."""
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
        """The result as JSON, with everything that JSON can hold; bytes in marked base64."""
        return written_whole(node_fields(self, "whole"))

    def to_record(self) -> dict[str, Json]:
        """The form for journals: raw bytes, and no fields that follow from the others."""
        fields = node_fields(self, "stored")
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
        """The result that `to_dict` gave.

        Args:
            data: What `to_dict` returned.

        Raises:
            Corrupt: For anything else. Repair it, or restore a copy.
        """
        try:
            return node_result_in(whole_fields_in(data))
        except MALFORMED as error:
            raise Corrupt("not the result of a node", cause=repr(error)) from error

    @classmethod
    def from_record(cls, data: Mapping[str, Json]) -> NodeResult:
        """The result that `to_record` gave, or a document holds.

        Args:
            data: What the method that is its opposite returned.

        Raises:
            Corrupt: For anything else. Repair it, or restore a copy.
        """
        try:
            return node_result_in(data)
        except MALFORMED as error:
            raise Corrupt("not the result of a node", cause=repr(error)) from error

    def __repr__(self) -> str:
        """The status, the kind of result and the time, on one line."""
        from repertory.core.notebook import short_repr  # loaded when used

        fields = {
            "status": self.status.value,
            "result": type(self.result).__name__,
            "execution_time": self.execution_time,
        }
        return short_repr(self, fields)

    def __str__(self) -> str:
        if isinstance(self.result, AgentResult) and self.result.message is not None and AgentResult.written is None:
            return text_of(self.result.message)  # The same of a result that was read back.
        return str(self.result)


@dataclass(frozen=True, slots=True)
class MultiAgentResult:
    """The end of a run, or where it waits. `str(result)` is each node's text, with its name.

    Args:
        status: How the run ended, or `interrupted` while it waits.
        accumulated_usage: The tokens of all nodes.
        accumulated_metrics: `latencyMs`, the milliseconds of all model calls.
        execution_count: The number of agents' turns in the run.
    """

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
    """The reason of a run that ended before its work was done."""
    spent: Mapping[str, Spent] = field(default_factory=dict[str, Spent])
    """The usage of this call so far, by agent as in `Budget.by`, with failed attempts, summaries, and agents called by
    tools. Not stored with the run.
    """

    def to_dict(self) -> dict[str, Json]:
        """The result as JSON, with everything that JSON can hold; bytes in marked base64. Nodes of graphs and swarms
        are their ids. `run`, `resumed`, `replayed`, `reason` and `spent` are there when they hold something.
        """
        return written_whole(run_fields(self, "whole"))

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Self:
        """The result that `to_dict` gave. A nested run's result is a `MultiAgentResult`, and nodes have no executor.
        Unknown keys are passed over.

        Args:
            data: What `to_dict` returned.

        Raises:
            Corrupt: For anything else. Repair it, or restore a copy.
        """
        try:
            return run_result_in(whole_fields_in(data), cls)
        except MALFORMED as error:
            raise Corrupt("not the result of several agents", cause=repr(error)) from error

    def own_fields(self) -> dict[str, Json]:
        """The fields that only this kind of result has, as JSON; for `to_dict`."""
        return {}

    def with_own(self, fields: Mapping[str, Json]) -> Self:
        """This result, with what `own_fields` gave; for `from_dict`. Errors: those in `MALFORMED`.

        Args:
            fields: What `own_fields` gave.
        """
        del fields
        return self

    def __repr__(self) -> str:
        """The end of the run and its nodes, on one line; no text of messages."""
        from repertory.core.notebook import short_repr  # loaded when used

        fields = {
            "status": self.status.value,
            "nodes": list(self.results),
            "run": self.run or None,
            "tokens": self.accumulated_usage.get("totalTokens") or None,
            "execution_time": self.execution_time,
            "interrupts": len(self.interrupts) or None,
        }
        return short_repr(self, fields)

    def _repr_markdown_(self) -> str:
        """The status, and a table of the nodes with the beginnings of their answers, for notebooks."""
        from repertory.core.notebook import cell, table  # loaded when used

        rows = [
            (
                cell(node),
                cell(each.status.value),
                f"{each.execution_time / 1000:.1f}",
                f"{each.accumulated_usage.get('totalTokens', 0):,}",
                cell(" ".join(str(each).split())[:_ANSWER_CHARS]),
            )
            for node, each in self.results.items()
        ]
        head = f"**{cell(self.status.value)}** in {self.execution_time / 1000:.1f} s"
        return f"{head}\n\n{table(('node', 'status', 'seconds', 'tokens', 'answer'), rows)}"

    def __str__(self) -> str:
        if self.interrupts:
            return questions_in_words(self.interrupts)
        end = "\n" if AgentResult.written else ""
        texts = {node: str(result).removesuffix(end) for node, result in self.results.items()}
        return "\n".join(f"{node}: {text}" for node, text in texts.items() if text)


_ANSWER_CHARS = 120


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
    # A node of a program may give metrics of any kind, or none.
    usage: object = getattr(outcome.metrics, "accumulated_usage", None)
    times: object = getattr(outcome.metrics, "accumulated_metrics", None)
    return NodeResult(
        result=replace(outcome, message=None if outcome.message is None else copy_message(outcome.message)),
        status=status,
        execution_time=execution_time,
        accumulated_usage=cast("Usage", usage) if isinstance(usage, Mapping) else _no_usage(),
        accumulated_metrics=cast("Mapping[str, float]", times) if isinstance(times, Mapping) else _no_metrics(),
        execution_count=1,
        interrupts=outcome.interrupts,
    )


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


def latency_in(fields: Mapping[str, Json]) -> float:
    """The latency of its model calls, in milliseconds, from the same JSON."""
    metrics = fields.get("accumulated_metrics")
    latency = json_object(metrics).get("latencyMs", 0) if metrics else _metrics_in(fields).get("latency_ms", 0)
    return json_number(latency)


def executions_in(fields: Mapping[str, Json]) -> int:
    """The turns of the agents below it, from the same JSON."""
    return json_integer(fields.get("execution_count", 1))


def _metrics_in(fields: Mapping[str, Json]) -> Mapping[str, Json]:
    return json_object(json_object(fields["result"]).get("metrics") or {})


def node_fields(result: NodeResult, form: Form) -> dict[str, Json]:
    """The fields of a node's result; raw bytes stay bytes."""
    return {
        "result": _outcome_fields(result.result, form, result.interrupts),
        "execution_time": result.execution_time,
        "status": result.status.value,
        "accumulated_usage": cast("Json", dict(result.accumulated_usage)),
        "accumulated_metrics": cast("Json", dict(result.accumulated_metrics)),
        "execution_count": result.execution_count,
        "interrupts": [one.to_dict() for one in result.interrupts],
    }


def run_fields(result: MultiAgentResult, form: Form) -> dict[str, Json]:
    """The fields of a run's result; raw bytes stay bytes."""
    fields: dict[str, Json] = {
        "type": "multiagent_result",
        "status": result.status.value,
        "results": {node: node_fields(each, form) for node, each in result.results.items()},
        "accumulated_usage": cast("Json", dict(result.accumulated_usage)),
        "accumulated_metrics": cast("Json", dict(result.accumulated_metrics)),
        "execution_count": result.execution_count,
        "execution_time": result.execution_time,
        "interrupts": [one.to_dict() for one in result.interrupts],
    }
    if result.reason is not None:
        fields["reason"] = result.reason
    if form == "whole":
        spent: Json = {agent: dict(each._asdict()) for agent, each in result.spent.items()}
        more = {"run": result.run, "resumed": result.resumed, "replayed": result.replayed, "spent": spent}
        fields |= {name: value for name, value in more.items() if value}
        fields |= result.own_fields()
    return fields


def _outcome_fields(outcome: NodeOutcome, form: Form, known: Sequence[Interrupt]) -> dict[str, Json]:
    if isinstance(outcome, MultiAgentResult):
        return run_fields(outcome, form)
    if isinstance(outcome, AgentResult):
        return agent_fields(outcome, form, known)
    fields: dict[str, Json] = {"type": "exception", "message": str(outcome), "cause": type(outcome).__name__}
    if form == "whole":
        fields["error"] = error_fields(outcome, _stored_run)
    return fields


def _stored_run(result: object) -> Json:
    """The result so far, as a node's error stores it: without the errors in it, which may be this one."""
    return run_fields(result, "stored") if isinstance(result, MultiAgentResult) else None


_Fields: TypeAlias = "Mapping[str, Json]"


def node_result_in(fields: _Fields) -> NodeResult:
    """The result of a node with these fields, in either form. Errors: those in `MALFORMED`."""
    interrupts = interrupts_in(fields)
    return NodeResult(
        result=_outcome(json_object(fields["result"]), interrupts),
        status=Status(fields.get("status", "pending")),
        execution_time=json_integer(fields.get("execution_time", 0)),
        accumulated_usage=cast("Usage", usage_in(fields)),
        accumulated_metrics=_metrics(fields, latency_in(fields)),
        execution_count=executions_in(fields),
        interrupts=interrupts,
    )


def _outcome(fields: _Fields, interrupts: Sequence[Interrupt]) -> NodeOutcome:
    match fields["type"]:
        case "agent_result":
            return agent_result(fields, interrupts)
        case "multiagent_result":
            return any_run_in(fields)
        case "exception" if "error" in fields:
            return error_in(fields["error"], any_run_in)
        case "exception":
            return Failed(str(fields.get("message", "the node failed")))
        case other:
            raise ValueError(other)


Kind = TypeVar("Kind", bound=MultiAgentResult)


def run_result_in(fields: _Fields, kind: type[Kind]) -> Kind:
    """The result of a run with these fields, in either form. Errors: those in `MALFORMED`."""
    if fields["type"] != "multiagent_result":
        raise ValueError(fields["type"])
    made = kind(**_of_run(fields))
    return made.with_own(fields)


def any_run_in(fields: _Fields) -> MultiAgentResult:
    """The result of a run with these fields, without what only a graph's or a swarm's result has."""
    return run_result_in(fields, MultiAgentResult)


class _OfRun(TypedDict):
    status: Status
    results: Mapping[str, NodeResult]
    accumulated_usage: Usage
    accumulated_metrics: Mapping[str, float]
    execution_count: int
    execution_time: int
    interrupts: Sequence[Interrupt]
    run: int
    resumed: bool
    replayed: bool
    reason: str | None
    spent: Mapping[str, Spent]


def _of_run(fields: _Fields) -> _OfRun:
    reason = fields.get("reason")
    return {
        "status": Status(fields["status"]),
        "results": {node: node_result_in(json_object(each)) for node, each in json_object(fields["results"]).items()},
        "accumulated_usage": _usage(fields),
        "accumulated_metrics": _metrics(fields, 0),
        "execution_count": json_integer(fields.get("execution_count", 0)),
        "execution_time": json_integer(fields.get("execution_time", 0)),
        "interrupts": interrupts_in(fields),
        "run": json_integer(fields.get("run", 0)),
        "resumed": fields.get("resumed") is True,
        "replayed": fields.get("replayed") is True,
        "reason": None if reason is None else str(reason),
        "spent": {agent: _spent(json_object(each)) for agent, each in json_object(fields.get("spent") or {}).items()},
    }


def _spent(fields: _Fields) -> Spent:
    counts = {name: json_integer(fields[name]) for name in Spent._fields if name in fields and name != "cost"}
    return Spent(**counts)._replace(cost=json_number(fields.get("cost", 0.0)))


def _usage(fields: _Fields) -> Usage:
    return cast("Usage", counts_in(fields.get("accumulated_usage") or cast("Json", NO_USAGE)))


def _metrics(fields: _Fields, latency_ms: float) -> Mapping[str, float]:
    return {
        name: json_number(each)
        for name, each in json_object(fields.get("accumulated_metrics") or {"latencyMs": latency_ms}).items()
    }
