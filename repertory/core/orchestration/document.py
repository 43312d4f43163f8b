"""A run as a JSON document in the documented layout, and back, also from documents that other programs wrote.

    {"type": "graph", "id", "status", "completed_nodes", "failed_nodes", "interrupted_nodes",
     "node_results": {NODE: RESULT}, "next_nodes_to_execute", "current_task", "execution_order",
     "accumulated_usage", "accumulated_metrics", "execution_count", "execution_time",
     "_internal_state": {"interrupt_state"}}
    {"type": "swarm", "id", "status", "node_history", "node_results", "next_nodes_to_execute", "current_task",
     "accumulated_usage", "accumulated_metrics", "execution_time",
     "context": {"shared_context": {NODE: VALUES}, "handoff_node", "handoff_message"}, "_internal_state"}

The document lacks the run's number, tokens, end reason, the part of the frontier that is not ready, and the usage of
earlier executions of a node. A node's interrupts are in its own conversation, which the document does not hold, so
other programs ask again. Interrupts in their documents are resumed; see the end of this file.

Source: the documented session layout, as strands-agents 1.62.0 writes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.messages import check_message, repair_stored_message, tool_results
from repertory.core.orchestration.run import RUN, Ended, NodeNote, Places, Run, StoredResult
from repertory.core.provider_parts import as_ours_if_message
from repertory.core.result import AgentResult
from repertory.core.run_results import NodeResult, Status, node_fields, node_result_of, sum_of
from repertory.core.turns.interrupt_state import NO_INTERRUPTS, questions_in, read_state
from repertory.errors import Corrupt

if TYPE_CHECKING:
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.records import NodeChanged
    from repertory.core.messages import Json, Message
    from repertory.core.orchestration.run import OrchestratorKind, Task

ENDED_ELSEWHERE = "It ended where it was run last, before its work was done"
"""The reason of a failed run that another program ended."""
_OF_RESULTS = {
    "agent_result": ("type", "message", "stop_reason"),
    "multiagent_result": ("type", "status"),
    "exception": ("type", "message"),
}
"""The fields of a result that every program keeps."""
_OF_INTERRUPTS = ("id", "name", "reason", "response")


def document_of(run: Run, orchestrator_id: str) -> dict[str, object]:
    """The document of a run. Raw bytes in messages and in the task stay bytes."""
    order = [node for node, _ in _work_done(run)]
    task = run.task if isinstance(run.task, str) else list(run.task)
    document: dict[str, object] = {"type": run.kind, "id": orchestrator_id, "status": run.status.value}
    if run.kind == "graph":
        for status in (Status.COMPLETED, Status.FAILED, Status.INTERRUPTED):
            document[f"{status.value}_nodes"] = list(run.with_status(status))
    else:
        document["node_history"] = order
    document["node_results"] = {node: _plain(node_fields(result, "stored")) for node, result in run.results.items()}
    document |= {"next_nodes_to_execute": list(run.ready), "current_task": task}
    if run.kind == "graph":
        document["execution_order"] = order
    document |= {"accumulated_usage": dict(run.usage), "accumulated_metrics": {"latencyMs": run.latency_ms}}
    if run.kind == "graph":
        document["execution_count"] = run.executions
    document["execution_time"] = run.elapsed_ms
    if run.kind == "swarm":
        shared = {node: dict(note.context) for node, note in run.notes.items() if note.context}
        document["context"] = {"shared_context": shared, "handoff_node": None, "handoff_message": _words(run)}
    return {**document, "_internal_state": {"interrupt_state": dict(NO_INTERRUPTS)}}


def records_from(document: Mapping[str, Json], before: Run, *, at: float) -> list[NodeChanged]:
    """The records that bring a journal from `before` to what the document says; none when it says the same.

    A document that continues an unfinished run is the same run: unchanged nodes keep all that the document lacks. Any
    other document is the next run. Errors: `Corrupt` for a malformed document.
    """
    try:
        return _records(_read(document), before, at)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise Corrupt("not the document of a graph or swarm", cause=repr(error)) from error


class _ParsedDocument(Struct, frozen=True, kw_only=True):
    """A parsed document."""

    kind: OrchestratorKind
    status: Status
    task: Task
    results: Mapping[str, NodeResult]
    order: Sequence[str]
    following: tuple[str, ...]
    usage: Mapping[str, int]
    latency_ms: float
    executions: int
    elapsed_ms: int
    context: Mapping[str, Mapping[str, Json]]
    words: str | None
    waiting: Mapping[str, WaitingAgent]


def _read(document: Mapping[str, Json]) -> _ParsedDocument:
    kind: OrchestratorKind = "swarm" if document["type"] == "swarm" else "graph"
    if document["type"] != kind:
        raise ValueError(document["type"])
    status, task = Status(document["status"]), document["current_task"]
    context = _fields(document["context"]) if kind == "swarm" else {}
    order = _names(document["execution_order" if kind == "graph" else "node_history"])
    following = tuple(_names(document["next_nodes_to_execute"]))
    internal = _fields(document.get("_internal_state"))
    agents = waiting_agents(internal.get("interrupt_state"), Counter(order))
    visited = (node for node in _names(document.get("interrupted_nodes")) if node in agents and node not in following)
    following = (*following, *visited)  # Other programs omit a waiting node that has worked before.
    waiting = {node: each for node, each in agents.items() if node in following}
    results = {node: NodeResult.from_record(_fields(each)) for node, each in _fields(document["node_results"]).items()}
    results |= {node: _asking(each.interrupts) for node, each in waiting.items()}
    for each in (each for result in results.values() for each in result.get_agent_results()):
        if each.message is not None:
            check_message(each.message)
    failed = [results[node].status for node in _names(document.get("failed_nodes")) if node in results]
    if status is Status.FAILED and failed and all(each is Status.COMPLETED for each in failed):
        status = Status.COMPLETED  # Other programs call a run failed for good, even if the node was run again.
    parsed = _ParsedDocument(
        kind=kind,
        status=status,
        task=task if isinstance(task, str) else _blocks(task),
        results=results,
        order=order,
        following=following,
        usage=sum_of({}, _fields(document.get("accumulated_usage"))),
        latency_ms=_number(_fields(document.get("accumulated_metrics")).get("latencyMs")),
        executions=int(_number(document.get("execution_count", len(order)))),
        elapsed_ms=int(_number(document.get("execution_time"))),
        context={node: _fields(values) for node, values in _fields(context.get("shared_context")).items()},
        words=cast("str | None", context.get("handoff_message")) or None,
        waiting=waiting,
    )
    if RUN in (*results, *parsed.order, *parsed.following):
        raise ValueError("a node without a name")
    return parsed


def _asking(interrupts: tuple[Interrupt, ...]) -> NodeResult:
    outcome = AgentResult(stop_reason="interrupt", message=None, interrupts=[*interrupts])
    return node_result_of(outcome, 0)


# Waiting nodes of other programs, with their conversations, in the document of the run.
#
#     {"interrupts": {ID: INTERRUPT}, "activated": true, "context": {
#         NODE: {"from_hook", "interrupt_ids", "interrupt_state", "state", "messages"}}}    of a graph
#         NODE: {"activated", "interrupt_state", "state", "messages"}}}                     of a swarm
#
# A node that a hook asked about had not begun, so it has no conversation. A node that is an orchestrator keeps nothing,
# and does its work again from the beginning.
#
# Source: the documented session layout, as strands-agents 1.62.0 writes it.


def _fields(value: Json) -> dict[str, Json]:
    """The value as an object; empty for None. Errors: `TypeError`."""
    if value is not None and not isinstance(value, dict):
        raise TypeError(value)
    return value or {}


def _names(value: Json) -> list[str]:
    """The value as a list of names. Errors: `TypeError`."""
    if value is not None and not isinstance(value, list):
        raise TypeError(value)
    return [str(name) for name in value or ()]


def _number(value: Json) -> float:
    """The value as a number; 0 for None. Errors: `TypeError`."""
    if value is not None and not isinstance(value, int | float):
        raise TypeError(value)
    return value or 0


def _blocks(task: Json) -> Task:
    return check_message({"role": "user", "content": task})["content"] if task else ""


def _records(document: _ParsedDocument, before: Run, at: float) -> list[NodeChanged]:
    if document.status is Status.PENDING and not (document.results or document.following):
        return []
    same = _goes_on(document, before)
    notes = before.notes if same else {}
    changed = [node for node in document.results if not (node in notes and _is_as_it_was(document, node, notes[node]))]
    changed = [
        node for node in changed if document.results[node].status is not Status.INTERRUPTED or node in document.waiting
    ]
    frontier = _frontier(document, before) if same else document.following
    run = Run()
    run.number, run.kind, run.task = before.number if same else before.number + 1, document.kind, document.task
    run.tokens, run.begun_at = (before.tokens, before.begun_at) if same else ((), at)
    made: list[NodeChanged] = []
    if not same or (frontier != before.frontier and not changed):
        begun = Run.begun(before, document.task, frontier, at=at, kind=document.kind, tokens=run.tokens)
        made.append(replace(begun, run=run.number))
    made_of = _notes(document, changed, notes)
    for node, note in sorted(made_of.items(), key=lambda item: item[1].places.last or math.inf):
        end = run.ended(node, Ended(result=note.result), frontier, at=at, elapsed_ms=document.elapsed_ms)
        fields = note.to_data(cast("Mapping[str, Json]", end.result))
        made.append(replace(end, data={**fields, "elapsed_ms": document.elapsed_ms}))
    if document.status is Status.FAILED and not frontier:
        made.append(run.stopped(ENDED_ELSEWHERE, at=at, elapsed_ms=document.elapsed_ms))
    return made


def _goes_on(document: _ParsedDocument, before: Run) -> bool:
    """True if the document continues the unfinished run, or shows it unchanged."""
    done = [node for node, _ in _work_done(before)]
    alike = (document.kind, document.task) == (before.kind, before.task) and list(document.order[: len(done)]) == done
    return alike and not before.over


def _frontier(document: _ParsedDocument, before: Run) -> tuple[str, ...]:
    """The frontier: the document's next nodes, and nodes that still wait for those."""
    if not document.following:
        return ()
    if set(document.following) == set(before.ready):
        return before.frontier
    waiting = [node for node in before.frontier if node not in before.ready and node not in document.following]
    done = {node: len(note.places) for node, note in before.notes.items()}
    return (*document.following, *(node for node in waiting if document.order.count(node) == done.get(node, 0)))


def _is_as_it_was(document: _ParsedDocument, node: str, note: NodeNote) -> bool:
    found = document.results[node]
    if found.status is Status.INTERRUPTED and _ids(found) != _ids(note.result):
        return False
    same = found.status is note.result.status and document.order.count(node) == len(note.places)
    theirs, ours = (_known(_fields(node_fields(each, "stored")["result"])) for each in (found, note.result))
    return same and theirs == ours


def _ids(result: NodeResult) -> set[str]:
    return {interrupt.id for interrupt in result.interrupts}


def _known(result: Mapping[str, Json]) -> dict[str, Json]:
    """The fields of a result that every program keeps."""
    known = {name: result.get(name) for name in _OF_RESULTS[str(result["type"])]}
    inner = {node: _known(_fields(_fields(each)["result"])) for node, each in _fields(result.get("results")).items()}
    return {**known, "results": cast("Json", inner)}


def _plain(result: Mapping[str, Json]) -> dict[str, Json]:
    """A result with only the known fields in its interrupts: other programs refuse the rest."""
    plain = dict(result)
    if "interrupts" in plain:
        asked = [_fields(each) for each in cast("list[Json]", plain["interrupts"])]
        plain["interrupts"] = [{name: each.get(name) for name in _OF_INTERRUPTS} for each in asked]
    if "result" in plain:
        plain["result"] = _plain(_fields(plain["result"]))
    if "results" in plain:
        plain["results"] = {node: _plain(_fields(each)) for node, each in _fields(plain["results"]).items()}
    return plain


def _notes(document: _ParsedDocument, nodes: Sequence[str], known: Mapping[str, NodeNote]) -> dict[str, NodeNote]:
    """Notes of these nodes; `known`: all notes so far. A node's count of executions never falls: it tells executions
    apart, and the document may not list all of them.
    """
    unnamed = max((note.places.last for note in known.values()), default=0) - sum(len(n.places) for n in known.values())
    places = {node: Places() for node in nodes}
    for position, node in enumerate(document.order, 1 + unnamed):
        if node in places:
            places[node] = places[node].and_then(position)
    handed = (document.following[0], document.words) if document.following and document.words is not None else None
    made: dict[str, NodeNote] = {}
    for node, done in places.items():
        result = document.results[node]
        made[node] = NodeNote(
            stored_result=StoredResult(result),
            status=result.status,
            visits=len(done) + _unnamed(known.get(node)),
            places=done,
            usage=sum_of({}, result.accumulated_usage),
            latency_ms=float(result.accumulated_metrics.get("latencyMs", 0)),
            executions=result.execution_count,
            context=document.context.get(node, {}),
            handed=handed if done.last and document.order[-1] == node else None,
            left=document.waiting[node].agent if node in document.waiting else None,
        )
    return _with_the_rest(made, [note for node, note in known.items() if node not in made], document)


def _unnamed(note: NodeNote | None) -> int:
    """The number of a node's executions whose positions are not stored."""
    return 0 if note is None else note.visits - len(note.places)


def _with_the_rest(
    made: dict[str, NodeNote], stored: Sequence[NodeNote], document: _ParsedDocument
) -> dict[str, NodeNote]:
    """Adds the run's usage beyond each node's latest execution to the node that ran most often."""
    if not made:
        return made
    used: dict[str, int] = {}
    for note in (*made.values(), *stored):
        used = sum_of(used, note.usage)
    busiest = max(made, key=lambda node: made[node].visits)
    note = made[busiest]
    latency_ms = document.latency_ms - sum(each.latency_ms for each in (*made.values(), *stored))
    executions = document.executions - sum(each.executions for each in (*made.values(), *stored))
    rest = {name: max(0, count - used.get(name, 0)) for name, count in document.usage.items()}
    made[busiest] = replace(
        note,
        usage=sum_of(note.usage, rest),
        latency_ms=note.latency_ms + max(0.0, latency_ms),
        executions=note.executions + max(0, executions),
    )
    return made


def _work_done(run: Run) -> list[tuple[str, int]]:
    """Node and position of each finished execution, in order."""
    done: list[tuple[str, int]] = []
    for node, note in run.notes.items():
        done += [(node, position) for position in note.places]
    return sorted(done, key=lambda entry: entry[1])


def _words(run: Run) -> str | None:
    """The message of the last handoff."""
    done = _work_done(run)
    handed = run.notes[done[-1][0]].handed if done else None
    return None if handed is None else handed[1]


class WaitingAgent(Struct, frozen=True, kw_only=True):
    """A waiting node of another program's document."""

    interrupts: tuple[Interrupt, ...]
    agent: Mapping[str, Json] | None = None
    """The agent's fields as in a snapshot; None when it had not begun."""


def waiting_agents(state: Json, visits: Mapping[str, int]) -> dict[str, WaitingAgent]:
    """The waiting nodes that can be resumed, by name. `state`: the document's `interrupt_state`; `visits`: node to the
    number of its finished executions. Errors: `TypeError`, `Invalid`.
    """
    interrupt_state = _fields(state)
    if not interrupt_state.get("activated"):
        return {}
    asked = {one.id: one for one in questions_in(interrupt_state) if one.response is None}
    found: dict[str, WaitingAgent] = {}
    for node, saved in _fields(interrupt_state.get("context")).items():
        if not isinstance(saved, dict) or not ("interrupt_ids" in saved or "activated" in saved):
            continue
        ids = saved.get("interrupt_ids", list(asked))
        interrupts = tuple(asked[each] for each in cast("list[str]", ids) if each in asked)
        begun = not saved["from_hook"] if "from_hook" in saved else bool(saved.get("activated"))
        agent = _agent(saved, visits.get(node, 0)) if begun else None
        if interrupts and (agent is not None or not begun):
            found[node] = WaitingAgent(interrupts=interrupts, agent=agent)
    return found


def _agent(saved: Mapping[str, Json], visit: int) -> Mapping[str, Json] | None:
    """The fields of an agent that waits among its tools; None when it does not."""
    found = map(as_ours_if_message, cast("list[object]", saved.get("messages") or []))
    messages = [repair_stored_message(each) for each in found]
    state = _fields(saved.get("interrupt_state"))
    if not read_state(state, messages[-1] if messages else None).waiting:
        return None
    fields = {
        "type": "agent",
        "messages": messages,
        "state": _fields(saved.get("state")),
        "interrupt_state": state,
        "turn": {"visit": visit, "messages": _of_last_turn(messages)},
    }
    return cast("Mapping[str, Json]", fields)


def _of_last_turn(messages: Sequence[Message]) -> int:
    asks = (
        index for index, message in enumerate(messages) if message["role"] == "user" and not any(tool_results(message))
    )
    return len(messages) - max(asks, default=0)
