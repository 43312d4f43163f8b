"""Taking in what others have written: what they show is shown here, and nothing that was said is forgotten."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import INTERRUPTED_TEXT, Message, text_of, tool_results
from repertory.core.snapshots.document import SnapshotContent, snapshot_content
from repertory.core.snapshots.intake import Published, identity, taken_in
from repertory.core.window.decision import WindowPlan
from repertory.core.window.editing import view_change

USE: Message = {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "add", "input": {}}}]}
RESULT: Message = {
    "role": "user",
    "content": [{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "3"}]}}],
}


def said(role: Any, text: str) -> Message:
    return {"role": role, "content": [{"text": text}]}


def talk(*texts: str) -> list[Message]:
    return [said("assistant" if number % 2 else "user", text) for number, text in enumerate(texts)]


class Journal:
    """An agent's journal that grows by hand."""

    def __init__(self, *messages: Message) -> None:
        self.appender = Appender("default", Fold(), None, lambda size: b"s" * size)
        self.rows: list[Row] = []
        self.say(*messages)

    def say(self, *messages: Message) -> None:
        for message in messages:
            fold = self.appender.fold
            turn = fold.turns + (message["role"] == "user" and not any(tool_results(message)))
            record = MessageAdded(at=1.0, message=message, turn=max(1, turn), index=fold.message_count)
            self.rows.append(self.appender.append(record))

    def hide(self, drop: int, summary: Message | None = None, pinned: tuple[int, ...] = ()) -> None:
        fold, plan = self.appender.fold, WindowPlan(drop=drop, summary=summary, pinned=pinned)
        change = view_change(fold.shown, fold.last_seq, plan, manager="M", manager_state={}, at=1.0)
        self.rows.append(self.appender.append(change))

    def published(self) -> Published:
        return Published.of(snapshot_content(self.appender.fold, None, ""))

    def take_in(self, messages: Sequence[Message], published: Published | None = None, **content: Any) -> list[Row]:
        content = {"state": dict(self.appender.fold.state), **content}
        made = taken_in(self.appender, SnapshotContent(messages=messages, **content), 2.0, published)
        self.rows += made
        assert restore(self.rows).fold.image() == self.appender.fold.image()
        return made

    @property
    def shown(self) -> list[Message]:
        return self.appender.fold.shown.messages()

    @property
    def history(self) -> list[str]:
        return [text_of(message) for message in messages_of(records_of(self.rows)).values()]


def test_what_nobody_has_changed_makes_no_records() -> None:
    journal = Journal(*talk("a", "b"))
    named: list[Message] = [{**message, "tracking_id": "x", "metadata": {}} for message in talk("a", "b")]  # type: ignore[misc]
    assert journal.take_in(named) == []


def test_a_snapshot_is_a_new_journal_where_there_is_none() -> None:
    journal = Journal()
    messages = [said("user", "add"), USE, RESULT, said("assistant", "3")]
    journal.take_in(messages, state={"k": 1}, manager={"removed_message_count": 4})
    assert journal.shown == messages
    assert journal.appender.fold.state == {"k": 1}
    assert journal.appender.fold.turns == 1


def test_messages_that_were_added_are_added() -> None:
    journal = Journal(*talk("a", "b"))
    made = journal.take_in(talk("a", "b", "c", "d"))
    assert journal.history == ["a", "b", "c", "d"]
    assert len(made) == 2
    assert journal.appender.fold.turns == 2


def test_what_their_window_hides_is_hidden() -> None:
    journal = Journal(*talk("a", "b", "c", "d"))
    journal.take_in(talk("a", "b", "c", "d", "e", "f")[2:], manager={"__name__": "W", "removed_message_count": 2})
    assert journal.shown == talk("c", "d", "e", "f")
    assert journal.history == ["a", "b", "c", "d", "e", "f"]
    view = journal.appender.fold.shown.view
    assert (view.manager, view.manager_state["removed_message_count"]) == ("W", 2)


@pytest.mark.parametrize("theirs", [(), ("a", "b"), ("a", "x"), ("z", "b", "c"), ("a", "b", "y", "z")], ids=repr)
def test_anything_else_is_shown_instead_and_nothing_is_forgotten(theirs: tuple[str, ...]) -> None:
    journal = Journal(*talk("a", "b", "c", "d"))
    journal.take_in(talk(*theirs))
    assert journal.shown == talk(*theirs)
    assert journal.history == ["a", "b", "c", "d", *theirs]


def test_tools_that_wait_are_closed_before_another_conversation_is_shown() -> None:
    journal = Journal(said("user", "add"), USE)
    journal.take_in(talk("x", "y"))
    assert journal.shown == talk("x", "y")
    assert INTERRUPTED_TEXT in str(list(messages_of(records_of(journal.rows)).values())[2])


def test_broken_pairs_are_mended_by_records_that_say_so() -> None:
    journal = Journal(*talk("a", "b"))
    made = journal.take_in([*talk("a", "b"), said("user", "add"), USE, said("user", "never mind"), RESULT])
    repaired = [record.repaired for _, record in records_of(made) if isinstance(record, MessageAdded)]
    assert repaired == [None, None, "tool uses and results were not paired"]
    assert [message["role"] for message in journal.shown] == ["user", "assistant", "user", "assistant", "user"]


def test_the_state_is_theirs() -> None:
    journal = Journal(*talk("a"))
    journal.rows.append(journal.appender.append(StateChanged(at=1.0, full={"k": 1, "gone": 2})))
    journal.take_in(talk("a"), state={"k": 3})
    assert journal.appender.fold.state == {"k": 3}


def test_what_was_said_here_meanwhile_stays_and_theirs_comes_behind() -> None:
    journal = Journal(*talk("a", "b"))
    published = journal.published()
    journal.say(*talk("ours", "yes"))
    journal.rows.append(journal.appender.append(StateChanged(at=1.0, set={"ours": 1})))
    journal.take_in(talk("a", "b", "theirs", "no"), published, state={})
    assert journal.shown == talk("a", "b", "ours", "yes", "theirs", "no")
    assert journal.appender.fold.state == {"ours": 1}


def test_when_they_have_gone_back_meanwhile_theirs_is_shown() -> None:
    journal = Journal(*talk("a", "b", "c", "d"))
    published = journal.published()
    journal.say(*talk("ours", "yes"))
    journal.take_in(talk("a", "b", "theirs", "no"), published)
    assert journal.shown == talk("a", "b", "theirs", "no")


def test_a_summary_stays_a_summary() -> None:
    journal = Journal(*talk("a", "b", "c", "d"))
    summary = said("user", "so far: ab")
    journal.hide(2, summary)
    theirs = [summary, *talk("c", "d", "e", "f")]
    journal.take_in(theirs, manager={"summary_message": summary, "removed_message_count": 2})
    assert journal.shown == theirs
    assert journal.appender.fold.shown.view.summary == summary
    longer = said("user", "so far: abcd")
    journal.take_in([longer, *talk("e", "f", "g", "h")], manager={"summary_message": longer})
    assert journal.shown == [longer, *talk("e", "f", "g", "h")]
    assert journal.appender.fold.shown.view.summary == longer
    journal.take_in(talk("g", "h"))
    assert journal.shown == talk("g", "h")
    assert journal.appender.fold.shown.view.summary is None
    assert journal.history == ["a", "b", "c", "d", "e", "f", "g", "h"]


def test_pinned_messages_are_met_where_they_are_shown() -> None:
    journal = Journal(*talk("a", "b", "c", "d"))
    journal.hide(2, pinned=(0,))
    assert journal.shown == [said("user", "a"), *talk("c", "d")]
    journal.take_in([said("user", "a"), *talk("c", "d", "e", "f")])
    assert journal.shown == [said("user", "a"), *talk("c", "d", "e", "f")]
    journal.take_in(talk("c", "d", "e", "f", "g"))
    assert journal.shown == talk("c", "d", "e", "f", "g")


def test_any_two_who_take_turns_show_the_same_and_forget_nothing(rng: random.Random) -> None:
    """Each in turn hides some, says some, and now and then begins something else; the other one takes it in."""
    journal, theirs, everything = Journal(), list[Message](), list[str]()
    for step in range(100):
        if rng.random() < 0.5:
            if rng.random() < 0.5:
                journal.hide(rng.randrange(len(journal.shown) + 1))
            texts = [f"ours {step} {number}" for number in range(2 * rng.randrange(3))]
            journal.say(*talk(*texts))
            theirs = list(journal.shown)
        else:
            if rng.random() < 0.3:
                del theirs[: rng.randrange(len(theirs) + 1)]
            if rng.random() < 0.1:
                del theirs[rng.randrange(len(theirs) + 1) :]
            if theirs and theirs[-1]["role"] == "user":
                theirs.pop()
            texts = [f"theirs {step} {number}" for number in range(2 * rng.randrange(3))]
            theirs += talk(*texts)
            journal.take_in(theirs)
            assert list(map(identity, journal.shown)) == list(map(identity, theirs))
        everything += texts
        assert set(everything) <= set(journal.history)
