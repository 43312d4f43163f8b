"""When a run is owed, and when an orchestrator that was woken goes on with it."""

from __future__ import annotations

import pytest

from repertory.core.interrupts import Interrupt
from repertory.core.orchestration.pending_work import due_of_run, run_goes_on
from repertory.core.orchestration.run import Ended, Run
from repertory.core.result import AgentResult
from repertory.core.run_results import NodeOutcome, Status, node_result_of
from repertory.core.turns.due_times import GRACE_S, may_pass
from repertory.errors import ModelFailed, NodeFailed, Throttled

FAILED = ModelFailed("no")


def asks(*expires_at: float | None) -> AgentResult:
    """A node's end with one question for each of these times."""
    questions = [Interrupt(id=str(place), name="may I", expires_at=at) for place, at in enumerate(expires_at)]
    return AgentResult(stop_reason="interrupt", message=None, interrupts=questions)


def run_of(ready: str, **ends: NodeOutcome) -> Run:
    """A run that may start these nodes, after these ends."""
    run = Run()
    run.apply(run.begun("task", tuple(ready), at=0.0, kind="graph"))
    for node, outcome in ends.items():
        result = node_result_of(outcome, 0)
        ended = Ended(result=result, done=result.status is Status.COMPLETED)
        run.apply(run.ended(node, ended, tuple(ready), at=1.0, elapsed_ms=0), result)
    return run


def due(run: Run, call_at: float | None) -> tuple[float | None, str]:
    found = due_of_run("multi_agent.team", run, call_at=call_at)
    assert found.agent_id == "multi_agent.team"
    return found.at, found.why if found.at is not None else ""


NOTHING = (None, "")


@pytest.mark.parametrize(
    ("run", "between_calls", "in_a_call"),
    [
        (Run(), NOTHING, NOTHING),
        (run_of("", a=FAILED), NOTHING, NOTHING),
        (run_of("a"), NOTHING, (50 + GRACE_S, "turn")),
        (run_of("a", a=FAILED), NOTHING, (50 + GRACE_S, "turn")),
        (run_of("a", a=asks(None)), NOTHING, NOTHING),
        (run_of("a", a=asks(90.0)), (90.0, "expiry"), (90.0, "expiry")),
        (run_of("a", a=asks(90.0, 80.0)), (90.0, "expiry"), (90.0, "expiry")),
        (run_of("a", a=asks(90.0, None)), NOTHING, NOTHING),
        (run_of("ab", a=asks(90.0), b=asks(80.0)), (80.0, "expiry"), (80.0, "expiry")),
        (run_of("ab", a=asks(90.0), b=asks(None)), (90.0, "expiry"), (90.0, "expiry")),
        (run_of("ab", a=asks(90.0), b=FAILED), NOTHING, (50 + GRACE_S, "turn")),
        (run_of("a", a=asks(40.0)), (40.0, "expiry"), (50 + GRACE_S, "turn")),
    ],
)
def test_a_run_is_owed_while_a_call_works_on_it_and_when_its_questions_are_over(
    run: Run, between_calls: tuple[float | None, str], in_a_call: tuple[float | None, str]
) -> None:
    assert (due(run, None), due(run, 50.0)) == (between_calls, in_a_call)


def test_a_run_whose_snapshot_was_not_loaded_to_its_end_is_not_owed() -> None:
    run = run_of("a")
    run.loading = True
    assert (due(run, 50.0), run_goes_on(run, 50.0)) == (NOTHING, False)


@pytest.mark.parametrize(
    ("run", "at_40", "at_90"),
    [
        (Run(), False, False),
        (run_of("a"), True, True),
        (run_of("a", a=asks(90.0)), False, True),
        (run_of("ab", a=asks(90.0), b=asks(None)), False, True),
        (run_of("ab", b=asks(None)), True, True),
        (run_of("a", a=asks(90.0, None)), False, False),
    ],
)
def test_a_run_goes_on_when_a_node_may_start(run: Run, at_40: bool, at_90: bool) -> None:
    assert (run_goes_on(run, 40.0), run_goes_on(run, 90.0)) == (at_40, at_90)


def test_an_answered_question_is_waited_for_no_more() -> None:
    run = run_of("a", a=asks(None))
    (question,) = (one.id for one in run.notes["a"].result.interrupts)
    run.apply(run.restated(at=2.0, responses={f"v1:node:a:{question}": "yes"}))
    assert (due(run, 50.0), run_goes_on(run, 50.0)) == ((50 + GRACE_S, "turn"), True)


def test_a_failure_may_pass_as_what_its_innermost_node_failed_with() -> None:
    inner, outer = NodeFailed("inner"), NodeFailed("outer")
    inner.__cause__, outer.__cause__ = Throttled("later"), inner
    assert may_pass(outer)
    inner.__cause__ = FAILED
    assert not may_pass(outer)
    assert not may_pass(NodeFailed("by its hook"))
