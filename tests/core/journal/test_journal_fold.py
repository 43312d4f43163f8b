"""What a journal amounts to: restored equals live, from any row that opening may begin with."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repertory.core.interrupts import Interrupt
from repertory.core.journal.deferrals import change_run, run, run_ended, telling
from repertory.core.journal.fold import FINISHED_TURNS_MAX, Fold, is_answer
from repertory.core.journal.image import Image
from repertory.core.journal.records import (
    Branched,
    CursorMoved,
    DeliveriesChanged,
    FinishedTurn,
    Interrupted,
    MessageAdded,
    NodeChanged,
    Resumed,
    StateChanged,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import (
    RESTATE_AFTER,
    RESTATE_ANSWERS_AFTER,
    Appender,
    messages_of,
    records_of,
    restore,
)
from repertory.core.journal.rows import Row, verify
from repertory.core.journal.view import VisibleMessages
from repertory.core.messages import Message, ToolUse, check_next, is_stopped, text_of
from repertory.core.timers import next_timer
from repertory.core.window.decision import WindowPlan
from repertory.core.window.editing import view_change
from repertory.errors import CorruptJournal, Invalid, UnpairedTools
from tests.core.journal.journal_driver import COMMANDS, Driver, result_of

commands = st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 1000)), max_size=40)
SETTINGS = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


def rows_from(rows: list[Row], seq: int) -> list[Row]:
    return rows[seq - 1 :]


@given(commands, st.floats(0, 1))
@SETTINGS
def test_folding_from_low_on_equals_folding_everything(commands: list[tuple[str, int]], earlier: float) -> None:
    """DESIGN: restored equals live, whatever the conversation manager did."""
    driver = Driver()
    for command in commands:
        driver.run([command])
        if not driver.rows:
            continue
        live = driver.image()
        low = driver.rows[-1].low
        for first in {1, low, 1 + int((low - 1) * earlier)}:
            restored = restore(rows_from(driver.rows, first))
            assert restored.fold.image().since(low) == live.since(low)
            assert restored.fold.finished_turns == driver.fold.finished_turns
            assert restored.link == driver.appender.link
            last = live.last_message
            if driver.token is not None and last is not None and (not is_answer(last) or is_stopped(last)):
                assert restored.fold.image().token is not None  # the turn goes on, under its name


@given(commands)
@SETTINGS
def test_an_image_is_all_that_a_fold_needs_to_go_on(commands: list[tuple[str, int]]) -> None:
    first, second = Driver(), Driver()
    for command in commands:
        first.run([command])
        second.appender = Appender("agent", Fold(second.image()), second.appender.link, second.appender._entropy)
        second.run([command])
        first.rest()
        second.rest()
    assert first.image() == second.image()
    assert first.rows == second.rows


TIMED = (
    "timer",
    "timer",
    "timer",
    "fire",
    "fire",
    "prompt",
    "answer",
    "ask",
    "results",
    "rewind",
    "redact",
    "idle",
    "reopen",
)


@given(st.lists(st.tuples(st.sampled_from(TIMED), st.integers(0, 1000)), max_size=40))
@SETTINGS
def test_timers_are_those_that_were_set_and_have_not_fired(commands: list[tuple[str, int]]) -> None:
    driver = Driver()
    for command in commands:
        driver.run([command])
        assert driver.fold.timers == driver.timers
        assert driver.fold.next_timer == next_timer(driver.timers)
        if driver.rows:
            assert restore(rows_from(driver.rows, driver.rows[-1].low)).fold.timers == driver.timers


OUTBOX = ("deliver", "deliver", "settle", "settle", "settle", *TIMED)


@given(st.lists(st.tuples(st.sampled_from(OUTBOX), st.integers(0, 1000)), max_size=40))
@SETTINGS
def test_deliveries_are_those_that_were_named_and_have_not_ended(commands: list[tuple[str, int]]) -> None:
    driver = Driver()
    for command in commands:
        driver.run([command])
        assert driver.fold.outbox == driver.outbox
        assert [*driver.fold.outbox] == [*driver.outbox]
        if driver.rows:
            opened = restore(rows_from(driver.rows, driver.rows[-1].low)).fold
            assert (opened.outbox, opened.turn_to) == (driver.outbox, driver.fold.turn_to)


@given(st.lists(st.tuples(st.sampled_from((*COMMANDS, *OUTBOX)), st.integers(0, 1000)), max_size=40))
@SETTINGS
def test_the_destinations_of_a_turn_are_known_wherever_reading_begins_in_it(commands: list[tuple[str, int]]) -> None:
    driver = Driver()
    for command in commands:
        driver.run([command])
        if driver.rows:
            opened = restore(rows_from(driver.rows, driver.rows[-1].low)).fold
            assert (opened.turn_to, opened.to_turn) == (driver.fold.turn_to, driver.fold.to_turn)


def test_words_that_are_added_to_a_turn_do_not_forget_its_destinations() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("idle", 1)])
    link = driver.rows[-1].seq
    driver.append(DeliveriesChanged(at=driver.at(), to=("crm",), turn=driver.fold.turns))
    driver.say({"role": "user", "content": [{"text": "and this"}]})
    # Whatever a window hides: reading may begin behind the first message of the turn.
    assert restore(rows_from(driver.rows, link)).fold.turn_to == driver.fold.turn_to == ("crm",)
    driver.run([("answer", 1), ("prompt", 2)])
    assert restore(rows_from(driver.rows, link)).fold.turn_to == driver.fold.turn_to == ()


LATE = (
    *("prompt", "answer", "ask", "ask", "start", "start", "finish", "results", "rewind", "idle", "reopen", "state"),
    *("defer", "defer", "defer", "come", "come", "come", "expire", "tell", "tell", "hold", "withdraw"),
)


@given(st.lists(st.tuples(st.sampled_from(LATE), st.integers(0, 1000)), max_size=60))
@SETTINGS
def test_what_waits_and_has_come_is_what_was_done_whatever_is_restarted_or_rewound(
    commands: list[tuple[str, int]],
) -> None:
    driver = Driver()
    for command in commands:
        driver.run([command])
        late = driver.late
        folds = [driver.fold, restore(rows_from(driver.rows, driver.rows[-1].low)).fold] if driver.rows else []
        for fold in folds:
            assert {each.id: each.expires_at for each in fold.deferred.values()} == late.waits
            assert {each.id: each.starts for each in fold.came.values()} == late.came
            assert {each.id for each in fold.came.values() if each.expired} == late.expired
            assert list(fold.settled) == late.had
            assert not late.waits.keys() & late.came.keys()
            wanted = telling(fold)
            assert (wanted is not None) == any(late.came.values())
            assert wanted is None or set(wanted.ids) <= late.came.keys()


@given(commands)
@SETTINGS
def test_no_reachable_history_is_unpaired(commands: list[tuple[str, int]]) -> None:
    driver = Driver()
    driver.run([command for command in commands if command[0] not in ("rewind", "drop", "last_word", "summarise")])
    shown = [message for _, message in driver.fold.shown]
    for previous, message in zip([None, *shown], shown, strict=False):
        check_next(previous, message)


@given(commands)
@SETTINGS
def test_the_chain_holds_through_erasures(commands: list[tuple[str, int]]) -> None:
    driver = Driver()
    driver.run(commands)
    verify(driver.rows)
    for position, row in enumerate(driver.rows):
        driver.rows[position] = row.without_content()
    verify(driver.rows)


@given(st.data())
@SETTINGS
def test_every_flipped_byte_is_found(data: st.DataObject) -> None:
    driver = Driver()
    driver.run(data.draw(st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 1000)), min_size=5, max_size=15)))
    rows = driver.rows
    if len(rows) < 2:
        return  # A lone row with another number could be where a stretch begins.
    verify(rows)
    position = data.draw(st.integers(0, len(rows) - 1))
    row = rows[position]
    field = data.draw(st.sampled_from(["seq", "kind", "version", "low", "link", "salt", "body", "agent_id"]))
    value = getattr(row, field)
    if isinstance(value, bytes):
        at = data.draw(st.integers(0, len(value) - 1)) if value else 0
        changed: object = (
            value[:at] + bytes([value[at] ^ (1 << data.draw(st.integers(0, 7)))]) + value[at + 1 :]
            if value
            else b"x" * 16
        )
    elif isinstance(value, str):
        changed = value + "x"
    else:
        changed = value ^ (1 << data.draw(st.integers(0, 7)))
    rows[position] = row._replace(**{field: changed})
    with pytest.raises(CorruptJournal) as caught:
        verify(rows, session_id="session")
    assert {"session", "agent", "seq"} <= set(caught.value.fields)


def test_a_missing_row_is_found() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("answer", 1), ("prompt", 2)])
    with pytest.raises(CorruptJournal, match="gap"):
        verify([driver.rows[0], driver.rows[2]])
    with pytest.raises(CorruptJournal, match="cannot stand alone"):
        restore(driver.rows[2:])


def test_an_empty_journal_is_an_empty_fold() -> None:
    restored = restore([])
    assert restored.fold.image() == Image()
    assert restored.link is None


def test_opening_never_needs_more_than_the_window_and_what_is_restated() -> None:
    """DESIGN: opening a session costs its window, not its history."""
    driver = Driver()
    driver.append(StateChanged(at=1.0, full={"key": 1}))
    for n in range(300):
        driver.run([("prompt", 2 * n), ("answer", n)])
        excess = len(driver.fold.shown) - 40
        if excess > 0:
            driver.plan(WindowPlan(drop=excess))
        driver.run([("cursor", 1)])
        rows = driver.rows[-1].seq - driver.rows[-1].low
        assert rows <= 40 * 2 + RESTATE_AFTER + 10
    assert len(driver.fold.shown) == 40


@pytest.mark.parametrize("window", [4, 40])
def test_opening_reads_hardly_more_rows_for_the_tokens_of_earlier_turns(window: int) -> None:
    """DESIGN: tokens are stated, so that the rows of their turns need not be read."""
    read: dict[bool, list[int]] = {}
    for named in (False, True):
        driver, turns = Driver(), read.setdefault(named, [])
        for n in range(200):
            driver.say(message("user", {"text": "go"}), new_turn=True, token=f"token-{n}" if named else None)
            driver.run([("answer", 5 * n)])
            driver.plan_drop(max(0, len(driver.fold.shown) - window))
            turns.append(driver.rows[-1].seq - driver.rows[-1].low + 1)
        assert len(driver.fold.finished_turns) == (FINISHED_TURNS_MAX if named else 0)
    assert max(read[True]) <= max(*read[False], RESTATE_ANSWERS_AFTER) + 10


def test_a_change_of_a_background_run_states_no_other_run_and_no_input_again() -> None:
    """DESIGN: what is written of runs grows with them, not with their number times their inputs."""
    driver, size = Driver(), 10_000
    driver.run([("prompt", 0)])
    for n in range(100):
        use: ToolUse = {"toolUseId": f"use-{n}", "name": "tool", "input": {"text": "x" * size}}
        made = run(driver.fold, f"later-{n}", use, f"key-{n}", driver.at(), begins=n < 4)
        assert made is not None
        driver.append(made)
        driver.rows.extend(driver.appender.restate(driver.at()))
    for n in range(100):
        driver.append(change_run(driver.fold, f"later-{n}", driver.at(), attempt=1))
        assert len(driver.rows[-1].body) < 200
        for step in range(5):
            driver.append(StepStarted(at=driver.at(), tool_use_id=f"later-{n}", step=f"step {step}"))
            driver.append(StepFinished(at=driver.at(), tool_use_id=f"later-{n}", step=f"step {step}", result=step))
            driver.rows.extend(driver.appender.restate(driver.at()))
        ended = run_ended(driver.fold, f"later-{n}", result_of("", n), driver.at())
        assert ended is not None
        driver.append(ended)
        driver.rows.extend(driver.appender.restate(driver.at()))
    assert sum(len(row.body) for row in driver.rows) < 3 * 100 * size
    assert max(len(row.body) for row in driver.rows) < 2 * size


def test_a_view_change_of_a_turn_is_a_small_patch() -> None:
    """DESIGN: bytes written grow with what was added."""
    driver = Driver()
    for n in range(30):
        driver.run([("prompt", 2 * n), ("answer", n)])
    long: Message = {"role": "user", "content": [{"text": "x" * 5000}]}
    driver.plan(WindowPlan(drop=3, pinned=(0,)), summary=long)
    driver.plan(WindowPlan(drop=6, pinned=(0, 1)))
    assert driver.fold.shown.view.summary == long
    assert len(driver.rows[-1].body) < 300


def test_a_dropped_summary_is_gone_unless_pinned() -> None:
    driver = Driver()
    driver.run([("prompt", 0), ("answer", 0), ("prompt", 2), ("answer", 2)])
    summary: Message = {"role": "user", "content": [{"text": "summary"}]}
    driver.plan(WindowPlan(drop=1), summary=summary)
    driver.plan(WindowPlan(drop=2, pinned=(0,)))
    assert driver.fold.shown.messages()[0] == summary
    driver.plan(WindowPlan(drop=1))
    assert driver.fold.shown.view.summary is None


def test_a_patch_of_nothing_says_only_who_manages() -> None:
    fold = Fold()
    change = view_change(fold.shown, fold.last_seq, WindowPlan(), manager="Null", manager_state={}, at=1.0)
    assert change == ViewChanged(at=1.0, view=View(manager="Null"), patch=True)


def message(role: str, *blocks: dict[str, object]) -> Message:
    return {"role": role, "content": list(blocks)}  # type: ignore[typeddict-item]


ASK = message("assistant", {"toolUse": {"toolUseId": "one", "name": "tool", "input": {}}})


class Scene:
    """A fold that is told one record after the other."""

    def __init__(self) -> None:
        self.fold = Fold()

    def say(self, said: Message, turn: int = 1, token: str | None = None, index: int | None = None) -> None:
        index = self.fold.message_count if index is None else index
        self.apply(MessageAdded(at=1.0, message=said, turn=turn, index=index, idempotency_token=token))

    def apply(self, *records: object) -> None:
        for record in records:
            self.fold.apply(self.fold.last_seq + 1, record)  # type: ignore[arg-type]


def test_open_and_finished_tools_are_those_of_the_running_step() -> None:
    scene = Scene()
    scene.say(message("user", {"text": "go"}))
    scene.say(ASK)
    started = ToolStarted(at=1.0, tool_use_id="one", name="tool", idempotency_key="key")
    scene.apply(started)
    assert dict(scene.fold.open_tools) == {"one": started}
    scene.apply(ToolFinished(at=1.0, tool_use_id="one", result=result_of("one", 1)))
    assert dict(scene.fold.open_tools) == {}
    assert dict(scene.fold.finished_tools) == {"one": result_of("one", 1)}
    scene.say(message("user", {"toolResult": result_of("one", 1)}))
    assert dict(scene.fold.finished_tools) == {}


def test_a_tool_that_starts_again_is_open_again() -> None:
    scene = Scene()
    scene.say(message("user", {"text": "go"}))
    scene.say(ASK)
    scene.apply(ToolFinished(at=1.0, tool_use_id="one", result=result_of("one", 1)))
    scene.apply(ToolStarted(at=1.0, tool_use_id="one", name="tool", idempotency_key="key", attempt=2))
    assert scene.fold.open_tools["one"].attempt == 2
    assert dict(scene.fold.finished_tools) == {}


def test_interrupts_wait_until_they_are_answered_or_the_conversation_moves_on() -> None:
    scene = Scene()
    first, second = Interrupt(id="1", name="a", reason=None), Interrupt(id="2", name="b", reason=None)
    scene.apply(Interrupted(at=1.0, interrupts=(first, second)))
    scene.apply(Resumed(at=1.0, responses={"1": "yes"}))
    assert scene.fold.interrupts == (second,)
    assert dict(scene.fold.responses) == {"1": "yes"}
    scene.say(message("user", {"text": "never mind"}))
    assert scene.fold.interrupts == ()
    assert dict(scene.fold.responses) == {}


def test_a_token_is_finished_by_the_answer_of_its_turn() -> None:
    scene = Scene()
    scene.say(message("user", {"text": "go"}), token="token")
    assert "token" not in scene.fold.finished_turns
    scene.say(ASK)
    scene.say(message("user", {"toolResult": result_of("one", 1)}))
    scene.say(message("assistant", {"text": "done"}))
    assert dict(scene.fold.finished_turns) == {"token": FinishedTurn("token", seq=1, answer_seq=4)}


def test_tokens_that_joined_a_turn_are_finished_with_it_and_name_no_later_one() -> None:
    scene = Scene()
    scene.say(message("user", {"text": "go"}), token="token")
    scene.say(ASK)
    joins = message("user", {"toolResult": result_of("one", 1)}, {"text": "and more"})
    scene.apply(MessageAdded(at=1.0, message=joins, turn=1, index=2, joined=("steered",)))
    assert dict(scene.fold.image().tokens) == {"token": 1, "steered": 3}
    scene.say(message("assistant", {"text": "done"}))
    assert {token: turn.seq for token, turn in scene.fold.finished_turns.items()} == {"token": 1, "steered": 3}
    scene.say(message("user", {"text": "go"}), 2, token="token")
    assert dict(scene.fold.image().tokens) == {"token": 5}


def test_finished_tokens_are_bounded() -> None:
    scene = Scene()
    for turn in range(1, FINISHED_TURNS_MAX + 10):
        scene.say(message("user", {"text": "go"}), turn, token=f"token-{turn}")
        scene.say(message("assistant", {"text": "done"}), turn)
    assert len(scene.fold.finished_turns) == FINISHED_TURNS_MAX
    assert "token-9" not in scene.fold.finished_turns


def test_a_new_run_forgets_the_nodes_of_the_one_before() -> None:
    scene = Scene()
    scene.apply(NodeChanged(at=1.0, run=1, node="a", status="completed", frontier=("b",)))
    assert scene.fold.frontier == ("b",)
    scene.apply(NodeChanged(at=1.0, run=2, node="b", status="started"))
    assert list(scene.fold.nodes) == ["b"]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (MessageAdded(at=1.0, message=ASK, turn=1, index=5), "index"),
        (MessageAdded(at=1.0, message=ASK, turn=0, index=1), "turn never falls"),
        (MessageAdded(at=1.0, message=ASK, turn=1, index=1, idempotency_token="t"), "first message"),
        (ViewChanged(at=1.0, view=View(first_shown=1)), "moves forward"),
        (ViewChanged(at=1.0, view=View(first_shown=3, summary=ASK), patch=True), "state the view in full"),
        (MessageAdded(at=1.0, message=ASK, turn=1, index=1, view=View(first_shown=-1)), "moves forward"),
        (MessageAdded(at=1.0, message=ASK, turn=1, index=1, view=View(pinned={1: ASK})), "holds no messages"),
        (MessageAdded(at=1.0, message=ASK, turn=1, index=1, view=View(summary=ASK)), "holds no messages"),
        (StateChanged(at=1.0, full={}, set={"a": 1}), "no patch"),
        (NodeChanged(at=1.0, run=0, node="a", status="started"), "run never falls"),
        (Branched(at=1.0, position=1, last=1), "use `rewind`"),
    ],
)
def test_records_that_cannot_follow_are_refused_and_change_nothing(record: object, reason: str) -> None:
    scene = Scene()
    scene.say(message("user", {"text": "go"}))
    scene.apply(ViewChanged(at=1.0, view=View(first_shown=2)))
    before = scene.fold.image()
    with pytest.raises(Invalid, match=reason):
        scene.apply(record)
    assert scene.fold.image() == before


def test_a_full_view_must_state_what_is_replaced() -> None:
    scene = Scene()
    scene.say(message("user", {"text": "long"}))
    scene.apply(ViewChanged(at=1.0, view=View(replaced={1: message("user", {"text": "short"})})))
    with pytest.raises(Invalid, match="states every replaced message"):
        scene.apply(ViewChanged(at=1.0, view=View()))


def test_unpaired_tools_are_refused_before_they_are_appended() -> None:
    appender = Appender("agent", Fold(), None, lambda size: b"s" * size)
    appender.append(MessageAdded(at=1.0, message=ASK, turn=1, index=0))
    orphan = MessageAdded(at=1.0, message=message("user", {"text": "hello"}), turn=1, index=1)
    link = appender.link
    with pytest.raises(UnpairedTools):
        appender.append(orphan)
    assert (appender.link, appender.fold.last_seq) == (link, 1)


def test_an_unpaired_journal_is_corrupt() -> None:
    """STYLE H24: asserted before a record is appended and again where a journal is folded."""
    first = Appender("agent", Fold(), None, lambda size: b"s" * size)
    rows = [first.append(MessageAdded(at=1.0, message=ASK, turn=1, index=0))]
    forged = Appender("agent", Fold(Image(last_seq=1), partial=True), first.link, lambda size: b"s" * size)
    rows.append(forged.append(MessageAdded(at=1.0, message=message("user", {"text": "hi"}), turn=1, index=1)))
    with pytest.raises(CorruptJournal) as caught:
        restore(rows, session_id="session")
    assert caught.value.fields == {"session": "session", "agent": "agent", "seq": 2}


def test_an_erased_message_without_a_redaction_is_corrupt() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("answer", 1)])
    rows = [driver.rows[0].without_content(), driver.rows[1]]
    with pytest.raises(CorruptJournal, match="nothing says what took its place"):
        restore(rows)


def test_redaction_erases_every_copy() -> None:
    """DESIGN: the original is erased everywhere, not hidden."""
    driver = Driver()
    driver.run([("prompt", 2), ("ask", 0), ("start", 0), ("finish", 31415), ("results", 0), ("answer", 1)])
    driver.plan(WindowPlan(drop=3, pinned=(2,)))
    target = next(seq for seq, said in messages_of(records_of(driver.rows)).items() if "31415" in str(said))
    driver.do_redact(list(messages_of(records_of(driver.rows))).index(target))
    assert b"31415" not in b"".join(row.body for row in driver.rows)
    assert restore(driver.rows).fold.image() == driver.image()


def test_rewinding_shows_what_was_shown_and_keeps_what_lay_beyond() -> None:
    driver = Driver()
    driver.run([("prompt", 2), ("answer", 1), ("state", 1)])
    before, position = driver.fold.shown.messages(), driver.fold.last_seq
    driver.run([("prompt", 4), ("answer", 2), ("state", 2)])
    driver.do_rewind(position - 1)
    assert driver.fold.shown.messages() == before
    assert dict(driver.fold.state) == {"key-1": 1}
    driver.run([("prompt", 6), ("answer", 3)])
    assert len(driver.fold.shown) == 4
    assert len(messages_of(records_of(driver.rows))) == 6
    assert restore(driver.rows).fold.image() == driver.image()


def test_empty_cursors_need_no_row() -> None:
    scene = Scene()
    scene.apply(CursorMoved(at=1.0, positions={"store": 1}))
    assert scene.fold.anchors.cursors == 1
    scene.apply(CursorMoved(at=1.0, positions={}))
    assert scene.fold.anchors.cursors == 0


CHANGES: dict[str, Callable[[VisibleMessages], None]] = {
    "a message": lambda shown: shown.add(4, message("assistant", {"text": "four"})),
    "a drop": lambda shown: shown.change(View(first_shown=3), patch=True),
    "a summary": lambda shown: shown.change(View(summary=message("user", {"text": "all"}), first_shown=4), patch=False),
    "a pin": lambda shown: shown.change(View(first_shown=2, pinned={1: message("user", {"text": "!"})}), patch=True),
    "a replacement": lambda shown: shown.change(View(replaced={2: message("user", {"text": "!"})}), patch=True),
    "a redaction": lambda shown: shown.redact(2, message("user", {"text": "!"})),
    "a redaction of a pinned message": lambda shown: shown.redact(0, message("user", {"text": "!"})),
}


@pytest.mark.parametrize("first", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("then", CHANGES.values(), ids=CHANGES)
def test_what_a_reader_was_given_stays_as_it_was(
    first: Callable[[VisibleMessages], None], then: Callable[[VisibleMessages], None]
) -> None:
    texts = ["zero", "one", "two", "three"]
    messages = [(seq, message("user", {"text": text})) for seq, text in enumerate(texts)]
    shown = VisibleMessages(View(first_shown=1, pinned=dict(messages[:1])), messages[1:])
    given_at_first = shown.at_present
    first(shown)
    after_one, given_then = shown.messages(), shown.at_present
    then(shown)
    assert [text_of(one) for one in given_at_first.messages()] == texts
    assert given_then.messages() == after_one != given_at_first.messages()
    assert shown.messages() == [one for _, one in shown] == shown.at_present.messages()
    assert len(shown) == len(shown.messages())


def test_dropped_messages_do_not_stay_in_memory() -> None:
    shown = VisibleMessages(View(), ())
    for seq in range(1, 1001):
        shown.add(seq, message("user", {"text": str(seq)}))
        shown.change(View(first_shown=max(0, seq - 9)), patch=True)
        assert len(shown.at_present.entries) <= 2 * len(shown)
    assert [seq for seq, _ in shown] == [*range(991, 1001)]


IN_BETWEEN = [("prompt", 1), ("drop", 49), ("last_word", 20), ("answer", 9), ("idle", 25)]
IN_BETWEEN += [("defer", 31), ("state_full", 43), ("snapshot", 16), ("snapshot", 33), ("state_full", 41)]
"""So many records that the answers are stated, and the turn's own message is not read any more."""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            [("prompt", 1), ("interrupt", 19), ("resume", 26), ("again", 11), ("answer", 30), ("drop", 9)],
            id="who answered a question joined the turn with a token",
        ),
        pytest.param(
            [*IN_BETWEEN, ("reopen", 0), ("ask", 48)],
            id="a turn that was answered went on and was stopped",
        ),
    ],
)
def test_a_token_is_known_to_whoever_opens_the_journal_at_its_end(script: list[tuple[str, int]]) -> None:
    driver = Driver()
    for count in range(1, len(script) + 1):
        driver.run(script[count - 1 : count])
        opened = restore(driver.rows[driver.rows[-1].low - 1 :]).fold
        assert opened.image() == driver.image() == restore(driver.rows).fold.image(), script[:count]
