"""Turns of a long session in a bucket: none of them waits for the merging of what was committed before."""

from __future__ import annotations

import random
import string
from contextlib import nullcontext

import anyio
import pytest

from repertory import Agent, InMemoryStorage, JournalSessionManager, ScriptedModel, SlidingWindowConversationManager
from repertory.backends.ports import ObjectStore
from repertory.backends.sessions import table
from repertory.backends.sessions.journal import maintenance
from repertory.testing.counting_objects import CountingObjectStore

pytestmark = pytest.mark.anyio
LATENCY_S = 0.05


class Counted(InMemoryStorage):
    """A bucket whose requests take their time, and are counted."""

    def open_objects(self, writer: str) -> ObjectStore:
        self.count = CountingObjectStore(super().open_objects(writer), latency_s=LATENCY_S)
        return self.count

    async def keys(self) -> list[str]:
        return [info.key for info in await super().open_objects("looker").list("journals/s/")]


@pytest.mark.parametrize(
    ("held", "turns", "merged", "model_s"),
    [
        (False, 800, 128, 0.0),
        (True, 500, 128, LATENCY_S),
        (False, 300, 16, 0.0),
        (False, 300, 16, LATENCY_S),
        (False, 300, 16, 3 * LATENCY_S),
        (True, 300, 16, LATENCY_S),
    ],
)
async def test_a_turn_makes_as_many_requests_one_behind_the_other_as_it_does_where_nothing_is_merged(
    held: bool, turns: int, merged: int, model_s: float, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside a block, where each call gives the session up, and within one. Merges read each segment once."""
    monkeypatch.setattr(table, "ON_LOOP_BYTES_MAX", 1 << 40)  # A clock that jumps passes threads.
    texts = ["".join(rng.choices(string.ascii_letters, k=3000)) for _ in range(20)]

    async def requests_in_a_row(bucket: Counted) -> list[int]:
        agent = Agent(
            ScriptedModel(texts, loop=True, delay_s=model_s / 4),  # It waits before each of four events.
            session_manager=JournalSessionManager("s", storage=bucket),
            conversation_manager=SlidingWindowConversationManager(window_size=4),
            callback_handler=None,
        )
        counts: list[int] = []
        async with agent if held else nullcontext():
            for number in range(turns):
                began = anyio.current_time()
                await agent.invoke_async(texts[number % len(texts)])
                counts.append(round((anyio.current_time() - began) / LATENCY_S))
            await anyio.sleep(60)
        return counts

    monkeypatch.setattr(maintenance, "SEGMENTS_MERGED", 1 << 40)
    alone = await requests_in_a_row(Counted())
    monkeypatch.setattr(maintenance, "SEGMENTS_MERGED", merged)
    bucket = Counted()
    assert await requests_in_a_row(bucket) == alone
    keys = await bucket.keys()
    chunks = sum("/c/" in key for key in keys)
    assert chunks >= turns // 3 // merged
    assert sum("/s/" in key for key in keys) < turns // 4
    # A get for each large window as well: its owner is proved before its content goes out.
    assert bucket.count.requests["get"] <= chunks * (merged + 3) + turns
