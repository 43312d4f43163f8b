"""Content blocks of wrong types: no door lets them in, and a session that holds some already opens and goes on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from os import urandom
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    AgentSpec,
    FileSessionManager,
    FileSessions,
    MessageAddedEvent,
    Runtime,
    ScriptedModel,
    Sessions,
    SlidingWindowConversationManager,
    ToolContext,
    tool,
)
from repertory.app.sessions.sessions import SessionLocation
from repertory.core.journal.codec import decode, encode
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, Record, Redacted, ToolFinished, ToolStarted
from repertory.core.journal.restore import Appender
from repertory.core.journal.rows import Row
from repertory.core.messages import ToolResult, ToolUse, text_of
from repertory.errors import Invalid, ModelFailed, SnapshotException
from tests.app.sessions.tree_sessions import TreeSessions
from tests.compat.test_foreign_messages import AGENT, assistant, user, write_foreign
from tests.core.journal.journal_driver import Driver
from tests.operations.operated_places import LOCAL, fill, place_of, rows_in

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WRONG: list[Any] = [
    {"text": 5},
    {"text": None},
    {"image": "cat.png"},
    {"document": {"source": []}},
    {"toolResult": {"toolUseId": ["a"], "content": 5}},
    {"reasoningContent": {"reasoningText": "thought"}},
    {"cachePoint": True},
    "bare text",
]


def agent(*replies: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(replies)), callback_handler=None, **options)


@pytest.mark.parametrize("block", WRONG[:-1], ids=str)
async def test_a_prompt_with_a_wrong_block_is_refused_and_the_next_one_is_answered(block: Any) -> None:
    async with agent("hello") as talker:
        for prompt in ([block], [{"text": "a"}, block], [{"role": "user", "content": [block]}]):
            with pytest.raises(Invalid, match=r"content\[\d\]"):
                await talker.invoke_async(prompt)
        assert str(await talker.invoke_async("hi")).strip() == "hello"
        assert len(talker.messages) == 2


@pytest.mark.parametrize("block", WRONG, ids=str)
async def test_first_messages_and_snapshots_with_a_wrong_block_are_refused(block: Any) -> None:
    with pytest.raises(Invalid, match=r"messages\[1\]\.content\[0\]"):
        agent(messages=[user("hi"), {"role": "assistant", "content": [block]}])
    async with agent("hello") as talker:
        await talker.invoke_async("hi")
        snapshot = talker.save_snapshot()
        with pytest.raises(SnapshotException, match=r"messages\[0\]\.content\[0\]"):
            talker.load_snapshot(snapshot, overrides={"messages": [{"role": "user", "content": [block]}]})
        assert len(talker.messages) == 2


class Nonsense(ScriptedModel):
    """A model that streams what it likes, once."""

    def __init__(self, events: Sequence[Any]) -> None:
        super().__init__(["sound"])
        self._events: Sequence[Any] = events

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        events, self._events = self._events, ()
        for event in events:
            yield event
        if not events:
            async for event in super().stream(*args, **options):
                yield event


START: dict[str, Any] = {"messageStart": {"role": "assistant"}}
STOP: dict[str, Any] = {"messageStop": {"stopReason": "end_turn"}}


def delta(piece: Any) -> dict[str, Any]:
    return {"contentBlockDelta": {"contentBlockIndex": 0, "delta": piece}}


@pytest.mark.parametrize(
    "events",
    [
        [None],
        ["text"],
        [5],
        [[]],
        [START, delta({"text": 5}), STOP],
        [START, delta({"text": b"bytes"}), STOP],
        [START, delta("text"), STOP],
        [START, delta({"citation": {"title": object()}}), STOP],
        [START, delta({"citation": {"sourceContent": [{"text": 5}]}}), STOP],
        [START, delta({"citation": {"location": {1: 2}}}), STOP],
        [START, delta({"reasoningContent": {"text": 5}}), STOP],
        [START, {"contentBlockStart": {"start": {"toolUse": {"toolUseId": 5, "name": "add"}}}}, STOP],
        [START, {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "a", "name": ["add"]}}}}, STOP],
        [
            START,
            {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "a", "name": "n"}}}},
            delta({"toolUse": {"input": {}}}),
        ],
        [START, delta({"text": "a"}), {"messageStop": {"stopReason": 5}}],
        [START, delta({"text": "a"}), STOP, {"metadata": {"usage": {"inputTokens": "many"}}}],
        [START, delta({"text": "a"}), STOP, {"metadata": {"usage": {"inputTokens": 10**400}}}],
        [START, delta({"text": "a"}), STOP, {"metadata": "none"}],
    ],
)
async def test_a_model_that_streams_nonsense_gives_a_model_error_and_the_session_goes_on(events: Any) -> None:
    async with Agent(Nonsense(events), callback_handler=None, retry_strategy=None) as talker:
        with pytest.raises(ModelFailed):
            await talker.invoke_async("hi")
        assert str(await talker.invoke_async("again")).strip() == "sound"


@pytest.mark.parametrize(
    "latency_ms", [float("nan"), float("inf"), 10**400, True, "soon"], ids=lambda value: str(value)[:9]
)
async def test_a_latency_that_is_no_number_is_left_out(latency_ms: Any) -> None:
    events = [START, delta({"text": "a"}), STOP, {"metadata": {"metrics": {"latencyMs": latency_ms}}}]
    async with Agent(Nonsense(events), callback_handler=None) as talker:
        assert str(await talker.invoke_async("hi")).strip() == "a"


class RawTool:
    """A tool that gives its result itself, whatever that is."""

    name = "raw"
    effects = False
    idempotent = True
    timeout_s = None

    def __init__(self, result: Any) -> None:
        self.result = result
        self.spec = {"name": "raw", "description": "raw", "inputSchema": {"json": {"type": "object"}}}

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        return self.result


@pytest.mark.parametrize(
    "result",
    [
        None,
        {"status": "success", "content": [{"text": 5}]},
        {"status": "success", "content": ["bare"]},
        {"status": "success", "content": [{"json": object()}]},
        {"status": "success", "content": [{"json": float("nan")}]},
        {"status": "fine", "content": []},
    ],
)
async def test_a_wrong_tool_result_becomes_an_error_that_the_model_reads(result: Any) -> None:
    @tool
    def given() -> Any:
        """Give a result."""
        return result

    for each in (RawTool(result), given):
        name = "raw" if isinstance(each, RawTool) else "given"
        if name == "given" and (result is None or result["status"] == "fine"):
            continue  # A function may return anything that JSON can say.
        async with agent({"toolUse": {"name": name, "input": {}}}, "done", tools=[each]) as talker:
            assert str(await talker.invoke_async("go")).strip() == "done"
            assert talker.messages[2]["content"][0]["toolResult"]["status"] == "error"


async def test_a_hook_that_leaves_a_wrong_block_changes_nothing() -> None:
    def spoil(event: MessageAddedEvent) -> None:
        event.message["content"] = [{"text": 5}]  # type: ignore[typeddict-item]

    def spoil_result(event: AfterToolCallEvent) -> None:
        event.result = {**event.result, "content": [{"text": 5}]}

    @tool
    def add() -> str:
        """Add."""
        return "3"

    talker = agent({"toolUse": {"name": "add", "input": {}}}, "done", tools=[add])
    talker.add_hook(spoil, MessageAddedEvent)
    talker.add_hook(spoil_result, AfterToolCallEvent)
    async with talker:
        await talker.invoke_async("go")
        assert talker.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "3"}]
        assert talker.messages[-1]["content"] == [{"text": "done"}]


def spoiled() -> Driver:
    """A conversation as an earlier release would have stored it, wrong blocks among its own."""
    driver = Driver()
    wrong = [block for block in WRONG if "toolResult" not in block]
    driver.say({"role": "user", "content": [{"text": "sound"}, *wrong]}, new_turn=True)
    driver.say({"role": "assistant", "content": [{"text": 5}]})  # type: ignore[typeddict-item]
    driver.say(
        {"role": "user", "content": [{"text": "use a tool"}], "metadata": {"usage": "much"}},  # type: ignore[typeddict-item]
        new_turn=True,
    )
    driver.say(
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": 7, "name": 8, "input": {}}}]}  # type: ignore[typeddict-item]
    )
    driver.say({"role": "user", "content": [{"toolResult": {"toolUseId": 7, "content": [{"text": 9}]}}]})  # type: ignore[typeddict-item]
    driver.say({"role": "assistant", "content": [{"text": "used"}]})
    return driver


@pytest.mark.parametrize("kind", LOCAL)
async def test_a_stored_session_with_wrong_blocks_opens_and_is_repaired_by_records(kind: str, tmp_path: Path) -> None:
    place: SessionLocation = place_of(kind, tmp_path)
    await fill(place, "s", spoiled().rows)
    # Whoever only reads sees what can be read, before anything is written.
    shown = await Sessions(place).show("s")
    texts = [text_of(each.message) for each in shown.agents["agent"].messages]
    assert "use a tool" in texts
    model = ScriptedModel(["hello", "again"])
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(name="agent", model=model)).session("s")
        assert str(await session.invoke("go on")).strip() == "hello"
    asked = model.calls[0].messages
    assert asked[0]["content"][:3] == [{"text": "sound"}, {"text": "5"}, {"text": "null"}]
    assert asked[1]["content"] == [{"text": "5"}]
    use, result = asked[3]["content"][0]["toolUse"], asked[4]["content"][0]["toolResult"]
    assert use["toolUseId"] == result["toolUseId"]
    assert result["content"] == [{"text": "9"}]

    rows = await rows_in(place, "s")
    records = {row.seq: None if row.erased else decode(row.kind, row.version, row.body) for row in rows}
    repaired = {record.target for record in records.values() if isinstance(record, Redacted)}
    assert repaired == {1, 2, 3, 4, 5}
    assert all(records[seq] is None for seq in repaired)
    assert isinstance(records[6], MessageAdded)

    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(name="agent", model=model)).session("s")
        assert str(await session.invoke("once more")).strip() == "again"
    assert sum(row.kind == 6 for row in await rows_in(place, "s")) == len(repaired)


async def test_a_wrong_block_that_waits_for_its_tools_opens_and_its_tools_run() -> None:
    driver = Driver()
    driver.say({"role": "user", "content": [{"text": "go"}]}, new_turn=True)
    driver.say(
        {
            "role": "assistant",
            "content": [{"text": 5}, {"toolUse": {"toolUseId": "a", "name": "raw", "input": {}}}],  # type: ignore[typeddict-item]
        }
    )
    place = TreeSessions()
    await fill(place, "s", driver.rows)
    ran = RawTool({"status": "success", "content": [{"text": "ran"}]})
    async with agent("done", tools=[ran], session_manager=place.after_death(), agent_id="agent") as talker:
        assert str(await talker.invoke_async(None)).strip() == "done"
        assert talker.messages[1]["content"][0] == {"text": "5"}


async def test_wrong_blocks_in_documents_of_others_are_taken_in_as_text_once() -> None:
    place = TreeSessions()
    async with agent("hello", session_manager=place) as talker:
        await talker.invoke_async("hi")
    await write_foreign(place, {"role": "user", "content": [{"text": 5}, {"image": 6}]}, assistant("answered"))
    stored = dict(place.shelf.objects)
    for number in range(2):
        async with agent(f"reply {number}", session_manager=place.after_death()) as talker:
            await talker.invoke_async("go on")
            assert talker.messages[2]["content"] == [{"text": "5"}, {"text": '{"image": 6}'}]
            assert len(talker.messages) == 6 + 2 * number
    key = f"{AGENT}/messages/message_2.json"
    assert place.shelf.objects[key].body == stored[key].body


@pytest.mark.parametrize("shown", [2, 40])
async def test_a_last_message_of_others_that_is_mended_is_taken_in_once(shown: int, tmp_path: Path) -> None:
    def opened(*replies: str) -> Agent:
        manager = FileSessionManager("s", tmp_path)
        window = SlidingWindowConversationManager(window_size=shown)
        return agent(*replies, session_manager=manager, conversation_manager=window)

    await opened("hello").invoke_async("hi")
    folder = tmp_path / "session_s" / "agents" / "agent_default" / "messages"
    for number, message in enumerate((assistant("more"), {"role": "user", "content": [{"text": 5}]}), 2):
        when = "2026-11-21T06:03:59.807405+00:00"
        fields = {"message": message, "message_id": number, "redact_message": None, "created_at": when}
        await anyio.Path(folder / f"message_{number}.json").write_text(json.dumps(fields))
    for number in range(3):
        async with opened() as talker:
            talker.state.set("opened", number)
            said = [message["content"][0] for message in await talker.history()]
            assert said == [{"text": "hi"}, {"text": "hello"}, {"text": "more"}, {"text": "5"}]
    await opened("yes").invoke_async("go on")
    async with opened() as talker:
        assert len(await talker.history()) == 7  # A note stands behind the one that was not answered.
    assert (await Sessions(FileSessions(tmp_path)).doctor()).ok


LONE = "x\ud800"


class Sender(ScriptedModel):
    """A model that is asked over HTTP, in JSON of UTF-8."""

    async def stream(self, messages: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        json.dumps(messages, ensure_ascii=False, default=repr).encode()
        async for event in super().stream(messages, *args, **options):
            yield event


def unsendable() -> list[Row]:
    """A conversation as an earlier release would have stored it, with half of a surrogate pair in every text."""
    use: Any = {"toolUse": {"toolUseId": LONE, "name": LONE, "input": {LONE: [LONE]}}}
    result: Any = {"toolUseId": LONE, "status": "success", "content": [{"text": LONE}]}
    signed: Any = {"reasoningContent": {"reasoningText": {"text": "a", "signature": LONE}}}
    messages: list[Any] = [user(LONE), {"role": "assistant", "content": [signed, use]}]
    records: list[Record] = [MessageAdded(at=1.0, message=each, turn=1, index=at) for at, each in enumerate(messages)]
    records.append(ToolStarted(at=1.0, tool_use_id=LONE, name=LONE, idempotency_key="k", attempt=1))
    records.append(ToolFinished(at=1.0, tool_use_id=LONE, result=result))
    messages = [{"role": "user", "content": [{"toolResult": result}]}, assistant(LONE)]
    records += [MessageAdded(at=1.0, message=each, turn=1, index=at) for at, each in enumerate(messages, 2)]
    appender, rows = Appender("agent", Fold(), None, urandom), list[Row]()
    for seq, record in enumerate(records, 1):
        appender.fold.apply(seq, record)
        rows.append(appender.row(seq, *encode(record)))
    return rows


@pytest.mark.parametrize("kind", LOCAL)
async def test_a_stored_session_that_cannot_be_sent_is_sent_repaired(kind: str, tmp_path: Path) -> None:
    place: SessionLocation = place_of(kind, tmp_path)
    await fill(place, "s", unsendable())
    for again in (False, True):
        model = Sender(["hello"])
        async with Runtime(sessions=place) as runtime:
            session = runtime.agent(AgentSpec(name="agent", model=model, retry_strategy=None)).session("s")
            assert str(await session.invoke("go on")).strip() == "hello"
        asked = model.calls[0].messages
        assert asked[0]["content"] == [{"text": "x\ufffd"}]
        use, result = asked[1]["content"][1]["toolUse"], asked[2]["content"][0]["toolResult"]
        assert (use["toolUseId"], use["input"]) == (result["toolUseId"], {"x\ufffd": ["x\ufffd"]})
        assert len(asked) == (7 if again else 5)


async def test_documents_of_others_that_cannot_be_sent_are_sent_repaired_and_such_snapshots_refused() -> None:
    place = TreeSessions()
    async with agent("hello", session_manager=place) as talker:
        await talker.invoke_async("hi")
    await write_foreign(place, user(LONE), assistant(LONE))
    async with Agent(Sender(["reply"]), callback_handler=None, session_manager=place.after_death()) as talker:
        assert str(await talker.invoke_async("go on")).strip() == "reply"
        snapshot = talker.save_snapshot()
    messages = [{"role": "user", "content": [{"text": LONE}], "metadata": {"custom": {LONE: LONE}}}, assistant(LONE)]
    async with Agent(Sender(["reply"]), callback_handler=None) as talker:
        with pytest.raises(SnapshotException, match="without lone surrogates"):
            talker.load_snapshot(snapshot, overrides={"messages": messages})


def test_a_sync_agent_refuses_the_same(tmp_path: Path) -> None:
    talker = agent("hello", session_manager=FileSessionManager("s", storage_dir=str(tmp_path)))
    with talker:
        with pytest.raises(Invalid, match="a string, not int"):
            talker([{"text": 5}])
        assert str(talker("hi")).strip() == "hello"
