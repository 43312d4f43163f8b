"""The meaning of a request in a session, over all that may be known of it."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from repertory.core.turns.turn_status import TurnStatus, TurnStatusName
from repertory.service.decisions.sent_again import NEVER, AnswersWith, RequestName, meaning_of

TURNS = [None, *(TurnStatus(token="t", state=state, at=10.0) for state in get_args(TurnStatusName))]


def test_a_turn_that_asks_or_runs_is_the_same_again_for_every_request_of_its_name() -> None:
    for known, turn, answers, named in product(TURNS, TURNS, get_args(AnswersWith), (True, False)):
        if known is not None and known.state in ("asks", "runs"):
            assert meaning_of(RequestName("t", since=NEVER), known, turn, answers, named=named) == "again"


@pytest.mark.parametrize(("since", "meaning"), [(10.0, "again"), (11.0, "begins")])
def test_a_turn_that_is_over_is_the_same_again_where_it_ended_late_enough(since: float, meaning: str) -> None:
    for known in TURNS:
        if known is not None and known.state in ("answered", "stopped"):
            assert meaning_of(RequestName("t", since=since), known, known, "text", named=False) == meaning


def test_only_a_turn_that_asks_is_answered_and_a_turn_that_is_named_is_begun_by_nobody() -> None:
    for turn, answers, named in product(TURNS, get_args(AnswersWith), (True, False)):
        meaning = meaning_of(RequestName("t"), None, turn, answers, named=named)
        assert (meaning == "answers") <= (turn is not None and turn.state == "asks" and answers != "nothing")
        assert (meaning == "begins") == (not named and (turn is None or turn.state != "asks"))


def test_a_request_is_known_by_its_token_and_an_unnamed_one_by_the_latest_of_its_family() -> None:
    newest = TurnStatus(token="b-2", state="answered", names=["a", "b-1", "b-2", "c"])
    assert RequestName("a").known_in(newest) == "a"
    assert RequestName("b").known_in(newest) is None
    assert RequestName("b-9", "b-").known_in(newest) == "b-2"
    assert RequestName("b-1", "b-").known_in(newest) == "b-1"
    assert RequestName("a", again=False).known_in(newest) is None
    assert RequestName("a").known_in(None) is None
