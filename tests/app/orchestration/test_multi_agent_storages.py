"""Runs of graphs in a snapshot storage of the user's own, whose latest snapshot carries the journal."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from repertory import (
    Agent,
    Graph,
    NodeFailed,
    ScriptedModel,
    SessionManager,
    SnapshotException,
    SnapshotLocation,
    Status,
)
from repertory.errors import LeaseLost
from tests.backends.sessions.snapshot_places import AsyncStorage, SyncStorage

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

RUN = SnapshotLocation("s", "multiAgent", "default_graph")
EARLIER = SnapshotLocation("s", "agent", "multi_agent.default_graph")


@pytest.fixture(params=["async", "sync"])
def storage(request: pytest.FixtureRequest) -> Any:
    return AsyncStorage() if request.param == "async" else SyncStorage()


def down(*_: object) -> object:
    raise RuntimeError


def graph(storage: Any, *replies: Any) -> Graph:
    """Nodes `a` and `b`, in a row."""
    agents = [Agent(ScriptedModel([reply], loop=True), callback_handler=None) for reply in replies]
    return Graph(dict(zip("ab", agents, strict=True)), session_manager=SessionManager("s", storage=storage))


async def latest(storage: Any, location: SnapshotLocation = RUN) -> dict[str, Any]:
    found = storage.load_snapshot(location=location)
    return await found if inspect.isawaitable(found) else found


async def write(storage: Any, snapshot: dict[str, Any], location: SnapshotLocation = RUN) -> None:
    done = storage.save_snapshot(location=location, snapshot_id="0", is_latest=True, snapshot=snapshot)
    if inspect.isawaitable(done):
        await done


async def unfinished(storage: Any) -> dict[str, Any]:
    """A graph whose second node has failed; its snapshot as somebody else would write it."""
    with pytest.raises(NodeFailed):
        await graph(storage, "A", down).invoke_async("Do it")
    found = await latest(storage)
    known = ("scope", "schema_version", "created_at", "data", "app_data")
    return {name: found[name] for name in known}


async def test_a_run_is_kept_as_it_is_documented_and_is_gone_on_with(storage: Any) -> None:
    theirs = await unfinished(storage)
    state = theirs["data"]["state"]
    assert (theirs["scope"], theirs["data"]["orchestrator_id"]) == ("multiAgent", "default_graph")
    assert (state["status"], state["next_nodes_to_execute"]) == ("failed", ["b"])
    result = await graph(storage, "never", "B").invoke_async("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B")
    assert (await latest(storage))["data"]["state"]["status"] == "completed"
    assert (await graph(storage, "A", "B").invoke_async("Next")).run == 2


async def test_the_run_of_others_is_gone_on_with(storage: Any) -> None:
    theirs = await unfinished(type(storage)())
    await write(storage, {**theirs, "app_data": {"theirs": 1}})
    result = await graph(storage, "never", "B").invoke_async(None)
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: A\nb: B")
    assert (await latest(storage))["app_data"] == {"theirs": 1}


async def test_a_run_that_somebody_else_has_saved_meanwhile_is_not_written_over(storage: Any) -> None:
    theirs = await unfinished(storage)
    theirs["data"]["state"]["current_task"] = "Theirs"
    async with graph(storage, "never", "B") as opened:
        await opened.invoke_async("Do it")
        await write(storage, theirs)
        with pytest.raises(LeaseLost):
            await opened.invoke_async("Again")
    result = await graph(storage, "never", "B").invoke_async(None)
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B")
    assert (await latest(storage))["data"]["state"]["current_task"] == "Theirs"


async def test_a_snapshot_that_nobody_can_read_is_an_error_that_names_it(storage: Any) -> None:
    await write(storage, {**await unfinished(type(storage)()), "data": {"orchestrator_id": "another"}})
    with pytest.raises(SnapshotException, match="another orchestrator") as caught:
        await graph(storage, "A", "B").invoke_async("Do it")
    assert caught.value.fields["file"] == "s/default_graph/latest"
