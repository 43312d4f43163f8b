"""What `repertory sessions history` and `Sessions.history` tell of graphs and swarms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import (
    Agent,
    BeforeNodeCallEvent,
    Graph,
    NodeFailed,
    ScriptedModel,
    Sessions,
    SQLiteSessionManager,
    SQLiteSessions,
    Swarm,
)
from repertory.console.main import main

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

JOURNAL = "multi_agent.default_graph"


def node(*replies: Any, name: str = "agent") -> Agent:
    return Agent(ScriptedModel(list(replies)), name=name, callback_handler=None)


def down(*_: object) -> object:
    raise RuntimeError


def graph(folder: Path, *replies: Any) -> Graph:
    """Nodes `a` and `b`, in a row."""
    nodes = dict(zip("ab", map(node, replies), strict=True))
    return Graph(nodes, session_manager=SQLiteSessionManager("s", path=folder / "runs.db"))


async def told(folder: Path, journal: str = JOURNAL) -> list[tuple[Any, ...]]:
    found = await Sessions(SQLiteSessions(folder / "runs.db")).history("s", agent=journal)
    return [(each.what, each.run, each.node, each.status, each.text) for each in found.happenings]


async def test_a_history_tells_of_runs_and_of_the_ends_of_their_nodes(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed):
        await graph(tmp_path, "A is\ndone", down).invoke_async("Do it")
    await graph(tmp_path, "never", "B").invoke_async("Do it")
    await graph(tmp_path, "A " * 100, "B").invoke_async([{"text": "Do"}, {"text": "more"}])
    why = "the model raised an error model='ScriptedModel' error='RuntimeError()'"
    found = await told(tmp_path)
    assert found[:5] == [
        ("run", 1, None, "started", "Do it"),
        ("node", 1, "a", "completed", "A is done"),
        ("node", 1, "b", "failed", why),
        ("node", 1, "b", "completed", "B"),
        ("run", 2, None, "started", "Do more"),
    ]
    assert len(found[5][4]) == 80
    assert found[6:] == [("node", 2, "b", "completed", "B")]


async def test_a_history_tells_what_a_run_waited_for_and_that_it_was_gone_back_in(tmp_path: Path) -> None:
    def asking() -> Graph:
        made = graph(tmp_path, "A", "B")

        def ask(event: BeforeNodeCallEvent) -> None:
            if event.node_id == "b":
                event.interrupt("approval", reason="?")

        made.add_hook(ask)
        return made

    result = await asking().invoke_async("Do it")
    answer: Any = [{"interruptResponse": {"interruptId": result.interrupts[0].id, "response": "yes"}}]
    await asking().invoke_async(answer)
    await Sessions(SQLiteSessions(tmp_path / "runs.db")).rewind("s", 2, agent=JOURNAL)
    found = (await Sessions(SQLiteSessions(tmp_path / "runs.db")).history("s", agent=JOURNAL)).happenings
    assert [(each.what, each.node, each.status, each.on_path) for each in found] == [
        ("run", None, "started", True),
        ("node", "a", "completed", True),
        ("node", "b", "interrupted", False),
        ("node", "b", "completed", False),
        ("rewind", None, None, True),
        ("run", None, "started", True),
        ("node", "a", "completed", True),
    ]
    assert [each.run for each in found[-2:]] == [2, 2], "what stands after it is a run of its own"
    assert found[2].text == "approval"


async def test_a_history_tells_of_a_run_that_came_with_a_snapshot(tmp_path: Path) -> None:
    with pytest.raises(NodeFailed):
        await graph(tmp_path, "A", down).invoke_async("Do it")
    snapshot = await graph(tmp_path, "", "").save_snapshot_async()
    await graph(tmp_path, "", "").load_snapshot_async(snapshot)
    await graph(tmp_path, "never", "B").invoke_async()
    found = await told(tmp_path)
    assert [entry[:4] for entry in found] == [
        ("run", 1, None, "started"),
        ("node", 1, "a", "completed"),
        ("node", 1, "b", "failed"),
        ("run", 2, None, "started"),
        ("node", 2, "a", "completed"),
        ("node", 2, "b", "failed"),
        ("node", 2, "b", "completed"),
    ]


async def test_a_run_that_reached_its_limit_ended_early(tmp_path: Path) -> None:
    use = {"toolUse": {"name": "handoff_to_agent", "input": {"agent_name": "b", "message": "go"}}}
    manager = SQLiteSessionManager("s", path=tmp_path / "runs.db")
    swarm = Swarm([node(use, "A", name="a"), node(name="b")], max_handoffs=1, max_iterations=1, session_manager=manager)
    result = await swarm.invoke_async("Do it")
    last = (await told(tmp_path, "multi_agent.default_swarm"))[-1]
    assert last == ("run", 1, None, "failed", result.reason)


def test_the_command_says_it_in_plain_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        with pytest.raises(NodeFailed):
            await graph(tmp_path, "A", down).invoke_async("Do it")

    anyio.run(run)
    assert main(["sessions", "history", "s", "--agent", JOURNAL, "--database", str(tmp_path / "runs.db")]) == 0
    lines = [line.partition(" ")[2].partition(" ")[2] for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "run 1: Do it"
    assert lines[1].startswith("a completed: A")
    assert lines[2].startswith("b failed: the model raised an error")
