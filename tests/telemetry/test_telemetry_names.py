"""The names of spans and attributes: against the conventions' package, our reference, and the released SDK."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics

from repertory import Agent, Graph, MemoryManager, ScriptedModel, Swarm, tool
from repertory.backends.tools.function_tool import schema_class
from repertory.telemetry.content import CapturePolicy
from tests.app.memory.toy_memories import Facts
from tests.source_tree import ROOT
from tests.telemetry.telemetry_recorder import Recorder, recording

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

DOCUMENT = (ROOT / "docs/reference/telemetry.md").read_text()
PYTHON = Path(os.environ.get("REPERTORY_STRANDS_PYTHON") or ROOT / "tests/peers/strands/bin/python")

CONVENTIONS = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
METRICS = {value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_CLIENT_")}


def section(title: str) -> set[str]:
    """The names in backticks of one section."""
    _, _, rest = DOCUMENT.partition(f"## {title}\n")
    return set(re.findall(r"`([^`]+)`", rest.partition("\n## ")[0]))


def test_every_attribute_of_the_conventions_is_in_the_document_and_nothing_else() -> None:
    named = {name for name in section("The conventions' attributes") if name.startswith("gen_ai.")}
    assert named == CONVENTIONS


def test_the_metrics_are_those_of_the_conventions() -> None:
    named = {name for name in section("Metrics") if name.startswith("gen_ai.client.")}
    assert named == METRICS


@tool(effects=False)
async def look(what: str) -> str:
    """Look."""
    return what


def agents() -> list[Agent]:
    facts = Facts("facts", extraction=True)
    facts.entries.append("tea is green")
    uses = {"toolUse": {"name": "look", "input": {"what": "tea"}}}
    return [
        Agent(ScriptedModel([uses, "done"]), tools=[look], name="anna", system_prompt="be kind", callback_handler=None),
        Agent(ScriptedModel(["ok"]), memory_manager=MemoryManager(stores=[facts]), callback_handler=None),
    ]


async def run_everything() -> None:
    for agent in agents():
        await agent.invoke_async("tea please")
    await Graph({"a": Agent(ScriptedModel(["A"]), callback_handler=None)}, id="g").invoke_async("go")
    await Swarm([Agent(ScriptedModel(["S"]), name="solo", callback_handler=None)], id="s").invoke_async("go")


@pytest.mark.anyio
async def test_every_attribute_that_is_given_is_in_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    with recording(monkeypatch, CapturePolicy(capture=True)) as recorder:
        await run_everything()
    given = {name for span in recorder.spans for name in (span.attributes or {})}
    known = section("The conventions' attributes") | section("Attributes of Repertory") | section("Spans")
    assert given - known - {"error.type"} == set()
    _, _, absent = DOCUMENT.partition("Not given:")
    assert not given & set(re.findall(r"`(gen_ai[^`]+)`", absent.partition("\n## ")[0]))


SDK_PROGRAM = """
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
from strands import Agent, tool
from strands.models import Model
from strands.multiagent import GraphBuilder, Swarm

class Scripted(Model):
    def __init__(self, *replies):
        self.replies = list(replies)
    def update_config(self, **config): pass
    def get_config(self): return {"model_id": "m-1"}
    async def structured_output(self, *args, **options): yield {}
    async def stream(self, *args, **options):
        reply = self.replies.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(reply, str):
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": reply}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "look", "toolUseId": "t1"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(reply)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(reply, str) else "tool_use"}}
        usage = {"inputTokens": 3, "outputTokens": 2, "totalTokens": 7, "cacheReadInputTokens": 2}
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 5}}}

@tool
def look(what: str) -> str:
    "Look."
    return what

model = Scripted({"what": "tea"}, "done")
Agent(model, tools=[look], name="anna", system_prompt="be kind", callback_handler=None)("hi")
builder = GraphBuilder()
builder.add_node(Agent(Scripted("A"), name="a", callback_handler=None), "a")
builder.build()("go")
Swarm([Agent(Scripted("S"), name="solo", callback_handler=None)])("go")
spans = exporter.get_finished_spans()
json.dump([[span.name, dict(span.attributes), [event.name for event in span.events]] for span in spans], sys.stdout)
"""


@pytest.mark.real_time
@pytest.mark.skipif(not PYTHON.exists(), reason="NOT TESTED against strands-agents: `make peers` installs it")
def test_what_the_released_sdk_gives_is_here_or_has_a_row_that_says_what_is() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [str(PYTHON), "-c", SDK_PROGRAM], capture_output=True, text=True, check=False, timeout=50, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
    spans: list[tuple[str, dict[str, Any], list[str]]] = json.loads(done.stdout)
    rows = section("What the Strands Agents SDK gives")
    names = {name.replace("anna", "NAME").replace("look", "NAME") for name, _, _ in spans}
    names = {re.sub(r"(invoke_agent|execute_tool) \S+$", r"\1 NAME", name) for name in names}
    assert names - rows == set()
    attributes = {name for _, given, _ in spans for name in given}
    assert attributes - rows - section("The conventions' attributes") == set()


def test_the_recorder_reads_paths() -> None:
    recorder = Recorder()
    tracer = recorder.tracers.get_tracer("t")
    with tracer.start_as_current_span("a"), tracer.start_as_current_span("b"):
        pass
    assert recorder.path(recorder.one("b")) == ["a", "b"]
