"""The agent turn as a table and as a property: any order of events leaves a history in which everything pairs up."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.core.answer import Answer
from repertory.core.messages import ContentBlock, Message, error_result, tool_uses
from repertory.core.pairing import check_next
from repertory.core.turn import (
    Answered,
    Append,
    Began,
    CallModel,
    Cancelled,
    Command,
    Continued,
    Erred,
    Event,
    Fail,
    Finish,
    Overflowed,
    Phase,
    Reduce,
    Reduced,
    RunTools,
    Steered,
    ToolsEnded,
    Turn,
    TurnLimits,
    step,
)
from repertory.errors import ContextWindowOverflowException, ModelFailed

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
    assert commands == (Append(PROMPT), CallModel())
    final = answer({"text": "done"})
    turn, commands = step(turn, Answered(final))
    assert commands == (Append(final.message), Finish("end_turn", final.message))
    assert turn.phase is Phase.OVER


def test_an_answer_with_tool_uses_is_stored_before_the_tools_run() -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    asked = answer(use("a"), use("b"), stop_reason="tool_use")
    _, commands = step(turn, Answered(asked))
    assert [type(command) for command in commands] == [Append, RunTools]


def test_results_go_back_to_the_model_in_one_message() -> None:
    turn, _ = step(Turn(phase=Phase.TOOLS), ToolsEnded(results=(error_result("a", "x"), error_result("b", "y"))))
    assert turn.phase is Phase.MODEL


def test_cancelled_tools_are_answered_before_the_turn_ends() -> None:
    _, commands = step(Turn(phase=Phase.TOOLS), ToolsEnded(results=(error_result("a", "x"),), cancelled=True))
    assert [type(command) for command in commands] == [Append, Finish]


def test_overflow_is_answered_with_a_shorter_view_a_bounded_number_of_times() -> None:
    turn, _ = step(Turn(limits=TurnLimits(reductions_max=2)), Began(messages=(PROMPT,)))
    for _ in range(2):
        turn, commands = step(turn, Overflowed(OVERFLOW))
        assert commands == (Reduce(OVERFLOW),)
        turn, commands = step(turn, Reduced())
        assert commands == (CallModel(),)
    _, commands = step(turn, Overflowed(OVERFLOW))
    assert commands == (Fail(OVERFLOW),)


def test_what_was_steered_in_during_the_last_step_makes_another_one() -> None:
    turn, _ = step(Turn(), Began(messages=(PROMPT,)))
    turn, commands = step(turn, Steered(({"text": "and in French"},)))
    assert commands == ()
    turn, commands = step(turn, Answered(answer({"text": "done"})))
    assert [type(command) for command in commands] == [Append, Append, CallModel]
    assert turn.steering == ()


EVENTS: list[Event] = [
    Began(messages=(PROMPT,)),
    Continued(uses=()),
    Answered(answer({"text": "x"})),
    Overflowed(OVERFLOW),
    Reduced(),
    ToolsEnded(results=()),
    Steered(()),
    Cancelled(),
    Erred(ModelFailed("no")),
]

TABLE = {
    Phase.READY: {Began, Continued},
    Phase.MODEL: {Answered, Overflowed, Cancelled, Erred, Steered},
    Phase.REDUCING: {Reduced, Cancelled, Erred, Steered},
    Phase.TOOLS: {ToolsEnded, Steered},
    Phase.OVER: set[type](),
}


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_pair_of_phase_and_event_is_in_the_table_or_a_mistake(phase: Phase, event: Event) -> None:
    if type(event) in TABLE[phase]:
        step(Turn(phase=phase), event)
    else:
        with pytest.raises(AssertionError):
            step(Turn(phase=phase), event)


@dataclass
class Drive:
    """Carries out commands on a list, choosing what happens from drawn data."""

    data: st.DataObject
    history: list[Message] = field(default_factory=list[Message])
    ids: int = 0

    def carry_out(self, command: Command) -> Event | None:
        match command:
            case Append(message=message):
                check_next(self.history[-1] if self.history else None, message)
                self.history.append(message)
                return None
            case CallModel():
                return self.call_model()
            case Reduce():
                return self.data.draw(st.sampled_from([Reduced(), Cancelled(), Erred(OVERFLOW)]))
            case RunTools(uses=uses):
                found = tuple(error_result(use["toolUseId"], "r") for use in uses)
                return ToolsEnded(results=found, cancelled=self.data.draw(st.booleans()))
            case Finish() | Fail():
                return None

    def call_model(self) -> Event:
        kind = self.data.draw(st.sampled_from(["text", "tools", "overflow", "cancel", "err"]))
        match kind:
            case "text":
                return Answered(answer({"text": "x"}))
            case "tools":
                self.ids += 2
                return Answered(answer(use(f"u{self.ids}"), use(f"u{self.ids + 1}"), stop_reason="tool_use"))
            case "overflow":
                return Overflowed(OVERFLOW)
            case "cancel":
                return Cancelled()
            case _:
                return Erred(ModelFailed("no"))


@given(st.data())
def test_any_order_of_events_leaves_a_history_in_which_every_tool_use_has_its_result(data: st.DataObject) -> None:
    drive = Drive(data)
    turn = Turn()
    event: Event | None = Began(messages=(PROMPT,))
    for _ in range(30):
        assert event is not None
        turn, commands = step(turn, event)
        event = None
        for command in commands:
            event = drive.carry_out(command)
        if turn.phase is Phase.OVER:
            break
        if data.draw(st.booleans()):
            turn, _ = step(turn, Steered(({"text": "also"},)))
    if turn.phase is Phase.OVER:
        assert not any(tool_uses(drive.history[-1]))
