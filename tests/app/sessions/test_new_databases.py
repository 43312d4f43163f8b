"""Many agents that open one new database at the same moment: one of them creates it, and none takes it for lost."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize("number", range(12))
async def test_agents_that_create_a_database_together_all_find_it(number: int, tmp_path: Path) -> None:
    del number
    answers: list[str] = []

    async def talk(session_id: str) -> None:
        manager = SQLiteSessionManager(session_id, path=tmp_path / "a.db")
        async with Agent(ScriptedModel(["Hello."]), session_manager=manager, callback_handler=None) as agent:
            answers.append(str(await agent.invoke_async("Hi")).strip())

    async with anyio.create_task_group() as group:
        for session in range(12):
            group.start_soon(talk, f"s{session}")
    assert answers == ["Hello."] * 12
