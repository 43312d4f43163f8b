"""How a call starts, given where the conversation stands: the three outcomes of a tool call after a crash."""

from __future__ import annotations

from typing import cast

import pytest

from repertory.core.messages import ContentBlock, Message, ToolResult, ToolUse
from repertory.core.opening import NOT_RUN_TEXT, UNKNOWN_TEXT, Ask, Standing, UnknownOutcome, interrupt_for, open_turn
from repertory.core.pairing import check_next
from repertory.core.prompt import Answers, Said, read_prompt
from repertory.core.turn import Began, Continued
from repertory.errors import Invalid, NotFound

SAID: Message = {"role": "user", "content": [{"text": "pay the bill"}]}
ANSWER: Message = {"role": "assistant", "content": [{"text": "paid"}]}
USES: tuple[ToolUse, ...] = tuple(
    cast("ToolUse", {"toolUseId": use_id, "name": "pay", "input": {"n": 1}}) for use_id in ("done", "unknown", "fresh")
)
ASKING: Message = {"role": "assistant", "content": [{"toolUse": use} for use in USES]}
DONE: ToolResult = {"toolUseId": "done", "status": "success", "content": [{"text": "ok"}]}
CRASHED = Standing(last=ASKING, started=frozenset({"done", "unknown"}), finished={"done": DONE})


def always(outcome: UnknownOutcome) -> UnknownOutcome:
    return outcome


def prompt(text: str | None) -> Said:
    said = read_prompt(text)
    assert isinstance(said, Said)
    return said


def test_a_prompt_after_an_answer_begins_a_turn() -> None:
    assert open_turn(Standing(last=ANSWER), prompt("again"), lambda use: "ask") == Began(
        messages=({"role": "user", "content": [{"text": "again"}]},)
    )


def test_going_on_after_an_unanswered_message_asks_the_model_without_storing_anything() -> None:
    assert open_turn(Standing(last=SAID), prompt(None), lambda use: "ask") == Began(messages=())


def test_a_prompt_after_an_unanswered_message_says_that_it_was_not_answered() -> None:
    """Our decision: providers refuse two user messages in a row, and an edit would falsify the history."""
    opening = open_turn(Standing(last=SAID), prompt("hello?"), lambda use: "ask")
    assert isinstance(opening, Began)
    assert [message["role"] for message in opening.messages] == ["assistant", "user"]


@pytest.mark.parametrize("last", [None, ANSWER])
def test_there_must_be_something_to_go_on_from(last: Message | None) -> None:
    with pytest.raises(Invalid):
        open_turn(Standing(last=last), prompt(None), lambda use: "ask")


def test_a_finished_tool_keeps_its_recorded_result_and_one_that_never_started_runs() -> None:
    opening = open_turn(CRASHED, prompt(None), lambda use: "retry")
    assert opening == Continued(uses=USES, known={"done": DONE})


def test_an_unknown_outcome_is_asked_about_by_default() -> None:
    opening = open_turn(CRASHED, prompt(None), lambda use: "ask")
    assert opening == Ask(interrupts=(interrupt_for(USES[1]),))


def test_an_unknown_outcome_may_be_reported_to_the_model_as_failed() -> None:
    opening = open_turn(CRASHED, prompt(None), lambda use: "fail")
    assert isinstance(opening, Continued)
    assert opening.known["unknown"]["status"] == "error"
    assert "fresh" not in opening.known


def test_a_new_prompt_closes_open_tools_without_running_any() -> None:
    opening = open_turn(CRASHED, prompt("forget it"), lambda use: "retry")
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
    answers = read_prompt([{"interruptResponse": {"interruptId": interrupt_for(USES[1]).id, "response": response}}])
    assert isinstance(answers, Answers)
    opening = open_turn(CRASHED, answers, lambda use: "ask")
    assert isinstance(opening, Continued)
    assert opening.known.get("unknown") == known


def test_an_answer_to_an_interrupt_that_nobody_raised_is_refused() -> None:
    with pytest.raises(NotFound):
        open_turn(CRASHED, Answers(responses={"zz": "retry"}), lambda use: "ask")


@pytest.mark.parametrize(
    "bad", ["", "   ", 7, [], [1], [{"text": "a"}, {"role": "user", "content": [{"text": "b"}]}], {"text": "x"}]
)
def test_a_prompt_of_no_known_form_is_refused(bad: object) -> None:
    with pytest.raises(Invalid):
        read_prompt(bad)


def test_content_blocks_are_one_user_message() -> None:
    blocks: list[ContentBlock] = [{"text": "a"}, {"text": "b"}]
    assert read_prompt(blocks) == Said(messages=({"role": "user", "content": blocks},))
