"""Exports written by released versions are read for ever, and say what the journals say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from repertory.core.journal.export_lines import End, Exported, ExportReader, first_line, last_line, row_line
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal
from tests.core.journal.journal_driver import COMMANDS, Driver
from tests.core.journal.test_journal_golden import GOLDEN, read

FILE = Path(__file__).parents[2] / "golden" / "export-v1.jsonl"


def lines_of(session_id: str, rows: list[Row], at: float = 5.0) -> list[str]:
    opening = first_line(session_id, at)
    ends = {row.agent_id: End(row.seq, row.link) for row in rows}
    return [opening, *map(row_line, rows), last_line(opening, ends)]


def taken(lines: list[bytes]) -> Exported:
    reader = ExportReader("file")
    for line in lines:
        reader.take(line)
    return reader.finish()


def test_an_export_of_version_1_is_read_and_written_again() -> None:
    names = ("journal-v1-rewound.jsonl", "journal-v1-graph.jsonl")
    rows = [row for path in GOLDEN if path.name in names for row in read(path)]
    found = taken(FILE.read_bytes().splitlines())
    assert found.session_id == "desk"
    assert [row for journal in found.journals.values() for row in journal] == rows
    assert lines_of("desk", rows, at=1764000100.5) == FILE.read_text().splitlines()


def test_a_random_journal_goes_through_its_lines(rng: random.Random) -> None:
    for _ in range(30):
        driver = Driver()
        driver.run([(rng.choice(COMMANDS), rng.randrange(1000)) for _ in range(rng.randint(0, 40))])
        found = taken([line.encode() for line in lines_of("s", driver.rows)])
        assert found.journals == ({"agent": driver.rows} if driver.rows else {})


def test_a_journal_that_is_chained_and_makes_no_sense_is_refused_by_its_line() -> None:
    driver = Driver()
    driver.run([("prompt", 1), ("prompt", 2)])
    first, second = driver.rows
    erased = [first.without_content(), second]
    with pytest.raises(CorruptJournal, match="nothing says what took its place") as error:
        taken([line.encode() for line in lines_of("s", erased)])
    assert error.value.fields["line"] == 2
