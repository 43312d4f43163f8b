"""The activity of a session: one word for each combination of facts, the same on every face."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from repertory.core.interrupts import Interrupt
from repertory.core.journal.pending_tools import PendingTools
from repertory.core.messages import Message
from repertory.core.turns.activity import (
    ALIVE,
    AT_REST,
    Activity,
    ActivityFacts,
    activity_of,
    agent_facts,
)
from repertory.core.turns.turn_status import PendingReason, pending_turn

ANSWERED: Message = {"role": "assistant", "content": [{"text": "Hi."}]}
PROMPT: Message = {"role": "user", "content": [{"text": "Hello."}]}
ASKED = PendingTools(last=ANSWERED, questions=(Interrupt("one", "approve", "it is dear"),))


def test_the_first_fact_that_holds_decides() -> None:
    names = ("behind", "runs", "asks", "cut_short", "tools")
    words = (Activity.STORE, Activity.RUNS, Activity.ASKS, Activity.CUT_SHORT, Activity.TOOL)
    for values in product((False, True), repeat=len(names)):
        first = next((word for word, value in zip(words, values, strict=True) if value), Activity.IDLE)
        assert activity_of(ActivityFacts(**dict(zip(names, values, strict=True)), alive=True)) is first


@pytest.mark.parametrize(
    ("facts", "word"),
    [
        ({}, Activity.STORED),
        ({"owned": True}, Activity.OWNED),
        ({"owned": True, "alive": True}, Activity.IDLE),
        ({"alive": True, "paused": True}, Activity.PAUSED),
        ({"cut_short": True}, Activity.CUT_SHORT),
        ({"cut_short": True, "owned": True, "alive": True}, Activity.CUT_SHORT),
        ({"cut_short": True, "owned": True}, Activity.RUNS),
        ({"asks": True, "owned": True}, Activity.ASKS),
    ],
    ids=str,
)
def test_a_session_at_rest_is_where_its_owner_is(facts: dict[str, bool], word: Activity) -> None:
    assert activity_of(ActivityFacts(**facts)) is word


@pytest.mark.parametrize(
    ("pending", "word"),
    [
        (PendingTools(last=None), Activity.IDLE),
        (PendingTools(last=ANSWERED), Activity.IDLE),
        (PendingTools(last=PROMPT), Activity.CUT_SHORT),
        (ASKED, Activity.ASKS),
        (ASKED.answered({"one": "yes"}), Activity.IDLE),
    ],
    ids=str,
)
def test_an_agents_conversation_has_one_word_in_views_and_for_its_callers(
    pending: PendingTools, word: Activity
) -> None:
    for deferred, runs, behind in product(({}, {"t": None}), (False, True), (False, True)):
        given: Any = deferred
        expected = Activity.STORE if behind else Activity.RUNS if runs else word
        if deferred and expected is Activity.IDLE:
            expected = Activity.TOOL
        assert activity_of(replace(agent_facts(pending, given), runs=runs, behind=behind, alive=True)) is expected
        found = pending_turn(pending, given, session_id="s", runs=runs, behind=behind)
        assert (found.why if found else None) == (None if expected in AT_REST else expected)


def test_callers_are_told_of_everything_that_is_not_at_rest() -> None:
    assert set(get_args(PendingReason)) == {each.value for each in Activity if each not in AT_REST}
    assert set(Activity) - set(ALIVE) == {Activity.OWNED, Activity.STORED}
