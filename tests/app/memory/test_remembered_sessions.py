"""What agents say is found by a memory store on the same file when the call returns, and forgotten when erased."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    AgentSpec,
    ExtractionConfig,
    ExtractionResult,
    InvocationTrigger,
    MemoryManager,
    Runtime,
    ScriptedModel,
    SearchOptions,
    Sessions,
    SQLiteMemoryStore,
    SQLiteSessionManager,
    SQLiteSessions,
)
from repertory.core.messages import text_of
from repertory.errors import Invalid

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


class Facts:
    """An extractor that makes a fact of all that was said."""

    async def extract(self, messages: list[Any], context: Any) -> list[ExtractionResult]:
        del context
        return [ExtractionResult("It was noted: " + "; ".join(text_of(message) for message in messages))]


def agent_of(manager: SQLiteSessionManager, *answers: str, **more: Any) -> Agent:
    model = ScriptedModel(answers or ["I see."], loop=not answers)
    return Agent(model, session_manager=manager, callback_handler=None, **more)


async def remembered(path: Path, scope: str | None = None) -> list[tuple[object, ...]]:
    """Session, agent, sequence number and text of everything in a scope."""
    store = SQLiteMemoryStore(path, scope=scope)
    entries = (await store.entries(limit=1000)).entries
    await store.aclose()
    known = [entry.metadata or {} for entry in entries]
    return [
        (each.get("session_id"), each.get("agent_id"), each.get("seq"), entry.content)
        for each, entry in zip(known, entries, strict=True)
    ]


async def said(path: Path, session_id: str) -> list[tuple[object, ...]]:
    """The same, as the journal has it."""
    stored = await Sessions(SQLiteSessions(path)).show(session_id)
    return [
        (session_id, agent_id, message.seq, text_of(message.message))
        for agent_id, agent in stored.agents.items()
        for message in agent.messages
    ]


async def found(path: Path, word: str) -> list[str]:
    """What is found by that word and has it, in the order of the alphabet."""
    store = SQLiteMemoryStore(path)
    entries = await store.search(word)
    await store.aclose()
    return sorted(entry.content for entry in entries if word in entry.content)


async def test_prompt_and_answer_are_found_when_the_call_returns(path: Path) -> None:
    agent = agent_of(SQLiteSessionManager("chat-1", path, remember=True), "By the weir.")
    await agent.invoke_async("Where does the heron nest?")
    assert await remembered(path) == await said(path, "chat-1")
    store = SQLiteMemoryStore(path)
    (entry,) = await store.search("heron", SearchOptions(max_search_results=1))
    metadata = dict(entry.metadata or {})
    assert (metadata["session_id"], metadata["agent_id"], metadata["role"]) == ("chat-1", "default", "user")
    assert metadata["seq"] == (await said(path, "chat-1"))[0][2]
    await store.aclose()


async def test_a_rule_gives_each_session_its_scope_or_none(path: Path) -> None:
    def rule(session_id: str) -> str | None:
        tenant, _, _ = session_id.partition("-")
        return None if tenant == "test" else tenant

    async with Runtime(sessions=SQLiteSessions(path, remember=rule)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["I see."], loop=True)))
        for session_id in ("ada-1", "ben-1", "ada-2", "test-1"):
            await agent.session(session_id).invoke(f"I am {session_id}")
    assert [row[0] for row in await remembered(path, "ada")] == ["ada-1", "ada-1", "ada-2", "ada-2"]
    assert [row[0] for row in await remembered(path, "ben")] == ["ben-1", "ben-1"]
    assert await remembered(path) == []


async def test_a_rule_that_fails_is_told_to_its_session_alone(path: Path) -> None:
    def rule(session_id: str) -> str:
        return {"good": "all"}[session_id]

    async with Runtime(sessions=SQLiteSessions(path, remember=rule)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["I see."], loop=True)))
        with pytest.raises(Invalid, match="remembered"):
            await agent.session("bad").invoke("hello")
        await agent.session("good").invoke("hello")
    assert [info.session_id for info in await SQLiteSessions(path).list()] == ["good"]
    assert len(await remembered(path, "all")) == 2


@pytest.mark.parametrize("remember", ["", "a/b", None, 1, lambda _: "scope"])
def test_what_cannot_be_remembered_is_refused(path: Path, remember: Any) -> None:
    with pytest.raises(Invalid):
        SQLiteSessionManager("s", path, remember=remember)
    if not callable(remember):
        with pytest.raises(Invalid):
            SQLiteSessions(path, remember=remember)


def test_places_that_remember_otherwise_have_other_keys(path: Path) -> None:
    def rule(session_id: str) -> str:
        return session_id

    chosen: list[Any] = [False, True, "a", "True", "b", rule, lambda _: None]
    assert len({SQLiteSessions(path, remember=each).key for each in chosen}) == len(chosen)
    for each in chosen:
        assert SQLiteSessions(path, remember=each).key == SQLiteSessions(path, remember=each).key
    assert SQLiteSessionManager("s", path, remember="a").sessions.key == SQLiteSessions(path, remember="a").key


async def test_a_redacted_message_is_forgotten_with_the_facts_taken_from_it(path: Path) -> None:
    facts = SQLiteMemoryStore(
        path, name="facts", extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=Facts())
    )
    turns = SQLiteMemoryStore(path, name="turns", extraction=ExtractionConfig(trigger=InvocationTrigger()))
    manager = MemoryManager(stores=[facts, turns])
    agent = agent_of(SQLiteSessionManager("s", path, remember=True), memory_manager=manager)
    await agent.invoke_async("My word is zugzwang.")
    await agent.invoke_async("My bird is the heron.")
    assert len(await found(path, "zugzwang")) == 2
    first: Any = (await said(path, "s"))[0][2]
    await Sessions(SQLiteSessions(path)).redact("s", first, "[taken back]")
    assert await found(path, "zugzwang") == []
    assert await found(path, "heron") == [
        "It was noted: My bird is the heron.; I see.",
        "My bird is the heron.",
    ]
    with closing(sqlite3.connect(path)) as connection:
        index = b"".join(block for (block,) in connection.execute("SELECT block FROM memory_text_data"))
    assert b"heron" in index
    assert b"zugzwang" not in index
    await agent.invoke_async("Is that all?")
    await agent.flush_memory()
    assert await found(path, "taken back") == []


async def test_a_store_that_extracts_into_the_same_file_does_not_store_turns_twice(path: Path) -> None:
    store = SQLiteMemoryStore(path, extraction=ExtractionConfig(trigger=InvocationTrigger()))
    manager = MemoryManager(stores=[store])
    agent = agent_of(SQLiteSessionManager("s", path, remember=True), memory_manager=manager)
    for text in ("one", "two", "three"):
        await agent.invoke_async(text)
    await agent.flush_memory()
    assert [row[-1] for row in await remembered(path)] == ["one", "I see.", "two", "I see.", "three", "I see."]
    await store.aclose()


@pytest.mark.parametrize("remember", [True, False])
async def test_a_session_that_is_deleted_and_begun_again_is_remembered_again(path: Path, *, remember: bool) -> None:
    other = path.with_name("memory.db")
    extraction = ExtractionConfig(trigger=InvocationTrigger())
    noting = ExtractionConfig(trigger=InvocationTrigger(), extractor=Facts())
    stores: list[Any] = []
    if not remember:
        stores += [SQLiteMemoryStore(other, name="turns", extraction=extraction)]
        stores += [SQLiteMemoryStore(other, name="facts", extraction=noting)]
    for text in ("The heron nests by the weir.", "The wagtail nests in the mill."):
        manager = MemoryManager(stores=stores) if stores else None
        agent = agent_of(SQLiteSessionManager("s", path, remember=remember), memory_manager=manager)
        await agent.invoke_async(text)
        await agent.shutdown_async()
        await Sessions(SQLiteSessions(path)).delete("s") if "heron" in text else None
    if remember:
        assert await found(path, "heron") == []
        assert await found(path, "wagtail") == ["The wagtail nests in the mill."]
        return
    for bird in ("heron", "wagtail"):
        fact, turn = await found(other, bird)
        assert fact.startswith("It was noted: ")
        assert turn.startswith("The ")
    for store in stores:
        await store.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_disk_that_is_full_for_a_while_leaves_journal_and_memory_with_the_same(tmp_path: Path) -> None:
    program = [
        sys.executable,
        str(Path(__file__).parents[3] / "tests/app/embedding/full_disk_process.py"),
        "sqlite with memory",
        str(tmp_path),
    ]
    done = await anyio.run_process(program, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert "StoreUnavailable" in json.loads(done.stdout)["met"]
    path = tmp_path / "sessions.db"
    stored = [row for info in await SQLiteSessions(path).list() for row in await said(path, info.session_id)]
    assert sorted(stored, key=str) == sorted(await remembered(path), key=str)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
