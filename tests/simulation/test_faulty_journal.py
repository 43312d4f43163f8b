"""Agents on an object store that fails, throttles and loses acknowledgements: nothing acknowledged is lost."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.core.messages import Message, check_next, text_of
from repertory.errors import RepertoryError
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults

pytestmark = pytest.mark.anyio

SEEDS = 12
FAULTS = ObjectFaults(error_rate=0.03, throttle_rate=0.02, lost_rate=0.04, slow_rate=0.3, slow_s=2.0)
"""Opening takes a request for each segment that is not merged yet, and any of them that fails fails it."""


class Shelf:
    """Journals in memory that outlive their store, behind requests with faults."""

    key = "shelf"

    def __init__(self, rng: random.Random) -> None:
        self._shelf = ObjectShelf(anyio.current_time)
        self._rng = rng
        self._opened = 0
        self.faults = FAULTS
        self.happened: list[str] = []

    def open_store(self) -> SessionStore:
        self._opened += 1
        objects = FaultyObjectStore(MemoryObjectStore(self._shelf), self._rng, self.faults)
        objects.faults = self.happened
        owner = f"owner-{self._opened}"
        return ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time))


def echo(messages: list[Message], *rest: object) -> str:
    del rest
    return f"answer to {text_of(messages[-1])}"


async def talk(runtime: Runtime, session_id: str, acknowledged: list[str]) -> None:
    """Say ten things; what fails is said again under another name."""
    session = runtime.agent(AgentSpec(model=ScriptedModel([echo], loop=True))).session(session_id)
    trouble: RepertoryError | None = None
    for number in range(10):
        for attempt in range(300):
            said = f"{session_id}.{number}.{attempt}"
            try:
                result = await session.invoke(said)
            except RepertoryError as error:
                trouble = error
                await anyio.sleep(1)
                continue
            assert str(result) == f"answer to {said}"
            acknowledged.append(said)
            break
        else:
            raise AssertionError("three hundred attempts in a row failed") from trouble


@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_acknowledged_is_lost_to_objects_that_fail(number: int, seed: int) -> None:
    shelf = Shelf(random.Random(seed + number))
    acknowledged: list[str] = []
    with anyio.fail_after(36_000):
        async with Runtime(sessions=shelf) as runtime, anyio.create_task_group() as group:
            for session in ("a", "b", "c"):
                group.start_soon(talk, runtime, session, acknowledged)
        assert shelf.happened
        shelf.faults = ObjectFaults()
        await anyio.sleep(20)  # A session that could not be given up is free by then.
        async with Runtime(sessions=shelf) as runtime:
            agent = runtime.agent(AgentSpec(model=ScriptedModel(["x"])))
            histories = {session: await agent.session(session).history() for session in ("a", "b", "c")}
    for messages in histories.values():
        previous = None
        for message in messages:
            check_next(previous, message)
            previous = message
    texts = [text_of(message) for messages in histories.values() for message in messages]
    for said in acknowledged:
        assert f"answer to {said}" in texts
    assert len(texts) == len(set(texts))
