"""Sessions, graphs, swarms and runtimes as pictures, as users ask for them."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from repertory import (
    Agent,
    AgentSpec,
    GraphBuilder,
    GraphEdge,
    OfflineModel,
    Picture,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    Swarm,
)
from repertory.console.main import main
from repertory.errors import NotFound
from tests.operations.operated_places import LOCAL, place_of

pytestmark = pytest.mark.anyio


def agent(name: str, *replies: object) -> Agent:
    return Agent(ScriptedModel(list(replies)), name=name, callback_handler=None)  # type: ignore[arg-type]


def lines_of(picture: Picture) -> list[str]:
    ElementTree.fromstring(picture.svg)
    assert picture._repr_svg_() == picture.svg
    return str(picture).splitlines()


async def test_a_graph_shows_its_nodes_before_a_run_and_what_they_did_after_it() -> None:
    builder = GraphBuilder()
    first, second, third = (builder.add_node(agent(name, "done"), name) for name in ("first", "second", "never"))
    builder.add_edge(first, second)
    builder.edges.append(GraphEdge(first, third, lambda state: False))
    graph = builder.build()
    assert lines_of(graph.picture())[3:] == [
        "[>] first",
        "     -> second",
        "     -> never  (with a condition)",
        "[ ] second",
        "[ ] never",
    ]
    result = await graph.invoke_async("begin")
    for picture in (graph.picture(), result.picture()):
        lines = lines_of(picture)
        assert "     => second" in lines
        assert any(line.startswith("     -> never") for line in lines)
        assert any(line.startswith("[x] second  (completed, ") for line in lines)
        assert "[ ] never  (pending)" in lines


@pytest.mark.real_time
async def test_a_swarm_shows_its_handovers_in_order() -> None:
    def handing(name: str) -> dict[str, object]:
        return {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": name, "message": "go on"}}}

    swarm = Swarm([agent("one", handing("two"), "-", "end"), agent("two", handing("one"), "-")], id="pair")
    assert "each agent may hand over to every other" in str(swarm.picture())
    result = await swarm.invoke_async("begin")
    for picture in (swarm.picture(), result.picture()):
        assert "     => two  (1)" in lines_of(picture)
        assert "     => one  (2)" in lines_of(picture)


async def test_a_failed_node_is_shown_with_its_error() -> None:
    builder = GraphBuilder()
    builder.add_node(agent("broken", RuntimeError("no <power>")), "broken")
    graph = builder.build()
    with pytest.raises(RuntimeError, match="no <power>"):
        await graph.invoke_async("begin")
    assert "no &lt;power&gt;" in graph.picture().svg


async def test_a_runtime_shows_its_actors() -> None:
    async with Runtime() as runtime:
        await runtime.agent(AgentSpec(name="helper", model=OfflineModel())).session("marta").invoke("Hello")
        assert "  session marta helper  (SessionSupervisor, running)" in lines_of(runtime.picture())


@pytest.mark.real_time
@pytest.mark.parametrize("kind", LOCAL)
async def test_every_place_draws_labels_rewinds_and_redactions(kind: str, tmp_path: Path) -> None:
    place = place_of(kind, tmp_path)
    async with Runtime(sessions=place) as runtime:
        session = runtime.agent(AgentSpec(name="default", model=ScriptedModel("ok", loop=True))).session("marta")
        await session.invoke("First?")
        await session.invoke("Second?")
    async with Sessions(place) as sessions:
        turns = [each.seq for each in (await sessions.history("marta")).happenings if each.what == "turn"]
        await sessions.mark("marta", "begun <1>", at=turns[0])
        await sessions.rewind("marta", "begun <1>")
        picture = await sessions.graph("marta")
        with pytest.raises(NotFound):
            await sessions.graph("nobody")
    lines = lines_of(picture)
    assert f"*    #{turns[0]} [begun <1>] turn 1: First?" in lines
    assert any(line.startswith("| * ") and "turn 2: Second?" in line for line in lines)
    assert any("<  " in line and f"rewind to #{turns[0]}" in line for line in lines)
    assert "begun &lt;1&gt;" in picture.svg


@pytest.mark.real_time
def test_the_command_draws_in_the_terminal_and_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = str(tmp_path / "shop.db")
    session = SQLiteSessionManager("marta", path=at)
    with Agent(ScriptedModel(["Rye."]), session_manager=session, callback_handler=None) as one:
        one("Which bread?")
    assert main(["sessions", "graph", "marta", "--at", at]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "*  #2 turn 1: Which bread? (now at #2)"
    out = tmp_path / "marta.svg"
    assert main(["sessions", "graph", "marta", "--at", at, "--out", str(out)]) == 0
    ElementTree.parse(out)
    assert main(["sessions", "graph", "marta", "--at", at, "--out", str(out)]) == 1
    assert main(["sessions", "graph", "marta", "--at", at, "--out", str(out), "--force"]) == 0
    assert main(["sessions", "graph", "nobody", "--at", at]) == 1


@pytest.mark.real_time
async def test_a_picture_of_a_session_needs_only_its_place(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await Sessions(SQLiteSessions(tmp_path / "none.db")).graph("marta")
