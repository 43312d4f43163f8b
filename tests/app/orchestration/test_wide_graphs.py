"""Graphs with very many nodes at once, and with a store that does not keep up: nobody dies of it, and what waits has a
bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from repertory import GraphBuilder, MultiAgentResult, Runtime, Status, StorePatience
from repertory.app.sessions.sessions import PlacedSession
from repertory.backends.ports import Batch, Position, SessionStore
from repertory.errors import LeaseLost, Unavailable
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf

pytestmark = pytest.mark.anyio

VERY_MANY = 1010
"""More than a mailbox holds."""
ROOM = 20


class Place:
    """Sessions in memory, behind a store that may be down."""

    def __init__(self) -> None:
        self.shelf = SessionShelf()
        self.key = f"place {id(self)}"
        self.down = False

    def open_store(self) -> SessionStore:
        return _Store(self)


class _Store(MemorySessionStore):
    def __init__(self, place: Place) -> None:
        super().__init__(place.shelf, owner=f"owner {id(self)}")
        self._place = place

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        if self._place.down:
            raise Unavailable("the disk is full")
        return await super().append(batches)


class Counting:
    """A node that counts how often any of them was asked, and has the store fail at one moment."""

    def __init__(self, place: Place, down_at: int = 0) -> None:
        self.place = place
        self.down_at = down_at
        self.asked = 0

    async def invoke_async(self, prompt: Any, /, *, invocation_state: dict[str, Any]) -> str:
        del prompt, invocation_state
        self.asked += 1
        if self.asked == self.down_at:
            self.place.down = True
        return "done"


class Each:
    """One node of many, all of which are one thing."""

    def __init__(self, all_of_them: Counting) -> None:
        self.invoke_async = all_of_them.invoke_async


async def test_more_nodes_may_end_at_once_than_a_mailbox_has_room_for() -> None:
    place = Place()
    nodes = Counting(place)
    builder = GraphBuilder()
    builder.add_node(Each(nodes), "root")
    for number in range(VERY_MANY):
        builder.add_node(Each(nodes), f"n{number}")
        builder.add_edge("root", f"n{number}")
    graph = builder.set_session_manager(PlacedSession("s", place)).build()
    result = await graph.invoke_async("Go", idempotency_token="once")
    assert (result.status, nodes.asked) == (Status.COMPLETED, VERY_MANY + 1)
    again = await graph.invoke_async("Go", idempotency_token="once")
    assert (again.replayed, len(again.results)) == (True, VERY_MANY + 1)


def chain(place: Place, nodes: Counting) -> GraphBuilder:
    builder = GraphBuilder()
    for number in range(5 * ROOM):
        builder.add_node(Each(nodes), f"n{number}")
        if number:
            builder.add_edge(f"n{number - 1}", f"n{number}")
    return builder.set_session_manager(PlacedSession("s", place))


def loop(place: Place, nodes: Counting) -> GraphBuilder:
    builder = GraphBuilder()
    builder.add_node(Each(nodes), "a", on_failure="skip")
    builder.add_edge("a", "a", condition=lambda state: len(state.execution_order) < 5 * ROOM)
    return builder.set_entry_point("a").set_max_node_executions(1000).set_session_manager(PlacedSession("s", place))


@pytest.mark.parametrize("shape", [chain, loop])
async def test_while_the_store_is_down_no_node_begins_that_there_is_no_room_for(shape: Any) -> None:
    place = Place()
    nodes = Counting(place, down_at=5)
    async with Runtime(patience=StorePatience(wait_s=5, records_max=ROOM)) as runtime:
        graph = shape(place, nodes).build()
        began = anyio.current_time()
        with pytest.raises(Unavailable, match="try again later"):
            await graph.invoke_async("Go")
        assert anyio.current_time() - began <= 6, "it waits once"
        assert nodes.asked <= ROOM + 5
        assert runtime.stats().records_waiting <= ROOM + 2
        place.down = False
        result = await graph.invoke_async()
    assert (result.status, result.resumed) == (Status.COMPLETED, True)
    assert nodes.asked == 5 * ROOM, "nothing was done twice, and nothing was given up"


async def test_nodes_that_wait_for_room_go_on_when_there_is_some() -> None:
    place = Place()
    nodes = Counting(place, down_at=5)
    ended: list[MultiAgentResult] = []

    async def call() -> None:
        ended.append(await chain(place, nodes).build().invoke_async("Go"))

    async with Runtime(patience=StorePatience(wait_s=30, records_max=ROOM)), anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.sleep(3)
        assert nodes.asked <= ROOM + 5
        place.down = False
    assert (ended[0].status, nodes.asked) == (Status.COMPLETED, 5 * ROOM)
