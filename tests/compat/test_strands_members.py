"""Members of the SDK's classes that its programs use by hand: metrics, storages, results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repertory import (
    AfterModelCallEvent,
    Agent,
    ModelRetryStrategy,
    MultiAgentResult,
    NodeResult,
    ScriptedModel,
    Snapshot,
    tool,
)
from repertory.app.agent.loop_metrics import EventLoopMetrics, ToolTally, Trace
from repertory.app.sessions.stored_bytes import BytesStorage, KeywordSearchStrategy, token_overlap_score
from repertory.compat.compression import generate_summary
from repertory.compat.foreign_tools import load_tool_from_string, load_tools_from_file_path
from repertory.compat.programs import metrics_to_string
from repertory.compat.storages import LocalFileStorage
from repertory.core.messages import ToolUse
from repertory.core.run_results import Status
from repertory.errors import Invalid, Throttled
from tests.app.orchestration.recorder import use

pytestmark = pytest.mark.anyio

CALL: ToolUse = {"toolUseId": "tooluse_1", "name": "lookup", "input": {"word": "a"}}


def test_a_loop_of_the_programs_own_is_measured_by_hand() -> None:
    metrics = EventLoopMetrics()
    began, cycle = metrics.start_cycle(attributes={"event_loop_cycle_id": "c1"})
    metrics.update_usage({"inputTokens": 10, "outputTokens": 4, "totalTokens": 14, "cacheReadInputTokens": 6})
    called = Trace("lookup", parent_id=cycle.id)
    cycle.add_child(called)
    metrics.add_tool_usage(CALL, 2.0, called, success=False, message={"role": "user", "content": []})
    metrics.end_cycle(began, cycle, {"of": "a test"})
    assert (metrics.cycle_count, len(metrics.cycle_durations)) == (1, 1)
    assert metrics.agent_invocations[-1].cycles[-1].usage == metrics.accumulated_usage
    assert metrics.latest_context_size == 10  # The total says that the cached tokens are among them.
    tally = metrics.tool_metrics["lookup"]
    assert (tally.tool, tally.call_count, tally.error_count, tally.average_time) == (CALL, 1, 1, 2.0)
    found = metrics.get_summary()
    assert json.loads(json.dumps(found)) == found
    assert found["traces"][0]["children"][0]["metadata"] == {"toolUseId": "tooluse_1", "tool_name": "lookup"}
    assert found["tool_usage"]["lookup"]["tool_info"]["input_params"] == {"word": "a"}
    text = metrics_to_string(event_loop_metrics=metrics)
    assert text.startswith("Event Loop Metrics Summary:\n├─ Cycles: total=1, ")
    assert "         ├─ tooluse_1: lookup\n" in text
    assert "      └─ lookup - tooluse_1 - Duration: 0.0" in text
    assert "lookup:" not in metrics_to_string(metrics, {"another"})


def test_a_trace_without_an_end_has_no_duration() -> None:
    trace = Trace("work", start_time=1.0)
    assert trace.duration() is None
    trace.end(3.5)
    assert trace.to_dict()["duration"] == 2.5


def test_calls_of_a_tool_are_counted_by_the_programs_instruments_too() -> None:
    told: list[tuple[str, float, Any]] = []

    class Instrument:
        def __init__(self, name: str) -> None:
            self._name = name

        def add(self, amount: float, attributes: Any = None) -> None:
            told.append((self._name, amount, attributes))

        record = add

    names = ("tool_call_count", "tool_duration", "tool_success_count", "tool_error_count")
    client: Any = SimpleNamespace(**{name: Instrument(name) for name in names})
    tally = ToolTally(tool=CALL, success_count=1, call_count=1)
    tally.add_call(CALL, 0.5, True, client, attributes={"a": 1})
    tally.add_call(CALL, 1.5, False)
    assert (tally.call_count, tally.success_count, tally.error_count, tally.total_time) == (3, 2, 1, 2.0)
    assert [(name, amount) for name, amount, _ in told] == [
        ("tool_call_count", 1),
        ("tool_duration", 0.5),
        ("tool_success_count", 1),
    ]
    assert all(attributes == {"a": 1} for *_, attributes in told)


async def test_the_tools_of_answered_turns_have_a_name_and_a_success_count() -> None:
    @tool
    def lookup(word: str) -> str:
        """Look a word up."""
        return word

    agent = Agent(ScriptedModel([use("lookup", word="a"), "found"]), tools=[lookup], callback_handler=None)
    result = await agent.invoke_async("go")
    tally = agent.event_loop_metrics.tool_metrics["lookup"]
    assert (tally.tool["name"], tally.success_count) == ("lookup", 1)
    assert "└─ lookup:" in metrics_to_string(result.metrics)


def test_arguments_have_the_names_of_the_sdk(tmp_path: Path) -> None:
    path = tmp_path / "tools_here.py"
    path.write_text("from repertory import tool\n@tool\ndef one() -> str:\n    'One.'\n    return '1'\n")
    assert load_tool_from_string(tool_string=str(path))[0].name == "one"  # type: ignore[attr-defined]
    assert load_tools_from_file_path(tool_path=path)[0].name == "one"  # type: ignore[attr-defined]
    assert token_overlap_score({"a", "b"}, content="a c") == 1
    assert ModelRetryStrategy().is_retryable(exception=Throttled("slow down"))
    node = NodeResult(Invalid("no"), status=Status.FAILED)
    assert NodeResult.from_dict(data=node.to_dict()).status is Status.FAILED
    run = MultiAgentResult(results={"a": node}, status=Status.FAILED)
    assert MultiAgentResult.from_dict(data=run.to_dict()).status is Status.FAILED
    stop = AfterModelCallEvent.ModelStopResponse({"role": "assistant", "content": []}, "end_turn")
    assert stop.stop_reason == "end_turn"


async def test_a_summary_and_a_snapshot_are_read_by_the_names_of_the_sdk() -> None:
    summary = await generate_summary(
        messages_to_summarize=[{"role": "user", "content": [{"text": "hi"}]}], model=ScriptedModel(["short"])
    )
    assert summary["content"] == [{"text": "short"}]
    agent = Agent(ScriptedModel(["yes"]), callback_handler=None)
    await agent.invoke_async("go")
    taken = agent.take_snapshot(preset="session")
    assert Snapshot.from_dict(d=taken.to_dict()).data == taken.data


async def test_a_storage_of_a_program_can_be_searched_without_a_search_of_its_own() -> None:
    class Shelf(BytesStorage):
        def __init__(self) -> None:
            self.kept: dict[str, bytes] = {}

        async def write(self, key: str, data: bytes) -> None:
            self.kept[key] = data

        async def read(self, key: str) -> bytes | None:
            return self.kept.get(key)

        async def delete(self, key: str) -> None:
            self.kept.pop(key, None)

        async def list(self, query: str) -> list[str]:
            return sorted(key for key in self.kept if key.startswith(query))

    shelf = Shelf()
    await shelf.write("a.txt", b"green tea")
    await shelf.write("b.txt", b"black coffee and green beans")
    assert [found.key for found in await shelf.search("green coffee")] == ["b.txt", "a.txt"]
    assert not KeywordSearchStrategy.requires_host_fs


async def test_a_local_folder_is_named_as_in_the_sdk(tmp_path: Path) -> None:
    storage = LocalFileStorage(base_dir=f"{tmp_path}/x/")
    await storage.write("a", b"1")
    assert ((tmp_path / "x" / "a").read_bytes(), storage.base_dir) == (b"1", f"{tmp_path}/x")
    assert LocalFileStorage().base_dir == ".strands"
    assert await storage.namespace("b").list() == []
