"""How a call starts, given where the conversation stands: the three outcomes of a tool call after a crash."""

from __future__ import annotations

from typing import cast

import pytest
from msgspec.structs import replace

from repertory.core.interrupts import STEP_SCOPE, Interrupt, hook_scope, outcome_id, question_id, tool_scope
from repertory.core.journal.pending_tools import PendingTools, Start
from repertory.core.messages import ContentBlock, Json, Message, ToolResult, ToolUse, check_next, tool_results
from repertory.core.turn import Began, Continued
from repertory.core.turns.turn_start import (
    DROPPED_TEXT,
    EXPIRED_TEXT,
    NOT_GONE_ON_TEXT,
    NOT_RUN_TEXT,
    UNKNOWN_TEXT,
    AskPerson,
    InterruptResponses,
    UnknownOutcome,
    UserMessages,
    interrupt_for,
    read_prompt,
    start_turn,
)
from repertory.errors import InterruptExpired, InterruptsWaiting, Invalid, NotFound

SAID: Message = {"role": "user", "content": [{"text": "pay the bill"}]}
ANSWER: Message = {"role": "assistant", "content": [{"text": "paid"}]}
USES: tuple[ToolUse, ...] = tuple(
    cast("ToolUse", {"toolUseId": use_id, "name": "pay", "input": {"n": 1}}) for use_id in ("done", "unknown", "fresh")
)
ASKING: Message = {"role": "assistant", "content": [{"toolUse": use} for use in USES]}
DONE: ToolResult = {"toolUseId": "done", "status": "success", "content": [{"text": "ok"}]}
CRASHED = PendingTools(last=ASKING, started=frozenset({"done", "unknown"}), finished={"done": DONE})


def always(outcome: UnknownOutcome) -> UnknownOutcome:
    return outcome


def prompt(text: str | None) -> UserMessages:
    said = read_prompt(text)
    assert isinstance(said, UserMessages)
    return said


def test_a_prompt_after_an_answer_begins_a_turn() -> None:
    assert start_turn(PendingTools(last=ANSWER), prompt("again"), lambda use: "ask") == Began(
        messages=({"role": "user", "content": [{"text": "again"}]},)
    )


def test_going_on_after_an_unanswered_message_asks_the_model_without_storing_anything() -> None:
    assert start_turn(PendingTools(last=SAID), prompt(None), lambda use: "ask") == Began(messages=())


def test_a_prompt_after_an_unanswered_message_says_that_it_was_not_answered() -> None:
    """Our decision: providers refuse two user messages in a row, and an edit would falsify the history."""
    opening = start_turn(PendingTools(last=SAID), prompt("hello?"), lambda use: "ask")
    assert isinstance(opening, Began)
    assert [message["role"] for message in opening.messages] == ["assistant", "user"]


@pytest.mark.parametrize("last", [None, ANSWER])
def test_there_must_be_something_to_go_on_from(last: Message | None) -> None:
    with pytest.raises(Invalid):
        start_turn(PendingTools(last=last), prompt(None), lambda use: "ask")


def test_a_finished_tool_keeps_its_recorded_result_and_one_that_never_started_runs() -> None:
    opening = start_turn(CRASHED, prompt(None), lambda use: "retry")
    assert opening == Continued(uses=USES, known={"done": DONE})


def test_an_unknown_outcome_is_asked_about_by_default() -> None:
    opening = start_turn(CRASHED, prompt(None), lambda use: "ask")
    assert opening == AskPerson(interrupts=(interrupt_for(USES[1], outcome_id(USES[1]["toolUseId"])),))


def test_an_unknown_outcome_may_be_reported_to_the_model_as_failed() -> None:
    opening = start_turn(CRASHED, prompt(None), lambda use: "fail")
    assert isinstance(opening, Continued)
    assert opening.known["unknown"]["status"] == "error"
    assert "fresh" not in opening.known


def test_a_question_about_an_unknown_outcome_that_was_cancelled_runs_nothing_again() -> None:
    (question,) = start_turn(CRASHED, prompt(None), lambda use: "ask").interrupts  # type: ignore[union-attr]
    opening = start_turn(CRASHED, InterruptResponses(responses={question.id: False}), lambda use: "ask")
    assert isinstance(opening, Continued)
    assert opening.known["unknown"]["status"] == "error"


def test_a_new_prompt_closes_open_tools_without_running_any() -> None:
    opening = start_turn(CRASHED, prompt("forget it"), lambda use: "retry")
    assert isinstance(opening, Began)
    check_next(ASKING, opening.messages[0])
    texts = [
        part["text"]
        for block in opening.messages[0]["content"]
        if "toolResult" in block
        for part in block["toolResult"]["content"]
    ]
    assert texts == ["ok", UNKNOWN_TEXT, NOT_RUN_TEXT]
    assert opening.messages[0]["content"][-1] == {"text": "forget it"}


@pytest.mark.parametrize(
    ("response", "known"),
    [
        ("retry", None),
        ("fail", {"toolUseId": "unknown", "status": "error", "content": [{"text": UNKNOWN_TEXT}]}),
        (
            {"result": "it went through"},
            {"toolUseId": "unknown", "status": "success", "content": [{"text": "it went through"}]},
        ),
    ],
)
def test_a_person_decides_about_an_unknown_outcome(response: object, known: ToolResult | None) -> None:
    answers = read_prompt(
        [
            {
                "interruptResponse": {
                    "interruptId": outcome_id("unknown"),
                    "response": response,
                }
            }
        ]
    )
    assert isinstance(answers, InterruptResponses)
    opening = start_turn(CRASHED, answers, lambda use: "ask")
    assert isinstance(opening, Continued)
    assert opening.known.get("unknown") == known


def test_an_answer_to_an_interrupt_that_nobody_raised_is_refused() -> None:
    with pytest.raises(NotFound):
        start_turn(CRASHED, InterruptResponses(responses={"zz": "retry"}), lambda use: "ask")


@pytest.mark.parametrize(
    "bad", ["", "   ", 7, [], [1], [{"text": "a"}, {"role": "user", "content": [{"text": "b"}]}], {"text": "x"}]
)
def test_a_prompt_of_no_known_form_is_refused(bad: object) -> None:
    with pytest.raises(Invalid):
        read_prompt(bad)


def test_content_blocks_are_one_user_message() -> None:
    blocks: list[ContentBlock] = [{"text": "a"}, {"text": "b"}]
    assert read_prompt(blocks) == UserMessages(messages=({"role": "user", "content": blocks},))


# Questions that tools and hooks have asked.

APPROVE = Interrupt(id=question_id(tool_scope("fresh"), "approve"), name="approve", expires_at=10.0)
WIPE = Interrupt(id=question_id(hook_scope("unknown"), "wipe"), name="wipe")
STEP = Interrupt(id=question_id(STEP_SCOPE, "all"), name="all")
PARKED = PendingTools(last=ASKING, finished={"done": DONE}, starts={"fresh": Start(1)}, questions=(APPROVE, WIPE))


def answers(**responses: Json) -> InterruptResponses:
    ids = {"approve": APPROVE.id, "wipe": WIPE.id, "step": STEP.id, "outcome": outcome_id("unknown")}
    return InterruptResponses(responses={ids[name]: response for name, response in responses.items()})


def ask(use: ToolUse) -> UnknownOutcome:
    return "ask"


def texts_of(opening: object) -> dict[str, object]:
    """Tool use id to the text that its result is known to have."""
    if isinstance(opening, Continued):
        return {use_id: result["content"][0]["text"] for use_id, result in opening.known.items()}
    assert isinstance(opening, Began)
    check_next(ASKING, opening.messages[0])
    return {result["toolUseId"]: result["content"][0]["text"] for result in tool_results(opening.messages[0])}


def test_nothing_goes_on_before_the_last_answer() -> None:
    assert start_turn(PARKED, prompt(None), ask) == AskPerson(interrupts=(APPROVE, WIPE))
    assert start_turn(PARKED, answers(wipe="yes"), ask) == AskPerson(interrupts=(APPROVE,))
    half = PARKED.answered(answers(wipe="yes").responses)
    assert half.waiting == (APPROVE,)
    assert start_turn(half, answers(approve="yes"), ask) == Continued(uses=USES, known={"done": DONE})
    whole = half.answered(answers(approve="yes").responses)
    assert start_turn(whole, prompt(None), ask) == Continued(uses=USES, known={"done": DONE})


def test_a_prompt_waits_for_the_answers_and_names_them() -> None:
    with pytest.raises(InterruptsWaiting) as caught:
        start_turn(PARKED.answered(answers(wipe="yes").responses), prompt("hello?"), ask)
    assert caught.value.fields["waiting"] == {APPROVE.id: "approve"}
    assert isinstance(caught.value, TypeError)


def test_a_prompt_moves_on_when_asked_to() -> None:
    opening = start_turn(PARKED, prompt("never mind"), ask, drop=True)
    assert texts_of(opening) == {"done": "ok", "unknown": DROPPED_TEXT, "fresh": DROPPED_TEXT}


def test_answers_that_came_are_used_when_the_others_are_dropped() -> None:
    opening = start_turn(PARKED, answers(wipe="yes"), ask, drop=True)
    assert texts_of(opening) == {"done": "ok", "fresh": DROPPED_TEXT}
    assert isinstance(opening, Continued)


def test_what_has_its_answer_and_did_not_go_on_says_so_when_the_caller_moves_on() -> None:
    answered = PARKED.answered(answers(approve="yes", wipe="yes").responses)
    assert texts_of(start_turn(answered, prompt("leave it"), ask)) == {
        "done": "ok",
        "unknown": NOT_RUN_TEXT,
        "fresh": NOT_GONE_ON_TEXT,
    }


def test_a_question_that_is_over_does_not_hold_the_turn_up() -> None:
    assert start_turn(PARKED, answers(wipe="yes"), ask, now=9.9) == AskPerson(interrupts=(APPROVE,))
    opening = start_turn(PARKED, answers(wipe="yes"), ask, now=10.0)
    assert texts_of(opening) == {"done": "ok", "fresh": EXPIRED_TEXT}
    alone = replace(PARKED, questions=(APPROVE,))
    assert texts_of(start_turn(alone, prompt(None), ask, now=10.0)) == {"done": "ok", "fresh": EXPIRED_TEXT}
    assert texts_of(start_turn(alone, prompt("and?"), ask, now=10.0))["fresh"] == EXPIRED_TEXT


def test_a_late_answer_is_refused_and_takes_the_others_with_it() -> None:
    with pytest.raises(InterruptExpired):
        start_turn(PARKED, answers(approve="yes", wipe="yes"), ask, now=10.0)
    in_time = PARKED.answered(answers(approve="yes").responses)
    again = start_turn(in_time, answers(approve="yes", wipe="yes"), ask, now=10.0)
    assert texts_of(again) == {"done": "ok"}


def test_another_answer_to_what_is_answered_is_refused() -> None:
    with pytest.raises(Invalid, match="another answer already"):
        start_turn(PARKED.answered(answers(wipe="yes").responses), answers(wipe="no"), ask)


def test_a_question_about_the_step_holds_up_all_that_has_no_result() -> None:
    standing = PendingTools(last=ASKING, finished={"done": DONE}, questions=(STEP,))
    opening = start_turn(standing, prompt(None), ask, drop=True)
    assert texts_of(opening) == {"done": "ok", "unknown": DROPPED_TEXT, "fresh": DROPPED_TEXT}


def test_questions_and_unknown_outcomes_wait_beside_each_other() -> None:
    standing = replace(CRASHED, questions=(APPROVE,))
    outcome = interrupt_for(USES[1], outcome_id(USES[1]["toolUseId"]))
    assert start_turn(standing, prompt(None), ask) == AskPerson(interrupts=(APPROVE, outcome))
    told = replace(standing, questions=(APPROVE, outcome))
    assert start_turn(told, answers(outcome="fail"), ask) == AskPerson(interrupts=(APPROVE,))
    kept = told.answered(answers(outcome="fail").responses)
    opening = start_turn(kept, answers(approve="yes"), ask)
    assert texts_of(opening) == {"done": "ok", "unknown": UNKNOWN_TEXT}
    with pytest.raises(InterruptsWaiting):
        start_turn(told, prompt("hello?"), ask)
    dropped = start_turn(told, prompt("never mind"), ask, drop=True)
    assert texts_of(dropped) == {"done": "ok", "unknown": UNKNOWN_TEXT, "fresh": DROPPED_TEXT}


def test_only_the_questions_of_tools_hold_a_prompt_up() -> None:
    """A prompt moves on from unknown outcomes, as after any crash."""
    told = replace(CRASHED, questions=(interrupt_for(USES[1], outcome_id(USES[1]["toolUseId"])),))
    assert isinstance(start_turn(told, prompt("leave it"), ask), Began)


def test_an_answer_about_an_outcome_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(Invalid, match="an unknown tool outcome is answered with"):
        start_turn(CRASHED, answers(outcome="perhaps"), ask)
