"""Any position of a journal can be read, forked and gone back to: the same is shown, whatever has happened since."""

from __future__ import annotations

import random

import pytest

from repertory.core.history.fork import fork
from repertory.core.history.rewind import rewind
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.records import Branched, MessageAdded
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row
from repertory.core.journal.whole_journal import WholeJournal, read_whole
from repertory.core.messages import Message, tool_uses
from repertory.errors import Invalid, NotFound
from tests.core.journal.journal_driver import COMMANDS, Driver

JOURNALS = 25
COMMANDS_EACH = 50
QUIET = tuple(name for name in COMMANDS if name != "redact")


def grown(rng: random.Random, names: tuple[str, ...]) -> tuple[Driver, dict[int, Image]]:
    """A journal of random commands, and the images that it had on the way."""
    driver, images = Driver(), {0: Image()}
    for _ in range(rng.randint(1, COMMANDS_EACH)):
        driver.run([(rng.choice(names), rng.randrange(1000))])
        images[driver.fold.last_seq] = driver.image()
    return driver, images


def whole(driver: Driver) -> WholeJournal:
    return read_whole(driver.rows, session_id="source", agent_id="agent")


def entropy(count: int) -> bytes:
    return b"e" * count


def same_as_shown(fold: Fold, image: Image) -> None:
    assert fold.shown.messages() == [message for _, message in image.shown]
    assert dict(fold.state) == dict(image.state)
    assert fold.last_message == image.last_message


def test_every_position_is_what_it_was(rng: random.Random) -> None:
    for _ in range(JOURNALS):
        driver, images = grown(rng, QUIET)
        journal = whole(driver)
        for position, image in images.items():
            assert journal.fold_at(position).image() == image, position


def test_a_position_before_a_redaction_is_what_it_was_or_is_refused(rng: random.Random) -> None:
    known = refused = 0
    while not (known > 300 and refused > 10):
        driver, images = grown(rng, COMMANDS)
        journal = whole(driver)
        said = {seq: record.message for seq, record in journal.records if isinstance(record, MessageAdded)}
        for position, image in images.items():
            try:
                fold = journal.fold_at(position)
            except Invalid:
                refused += 1
                continue
            known += 1
            assert [seq for seq, _ in fold.shown] == [seq for seq, _ in image.shown], position
            assert dict(fold.state) == dict(image.state)
            assert fold.last_message == (said[image.last_message_seq] if image.last_message_seq else None)


def test_the_conversation_at_a_position_is_the_last_message_and_what_led_to_it(rng: random.Random) -> None:
    for _ in range(JOURNALS):
        driver, images = grown(rng, COMMANDS)
        journal = whole(driver)
        for position in images:
            said = journal.conversation(position)
            assert list(said) == sorted(said)
            previous: Message | None = None
            for record in said.values():
                asked = {use["toolUseId"] for use in tool_uses(previous)} if previous else set()
                answered = {b["toolResult"]["toolUseId"] for b in record.message["content"] if "toolResult" in b}
                assert asked == answered
                previous = record.message


@pytest.mark.parametrize("names", [QUIET, COMMANDS], ids=["kept", "redacted"])
def test_a_fork_shows_what_its_source_showed(rng: random.Random, names: tuple[str, ...]) -> None:
    for _ in range(JOURNALS):
        driver, _ = grown(rng, names)
        journal = whole(driver)
        position = rng.randint(0, journal.last_seq)
        then = folded(journal, position)
        if then is None:
            continue
        made = fork(journal.moment(position), at=5.0, entropy=entropy)
        copy = restore(made.rows, session_id="copy").fold
        same_as_shown(copy, then.image())
        assert set(copy.open_tools) == set(then.open_tools)
        assert dict(copy.finished_tools) == dict(then.finished_tools)
        assert copy.interrupts == then.interrupts
        assert dict(copy.responses) == dict(then.responses)
        assert (dict(copy.nodes).keys(), copy.frontier, copy.run) == (dict(then.nodes).keys(), then.frontier, then.run)
        assert not copy.finished_turns
        first = read_whole(made.rows, session_id="copy", agent_id="agent").records[0][1]
        assert isinstance(first, Branched)
        assert first.source == "source/agent"


def folded(journal: WholeJournal, position: int) -> Fold | None:
    try:
        return journal.fold_at(position)
    except Invalid:
        return None


@pytest.mark.parametrize("names", [QUIET, COMMANDS], ids=["kept", "redacted"])
def test_a_fork_goes_on_and_can_be_opened_from_its_last_rows(rng: random.Random, names: tuple[str, ...]) -> None:
    for _ in range(JOURNALS):
        driver, _ = grown(rng, names)
        journal = whole(driver)
        position = rng.randint(0, journal.last_seq)
        if folded(journal, position) is None:
            continue
        copy = Driver.on(fork(journal.moment(position), at=5.0, entropy=entropy).rows)
        for _ in range(20):
            copy.run([(rng.choice(names), rng.randrange(1000))])
            opened = copy.rows[copy.rows[-1].low - 1 :]
            assert restore(opened).fold.image() == copy.image()


@pytest.mark.parametrize("names", [QUIET, COMMANDS], ids=["kept", "redacted"])
def test_a_rewind_shows_what_was_shown_then_and_can_be_undone(rng: random.Random, names: tuple[str, ...]) -> None:
    done = 0
    while done < JOURNALS:
        driver, _ = grown(rng, names)
        journal = whole(driver)
        position, end = rng.randint(0, journal.last_seq), journal.last_seq
        then = folded(journal, position)
        if then is None or waits(then) or waits(driver.fold):
            continue
        before = driver.image()
        rows = [*driver.rows, *rewind(journal, position, at=5.0, entropy=entropy)]
        same_as_shown(restore(rows).fold, then.image())
        rewound = read_whole(rows, session_id="source", agent_id="agent")
        rows += rewind(rewound, end, at=6.0, entropy=entropy)
        same_as_shown(restore(rows).fold, before)
        assert restore(rows[rows[-1].low - 1 :]).fold.image() == restore(rows).fold.image()
        done += 1


def waits(fold: Fold) -> bool:
    return fold.last_message is not None and any(tool_uses(fold.last_message))


def conversation(count: int) -> Driver:
    driver = Driver()
    for number in range(count):
        driver.run([("prompt", number), ("answer", number)])
    return driver


def test_a_fork_copies_what_is_shown_and_not_the_history() -> None:
    driver = conversation(50)
    driver.plan_drop(90)
    made = fork(whole(driver).moment(driver.fold.last_seq), at=5.0, entropy=entropy)
    assert made.messages == 10
    assert len(made.rows) < 15


def test_a_fork_takes_pinned_messages_with_the_ones_that_they_answer() -> None:
    driver = conversation(1)
    driver.run([("ask", 1), ("results", 1), ("answer", 1), ("prompt", 2), ("answer", 2)])
    driver.pin(3, drop=6)
    made = fork(whole(driver).moment(driver.fold.last_seq), at=5.0, entropy=entropy)
    copy = restore(made.rows).fold
    assert copy.shown.messages() == driver.fold.shown.messages()
    assert made.messages == 3


def test_a_position_that_is_none_is_refused() -> None:
    journal = whole(conversation(2))
    with pytest.raises(Invalid, match="no such position"):
        journal.position(99)
    with pytest.raises(Invalid, match="no such position"):
        journal.position(-1)
    with pytest.raises(NotFound, match="no snapshot has this label") as error:
        journal.position("never")
    assert error.value.fields["labels"] == []
    assert rewind(journal, journal.position(None), at=5.0, entropy=entropy)


def test_a_label_names_the_position_before_its_latest_snapshot() -> None:
    driver = conversation(1)
    driver.run([("snapshot", 7), ("prompt", 1), ("snapshot", 7), ("answer", 1)])
    journal = whole(driver)
    assert journal.position("label 7") == 4
    assert [record.label for _, record in journal.snapshots()] == ["label 7", "label 7"]


def test_going_back_into_the_middle_of_tools_is_refused() -> None:
    driver = conversation(1)
    driver.run([("ask", 1), ("start", 1), ("results", 1), ("answer", 1)])
    with pytest.raises(Invalid, match="tools are under way"):
        rewind(whole(driver), 4, at=5.0, entropy=entropy)


def test_what_was_shown_when_a_view_was_erased_is_not_guessed() -> None:
    driver = conversation(3)
    driver.pin(0, drop=2)
    pinned_at = driver.fold.last_seq
    driver.run([("prompt", 1), ("redact", 0)])
    journal = whole(driver)
    with pytest.raises(Invalid, match="what was shown at that position was erased") as error:
        journal.fold_at(pinned_at)
    assert error.value.fields["known_before"] == pinned_at - 1
    assert journal.fold_at(pinned_at - 1)
    assert journal.fold_at(journal.last_seq)


def test_rows_of_a_fork_depend_on_nothing_else() -> None:
    driver = conversation(4)
    driver.run([("state_full", 3)])
    rows: list[Row] = list(fork(whole(driver).moment(6), at=5.0, entropy=entropy).rows)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert restore(rows).fold.message_count == 6
