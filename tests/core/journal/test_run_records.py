"""A run is what its records say: restored, it equals the one that made them, wherever it is cut off."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, cast

import pytest
from msgspec.structs import replace

from repertory.core.interrupts import Interrupt
from repertory.core.journal.codec import decode, encode
from repertory.core.journal.fold import Fold
from repertory.core.journal.pending_tools import nodes_again, standing_records
from repertory.core.journal.records import NodeChanged
from repertory.core.journal.rows import VERSION
from repertory.core.orchestration.calls import BeginRun, GoOn, Replay, decide_call
from repertory.core.orchestration.run import RUN, Ended, Run, leading_to
from repertory.core.result import AgentResult, StepMetrics, TurnMetrics
from repertory.core.run_results import MultiAgentResult, NodeResult, Status, node_fields, node_result_of
from repertory.core.turns.turn_start import read_prompt
from repertory.errors import (
    Corrupt,
    CorruptJournal,
    InterruptExpired,
    InterruptNotFound,
    InterruptsWaiting,
    Invalid,
    NodeFailed,
    NotFound,
    RunUnfinished,
)

NODES = ("a", "b", "c")


def answer(rng: random.Random, text: str) -> AgentResult:
    usage: Any = {"inputTokens": rng.randint(1, 9), "outputTokens": rng.randint(1, 9), "totalTokens": 18}
    step = StepMetrics(usage=usage, latency_ms=float(rng.randint(0, 9)), duration_s=0.5, attempts=1)
    content: Any = [{"text": text}, {"image": {"format": "png", "source": {"bytes": b"\x89"}}}]
    message: Any = {"role": "assistant", "content": content}
    return AgentResult(stop_reason="end_turn", message=message, metrics=TurnMetrics(cycles=(step,), duration_s=0.5))


def some_result(rng: random.Random) -> NodeResult:
    match rng.randint(0, 4):
        case 0:
            return node_result_of(NodeFailed("no", node="x"), 5)
        case 1:
            question = Interrupt(id=f"i{rng.random()}", name="ask", reason={"n": 1}, expires_at=rng.choice([None, 9.0]))
            return node_result_of(AgentResult(stop_reason="interrupt", message=None, interrupts=(question,)), 5)
        case 2:
            inner = {"x": node_result_of(answer(rng, "inner"), 3)}
            usage: Any = inner["x"].accumulated_usage
            nested = MultiAgentResult(
                status=Status.COMPLETED, results=inner, accumulated_usage=usage, execution_count=1, reason="why"
            )
            return node_result_of(nested, 4)
        case _:
            return node_result_of(answer(rng, "fine"), 2)


def seen(run: Run) -> dict[str, Any]:
    """Everything that can be seen of a run, as JSON where JSON is what is kept."""
    return {
        "number": run.number,
        "task": run.task,
        "begun": run.begun_at,
        "edges": run.edges,
        "tokens": run.tokens,
        "frontier": run.frontier,
        "status": run.status,
        "order": run.order,
        "ends": run.ends,
        "usage": run.usage,
        "latency": run.latency_ms,
        "executions": run.executions,
        "elapsed": run.elapsed_ms,
        "reason": run.reason,
        "responses": run.responses,
        "notes": {node: (note.visits, note.context, note.handed) for node, note in run.notes.items()},
        "results": {node: {**said(result)} for node, result in run.results.items()},
    }


def said(result: NodeResult) -> dict[str, Any]:
    """An error comes back as another class of error."""
    found: dict[str, Any] = node_fields(result, "stored")
    if found["result"]["type"] == "exception":
        found["result"].pop("cause")
    return found


def test_a_run_that_is_restored_equals_the_one_that_was_live(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        run, fold = Run(), Fold()
        for seq in range(1, rng.randint(2, 26)):
            record, result = step(rng, run)
            run.apply(record, result)
            kind, body = encode(record)
            fold.apply(seq, decode(kind, VERSION, body))
            image = fold.image()
            restored = Run.of(image.nodes.values(), image.frontier)
            assert seen(restored) == seen(run), seed
            assert seen(Run.of(run.records(at=1.0), run.frontier)) == seen(run), seed
            assert seen(Run.of(restored.records(at=1.0), run.frontier)) == seen(run), seed


def test_a_run_that_is_gone_back_in_says_what_may_begin() -> None:
    run, fold, seq = Run(), Fold(), 0
    ended = Ended(result=node_result_of(NodeFailed("no", node="x"), 5))
    for node, owing, ready in ((RUN, "a", "a"), ("a", "bc", "b"), ("b", "ac", "a"), ("a", "c", "c")):
        if node == RUN:
            record = run.begun("Go", ("a",), at=1.0, kind="graph")
        else:
            record = leading_to(run.ended(node, ended, (), at=1.0, elapsed_ms=0), tuple(owing), tuple(ready))
        run.apply(record)
        fold.apply(seq := seq + 1, record)
    for records in (standing_records(fold, 2.0), nodes_again(fold, 2, 2.0)):
        again = Run.of(cast("Iterator[NodeChanged]", records), fold.frontier)
        assert (again.frontier, again.ready) == (run.frontier, run.ready) == (("c",), ("c",))


def test_a_run_that_came_with_half_a_snapshot_is_not_gone_on_with() -> None:
    run = unfinished()
    run.loading = True
    run = Run.of(run.records(at=1.0), run.frontier)
    task: Any = run.task
    for said, resume in (("Go", None), (task, None), (None, None), (None, True)):
        with pytest.raises(RunUnfinished, match="load it again"):
            decide_call(run, read_prompt(said), now=1.0, resume=resume)
    assert isinstance(decide_call(run, read_prompt("Go"), now=1.0, resume=False), BeginRun)


def step(rng: random.Random, run: Run) -> tuple[NodeChanged, NodeResult | None]:
    at, elapsed = float(rng.randint(1, 99)), run.elapsed_ms + rng.randint(0, 9)
    some = tuple(node for node in NODES if rng.random() < 0.6)
    chance = rng.random()
    if not run.number or chance < 0.1:
        task: Any = rng.choice(["Go", [{"text": "Look"}, {"image": {"source": {"bytes": b"x"}}}]])
        tokens, edges = rng.choice([(), ("t",), ("t", "u")]), rng.choice([{}, {"a": ("b", "c"), "b": ("c",)}])
        return run.begun(task, some or ("a",), at=at, kind="graph", tokens=tokens, edges=edges), None
    if chance < 0.15:
        return run.stopped("too long", at=at, elapsed_ms=elapsed), None
    if chance < 0.2:
        return run.restated(at=at, responses={f"q{rng.randint(0, 3)}": "yes"}, elapsed_ms=elapsed), None
    result = some_result(rng)
    handed = ("b", "yours") if rng.random() < 0.3 else None
    done = rng.random() < 0.7
    end = Ended(result=result, done=done, context={"k": rng.randint(0, 3)} if rng.random() < 0.3 else {}, handed=handed)
    return run.ended(rng.choice(NODES), end, some, at=at, elapsed_ms=elapsed), result


def test_a_record_that_nobody_wrote_is_refused() -> None:
    for data in ({}, {"task": "x", "elapsed_ms": "soon"}, {"task": "x", "edges": {"a": "b"}}):
        with pytest.raises(CorruptJournal):
            Run().apply(NodeChanged(at=1.0, run=1, node=RUN, status="started", data=data))  # type: ignore[arg-type]
    run, odd = unfinished(), NodeChanged(at=1.0, run=1, node="a", status="completed")
    with pytest.raises(CorruptJournal):
        run.apply(odd)
    data: Any = {"visits": 1, "places": [1], "usage": {}, "latency_ms": 0.0, "executions": 1}
    run.apply(replace(odd, data=data, result={"result": {"type": "odd"}}))
    with pytest.raises(Corrupt):
        str(run.results["a"])


def unfinished(*questions: Interrupt) -> Run:
    """A run that owes work; when it asks something, that is all it waits for."""
    run = Run()
    run.apply(run.begun("Go", ("a",), at=1.0, kind="graph", tokens=("t",)))
    if questions:
        result = node_result_of(AgentResult(stop_reason="interrupt", message=None, interrupts=questions), 1)
        run.apply(run.ended("a", Ended(result=result, done=False), ("a",), at=2.0, elapsed_ms=1), result)
    return run


def unnamed() -> Run:
    """An unfinished run that nobody has named."""
    run = Run()
    run.apply(run.begun("Go", ("a",), at=1.0, kind="graph"))
    return run


def over() -> Run:
    run = unfinished()
    result = node_result_of(AgentResult(stop_reason="end_turn", message=None), 1)
    run.apply(run.ended("a", Ended(result=result), (), at=2.0, elapsed_ms=1), result)
    return run


QUESTION = Interrupt(id="q", name="ok?", expires_at=10.0)
ANSWER = [{"interruptResponse": {"interruptId": "q", "response": "yes"}}]
BY_ITS_ID = [{"interruptResponse": {"interruptId": "v1:node:a:q", "response": "yes"}}]


@pytest.mark.parametrize(
    ("run", "prompt", "options", "expected"),
    [
        (Run(), "Go", {}, BeginRun("Go")),
        (Run(), [{"text": "Go"}], {}, BeginRun("Go")),
        (over(), "Go", {}, BeginRun("Go")),
        (over(), "Go", {"token": "t"}, Replay(1)),
        (over(), "Go", {"token": "t", "resume": False}, BeginRun("Go")),
        (unfinished(), "Go", {}, GoOn()),
        (unfinished(), None, {}, GoOn()),
        (unfinished(), "Else", {"resume": True}, GoOn()),
        (unfinished(), "Else", {"resume": False}, BeginRun("Else")),
        (unfinished(), "Else", {"token": "t"}, GoOn()),
        (unfinished(), None, {"token": "t"}, GoOn()),
        (unfinished(), None, {"token": "another"}, NotFound),
        (unfinished(), None, {"token": "another", "resume": True}, GoOn(token="another")),
        (unnamed(), None, {"token": "another"}, NotFound),
        (unnamed(), "Go", {"token": "another"}, GoOn(token="another")),
        (over(), None, {"token": "another"}, NotFound),
        (unfinished(), "Go", {"token": "another"}, RunUnfinished),
        (unfinished(), "Go", {"token": "another", "resume": True}, GoOn(token="another")),
        (unfinished(QUESTION), ANSWER, {"token": "new"}, GoOn(answers={"a": {"v1:node:a:q": "yes"}}, token="new")),
        (over(), ANSWER, {"token": "t"}, Replay(1)),
        (unfinished(QUESTION), None, {}, GoOn()),
        (unfinished(QUESTION), ANSWER, {}, GoOn(answers={"a": {"v1:node:a:q": "yes"}})),
        (unfinished(QUESTION), BY_ITS_ID, {}, GoOn(answers={"a": {"v1:node:a:q": "yes"}})),
        (unfinished(QUESTION), "Go", {"now": 10.0}, GoOn(expired=frozenset("a"))),
        (Run(), None, {}, Invalid),
        (over(), None, {}, Invalid),
        (over(), "Go", {"resume": True}, Invalid),
        (unfinished(), None, {"resume": False}, Invalid),
        (unfinished(), "Else", {}, RunUnfinished),
        (unfinished(QUESTION), "Go", {}, InterruptsWaiting),
        (unfinished(QUESTION), "Else", {}, InterruptsWaiting),
        (unfinished(QUESTION), ANSWER, {"now": 10.0}, InterruptExpired),
        (unfinished(), ANSWER, {}, InterruptNotFound),
        (over(), ANSWER, {}, InterruptNotFound),
    ],
    ids=[
        "none",
        "none, blocks",
        "over",
        "over, its token",
        "over, its token, another run",
        "unfinished, its task",
        "unfinished, nothing",
        "unfinished, going on",
        "unfinished, given up",
        "unfinished, its token",
        "unfinished, nothing and its token",
        "unfinished, nothing and another token",
        "unfinished, nothing and another token, going on",
        "unnamed, nothing and a token",
        "unnamed, its task and a token",
        "over, nothing and another token",
        "unfinished, another token",
        "unfinished, another token, going on",
        "waiting, answers and a token",
        "over, answers and its token",
        "waiting, nothing",
        "waiting, answers",
        "waiting, answers by its id",
        "waiting, too late",
        "none, nothing",
        "over, nothing",
        "over, going on",
        "unfinished, given up for nothing",
        "unfinished, another task",
        "waiting, a task",
        "waiting, another task",
        "waiting, answers too late",
        "unfinished, answers",
        "over, answers",
    ],
)
def test_a_call_goes_on_with_a_run_or_begins_one_and_never_drops_a_task(
    run: Run, prompt: Any, options: dict[str, Any], expected: Any
) -> None:
    if isinstance(expected, type):
        with pytest.raises(expected):
            decide_call(run, read_prompt(prompt), **{"now": 5.0, **options})
    else:
        assert decide_call(run, read_prompt(prompt), **{"now": 5.0, **options}) == expected
