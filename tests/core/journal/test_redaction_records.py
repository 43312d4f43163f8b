"""What is said instead of a message, and which rows go with the original."""

from __future__ import annotations

from typing import Any

import pytest

from repertory.core.interrupts import Interrupt
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import Interrupted, MessageAdded, Record, Resumed, ToolFinished, ToolStarted
from repertory.core.journal.redact import redact, without_text
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.core.messages import Message, ToolResult

NO = "[no]"
IMAGE: dict[str, Any] = {"image": {"format": "png", "source": {"bytes": b"\x89"}}}
USE: dict[str, Any] = {"toolUse": {"toolUseId": "t", "name": "add", "input": {"a": 1}}}
RESULT: dict[str, Any] = {"toolResult": {"toolUseId": "t", "status": "error", "content": [{"text": "secret"}]}}
EMPTY_USE: dict[str, Any] = {"toolUse": {"toolUseId": "t", "name": "add", "input": {}}}
NO_RESULT: dict[str, Any] = {"toolResult": {"toolUseId": "t", "status": "error", "content": [{"text": NO}]}}


@pytest.mark.parametrize(
    ("role", "content", "instead"),
    [
        ("user", [{"text": "secret"}], [{"text": NO}]),
        ("user", [{"text": "see"}, IMAGE, {"document": {}}], [{"text": NO}]),
        ("user", [], [{"text": NO}]),
        ("user", [RESULT, RESULT], [NO_RESULT, NO_RESULT]),
        ("user", [RESULT, {"text": "and?"}, IMAGE], [NO_RESULT, {"text": NO}]),
        ("assistant", [{"text": "hm"}, USE], [{"text": NO}, EMPTY_USE]),
        ("assistant", [USE], [EMPTY_USE]),
        ("assistant", [{"reasoningContent": {}}, {"text": "so"}], [{"text": NO}]),
    ],
    ids=["text", "picture", "nothing", "results", "results and words", "use and words", "use", "reasoning"],
)
def test_tools_stay_paired_and_everything_else_is_the_text(role: Any, content: Any, instead: Any) -> None:
    message: Message = {"role": role, "content": content, "tracking_id": "x", "metadata": {"custom": {"n": 1}}}
    assert without_text(message, NO) == {**message, "content": instead}
    assert message["content"] is content


class Journal:
    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.appender = Appender("agent", Fold(), None, lambda count: bytes([len(self.rows)]) * count)

    def add(self, *records: Record) -> None:
        for record in records:
            self.rows.append(self.appender.append(record))

    def say(self, *content: Any, role: Any = "user", turn: int = 1) -> Message:
        message: Message = {"role": role, "content": list(content)}
        self.add(MessageAdded(at=1.0, message=message, turn=turn, index=self.appender.fold.message_count))
        return message


def finished(journal: Journal) -> Message:
    """A turn whose tool has a result that a person gave."""
    journal.say({"text": "before"})
    journal.say({"text": "done"}, role="assistant")
    journal.say({"text": "now"}, turn=2)
    journal.say(USE, role="assistant", turn=2)
    journal.add(
        ToolStarted(at=1.0, tool_use_id="t", name="add", idempotency_key="k"),
        Interrupted(at=1.0, interrupts=(Interrupt(id="i", name="unknown", reason={"input": {"a": 1}}),)),
        Resumed(at=1.0, responses={"i": {"result": "secret"}}),
    )
    result: ToolResult = {"toolUseId": "t", "status": "error", "content": [{"text": "secret"}]}
    journal.add(ToolFinished(at=1.0, tool_use_id="t", result=result))
    return journal.say(RESULT, turn=2)


def test_what_a_person_said_of_a_tool_goes_with_its_result() -> None:
    journal = Journal()
    message = finished(journal)
    redaction = redact(journal.appender, journal.rows, 9, without_text(message, NO), 2.0)
    assert redaction.erase == (7, 8, 9)
    rows = [row.without_content() if row.seq in redaction.erase else row for row in [*journal.rows, *redaction.rows]]
    assert b"secret" not in b"".join(row.body for row in rows)
    assert restore(rows).fold.image() == journal.appender.fold.image()


def test_the_rows_of_the_turn_are_enough_for_what_it_has_said() -> None:
    journal, other = Journal(), Journal()
    message = finished(journal)
    finished(other)
    whole = redact(journal.appender, journal.rows, 9, without_text(message, NO), 2.0)
    part = redact(other.appender, other.rows[2:], 9, without_text(message, NO), 2.0)
    assert part == whole


def test_a_redaction_is_one_record_when_no_other_row_repeats_the_message() -> None:
    journal = Journal()
    message = journal.say({"text": "secret"})
    redaction = redact(journal.appender, journal.rows, 1, without_text(message, NO), 2.0)
    assert (len(redaction.rows), redaction.erase) == (1, (1,))
