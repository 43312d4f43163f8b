"""A writer without the keys changes nothing that readers with the keys believe, wherever it writes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from repertory import InMemoryStorage, JournalSessions, LocalKeys
from tests.campaigns.campaigns import Report
from tests.simulation import hostile_keys
from tests.simulation.encrypted_places import place_with

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize("kind", ["sqlite", "journal in memory", "postgres"])
async def test_no_row_and_no_posted_call_of_a_writer_without_the_keys_is_believed(
    kind: str, tmp_path: Path, rng: random.Random
) -> None:
    keys = LocalKeys(tmp_path / "keys", master_key=hostile_keys.MASTER)
    place, plain = place_with(keys, kind, tmp_path), place_with(None, kind, tmp_path / "plain")
    for session_id in hostile_keys.SESSIONS:
        await hostile_keys.fill(place, session_id, hostile_keys.word_of(session_id))
    await hostile_keys.fill(plain, "s", hostile_keys.FORGED)
    report = Report()
    await hostile_keys.judge(place, report, "nothing")
    assert not report.counts["readings refused"]
    await hostile_keys.walk_rows(place, plain, rng, report)
    await hostile_keys.walk_calls(place, report)
    assert not report.faults
    assert report.counts["readings refused"] > 10


async def test_nothing_in_any_column_of_any_table_is_believed_that_was_not_said_there(
    tmp_path: Path, rng: random.Random
) -> None:
    report = Report()
    await hostile_keys.fill_files(tmp_path)
    await hostile_keys.walk_file(tmp_path, rng, report)
    assert not report.faults
    assert report.counts["readings refused"] > 10


async def test_nothing_in_any_object_is_believed_that_was_not_said_there(rng: random.Random) -> None:
    report, keys = Report(), LocalKeys(InMemoryStorage(), master_key=hostile_keys.MASTER)
    place, plain = JournalSessions(InMemoryStorage(), encryption=keys), JournalSessions(InMemoryStorage())
    for session_id in hostile_keys.SESSIONS:
        await hostile_keys.fill(place, session_id, hostile_keys.word_of(session_id))
    objects = place.storage.open_objects("reader")
    older = await hostile_keys.bodies_of(objects)
    await hostile_keys.fill(place, "s", hostile_keys.word_of("s"))
    await hostile_keys.fill(plain, "s", hostile_keys.FORGED)
    await hostile_keys.walk_objects(place, plain, older, rng, report)
    assert not report.faults
    assert report.counts["readings refused"] > 10


async def test_no_edit_of_a_key_document_gives_a_session_other_keys(rng: random.Random) -> None:
    report = Report()
    keys = LocalKeys(InMemoryStorage(), master_key=hostile_keys.MASTER)
    await hostile_keys.walk_keys(keys, rng, 60, report)
    assert not report.faults
    assert report.counts["keys refused"] > 20
