"""Where the runs of graphs and swarms lie among snapshots, when others see them, and what they may write."""

from __future__ import annotations

import logging
import random
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    Graph,
    NodeFailed,
    ScriptedModel,
    SessionManager,
    Sessions,
    SnapshotException,
    SnapshotSessions,
    Status,
    Swarm,
)
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.backends.sessions.snapshots.makers import SnapshotMaker
from repertory.backends.sessions.snapshots.port import SnapshotChoices
from repertory.backends.tools.function_tool import schema_class
from repertory.core.snapshots.location import SnapshotLocation
from repertory.errors import Invalid
from tests.app.orchestration.snapshot_shelf import SnapshotShelf

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.

FOLDER = "multiAgent/default_graph/snapshots"
LATEST = f"{FOLDER}/snapshot_latest.json"


def node(*replies: Any, name: str = "agent") -> Agent:
    return Agent(ScriptedModel(list(replies), loop=True), name=name, callback_handler=None)


def down(*_: object) -> object:
    raise RuntimeError


def graph(place: SnapshotShelf, *replies: Any, **options: Any) -> Graph:
    """Nodes `a`, `b` and so on, in a row."""
    nodes = {name: node(reply) for name, reply in zip("abcd", replies, strict=False)}
    return Graph(nodes, session_manager=place.manager(**options))


async def unfinished(place: SnapshotShelf) -> dict[str, Any]:
    """A graph whose second node has failed; what its snapshot says."""
    with pytest.raises(NodeFailed):
        await graph(place, "A", down).invoke_async("Do it")
    return await place.document(LATEST)


def finished_by_others(found: dict[str, Any]) -> dict[str, Any]:
    """The same, gone on with to its end."""
    state = found["data"]["state"]
    b = {**state["node_results"]["a"], "result": {**state["node_results"]["a"]["result"]}}
    b["result"]["message"] = {"role": "assistant", "content": [{"text": "B theirs"}]}
    state |= {"status": "completed", "execution_order": ["a", "b"], "next_nodes_to_execute": [], "failed_nodes": []}
    state["node_results"]["b"] = b
    return found


# What others see.


async def test_a_run_lies_where_it_is_documented_and_its_nodes_among_the_agents() -> None:
    place = SnapshotShelf()
    inner = Swarm([node("I", name="one")], id="inner")
    await Graph({"a": node("A"), "team": inner}, session_manager=place.manager()).invoke_async("Do it")
    assert sorted(key for key in await place.keys() if not key.endswith("manifest.json")) == [
        "agent/default_graph.a/snapshots/snapshot_latest.json",
        "agent/default_graph.team.one/snapshots/snapshot_latest.json",
        "multiAgent/default_graph.team/snapshots/snapshot_latest.json",
        LATEST,
    ]
    assert not [key for key in await place.keys() if key.startswith("multiAgent/") and key.endswith("manifest.json")]
    found = await place.document(LATEST)
    assert (found["scope"], found["schema_version"], found["app_data"]) == ("multiAgent", "1.0", {})
    assert found["created_at"].endswith("Z")
    assert found["data"]["orchestrator_id"] == "default_graph"
    state = found["data"]["state"]
    assert (state["type"], state["id"], state["status"]) == ("graph", "default_graph", "completed")
    assert state["node_results"]["team"]["result"]["type"] == "multiagent_result"
    within = (await place.document("multiAgent/default_graph.team/snapshots/snapshot_latest.json"))["data"]["state"]
    assert (within["type"], within["id"], within["node_history"]) == ("swarm", "default_graph.team", ["one"])


@pytest.mark.parametrize(("when", "seen"), [("node", ["a"]), ("invocation", None)])
async def test_others_see_the_end_of_each_node_or_of_the_run(when: str, seen: list[str] | None) -> None:
    place, found = SnapshotShelf(), list[Any]()

    async def look(event: BeforeNodeCallEvent) -> None:
        if event.node_id == "b":
            await anyio.sleep(1)  # Nobody waits for the record of a node's end.
            there = LATEST in await place.keys()
            found.append((await place.document(LATEST))["data"]["state"]["execution_order"] if there else None)

    made = graph(place, "A", "B", multi_agent_save_latest_on=when)
    made.add_hook(look)
    async with made:
        await made.invoke_async("Do it")
        await anyio.sleep(1)
        assert (await place.document(LATEST))["data"]["state"]["status"] == "completed"
    assert found == [seen]


async def test_each_manager_has_its_choice_where_the_storage_is_open_already() -> None:
    place = SnapshotShelf()
    other = Agent(
        ScriptedModel(["fine"]), callback_handler=None, session_manager=SessionManager("other", storage=place)
    )
    async with other:
        await other.invoke_async("hi")
        async with graph(place, "A", "B", multi_agent_save_latest_on="invocation") as made:
            await made.invoke_async("Do it")
            await anyio.sleep(1)
    puts = [request for request in place.requests if request == f"put s/scopes/{LATEST}"]
    assert len(puts) == 1


async def test_a_failed_run_is_seen_whatever_was_chosen() -> None:
    place = SnapshotShelf()
    with pytest.raises(NodeFailed):
        await graph(place, "A", down, multi_agent_save_latest_on="invocation").invoke_async("Do it")
    state = (await place.document(LATEST))["data"]["state"]
    assert (state["status"], state["completed_nodes"], state["failed_nodes"]) == ("failed", ["a"], ["b"])
    assert state["next_nodes_to_execute"] == ["b"]


def test_another_choice_is_refused() -> None:
    with pytest.raises(Invalid, match="multi_agent_save_latest_on must be one of node, invocation"):
        SessionManager("s", storage=SnapshotShelf(), multi_agent_save_latest_on="message")  # type: ignore[arg-type]


async def test_an_earlier_snapshot_cannot_be_loaded_into_a_graph() -> None:
    place = SnapshotShelf()
    await graph(place, "A", "B").invoke_async("Do it")
    with pytest.raises(Invalid, match="load_snapshot_id is for agents"):
        await graph(place, "A", "B", load_snapshot_id=1).invoke_async("Do it")
    assert (await graph(place, "A", "B").invoke_async("Again")).run == 2


async def test_a_commit_waits_for_no_snapshot() -> None:
    place = SnapshotShelf()
    async with graph(place, "A", "B") as made:
        await made.invoke_async("Do it")
        place.requests.clear()
        await made.invoke_async("Again")
    puts = [request for request in place.requests if request == f"put s/scopes/{LATEST}"]
    assert 1 <= len(puts) <= 4, "the beginning, two nodes, and the last word"
    assert not [request for request in place.requests if request.startswith("get s/scopes/")]


# What others have written.


async def test_what_others_have_done_is_taken_in_once() -> None:
    place = SnapshotShelf()
    await place.write(LATEST, finished_by_others(await unfinished(place)))
    for number in (2, 3):
        result = await graph(place, "A", "B ours").invoke_async(f"Task {number}")
        assert result.run == number, "theirs was the first run, brought to its end"
    again = await place.document(LATEST)
    again["data"]["state"]["current_task"] = "Theirs"
    await place.write(LATEST, again)
    async with graph(place, "A", "B ours") as opened:
        assert (await opened.invoke_async("Task")).run == 5, "theirs is the fourth one"
    assert (await graph(place, "A", "B").invoke_async("Task")).run == 6


async def test_a_run_of_others_that_is_unfinished_is_gone_on_with_and_what_they_keep_in_it_stays() -> None:
    place, elsewhere = SnapshotShelf(), SnapshotShelf()
    await place.write(LATEST, {**await unfinished(elsewhere), "app_data": {"theirs": [1]}})
    result = await graph(place, "never", "B").invoke_async(None)
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: A\nb: B")
    found = await place.document(LATEST)
    assert found["app_data"] == found["appData"] == {"theirs": [1]}
    assert found["repertory"]["seq"] > 0


async def test_who_only_looks_sees_what_others_have_done_and_writes_nothing() -> None:
    place, elsewhere = SnapshotShelf(), SnapshotShelf()
    await place.write(LATEST, await unfinished(elsewhere))
    sessions = Sessions(SnapshotSessions(place))
    (info,) = await sessions.list()
    assert list(info.agents) == ["multi_agent.default_graph"]
    about = (await sessions.show("s")).agents["multi_agent.default_graph"]
    assert (about.messages, about.run is not None and about.run["status"]) == ([], "failed")
    assert await place.keys() == [LATEST]
    assert not [request for request in place.requests if request.startswith("put")]


async def test_a_run_that_others_went_on_with_meanwhile_is_the_next_one() -> None:
    """Ours goes on in its journal; theirs is written over only when it was taken in."""
    place = SnapshotShelf()
    theirs = await unfinished(place)
    theirs["data"]["state"]["current_task"] = "Theirs"

    async def meanwhile(event: BeforeNodeCallEvent) -> None:
        await place.write(LATEST, theirs)

    made = graph(place, "never", "B ours")
    made.add_hook(meanwhile)
    result = await made.invoke_async("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B ours")
    found = await place.document(LATEST)
    assert (found["data"]["state"]["current_task"], found["data"]["state"]["status"]) == ("Theirs", "failed")
    assert found["repertory"]["seq"] > 0, "it was taken in"
    result = await graph(place, "never", "B").invoke_async(None)
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 2, "a: A\nb: B")


async def test_what_others_were_asked_is_kept_beside_the_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    place = SnapshotShelf()
    theirs = await unfinished(place)
    state = theirs["data"]["state"]
    state |= {"status": "interrupted", "interrupted_nodes": ["b"], "failed_nodes": []}
    asked = {"id": "v1:1", "name": "approve", "reason": "?", "response": None}
    waits = {"interrupts": {"v1:1": asked}, "context": {"b": {}}, "activated": True}
    state["_internal_state"] = {"interrupt_state": waits}
    await place.write(LATEST, theirs)
    with caplog.at_level(logging.WARNING, logger="repertory.sessions"):
        result = await graph(place, "never", "B").invoke_async("Do it")
    assert (result.run, str(result)) == (1, "a: A\nb: B")
    (copy,) = [key for key in await place.keys() if key.startswith(f"{FOLDER}/unreadable/")]
    assert (await place.document(copy))["data"]["state"]["_internal_state"]["interrupt_state"] == waits
    assert "was set aside" in caplog.text


# Damage, and what lies elsewhere.

BROKEN = [
    b"",
    b"{",
    b'{"scope": "agent", "schema_version": "1.0", "data": {"messages": []}}',
    b'{"scope": "multiAgent", "schema_version": "9"}',
    b'{"scope": "multiAgent", "schema_version": "1.0", "data": {"orchestrator_id": "another", "state": {}}}',
    b'{"scope": "multiAgent", "schema_version": "1.0", "data": {"orchestrator_id": "default_graph", "state": 1}}',
    b'{"scope": "multiAgent", "schema_version": "1.0", "data": {"orchestrator_id": "default_graph", "state": {}}}',
]


@pytest.mark.parametrize("body", BROKEN)
async def test_a_snapshot_that_nobody_can_read_is_an_error_that_names_it(body: bytes) -> None:
    place = SnapshotShelf()
    await place.write(LATEST, body)
    with pytest.raises(SnapshotException) as caught:
        await graph(place, "A", "B").invoke_async("Do it")
    assert caught.value.fields["file"] == f"s/scopes/{LATEST}"
    agent = Agent(ScriptedModel(["fine"]), callback_handler=None, session_manager=place.manager())
    assert str(await agent.invoke_async("the rest of the session opens")) == "fine"


async def test_with_a_journal_a_snapshot_that_nobody_can_read_is_put_aside() -> None:
    place = SnapshotShelf()
    await unfinished(place)
    await place.write(LATEST, b"[]")
    result = await graph(place, "never", "B").invoke_async("Do it")
    assert (result.run, str(result)) == (1, "a: A\nb: B")
    assert any(key.startswith(f"{FOLDER}/unreadable/snapshot_latest.") for key in await place.keys())
    assert (await place.document(LATEST))["data"]["state"]["status"] == "completed"


async def test_a_session_of_an_earlier_release_opens_and_shows_its_orchestrator_once() -> None:
    """It had an orchestrator's snapshot among those of agents, with nothing in it."""
    place = SnapshotShelf()
    await unfinished(place)
    store = SnapshotSessions(place).open_store()
    rows = await store.load("s", "multi_agent.default_graph")
    old = SnapshotLocation("s", "agent", "multi_agent.default_graph")
    made = await SnapshotMaker(old, 1, SnapshotChoices()).made(rows)
    await store.aclose()
    await place.write("agent/multi_agent.default_graph/snapshots/snapshot_latest.json", made.document)
    await place.objects().delete(f"s/scopes/{LATEST}")
    sessions = Sessions(SnapshotSessions(place))
    (info,) = await sessions.list()
    names = ["default_graph.a", "default_graph.b", "multi_agent.default_graph"]
    assert sorted(info.agents) == names
    assert sorted((await sessions.show("s")).agents) == names
    result = await graph(place, "never", "B").invoke_async("Do it")
    assert (result.run, result.resumed, str(result)) == (1, True, "a: A\nb: B")
    assert (await place.document(LATEST))["data"]["state"]["status"] == "completed"
    (info,) = await sessions.list()
    assert sorted(info.agents) == names
    await sessions.delete("s")
    assert await place.keys() == []


async def test_where_the_journal_is_gone_the_run_is_as_its_snapshot_has_it() -> None:
    place = SnapshotShelf()
    await unfinished(place)
    for info in await place.objects().list("s/journal/"):
        await place.objects().delete(info.key)
    (listed,) = await Sessions(SnapshotSessions(place)).list()
    assert sorted(listed.agents) == ["default_graph.a", "default_graph.b", "multi_agent.default_graph"]
    result = await graph(place, "never", "B").invoke_async(None)
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B")


# Operations.


async def test_a_run_that_was_gone_back_in_is_seen_as_it_stands() -> None:
    place = SnapshotShelf()
    await graph(place, "A", "B").invoke_async("Do it")
    sessions = Sessions(SnapshotSessions(place))
    await sessions.rewind("s", 2, agent="multi_agent.default_graph")
    state = (await place.document(LATEST))["data"]["state"]
    assert (state["execution_order"], state["next_nodes_to_execute"]) == (["a"], ["b"])
    await sessions.prune("s", beyond_rewinds=True, agent="multi_agent.default_graph")
    assert "'B'" not in str((await place.document(LATEST))["data"]["state"]["node_results"])
    assert (await sessions.doctor()).ok


async def test_a_session_with_a_run_is_copied_and_forked_with_its_snapshot() -> None:
    place, elsewhere = SnapshotShelf(), SnapshotShelf()
    await unfinished(place)
    sessions = Sessions(SnapshotSessions(place))
    await sessions.copy("s", SnapshotSessions(elsewhere))
    assert (await elsewhere.document(LATEST))["data"] == (await place.document(LATEST))["data"]
    await sessions.fork("s", "what-if")
    infos = await place.objects().list(f"what-if/scopes/{LATEST}")
    assert len(infos) == 1
    result = await graph(elsewhere, "never", "B").invoke_async(None)
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 1, "a: A\nb: B")


async def test_a_session_with_runs_is_deleted_whole() -> None:
    place = SnapshotShelf()
    await unfinished(place)
    await Sessions(SnapshotSessions(place)).delete("s")
    assert await place.keys() == []
    assert await Sessions(SnapshotSessions(place)).list() == []


def orchestrators(place: SnapshotShelf) -> list[Orchestrator]:
    """A graph and a swarm in the same session."""
    handing = {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": "b", "message": "go"}}}
    agents = [Agent(ScriptedModel([handing, "A", handing, "A"]), name="a", callback_handler=None), node("B", name="b")]
    return [graph(place, "A", "B"), Swarm(agents, session_manager=place.manager())]


@pytest.mark.parametrize("kind", [0, 1], ids=["graph", "swarm"])
async def test_a_process_may_die_at_any_request(kind: int, rng: random.Random) -> None:
    """The next one goes on, and what others read is what is."""
    requests = rng.randrange(3)
    while True:
        place = SnapshotShelf(dies_at=requests)
        try:
            await orchestrators(place)[kind].invoke_async("Do it", idempotency_token="t")
        except Exception:  # noqa: BLE001 - whatever a dead process says
            died = True
        else:
            died = len(place.requests) > requests
        after = place.after_death()
        result = await orchestrators(after)[kind].invoke_async("Do it", idempotency_token="t")
        assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B"), requests
        key = LATEST if not kind else LATEST.replace("graph", "swarm")
        assert (await after.document(key))["data"]["state"]["status"] == "completed"
        if not died:
            break
        requests += 3
