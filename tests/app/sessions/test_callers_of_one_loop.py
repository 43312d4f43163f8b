"""Calls and blocks of several agent objects on one session, in one event loop, cut off at any moment: all of them end,
and afterwards the session is nobody's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, ScriptedModel, SQLiteSessionManager
from repertory.errors import ActorDead, AgentBusy, Invalid, Unavailable
from tests.app.sessions.test_warm_sessions import owner_of

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

WAYS = ("queue", "queue", "reject", "interrupt", "steer")


class Slow(ScriptedModel):
    """A model that takes a while, of any length."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(["ok"], loop=True)
        self._rng = rng

    async def stream(self, *given: Any, **more: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(self._rng.random() * 0.004)
        async for event in super().stream(*given, **more):
            yield event


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
@pytest.mark.parametrize("stored", [True, False])
async def test_calls_and_blocks_that_are_cut_off_at_any_moment_leave_the_session_free(
    stored: bool, rng: random.Random, tmp_path: Path
) -> None:
    path = tmp_path / "sessions.db"
    agents = [
        Agent(
            Slow(rng), callback_handler=None, session_manager=SQLiteSessionManager("s", path=path) if stored else None
        )
        for _ in range(3)
    ]

    async def use(agent: Agent) -> None:
        try:
            if rng.random() < 0.2:
                async with agent:
                    for _ in range(rng.randrange(3)):
                        await agent.invoke_async("in a block", timeout_s=20)
            else:
                await agent.invoke_async("alone", busy=rng.choice(WAYS), timeout_s=20)
        except (AgentBusy, Invalid, Unavailable, ActorDead):
            pass  # Refused; its block is open already; the block that it had joined has ended.

    running: list[asyncio.Task[None]] = []
    for _ in range(60):
        running.append(asyncio.create_task(use(rng.choice(agents))))
        await asyncio.sleep(rng.random() * 0.005)
        if rng.random() < 0.4:  # As asyncio itself cancels: no shield stops it.
            rng.choice(running).cancel()
    _, hanging = await asyncio.wait(running, timeout=40)
    assert not hanging
    for agent in agents:
        assert str(await agent.invoke_async("last", timeout_s=10)) == "ok"
    for _ in range(500 if stored else 0):
        if owner_of(path) is None:
            break
        await asyncio.sleep(0.01)
    assert not stored or owner_of(path) is None
