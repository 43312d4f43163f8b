"""Questions to a person: their ids, what is asked, what is answered, and which tools wait for it."""

from __future__ import annotations

import copy
import random
import uuid
from functools import partial

import pytest

from repertory.core.interrupts import (
    STEP_SCOPE,
    Interrupt,
    InterruptException,
    Questions,
    agent_prefix,
    held_up,
    hook_scope,
    ids_by_name,
    is_about_outcome,
    marked,
    outcome_id,
    question_id,
    step_mark,
    tool_scope,
)
from repertory.core.messages import ToolUse
from repertory.errors import Invalid

OTHER_USE: ToolUse = {"toolUseId": "another", "name": "x", "input": {}}


def now() -> float:
    return 1000.0


def asked(
    questions: Questions, scope: str, name: str, reason: object = None, expires_s: float | None = None
) -> Interrupt:
    with pytest.raises(InterruptException) as caught:
        questions.ask(scope, name, reason, None, expires_s)
    assert caught.value.interrupts == (caught.value.interrupt,)
    return caught.value.interrupt


def test_ids_are_those_of_the_sdk(rng: random.Random) -> None:
    for _ in range(100):
        name = "".join(chr(rng.randint(1, 0x2FFF)) for _ in range(rng.randint(1, 20)))
        assert question_id("v1:tool_call:t1", name) == f"v1:tool_call:t1:{uuid.uuid5(uuid.NAMESPACE_OID, name)}"


def test_a_question_is_asked_once_and_answered_from_then_on() -> None:
    interrupt = asked(Questions(now), tool_scope("t1"), "approve", {"n": 1}, 60)
    assert interrupt == Interrupt(
        id=question_id("v1:tool_call:t1", "approve"), name="approve", reason={"n": 1}, expires_at=1060.0
    )
    answered = Questions(now, {interrupt.id: {"by": ["Ann"]}})
    first = answered.ask(tool_scope("t1"), "approve", {"n": 2}, "given", None)
    assert first == {"by": ["Ann"]}
    assert isinstance(first, dict)
    first["by"] = "nobody"
    assert answered.ask(tool_scope("t1"), "approve", None, None, None) == {"by": ["Ann"]}
    asked(answered, tool_scope("t2"), "approve")
    asked(answered, hook_scope("t1"), "approve")


def test_asking_the_same_again_is_the_same_question_and_another_reason_is_refused() -> None:
    questions = Questions(now)
    first = asked(questions, STEP_SCOPE, "approve", "a")
    assert asked(questions, STEP_SCOPE, "approve", "a") is first
    with pytest.raises(Invalid, match="two questions have the same name"):
        questions.ask(STEP_SCOPE, "approve", "b", None, None)


def test_only_what_was_asked_here_counts_as_asked() -> None:
    questions = Questions(now)
    interrupt = asked(questions, STEP_SCOPE, "approve")
    assert questions.were_asked([interrupt])
    assert not questions.were_asked([interrupt, copy.copy(interrupt)])


def test_questions_of_somebody_else_are_passed_on_and_their_answers_found() -> None:
    questions, prefix = Questions(now), agent_prefix("a:b/c")
    one, other = (Interrupt(id=f"{prefix}{name}", name=name) for name in "xy")
    passed = questions.pass_on(prefix, [Interrupt(id=name, name=name) for name in "xy"])
    assert passed.interrupts == (one, other)
    assert questions.were_asked(passed.interrupts)
    answered = Questions(now, {one.id: 1, "v1:tool_call:z": 2})
    assert answered.answers_below(prefix) == {"x": 1}


def test_marks_of_inner_and_outer_questions_are_told_apart(rng: random.Random) -> None:
    """At each depth the mark may be missing, as in conversations that programs of the SDK share."""
    for _ in range(100):
        depth = rng.randint(1, 4)
        marks = [step_mark(rng.random()) if rng.random() < 0.7 else "" for _ in range(depth)]
        uses = ["".join(rng.choices("a~%:/7E25", k=rng.randint(1, 8))) for _ in range(depth)]
        interrupt = asked(Questions(now, mark=partial(str, marks[0])), tool_scope(uses[0]), "why")
        ids = [interrupt.id]
        for mark, use_id in zip(marks[1:], uses[1:], strict=True):
            questions = Questions(now, mark=partial(str, mark))
            (interrupt,) = questions.pass_on(agent_prefix(use_id), [interrupt]).interrupts
            ids.append(interrupt.id)
            assert held_up(interrupt, [{"toolUseId": use_id, "name": "x", "input": {}}, OTHER_USE]) == (use_id,)
        for use_id, inner in zip(uses[:0:-1], ids[-2::-1], strict=True):
            assert Questions(now, {ids.pop(): 1}).answers_below(agent_prefix(use_id)) == {inner: 1}


def test_a_question_that_is_known_keeps_its_id_whatever_the_mark_is_now() -> None:
    first = asked(Questions(now, mark=lambda: step_mark(1)), tool_scope("t"), "why")
    assert first.id == marked(question_id(tool_scope("t"), "why"), step_mark(1))
    theirs = Interrupt(id=question_id(hook_scope("t"), "why"), name="why")
    later = Questions(now, known=ids_by_name([first, theirs]), mark=lambda: step_mark(2))
    assert asked(later, tool_scope("t"), "why").id == first.id
    assert asked(later, hook_scope("t"), "why").id == theirs.id
    answered = Questions(now, {first.id: "yes"}, known=ids_by_name([first]), mark=lambda: step_mark(2))
    assert answered.ask(tool_scope("t"), "why", None, None, None) == "yes"


def test_a_question_holds_up_the_tool_that_it_is_about() -> None:
    uses: list[ToolUse] = [{"toolUseId": use_id, "name": "pay", "input": {}} for use_id in ("a", "a:b", "b")]
    for use in uses:
        use_id = use["toolUseId"]
        ids = [question_id(scope, "why") for scope in (tool_scope(use_id), hook_scope(use_id))]
        for interrupt_id in (*ids, f"{agent_prefix(use_id)}v1:tool_call:a:x"):
            assert held_up(Interrupt(id=interrupt_id, name="why"), uses) == (use_id,)
    for unknown in (question_id(STEP_SCOPE, "why"), "v1:middleware_execute_tool:a:x", "anything"):
        assert held_up(Interrupt(id=unknown, name="why"), uses) == ("a", "a:b", "b")


def test_a_question_is_over_when_its_time_has_come() -> None:
    interrupt = Interrupt(id="i", name="n", expires_at=10.0)
    assert [interrupt.is_over(at) for at in (9.9, 10.0, 11.0)] == [False, True, True]
    assert not Interrupt(id="i", name="n").is_over(1e12)


def test_only_a_crash_asks_about_outcomes() -> None:
    assert is_about_outcome(Interrupt(id=outcome_id("t1"), name="unknown_tool_outcome"))
    assert not is_about_outcome(Interrupt(id=question_id(STEP_SCOPE, "why"), name="why"))


def test_the_exception_says_what_is_asked() -> None:
    error = InterruptException(Interrupt(id="i", name="approve"))
    assert str(error) == "a person is asked: approve"
