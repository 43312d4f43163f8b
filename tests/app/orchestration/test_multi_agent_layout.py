"""Where runs lie in the documented layout, what a commit costs there, and what becomes of what others wrote."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from repertory import Agent, BeforeNodeCallEvent, Graph, NodeFailed, Runtime, ScriptedModel, Status, Swarm
from repertory.app.orchestration.orchestrator import Orchestrator
from repertory.backends.objects.in_memory import MemoryObjectStore
from repertory.backends.ports import Overwrite
from repertory.backends.tools.function_tool import schema_class
from repertory.console.listing import history_lines
from repertory.core.orchestration.run import Run
from repertory.errors import CorruptJournal
from repertory.operations.doctor import examine_location
from repertory.operations.reading import RecordStamp
from repertory.operations.showing import show
from tests.app.sessions.tree_sessions import TreeSessions

pytestmark = pytest.mark.anyio
schema_class()  # Loading it takes a thread, and time on these clocks stands still or jumps.

FOLDER = "session_s/multi_agents/multi_agent_default_graph"
DOCUMENT = f"{FOLDER}/multi_agent.json"


def node(*replies: Any, name: str = "agent") -> Agent:
    return Agent(ScriptedModel(list(replies), loop=True), name=name, callback_handler=None)


def down(*_: object) -> object:
    raise RuntimeError


def graph(place: TreeSessions, *replies: Any) -> Graph:
    """Nodes `a`, `b` and so on, in a row."""
    nodes = {name: node(reply) for name, reply in zip("abcd", replies, strict=False)}
    return Graph(nodes, session_manager=place)


async def keys(place: TreeSessions) -> list[str]:
    return [info.key for info in await MemoryObjectStore(place.shelf).list("")]


async def document(place: TreeSessions, key: str = DOCUMENT) -> dict[str, Any]:
    return json.loads((await MemoryObjectStore(place.shelf).get(key)).body)


async def write(place: TreeSessions, body: Any, key: str = DOCUMENT) -> None:
    """As somebody who knows nothing of ours."""
    if isinstance(body, dict):
        body = json.dumps({name: value for name, value in body.items() if name != "repertory"}).encode()
    await MemoryObjectStore(place.shelf).put(key, body, Overwrite())


async def unfinished(place: TreeSessions) -> dict[str, Any]:
    """A graph whose second node has failed; what its document says."""
    with pytest.raises(NodeFailed):
        await graph(place, "A", down).invoke_async("Do it")
    return await document(place)


async def test_a_run_lies_where_it_is_documented_and_its_nodes_beside_the_agents() -> None:
    place = TreeSessions()
    inner = Swarm([node("I", name="one")], id="inner")
    await Graph({"a": node("A"), "team": inner}, session_manager=place).invoke_async("Do it")
    folders = {key.rsplit("/", 1)[0] for key in await keys(place)} - {"session_s"}
    assert sorted(folder.removeprefix("session_s/") for folder in folders) == [
        "agents/agent_default_graph.a",
        "agents/agent_default_graph.a/messages",
        "agents/agent_default_graph.team.one",
        "agents/agent_default_graph.team.one/messages",
        "multi_agents/multi_agent_default_graph",
        "multi_agents/multi_agent_default_graph.team",
        "repertory",
        "repertory/s",
    ]
    outer = await document(place)
    within = await document(place, f"{FOLDER}.team/multi_agent.json")
    assert (outer["type"], outer["id"], outer["status"]) == ("graph", "default_graph", "completed")
    assert (within["type"], within["id"], within["node_history"]) == ("swarm", "default_graph.team", ["one"])
    assert outer["node_results"]["team"]["result"]["type"] == "multiagent_result"


async def test_a_commit_puts_the_document_beside_the_journal() -> None:
    place = TreeSessions()
    made = graph(place, "A", "B")
    await made.invoke_async("Do it")
    puts = [request for request in place.requests if request.startswith("put session_s/multi_agents/")]
    assert set(puts) == {f"put {DOCUMENT}"}
    assert len(puts) <= 3
    assert "repertory" not in await document(place)


async def test_a_session_that_was_given_up_opens_without_reading_rows() -> None:
    place = TreeSessions()
    await graph(place, "A", "B").invoke_async("Do it", idempotency_token="t")
    place.requests.clear()
    assert (await graph(place, "A", "B").invoke_async("Do it", idempotency_token="t")).replayed
    assert [request for request in place.requests if FOLDER in request] == [f"get {DOCUMENT}"]


async def test_what_others_have_done_is_taken_in_once() -> None:
    place = TreeSessions()
    found = await unfinished(place)
    b = {**found["node_results"]["a"], "result": {**found["node_results"]["a"]["result"]}}
    b["result"]["message"] = {"role": "assistant", "content": [{"text": "B theirs"}]}
    found |= {"status": "completed", "execution_order": ["a", "b"], "next_nodes_to_execute": [], "failed_nodes": []}
    found["node_results"]["b"] = b
    await write(place, found)
    for number in (2, 3):
        result = await graph(place, "A", "B ours").invoke_async(f"Task {number}")
        assert result.run == number, "theirs was the first run, brought to its end"
    again = {**await document(place), "current_task": "Theirs"}
    await write(place, again)
    async with graph(place, "A", "B ours") as opened:
        assert (await opened.invoke_async("Task")).run == 5, "theirs is the fourth one"
    assert (await graph(place, "A", "B").invoke_async("Task")).run == 6


async def test_a_run_of_others_that_is_unfinished_is_gone_on_with() -> None:
    place, elsewhere = TreeSessions(), TreeSessions()
    await write(place, await unfinished(elsewhere))
    result = await graph(place, "never", "B").invoke_async(None)
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: A\nb: B")
    assert (await document(place))["status"] == "completed"


async def test_who_only_looks_sees_what_others_have_done_and_writes_nothing() -> None:
    place, elsewhere = TreeSessions(), TreeSessions()
    await write(place, await unfinished(elsewhere))
    store = place.open_store()
    (info,) = await store.sessions()
    assert list(info.agents) == ["multi_agent.default_graph"]
    shown = await show(store, "s", None)
    about = shown.agents["multi_agent.default_graph"]
    assert (about.messages, about.run is not None and about.run["status"]) == ([], "failed")
    assert list(history_lines(about)) == [
        'graph, failed: "Do it"',
        "    a, completed: A",
        "    b, failed: the model raised an error model='ScriptedModel' error='RuntimeError()'",
        "(Next nodes: b.)",
    ]
    assert await keys(place) == [DOCUMENT]
    await store.aclose()


async def test_a_document_that_is_behind_the_journal_is_put_right() -> None:
    """As a crash leaves it, in the middle of a commit."""
    place = TreeSessions()
    before = place.shelf.objects
    await unfinished(place)
    run = Run()
    run.apply(run.begun("Do it", ("a",), at=1.0, kind="graph"))
    assert before is place.shelf.objects
    await MemoryObjectStore(place.shelf).delete(DOCUMENT)
    result = await graph(place, "A again", "B").invoke_async("Do it", resume=True)
    assert (result.run, str(result)) == (1, "a: A\nb: B"), "the journal has what the nodes said"
    assert (await document(place))["status"] == "completed"
    store = place.open_store()
    report = await examine_location(store, RecordStamp(at=1.0, entropy=bytes), repair=False)
    assert report.ok
    assert not report.strays
    await store.aclose()


async def test_nobodys_document_is_written_over() -> None:
    """Somebody goes on with the run while we have it open: ours is brought to its end, and the next call takes theirs
    in.
    """
    place = TreeSessions()
    theirs = await unfinished(place)

    async def meanwhile(event: BeforeNodeCallEvent) -> None:
        await write(place, {**theirs, "current_task": "Theirs", "execution_time": 1})

    made = graph(place, "never", "B ours")
    made.add_hook(meanwhile)
    assert str(await made.invoke_async("Do it")) == "a: A\nb: B ours"
    assert (await document(place))["current_task"] == "Theirs"
    result = await graph(place, "never", "B").invoke_async("Theirs")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 2, "a: A\nb: B")


@pytest.mark.parametrize("body", [b"", b"{", b'{"type": "choir", "id": "default_graph"}', b'{"id": "another"}'])
async def test_a_document_that_nobody_can_read_is_an_error_that_names_it(body: bytes) -> None:
    place = TreeSessions()
    agent = Agent(ScriptedModel(["fine"], loop=True), callback_handler=None, session_manager=place)
    await agent.invoke_async("hi")
    await write(place, body)
    with pytest.raises(CorruptJournal) as caught:
        await graph(place, "A", "B").invoke_async("Do it")
    assert caught.value.fields["file"] == DOCUMENT
    again = Agent(ScriptedModel(["fine"]), callback_handler=None, session_manager=place)
    await again.invoke_async("the rest of the session opens")
    store = place.open_store()
    report = await examine_location(store, RecordStamp(at=1.0, entropy=bytes), repair=True)
    assert report.sessions[0].repair is not None
    await store.aclose()
    assert str(await graph(place, "A", "B").invoke_async("Do it")) == "a: A\nb: B"
    assert any(key.startswith("quarantine/") and key.endswith("multi_agent.json") for key in await keys(place))


async def test_with_rows_of_ours_a_document_that_nobody_can_read_is_put_aside() -> None:
    place = TreeSessions()
    await unfinished(place)
    await write(place, b"{")
    result = await graph(place, "never", "B").invoke_async("Do it")
    assert (result.run, str(result)) == (1, "a: A\nb: B")
    assert (await MemoryObjectStore(place.shelf).get(f"{FOLDER}/repertory/unreadable/multi_agent.json")).body == b"{"
    assert (await document(place))["status"] == "completed"


async def test_rows_that_nobody_can_read_are_an_error_that_names_them() -> None:
    place = TreeSessions()
    await unfinished(place)
    key = "session_s/repertory/head"
    await write(place, b"{", key)
    with pytest.raises(CorruptJournal) as caught:
        await graph(place, "A", "B").invoke_async("Do it")
    assert caught.value.fields["key"] == key
    store = place.open_store()
    await examine_location(store, RecordStamp(at=1.0, entropy=bytes), repair=True)
    await store.aclose()
    result = await graph(place, "never", "B").invoke_async("Do it")
    assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B"), "as far as the document says"


async def test_an_agent_cannot_talk_in_an_orchestrators_journal() -> None:
    place = TreeSessions()
    name = "multi_agent.default_graph"
    agent = Agent(ScriptedModel(["fine"]), callback_handler=None, session_manager=place, agent_id=name)
    with pytest.raises(Exception, match="holds no messages"):
        await agent.invoke_async("hi")


async def test_a_session_with_runs_is_deleted_whole() -> None:
    place = TreeSessions()
    await unfinished(place)
    store = place.open_store()
    await store.delete("s")
    assert all(key.startswith("session_s/repertory/") for key in await keys(place)), "what keeps former owners out"
    assert b"Do it" not in b"".join(stored.body for stored in place.shelf.objects.values())
    assert await store.sessions() == []
    await store.aclose()


def orchestrators(place: TreeSessions) -> list[Orchestrator]:
    """A graph and a swarm in the same session."""
    handing = {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": "b", "message": "go"}}}
    agents = [Agent(ScriptedModel([handing, "A", handing, "A"]), name="a", callback_handler=None), node("B", name="b")]
    return [graph(place, "A", "B"), Swarm(agents, session_manager=place)]


@pytest.mark.parametrize("kind", [0, 1], ids=["graph", "swarm"])
async def test_a_process_may_die_at_any_request(kind: int, rng: random.Random) -> None:
    """The next one goes on, and what others read is what is."""
    requests = rng.randrange(3)
    while True:
        place = TreeSessions(dies_at=requests)
        try:
            await orchestrators(place)[kind].invoke_async("Do it", idempotency_token="t")
        except Exception:  # noqa: BLE001 - whatever a dead process says
            died = True
        else:
            died = len(place.requests) > requests
        after = replace(place.after_death(), dies_at=None)
        async with Runtime():  # The store of the dead process may still be open in this loop.
            result = await orchestrators(after)[kind].invoke_async("Do it", idempotency_token="t")
        assert (result.status, str(result)) == (Status.COMPLETED, "a: A\nb: B"), requests
        key = DOCUMENT if not kind else DOCUMENT.replace("graph", "swarm")
        assert (await document(after, key))["status"] == "completed"
        if not died:
            break
        requests += 3
