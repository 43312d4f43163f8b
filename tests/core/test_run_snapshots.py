"""The snapshot of a run as a document, and back: whose it is, and what of it is taken in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from repertory.core.journal.fold import Fold
from repertory.core.journal.restore import Appender, restore
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import json_file
from repertory.core.message_tree.opening import run_of
from repertory.core.orchestration.run import Ended, Run
from repertory.core.result import AgentResult
from repertory.core.run_results import NodeResult, Status
from repertory.core.snapshots.document import JournalPosition, read_run_snapshot, rows_for_run, run_snapshot
from repertory.core.snapshots.location import SnapshotLocation
from repertory.errors import SnapshotException

PLACE = SnapshotLocation.of("s", "multi_agent.g")
TASK: Any = [{"text": "Look"}, {"image": {"format": "png", "source": {"bytes": b"\x89PNG"}}}]


def entropy(size: int) -> bytes:
    return b"s" * size


def a_run() -> list[Row]:
    """Node `a` has ended, and `b` owes its work."""
    appender, run = Appender("multi_agent.g", Fold(), None, entropy), Run()
    said: Any = {"role": "assistant", "content": [{"text": "A"}]}
    begun = run.begun(TASK, ("a",), at=1.0, kind="graph")
    run.apply(begun)
    result = NodeResult(result=AgentResult(stop_reason="end_turn", message=said), status=Status.COMPLETED)
    ended = run.ended("a", Ended(result=result), ("b",), at=2.0, elapsed_ms=3)
    return appender.append_all([begun, ended])


def fold_of(rows: list[Row]) -> Fold:
    return restore(rows, session_id="s").fold


def document(rows: list[Row], **standing: Any) -> dict[str, Any]:
    """As it lies there."""
    known = JournalPosition(seq=rows[-1].seq, link=rows[-1].link.hex(), generation=7, more=standing)
    return json.loads(json_file(run_snapshot(fold_of(rows), "g", 4.0, known, {"theirs": 1})))


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """As others write it."""
    return {name: found[name] for name in ("scope", "schema_version", "created_at", "data", "app_data")}


def test_a_location_is_that_of_an_agent_or_of_an_orchestrator() -> None:
    assert (PLACE.scope, PLACE.scope_id, PLACE.journal) == ("multiAgent", "g", "multi_agent.g")
    agent = SnapshotLocation.of("s", "g.writer")
    assert (agent.scope, agent.scope_id, agent.journal) == ("agent", "g.writer", "g.writer")


def test_what_we_have_written_is_known_as_ours() -> None:
    rows = a_run()
    found = read_run_snapshot(document(rows, more="kept"), "g")
    assert found.position is not None
    assert (found.position.seq, found.position.link, found.position.generation) == (2, rows[-1].link.hex(), 7)
    assert (dict(found.position.more), dict(found.app_data), found.created_at) == ({"more": "kept"}, {"theirs": 1}, 4.0)
    assert found.document["current_task"] == TASK, "bytes are bytes again"
    assert not found.waits


@pytest.mark.parametrize("key", ["current_task", "status", "execution_order"])
def test_what_somebody_has_changed_is_theirs(key: str) -> None:
    changed = document(a_run())
    changed["data"]["state"][key] = {"current_task": "else", "status": "completed", "execution_order": []}[key]
    with pytest.raises(SnapshotException, match="not as it was written"):
        read_run_snapshot(changed, "g")
    del changed["repertory"]
    assert read_run_snapshot(changed, "g").position is None
    without = document(a_run())
    del without["repertory"]
    assert read_run_snapshot(without, "g").position is None


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"scope": "agent"}, "something else"),
        ({"schema_version": "2.0"}, "unknown version"),
        ({"data": {"orchestrator_id": "h", "state": {}}}, "another orchestrator"),
        ({"data": {"orchestrator_id": "g", "state": []}}, "JSON object"),
        ({"data": {"orchestrator_id": "g", "state": {"type": "choir"}}}, "run that cannot be read"),
    ],
)
def test_what_is_no_snapshot_of_the_run_is_refused_with_the_reason(change: dict[str, Any], match: str) -> None:
    with pytest.raises(SnapshotException, match=match):
        read_run_snapshot({**plain(document(a_run())), **change}, "g")


def test_a_run_of_others_is_taken_in_once() -> None:
    theirs = read_run_snapshot(plain(document(a_run())), "g")
    made = rows_for_run(PLACE, [], theirs, 9.0, entropy)
    run = run_of(fold_of(made))
    assert (run.number, run.task, run.order, run.frontier) == (1, TASK, ("a",), ("b",))
    assert rows_for_run(PLACE, made, theirs, 9.0, entropy) == []


def test_what_says_the_same_as_the_journal_makes_no_rows() -> None:
    rows = a_run()
    assert rows_for_run(PLACE, rows, read_run_snapshot(plain(document(rows)), "g"), 9.0, entropy) == []
