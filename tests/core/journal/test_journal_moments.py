"""A position is the same whether it is read from the few rows that opening there takes, or out of the whole journal."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from repertory.core.history.fork import fork, tells_enough
from repertory.core.history.prune import PrunePolicy, prune
from repertory.core.history.rewind import go_back, rewind
from repertory.core.history.timeline import Mark, mark_rows
from repertory.core.journal.image import Anchors, Image
from repertory.core.journal.paths import path_to, within
from repertory.core.journal.restore import Appender, Restored, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.journal.whole_journal import PointInTime, WholeJournal, moment_and_end, moment_of, read_whole, tells
from repertory.core.messages import tool_uses
from repertory.errors import Invalid
from tests.core.journal.journal_driver import COMMANDS, Driver

QUIET = tuple(name for name in COMMANDS if name != "redact")
REPEATING = (*COMMANDS, "truncate", "truncate", "rewind", "redact", "summarise", "state_full")
"""Messages are repeated in views and rewinds, and erased there."""


def entropy(count: int) -> bytes:
    return b"e" * count


def grown(rng: random.Random, names: tuple[str, ...] = COMMANDS) -> tuple[Driver, dict[int, Image]]:
    driver, images = Driver(), {0: Image()}
    driver.run([("prompt", 1)])
    for _ in range(rng.randint(1, 60)):
        driver.run([(rng.choice(names), rng.randrange(1000))])
        images[driver.fold.last_seq] = driver.image()
    return driver, images


def whole(driver: Driver) -> WholeJournal:
    return read_whole(driver.rows, session_id="source", agent_id="agent")


def few(rows: list[Row], position: int) -> PointInTime | None:
    return moment_of(rows[rows[position - 1].low - 1 : position], session_id="source", agent_id="agent")


def test_any_position_is_what_was_live_then(rng: random.Random) -> None:
    """Every position of journals with rewinds is there, from few rows; with redactions, or it says that it cannot."""
    told = refused = 0
    while told < 500 or refused < 20:
        names = rng.choice((QUIET, COMMANDS))
        driver, images = grown(rng, names)
        journal = whole(driver)
        for position, image in list(images.items())[1:]:
            moment = few(driver.rows, position)
            if moment is None:
                assert any(row.erased for row in driver.rows)
                refused += 1
                continue
            told += 1
            assert moment.fold.image() == journal.fold_at(position).image()
            assert moment.fold.shown.messages() == [message for _, message in image.shown]
            assert dict(moment.fold.state) == dict(image.state)
            assert moment.link == driver.rows[position - 1].link


class Remembering(Driver):
    """One that still has what it erased."""

    def __init__(self) -> None:
        super().__init__()
        self.originals: dict[int, Row] = {}

    def do_redact(self, number: int) -> None:
        self.originals |= {row.seq: row for row in self.rows if not row.erased}
        super().do_redact(number)

    def as_if_nothing_was_erased(self) -> WholeJournal:
        rows = [self.originals.get(row.seq, row) if row.erased else row for row in self.rows]
        return read_whole(rows, session_id="source", agent_id="agent")


def test_what_is_told_of_a_position_is_what_it_was_before_anything_was_erased(rng: random.Random) -> None:
    """Whichever way it is read. What tools, late ones too, questions and timers left behind reads as if it had not been
    there: no fork has them, and a rewind leaves timers as they are.
    """
    told = refused = 0
    while told < 500 or refused < 50:
        driver = Remembering()
        driver.run([("prompt", 1)])
        driver.run([(rng.choice(REPEATING), rng.randrange(1000)) for _ in range(rng.randint(1, 60))])
        journal, true = whole(driver), driver.as_if_nothing_was_erased()
        erased = (row.seq for row in driver.rows if row.erased and row.kind != RecordKind.MESSAGE)
        for position in range(next(erased, journal.last_seq), journal.last_seq + 1):
            moment = few(driver.rows, position)
            try:
                image = journal.fold_at(position).image()
            except Invalid:
                assert moment is None
                refused += 1
                continue
            told += 1
            assert moment is None or moment.fold.image() == image
            assert without_erased(image) == without_erased(true.fold_at(position).image())


def without_erased(image: Image) -> Image:
    tools = replace(image, open_tools={}, finished_tools={}, steps={}, parked={}, questions=(), responses={})
    return replace(
        tools, anchors=Anchors(), timers={}, deferred={}, came={}, settled=(), outbox={}, turn_to=(), to_turn=0
    )


def test_a_view_that_was_erased_does_not_matter_behind_a_patch_that_says_as_much() -> None:
    driver = Driver()
    driver.run([("prompt", 2), ("truncate", 0), ("answer", 1)])
    driver.plan_drop(1)
    was, position = driver.image(), driver.fold.last_seq
    driver.run([("redact", 0)])
    assert [row.seq for row in driver.rows if row.erased] == [1, 2]
    journal, moment = whole(driver), few(driver.rows, position)
    assert moment is not None
    assert moment.fold.image() == journal.fold_at(position).image() == was
    rows = go_back(moment, restore(driver.rows), at=5.0, entropy=entropy)
    assert rows == rewind(journal, position, at=5.0, entropy=entropy)
    assert fork(moment, at=5.0, entropy=entropy) == fork(journal.moment(position), at=5.0, entropy=entropy)
    with pytest.raises(Invalid, match="what was shown at that position was erased"):
        journal.fold_at(position - 1)


def test_after_a_rewind_that_was_erased_a_full_view_and_state_do_not_tell_what_was_said_last() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("truncate", 0), ("answer", 1), ("prompt", 2), ("rewind", 2)])
    driver.run([("summarise", 2), ("state_full", 1)])
    position, last = driver.fold.last_seq, driver.fold.last_message
    driver.run([("redact", 0)])
    assert [row.seq for row in driver.rows if row.erased] == [1, 2, 5]
    journal = whole(driver)
    assert few(driver.rows, position) is None
    with pytest.raises(Invalid, match="where the conversation had gone back to at that position was erased") as error:
        journal.fold_at(position)
    assert error.value.fields["known_before"] == 1
    assert journal.fold_at(journal.last_seq).last_message == last


def test_going_back_and_forking_make_the_same_rows_from_few(rng: random.Random) -> None:
    rewound = forked = 0
    while rewound < 40 or forked < 40:
        driver, _ = grown(rng)
        journal = whole(driver)
        position = rng.randint(1, journal.last_seq)
        moment = few(driver.rows, position)
        if moment is None:
            continue
        if not any(tool_uses(moment.fold.last_message)) if moment.fold.last_message is not None else True:
            opened = restore(driver.rows[driver.rows[-1].low - 1 :])
            rows = go_back(moment, Restored(fold=opened.fold, link=opened.link), at=5.0, entropy=entropy)
            assert rows == rewind(journal, position, at=5.0, entropy=entropy)
            rewound += 1
        said = journal.moment(position).messages
        moment = moment.knowing({seq: said[seq] for seq in moment.missing})
        if tells_enough(moment):
            ours = fork(moment, at=5.0, entropy=entropy)
            assert ours == fork(journal.moment(position), at=5.0, entropy=entropy)
            forked += 1


def test_a_position_and_the_end_are_the_same_when_they_are_read_together(rng: random.Random) -> None:
    together = apart = 0
    while together < 60 or apart < 20:
        driver, _ = grown(rng)
        rows = driver.rows
        position = rng.randint(1, rows[-1].seq)
        stretch = rows[rng.randint(1, rows[-1].low) - 1 :]
        found = moment_and_end(stretch, position, session_id="source", agent_id="agent")
        if found is None:
            assert any(row.erased for row in stretch) or not tells(stretch, position)
            apart += 1
            continue
        together += 1
        then, now = found
        alone, opened = few(rows, position), restore(rows[rows[-1].low - 1 :])
        assert alone is not None
        assert then.fold.image() == alone.fold.image()
        assert now.fold.image() == opened.fold.image()
        assert (then.link, then.position, now.link) == (alone.link, position, opened.link)
        assert {seq: then.messages[seq] for seq in alone.messages} == alone.messages
        if not any(tool_uses(alone.fold.last_message)) if alone.fold.last_message is not None else True:
            ours = go_back(then, now, at=5.0, entropy=entropy)
            assert ours == go_back(alone, opened, at=5.0, entropy=entropy)


def test_what_led_to_a_position_is_the_conversation_and_nothing_else(rng: random.Random) -> None:
    for _ in range(40):
        driver, _ = grown(rng, QUIET)
        journal = whole(driver)
        position = rng.randint(1, journal.last_seq)
        stretches = path_to(journal.records, position)
        said = [seq for seq, record in journal.records if type(record).__name__ == "MessageAdded"]
        assert [seq for seq in said if within(seq, stretches)] == list(journal.conversation(position))


def test_marks_name_what_is_meant_and_prove_it() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("answer", 1), ("prompt", 2), ("answer", 2)])
    end, links = driver.fold.last_seq, {2: driver.rows[1].link}
    appender = Appender("agent", driver.fold, driver.rows[-1].link, entropy)
    marks = [Mark(label="now"), Mark(label="also", metadata={"why": "so"}), Mark(label="then", position=2)]
    rows = [*driver.rows, *mark_rows(appender, marks, links, 9.0)]
    journal = read_whole(rows, session_id="s", agent_id="agent")
    assert [journal.position(each) for each in ("now", "also", "then")] == [end, end, 2]
    digests = [mark.digest for _, mark in journal.snapshots()]
    assert digests == [rows[end - 1].link.hex()] * 2 + [rows[1].link.hex()]
    assert all(len(row.body) + 40 < 300 for row in rows[end:])


@pytest.mark.parametrize("label", ["", "12", "a\nb", "x" * 256])
def test_a_label_that_could_not_be_told_from_a_number_or_not_be_read_is_refused(label: str) -> None:
    driver = Driver()
    driver.run([("prompt", 1)])
    with pytest.raises(Invalid):
        mark_rows(driver.appender, [Mark(label=label)], {}, 1.0)


def test_pruning_lets_go_of_left_ways_and_changes_nothing_that_stands(rng: random.Random) -> None:
    """What stands at the end and at every mark that stays is the same; what lies beyond says nothing any more."""
    pruned = 0
    while pruned < 25:
        driver, _ = grown(rng)
        journal = whole(driver)
        found = prune(journal, PrunePolicy(keep=rng.randint(0, 3), beyond=True), 9.0)
        if not found.erase:
            continue
        before = journal.fold_at(journal.last_seq).image()
        staying = journal.snapshots()[len(found.marks) :]
        then = {mark.label: standing(journal, journal.position(mark.label)) for _, mark in staying}
        rows = [row.without_content() if row.seq in found.erase else row for row in driver.rows]
        rows += driver.appender.append_all(found.redactions)
        after = read_whole(rows, session_id="source", agent_id="agent")
        now = after.fold_at(after.last_seq).image()
        assert (list(now.shown), now.state, now.last_message) == (list(before.shown), before.state, before.last_message)
        assert {label: standing(after, after.position(label)) for label in then} == then
        assert restore(rows[rows[-1].low - 1 :]).fold.image() == now
        again = prune(after, PrunePolicy(keep=3, beyond=True), 9.0)
        assert not again.redactions
        pruned += 1


def standing(journal: WholeJournal, position: int) -> object:
    try:
        fold = journal.fold_at(position)
    except Invalid:
        return None
    return fold.shown.messages(), dict(fold.state)
