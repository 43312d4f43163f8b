"""What the model is shown: where a cut may fall, and that it never parts a tool use from its result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.messages import Message, text_of, tool_results, tool_uses
from repertory.core.pairing import check_next
from repertory.core.window.decision import WindowBudget
from repertory.core.window.plan import apply_plan
from repertory.core.window.shortening import KEPT_CHARS, shorten_text
from repertory.core.window.sliding import SlidingWindow
from repertory.errors import ContextWindowOverflowException, Invalid

OVERFLOW = ContextWindowOverflowException("too long")
BUDGET = WindowBudget(error=OVERFLOW)


def conversation(plan: list[int], *, long: bool = False) -> list[Message]:
    """One turn per element: what was said, that many tool steps, and the answer."""
    history: list[Message] = []
    for turn, steps in enumerate(plan):
        history.append({"role": "user", "content": [{"text": f"q{turn}"}]})
        for number in range(steps):
            use_id = f"t{turn}.{number}"
            history.append(
                {"role": "assistant", "content": [{"toolUse": {"toolUseId": use_id, "name": "f", "input": {}}}]}
            )
            text = "x" * 5000 if long else "r"
            history.append(
                {
                    "role": "user",
                    "content": [
                        {"toolResult": {"toolUseId": use_id, "status": "success", "content": [{"text": text}]}}
                    ],
                }
            )
        history.append({"role": "assistant", "content": [{"text": f"a{turn}"}]})
    return history


def test_the_window_counts_messages_and_starts_with_something_the_user_said() -> None:
    shown = conversation([0] * 10)
    kept = apply_plan(shown, SlidingWindow(window_size=5).manage(shown))
    assert len(kept) == 4
    assert text_of(kept[0]) == "q8"


def test_nothing_is_hidden_below_the_window() -> None:
    assert not SlidingWindow(window_size=40).manage(conversation([0] * 20)).changes


def test_one_long_tool_loop_is_cut_between_its_pairs() -> None:
    shown = conversation([10])
    kept = apply_plan(shown, SlidingWindow(window_size=6).manage(shown))
    assert len(kept) <= 6
    assert any(tool_uses(kept[0]))


def test_a_window_of_nothing_hides_everything_that_is_answered() -> None:
    shown = conversation([0, 1])
    assert apply_plan(shown, SlidingWindow(window_size=0).manage(shown)) == []


def test_a_window_of_nothing_never_hides_a_message_that_waits_for_its_answer() -> None:
    shown = [*conversation([0]), *conversation([0])[:1]]
    kept = apply_plan(shown, SlidingWindow(window_size=0, per_turn=True).manage(shown))
    assert kept == shown[-1:]


def test_pinned_messages_stay_in_front() -> None:
    shown = conversation([0] * 10)
    manager = SlidingWindow(window_size=6, pin_first=2)
    kept = apply_plan(shown, manager.manage(shown))
    assert kept[:2] == shown[:2]
    assert len(kept) <= 6
    again = apply_plan([*kept, *conversation([0] * 3)], manager.manage([*kept, *conversation([0] * 3)]))
    assert again[:2] == shown[:2]


def test_pinning_a_tool_use_pins_its_result() -> None:
    shown = [*conversation([1]), *conversation([0] * 6)]
    kept = apply_plan(shown, SlidingWindow(window_size=5, pin_first=2).manage(shown))
    assert kept[:3] == shown[:3]


def test_an_overflow_first_shortens_the_oldest_long_tool_result() -> None:
    shown = conversation([1, 1], long=True)
    plan = SlidingWindow().reduce(shown, BUDGET)
    assert list(plan.replaced) == [2]
    assert plan.drop == 0
    result = next(tool_results(plan.replaced[2]))
    assert result["status"] == "success"


def test_an_overflow_hides_the_oldest_turn_when_nothing_can_be_shortened() -> None:
    shown = conversation([0] * 3)
    kept = apply_plan(shown, SlidingWindow().reduce(shown, BUDGET))
    assert text_of(kept[0]) == "q1"


def test_an_overflow_that_cannot_be_helped_says_so() -> None:
    with pytest.raises(ContextWindowOverflowException, match="Unable to trim"):
        SlidingWindow().reduce(conversation([0])[:1], BUDGET)


def test_shortened_text_keeps_both_ends_and_is_not_shortened_again() -> None:
    text = "a" * 1000 + "b" * 1000
    short = shorten_text(text)
    assert short.startswith("a" * KEPT_CHARS)
    assert short.endswith("b" * KEPT_CHARS)
    assert "[truncated: 1600 chars removed]" in short
    assert shorten_text(short) is short


@pytest.mark.parametrize("per_turn", [True, 3])
def test_per_turn_says_before_which_model_calls_to_tidy_up(per_turn: bool | int) -> None:
    manager = SlidingWindow(per_turn=per_turn)
    assert [call for call in range(1, 7) if manager.manages_before_call(call)] == list(
        range(int(per_turn), 7, int(per_turn))
    )


@pytest.mark.parametrize("settings", [{"window_size": -1}, {"per_turn": 0}, {"per_turn": -2}, {"pin_first": 0}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        SlidingWindow(**settings)


@given(
    turns=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    window=st.integers(0, 20),
    pins=st.one_of(st.none(), st.integers(1, 4)),
)
def test_whatever_is_hidden_what_remains_pairs_up_and_fits(turns: list[int], window: int, pins: int | None) -> None:
    shown = conversation(turns)
    manager = SlidingWindow(window_size=window, pin_first=pins)
    plan = manager.manage(shown)
    kept = apply_plan(shown, plan)
    previous = None
    for message in kept:
        check_next(previous, message)
        previous = message
    if plan.changes and pins is None:
        assert len(kept) <= max(window, 1)
