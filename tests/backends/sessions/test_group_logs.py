"""Journals in record groups: the documented tree and AgentCore Memory tell others the same, record by record."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest

from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.ports import Batch, Position, SessionStore, give_up
from repertory.core.interrupts import Interrupt
from repertory.core.journal.fold import Fold
from repertory.core.journal.records import (
    Interrupted,
    MessageAdded,
    Record,
    Resumed,
    StateChanged,
    ToolStarted,
    View,
    ViewChanged,
)
from repertory.core.journal.restore import Appender
from repertory.core.messages import Message
from tests.backends.sessions.agentcore_memory import FakeMemory
from tests.backends.sessions.agentcore_writer import opened
from tests.backends.sessions.bucket_places import bucket_store

pytestmark = pytest.mark.anyio

AT = 1_700_000_000.0


@dataclass
class Place:
    """Where a session lies, and what others are told of its agent there."""

    store: SessionStore
    told: Callable[[], Awaitable[dict[str, Any]]]


def in_tree() -> Place:
    shelf = ObjectShelf(lambda: AT)
    store = bucket_store(MemoryObjectStore(shelf), "one", wall=lambda: AT, entropy=lambda size: b"e" * size)

    async def told() -> dict[str, Any]:
        return json.loads((await MemoryObjectStore(shelf).get("session_s/agents/agent_default/agent.json")).body)

    return Place(store, told)


def in_memory(memory: FakeMemory, store: SessionStore) -> Place:
    async def told() -> dict[str, Any]:
        events = [event.fields for event in memory.events("s")]
        records = [each for each in events if each.get("metadata", {}).get("stateType") == {"stringValue": "AGENT"}]
        return json.loads(records[-1]["payload"][0]["blob"])

    return Place(store, told)


def what_others_see(document: dict[str, Any]) -> dict[str, Any]:
    """Without the times at which it was written, and what is ours in it."""
    return {name: value for name, value in document.items() if name not in ("created_at", "updated_at", "repertory")}


def asked_turn() -> list[list[Record]]:
    """Commits of a turn in which a tool asks a person, is answered and goes on; and of a state and a view."""
    use: Message = {
        "role": "assistant",
        "content": [{"toolUse": {"toolUseId": "u", "name": "pay", "input": {"amount": 3}}}],
    }
    result = {"toolResult": {"toolUseId": "u", "status": "success", "content": [{"text": "paid"}]}}
    asked = Interrupt(id="i", name="approve", reason={"amount": 3})
    summarizing = View(manager="SummarizingConversationManager")
    return [
        [MessageAdded(at=AT, message={"role": "user", "content": [{"text": "pay"}]}, turn=1, index=0)],
        [
            MessageAdded(at=AT, message=use, turn=1, index=1),
            ToolStarted(at=AT, tool_use_id="u", name="pay", idempotency_key="k"),
        ],
        [Interrupted(at=AT, interrupts=(asked,), parked=("u",))],
        [StateChanged(at=AT, full={"colour": "blue"})],
        [Resumed(at=AT, responses={"i": "yes"})],
        [MessageAdded(at=AT, message=cast("Message", {"role": "user", "content": [result]}), turn=1, index=2)],
        [MessageAdded(at=AT, message={"role": "assistant", "content": [{"text": "done"}]}, turn=1, index=3)],
        [ViewChanged(at=AT, view=summarizing), StateChanged(at=AT, full={"colour": "red"})],
    ]


async def test_both_layouts_tell_of_a_turn_that_waits_for_a_person_after_each_commit() -> None:
    memory = FakeMemory()
    async with opened(memory) as store:
        places = [in_tree(), in_memory(memory, store)]
        leases = [(await place.store.acquire("s")).lease for place in places]
        appender = Appender("default", Fold(), None, lambda size: b"s" * size)
        activated: list[bool] = []
        for records in asked_turn():
            rows = appender.append_all(records)
            for place, lease in zip(places, leases, strict=True):
                (outcome,) = await place.store.append([Batch(lease=lease, rows=rows)])
                assert isinstance(outcome, Position)
            tree, events = [what_others_see(await place.told()) for place in places]
            assert events == tree
            activated.append(tree["_internal_state"]["interrupt_state"]["activated"])
        assert activated == [False, False, True, True, True, False, False, False]
        waiting = [await place.store.load("s", "default") for place in places]
        assert waiting[0] == waiting[1]
        for place, lease in zip(places, leases, strict=True):
            await give_up(place.store, lease)
        tree, events = [what_others_see(await place.told()) for place in places]
        assert events == tree
        assert tree["conversation_manager_state"]["__name__"] == "SummarizingConversationManager"
        await places[0].store.aclose()
