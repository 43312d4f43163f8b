"""Links and pipes that somebody has put in the place of a session's files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from repertory import (
    AgentSpec,
    FileSessions,
    FileStorage,
    JournalSessions,
    Runtime,
    ScriptedModel,
    Sessions,
    SnapshotSessions,
)
from repertory.errors import RepertoryError

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def _sparse(path: Path) -> None:
    """A file of a terabyte that takes no room on the disk."""
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("plant", [_link, os.mkfifo, _sparse], ids=["link", "pipe", "sparse"])
@pytest.mark.parametrize(
    ("place_in", "file"),
    [
        (lambda folder: JournalSessions(FileStorage(folder)), "journals/bad/journal.log"),
        (FileSessions, "session_bad/repertory/journal.log"),
        (
            lambda folder: SnapshotSessions(FileStorage(folder)),
            "bad/scopes/agent/support/snapshots/snapshot_latest.json",
        ),
    ],
    ids=["journal", "documents", "snapshots"],
)
async def test_one_planted_file_keeps_no_other_session_from_its_list_and_its_doctor(
    place_in: Callable[[Path], FileSessions], file: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    place = place_in(tmp_path)
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(AgentSpec(name="support", model=ScriptedModel(["hi"], loop=True)))
        for name in ("bad", "good"):
            await agent.session(name).invoke("hello")
    (tmp_path / file).unlink()
    plant(tmp_path / file)
    with anyio.fail_after(60):
        assert {info.session_id for info in await Sessions(place).list()} == {"bad", "good"}
        report = await Sessions(place).doctor()
        assert {health.session_id for health in report.sessions if health.problems} == {"bad"}
        async with Runtime(sessions=place) as runtime:
            agent = runtime.agent(AgentSpec(name="support", model=ScriptedModel(["hi"], loop=True)))
            assert str(await agent.session("good").invoke("again")) == "hi"
            with pytest.raises(RepertoryError):
                await agent.session("bad").invoke("again")


@pytest.mark.parametrize("file", ["agent.json", "messages/message_0.json"])
@pytest.mark.parametrize("plant", [_link, os.mkfifo, _sparse], ids=["link", "pipe", "sparse"])
async def test_what_stands_in_the_place_of_a_document_is_moved_away_and_the_document_written_anew(
    file: str, plant: Callable[[Path], None], tmp_path: Path
) -> None:
    place, folder = FileSessions(tmp_path), tmp_path / "session_bad" / "agents" / "agent_support"

    async def talk() -> str:
        async with Runtime(sessions=place) as runtime:
            agent = runtime.agent(AgentSpec(name="support", model=ScriptedModel(["hi"])))
            return str(await agent.session("bad").invoke("hello"))

    await talk()
    before = (folder / file).read_bytes()
    (folder / file).unlink()
    plant(folder / file)
    with anyio.fail_after(60):
        assert await talk() == "hi"
    if file != "agent.json":
        assert (folder / file).read_bytes() == before
    assert (folder / file).is_file()
    assert not (folder / file).is_symlink()
    assert [path.name for path in (folder / "repertory" / "unreadable").iterdir()] == [Path(file).name]
    assert (await Sessions(place).doctor()).ok
    await Sessions(place).delete("bad")
    assert await Sessions(place).list() == []


@pytest.mark.parametrize("file", ["journal.log", "owner"])
async def test_a_log_beside_documents_that_is_larger_than_any_is_damage_of_its_session(
    file: str, tmp_path: Path
) -> None:
    place = FileSessions(tmp_path)
    async with Runtime(sessions=place) as runtime:
        agent = runtime.agent(AgentSpec(name="support", model=ScriptedModel(["hi"])))
        await agent.session("bad").invoke("hello")
    os.truncate(tmp_path / "session_bad" / "repertory" / file, 1 << 40)
    with anyio.fail_after(60):
        async with Runtime(sessions=place) as runtime:
            agent = runtime.agent(AgentSpec(name="support", model=ScriptedModel(["hi"], loop=True)))
            assert str(await agent.session("good").invoke("hello")) == "hi"
        await Sessions(place).delete("bad")
    assert [info.session_id for info in await Sessions(place).list()] == ["good"]
