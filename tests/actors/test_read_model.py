"""What readers in other threads see of a running agent: the state before or after a record, never one in between."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from repertory.actors.in_memory_journal import InMemoryJournal
from repertory.actors.journal import ActorJournal, ReadModel, ReadState
from repertory.actors.writer import CommitBuffer
from repertory.core.interrupts import Interrupt
from repertory.core.journal.fold import Fold
from repertory.core.journal.pending_tools import PendingTools, pending_tools_of
from repertory.core.journal.records import (
    Interrupted,
    MessageAdded,
    Record,
    Resumed,
    StateChanged,
    ToolFinished,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.messages import Message, error_result


def said(role: str, *blocks: dict[str, Any]) -> Message:
    return cast("Message", {"role": role, "content": [*blocks]})


USE = {"toolUse": {"toolUseId": "t", "name": "look", "input": {}}}
RESULT = error_result("t", "gone")
QUESTION = Interrupt(id="i", name="may I?")
TURN: list[Record] = [
    MessageAdded(at=1.0, message=said("user", {"text": "one"}), turn=1, index=0),
    MessageAdded(at=1.0, message=said("assistant", USE), turn=1, index=1),
    ToolStarted(at=1.0, tool_use_id="t", name="look", idempotency_key="k", attempt=1),
    Interrupted(at=1.0, interrupts=(QUESTION,), parked=("t",)),
    Resumed(at=1.0, responses={"i": "yes"}),
    ToolStarted(at=1.0, tool_use_id="t", name="look", idempotency_key="k", attempt=2),
    ToolFinished(at=1.0, tool_use_id="t", result=RESULT),
    StateChanged(at=1.0, set={"colour": "red"}),
    MessageAdded(at=1.0, message=said("user", {"toolResult": RESULT}), turn=1, index=2),
    ViewChanged(at=1.0, view=View(first_shown=2, summary=said("user", {"text": "one"}), manager_state={"n": 1})),
    MessageAdded(at=1.0, message=said("assistant", {"text": "four"}), turn=1, index=3),
]


def a_journal(read_model: ReadModel) -> ActorJournal:
    journal = ActorJournal(cast("Any", None), InMemoryJournal(), lambda: 1.0, CommitBuffer("s", "default"))
    journal.publish_to(read_model)
    return journal


def add(journal: ActorJournal, record: Record) -> None:
    if isinstance(record, ViewChanged):
        journal.add_view(record)
    else:
        journal.add(record)


Seen = tuple[list[Message], PendingTools, object, int]


def seen(now: ReadState) -> Seen:
    return now.messages(), now.pending_tools, now.manager_state, now.turns


def recorded(fold: Fold) -> Seen:
    return fold.shown.messages(), pending_tools_of(fold), fold.shown.view.manager_state, fold.turns


def test_readers_see_each_record_and_keep_what_they_have_seen() -> None:
    read_model = ReadModel()
    journal, states = a_journal(read_model), list[tuple[ReadState, Seen]]()
    for record in TURN:
        add(journal, record)
        assert seen(read_model.now) == recorded(journal.fold)
        states.append((read_model.now, recorded(journal.fold)))
    for state, then in states:
        assert seen(state) == then


def test_a_reader_in_the_middle_of_a_record_sees_the_state_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the threads were switched after every attribute that the fold assigns."""
    read_model = ReadModel()
    journal = a_journal(read_model)
    in_between = list[Seen]()

    def assign(fold: Fold, name: str, value: object) -> None:
        object.__setattr__(fold, name, value)
        in_between.append(seen(read_model.now))

    monkeypatch.setattr(Fold, "__setattr__", assign)
    for record in TURN:
        before = recorded(journal.fold)
        in_between.clear()
        add(journal, record)
        assert in_between
        assert all(one == before for one in in_between)
        assert seen(read_model.now) == recorded(journal.fold)


def test_what_a_program_shows_appears_at_once_and_counts_until_the_journal_has_it() -> None:
    read_model = ReadModel()
    journal = a_journal(read_model)
    add(journal, TURN[0])
    shown, waiting = [said("user", {"text": "instead"})], PendingTools(last=None, questions=(QUESTION,))
    read_model.show(messages=shown, pending=waiting, manager_state={"n": 2})
    now = read_model.now
    assert seen(now) == (shown, waiting, {"n": 2}, 1)
    read_model.show_edited([], waits=True)
    assert seen(read_model.now) == ([], waiting, {"n": 2}, 1)
    read_model.show_edited(shown, waits=False)
    assert read_model.pending_tools == PendingTools(last=shown[0])
    journal.publish_to(read_model)
    assert seen(read_model.now) == recorded(journal.fold)
    assert seen(now) == (shown, waiting, {"n": 2}, 1)


def test_results_of_the_running_step_show_before_they_are_recorded() -> None:
    read_model = ReadModel()
    journal = a_journal(read_model)
    for record in TURN[:3]:
        add(journal, record)
    before = read_model.now
    journal.show_result(RESULT)
    assert (read_model.pending_tools.finished, read_model.pending_tools.started) == ({"t": RESULT}, frozenset())
    assert before.pending_tools.started == {"t"}
    journal.forget_results()
    assert read_model.pending_tools == before.pending_tools
    journal.show_result(RESULT)
    add(journal, MessageAdded(at=1.0, message=said("user", {"toolResult": RESULT}), turn=1, index=2))
    assert read_model.pending_tools == pending_tools_of(journal.fold)


def test_a_thread_that_reads_all_the_time_sees_no_state_in_between() -> None:
    read_model = ReadModel()
    journal, torn, over = a_journal(read_model), list[object](), threading.Event()

    def read() -> None:
        while not over.is_set():
            now = read_model.now
            messages, pending = now.messages(), now.pending_tools
            last = messages[-1] if messages else None
            if pending.last is not last or not {*pending.starts, *pending.finished} <= {f"t{now.turns}"}:
                torn.append((now.turns, pending, last))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(1, 301):
            result = error_result(f"t{turn}", "gone")
            use = {"toolUse": {"toolUseId": f"t{turn}", "name": "look", "input": {}}}
            messages = [
                said("user", {"text": "go"}),
                said("assistant", use),
                said("user", {"toolResult": result}),
                said("assistant", {"text": "gone"}),
            ]
            for index, message in enumerate(messages, 4 * turn - 4):
                add(journal, MessageAdded(at=1.0, message=message, turn=turn, index=index))
                if message is messages[1]:
                    add(
                        journal,
                        ToolStarted(at=1.0, tool_use_id=f"t{turn}", name="look", idempotency_key="k", attempt=1),
                    )
                    journal.show_result(result)
            view = View(first_shown=max(0, journal.fold.last_seq - 8))
            add(journal, ViewChanged(at=1.0, view=view, patch=True))
    finally:
        over.set()
        reader.join()
    assert torn == []
