"""A summary is switched off: what it stands for is shown again, and a new one is written when it is time."""

from __future__ import annotations

from typing import Any

import pytest

from repertory import (
    Agent,
    InMemoryStorage,
    JournalSessionManager,
    JournalSessions,
    NullConversationManager,
    Sessions,
    SummarizingConversationManager,
)
from repertory.core.messages import text_of
from repertory.errors import Invalid
from tests.app.agent.test_conversation import NarrowModel

pytestmark = pytest.mark.anyio


def agent_on(storage: InMemoryStorage, most: int, **options: Any) -> Agent:
    return Agent(
        NarrowModel(most),
        callback_handler=None,
        conversation_manager=SummarizingConversationManager(0.5, 2),
        session_manager=JournalSessionManager("s", storage=storage),
        **options,
    )


async def shown(storage: InMemoryStorage) -> list[str]:
    agent = agent_on(storage, 100)
    await agent.ready()
    return [text_of(message) for message in agent.messages]


async def talk(agent: Agent, first: int, last: int) -> list[str]:
    """What was said, oldest first."""
    said: list[str] = []
    for number in range(first, last):
        await agent.invoke_async(f"p{number}")
        said += [f"p{number}", f"answer to p{number}"]
    return said


@pytest.mark.parametrize("turns", [4, 9])
async def test_what_a_summary_stands_for_is_shown_again(turns: int) -> None:
    """Also when earlier summaries went into it."""
    storage = InMemoryStorage()
    said = await talk(agent_on(storage, 5), 0, turns)
    summarised = await shown(storage)
    assert summarised[0] == "SUMMARY"
    async with Sessions(JournalSessions(storage)) as sessions:
        done = await sessions.drop_summary("s")
        assert await shown(storage) == said
        await sessions.rewind("s", done.was)
        assert await shown(storage) == summarised
        await sessions.drop_summary("s")
    agent = agent_on(storage, 5)
    await agent.invoke_async("more")
    assert (await shown(storage))[0] == "SUMMARY"
    assert [text_of(message) for message in await agent.history()] == [*said, "more", "answer to more"]


async def test_what_was_said_since_stays_shown_and_what_a_rewind_hid_stays_hidden() -> None:
    storage = InMemoryStorage()
    said = await talk(agent_on(storage, 5), 0, 4)
    async with Sessions(JournalSessions(storage)) as sessions:
        before = await sessions.mark("s", "before")
        await talk(agent_on(storage, 100), 20, 22)
        await sessions.rewind("s", "before")
        said += await talk(agent_on(storage, 100), 30, 31)
        await sessions.drop_summary("s")
        assert await shown(storage) == said
        assert before


async def test_a_summary_that_came_with_a_snapshot_stands_for_nothing_here() -> None:
    storage = InMemoryStorage()
    await talk(agent_on(storage, 100), 0, 2)
    elsewhere = Agent(
        NarrowModel(5), callback_handler=None, conversation_manager=SummarizingConversationManager(0.5, 2)
    )
    await talk(elsewhere, 10, 14)
    agent = agent_on(storage, 100)
    await agent.load_snapshot_async(elsewhere.save_snapshot())
    summarised = await shown(storage)
    assert summarised[0] == "SUMMARY"
    async with Sessions(JournalSessions(storage)) as sessions:
        await sessions.drop_summary("s")
    assert await shown(storage) == summarised[1:]


async def test_without_a_summary_there_is_nothing_to_drop() -> None:
    storage = InMemoryStorage()
    agent = Agent(
        NarrowModel(100),
        callback_handler=None,
        conversation_manager=NullConversationManager(),
        session_manager=JournalSessionManager("s", storage=storage),
    )
    await agent.invoke_async("hello")
    async with Sessions(JournalSessions(storage)) as sessions:
        with pytest.raises(Invalid, match="no summary is shown"):
            await sessions.drop_summary("s")
