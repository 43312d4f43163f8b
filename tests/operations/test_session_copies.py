"""Sessions are exported, imported and copied row by row, on every store, and nothing half-written is left."""

from __future__ import annotations

import json
import random
import stat
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from repertory import Sessions
from repertory.app.sessions.sessions import SessionLocation
from repertory.backends.ports import SessionStore
from repertory.core.journal.rows import Row
from repertory.errors import AlreadyExists, CorruptJournal, Invalid, NotFound, SessionBusy
from repertory.operations.branching import store_session
from repertory.testing.wrapped_stores import WrappedSessionStore
from tests.operations.operated_places import LOCAL, fill, names_in, place_of, random_journal, rows_in, talk

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

T = TypeVar("T")


@pytest.fixture(params=LOCAL)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> SessionLocation:
    return place_of(request.param, tmp_path)


async def test_an_imported_session_is_the_exported_one_row_by_row(
    place: SessionLocation, tmp_path: Path, rng: random.Random
) -> None:
    driver = random_journal(rng)
    await fill(place, "s", driver.rows)
    file = tmp_path / "export.jsonl"
    report = await Sessions(place).export("s", file)
    assert report.agents == {"agent": driver.rows[-1].seq}
    done = await Sessions(place).import_(file, session_id="copy")
    assert (done.session_id, done.added) == ("copy", len(driver.rows))
    assert await rows_in(place, "copy") == driver.rows


async def test_a_session_is_copied_from_any_store_to_any_other(tmp_path: Path, rng: random.Random) -> None:
    rows = random_journal(rng).rows
    places = [place_of(kind, tmp_path / str(number)) for number, kind in enumerate(LOCAL)]
    await fill(places[0], "s", rows)
    route = [*places[1:], places[0], places[4], places[3], places[2], places[1]]
    for number, (source, target) in enumerate(zip([places[0], *route], route, strict=False)):
        report = await Sessions(source).copy("s" if number == 0 else f"s{number}", target, new_id=f"s{number + 1}")
        assert report.added == len(rows)
        assert await rows_in(target, f"s{number + 1}") == rows


async def exported(place: SessionLocation, file: Path, rng: random.Random) -> list[bytes]:
    """The lines of an export of a random session `s`."""
    await fill(place, "s", random_journal(rng).rows)
    await Sessions(place).export("s", file)
    return lines_in(file)


def lines_in(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


@pytest.fixture
def memory(tmp_path: Path) -> SessionLocation:
    return place_of("journal in memory", tmp_path)


async def test_a_file_that_was_cut_off_anywhere_names_the_line_and_adds_nothing(
    memory: SessionLocation, tmp_path: Path, rng: random.Random
) -> None:
    file = tmp_path / "s.jsonl"
    whole = b"".join(await exported(memory, file, rng))
    for end in rng.sample(range(len(whole) - 1), 60):
        file.write_bytes(whole[:end])
        with pytest.raises(CorruptJournal) as error:
            await Sessions(memory).import_(file, session_id="copy")
        assert error.value.fields["file"] == str(file)
        ended = whole[end : end + 1] == b"\n"  # a whole line: the next one is missing
        assert error.value.fields["line"] == whole[:end].count(b"\n") + (2 if ended else 1), end
    assert [info.session_id for info in await Sessions(memory).list()] == ["s"]


async def test_a_line_that_was_edited_is_named(memory: SessionLocation, tmp_path: Path, rng: random.Random) -> None:
    file = tmp_path / "s.jsonl"
    await fill(memory, "s", rng.choice([talk("one"), talk("one", "two", state={"key": 1})]).rows)
    await Sessions(memory).export("s", file)
    lines = lines_in(file)
    for number, line in enumerate(lines):
        said = json.loads(line)
        for name in said:
            edited = {**said, name: edit(said[name])}
            file.write_bytes(b"".join([*lines[:number], json.dumps(edited).encode() + b"\n", *lines[number + 1 :]]))
            with pytest.raises(CorruptJournal) as error:
                await Sessions(memory).import_(file, session_id="copy")
            # The last line proves the first: when they disagree nobody knows which of the two was edited.
            assert error.value.fields["line"] == (1 if name == "first_line" else number + 1), (name, edited)


def edit(value: object) -> object:
    match value:
        case str():
            return value.replace("1", "2") if "1" in value else f"{value}0"
        case int() | float():
            return value + 1
        case dict():
            return {key: edit(item) for key, item in value.items()}
        case _:
            return [value]


async def test_rows_that_were_swapped_removed_or_doubled_are_named(
    memory: SessionLocation, tmp_path: Path, rng: random.Random
) -> None:
    file = tmp_path / "s.jsonl"
    lines = await exported(memory, file, rng)
    place = rng.randrange(1, len(lines) - 2)
    for edited, line in [
        ([*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]], place + 1),
        ([*lines[:place], *lines[place + 1 :]], place + 1),
        ([*lines[: place + 1], lines[place], *lines[place + 1 :]], place + 2),
        ([*lines, lines[1]], len(lines) + 1),
        ([*lines, b"more\n"], len(lines) + 1),
    ]:
        file.write_bytes(b"".join(edited))
        with pytest.raises(CorruptJournal) as error:
            await Sessions(memory).import_(file, session_id="copy")
        assert error.value.fields["line"] == line


async def test_lines_that_another_system_has_ended_otherwise_are_the_same(
    memory: SessionLocation, tmp_path: Path, rng: random.Random
) -> None:
    file = tmp_path / "s.jsonl"
    lines = await exported(memory, file, rng)
    file.write_bytes(b"".join(line.replace(b"\n", b"\r\n") for line in lines) + b"\r\n\n")
    await Sessions(memory).import_(file, session_id="copy")
    assert await rows_in(memory, "copy") == await rows_in(memory, "s")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"hello\n", b"{}\n", b"[]\n", b'{"repertory_export":2,"session":"s"}\n', b"\xff\xfe\n", b"\0" * 5000],
)
async def test_what_is_no_export_is_refused_by_its_first_line(
    memory: SessionLocation, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "other"
    file.write_bytes(content)
    with pytest.raises(CorruptJournal) as error:
        await Sessions(memory).import_(file)
    assert error.value.fields["line"] == 1
    assert await Sessions(memory).list() == []


async def test_an_id_in_a_file_cannot_lead_elsewhere(memory: SessionLocation, tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    await fill(memory, "s", talk("hello").rows)
    await Sessions(memory).export("s", file)
    file.write_text(file.read_text().replace('"session":"s"', '"session":"../s"'))
    with pytest.raises(CorruptJournal, match="path separators"):
        await Sessions(memory).import_(file)


async def test_an_id_that_is_taken_is_refused_and_the_very_same_session_as_well(
    place: SessionLocation, tmp_path: Path
) -> None:
    file = tmp_path / "s.jsonl"
    await fill(place, "s", talk("hello", "good day").rows)
    await fill(place, "other", talk("something else").rows)
    await Sessions(place).export("s", file)
    with pytest.raises(AlreadyExists, match="the same session"):
        await Sessions(place).import_(file)
    with pytest.raises(AlreadyExists, match="another session has this id"):
        await Sessions(place).import_(file, session_id="other")
    with pytest.raises(AlreadyExists):
        await Sessions(place).copy("s", place, new_id="other")
    with pytest.raises(Invalid, match="an id of its own"):
        await Sessions(place).copy("s", place)
    assert len(await rows_in(place, "other")) == 1


async def test_a_copy_that_was_cut_off_is_completed(place: SessionLocation, tmp_path: Path) -> None:
    rows = talk("one", "two", "three", "four").rows
    await fill(place, "s", rows)
    await fill(place, "half", rows[:2])
    file = tmp_path / "s.jsonl"
    await Sessions(place).export("s", file)
    report = await Sessions(place).import_(file, session_id="half")
    assert (report.added, report.agents) == (2, {"agent": 4})
    assert await rows_in(place, "half") == rows


class Overtaken(WrappedSessionStore):
    """Another owner adds rows before the first lease is taken."""

    def __init__(self, store: SessionStore, place: SessionLocation, rows: Sequence[Row]) -> None:
        super().__init__(store)
        self._place, self._rows = place, rows

    async def _call(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        if name == "acquire" and self._rows:
            rows, self._rows = self._rows, ()
            await fill(self._place, "half", rows)
        return await call()

    def _step(self, name: str, step: Callable[[], bool]) -> bool:
        return step()


async def test_rows_that_an_owner_adds_until_the_import_has_the_session_are_seen_by_it(
    place: SessionLocation,
) -> None:
    rows, others = talk("one", "two", "three", "four").rows, talk("one", "two", "something else").rows
    await fill(place, "half", rows[:1])
    store = place.open_store()
    for more, message in ((others[1:], "another session has this id"), (rows[1:], "the same session")):
        overtaken = Overtaken(store, place, more)
        with pytest.raises(AlreadyExists, match=message):
            await store_session(overtaken, "half", {"agent": rows}, takeover=False)
        await Sessions(place).delete("half")
        await fill(place, "half", rows[:1])
    done = await store_session(Overtaken(store, place, rows[1:3]), "half", {"agent": rows}, takeover=False)
    assert done.added == 1
    await store.aclose()
    assert await rows_in(place, "half") == rows


async def test_an_import_does_not_touch_a_session_in_live_hands(place: SessionLocation, tmp_path: Path) -> None:
    rows = talk("one", "two", "three").rows
    await fill(place, "s", rows)
    await fill(place, "half", rows[:1])
    file = tmp_path / "s.jsonl"
    await Sessions(place).export("s", file)
    owner = place.open_store()
    await owner.acquire("half")
    with pytest.raises(SessionBusy):
        await Sessions(place).import_(file, session_id="half")
    assert (await Sessions(place).import_(file, session_id="half", takeover=True)).added == 2
    await owner.aclose()


async def test_an_export_is_for_its_user_alone_and_replaces_nothing_unasked(
    memory: SessionLocation, tmp_path: Path
) -> None:
    await fill(memory, "s", talk("hello").rows)
    file = tmp_path / "s.jsonl"
    file.write_text("mine")
    with pytest.raises(AlreadyExists):
        await Sessions(memory).export("s", file)
    assert file.read_text() == "mine"
    await Sessions(memory).export("s", file, overwrite=True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert names_in(tmp_path) == ["s.jsonl"]


async def test_an_export_that_fails_leaves_nothing(memory: SessionLocation, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await Sessions(memory).export("none", tmp_path / "s.jsonl")
    assert names_in(tmp_path) == []
    with pytest.raises(NotFound) as error:
        await Sessions(memory).export("none", tmp_path / "missing" / "s.jsonl")
    assert error.value.fields["path"] == str(tmp_path / "missing" / "s.jsonl")


async def test_a_session_with_several_agents_is_moved_whole(place: SessionLocation, tmp_path: Path) -> None:
    from repertory.testing.session_contract import grow

    rows = [*grow(3, "first"), *grow(4, "second")]
    await fill(place, "s", rows)
    file = tmp_path / "s.jsonl"
    assert (await Sessions(place).export("s", file)).agents == {"first": 3, "second": 4}
    await Sessions(place).import_(file, session_id="copy")
    assert [*await rows_in(place, "copy", "first"), *await rows_in(place, "copy", "second")] == rows


async def test_contents_that_are_no_text_survive(place: SessionLocation, tmp_path: Path) -> None:
    driver = talk("\ud800 alone", "line\u2028separators\u0085\n")
    driver.say({"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": bytes(range(256))}}}]})
    await fill(place, "s", driver.rows)
    file = tmp_path / "s.jsonl"
    await Sessions(place).export("s", file)
    assert file.read_bytes().count(b"\n") == len(driver.rows) + 2
    await Sessions(place).import_(file, session_id="copy")
    assert await rows_in(place, "copy") == driver.rows
