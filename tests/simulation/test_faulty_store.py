"""A store that fails, hangs and loses acknowledgements: nothing that was acknowledged is lost, and every call ends."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.backends.ports import SessionStore
from repertory.core.messages import Message, check_next, text_of
from repertory.errors import RepertoryError
from repertory.testing.faulty_sessions import FaultSettings, FaultySessionStore
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio

SEEDS = 25
FAULTS = FaultSettings(error_rate=0.08, lost_rate=0.08, slow_rate=0.2, slow_s=2.0)


class Shelf:
    """Sessions in memory that outlive their store, behind a store with faults."""

    key = "shelf"

    def __init__(self, rng: random.Random) -> None:
        self._shelf = SessionShelf()
        self._rng = rng
        self._opened = 0
        self.faults = FAULTS
        self.happened: list[str] = []

    def open_store(self) -> SessionStore:
        self._opened += 1
        store = FaultySessionStore(
            MemorySessionStore(self._shelf, owner=f"owner {self._opened}"), self._rng, self.faults
        )
        store.faults = self.happened
        return store


def echo(messages: list[Message], *rest: object) -> str:
    del rest
    return f"answer to {text_of(messages[-1])}"


async def talk(runtime: Runtime, session_id: str, acknowledged: list[str]) -> None:
    """Say ten things; what fails is said again under another name."""
    session = runtime.agent(AgentSpec(model=ScriptedModel([echo], loop=True))).session(session_id)
    trouble: RepertoryError | None = None
    for number in range(10):
        for attempt in range(50):
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
            raise AssertionError("fifty attempts in a row failed") from trouble


@pytest.mark.parametrize("number", range(SEEDS))
async def test_nothing_acknowledged_is_lost_to_a_store_that_fails(number: int, seed: int) -> None:
    shelf = Shelf(random.Random(seed + number))
    acknowledged: list[str] = []
    with anyio.fail_after(3600):
        async with Runtime(sessions=shelf) as runtime, anyio.create_task_group() as group:
            for session in ("a", "b", "c"):
                group.start_soon(talk, runtime, session, acknowledged)
    assert shelf.happened
    shelf.faults = FaultSettings()
    async with Runtime(sessions=shelf) as runtime:
        agent = runtime.agent(AgentSpec(model=ScriptedModel(["x"])))
        histories = {session: await agent.session(session).history() for session in ("a", "b", "c")}
    assert len(acknowledged) == 30
    for said in acknowledged:
        texts = [text_of(message) for message in histories[said[0]]]
        assert texts.count(said) == 1
        assert texts[texts.index(said) + 1] == f"answer to {said}"
    for history in histories.values():
        previous = None
        for message in history:
            check_next(previous, message)
            assert previous is None or previous["role"] != message["role"]
            previous = message
