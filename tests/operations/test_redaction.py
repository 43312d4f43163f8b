"""What a guardrail takes back: the original is gone from wherever it lay, and everybody sees the replacement alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from repertory import (
    AfterModelCallEvent,
    Agent,
    FileSessionManager,
    FileStorage,
    InMemoryStorage,
    JournalSessionManager,
    MessageAddedEvent,
    S3SessionManager,
    S3Storage,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    tool,
)
from repertory.core.messages import text_of
from repertory.errors import ContextWindowOverflowException, MaxTokensReachedException
from tests.app.sessions.tree_sessions import TreeSessions
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.plugins.guarded_model import GuardedModel, Verdict
from tests.plugins.kept_bytes import NO, REFUSED, SAID_NO, SECRET, Kept, in_folder, on_shelf, rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@tool(effects=False)
def look_up() -> str:
    """Look something up."""
    return f"the number is {SECRET}"


@pytest.fixture(scope="module")
def bucket_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


def _in_bucket(url: str, prefix: str) -> Callable[[], Iterator[tuple[str, bytes]]]:
    import boto3

    client = boto3.client("s3", region_name="us-east-1", endpoint_url=url)

    def bodies() -> Iterator[tuple[str, bytes]]:
        for item in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", []):
            yield item["Key"], client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()

    return bodies


def agent_on(kept: Kept, *replies: Any, **options: Any) -> Agent:
    return kept.agent(*replies, **{"tools": [look_up], **options})


PLACES = ["sqlite", "journal in files", "journal in memory", "documents in files", "documents in memory"]
IN_BUCKETS = ["journal on S3", "documents on S3"]


@pytest.fixture(params=PLACES)
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    match request.param:
        case "sqlite":
            return Kept(lambda: SQLiteSessionManager("s", tmp_path / "a.db"), in_folder(tmp_path))
        case "journal in files":
            return Kept(lambda: JournalSessionManager("s", FileStorage(tmp_path)), in_folder(tmp_path))
        case "journal in memory":
            storage = InMemoryStorage()
            storage.open_objects("nobody")
            assert storage._shelf is not None
            return Kept(lambda: JournalSessionManager("s", storage), on_shelf(storage._shelf))
        case "documents in files":
            return Kept(lambda: FileSessionManager("s", tmp_path), in_folder(tmp_path))
        case "documents in memory":
            tree = TreeSessions()
            return Kept(lambda: tree, on_shelf(tree.shelf))
    url, prefix = request.getfixturevalue("bucket_url"), f"{tmp_path.name}/"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    region: dict[str, Any] = {"region_name": "us-east-1", "endpoint_url": url}
    if request.param == "journal on S3":
        storage = S3Storage(BUCKET, prefix, **region)
        return Kept(lambda: JournalSessionManager("s", storage), _in_bucket(url, prefix))
    return Kept(lambda: S3SessionManager("s", BUCKET, prefix, **region), _in_bucket(url, prefix))


def texts(messages: Any) -> list[str]:
    return [text_of(message) for message in messages]


async def test_the_original_is_nowhere_afterwards(kept: Kept) -> None:
    await nowhere_afterwards(kept)


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("kept", IN_BUCKETS, indirect=True)
async def test_the_original_is_nowhere_in_a_bucket_afterwards(kept: Kept) -> None:
    await nowhere_afterwards(kept)


async def nowhere_afterwards(kept: Kept) -> None:
    """Neither what the user said, nor what was streamed before the guardrail spoke; while it is open, and after."""
    stopped = Verdict(streamed=f"you said {SECRET}", user=NO, assistant=SAID_NO)
    async with agent_on(kept, "hello", stopped, "go on") as agent:
        await agent.invoke_async("hi")
        result = await agent.invoke_async(f"my number is {SECRET}")
        assert str(result) == SAID_NO
        assert result.stop_reason == "guardrail_intervened"
        said = ["hi", "hello", NO, SAID_NO]
        assert texts(agent.messages) == texts(await agent.history()) == said
        assert kept.holders() == []
        await agent.invoke_async("and now?")
        assert texts(agent.model.asked[-1]) == [*said, "and now?"]
        assert kept.holders() == []
        live = agent.messages
    assert kept.holders() == []
    assert kept.holders(NO)
    restored = agent_on(kept)
    await restored.ready()
    assert restored.messages == live
    assert await restored.history() == live


@pytest.mark.parametrize("kept", ["sqlite", "documents in files", "documents in memory"], indirect=True)
@pytest.mark.parametrize("padding", [0, 300_000], ids=["short", "long"])
async def test_what_was_stored_already_is_destroyed(kept: Kept, padding: int) -> None:
    """The prompt lies in the store before the model answers."""
    async with agent_on(kept, REFUSED, "ok", slowly=True, durability="strict") as agent:
        await agent.invoke_async("x" * padding + SECRET)
        assert kept.holders() == []
        live = agent.messages
    assert kept.holders() == []
    restored = agent_on(kept)
    await restored.ready()
    assert restored.messages == live
    assert texts(live) == [NO, "blocked"]


async def test_a_packed_record_is_gone_from_every_page_of_the_database(tmp_path: Path, rng: random.Random) -> None:
    """Long records are packed, so that their text is not found by looking for it: their bytes are."""
    kept = Kept(lambda: SQLiteSessionManager("s", tmp_path / "a.db"), in_folder(tmp_path))
    packed: list[bytes] = []

    async def look() -> None:
        await kept.until_stored()
        packed.append((await anyio.to_thread.run_sync(rows_of, tmp_path / "a.db"))[-1].body)

    model = GuardedModel(REFUSED, "ok", pause=look)
    async with Agent(model, callback_handler=None, session_manager=kept.manager()) as agent:
        await agent.invoke_async(SECRET + "".join(rng.choices("abcdefghijklmnop", k=60_000)))
        assert len(packed[0]) < 40_000
        pieces = [packed[0][place : place + 16] for place in range(0, len(packed[0]) - 16, 500)]
        for _, body in kept.bodies():
            assert not [piece for piece in pieces if piece in body]
    for _, body in kept.bodies():
        assert not [piece for piece in pieces if piece in body]


@pytest.mark.parametrize("kept", ["journal in files", "journal in memory"], indirect=True)
async def test_what_was_committed_to_a_journal_is_destroyed(kept: Kept) -> None:
    """The tool result is in a segment of its own, since another tool with effects was started behind it."""

    @tool
    def send() -> str:
        """Send something."""
        return "sent"

    use = [{"id": "t1", "name": "send"}, {"id": "t2", "name": "look_up"}]
    async with agent_on(kept, use[0], use[1], REFUSED, "ok", tools=[look_up, send], durability="strict") as agent:
        await agent.invoke_async("send it, then look it up")
        assert kept.holders() == []
        live = agent.messages
        await agent.invoke_async("thanks")
    assert [block["toolResult"] for block in live[4]["content"]] == [
        {"toolUseId": "t2", "status": "success", "content": [{"text": NO}]}
    ]
    assert kept.holders() == []


async def test_tool_results_are_replaced_block_by_block(kept: Kept) -> None:
    uses = {"id": "t1", "name": "look_up"}
    async with agent_on(kept, uses, REFUSED, "ok", slowly=False) as agent:
        await agent.invoke_async("look it up")
        await agent.invoke_async("and now?")
        asked, result = agent.model.asked[-1][1], agent.model.asked[-1][2]
        live = agent.messages
    assert asked["content"][0]["toolUse"]["toolUseId"] == "t1"
    assert result["content"] == [{"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": NO}]}}]
    assert kept.holders() == []
    restored = agent_on(kept)
    await restored.ready()
    assert restored.messages == live


async def test_a_clean_prompt_stays_when_only_the_answer_was_blocked(kept: Kept) -> None:
    """The SDK that users come from replaces it."""
    async with agent_on(kept, Verdict(streamed=f"it is {SECRET}", assistant=SAID_NO)) as agent:
        await agent.invoke_async("what is the number?")
        assert texts(agent.messages) == ["what is the number?", SAID_NO]
    assert kept.holders() == []


async def test_everything_that_was_said_in_the_prompt_is_replaced(kept: Kept) -> None:
    """Text, images and documents; and every message of a prompt of several."""
    picture = {"image": {"format": "png", "source": {"bytes": SECRET.encode()}}}
    said = [
        {"role": "user", "content": [{"text": f"see {SECRET}"}, picture]},
        {"role": "user", "content": [{"text": "and?"}]},
    ]
    async with agent_on(kept, REFUSED) as agent:
        await agent.invoke_async(said)
        contents = [message["content"] for message in agent.messages]
    assert contents == [[{"text": NO}], [{"text": NO}], [{"text": "blocked"}]]
    assert kept.holders() == []


async def test_a_turn_that_is_said_again_gives_the_replaced_answer(kept: Kept) -> None:
    replies = [Verdict(streamed=SECRET, user=NO, assistant=SAID_NO)]
    async with agent_on(kept, *replies) as agent:
        for replayed in (False, True):
            result = await agent.invoke_async(SECRET, idempotency_token="t")
            assert (str(result), result.replayed) == (SAID_NO, replayed)
    result = await agent_on(kept).invoke_async(SECRET, idempotency_token="t")
    assert (str(result), result.replayed) == (SAID_NO, True)
    assert kept.holders() == []


async def test_streamed_events_end_with_the_replacement(kept: Kept) -> None:
    agent = agent_on(kept, Verdict(streamed=SECRET, user=NO, assistant=SAID_NO))
    seen: list[dict[str, Any]] = []
    async with aclosing(agent.stream_async(SECRET)) as events:
        async for event in events:
            seen.append(event)
    verdict = next(place for place, event in enumerate(seen) if "redactContent" in event.get("event", {}))
    assert SECRET not in repr(seen[verdict:])
    assert [text_of(event["message"]) for event in seen[verdict:] if "message" in event] == [SAID_NO]


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
async def test_hooks_after_the_verdict_see_the_replacement(kept: Kept) -> None:
    """One that asks the model again asks with the replacement."""
    heard: list[str] = []

    def after(event: AfterModelCallEvent) -> None:
        heard.extend(texts(event.agent.messages))
        event.retry = len(event.agent.model.asked) == 1

    def added(event: MessageAddedEvent) -> None:
        heard.append(text_of(event.message))

    agent = agent_on(kept, Verdict(streamed=SECRET, user=NO, assistant=SAID_NO), "fine")
    agent.add_hook(after)
    agent.add_hook(added)
    assert str(await agent.invoke_async(f"it is {SECRET}")) == "fine"
    assert heard == [f"it is {SECRET}", NO, NO, "fine"]
    assert texts(agent.model.asked[-1]) == [NO]
    assert kept.holders() == []


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
async def test_a_shortened_copy_goes_with_its_original(kept: Kept) -> None:
    """The window was shortened in the same turn, which left a copy of the tool result in the view."""
    long = "y" * 2000

    @tool(effects=False)
    def read() -> str:
        """Read something long."""
        return SECRET + long + SECRET

    agent = agent_on(kept, {"id": "t1", "name": "read"}, REFUSED, "ok", tools=[read])
    refuse = iter([False, True])
    stream = agent.model.stream

    async def overflowing(messages: Any, *args: Any, **options: Any) -> Any:
        if next(refuse, False):
            raise ContextWindowOverflowException("too long")
        async for event in stream(messages, *args, **options):
            yield event

    agent.model.stream = overflowing  # type: ignore[method-assign] - the model refuses once
    async with agent:
        await agent.invoke_async("read it")
        shown = agent.model.asked[-1][-1]["content"][0]["toolResult"]["content"][0]["text"]
        assert shown.startswith(SECRET)
        assert len(shown) < len(long)
        await agent.invoke_async("and?")
        live = agent.messages
        assert live[2]["content"][0]["toolResult"]["content"] == [{"text": NO}]
    assert kept.holders() == []
    restored = agent_on(kept)
    await restored.ready()
    assert restored.messages == live


async def test_a_turn_that_fails_after_the_verdict_keeps_the_replacement(kept: Kept) -> None:
    agent = agent_on(kept, REFUSED)
    stream = agent.model.stream

    async def cut_off(messages: Any, *args: Any, **options: Any) -> Any:
        async for event in stream(messages, *args, **options):
            yield {"messageStop": {"stopReason": "max_tokens"}} if "messageStop" in event else event

    agent.model.stream = cut_off  # type: ignore[method-assign] - the answer is cut off
    with pytest.raises(MaxTokensReachedException):
        await agent.invoke_async(SECRET)
    assert kept.holders() == []
    assert texts(await agent_on(kept).history()) == [NO, "blocked"]


async def test_a_window_that_slides_over_it_stays_clean(kept: Kept, rng: random.Random) -> None:
    """Restored equals live, wherever in the conversation something was taken back."""
    window = SlidingWindowConversationManager(window_size=rng.choice([2, 4, 6]), pin_first=rng.choice([None, 2]))
    blocked = [rng.random() < 0.4 for _ in range(12)]
    replies = [Verdict(user=NO) if each else "ok" for each in blocked]
    async with agent_on(kept, *replies, conversation_manager=window) as agent:
        for number, each in enumerate(blocked):
            await agent.invoke_async(SECRET if each else f"prompt {number}")
        live, history = agent.messages, await agent.history()
    assert kept.holders() == []
    restored = agent_on(kept, conversation_manager=window)
    await restored.ready()
    assert restored.messages == live
    assert await restored.history() == history


async def test_without_a_session_the_replacement_is_what_is_remembered() -> None:
    async with Agent(GuardedModel("a", REFUSED, "b"), callback_handler=None) as agent:
        for text in ("hi", SECRET, "again"):
            await agent.invoke_async(text)
        assert texts(agent.messages) == texts(await agent.history()) == ["hi", "a", NO, "blocked", "again", "b"]
