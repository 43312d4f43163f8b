"""The index of the example with a folder follows the folder, and an invented source is reported."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from examples.rag_over_a_folder.folder_index import PASSAGE_CHARACTERS, FolderIndex, Passage, Refreshed, passages_of
from examples.rag_over_a_folder.librarian import Librarian
from repertory import ScriptedModel, SQLiteMemoryStore

pytestmark = [pytest.mark.real_time, pytest.mark.anyio]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "handbook"
    (folder / "deep").mkdir(parents=True)
    (folder / "leave.md").write_text("# Leave\n\nThere are 28 days of leave.\n")
    (folder / "deep/trains.txt").write_text("Trains are booked early.\n\nHotels cost 120 euros.\n")
    (folder / ".hidden.txt").write_text("secret trains")
    (folder / "picture.png").write_bytes(b"trains")
    return folder


@pytest.fixture
async def index(folder: Path, tmp_path: Path) -> AsyncGenerator[FolderIndex]:
    index = FolderIndex(folder, tmp_path / "index.db")
    yield index
    await index.aclose()


async def test_the_index_follows_new_changed_restored_and_lost_files(index: FolderIndex, folder: Path) -> None:
    assert await index.refresh() == Refreshed(new=("deep/trains.txt", "leave.md"))
    assert await index.refresh() == Refreshed()
    trains = folder / "deep/trains.txt"
    old, hotel = trains.read_text(), Passage("deep/trains.txt:3", "Hotels cost 120 euros.")
    assert (await index.search("What do hotels cost?"))[0] == hotel
    assert (await index.search("leave"))[0] == Passage("leave.md:1", "# Leave\nThere are 28 days of leave.")

    trains.write_text("Hotels cost 140 euros.\n")
    assert await index.refresh() == Refreshed(changed=("deep/trains.txt",))
    assert await index.search("What do hotels cost?") == [Passage("deep/trains.txt:1", "Hotels cost 140 euros.")]

    trains.write_text(old)  # as it was before
    assert await index.refresh() == Refreshed(changed=("deep/trains.txt",))
    assert (await index.search("What do hotels cost?"))[0] == hotel
    assert all(passage.text != "Hotels cost 140 euros." for passage in await index.search("What do hotels cost?"))

    trains.unlink()
    assert await index.refresh() == Refreshed(gone=("deep/trains.txt",))
    assert await index.search("What do hotels cost?") == []


async def test_a_version_that_a_killed_process_has_not_forgotten_is_forgotten(
    index: FolderIndex, tmp_path: Path
) -> None:
    store = SQLiteMemoryStore(tmp_path / "index.db")
    said = [{"role": "user", "content": [{"text": "Hotels cost 90 euros."}]}]
    await store.add_messages(said, {"session_id": "deep/trains.txt@old", "sequence_numbers": [1], "said_at": 1.0})
    await store.aclose()
    await index.refresh()
    found = [passage.text for passage in await index.search("hotels")]
    assert found[0] == "Hotels cost 120 euros."
    assert "Hotels cost 90 euros." not in found


async def test_a_source_that_no_search_has_found_is_reported(index: FolderIndex, tmp_path: Path) -> None:
    await index.refresh()
    searching = {"toolUse": {"name": "search_folder", "input": {"question": "hotels"}}}
    model = ScriptedModel(
        [searching, "120 euros [deep/trains.txt:3], or less [prices.md:7].", "As I said [leave.md:1]."]
    )
    librarian = Librarian(index, model, tmp_path / "sessions.db")
    answer = await librarian.ask("marta", "What do hotels cost?")
    assert (answer.sources, answer.unknown) == (("deep/trains.txt:3",), ("prices.md:7",))
    later = await librarian.ask("marta", "And leave?")
    assert (later.sources, later.unknown) == ((), ("leave.md:1",))
    assert len(model.calls[-1].messages) == 5  # the conversation went on


def test_a_long_paragraph_is_split_at_its_lines() -> None:
    line = "x" * (PASSAGE_CHARACTERS // 2)
    assert [(begins, len(text)) for begins, text in passages_of(f"\n{line}\n{line}\n{line}\n")] == [
        (2, 2 * len(line) + 1),
        (4, len(line)),
    ]
    assert list(passages_of("# A heading alone\n")) == [(1, "# A heading alone")]
    assert list(passages_of(" \n\n")) == []
