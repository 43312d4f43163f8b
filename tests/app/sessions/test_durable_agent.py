"""Agents on SQLite: what was acknowledged is there again, and restored equals live."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from repertory import (
    AfterToolCallEvent,
    Agent,
    AgentSpec,
    NullConversationManager,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    SQLiteSessionManager,
    SQLiteSessions,
    tool,
)
from repertory.backends.ports import give_up
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind
from repertory.core.messages import text_of
from repertory.errors import CorruptJournal, Invalid, LeaseLost, RepertoryError, SessionBusy
from tests.plugins.kept_bytes import rows_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "agents.db"


def agent_on(database: Path, *replies: object, session: str = "s1", **options: object) -> Agent:
    return Agent(
        ScriptedModel(list(replies)),
        session_manager=SQLiteSessionManager(session, path=database),
        callback_handler=None,
        **options,  # type: ignore[arg-type] - keywords of the constructor
    )


async def test_a_second_agent_continues_where_the_first_left_off(database: Path) -> None:
    """Documented sample: a new agent with the same session continues the conversation."""
    await agent_on(database, "Hello Ann").invoke_async("I am Ann")
    second = agent_on(database, "You are Ann")
    await second.invoke_async("Who am I?")
    assert [text_of(message) for message in second.messages] == ["I am Ann", "Hello Ann", "Who am I?", "You are Ann"]


async def test_one_session_manager_serves_two_agents_in_turn(database: Path) -> None:
    manager = SQLiteSessionManager("s1", path=database)
    await Agent(ScriptedModel(["one"]), session_manager=manager, callback_handler=None).invoke_async("1")
    second = Agent(ScriptedModel(["two"]), session_manager=manager, callback_handler=None)
    await second.invoke_async("2")
    assert len(second.messages) == 4


async def test_state_is_restored_and_stored_state_wins_over_the_constructor(database: Path) -> None:
    @tool(effects=False)
    async def count(agent: Agent) -> str:
        """Count."""
        seen = agent.state.get("count")
        agent.state.set("count", (seen if isinstance(seen, int) else 0) + 1)
        return "counted"

    use = {"toolUse": {"name": "count", "input": {}}}
    first = agent_on(database, use, "ok", tools=[count], state={"count": 5, "theme": "dark"})
    await first.invoke_async("go")
    second = agent_on(database, "ok", state={"count": 0})
    await second.ready()
    assert second.state.get() == {"count": 6, "theme": "dark"}


async def test_restored_equals_live_after_the_window_slid(database: Path) -> None:
    manager = SlidingWindowConversationManager(window_size=5)
    live = agent_on(database, *(f"a{n}" for n in range(8)), conversation_manager=manager)
    async with live:
        for number in range(8):
            await live.invoke_async(f"q{number}")
        shown = live.messages
    restored = agent_on(database, "x", conversation_manager=manager)
    await restored.ready()
    assert restored.messages == shown
    assert [text_of(message) for message in await restored.history()] == [
        text for n in range(8) for text in (f"q{n}", f"a{n}")
    ]


async def test_a_turn_that_hides_old_messages_is_two_records(database: Path) -> None:
    """0003: what is shown next is part of the answer's record."""
    agent = agent_on(database, "a", "b", "c", conversation_manager=SlidingWindowConversationManager(window_size=2))
    for prompt in "123":
        await agent.invoke_async(prompt)
    with closing(sqlite3.connect(database)) as connection:
        kinds = [kind for (kind,) in connection.execute("SELECT kind FROM rows ORDER BY position")]
    assert kinds == [RecordKind.MESSAGE] * 6
    restored = agent_on(database)
    await restored.ready()
    assert [text_of(message) for message in restored.messages] == ["3", "c"]


async def test_a_new_conversation_manager_is_named_in_the_record_of_the_answer(database: Path) -> None:
    for manager in (NullConversationManager(), SlidingWindowConversationManager()):
        agent = agent_on(database, "a", "b", conversation_manager=manager)
        for prompt in "12":
            await agent.invoke_async(prompt)
        rows = rows_of(database)
        assert restore(rows).fold.shown.view.manager == manager.name
    assert [row.kind for row in rows] == [RecordKind.MESSAGE] * 8


async def test_a_manager_may_change_on_a_live_session(database: Path) -> None:
    await agent_on(database, "a").invoke_async("q")
    other = agent_on(database, "b", conversation_manager=SlidingWindowConversationManager(window_size=2))
    await other.invoke_async("r")
    assert [text_of(message) for message in other.messages] == ["r", "b"]


async def test_two_facades_on_one_session_take_turns(database: Path) -> None:
    one, two = agent_on(database, "a"), agent_on(database, "b")
    async with anyio.create_task_group() as group:
        group.start_soon(one.invoke_async, "1")
        group.start_soon(two.invoke_async, "2")
    reader = agent_on(database, "x")
    assert len(await reader.history()) == 4


async def test_two_agents_share_a_session(database: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        one = runtime.agent(AgentSpec(name="one", model=ScriptedModel(["1", "1"])))
        two = runtime.agent(AgentSpec(name="two", model=ScriptedModel(["2", "2"])))
        for _ in range(2):
            await one.session("s").invoke("hi")
            await two.session("s").invoke("ho")
        assert len(await one.session("s").history()) == 4


async def test_another_owner_is_told_that_the_session_is_busy(database: Path) -> None:
    other = SQLiteSessions(database).open_store()
    try:
        await other.acquire("s1")
        with pytest.raises(SessionBusy):
            await agent_on(database, "a").invoke_async("q", busy="reject")
    finally:
        await other.aclose()


async def test_a_fenced_owner_loses_before_its_model_is_called_and_nothing_is_overwritten(database: Path) -> None:
    model = ScriptedModel(["first", "never"])
    stale = Agent(
        model, session_manager=SQLiteSessionManager("s1", path=database), callback_handler=None, durability="strict"
    )
    async with stale:
        await stale.invoke_async("1")
        other = SQLiteSessions(database).open_store()
        try:
            await other.acquire("s1", takeover=True)
            with pytest.raises(LeaseLost):
                await stale.invoke_async("2")
        finally:
            await other.aclose()
    assert len(model.calls) == 1
    assert len(await agent_on(database, "x").history()) == 2


async def test_a_damaged_record_is_named_and_nothing_is_changed(database: Path) -> None:
    await agent_on(database, "a").invoke_async("q")
    connection = sqlite3.connect(database)
    tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    assert tables
    holding = [t for t in tables if any(row[1] == "body" for row in connection.execute(f"pragma table_info({t})"))]
    connection.execute(f"update {holding[0]} set body = cast('{{}}' as blob)")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptJournal, match="s1"):
        await agent_on(database, "b").invoke_async("r")


async def test_a_file_that_is_no_database_is_refused_and_left_alone(database: Path) -> None:
    file = anyio.Path(database)
    await file.write_bytes(b"this is not a database, it is a shopping list" * 50)
    before = await file.read_bytes()
    with pytest.raises(RepertoryError, match=r"agents\.db"):
        await agent_on(database, "a").invoke_async("q")
    assert await file.read_bytes() == before


@pytest.mark.parametrize("session_id", ["", ".", "..", "a/b", "a\\b", "a\0b", "a\nb", "x" * 256])
async def test_ids_that_are_no_names_are_refused(session_id: str) -> None:
    with pytest.raises(Invalid):
        SQLiteSessionManager(session_id)


@pytest.mark.parametrize("durability", ["pipelined", "strict", "relaxed"])
async def test_every_durability_keeps_everything_at_an_orderly_end(database: Path, durability: str) -> None:
    async with agent_on(database, "a", "b", durability=durability) as agent:
        await agent.invoke_async("1")
        await agent.invoke_async("2")
    assert len(await agent_on(database, "x").history()) == 4


async def test_passivation_gives_the_session_up_and_the_next_message_wakes_it(database: Path) -> None:
    async with Runtime(sessions=SQLiteSessions(database), idle_timeout_s=0.05) as runtime:
        session = runtime.agent(AgentSpec(model=ScriptedModel(["a", "b"]))).session("s1")
        await session.invoke("1")
        other = SQLiteSessions(database).open_store()
        try:
            with anyio.fail_after(30):
                while True:
                    try:
                        lease, _ = await other.acquire("s1")
                        break
                    except SessionBusy:
                        await anyio.sleep(0.02)
            await give_up(other, lease)
        finally:
            await other.aclose()
        assert str(await session.invoke("2")) == "b"
        assert len(await session.history()) == 4


async def test_many_sessions_run_at_once_and_nothing_is_mixed_up(database: Path) -> None:
    def echo(messages: object, *_: object) -> str:
        assert isinstance(messages, list)
        return f"you said {messages[-1]['content'][0]['text']}"

    async with Runtime(sessions=SQLiteSessions(database)) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel([echo], loop=True)))

        async def talk(session_id: str) -> None:
            for number in range(5):
                result = await agent.session(session_id).invoke(f"{session_id}.{number}")
                assert str(result) == f"you said {session_id}.{number}"

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(talk, f"s{number}")
    listed = await SQLiteSessions(database).list()
    assert sorted(info.session_id for info in listed) == sorted(f"s{n}" for n in range(20))
    assert all(info.owner is None for info in listed)


async def test_cancelling_while_an_intent_is_committed_keeps_the_journal_in_step(database: Path) -> None:
    """The number of records that a long journal restates must never surprise the agent that numbers them."""

    @tool
    async def work() -> str:
        """Work for a while."""
        await anyio.sleep(0.05)
        return "done"

    use = {"toolUse": {"name": "work", "input": {}}}
    agent = agent_on(database, *([use, "ok"] * 200), tools=[work], state={"kept": "far back"})
    async with agent:
        for number in range(60):
            with anyio.move_on_after(0.004 if number % 2 else 5):
                await agent.invoke_async(f"q{number}")
        result = await agent.invoke_async("last")
        assert result.stop_reason == "end_turn"
        live = await agent.history()
    restored = agent_on(database, "x")
    assert await restored.history() == live
    assert restored.state.get("kept") == "far back"


async def test_the_history_holds_what_the_writer_is_just_writing(database: Path) -> None:
    """A relaxed turn is answered before it is durable, and what was answered is in the history."""
    agent = agent_on(database, *(f"a{number}" for number in range(20)), durability="relaxed")
    async with agent:
        for number in range(20):
            await agent.invoke_async(f"q{number}")
            assert len(await agent.history()) == 2 * (number + 1)


async def test_tools_that_run_again_while_others_end_leave_the_journal_in_order(database: Path) -> None:
    attempts: dict[int, int] = {}

    @tool
    async def flaky(number: int) -> str:
        """Work at the third attempt."""
        attempts[number] = attempts.get(number, 0) + 1
        await anyio.sleep(0.0005 * number)
        if attempts[number] < 3:
            raise ConnectionError("gone")
        return "done"

    def again(event: AfterToolCallEvent) -> None:
        event.retry = event.exception is not None

    uses = [{"toolUse": {"name": "flaky", "input": {"number": number}}} for number in range(12)]
    agent = agent_on(database, uses, "all done", "and on", tools=[flaky])
    agent.add_hook(again)
    async with agent:
        assert str(await agent.invoke_async("go")) == "all done"
        assert str(await agent.invoke_async("and?")) == "and on"
    assert set(attempts.values()) == {3}
    assert len(await agent_on(database, "x").history()) == 6


async def test_a_tool_that_is_cancelled_while_its_start_is_written_is_on_record(database: Path) -> None:
    """Even when the persister has not come to it yet, since somebody reads the history all the time."""

    @tool
    async def work() -> str:
        """Work."""
        await anyio.sleep_forever()
        return ""

    agent = agent_on(database, *[{"toolUse": {"name": "work", "input": {}}}, "and on"] * 6, tools=[work])

    async def read() -> None:
        while True:
            await agent.history()

    async def call() -> None:
        assert (await agent.invoke_async("go")).stop_reason == "cancelled"

    async with agent, anyio.create_task_group() as readers:
        readers.start_soon(read)
        for turn in range(6):
            async with anyio.create_task_group() as group:
                group.start_soon(call)
                while len(agent.messages) < 6 * turn + 2:
                    await anyio.lowlevel.checkpoint()
                for _ in range(turn):
                    await anyio.lowlevel.checkpoint()
                agent.cancel()
            assert str(await agent.invoke_async("and?")) == "and on"
        readers.cancel_scope.cancel()
    restored = agent_on(database, "x")
    await restored.ready()
    assert restored.messages == agent.messages
