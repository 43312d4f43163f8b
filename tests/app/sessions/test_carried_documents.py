"""A session whose documents carry its journal, and what becomes of it when somebody meddles with them."""

from __future__ import annotations

import base64
import json
import os
import random
import re
import shutil
import stat
from pathlib import Path
from typing import Any, Literal

import pytest

from repertory import (
    Agent,
    AgentSpec,
    NullConversationManager,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    tool,
)
from repertory.backends.ports import Batch, Position
from repertory.backends.sessions.documents.journal import TreeSettings
from repertory.backends.sessions.documents.reading import named
from repertory.core.journal.records import MessageAdded, StateChanged
from repertory.core.journal.redact import redact as redact_rows
from repertory.core.journal.restore import Appender, restore
from repertory.core.messages import Message, text_of
from repertory.errors import CorruptJournal, Invalid, LeaseLost, NotFound
from repertory.testing.session_contract import grow
from tests.app.sessions.carried_documents import CarriedSession, CarriedSessions
from tests.app.sessions.tree_sessions import Died, TreeSessions

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

GOLDEN = Path(__file__).parents[2] / "golden/documented-v1"
AGENT = "session_s/agents/agent_default"


@tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def agent(folder: Path, *replies: Any, **options: Any) -> Agent:
    manager = CarriedSession("s", folder)
    return Agent(ScriptedModel(list(replies)), tools=[add], callback_handler=None, session_manager=manager, **options)


async def talk(folder: Path, *texts: str) -> None:
    async with agent(folder, *(text.upper() for text in texts)) as it:
        for text in texts:
            await it.invoke_async(text)


async def shown(folder: Path) -> list[str]:
    async with agent(folder) as it:
        await it.ready()
        return [text_of(message) for message in it.messages]


def bodies(folder: Path, *left_out: str) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*.json") if path.name not in left_out}


async def damage_is_told_and_repaired(folder: Path, file: str) -> None:
    """Whoever opens the session is told the file; the doctor finds it, and the session goes on from the rest."""
    before = bodies(folder, "repertory.json", "agent.json")
    with pytest.raises(CorruptJournal, match=rf"doctor --repair.*{file}"):
        await shown(folder)
    sessions = Sessions(CarriedSessions(folder))
    (health,) = (await sessions.doctor()).sessions
    assert any(re.search(file, problem) for problem in health.problems), health.problems
    (health,) = (await sessions.doctor(repair=True)).sessions
    assert health.repair is not None, health
    assert before <= bodies(folder / health.repair.moved_to)
    assert (await sessions.doctor()).ok


async def everything(folder: Path) -> list[str]:
    async with agent(folder) as it:
        return [text_of(message) for message in await it.history()]


def message(folder: Path, number: int) -> Path:
    return folder / AGENT / "messages" / f"message_{number}.json"


def document(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def write_foreign(folder: Path, number: int, role: str, *blocks: dict[str, Any]) -> None:
    """A message as a tool writes it that knows nothing of ours."""
    said = {"role": role, "content": list(blocks)}
    when = "2026-11-21T06:03:59.807405+00:00"
    fields = {"message": said, "message_id": number, "redact_message": None, "created_at": when, "updated_at": when}
    message(folder, number).write_text(json.dumps(fields, indent=2, ensure_ascii=False))


async def test_the_tree_is_private_and_has_the_documented_names(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "sessions"
    await talk(folder, "one", "two")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {
        "session_s/session.json",
        "session_s/repertory.json",
        f"{AGENT}/agent.json",
        *(f"{AGENT}/messages/message_{number}.json" for number in range(4)),
    }
    for path in (folder.parent, folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


async def test_documents_say_what_the_layout_says(tmp_path: Path) -> None:
    async with agent(tmp_path, "grüß dich", state={"user": "ann"}) as it:
        await it.invoke_async([{"text": "hi"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}])
    said = document(message(tmp_path, 0))
    assert list(said)[:5] == ["message", "message_id", "redact_message", "created_at", "updated_at"]
    assert said["message"]["content"][1]["image"]["source"]["bytes"] == {"__bytes_encoded__": True, "data": "iVBORw=="}
    assert len(said["message"]["tracking_id"]) == 36
    assert (said["message_id"], said["redact_message"]) == (0, None)
    assert said["created_at"].endswith("+00:00")
    assert '  "message": {\n    "role": "assistant"' in message(tmp_path, 1).read_text()
    assert "grüß" in message(tmp_path, 1).read_text()
    about = document(tmp_path / AGENT / "agent.json")
    assert about["agent_id"] == "default"
    assert about["state"] == {"user": "ann"}
    assert about["conversation_manager_state"] == {
        "__name__": "SlidingWindowConversationManager",
        "removed_message_count": 0,
        "model_call_count": 0,
    }
    assert about["_internal_state"]["interrupt_state"] == {"interrupts": {}, "context": {}, "activated": False}
    assert document(tmp_path / "session_s" / "session.json")["session_type"] == "AGENT"


async def test_what_is_shown_is_told_to_others_as_a_count(tmp_path: Path) -> None:
    window = SlidingWindowConversationManager(window_size=4)
    async with agent(tmp_path, "a", "b", "c", "d", conversation_manager=window) as it:
        for text in "wxyz":
            await it.invoke_async(text)
    assert document(tmp_path / AGENT / "agent.json")["conversation_manager_state"]["removed_message_count"] == 4
    assert await shown(tmp_path) == ["y", "c", "z", "d"]


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
async def test_an_unreadable_message_at_the_end_is_told_and_set_aside(tmp_path: Path, body: bytes) -> None:
    await talk(tmp_path, "one")
    message(tmp_path, 2).write_bytes(body)
    await damage_is_told_and_repaired(tmp_path, r"message_2\.json")
    assert not message(tmp_path, 2).exists()
    assert await shown(tmp_path) == ["one", "ONE"]
    await talk(tmp_path, "two")
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO"]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_an_unreadable_message_in_the_middle_costs_that_message_alone(tmp_path: Path, number: int) -> None:
    await talk(tmp_path, "one", "two")
    message(tmp_path, number).write_bytes(b"")
    await damage_is_told_and_repaired(tmp_path, rf"message_{number}\.json")
    expected = ["one", "ONE", "two", "TWO"]
    expected[number] = "(This message was lost.)"
    assert await shown(tmp_path) == expected
    await talk(tmp_path, "three")
    assert await everything(tmp_path) == [*expected, "three", "THREE"]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_message_that_somebody_deleted_costs_that_message_alone(tmp_path: Path, number: int) -> None:
    await talk(tmp_path, "one", "two")
    message(tmp_path, number).unlink()
    await damage_is_told_and_repaired(tmp_path, rf"message_{number}\.json")
    expected = ["one", "ONE", "two", "TWO"]
    expected[number] = "(This message was lost.)"
    for _ in range(2):
        assert await shown(tmp_path) == expected
    await talk(tmp_path, "three")
    assert await everything(tmp_path) == [*expected, "three", "THREE"]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_lost_message_between_tools_leaves_them_paired(tmp_path: Path, number: int) -> None:
    async with agent(tmp_path, {"toolUse": {"name": "add", "input": {"a": 1, "b": 2}}}, "three") as it:
        await it.invoke_async("how much?")
    message(tmp_path, number).unlink()
    await damage_is_told_and_repaired(tmp_path, rf"message_{number}\.json")
    async with agent(tmp_path, "yes") as it:
        await it.invoke_async("sure?")
        uses, results = it.messages[1]["content"], it.messages[2]["content"]
    asked = [block["toolUse"]["toolUseId"] for block in uses if "toolUse" in block]
    answered = [block["toolResult"]["toolUseId"] for block in results if "toolResult" in block]
    assert len(asked) == 1
    assert asked == answered


async def test_a_lost_document_of_rows_is_told_and_what_it_amounted_to_is_kept(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    async with agent(tmp_path) as it:
        await it.ready()
        it.state.set("n", 1)
    await talk(tmp_path, "two")
    (rows,) = (tmp_path / AGENT / "repertory").glob("rows_*.json")
    rows.unlink()
    await damage_is_told_and_repaired(tmp_path, rows.name)
    async with agent(tmp_path) as it:
        await it.ready()
        assert it.state.get("n") == 1
        assert [text_of(message) for message in it.messages] == ["one", "ONE", "two", "TWO"]


async def test_more_lost_messages_than_can_be_told_name_the_document(tmp_path: Path) -> None:
    await talk(tmp_path, "one", "two")
    message(tmp_path, 1).unlink()
    message(tmp_path, 2).unlink()
    with pytest.raises(CorruptJournal, match=r"message_3\.json"):
        await shown(tmp_path)
    assert [path.name for path in sorted(message(tmp_path, 0).parent.iterdir())] == ["message_0.json", "message_3.json"]


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_a_message_that_somebody_edited_says_what_it_says_now(tmp_path: Path, number: int) -> None:
    """Other programs leave out what they do not know, so a document without our key is theirs."""
    await talk(tmp_path, "one", "two")
    said = document(message(tmp_path, number))
    said["message"]["content"] = [{"text": "edited"}]
    del said["repertory"]
    message(tmp_path, number).write_text(json.dumps(said))
    expected = ["one", "ONE", "two", "TWO"]
    expected[number] = "edited"
    for _ in range(2):
        assert await shown(tmp_path) == expected
    await talk(tmp_path, "three")
    assert await everything(tmp_path) == [*expected, "three", "THREE"]
    said["message"]["content"] = [{"text": "again"}]
    message(tmp_path, number).write_text(json.dumps(said))
    expected[number] = "again"
    assert await everything(tmp_path) == [*expected, "three", "THREE"]


@pytest.mark.parametrize("number", [0, 1, 3])
async def test_a_message_of_ours_that_was_altered_is_damage_and_stays_as_it_is_with_the_repair(
    tmp_path: Path, number: int
) -> None:
    await talk(tmp_path, "one", "two")
    path = message(tmp_path, number)
    said = document(path)
    said["message"]["content"] = [{"text": "altered"}]
    path.write_text(json.dumps(said))
    await damage_is_told_and_repaired(tmp_path, rf"message_{number}\.json")
    expected = ["one", "ONE", "two", "TWO"]
    expected[number] = "altered"
    assert await shown(tmp_path) == expected
    await talk(tmp_path, "three")
    assert await everything(tmp_path) == [*expected, "three", "THREE"]


@pytest.mark.parametrize("count", [1, 2])
async def test_messages_that_are_missing_at_the_end_are_told(tmp_path: Path, count: int) -> None:
    await talk(tmp_path, "one", "two")
    for number in range(4 - count, 4):
        message(tmp_path, number).unlink()
    await damage_is_told_and_repaired(tmp_path, "agents/agent_default/")
    assert await shown(tmp_path) == ["one", "ONE", "two", "TWO"][: 4 - count]
    await talk(tmp_path, "three")
    assert (await everything(tmp_path))[-2:] == ["three", "THREE"]


async def opened_or_told(folder: Path) -> str | None:
    """What the error says of a session that does not open any more; None for one that shows what it did."""
    try:
        assert await shown(folder) == ["one", "ONE", "two", "TWO"]
    except CorruptJournal as error:
        return str(error)
    return None


async def test_no_byte_of_a_session_changes_unnoticed(tmp_path: Path, rng: random.Random) -> None:
    """Whatever is flipped, opening gives the same or names the file, and the doctor finds it."""
    folder = tmp_path / "sessions"
    await talk(folder, "one", "two")
    files = [path for path in folder.rglob("*.json") if path.parent.name == "messages"]
    for _ in range(40):
        path = rng.choice(files)
        body = path.read_bytes()
        at = rng.randrange(len(body))
        path.write_bytes(body[:at] + bytes([body[at] ^ 1 << rng.randrange(8)]) + body[at + 1 :])
        told = await opened_or_told(folder)
        if told is not None:
            assert path.name in told
            assert not (await Sessions(CarriedSessions(folder)).doctor()).ok
        path.write_bytes(body)


async def test_a_link_in_the_place_of_a_message_is_not_followed(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    outside = tmp_path / "outside.json"
    write_foreign(tmp_path, 2, "user", {"text": "from outside"})
    message(tmp_path, 2).rename(outside)
    message(tmp_path, 2).symlink_to(outside)
    before = outside.read_bytes()
    assert await shown(tmp_path) == ["one", "ONE"]
    with pytest.raises(Invalid, match=r"message_2\.json"):
        await talk(tmp_path, "two")
    assert outside.read_bytes() == before


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


async def test_messages_of_others_are_taken_in_and_mended_once(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    use = {"toolUse": {"toolUseId": "t1", "name": "add", "input": {"a": 1, "b": 2}}}
    write_foreign(tmp_path, 2, "user", {"text": "what is 1+2?"})
    write_foreign(tmp_path, 3, "assistant", use)
    write_foreign(tmp_path, 4, "user", {"text": "never mind"})
    result = {"toolResult": {"toolUseId": "nobody", "status": "success", "content": [{"text": "?"}]}}
    write_foreign(tmp_path, 5, "user", result)
    write_foreign(tmp_path, 6, "assistant", {"text": "all right"})
    original = message(tmp_path, 4).read_bytes()
    async with agent(tmp_path, "bye") as it:
        await it.ready()
        messages = it.messages
        await it.invoke_async("thanks")
    results = messages[4]["content"][0]["toolResult"]
    assert (results["toolUseId"], results["status"]) == ("t1", "error")
    assert [text_of(one) for one in messages] == ["one", "ONE", "what is 1+2?", "", "never mind", "all right"]
    assert message(tmp_path, 4).read_bytes() == original
    assert await everything(tmp_path) == [text_of(one) for one in messages] + ["thanks", "bye"]
    segments = list((tmp_path / AGENT / "repertory").iterdir())
    assert len(segments) == 1
    assert "not paired" in segments[0].read_text()


@pytest.mark.parametrize("lost", [None, 0, 3, 20])
async def test_a_long_session_that_others_added_to_early_is_read_piece_by_piece(
    tmp_path: Path, lost: int | None
) -> None:
    """More is shown than is read in the first go, and what was not read yet is not taken for lost."""
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
        await damage_is_told_and_repaired(tmp_path, rf"message_{lost}\.json")
        expected[lost] = "(This message was lost.)"
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


async def test_a_redacted_message_is_in_no_document_any_more(tmp_path: Path) -> None:
    secret = "hunter2"
    async with agent(tmp_path, "noted", "and?", state={"n": 1}) as it:
        await it.invoke_async(f"my password is {secret}")
        await it.invoke_async("go on")
    await redact(CarriedSessions(tmp_path), 2, {"role": "user", "content": [{"text": "[redacted]"}]})
    assert_nowhere(tmp_path, secret)
    said = document(message(tmp_path, 0))
    assert said["message"] == said["redact_message"]
    assert said["message"]["content"] == [{"text": "[redacted]"}]
    assert said["message"]["tracking_id"]
    for _ in range(2):
        assert await shown(tmp_path) == ["[redacted]", "noted", "go on", "and?"]
    await talk(tmp_path, "three")
    assert (await everything(tmp_path))[:2] == ["[redacted]", "noted"]


async def test_a_redacted_message_of_another_tool_is_gone_as_well(tmp_path: Path) -> None:
    await talk(tmp_path, "one")
    write_foreign(tmp_path, 2, "user", {"text": "hunter2"})
    write_foreign(tmp_path, 3, "assistant", {"text": "noted"})
    await shown(tmp_path)
    await redact(CarriedSessions(tmp_path), 3, {"role": "user", "content": [{"text": "[redacted]"}]})
    assert_nowhere(tmp_path, "hunter2")
    for _ in range(2):
        assert await shown(tmp_path) == ["one", "ONE", "[redacted]", "noted"]


def assert_nowhere(folder: Path, text: str) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or text.encode() not in path.read_bytes(), path


async def redact(place: CarriedSessions | TreeSessions, target: int, instead: Message) -> None:
    store = place.open_store()
    lease, _ = await store.acquire("s")
    rows = await store.load("s", "default", whole=True)
    restored = restore(rows, session_id="s")
    appender = Appender("default", restored.fold, restored.link, os.urandom)
    redaction = redact_rows(appender, rows, target, instead, 2.0)
    erase = [("default", seq) for seq in redaction.erase]
    (outcome,) = await store.append([Batch(lease=lease, rows=redaction.rows, erase=erase)])
    assert isinstance(outcome, Position)
    await store.aclose()


async def test_a_redaction_that_is_cut_off_anywhere_is_finished_by_the_next_owner() -> None:
    instead: Message = {"role": "user", "content": [{"text": "[redacted]"}]}
    for dies_at in range(40):
        place = TreeSessions(settings=TreeSettings())
        model = ScriptedModel(["noted", "and?"])
        async with Agent(model, callback_handler=None, session_manager=place) as it:
            await it.invoke_async("hunter2")
            await it.invoke_async("go on")
        place.dies_at = len(place.requests) + dies_at
        try:
            await redact(place, 1, instead)
            done = True
        except (Died, AssertionError):
            done = False
        place.dies_at = None
        place.settings = TreeSettings(prove_s=0.0)
        async with Agent(ScriptedModel(["ok"]), callback_handler=None, session_manager=place.after_death()) as it:
            await it.invoke_async("still there?")
            texts = [text_of(one) for one in it.messages]
        left = [key for key, kept in place.shelf.objects.items() if b"hunter2" in kept.body]
        assert texts[1:] == ["noted", "go on", "and?", "still there?", "ok"]
        assert (texts[0], bool(left)) in (("[redacted]", False), ("hunter2", True)), (dies_at, texts[0], left)
        if done:
            assert not left
            break
    else:
        pytest.fail("the redaction never came to its end")


@pytest.mark.parametrize("with_message", [True, False])
async def test_what_a_fenced_owner_writes_within_its_proof_is_no_second_truth(with_message: bool) -> None:
    place = TreeSessions(settings=TreeSettings(prove_s=60.0))
    old, new = place.open_store(), place.open_store()
    lease, _ = await old.acquire("s")
    rows = grow(2)
    await old.append([Batch(lease=lease, rows=rows)])
    taken, _ = await new.acquire("s", takeover=True)
    assert len(await new.load("s", "default")) == 2
    fold = restore(rows).fold
    theirs = Appender("default", restore(rows).fold, rows[-1].link, lambda size: b"t" * size)
    appender = Appender("default", fold, rows[-1].link, lambda size: b"s" * size)
    mine = [appender.append(StateChanged(at=3.0, set={"n": 1}))]
    if with_message:
        late = [theirs.append(MessageAdded(at=3.0, message=said("user", "late"), turn=2, index=2))]
    else:
        late = [theirs.append(StateChanged(at=3.0, set={"n": number})) for number in range(2)]
    assert isinstance((await old.append([Batch(lease=lease, rows=late)]))[0], Position)
    (outcome,) = await new.append([Batch(lease=taken, rows=mine)])
    if not with_message:
        assert isinstance(outcome, LeaseLost)
    await new.aclose()
    third = place.open_store()
    await third.acquire("s", takeover=True)
    found = restore(await third.load("s", "default", whole=True)).fold
    texts = [text_of(message) for _, message in found.shown]
    assert texts == ["default says 0", "default says 1", *(["late"] if with_message else [])]
    await third.aclose()
    await old.aclose()


def said(role: Literal["user", "assistant"], text: str) -> Message:
    return {"role": role, "content": [{"text": text}]}


@pytest.mark.parametrize("name", ["both", "theirs"])
async def test_trees_of_earlier_releases_and_of_the_package_are_read_for_ever(tmp_path: Path, name: str) -> None:
    """`both`: ours and strands-agents 1.62.0 in turn, with tools, a picture and a redaction; `theirs`: its alone."""
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    shutil.copytree(GOLDEN / name, tmp_path, dirs_exist_ok=True)
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


async def test_one_manager_serves_several_agents_in_one_session(tmp_path: Path) -> None:
    manager = CarriedSession("s", tmp_path)
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
    assert not (tmp_path / "session_s").exists()
    await store.aclose()


async def test_a_runtime_keeps_sessions_in_a_folder(tmp_path: Path) -> None:
    async with Runtime(sessions=CarriedSessions(tmp_path)) as runtime:
        hosted = runtime.agent(AgentSpec(model=ScriptedModel(["ok"], loop=True)))
        for turn in range(2):
            for name in ("one", "two"):
                result = await hosted.session(name).invoke(f"turn {turn}")
                assert str(result).strip() == "ok"
    store = CarriedSessions(tmp_path).open_store()
    assert {info.session_id: info.owner for info in await store.sessions()} == {"one": None, "two": None}
    await store.aclose()


# --------------------------------------------------------------------------------------------- names that are shortened


def sharing(prefix: str, letter: str) -> tuple[str, str]:
    """An id that is shortened in the name of its folder, and another one that is that name."""
    long = letter * 255
    return long, named(prefix, long).removeprefix(prefix)


@pytest.mark.parametrize("swapped", [False, True])
async def test_two_sessions_never_share_a_folder(tmp_path: Path, swapped: bool) -> None:
    one, other = sharing("session_", "a")
    first, second = (other, one) if swapped else (one, other)
    assert named("session_", first) == named("session_", second)

    def agent_of(session_id: str) -> Agent:
        manager = CarriedSession(session_id, tmp_path)
        return Agent(ScriptedModel(["hello"]), session_manager=manager, callback_handler=None)

    async with agent_of(first) as it:
        await it.invoke_async("mine")
    sessions = Sessions(CarriedSessions(tmp_path))
    with pytest.raises(Invalid, match="another session has the folder"):
        await agent_of(second).invoke_async("theirs")
    for refused in (sessions.show(second), sessions.delete(second)):
        with pytest.raises((Invalid, NotFound)):
            await refused
    async with agent_of(first) as it:
        await it.ready()
        assert [text_of(message) for message in it.messages] == ["mine", "hello"]
    assert [info.session_id for info in await sessions.list()] == [first]


async def test_two_agents_never_share_a_folder(tmp_path: Path) -> None:
    one, other = sharing("agent_", "b")
    for agent_id in (one, other):
        it = Agent(
            ScriptedModel(["hello"]),
            session_manager=CarriedSession("s", tmp_path),
            callback_handler=None,
            agent_id=agent_id,
        )
        if agent_id == one:
            await it.invoke_async("mine")
        else:
            with pytest.raises(Invalid, match="another agent has the folder"):
                await it.invoke_async("theirs")
        await it.shutdown_async()
    (info,) = await Sessions(CarriedSessions(tmp_path)).list()
    assert list(info.agents) == [one]
