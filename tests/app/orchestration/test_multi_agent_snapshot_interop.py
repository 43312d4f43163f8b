"""Runs of graphs and swarms that we and the released strands-agents package go on with in turn, through snapshots.

Needs an interpreter that has the package: see `test_layout_interop.py`. In that package an orchestrator finds what is
kept when it is called, so whoever asks it gives it a task.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repertory import FileStorage, Graph, S3Storage, SessionManager, Sessions, Status, Swarm, SwarmResult
from repertory.app.host.blocking import blocking_host
from tests.app.orchestration.test_multi_agent_interop import HANDING, Peer, asked, down, failed, graph, node, text
from tests.app.sessions.test_layout_interop import bucket_url, pytestmark
from tests.backends.objects.moto_s3 import BUCKET

__all__ = ["bucket_url", "pytestmark"]


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(params=["files", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How to open a manager of ours, and what the peer is to be told, for the same session."""
    if request.param == "files":
        return on_files(tmp_path)
    url = request.getfixturevalue("bucket_url")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    prefix = f"runs/{tmp_path.name}"
    told = {"session": "s", "bucket": BUCKET, "prefix": prefix, "endpoint": url, "snapshots": "session"}
    storage = S3Storage(BUCKET, f"{prefix}/session", region_name="us-east-1", endpoint_url=url)
    return lambda: SessionManager("s", storage=storage), told


def on_files(folder: Path) -> Any:
    told = {"session": "s", "folder": str(folder), "snapshots": "kept"}
    return lambda: SessionManager("s", storage=FileStorage(folder / "kept")), told


# The package goes on with what we wrote.


def test_the_package_goes_on_where_our_graph_failed_and_we_after_it(peer: Peer, place: Any) -> None:
    manager, told = place
    failed(graph(manager, node("A ours"), node(down)), "Do it")
    found = peer.graph(told, {"a": [], "b": text("B theirs")}, task="Do it")
    assert list(found["asked"]) == ["b"]
    words = [block["text"] for block in found["asked"]["b"][0]["content"]]
    assert words == ["Original Task: Do it", "\nInputs from previous nodes:", "\nFrom a:", "  - Agent: A ours\n"]
    assert found["results"] == {"a": "A ours\n", "b": "B theirs\n"}
    result = graph(manager, node("A again"), node("B again"))("And once more")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 2, "a: A again\nb: B again")


def test_the_package_goes_on_where_we_were_killed(peer: Peer, tmp_path: Path) -> None:
    manager, told = on_files(tmp_path)
    child = [
        sys.executable,
        "-m",
        "tests.app.orchestration.dying_orchestrator",
        "swarm",
        told["folder"] + "/kept",
        "Do it",
        "snapshots",
    ]
    assert subprocess.run(child, capture_output=True, check=False).returncode == -9
    found = peer.swarm(told, {"a": [], "b": text("B theirs")}, task="Do it")
    assert (found["status"], list(found["asked"])) == ("completed", ["b"])
    assert "over to you" in str(found["asked"]["b"])
    assert "{'found': 7}" in str(found["asked"]["b"])
    again = Swarm([node("A again", name="a"), node(name="b")], session_manager=manager())
    assert again("Next").run == 2, "theirs brought the first one to its end"


def test_the_package_begins_anew_after_a_run_of_ours_that_is_over(peer: Peer, tmp_path: Path) -> None:
    manager, told = on_files(tmp_path)
    graph(manager, node("A ours"), node("B ours"))("Do it")
    found = peer.graph(told, {"a": text("A theirs"), "b": text("B theirs")}, task="Something else")
    assert (found["status"], list(found["asked"])) == ("completed", ["a", "b"])
    assert graph(manager, node("A again"), node("B again"))("Something else").run == 3, "theirs is the second one"


def test_the_package_begins_anew_after_a_swarm_of_ours_that_is_over(peer: Peer, tmp_path: Path) -> None:
    manager, told = on_files(tmp_path)
    Swarm([node("A ours", name="a"), node(name="b")], session_manager=manager())("Do it")
    found = peer.swarm(told, {"a": text("A theirs"), "b": []}, task="Something else")
    assert (found["status"], found["results"]) == ("completed", {"a": "A theirs\n"})


# We go on with what the package wrote.


@pytest.mark.parametrize(("end", "task"), [(None, "Do it"), (False, None)], ids=["failed", "killed"])
def test_we_go_on_where_the_package_stopped(peer: Peer, place: Any, end: Any, task: str | None) -> None:
    manager, told = place
    found = peer.graph(told, {"a": text("A theirs"), "b": [end]}, task="Do it")
    assert "error" in found or "died" in found
    a, b = node(), node("B ours")
    result = graph(manager, a, b)(task)
    assert (result.status, result.resumed, str(result)) == (Status.COMPLETED, True, "a: A theirs\nb: B ours")
    assert "  - Agent: A theirs" in asked(b)
    found = peer.graph(told, {"a": text("A new"), "b": text("B new")}, task="Do it")
    assert list(found["asked"]) == ["a", "b"], "it is over for them, too"


def test_we_go_on_with_a_swarm_where_the_package_was_killed(peer: Peer, place: Any) -> None:
    manager, told = place
    found = peer.swarm(told, {"a": [HANDING, *text("A theirs")], "b": [False]}, task="Do it")
    assert "died" in found
    a, b = node(name="a"), node("B ours", name="b")
    result = Swarm([a, b], session_manager=manager())("Do it")
    assert isinstance(result, SwarmResult)
    assert (result.status, [str(each) for each in result.node_history]) == (Status.COMPLETED, ["a", "b"])
    assert "Handoff Message: over to you" in asked(b)
    assert "{'found': 7}" in asked(b)


def test_we_begin_anew_after_a_run_of_theirs_that_is_over(peer: Peer, tmp_path: Path) -> None:
    manager, told = on_files(tmp_path)
    peer.graph(told, {"a": text("A theirs"), "b": text("B theirs")}, task="Do it")
    result = graph(manager, node("A ours"), node("B ours"))("Do it")
    assert (result.status, result.run, str(result)) == (Status.COMPLETED, 2, "a: A ours\nb: B ours")


def test_a_run_may_change_hands_again_and_again(peer: Peer, tmp_path: Path) -> None:
    """Three nodes in a row, each one done by another side, and one failure in between each time."""
    (manager, told), edges = on_files(tmp_path), "a>b b>c"

    def ours(**nodes: Any) -> Graph:
        return Graph(nodes, session_manager=manager())

    failed(ours(a=node("A ours"), b=node(down), c=node()), "Do it")
    peer.graph(told, {"a": [], "b": text("B theirs"), "c": [None]}, edges, task="Do it")
    failed(ours(a=node(), b=node(), c=node(down)), "Do it")
    result = ours(a=node(), b=node(), c=node("C ours"))(None)
    assert (result.status, result.run) == (Status.COMPLETED, 1)
    assert str(result) == "a: A ours\nb: B theirs\nc: C ours"


# Both.


def test_what_they_and_we_leave_out_of_the_document_is_known(peer: Peer, tmp_path: Path) -> None:
    """The same fields in the same places, and only ours beside them."""
    manager, told = on_files(tmp_path)
    latest = tmp_path / "kept/s/scopes/multiAgent/default_graph/snapshots/snapshot_latest.json"
    peer.graph(told, {"a": text("A theirs"), "b": text("B theirs")}, task="Do it")
    theirs = json.loads(latest.read_text())
    graph(manager, node("A ours"), node("B ours"))("Do it")
    ours = json.loads(latest.read_text())
    beside = {"schemaVersion", "createdAt", "appData", "sha256", "repertory"}
    assert ours.keys() - theirs.keys() == beside
    assert not theirs.keys() - ours.keys()
    assert ours["data"].keys() == theirs["data"].keys()
    assert ours["data"]["state"].keys() == theirs["data"]["state"].keys()


def test_a_session_that_the_package_has_begun_is_listed_shown_and_deleted(peer: Peer, tmp_path: Path) -> None:
    manager, told = on_files(tmp_path)
    peer.graph(told, {"a": text("A theirs"), "b": [None]}, task="Do it")
    sessions, host = Sessions(manager().sessions), blocking_host()
    (info,) = host.run(sessions.list)
    assert (info.session_id, list(info.agents)) == ("s", ["multi_agent.default_graph"])
    run = host.run(sessions.show, "s").agents["multi_agent.default_graph"].run
    assert run is not None
    assert (run["status"], run["next_nodes_to_execute"]) == ("failed", ["b"])
    assert host.run(sessions.doctor).ok
    host.run(sessions.delete, "s")
    assert host.run(sessions.list) == []
    assert not list((tmp_path / "kept").rglob("snapshot_latest.json"))
