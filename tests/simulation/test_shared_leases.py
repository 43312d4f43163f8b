"""Two agents of one session in one process, some of whose callers leave: nobody is fenced by their own process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Condition, ObjectInfo, SessionStore, StoredObject
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.messages import text_of
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.backends.sessions.bucket_places import bucket_store

pytestmark = pytest.mark.anyio

KINDS = ["memory", "journals", "documents", "documents in a bucket"]
CALLERS, CALLS = 5, 6


class SlowObjects(MemoryObjectStore):
    """Objects that take their time, before and after what is done."""

    def __init__(self, shelf: ObjectShelf, rng: random.Random) -> None:
        super().__init__(shelf)
        self._rng = rng

    async def _pause(self) -> None:
        await anyio.sleep(self._rng.random() * 0.05)

    async def get(self, key: str) -> StoredObject:
        await self._pause()
        return await super().get(key)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        await self._pause()
        version = await super().put(key, body, condition)
        await self._pause()
        return version

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        await self._pause()
        return await super().list(prefix, start_after)


class SlowSessions(MemorySessionStore):
    """A store in memory that takes its time."""

    rng: random.Random

    async def _enter(self) -> None:
        await super()._enter()
        await anyio.sleep(self.rng.random() * 0.02)


class SlowPlace:
    """Sessions in a store that takes its time."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self._kind = kind
        self._rng = rng
        self._objects = ObjectShelf(anyio.current_time)
        self._sessions = SessionShelf()
        self._owners = (f"owner-{number}" for number in itertools.count())

    key = "a slow place"

    def open_store(self) -> SessionStore:
        owner = next(self._owners)
        if self._kind == "memory":
            store = SlowSessions(self._sessions, owner=owner)
            store.rng = self._rng
            return store
        objects = SlowObjects(self._objects, self._rng)
        if self._kind == "journals":
            return ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time))
        return bucket_store(objects, owner, wall=anyio.current_time, entropy=self._rng.randbytes)


@pytest.mark.parametrize(("kind", "idle_timeout_s"), [*((kind, 0.0) for kind in KINDS), ("documents", 0.3)])
async def test_callers_that_leave_cost_the_others_nothing(kind: str, idle_timeout_s: float, rng: random.Random) -> None:
    acknowledged: dict[str, list[str]] = {"a": [], "b": []}
    place = SlowPlace(kind, rng)
    async with Runtime(sessions=place, idle_timeout_s=idle_timeout_s) as runtime:
        model = ScriptedModel(["ok"], loop=True, delay_s=0.05)
        sessions = {name: runtime.agent(AgentSpec(name=name, model=model)).session("s") for name in acknowledged}

        async def caller(number: int) -> None:
            for call in range(CALLS):
                name, text = rng.choice("ab"), f"{number}-{call}"
                with anyio.move_on_after(rng.choice([rng.random() * 0.3, rng.random() * 0.6, 1000])):
                    await sessions[name].invoke(text)
                    acknowledged[name].append(text)
                await anyio.sleep(rng.random() * 0.5)

        for _ in range(2):
            async with anyio.create_task_group() as group:
                for number in range(CALLERS):
                    group.start_soon(caller, number)
        for name, texts in acknowledged.items():
            said = [text_of(message) for message in await sessions[name].history()]
            assert [text for text in texts if text not in said] == []
        assert runtime.stats().failed == 0
    assert sum(map(len, acknowledged.values())) > CALLERS
