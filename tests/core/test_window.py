"""What the model is shown: where a cut may fall, and that it never parts a tool use from its result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.messages import Message, check_next, text_of, tool_results, tool_uses
from repertory.core.tokens import estimate_tokens
from repertory.core.window.decision import SummaryRequest, WindowBudget, apply_plan, least_reduction
from repertory.core.window.pinning import is_pinned, pin_message, unpin_message
from repertory.core.window.sliding import EDGE_CHARS, SlidingWindow, Summarizing, shorten_results, shorten_text
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


def test_messages_that_are_pinned_stay_wherever_they_stand_with_the_partners_of_their_tools() -> None:
    history = conversation([0, 1, 0, 0])
    pin_message(history, 3)  # A tool use; its result stands behind it.
    plan = SlidingWindow(window_size=4).manage(history)
    assert apply_plan(history, plan) == [*history[3:5], *history[-2:]]
    reduced = SlidingWindow(window_size=4, should_truncate_results=False).reduce(history, BUDGET)
    assert apply_plan(history, reduced) == [*history[3:5], *history[-2:]]
    request = Summarizing(summary_ratio=0.8, preserve_recent_messages=2).reduce(history, BUDGET)
    assert isinstance(request, SummaryRequest)
    assert request.pinned == (3, 4)
    assert history[3] not in request.to_summarise
    assert history[2] in request.to_summarise


def test_a_pin_can_be_taken_away_and_leaves_other_metadata_alone() -> None:
    message: Message = {"role": "user", "content": [{"text": "hi"}], "metadata": {"custom": {"mine": 1}}}
    messages: list[Message] = [message, {"role": "assistant", "content": [{"text": "ho"}]}]
    for place in (0, 1):
        pin_message(messages, place)
        assert is_pinned(messages, place)
        unpin_message(messages, place)
    assert messages == [message, {"role": "assistant", "content": [{"text": "ho"}]}]


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


def test_an_overflow_takes_off_as_much_as_is_asked_for() -> None:
    shown = conversation([1] * 10, long=True)
    plan = SlidingWindow().reduce(shown, WindowBudget(error=OVERFLOW, least=3_000))
    assert len(plan.replaced) == 3
    plan = SlidingWindow(should_truncate_results=False).reduce(shown, WindowBudget(error=OVERFLOW, least=3_000))
    assert plan.drop == 12
    plan = SlidingWindow(should_truncate_results=False).reduce(shown, WindowBudget(error=OVERFLOW, least=10**6))
    assert plan.drop == 37


def test_json_and_documents_in_tool_results_can_be_shortened() -> None:
    parts = [{"json": {"rows": list(range(1_000))}}, {"json": {"n": 1}}]
    document = {"document": {"name": "book", "format": "pdf", "source": {"bytes": b"x" * 1_000}}}
    message: Message = {
        "role": "user",
        "content": [{"toolResult": {"toolUseId": "t", "status": "success", "content": [*parts, document]}}],
    }
    shortened = next(tool_results(shorten_results(message)))["content"]
    assert "chars removed]" in str(shortened[0]["text"])
    assert shortened[1:] == [parts[1], {"text": "[document: book, 1000 bytes]"}]


@given(
    turns=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    window=st.integers(0, 20),
    pins=st.one_of(st.none(), st.integers(1, 4)),
    least=st.integers(0, 4_000),
    long=st.booleans(),
)
def test_overflows_are_reduced_step_by_step_until_nothing_is_left_to_reduce(
    turns: list[int], window: int, pins: int | None, least: int, long: bool
) -> None:
    shown = conversation(turns, long=long)
    last = shown[-1]
    for _ in range(2 * len(shown) + 1):
        try:
            plan = SlidingWindow(window_size=window, pin_first=pins).reduce(
                shown, WindowBudget(error=OVERFLOW, least=least)
            )
        except ContextWindowOverflowException:
            break
        kept = apply_plan(shown, plan)
        previous = None
        for message in kept:
            check_next(previous, message)
            previous = message
        assert estimate_tokens(kept) < estimate_tokens(shown)
        shown = kept
    else:
        pytest.fail("it never says that nothing is left")
    assert len(shown) <= (pins or 0) + 1 + 3
    assert shown[-1] == last


@given(
    needed=st.integers(1, 10**7),
    times=st.integers(2, 100),
    known=st.booleans(),
    off=st.floats(0.25, 4.0),
)
def test_a_request_that_is_too_long_fits_after_few_refusals(needed: int, times: int, known: bool, off: float) -> None:
    takes, before = needed * times, 0
    while takes > needed:
        least = least_reduction(round(takes * off), needed if known else None, before)
        takes -= max(1, round(least / off))
        before += 1
    assert before <= 8 + 2 * times.bit_length()


def test_shortened_text_keeps_both_ends_and_is_not_shortened_again() -> None:
    text = "a" * 1000 + "b" * 1000
    short = shorten_text(text)
    assert short.startswith("a" * EDGE_CHARS)
    assert short.endswith("b" * EDGE_CHARS)
    assert "[truncated: 1600 chars removed]" in short
    assert shorten_text(short) is short
    hostile = f"{short} " + "c" * 10_000_000
    assert shorten_text(shorten_text(hostile)) is not hostile, "a text that says that it was shortened is no shorter"
    assert len(shorten_text(hostile)) < 2 * len(short)


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
