"""Runs of orchestrators as documents that others read and write: what they say, and what is made of theirs."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from repertory.core.interrupts import Interrupt
from repertory.core.journal.records import NodeChanged
from repertory.core.message_tree.documents import read_run_file, run_file
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.plan import frontier_of
from repertory.core.orchestration.run import Ended, Run, leading_to
from repertory.core.result import AgentResult, StepMetrics, TurnMetrics
from repertory.core.run_results import MultiAgentResult, NodeOutcome, NodeResult, Status, node_result_of
from repertory.errors import Corrupt, Failed

NODES = ("a", "b", "c", "d")
TASKS: Sequence[Any] = (
    "Do it",
    "",
    [{"text": "Look"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG\xff"}}}],
)


def said(text: str, tokens: int = 3) -> AgentResult:
    usage: Any = {"inputTokens": tokens, "outputTokens": 1, "totalTokens": tokens + 1}
    step = StepMetrics(usage=usage, latency_ms=tokens, duration_s=1.0, attempts=1)
    message: Any = {"role": "assistant", "content": [{"text": text}]}
    return AgentResult(stop_reason="end_turn", message=message, metrics=TurnMetrics(cycles=(step,), duration_s=1.0))


def outcome(rng: random.Random) -> NodeOutcome:
    text = f"said {rng.random()}"
    if rng.random() < 0.2:
        return Failed(text)
    if rng.random() < 0.3:
        inner = node_result_of(said(text), 4)
        return MultiAgentResult(status=Status.COMPLETED, results={"inner": inner}, execution_count=1)
    return said(text, rng.randrange(9))


def worked(rng: random.Random, *, ends: int, kind: Any = None) -> Run:
    """A run in which that many nodes have ended, some of them several times."""
    run = Run()
    kind = kind or rng.choice(["graph", "swarm"])
    record = run.begun(rng.choice(TASKS), ("a",), at=1.0, kind=kind, tokens=rng.choice([(), ("t",), ("t", "u")]))
    run.apply(record)
    for end in range(ends):
        node = rng.choice(NODES)
        frontier = tuple(rng.sample(NODES, rng.randrange(1 if end < ends - 1 else 0, 4)))
        if kind == "swarm":
            frontier = frontier[:1]
        context: Any = {"note": end} if kind == "swarm" and rng.random() < 0.5 else {}
        handed = (frontier[0], f"words {end}") if kind == "swarm" and frontier else None
        done = Ended(result=node_result_of(outcome(rng), end), context=context, handed=handed)
        record = run.ended(node, done, frontier, at=2.0 + end, elapsed_ms=10 * end)
        ready = tuple(each for each in frontier if each in run.notes or each == node or rng.random() < 0.7)
        ready = ready or frontier[:1]
        record = leading_to(record, frontier, ready)
        run.apply(record)
    return run


def through_a_file(run: Run) -> Mapping[str, Any]:
    """What somebody else reads."""
    return read_run_file(run_file(run, "default_graph"), "default_graph").document


def read_back(run: Run, before: Run | None = None) -> tuple[Run, list[NodeChanged]]:
    known = before if before is not None else Run()
    records = records_from(through_a_file(run), known, at=9.0)
    for record in records:
        known.apply(record)
    return known, records


def plainly(run: Run) -> dict[str, object]:
    document = document_of(run, "x")
    for name in ("completed_nodes", "failed_nodes", "interrupted_nodes"):
        document[name] = sorted(cast("list[str]", document.get(name, [])))
    if run.kind == "swarm" and not run.frontier:  # Nobody is told any more.
        cast("dict[str, object]", document["context"])["handoff_message"] = None
    return document


@pytest.mark.parametrize("kind", ["graph", "swarm"])
def test_what_a_document_can_say_of_a_run_is_read_back(rng: random.Random, kind: Any) -> None:
    for _ in range(150):
        run = worked(rng, ends=rng.randrange(1, 9), kind=kind)
        if rng.random() < 0.2 and run.frontier:
            run.apply(run.stopped("Max node executions reached: 3", at=9.0, elapsed_ms=90))
        again, _ = read_back(run)
        assert plainly(again) == plainly(run)
        assert (again.task, again.ready, again.status, again.over) == (run.task, run.ready, run.status, run.over)
        assert {node: str(result) for node, result in again.results.items()} == {
            node: str(result) for node, result in run.results.items()
        }
        assert [again.usage, again.latency_ms, again.elapsed_ms] == [run.usage, run.latency_ms, run.elapsed_ms]


def test_the_records_of_a_run_amount_to_it_in_whatever_order_they_are_kept(rng: random.Random) -> None:
    """A journal keeps the latest word on each node, and the frontier of the last one."""
    for _ in range(50):
        run, kept, frontier = Run(), dict[str, NodeChanged](), ()
        for record in records_from(through_a_file(worked(rng, ends=5)), run, at=1.0):
            kept[record.node], frontier = record, record.frontier
            run.apply(record)
        assert plainly(Run.of(kept.values(), frontier)) == plainly(run)


def test_a_document_that_says_nothing_new_leads_to_no_records(rng: random.Random) -> None:
    """Also where the journal knows more: what waits, who used what, what a node asked."""
    seen = 0
    while seen < 40:
        run = worked(rng, ends=rng.randrange(1, 6))
        if run.over:
            continue
        seen += 1
        before = json.dumps(document_of(run, "x"), default=repr)
        assert read_back(run, run)[1] == []
        assert json.dumps(document_of(run, "x"), default=repr) == before


def test_a_run_that_others_have_gone_on_with_is_the_same_run() -> None:
    ours = Run()
    ours.apply(ours.begun("Do it", ("a",), at=1.0, kind="graph", tokens=("mine",)))
    record = ours.ended("a", Ended(result=node_result_of(said("A"), 5)), (), at=2.0, elapsed_ms=5)
    ours.apply(leading_to(record, ("b", "join"), ("b",)))
    document = {**through_a_file(ours)}
    b = node_result_of(said("B"), 6).to_dict()
    document |= {
        "status": "failed",
        "execution_order": ["a", "b"],
        "completed_nodes": ["b", "a"],
        "node_results": {**cast("dict[str, Any]", document["node_results"]), "b": b},
        "next_nodes_to_execute": ["c"],
    }
    records = records_from(document, ours, at=3.0)
    assert [record.node for record in records] == ["b"]
    for record in records:
        ours.apply(record)
    assert (ours.number, ours.tokens, ours.order) == (1, ("mine",), ("a", "b"))
    assert ours.frontier == ("c", "join"), "what waited still waits"
    assert frontier_of(ours.frontier).at_rest == ("c", "join")


def test_a_run_that_others_have_begun_is_the_next_one(rng: random.Random) -> None:
    for task, over in (("Another", False), ("Do it", True)):
        ours = Run()
        ours.apply(ours.begun("Do it", ("a",), at=1.0, kind="graph", tokens=("mine",)))
        done = Ended(result=node_result_of(said("A"), 5))
        ours.apply(ours.ended("a", done, () if over else ("b",), at=2.0, elapsed_ms=5))
        theirs = Run()
        theirs.apply(theirs.begun(task, ("a",), at=1.0, kind="graph"))
        theirs.apply(theirs.ended("a", done, ("b",), at=2.0, elapsed_ms=5))
        read_back(theirs, ours)
        assert (ours.number, ours.tokens, ours.task, ours.frontier) == (2, (), task, ("b",))
        assert ours.status is Status.EXECUTING


def test_a_node_that_others_left_waiting_owes_its_work() -> None:
    asked = node_result_of(said("?"), 5).to_dict()
    asked |= {"status": "interrupted", "interrupts": [{"id": "i", "name": "n", "reason": None, "response": None}]}
    document = {
        **document_of(worked(random.Random(1), ends=0, kind="graph"), "x"),
        "status": "interrupted",
        "interrupted_nodes": ["a"],
        "node_results": {"a": asked},
        "next_nodes_to_execute": ["a"],
    }
    run = Run()
    for record in records_from(cast("Any", document), run, at=1.0):
        run.apply(record)
    assert (run.frontier, run.status, run.notes) == (("a",), Status.EXECUTING, {})


def test_a_node_that_asked_here_still_waits_when_others_have_changed_nothing() -> None:
    run = Run()
    run.apply(run.begun("Do it", ("a",), at=1.0, kind="graph"))
    asking = NodeResult(result=said("?"), status=Status.INTERRUPTED, interrupts=(Interrupt(id="i", name="n"),))
    run.apply(run.ended("a", Ended(result=asking), ("a",), at=2.0, elapsed_ms=5))
    assert run.status is Status.INTERRUPTED
    assert read_back(run, run)[1] == []
    assert run.status is Status.INTERRUPTED


def test_a_run_that_was_mended_after_a_failure_is_completed() -> None:
    """Others go on calling it failed."""
    run = Run()
    run.apply(run.begun("Do it", ("a",), at=1.0, kind="graph"))
    run.apply(run.ended("a", Ended(result=node_result_of(said("A"), 5)), (), at=2.0, elapsed_ms=5))
    document = {**through_a_file(run), "status": "failed", "failed_nodes": ["a"]}
    again = Run()
    for record in records_from(document, again, at=1.0):
        again.apply(record)
    assert again.status is Status.COMPLETED


def test_a_document_that_was_only_prepared_is_no_run() -> None:
    document = {**document_of(Run(), "x"), "status": "pending"}
    assert records_from(cast("Any", document), Run(), at=1.0) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "choir"),
        ("status", "bored"),
        ("current_task", ["words"]),
        ("current_task", 7),
        ("node_results", {"a": {"result": {"type": "agent_result", "stop_reason": "end_turn", "message": "words"}}}),
        ("node_results", {"a": {"result": None}}),
        ("node_results", ["a"]),
        ("execution_order", "ab"),
        ("next_nodes_to_execute", 3),
        ("next_nodes_to_execute", [""]),
        ("accumulated_usage", 3),
        ("accumulated_metrics", {"latencyMs": "long"}),
    ],
)
def test_what_is_no_such_document_is_refused(name: str, value: object) -> None:
    document = {**through_a_file(worked(random.Random(3), ends=3, kind="graph")), name: value}
    with pytest.raises(Corrupt):
        records_from(cast("Any", document), Run(), at=1.0)


def test_interrupts_have_the_fields_that_everybody_knows() -> None:
    """Others refuse a document with any more, at whatever depth."""
    question = Interrupt(id="i", name="n", reason="why", expires_at=9.0)
    inner = NodeResult(result=said("?"), status=Status.INTERRUPTED, interrupts=(question,))
    team = MultiAgentResult(status=Status.INTERRUPTED, results={"inner": inner}, interrupts=(question,))
    run = Run()
    run.apply(run.begun("Do it", ("team",), at=1.0, kind="graph"))
    run.apply(run.ended("team", Ended(result=node_result_of(team, 5)), ("team",), at=2.0, elapsed_ms=5))
    results: Any = document_of(run, "x")["node_results"]
    known = {"id": "i", "name": "n", "reason": "why", "response": None}
    assert results["team"]["interrupts"] == [known]
    assert results["team"]["result"]["interrupts"] == [known]
    assert results["team"]["result"]["results"]["inner"]["interrupts"] == [known]
