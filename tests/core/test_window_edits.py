"""What a user's conversation manager does to a list of messages becomes a plan that does the same."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest

from repertory.core.messages import Message, tool_results, tool_uses
from repertory.core.window.decision import WindowPlan, apply_plan
from repertory.core.window.edits import plan_of_edit
from repertory.errors import Invalid, UnpairedTools
from tests.core.test_window import conversation

NEW: Message = {"role": "user", "content": [{"text": "summary"}]}


def plan_after(shown: list[Message], edit: Callable[[list[Message]], object]) -> tuple[WindowPlan, list[Message]]:
    given = copy.deepcopy(shown)
    edited = list(given)
    edit(edited)
    return plan_of_edit(shown, given, edited), edited


def applied(shown: list[Message], plan: WindowPlan) -> list[Message]:
    front = [plan.summary] if plan.summary is not None else []
    return [*front, *apply_plan(shown, plan)]


def keep_the_last_four(messages: list[Message]) -> None:
    del messages[:-4]


def rebuild_from_copies(messages: list[Message]) -> None:
    messages[:] = copy.deepcopy(messages[2:])


def put_one_in_front(messages: list[Message]) -> None:
    messages[:4] = [NEW]


def keep_the_first_two(messages: list[Message]) -> None:
    del messages[2:6]


def shorten_one(messages: list[Message]) -> None:
    messages[3]["content"] = [{"text": "shorter"}]


def replace_one(messages: list[Message]) -> None:
    messages[0] = NEW
    messages[1]["content"][0]["text"] = "shorter"


def put_others_in_the_place_of_some(messages: list[Message]) -> None:
    messages[1] = {"role": "assistant", "content": [{"text": "another"}]}
    messages[-2] = {**messages[-2], "metadata": {"custom": {"pinned": True}}}


def nothing(messages: list[Message]) -> None:
    del messages


@pytest.mark.parametrize(
    "edit",
    [
        keep_the_last_four,
        rebuild_from_copies,
        put_one_in_front,
        keep_the_first_two,
        shorten_one,
        replace_one,
        nothing,
    ],
)
def test_the_plan_does_what_the_edit_did(edit: Callable[[list[Message]], object]) -> None:
    shown = conversation([0] * 6)
    before = copy.deepcopy(shown)
    plan, edited = plan_after(shown, edit)
    assert applied(shown, plan) == edited
    assert shown == before
    assert plan.changes == (edit is not nothing)


def test_random_edits_are_done_by_their_plans(rng: random.Random) -> None:
    for _ in range(300):
        shown = conversation([rng.randrange(3) for _ in range(rng.randrange(1, 8))])

        def edit(messages: list[Message]) -> None:
            for at in range(len(messages) - 1, -1, -1):
                together = any(tool_results(messages[at]))
                if rng.random() < 0.3 and not together and not any(tool_uses(messages[at])) and len(messages) > 1:
                    del messages[at]
                elif rng.random() < 0.3 and together:
                    del messages[at - 1 : at + 1]
                    break
                elif rng.random() < 0.2 and "text" in messages[at]["content"][0]:
                    messages[at]["content"][0]["text"] = "edited"
            if not messages or rng.random() < 0.3:
                messages.insert(0, NEW)

        plan, edited = plan_after(shown, edit)
        assert applied(shown, plan) == edited


@pytest.mark.parametrize(
    "edit",
    [
        list.clear,
        list.reverse,
        lambda messages: messages.append(NEW),
        lambda messages: messages.__setitem__(slice(0, 2), [NEW, NEW]),
        lambda messages: messages.append("text"),
        lambda messages: messages.__setitem__(0, {"role": "user", "content": []}),
        lambda messages: messages.append(messages[0]),
    ],
    ids=["emptied", "reversed", "added at the end", "two in front", "no message", "no content", "repeated"],
)
def test_what_no_plan_can_say_is_refused(edit: Callable[[list[Message]], object]) -> None:
    with pytest.raises(Invalid):
        plan_after(conversation([0] * 3), edit)


def test_a_tool_use_is_not_parted_from_its_result() -> None:
    with pytest.raises(Invalid, match="begin with tool results"):
        plan_after(conversation([1]), lambda messages: messages.__delitem__(slice(0, 2)))
    with pytest.raises(UnpairedTools):
        plan_after(conversation([1]), lambda messages: messages.__delitem__(2))
