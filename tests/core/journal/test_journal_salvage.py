"""What can be used of a damaged journal is the longest beginning that is proved and amounts to something."""

from __future__ import annotations

import random

import pytest

from repertory.core.journal.codec import encode
from repertory.core.journal.examination import REPAIRED_LABEL, examine, repaired
from repertory.core.journal.records import Branched, MessageAdded, SnapshotTaken, View
from repertory.core.journal.restore import records_of, restore
from repertory.core.journal.rows import SALT_BYTES, Row, link_of, verify
from repertory.core.journal.whole_journal import read_whole
from repertory.errors import CorruptJournal
from tests.core.journal.journal_driver import COMMANDS, Driver


def journal(rng: random.Random) -> list[Row]:
    driver = Driver()
    driver.run([("prompt", 1), *((rng.choice(COMMANDS), rng.randrange(1000)) for _ in range(rng.randint(3, 40)))])
    return driver.rows


def damaged(rng: random.Random, rows: list[Row]) -> list[Row]:
    """Rows as they may be found: some gone, some edited, some doubled, in any order."""
    found = list(rows)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(found))
        row = found[place]
        match rng.randrange(6):
            case 0:
                del found[place:]
            case 1:
                del found[place]
            case 2:
                found[place] = row._replace(body=row.body + b" ")
            case 3:
                found[place] = row._replace(kind=rng.choice([0, 99, 300, -1]))
            case 4:
                found[place] = row._replace(link=bytes(16))
            case _:
                found.insert(place, row)
        if not found:
            break
    rng.shuffle(found)
    return found


def usable_by_definition(rows: list[Row], found: list[Row]) -> int:
    """How many of the first rows are all there, and amount to something together."""
    there = {row.seq for row in found if row == rows[row.seq - 1]} if found else set()
    end = next((n for n in range(len(rows)) if n + 1 not in there), len(rows))
    for count in range(end, -1, -1):
        try:
            restore(rows[:count])
        except CorruptJournal:
            continue
        return count
    return 0


def test_the_longest_sound_beginning_is_found_whatever_is_wrong(rng: random.Random) -> None:
    for _ in range(300):
        rows = journal(rng)
        found = damaged(rng, rows)
        examined = examine("agent", found)
        assert list(examined.usable) == rows[: usable_by_definition(rows, found)]
        assert (examined.fault is None) == (len(examined.usable) == examined.last_seq)
        goes_on = repaired(examined, None, at=9.0, entropy=lambda count: b"e" * count)
        verify(goes_on)
        restore(goes_on)
        if examined.fault is None:
            assert goes_on == list(examined.usable)
        elif examined.usable:
            (_, last) = records_of(goes_on)[-1]
            assert isinstance(last, SnapshotTaken)
            assert last.label == REPAIRED_LABEL
            assert last.metadata["kept"] == len(goes_on) - 1


def test_a_sound_journal_that_is_moved_says_why() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("answer", 2)])
    rows = repaired(examine("agent", driver.rows), "the head was lost", at=9.0, entropy=lambda count: b"e" * count)
    (_, last) = records_of(rows)[-1]
    assert isinstance(last, SnapshotTaken)
    assert last.metadata == {"why": "the head was lost", "kept": 2, "set_aside": 0}


def test_of_two_rows_that_fit_the_erased_one_is_taken() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("answer", 2), ("state", 1), ("prompt", 3)])
    state = driver.rows[2]
    for found in ([*driver.rows, state.without_content()], [state.without_content(), *driver.rows]):
        assert examine("agent", found).usable[2].erased


@pytest.mark.parametrize("agent_id", ["other", "agent2"])
def test_rows_of_another_agent_prove_nothing(agent_id: str) -> None:
    driver = Driver()
    driver.run([("prompt", 1)])
    examined = examine(agent_id, [row._replace(agent_id=agent_id) for row in driver.rows])
    assert list(examined.usable) == []
    assert examined.fault is not None


def test_a_branch_that_names_a_message_behind_it_is_refused_and_not_walked_for_ever() -> None:
    """Its links are right: somebody has made it so."""
    driver = Driver()
    driver.run([("prompt", 1), ("answer", 2)])
    end = driver.fold.last_seq
    said = MessageAdded(at=1.0, message={"role": "user", "content": [{"text": "again"}]}, turn=2, index=2)
    rows = list(driver.rows)
    for record in (Branched(at=1.0, position=1, last=end + 2, message_count=2, turns=1, view=View()), said):
        kind, body = encode(record)
        row = Row("agent", len(rows) + 1, kind, 1, 1, b"", b"s" * SALT_BYTES, body)
        rows.append(row._replace(link=link_of(rows[-1].link, row)))
    whole = read_whole(rows, session_id="session", agent_id="agent")
    for call in (lambda: whole.conversation(len(rows)), lambda: restore(rows, session_id="session")):
        with pytest.raises(CorruptJournal, match="a branch goes back to an earlier record") as caught:
            call()
        assert caught.value.fields["seq"] == end + 1
    assert len(examine("agent", rows).usable) == end
