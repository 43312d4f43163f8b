"""The agent turn as a table and as a property: any order of events leaves a history in which everything pairs up."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core import turn as turn_module
from repertory.core.answer import Answer
from repertory.core.limits import TurnLimits
from repertory.core.messages import (
    STOPPED,
    STOPPED_TEXT,
    ContentBlock,
    Message,
    check_next,
    error_result,
    is_stopped,
    tool_uses,
)
from repertory.core.turn import (
    CANCELLED,
    STOPPED_BY_CALLER,
    TRANSITIONS,
    Answered,
    AppendMessage,
    Began,
    CallModel,
    Continued,
    Erred,
    FailTurn,
    FinishTurn,
    MachineEvent,
    Overflowed,
    Park,
    Reduce,
    Reduced,
    RetryModel,
    RunTools,
    Size,
    Steered,
    StopAsked,
    Stopped,
    StopReason,
    ToolsEnded,
    ToolsParked,
    Turn,
    TurnCommand,
    TurnPhase,
    is_whole,
    step,
    stopped_answer,
)
from repertory.errors import (
    ContextWindowOverflowException,
    HookFailed,
    MaxTokensReachedException,
    ModelFailed,
    ModelRefused,
    StructuredOutputException,
)

PROMPT: Message = {"role": "user", "content": [{"text": "go"}]}
OVERFLOW = ContextWindowOverflowException("too long")


def answer(*blocks: ContentBlock, stop_reason: str = "end_turn") -> Answer:
    return Answer(
        message={"role": "assistant", "content": list(blocks)},
        stop_reason=stop_reason,
        usage={"inputTokens": 1, "outputTokens": 1, "totalTokens": 2},
        latency_ms=None,
        invalid_inputs={},
        truncated=False,
        redact_user=None,
    )


def use(use_id: str) -> ContentBlock:
    return {"toolUse": {"toolUseId": use_id, "name": "add", "input": {}}}


def test_a_plain_turn_stores_the_prompt_asks_the_model_and_stores_the_answer() -> None:
    turn, commands = step(Turn(), Began(messages=(PROMPT,)))
    assert commands == (AppendMessage(PROMPT), CallModel())
    final = answer({"text": "done"})
    turn, commands = step(turn, Answered(final))
    assert commands == (AppendMessage(final.message), FinishTurn("end_turn", final.message))
    assert turn.phase is TurnPhase.OVER


def test_an_answer_with_tool_uses_is_stored_before_the_tools_run() -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    asked = answer(use("a"), use("b"), stop_reason="tool_use")
    _, commands = step(turn, Answered(asked))
    assert [type(command) for command in commands] == [AppendMessage, RunTools]


def test_results_go_back_to_the_model_in_one_message() -> None:
    turn, _ = step(Turn(phase=TurnPhase.TOOLS), ToolsEnded(results=(error_result("a", "x"), error_result("b", "y"))))
    assert turn.phase is TurnPhase.MODEL


def test_cancelled_tools_are_answered_before_the_turn_ends() -> None:
    _, commands = step(Turn(phase=TurnPhase.TOOLS), ToolsEnded(results=(error_result("a", "x"),), stopped=CANCELLED))
    assert [type(command) for command in commands] == [AppendMessage, FinishTurn]


def test_an_overflow_is_answered_with_a_shorter_view_as_long_as_it_becomes_shorter() -> None:
    turn, _ = step(Turn(limits=TurnLimits(vain_reductions_max=2)), Began(messages=(PROMPT,)))
    for number, left in enumerate([Size(90, 9), Size(80, 9), Size(95, 8), Size(80, 8), Size(85, 9)]):
        turn, commands = step(turn, Overflowed(OVERFLOW))
        assert commands == (Reduce(OVERFLOW, number),)
        turn, commands = step(turn, Reduced(left))
        assert commands == (CallModel(),)
    _, commands = step(turn, Overflowed(OVERFLOW))
    assert commands == (FailTurn(OVERFLOW),)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=300))
def test_a_turn_ends_whatever_reductions_leave(lefts: list[tuple[int, int]]) -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    reductions, endless = 0, iter([*(Size(*left) for left in lefts), *([Size(30, 10)] * 200)])
    while True:
        turn, commands = step(turn, Overflowed(OVERFLOW))
        if commands == (FailTurn(OVERFLOW),):
            break
        turn, _ = step(turn, Reduced(next(endless)))
        reductions += 1
    assert reductions <= 4 * (30 + 10 + 2)


def test_what_was_steered_in_during_the_last_step_makes_another_one() -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, commands = step(turn, Steered(({"text": "and in French"},)))
    assert commands == ()
    turn, commands = step(turn, Answered(answer({"text": "done"})))
    assert [type(command) for command in commands] == [AppendMessage, AppendMessage, CallModel]
    assert turn.steering == ()


@pytest.mark.parametrize("reason", ["pause_turn", "compaction"])
def test_an_answer_whose_provider_pauses_is_stored_and_the_model_is_asked_again(reason: str) -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, _ = step(turn, Steered(({"text": "and in French"},)))
    first = answer({"text": "I look. "}, stop_reason=reason)
    turn, commands = step(turn, Answered(first))
    assert commands == (AppendMessage(first.message), CallModel())
    assert turn.steering  # It would end the pause.
    turn, commands = step(turn, Answered(answer({"text": "It rains."})))
    assert [type(command) for command in commands] == [AppendMessage, AppendMessage, CallModel]


def test_a_pause_ends_at_a_limit_and_when_the_turn_is_to_stop() -> None:
    paused = Answered(answer({"text": "I look. "}, stop_reason="pause_turn"))
    turn, _ = step(Turn(limits=TurnLimits(steps=1)), Began(messages=(PROMPT,)))
    _, commands = step(turn, paused)
    assert commands[-1] == FinishTurn("limit_turns", paused.answer.message)
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, _ = step(turn, StopAsked(CANCELLED))
    turn, commands = step(turn, paused)
    assert commands[-1] == FinishTurn("cancelled", None)
    assert turn.phase is TurnPhase.OVER


@pytest.mark.parametrize(("text", "note"), [(None, STOPPED_TEXT), ("By Ann. ", "By Ann."), (" ", STOPPED_TEXT)])
def test_an_answer_that_was_stopped_is_stored_with_a_note_and_ends_the_turn(text: str | None, note: str) -> None:
    stop = StopReason(text=text, keep_partial=True)
    said = stopped_answer(answer({"text": "It rai "}, stop_reason=STOPPED), stop)
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, commands = step(turn, Stopped(stop, said))
    assert commands == (AppendMessage(said.message), FinishTurn("cancelled", said.message))
    assert said.message["content"] == [{"text": "It rai "}, {"text": note}]
    assert is_stopped(said.message)
    assert not is_whole(said.message)
    assert turn.phase is TurnPhase.OVER


END = ToolsEnded(results=())
EVENTS: list[MachineEvent] = [
    Began(messages=(PROMPT,)),
    Continued(uses=()),
    Answered(answer({"text": "x"})),
    Answered(answer({"text": "x"}, use("a"), stop_reason="tool_use")),
    Answered(answer({"text": "x"}, stop_reason="max_tokens")),
    Answered(answer({"text": "x"}, stop_reason="pause_turn")),
    Overflowed(OVERFLOW),
    Reduced(Size(1, 1)),
    END,
    ToolsEnded(results=(), stopped=CANCELLED),
    ToolsEnded(results=(), closing=({"text": "x"},)),
    ToolsEnded(results=(), filled_output="{}"),
    ToolsEnded(results=(), invalid_output=True),
    ToolsEnded(results=(), failed=HookFailed("no")),
    ToolsParked(park=Park(interrupts=(), results=(), parked=()), instead=END),
    ToolsParked(
        park=Park(interrupts=(), results=(), parked=()), instead=ToolsEnded(results=(), stopped=StopReason(text="x"))
    ),
    Steered(({"text": "x"},)),
    RetryModel(1.0),
    RetryModel(0.0, thrown_away=answer({"text": "x"})),
    StopAsked(CANCELLED),
    Stopped(CANCELLED),
    Stopped(STOPPED_BY_CALLER, answer({"text": "x"}, stop_reason=STOPPED)),
    Erred(ModelFailed("no")),
]
ONE_OF_EACH = list({type(event): event for event in EVENTS}.values())
TURNS = [
    Turn(),
    Turn(stop=CANCELLED),
    Turn(steering=({"text": "x"},)),
    Turn(wants_output=True),
    Turn(limits=TurnLimits(steps=1)),
    Turn(vain=100),
    Turn(invalid_outputs=100),
]
Arrow = tuple[TurnPhase, type, TurnPhase]


def arrows() -> set[Arrow]:
    return {(phase, event, to) for (phase, event), (_, leads_to) in TRANSITIONS.items() for to in leads_to}


@pytest.mark.parametrize("phase", list(TurnPhase))
@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: type(event).__name__)
def test_every_pair_of_phase_and_event_is_in_the_table_or_a_mistake(phase: TurnPhase, event: MachineEvent) -> None:
    if (phase, type(event)) in TRANSITIONS:
        step(Turn(phase=phase), event)
    else:
        with pytest.raises(AssertionError):
            step(Turn(phase=phase), event)


def test_turns_go_where_the_table_says_and_nowhere_else() -> None:
    """Everything that a turn may be when an event comes, with everything that the event may be."""
    taken: set[Arrow] = set()
    for phase, turn, event in itertools.product(TurnPhase, TURNS, EVENTS):
        if (phase, type(event)) in TRANSITIONS:
            after, _ = step(turn._replace(phase=phase), event)
            taken.add((phase, type(event), after.phase))
    assert taken == arrows()


def test_the_drawing_in_the_docstring_is_the_table() -> None:
    drawn: set[Arrow] = set()
    arrow = re.compile(r"^ {4}([A-Z |]+) --([A-Za-z |]+)--> ([A-Z]+(?: \| [A-Z]+)*|the same)", re.MULTILINE)
    for line in arrow.findall(str(turn_module.__doc__)):
        before, events, after = (part.split(" | ") for part in line)
        for phase, event in itertools.product(before, events):
            to = [phase] if after == ["the same"] else after
            drawn |= {(TurnPhase[phase], getattr(turn_module, event), TurnPhase[one]) for one in to}
    assert drawn == arrows()


def asked_for_tools(turn: Turn) -> Turn:
    turn, _ = step(turn, Began(messages=(PROMPT,)))
    turn, _ = step(turn, Answered(answer(use("a"), stop_reason="tool_use")))
    return turn


ONE_RESULT = (error_result("a", "x"),)


def test_a_failed_call_is_made_again_after_the_wait_that_was_decided() -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, commands = step(turn, RetryModel(4.0))
    assert (turn.phase, commands) == (TurnPhase.MODEL, (CallModel(after_s=4.0),))
    assert turn.steps == 0


@pytest.mark.parametrize(
    ("stop_reason", "error"),
    [
        ("max_tokens", MaxTokensReachedException),
        ("model_context_window_exceeded", MaxTokensReachedException),
        ("refusal", ModelRefused),
        ("content_filtered", ModelRefused),
    ],
)
def test_an_answer_that_is_not_whole_is_stored_and_fails_the_turn(stop_reason: str, error: type[Exception]) -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, commands = step(turn, Answered(answer({"text": "half a"}, stop_reason=stop_reason)))
    assert [type(command) for command in commands] == [AppendMessage, FailTurn]
    assert isinstance(commands[-1], FailTurn)
    assert isinstance(commands[-1].error, error)
    assert turn.phase is TurnPhase.OVER


def test_tools_of_an_answer_that_was_cut_off_do_not_run_and_are_answered() -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    _, commands = step(turn, Answered(answer(use("a"), stop_reason="max_tokens")))
    assert [type(command) for command in commands] == [AppendMessage, AppendMessage, FailTurn]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (TurnLimits(steps=1), "limit_turns"),
        (TurnLimits(total_tokens=2), "limit_total_tokens"),
        (TurnLimits(output_tokens=1), "limit_output_tokens"),
        (TurnLimits(steps=1, total_tokens=2, output_tokens=1), "limit_turns"),
    ],
)
def test_a_limit_ends_the_turn_before_its_next_step(limits: TurnLimits, reason: str) -> None:
    _, commands = step(asked_for_tools(Turn(limits=limits)), ToolsEnded(results=ONE_RESULT))
    assert commands[-1] == FinishTurn(reason, None)


def test_a_limit_that_is_reached_with_the_final_answer_changes_nothing() -> None:
    turn, _ = step(Turn(limits=TurnLimits(steps=1, total_tokens=1)), Began(messages=(PROMPT,)))
    final = answer({"text": "done"})
    _, commands = step(turn, Answered(final))
    assert commands[-1] == FinishTurn("end_turn", final.message)


def test_a_stop_that_was_asked_for_waits_for_the_tools_and_may_have_the_last_word() -> None:
    turn, commands = step(asked_for_tools(Turn()), StopAsked(StopReason(text="enough")))
    assert commands == ()
    _, commands = step(turn, ToolsEnded(results=ONE_RESULT))
    said: Message = {"role": "assistant", "content": [{"text": "enough"}]}
    assert commands[1:] == (AppendMessage(said), FinishTurn("cancelled", said))


def test_a_hook_may_end_the_turn_with_an_answer_of_its_own() -> None:
    _, commands = step(asked_for_tools(Turn()), ToolsEnded(results=ONE_RESULT, closing=({"text": "that will do"},)))
    said: Message = {"role": "assistant", "content": [{"text": "that will do"}]}
    assert commands[1:] == (AppendMessage(said), FinishTurn("end_turn", said))


def test_a_guard_that_fails_among_the_tools_leaves_every_tool_answered() -> None:
    _, commands = step(asked_for_tools(Turn()), ToolsEnded(results=ONE_RESULT, failed=HookFailed("no")))
    assert [type(command) for command in commands] == [AppendMessage, FailTurn]


def test_an_empty_form_is_asked_for_again_and_alone() -> None:
    turn, _ = step(Turn(wants_output=True), Began(messages=(PROMPT,)))
    turn, commands = step(turn, Answered(answer({"text": "done"})))
    assert [type(command) for command in commands] == [AppendMessage, AppendMessage, CallModel]
    assert commands[-1] == CallModel(output_only=True)


def test_a_form_that_is_never_filled_in_fails_the_turn_after_a_bounded_number_of_tries() -> None:
    turn, _ = step(Turn(wants_output=True, limits=TurnLimits(invalid_outputs_max=2)), Began(messages=(PROMPT,)))
    turn, _ = step(turn, Answered(answer({"text": "no"})))
    turn, _ = step(turn, Answered(answer({"text": "no"})))
    _, commands = step(turn, Answered(answer({"text": "no"})))
    assert isinstance(commands[-1], FailTurn)
    assert isinstance(commands[-1].error, StructuredOutputException)


def test_forms_filled_in_wrongly_go_back_to_the_model_a_bounded_number_of_times() -> None:
    turn = Turn(wants_output=True, limits=TurnLimits(invalid_outputs_max=2))
    turn, commands = step(asked_for_tools(turn), ToolsEnded(results=ONE_RESULT, invalid_output=True))
    assert isinstance(commands[-1], CallModel)
    turn, _ = step(turn, Answered(answer(use("b"), stop_reason="tool_use")))
    _, commands = step(turn, ToolsEnded(results=(error_result("b", "x"),), invalid_output=True))
    assert isinstance(commands[-1], FailTurn)


def test_a_filled_form_ends_the_turn_with_its_text_as_the_answer() -> None:
    _, commands = step(
        asked_for_tools(Turn(wants_output=True)), ToolsEnded(results=ONE_RESULT, filled_output='{"a":1}')
    )
    said: Message = {"role": "assistant", "content": [{"text": '{"a":1}'}]}
    assert commands[1:] == (AppendMessage(said), FinishTurn("end_turn", said))


def test_a_form_written_as_text_is_as_good_as_one_filled_in_by_tool() -> None:
    turn, _ = step(Turn(wants_output=True, output_only=True), Began(messages=(PROMPT,)))
    _, commands = step(turn, Answered(answer({"text": '{"a":1}'}), filled_output='{"a":1}'))
    assert isinstance(commands[-1], FinishTurn)


def test_an_answer_is_whole_unless_it_says_otherwise() -> None:
    whole: Message = {"role": "assistant", "content": [{"text": "x"}]}
    assert is_whole(whole)
    assert not is_whole({**whole, "metadata": {"custom": {"stop_reason": "max_tokens"}}})


@dataclass
class Drive:
    """Carries out commands on a list, choosing what happens from drawn data."""

    data: st.DataObject
    history: list[Message] = field(default_factory=list[Message])
    ids: int = 0

    def carry_out(self, command: TurnCommand) -> MachineEvent | None:
        match command:
            case AppendMessage(message=message):
                check_next(self.history[-1] if self.history else None, message)
                self.history.append(message)
                return None
            case CallModel():
                return self.call_model()
            case Reduce():
                return self.data.draw(st.sampled_from([Reduced(Size(1, 1)), Stopped(CANCELLED), Erred(OVERFLOW)]))
            case RunTools(uses=uses):
                found = tuple(error_result(use["toolUseId"], "r") for use in uses)
                return ToolsEnded(
                    results=found,
                    stopped=self.data.draw(st.sampled_from([None, None, CANCELLED, StopReason(text="enough")])),
                    closing=self.data.draw(st.sampled_from([(), (), ({"text": "closed"},)])),
                    filled_output=self.data.draw(st.sampled_from([None, None, "{}"])),
                    invalid_output=self.data.draw(st.booleans()),
                    failed=self.data.draw(st.sampled_from([None, None, HookFailed("no")])),
                )
            case FinishTurn() | FailTurn():
                return None

    def call_model(self) -> MachineEvent:
        kinds = ["text", "tools", "cut off", "refused", "retry", "overflow", "stop", "err"]
        kind = self.data.draw(st.sampled_from(kinds))
        match kind:
            case "text":
                return Answered(answer({"text": "x"}))
            case "tools":
                self.ids += 2
                return Answered(answer(use(f"u{self.ids}"), use(f"u{self.ids + 1}"), stop_reason="tool_use"))
            case "cut off":
                self.ids += 1
                return Answered(answer({"text": "x"}, use(f"u{self.ids}"), stop_reason="max_tokens"))
            case "refused":
                return Answered(answer({"text": "x"}, stop_reason="refusal"))
            case "retry":
                return RetryModel(0.0)
            case "overflow":
                return Overflowed(OVERFLOW)
            case "stop":
                stops = [CANCELLED, STOPPED_BY_CALLER, StopReason(reason="limit_time", text="late")]
                stop = self.data.draw(st.sampled_from(stops))
                said = answer({"text": "x "}, stop_reason=STOPPED) if stop.keep_partial else None
                return Stopped(stop, said and stopped_answer(said, stop))
            case _:
                return Erred(ModelFailed("no"))


@given(st.data())
def test_any_order_of_events_leaves_a_history_in_which_every_tool_use_has_its_result(data: st.DataObject) -> None:
    drive = Drive(data)
    limits = TurnLimits(
        steps=data.draw(st.sampled_from([None, 1, 3])), total_tokens=data.draw(st.sampled_from([None, 5]))
    )
    turn = Turn(wants_output=data.draw(st.booleans()), limits=limits)
    event: MachineEvent | None = Began(messages=(PROMPT,))
    for _ in range(30):
        assert event is not None
        turn, commands = step(turn, event)
        event = None
        for command in commands:
            event = drive.carry_out(command)
        if turn.phase is TurnPhase.OVER:
            break
        if data.draw(st.booleans()):
            turn, _ = step(turn, data.draw(st.sampled_from([Steered(({"text": "also"},)), StopAsked(CANCELLED)])))
    if turn.phase is TurnPhase.OVER:
        assert not any(tool_uses(drive.history[-1]))
    stopped = [message for message in drive.history if is_stopped(message)]
    assert stopped in ([], drive.history[-1:])
    assert not any(map(is_whole, stopped))
