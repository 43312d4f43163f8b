"""A session as documents in a folder: what they say, and what becomes of it when somebody meddles with them."""

from __future__ import annotations

import base64
import json
import os
import random
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    FileSessionManager,
    FileSessions,
    NullConversationManager,
    Runtime,
    S3SessionManager,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    tool,
)
from repertory.backends.folders import Put
from repertory.backends.objects import files
from repertory.backends.ports import Batch, Position
from repertory.backends.sessions.documents import folder_trees
from repertory.backends.sessions.documents.reading import named
from repertory.backends.sessions.log import log_file
from repertory.core.journal.rows import Row
from repertory.core.messages import LOST_TEXT, text_of
from repertory.errors import Invalid, NotFound, SessionException, Unavailable
from repertory.testing.session_contract import grow
from tests.app.sessions.bucket_in_folder import BucketInFolder, SessionInFolder
from tests.backends.sessions.log_places import folder_store

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

GOLDEN = Path(__file__).parents[2] / "golden/documented-v1"
AGENT = "session_s/agents/agent_default"


KIND: ContextVar[str] = ContextVar("KIND", default="folder")


@pytest.fixture(params=["folder", "bucket"], autouse=True)
def kind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test runs with a log beside the tree, and with the objects of a bucket."""
    token = KIND.set(request.param)
    yield
    KIND.reset(token)


in_a_folder = pytest.mark.parametrize("kind", ["folder"], indirect=True)
"""For what only a folder has: syncs, links, times, a log."""


def manager_of(session_id: str, folder: Path) -> Any:
    return FileSessionManager(session_id, folder) if KIND.get() == "folder" else SessionInFolder(session_id, folder)


def sessions_in(folder: Path) -> Any:
    return FileSessions(folder) if KIND.get() == "folder" else BucketInFolder(folder)


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent(folder: Path, *replies: Any, **options: Any) -> Agent:
    manager = manager_of("s", folder)
    return Agent(ScriptedModel(list(replies)), tools=[add], callback_handler=None, session_manager=manager, **options)


async def talk(folder: Path, *texts: str) -> None:
    async with agent(folder, *(text.upper() for text in texts)) as it:
        for text in texts:
            await it.invoke_async(text)


async def shown(folder: Path) -> list[str]:
    async with agent(folder) as it:
        await it.ready()
        return [text_of(message) for message in it.messages]


async def everything(folder: Path) -> list[str]:
    async with agent(folder) as it:
        return [text_of(message) for message in await it.history()]


def message(folder: Path, number: int) -> Path:
    return folder / AGENT / "messages" / f"message_{number}.json"


def document(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def numbers(folder: Path) -> list[int]:
    names = [path.stem for path in (folder / AGENT / "messages").glob("message_*.json")]
    return sorted(int(name.removeprefix("message_")) for name in names)


def write_foreign(folder: Path, number: int, role: str, *blocks: dict[str, Any]) -> None:
    """A message as a tool writes it that knows nothing of ours."""
    said = {"role": role, "content": list(blocks)}
    when = "2026-11-21T06:03:59.807405+00:00"
    fields = {"message": said, "message_id": number, "redact_message": None, "created_at": when, "updated_at": when}
    message(folder, number).write_text(json.dumps(fields, indent=2, ensure_ascii=False))


def tick(folder: Path) -> None:
    """Wait until the file system's clock goes on: what is changed in place now is younger than what stands there."""
    probe = folder / "probe"
    last = max(path.stat().st_ctime_ns for path in folder.rglob("*"))
    probe.touch()
    while probe.stat().st_ctime_ns <= last:
        probe.chmod(0o600)
    probe.unlink()


def edit(folder: Path, number: int, text: str) -> None:
    tick(folder)
    said = document(message(folder, number))
    said["message"]["content"] = [{"text": text}]
    message(folder, number).write_text(json.dumps(said))


async def is_sound_and_goes_on(folder: Path, *expected: str) -> None:
    """Every opening finds the same, and a turn is added behind it."""
    for _ in range(2):
        assert await shown(folder) == list(expected)
    await talk(folder, "more")
    assert await shown(folder) == [*expected, "more", "MORE"]
    assert (await Sessions(sessions_in(folder)).doctor()).ok


# --------------------------------------------------------------------------------------------------- what is written


@in_a_folder
async def test_a_turn_outside_any_block_is_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    it = Agent(ScriptedModel(["yes"], loop=True), callback_handler=None, session_manager=manager_of("s", tmp_path))
    await it.invoke_async("hello")
    monkeypatch.setattr(log_file, "_sync_data", done.append)
    monkeypatch.setattr(os, "fsync", done.append)
    for _ in range(2, 25):
        done.clear()
        await it.invoke_async("hello")
        assert len(done) == 1
    assert numbers(tmp_path) == list(range(48))


@in_a_folder
async def test_the_tree_is_private_and_has_the_documented_names(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "sessions"
    await talk(folder, "one", "two")
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "session_s/session.json",
        "session_s/repertory/owner",
        "session_s/repertory/journal.log",
        "session_s/repertory/tree/agent_default.json",
        f"{AGENT}/agent.json",
        *(f"{AGENT}/messages/message_{number}.json" for number in range(4)),
    }
    for path in (folder.parent, folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_documents_have_the_keys_of_the_layout_and_no_other(tmp_path: Path) -> None:
    async with agent(tmp_path, "grüß dich", state={"user": "ann"}) as it:
        await it.invoke_async([{"text": "hi"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}])
    said = document(message(tmp_path, 0))
    assert list(said) == ["message", "message_id", "redact_message", "created_at", "updated_at"]
    assert said["message"]["content"][1]["image"]["source"]["bytes"] == {"__bytes_encoded__": True, "data": "iVBORw=="}
    assert len(said["message"]["tracking_id"]) == 36
    assert (said["message_id"], said["redact_message"]) == (0, None)
    assert said["created_at"].endswith("+00:00")
    assert '  "message": {\n    "role": "assistant"' in message(tmp_path, 1).read_text()
    assert "grüß" in message(tmp_path, 1).read_text()
    about = document(tmp_path / AGENT / "agent.json")
    assert list(about) == [
        "agent_id",
        "state",
        "conversation_manager_state",
        "_internal_state",
        "created_at",
        "updated_at",
    ]
    assert about["state"] == {"user": "ann"}
    assert about["conversation_manager_state"] == {
        "__name__": "SlidingWindowConversationManager",
        "removed_message_count": 0,
        "model_call_count": 0,
    }
    assert about["_internal_state"]["interrupt_state"] == {"interrupts": {}, "context": {}, "activated": False}
    assert document(tmp_path / "session_s" / "session.json")["session_type"] == "AGENT"


async def test_a_part_that_only_its_provider_can_read_is_words_in_a_document_and_whole_in_the_journal(
    tmp_path: Path,
) -> None:
    part = {"provider": "anthropic", "content": {"type": "server_tool_use", "name": "web_search", "input": {"q": "x"}}}
    async with agent(tmp_path, [{"providerContent": part}, {"text": "found"}]) as it:
        await it.invoke_async("look it up")
    text = message(tmp_path, 1).read_text()
    assert "repertory" not in text
    assert "providerContent" not in text
    async with agent(tmp_path) as it:
        await it.ready()
        assert it.messages[1]["content"][0] == {"providerContent": part}


async def test_what_is_shown_is_told_to_others_as_a_count(tmp_path: Path) -> None:
    window = SlidingWindowConversationManager(window_size=4)
    async with agent(tmp_path, "a", "b", "c", "d", conversation_manager=window) as it:
        for text in "wxyz":
            await it.invoke_async(text)
    assert document(tmp_path / AGENT / "agent.json")["conversation_manager_state"]["removed_message_count"] == 4
    assert await shown(tmp_path) == ["y", "c", "z", "d"]


# ----------------------------------------------------------------------------------------------- what others have done


async def test_a_stranger_beside_the_messages_is_left_alone(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    folder = message(tmp_path, 0).parent
    strays = ["message_bak.json", "message_07.json", ".strands_x.tmp", "notes.txt", "message_1.json~"]
    for name in strays:
        (folder / name).write_text("{")
    assert await shown(tmp_path) == ["one", "ONE"]
    await talk(tmp_path, "two")
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO"]
    assert all((folder / name).read_text() == "{" for name in strays)


@pytest.mark.parametrize("body", [b"", b'{"message": {"role": "user"', b"\0" * 40, b"[]", b"\xff\xfe"])
async def test_an_unreadable_message_of_another_program_is_left_alone_until_it_can_be_read(
    tmp_path: Path, body: bytes
) -> None:
    await talk(tmp_path, "one")
    message(tmp_path, 2).write_bytes(body)
    assert await shown(tmp_path) == ["one", "ONE"]
    (health,) = (await Sessions(sessions_in(tmp_path)).doctor()).sessions
    assert any("message_2.json" in problem for problem in health.problems)
    await talk(tmp_path, "two")
    assert message(tmp_path, 2).read_bytes() == body
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]
    tick(tmp_path)
    write_foreign(tmp_path, 2, "user", {"text": "late"})
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO", "late"]


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("body", [b"", b"{", b"\0" * 40])
async def test_an_unreadable_message_of_ours_is_set_aside_and_written_again(
    tmp_path: Path, number: int, body: bytes
) -> None:
    await talk(tmp_path, "one", "two")
    before = message(tmp_path, number).read_bytes()
    tick(tmp_path)
    message(tmp_path, number).write_bytes(body)
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "two", "TWO")
    assert message(tmp_path, number).read_bytes() == before
    assert (tmp_path / AGENT / "repertory/unreadable" / f"message_{number}.json").read_bytes() == body


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_message_that_somebody_removed_from_the_middle_is_erased(tmp_path: Path, number: int) -> None:
    await talk(tmp_path, "hunter2", "two")
    message(tmp_path, number).unlink()
    expected = ["hunter2", "HUNTER2", "two", "TWO"]
    gone, expected[number] = expected[number], LOST_TEXT
    await is_sound_and_goes_on(tmp_path, *expected)
    assert not message(tmp_path, number).exists()
    assert_nowhere(tmp_path, gone)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
async def test_messages_that_somebody_removed_at_the_end_are_gone_from_the_conversation(
    tmp_path: Path, count: int
) -> None:
    async with agent(tmp_path, "ONE", "TWO", state={"n": 1}) as it:
        await it.invoke_async("one")
        await it.invoke_async("two")
    for number in range(4 - count, 4):
        message(tmp_path, number).unlink()
    async with agent(tmp_path) as it:
        await it.ready()
        assert it.state.get() == {"n": 1}
    expected = ["one", "ONE", "two", "TWO"][: 4 - count]
    assert await shown(tmp_path) == expected
    await talk(tmp_path, "more")
    unanswered = [] if count % 2 == 0 else ["(This message was not answered: the turn ended early.)"]
    assert await shown(tmp_path) == [*expected, *unanswered, "more", "MORE"]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_removed_message_between_tools_leaves_them_paired(tmp_path: Path, number: int) -> None:
    async with agent(tmp_path, {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "three") as it:
        await it.invoke_async("how much?")
    message(tmp_path, number).unlink()
    async with agent(tmp_path, "yes") as it:
        await it.invoke_async("sure?")
        uses, results = it.messages[1]["content"], it.messages[2]["content"]
    asked = [block["toolUse"]["toolUseId"] for block in uses if "toolUse" in block]
    answered = [block["toolResult"]["toolUseId"] for block in results if "toolResult" in block]
    assert len(asked) == 1
    assert asked == answered


@pytest.mark.parametrize("last", [2, 3])
async def test_tools_stay_paired_when_messages_at_the_end_are_removed(tmp_path: Path, last: int) -> None:
    async with agent(tmp_path, {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "three") as it:
        await it.invoke_async("how much?")
    for number in range(last, 4):
        message(tmp_path, number).unlink()
    async with agent(tmp_path, "yes") as it:
        assert str(await it.invoke_async("sure?")) == "yes"
        pairs = [next(iter(block)) for one in it.messages for block in one["content"] if "text" not in block]
    assert pairs == ["toolUse", "toolResult"]


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_a_message_that_somebody_edited_says_what_it_says_now(tmp_path: Path, number: int) -> None:
    await talk(tmp_path, "one", "two")
    edit(tmp_path, number, "edited")
    gone = ["one", "ONE", "two", "TWO"]
    expected = [*gone]
    expected[number] = "edited"
    body = message(tmp_path, number).read_bytes()
    await is_sound_and_goes_on(tmp_path, *expected)
    assert message(tmp_path, number).read_bytes() == body
    if KIND.get() == "folder":
        assert b'"' + gone[number].encode() + b'"' not in (tmp_path / "session_s/repertory/journal.log").read_bytes()
    edit(tmp_path, number, "again")
    expected[number] = "again"
    assert await everything(tmp_path) == [*expected, "more", "MORE"]


async def test_a_message_that_somebody_edits_between_two_calls_says_what_it_says_now(tmp_path: Path) -> None:
    it = agent(tmp_path, "ONE", "TWO")
    await it.invoke_async("one")
    new = message(tmp_path, 0).with_suffix(".new")
    new.write_text(message(tmp_path, 0).read_text().replace("one", "edited"))
    new.rename(message(tmp_path, 0))
    await it.invoke_async("two")
    if KIND.get() == "folder":  # In a bucket, whoever opens the session next sees it.
        assert [text_of(each) for each in it.messages] == ["edited", "ONE", "two", "TWO"]
    await it.shutdown_async()
    assert await everything(tmp_path) == ["edited", "ONE", "two", "TWO"]


async def test_a_byte_that_changes_is_an_edit_or_is_mended(tmp_path: Path, rng: random.Random) -> None:
    """Whatever is flipped in a document, the session opens, and the doctor finds it sound."""
    folder = tmp_path / "sessions"
    await talk(folder, "one", "two")
    paths = [path for path in (folder / AGENT).rglob("*.json") if "repertory" not in path.parts]
    for _ in range(40):
        path = rng.choice(paths)
        body = path.read_bytes()
        tick(folder)
        at = rng.randrange(len(body))
        path.write_bytes(body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :])
        assert len(await shown(folder)) <= 4, "a digit may say that fewer are shown"
        assert len(await everything(folder)) == 4
        report = await Sessions(sessions_in(folder)).doctor()
        assert report.ok, report


async def test_a_link_in_the_place_of_a_message_is_not_followed(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    outside = tmp_path / "outside.json"
    write_foreign(tmp_path, 2, "user", {"text": "from outside"})
    message(tmp_path, 2).rename(outside)
    message(tmp_path, 2).symlink_to(outside)
    before = outside.read_bytes()
    assert await shown(tmp_path) == ["one", "ONE"]
    await talk(tmp_path, "two")
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO"]
    assert outside.read_bytes() == before
    assert message(tmp_path, 2).is_symlink()


async def test_messages_around_a_tool_go_past_a_link_in_the_place_of_the_next_one(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    for number in (2, 4):
        message(tmp_path, number).symlink_to(tmp_path / "nowhere.json")
    asks = {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}
    async with agent(tmp_path, asks, "TWO", "THREE") as it:
        for text in ("two", "three"):
            await it.invoke_async(text)
        kept = it.messages
    assert [text_of(kept[at]) for at in (2, 5, 6, 7)] == ["two", "TWO", "three", "THREE"]
    async with agent(tmp_path) as again:
        await again.ready()
        assert again.messages == kept
    assert all(message(tmp_path, number).is_symlink() for number in (2, 4))
    assert not (tmp_path / "nowhere.json").exists()


@pytest.mark.parametrize("body", [None, b"", b"{"])
async def test_a_lost_agent_document_is_written_anew(tmp_path: Path, body: bytes | None) -> None:
    async with agent(tmp_path, "ONE", state={"n": 1}) as it:
        await it.invoke_async("one")
    path = tmp_path / AGENT / "agent.json"
    path.unlink() if body is None else path.write_bytes(body)
    async with agent(tmp_path, "TWO") as it:
        await it.invoke_async("two")
        assert it.state.get() == {"n": 1}
    assert document(path)["state"] == {"n": 1}
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO"]


async def test_a_state_that_another_program_wrote_is_taken_in(tmp_path: Path) -> None:
    path = tmp_path / AGENT / "agent.json"
    it = agent(tmp_path, "ONE", "TWO", state={"n": 1})
    await it.invoke_async("one")
    tick(tmp_path)
    path.write_text(json.dumps({**document(path), "state": {"n": 2}}))
    await it.invoke_async("two")
    if KIND.get() == "folder":  # In a bucket, whoever opens the session next sees it.
        assert it.state.get() == {"n": 2}
    await it.shutdown_async()
    async with agent(tmp_path) as again:
        await again.ready()
        assert again.state.get() == {"n": 2}


async def test_messages_of_others_are_taken_in_and_mended_once(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}}
    write_foreign(tmp_path, 2, "user", {"text": "what is 1+2?"})
    write_foreign(tmp_path, 3, "assistant", use)
    write_foreign(tmp_path, 4, "user", {"text": "never mind"})
    result = {"toolResult": {"toolUseId": "nobody", "status": "success", "content": [{"text": "?"}]}}
    write_foreign(tmp_path, 5, "user", result)
    write_foreign(tmp_path, 6, "assistant", {"text": "all right"})
    originals = [message(tmp_path, number).read_bytes() for number in range(2, 7)]
    async with agent(tmp_path, "bye") as it:
        await it.ready()
        messages = it.messages
        await it.invoke_async("thanks")
    results = messages[4]["content"][0]["toolResult"]
    assert (results["toolUseId"], results["status"]) == ("t1", "error")
    said = [text_of(one) for one in messages]
    assert said == ["one", "ONE", "what is 1+2?", "", "never mind", "all right"]
    assert [message(tmp_path, number).read_bytes() for number in range(2, 7)] == originals
    for name in ("mark is there", "mark is lost") if KIND.get() == "folder" else ("mark is there",):
        if name == "mark is lost":
            shutil.rmtree(tmp_path / "session_s/repertory/tree")
        assert (await everything(tmp_path))[: len(said)] == said


async def test_a_number_that_is_taken_while_a_turn_runs_is_left_to_whoever_took_it(tmp_path: Path) -> None:
    def meanwhile() -> str:
        """Another program answers as well."""
        write_foreign(tmp_path, 4, "user", {"text": "from elsewhere"})
        return "done"

    use = {"toolUse": {"name": "meanwhile", "input": {}}}
    model = ScriptedModel(["ONE", use, "TWO", "THREE"])
    async with Agent(
        model, tools=[tool(meanwhile)], callback_handler=None, session_manager=manager_of("s", tmp_path)
    ) as it:
        await it.invoke_async("one")
        assert str(await it.invoke_async("two")) == "TWO"
        assert numbers(tmp_path) == list(range(7))
        assert document(message(tmp_path, 4))["message"]["content"] == [{"text": "from elsewhere"}]
        await anyio.sleep(0.01)  # So that the next turn looks again.
        await it.invoke_async("three")
        texts = [text_of(one) for one in it.messages]
    unanswered = "(This message was not answered: the turn ended early.)"
    assert texts == ["one", "ONE", "two", "", "", "TWO", "from elsewhere", unanswered, "three", "THREE"]
    assert await shown(tmp_path) == texts


async def test_a_document_that_a_fenced_owner_writes_once_more_is_no_second_message(tmp_path: Path) -> None:
    """It was stopped between its commit and its documents, which the next owner has written meanwhile."""
    await talk(tmp_path, "one")
    for number in (0, 1):
        said = {**document(message(tmp_path, number)), "message_id": number + 2}
        message(tmp_path, number + 2).write_text(json.dumps(said))
    await is_sound_and_goes_on(tmp_path, "one", "ONE")
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


@in_a_folder
@pytest.mark.parametrize("name", [AGENT, f"{AGENT}/messages", f"{AGENT}/repertory", "session_s/repertory/tree"])
async def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    folder, outside = tmp_path / "sessions", tmp_path / "outside"
    await talk(folder, "one")
    (folder / AGENT / "repertory").mkdir()
    (folder / name).rename(outside)
    for path in outside.rglob("message_0.json"):
        path.write_text("{")
    (folder / name).symlink_to(outside, target_is_directory=True)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with pytest.raises(Invalid, match="link"):
        await talk(folder, "two")
    assert {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("lost", [None, 0, 3, 20])
async def test_a_long_session_that_others_added_to_early_is_opened_whole(tmp_path: Path, lost: int | None) -> None:
    everything_shown = NullConversationManager()
    await talk(tmp_path, "one")
    write_foreign(tmp_path, 2, "user", {"text": "two"})
    write_foreign(tmp_path, 3, "assistant", {"text": "TWO"})
    texts = [f"t{number}" for number in range(70)]
    async with agent(tmp_path, *(text.upper() for text in texts), conversation_manager=everything_shown) as it:
        for text in texts:
            await it.invoke_async(text)
    expected = [said for text in ("one", "two", *texts) for said in (text, text.upper())]
    if lost is not None:
        message(tmp_path, lost).unlink()
        expected[lost] = LOST_TEXT
    for _ in range(2):
        async with agent(tmp_path, conversation_manager=everything_shown) as it:
            await it.ready()
            assert [text_of(one) for one in it.messages] == expected


async def test_a_session_of_another_tool_is_gone_on_with(tmp_path: Path) -> None:
    folder = message(tmp_path, 0).parent
    folder.mkdir(parents=True)
    (tmp_path / AGENT / "agent.json").write_text(
        json.dumps(
            {
                "agent_id": "default",
                "state": {"n": 1},
                "conversation_manager_state": {
                    "summary_message": {"role": "user", "content": [{"text": "in short"}]},
                    "__name__": "SummarizingConversationManager",
                    "removed_message_count": 2,
                },
                "_internal_state": {"model_state": {"id": "m"}},
                "created_at": "2026-11-21T06:03:59+00:00",
                "updated_at": "2026-11-21T06:03:59+00:00",
            }
        )
    )
    for number in range(100):
        write_foreign(tmp_path, number, "assistant" if number % 2 else "user", {"text": f"m{number}"})
    expected = ["in short", *(f"m{number}" for number in range(2, 100))]
    assert await shown(tmp_path) == expected
    window = SlidingWindowConversationManager(window_size=200)
    async with agent(tmp_path, "ONE", conversation_manager=window) as it:
        await it.invoke_async("one")
        assert it.state.get() == {"n": 1}
    assert await shown(tmp_path) == [*expected, "one", "ONE"]
    assert await everything(tmp_path) == [*(f"m{number}" for number in range(100)), "one", "ONE"]
    about = document(tmp_path / AGENT / "agent.json")
    assert about["conversation_manager_state"] == {
        "summary_message": {"role": "user", "content": [{"text": "in short"}]},
        "__name__": "SlidingWindowConversationManager",
        "removed_message_count": 2,
        "model_call_count": 1,
    }
    assert about["_internal_state"]["model_state"] == {"id": "m"}
    assert about["created_at"] == "2026-11-21T06:03:59+00:00"


# --------------------------------------------------------------------------- trees that were copied, restored or lost


async def test_a_tree_that_was_copied_is_the_same_session(tmp_path: Path) -> None:
    await talk(tmp_path / "here", "one", "two")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    await is_sound_and_goes_on(tmp_path / "there", "one", "ONE", "two", "TWO")
    assert numbers(tmp_path / "there") == list(range(6))


async def test_documents_that_were_put_back_from_a_backup_count_as_an_edit(tmp_path: Path) -> None:
    await talk(tmp_path, "one", "two")
    shutil.copytree(tmp_path / "session_s/agents", tmp_path / "backup")
    await talk(tmp_path, "three", "four")
    shutil.rmtree(tmp_path / "session_s/agents")
    shutil.copytree(tmp_path / "backup", tmp_path / "session_s/agents")
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "two", "TWO")


async def test_a_session_whose_folder_was_removed_begins_anew(tmp_path: Path) -> None:
    it = agent(tmp_path, "ONE", *(["TWO"] if KIND.get() == "folder" else ["never shown", "TWO"]))
    await it.invoke_async("one")
    shutil.rmtree(tmp_path / "session_s")
    await it.invoke_async("two")
    assert [text_of(each) for each in it.messages] == ["two", "TWO"]
    assert await everything(tmp_path) == ["two", "TWO"]


async def test_documents_without_a_log_are_a_session_of_another_program(tmp_path: Path) -> None:
    await talk(tmp_path, "one", "two")
    shutil.rmtree(tmp_path / "session_s/repertory")
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "two", "TWO")
    assert numbers(tmp_path) == list(range(6))


@in_a_folder
async def test_a_damaged_log_is_repaired_with_what_the_documents_say(tmp_path: Path) -> None:
    await talk(tmp_path, "one", "two", "three")
    log = tmp_path / "session_s/repertory/journal.log"
    body = bytearray(log.read_bytes())
    at = body.index(b"TWO")
    body[at] ^= 1
    log.write_bytes(body)
    with pytest.raises(SessionException):
        await shown(tmp_path)
    report = await Sessions(sessions_in(tmp_path)).doctor(repair=True)
    (health,) = report.sessions
    assert health.repair is not None
    assert (tmp_path / health.repair.moved_to).is_dir()
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "two", "TWO", "three", "THREE")


@in_a_folder
@pytest.mark.parametrize("mark", ["kept", "lost", "damaged"])
@pytest.mark.parametrize("number", [0, 2, 5])
async def test_what_a_crash_of_the_machine_has_undone_is_written_again(
    tmp_path: Path, number: int, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent(tmp_path, "ONE", "TWO", "THREE") as it:
        await it.invoke_async("one")
        earlier = (tmp_path / AGENT / "agent.json").read_bytes()
        it.state.set("n", 2)
        await it.invoke_async("two")
        await it.invoke_async("three")
    marks = tmp_path / "session_s/repertory/tree/agent_default.json"
    if mark == "lost":
        marks.unlink()
    elif mark == "damaged":
        marks.write_bytes(b"\0" * 20)
    before = message(tmp_path, number).read_bytes()
    message(tmp_path, number).unlink()
    (tmp_path / AGENT / "agent.json").write_bytes(earlier)
    monkeypatch.setattr(folder_trees, "boot", lambda: "another")
    async with agent(tmp_path) as it:
        await it.ready()
        assert it.state.get() == {"n": 2}
    assert document(message(tmp_path, number))["message"] == json.loads(before)["message"]
    assert document(tmp_path / AGENT / "agent.json")["state"] == {"n": 2}
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "two", "TWO", "three", "THREE")


@in_a_folder
async def test_a_tree_that_cannot_be_written_fails_no_call_and_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    link = os.link

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    async with agent(tmp_path, "ONE", "TWO", "THREE") as it:
        await it.invoke_async("one")
        monkeypatch.setattr(files.os, "link", full)
        assert str(await it.invoke_async("two")) == "TWO"
        assert numbers(tmp_path) == [0, 1]
        assert sum("documents are not up to date" in record.message for record in caplog.records) == 1
        monkeypatch.setattr(files.os, "link", link)
        assert str(await it.invoke_async("three")) == "THREE"
    assert numbers(tmp_path) == list(range(6))
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "two", "TWO", "three", "THREE")


@in_a_folder
async def test_a_tree_that_could_not_be_written_is_written_by_whoever_opens_the_session_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    await talk(tmp_path, "one")
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "link", full)
        await talk(tmp_path, "two")
    assert numbers(tmp_path) == [0, 1]
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO"]
    assert numbers(tmp_path) == [0, 1, 2, 3]


async def test_a_reader_beside_an_owner_at_work_finds_its_rows_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner commits after the reader has read the journal. Its documents are there, and its mark is not yet."""
    owner, reader = folder_store(tmp_path, "owner"), folder_store(tmp_path, "reader")
    lease, _ = await owner.acquire("s")
    rows = grow(4)
    assert isinstance((await owner.append([Batch(lease=lease, rows=rows[:2])]))[0], Position)
    load, loads = reader._journals.load, 0

    async def late(session_id: str, agent_id: str, *, whole: bool = False) -> Sequence[Row]:
        nonlocal loads
        found = await load(session_id, agent_id, whole=whole)
        loads += 1
        if loads == 1:
            monkeypatch.setattr(folder_trees.AgentFolder, "_write_mark", lambda tree: None)
            assert isinstance((await owner.append([Batch(lease=lease, rows=rows[2:])]))[0], Position)
        return found

    monkeypatch.setattr(reader._journals, "load", late)
    assert list(await reader.load("s", "default", whole=True)) == rows
    await reader.aclose()
    await owner.aclose()


# ----------------------------------------------------------------------------------------------------------- erasing


async def test_a_redacted_message_is_in_no_document_any_more(tmp_path: Path) -> None:
    async with agent(tmp_path, "noted", "and?", state={"n": 1}) as it:
        await it.invoke_async("my password is hunter2")
        await it.invoke_async("go on")
    await Sessions(sessions_in(tmp_path)).redact("s", 2, "[redacted]")
    assert_nowhere(tmp_path, "hunter2")
    said = document(message(tmp_path, 0))
    assert said["message"] == said["redact_message"]
    assert said["message"]["content"] == [{"text": "[redacted]"}]
    assert said["message"]["tracking_id"]
    assert await shown(tmp_path) == ["[redacted]", "noted", "go on", "and?"]
    await talk(tmp_path, "three")
    assert (await everything(tmp_path))[:2] == ["[redacted]", "noted"]


async def test_a_redacted_message_of_another_tool_is_gone_as_well(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    write_foreign(tmp_path, 2, "user", {"text": "hunter2"})
    write_foreign(tmp_path, 3, "assistant", {"text": "noted"})
    await shown(tmp_path)
    history = (await Sessions(sessions_in(tmp_path)).show("s")).agents["default"].messages
    await Sessions(sessions_in(tmp_path)).redact("s", history[2].seq, "[redacted]")
    assert_nowhere(tmp_path, "hunter2")
    await is_sound_and_goes_on(tmp_path, "one", "ONE", "[redacted]", "noted")


@in_a_folder
async def test_documents_that_replace_erased_contents_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine brings back no earlier one."""
    async with agent(tmp_path, "ONE", state={"n": "hunter2"}) as it:
        await it.invoke_async("hunter2")
    lasting: dict[str, bool] = {}
    put = folder_trees.FolderTree._put

    def noted(tree: folder_trees.FolderTree, step: Put) -> None:
        lasting[step.key.rpartition("/")[2]] = step.lasting
        put(tree, step)

    monkeypatch.setattr(folder_trees.FolderTree, "_put", noted)
    await Sessions(sessions_in(tmp_path)).redact_text("s", "hunter2", "[gone]")
    assert lasting == {"message_0.json": True, "agent.json": True}
    assert_nowhere(tmp_path, "hunter2")


@in_a_folder
async def test_an_erasure_that_stays_in_a_document_is_not_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await talk(tmp_path, "hunter2")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder_trees.FolderTree, "_put", full)
        with pytest.raises(Unavailable):
            await Sessions(sessions_in(tmp_path)).redact("s", 1, "[redacted]")
    await shown(tmp_path)
    assert_nowhere(tmp_path, "hunter2")


def assert_nowhere(folder: Path, text: str) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or text.encode() not in path.read_bytes(), path


# ------------------------------------------------------------------------------------------------------------- places


async def test_trees_of_the_package_are_read_for_ever(tmp_path: Path) -> None:
    """Of strands-agents 1.62.0, with tools, a picture and a redaction."""
    expected = json.loads((GOLDEN / "theirs.expected.json").read_text())
    shutil.copytree(GOLDEN / "theirs", tmp_path, dirs_exist_ok=True)
    for _ in range(2):
        async with agent(tmp_path) as it:
            await it.ready()
            assert as_json(it.messages) == expected["shown"]
            assert as_json(await it.history()) == expected["history"]
            assert it.state.get() == expected["state"]
    await talk(tmp_path, "one more")
    assert (await everything(tmp_path))[-2:] == ["one more", "ONE MORE"]


def as_json(messages: Any) -> Any:
    """Role and content as the expectations have them."""
    said = [[one["role"], one["content"]] for one in messages]
    return json.loads(json.dumps(said, default=lambda value: {"base64": base64.b64encode(value).decode()}))


async def test_without_a_folder_sessions_lie_in_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPERTORY_HOME", str(tmp_path / "home"))
    manager = FileSessionManager(session_id="test-session")
    assert not (tmp_path / "home").exists()
    async with Agent(ScriptedModel(["Hello!"]), callback_handler=None, session_manager=manager) as it:
        await it.invoke_async("Hello!")
    messages = tmp_path / "home/sessions/session_test-session/agents/agent_default/messages"
    assert sorted(path.name for path in messages.iterdir()) == ["message_0.json", "message_1.json"]


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "a\\b", "nul\0"])
def test_managers_refuse_bad_ids_at_once(bad: str) -> None:
    for made in (lambda: FileSessionManager(bad), lambda: S3SessionManager(bad, "bucket")):
        with pytest.raises(ValueError, match="session_id"):
            made()


async def test_one_manager_serves_several_agents_in_one_session(tmp_path: Path) -> None:
    manager = manager_of("s", tmp_path)
    for turn in range(2):
        for name in ("ann", "bob"):
            model = ScriptedModel([f"{name} {turn}"])
            async with Agent(model, agent_id=name, callback_handler=None, session_manager=manager) as it:
                await it.invoke_async("hi")
                assert [text_of(one) for one in it.messages][1::2] == [f"{name} {number}" for number in range(turn + 1)]
    store = manager.sessions.open_store()
    (info,) = await store.sessions()
    assert dict(info.agents) == {"ann": 4, "bob": 4}
    await store.delete("s")
    left = [path for path in (tmp_path / "session_s").rglob("*") if path.is_file()]
    assert not any("repertory" not in path.parts for path in left), "a marker keeps former owners out of a bucket"
    assert KIND.get() == "bucket" or not left
    await store.aclose()


async def test_a_runtime_keeps_sessions_in_a_folder(tmp_path: Path) -> None:
    async with Runtime(sessions=sessions_in(tmp_path)) as runtime:
        hosted = runtime.agent(AgentSpec(model=ScriptedModel(["ok"], loop=True)))
        for turn in range(2):
            for name in ("one", "two"):
                result = await hosted.session(name).invoke(f"turn {turn}")
                assert str(result).strip() == "ok"
    store = sessions_in(tmp_path).open_store()
    assert {info.session_id: info.owner for info in await store.sessions()} == {"one": None, "two": None}
    await store.aclose()


def sharing(prefix: str, letter: str) -> tuple[str, str]:
    """An id that is shortened in the name of its folder, and another one that is that name."""
    long = letter * 255
    return long, named(prefix, long).removeprefix(prefix)


@pytest.mark.parametrize("swapped", [False, True])
async def test_two_sessions_never_share_a_folder(tmp_path: Path, swapped: bool) -> None:
    one, other = sharing("session_", "a")
    first, second = (other, one) if swapped else (one, other)

    def agent_of(session_id: str) -> Agent:
        manager = manager_of(session_id, tmp_path)
        return Agent(ScriptedModel(["hello"]), session_manager=manager, callback_handler=None)

    async with agent_of(first) as it:
        await it.invoke_async("mine")
    sessions = Sessions(sessions_in(tmp_path))
    with pytest.raises(Invalid, match="another session has the folder"):
        await agent_of(second).invoke_async("theirs")
    for refused in (sessions.show, sessions.delete):
        with pytest.raises((Invalid, NotFound)):
            await refused(second)
    async with agent_of(first) as it:
        await it.ready()
        assert [text_of(message) for message in it.messages] == ["mine", "hello"]
    assert [info.session_id for info in await sessions.list()] == [first]


async def test_two_agents_never_share_a_folder(tmp_path: Path) -> None:
    one, other = sharing("agent_", "b")
    for agent_id in (one, other):
        it = Agent(
            ScriptedModel(["hello"]),
            session_manager=manager_of("s", tmp_path),
            callback_handler=None,
            agent_id=agent_id,
        )
        if agent_id == one:
            await it.invoke_async("mine")
        else:
            with pytest.raises(Invalid, match="another agent has the folder"):
                await it.invoke_async("theirs")
        await it.shutdown_async()
    (info,) = await Sessions(sessions_in(tmp_path)).list()
    assert list(info.agents) == [one]
