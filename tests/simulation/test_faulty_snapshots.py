"""Agents with snapshots on an object store that fails, throttles and loses acknowledgements: nothing is lost, and the
tree says what the journal says.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import anyio
import pytest
from msgspec.structs import replace

from repertory import AgentSpec, Runtime, ScriptedModel
from repertory.app.sessions.snapshots import triggered_by
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.sessions.journal.format import BESIDE_SNAPSHOTS
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.backends.sessions.snapshots.port import SnapshotChoices
from repertory.backends.sessions.snapshots.store import SnapshotSessionStore
from repertory.core.messages import Message, check_next, text_of
from repertory.errors import RepertoryError
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts, AgentSettings, MarkTurn
    from repertory.actors.in_memory_journal import InMemoryJournal
    from repertory.actors.leases import Durable
    from repertory.core.snapshots.trigger import SaveLatestOn

pytestmark = pytest.mark.anyio

STRATEGIES: list[SaveLatestOn] = ["message", "invocation", "never"]
SEEDS = 9
TURNS = 8
FAULTS = ObjectFaults(error_rate=0.05, throttle_rate=0.03, lost_rate=0.06, slow_rate=0.3, slow_s=2.0)


class FaultyPlace:
    """Snapshots in memory that outlive their store, behind requests with faults. Every second turn is one."""

    key = "snapshots"

    def __init__(self, rng: random.Random, strategy: SaveLatestOn) -> None:
        self.shelf = ObjectShelf(anyio.current_time)
        self._rng = rng
        self._choices = SnapshotChoices(save_latest_on=strategy)
        self._opened = 0
        self.faults = FAULTS
        self.happened: list[str] = []

    def open_store(self) -> SnapshotSessionStore:
        self._opened += 1
        objects = FaultyObjectStore(MemoryObjectStore(self.shelf), self._rng, self.faults)
        objects.faults = self.happened
        owner = f"owner-{self._opened}"
        journal = ObjectSessionStore(objects, owner=owner, life=TimeToLive(anyio.current_time), layout=BESIDE_SNAPSHOTS)
        return SnapshotSessionStore(
            journal, objects, wall=anyio.current_time, entropy=self._rng.randbytes, choices=self._choices
        )

    def marker(
        self, agent: AgentSettings, manager: str, parts: AgentParts, keeper: Durable | InMemoryJournal
    ) -> MarkTurn | None:
        choices = replace(self._choices, manager=manager, prompted=parts)
        return triggered_by(choices, lambda turn_count: turn_count % 2 == 0, (agent.session_id, agent.agent_id), keeper)

    def said(self, session: str, name: str) -> list[str]:
        """What a snapshot says."""
        body = self.shelf.objects[f"{session}/scopes/agent/default/snapshots/{name}"].body
        return [text_of(message) for message in json.loads(body)["data"]["messages"]]

    def numbered(self, session: str) -> list[str]:
        prefix = f"{session}/scopes/agent/default/snapshots/"
        return [key.removeprefix(prefix) for key in sorted(self.shelf.objects) if key.startswith(f"{prefix}immutable")]


def echo(messages: list[Message], *rest: object) -> str:
    del rest
    return f"answer to {text_of(messages[-1])}"


async def talk(runtime: Runtime, session_id: str, acknowledged: list[str]) -> None:
    """Say some things; what fails is said again under another name."""
    session = runtime.agent(AgentSpec(model=ScriptedModel([echo], loop=True))).session(session_id)
    for number in range(TURNS):
        for attempt in range(100):
            said = f"{session_id}.{number}.{attempt}"
            try:
                result = await session.invoke(said)
            except RepertoryError:
                await anyio.sleep(1)
                continue
            assert str(result) == f"answer to {said}"
            acknowledged.append(said)
            break
        else:
            raise AssertionError("a hundred attempts in a row failed")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("number", range(SEEDS // len(STRATEGIES)))
async def test_nothing_acknowledged_is_lost_and_the_tree_says_what_the_journal_says(
    number: int, strategy: SaveLatestOn, seed: int
) -> None:
    place = FaultyPlace(random.Random(seed + number), strategy)
    acknowledged: list[str] = []
    with anyio.fail_after(36_000):
        async with Runtime(sessions=place) as runtime, anyio.create_task_group() as group:
            for session in ("a", "b"):
                group.start_soon(talk, runtime, session, acknowledged)
        assert place.happened
        place.faults = ObjectFaults()
        await anyio.sleep(20)  # A session that could not be given up is free by then.
        async with Runtime(sessions=place) as runtime:
            agent = runtime.agent(AgentSpec(model=ScriptedModel(["x"])))
            histories = {session: await agent.session(session).history() for session in ("a", "b")}
    texts = [text_of(message) for messages in histories.values() for message in messages]
    for said in acknowledged:
        assert f"answer to {said}" in texts
    assert len(texts) == len(set(texts))
    for session, messages in histories.items():
        previous = None
        for message in messages:
            check_next(previous, message)
            previous = message
        history = [text_of(message) for message in messages]
        numbered = place.numbered(session)
        assert len(numbered) >= TURNS // 2
        assert [name[-7:-5] for name in numbered] == [f"{n:02}" for n in range(1, len(numbered) + 1)]
        shown = [place.said(session, name) for name in numbered]
        assert sorted(shown, key=len) == shown
        assert all(one == history[: len(one)] for one in shown)
        latest = place.said(session, "snapshot_latest.json")
        assert latest == history if strategy != "never" else latest == history[: len(latest)]
        assert len(latest) >= len(shown[-1])
