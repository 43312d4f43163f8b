"""Spans and metrics of calls, by OpenTelemetry's conventions, against exporters in memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from pydantic import BaseModel

from repertory import (
    Agent,
    AgentSpec,
    ExtractionConfig,
    Graph,
    InvocationTrigger,
    MemoryManager,
    ModelExtractor,
    ModelRetryStrategy,
    Runtime,
    ScriptedModel,
    SQLiteSessionManager,
    StepRetry,
    SummarizingConversationManager,
    Swarm,
    Telemetry,
    ToolContext,
    tool,
)
from repertory.app.tracebacks import telemetry as find_telemetry
from repertory.backends.tools.function_tool import schema_class
from repertory.errors import ContextWindowOverflowException, Invalid, ModelFailed, Throttled, Unavailable
from repertory.telemetry.content import CapturePolicy
from tests.app.memory.toy_memories import Facts
from tests.cluster.test_peers import Site
from tests.plugins.guarded_model import GuardedModel, Verdict
from tests.source_tree import ROOT
from tests.telemetry.telemetry_recorder import Recorder, recording

pytestmark = pytest.mark.anyio
schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Generator[Recorder]:
    with recording(monkeypatch) as found:
        yield found


def uses(name: str, **given: Any) -> dict[str, Any]:
    return {"toolUse": {"name": name, "input": given}}


def agent_with(*replies: Any, **more: Any) -> Agent:
    return Agent(ScriptedModel(replies or ("fine",), loop=True), callback_handler=None, **more)


async def test_a_plain_turn_is_a_call_with_a_step_and_a_model_call(recorder: Recorder) -> None:
    agent = agent_with("hi", name="anna", description="greets", trace_attributes={"team": "bees"})
    with recorder.tracers.get_tracer("program").start_as_current_span("request"):
        await agent.invoke_async("hello")
    chat, step, call = recorder.one("chat"), recorder.one("step"), recorder.one("invoke_agent anna")
    assert recorder.path(chat) == ["request", "invoke_agent anna", "step", "chat"]
    assert (chat.kind, step.kind, call.kind) == (SpanKind.CLIENT, SpanKind.INTERNAL, SpanKind.INTERNAL)
    assert [span.attributes["team"] for span in (chat, step, call)] == ["bees"] * 3
    said = dict(call.attributes or {})
    assert said["gen_ai.operation.name"] == "invoke_agent"
    assert said["gen_ai.agent.name"] == "anna"
    assert said["gen_ai.agent.description"] == "greets"
    assert said["gen_ai.response.finish_reasons"] == ("end_turn",)
    assert said["gen_ai.usage.output_tokens"] == chat.attributes["gen_ai.usage.output_tokens"]
    assert chat.attributes["gen_ai.response.time_to_first_chunk"] >= 0
    assert {span.status.status_code for span in recorder.spans} == {StatusCode.UNSET}
    assert not any(name in said for name in ("gen_ai.input.messages", "gen_ai.output.messages"))


async def test_request_parameters_usage_and_metrics_follow_the_conventions(recorder: Recorder) -> None:
    class Known(ScriptedModel):
        def get_config(self) -> Any:
            return {"model_id": "m-1", "temperature": 0.5, "params": {"max_tokens": 7}, "stop_sequences": ["X"]}

        async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
            async for event in super().stream(*args, **options):
                if "metadata" in event:
                    event["metadata"]["response"] = {"id": "answer-1", "model": "m-1-2026"}
                yield event

    await Agent(Known(["Hello"], chunk=1), callback_handler=None).invoke_async("hello")
    chat = recorder.one("chat m-1")
    assert chat.attributes["gen_ai.response.id"] == "answer-1"
    assert chat.attributes["gen_ai.response.model"] == "m-1-2026"
    assert chat.attributes["gen_ai.request.model"] == "m-1"
    assert chat.attributes["gen_ai.request.temperature"] == 0.5
    assert chat.attributes["gen_ai.request.max_tokens"] == 7
    assert chat.attributes["gen_ai.request.stop_sequences"] == ("X",)
    kinds = {point.attributes["gen_ai.token.type"]: point.sum for point in recorder.points("gen_ai.client.token.usage")}
    assert kinds["input"] == chat.attributes["gen_ai.usage.input_tokens"]
    (duration,) = recorder.points("gen_ai.client.operation.duration")
    assert dict(duration.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "Known",
        "gen_ai.request.model": "m-1",
    }
    assert duration.explicit_bounds[0] == 0.01
    assert len(recorder.points("gen_ai.client.operation.time_to_first_chunk")) == 1
    assert [point.count for point in recorder.points("gen_ai.client.operation.time_per_output_chunk")] == [4]
    assert len(recorder.points("repertory.turn.duration")) == 1


@pytest.mark.real_time
async def test_tools_in_threads_and_beside_each_other_are_children_of_their_step(recorder: Recorder) -> None:
    both = threading.Barrier(2, timeout=20)

    @tool(effects=False)
    def look(what: str) -> str:
        """Look."""
        both.wait()
        with recorder.tracers.get_tracer("program").start_as_current_span(f"inside {what}"):
            return what

    agent = agent_with([uses("look", what="a"), uses("look", what="b")], "done", tools=[look], name="anna")
    await agent.invoke_async("go")
    for what in ("a", "b"):
        inside = recorder.one(f"inside {what}")
        assert recorder.path(inside) == ["invoke_agent anna", "step", "execute_tool look", f"inside {what}"]
    first, second = recorder.named("execute_tool look")
    assert first.attributes["gen_ai.tool.call.id"] != second.attributes["gen_ai.tool.call.id"]
    assert first.attributes["gen_ai.tool.description"] == "Look."
    assert [step.attributes["repertory.step"] for step in recorder.named("step")] == [0, 1]
    (point,) = recorder.points("repertory.tool.duration")
    assert point.count == 2


async def test_each_attempt_of_a_failing_model_is_a_span_and_each_repetition_an_event(recorder: Recorder) -> None:
    agent = agent_with(Throttled("slow down"), "hi", name="anna", retry_strategy=ModelRetryStrategy())
    await agent.invoke_async("hello")
    failed, answered = recorder.named("chat")
    assert (failed.attributes["error.type"], failed.status.status_code) == ("Throttled", StatusCode.ERROR)
    assert [span.attributes["repertory.attempt"] for span in (failed, answered)] == [1, 2]
    (event,) = recorder.one("step").events
    assert event.name == "repertory.model_retry"
    assert event.attributes["error.type"] == "Throttled"


async def test_a_call_that_fails_has_the_type_of_its_error_and_no_text(recorder: Recorder) -> None:
    agent = agent_with(ModelFailed("the secret is 42"), name="anna", retry_strategy=None)
    with pytest.raises(ModelFailed):
        await agent.invoke_async("hello")
    for name in ("chat", "step", "invoke_agent anna"):
        span = recorder.one(name)
        assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "ModelFailed")
        assert span.status.description is None
        assert not span.events
    assert "secret" not in recorder.everything()


async def test_a_failing_tool_has_the_class_of_its_exception(recorder: Recorder) -> None:
    @tool(effects=False)
    async def burn() -> str:
        """Burn."""
        raise KeyError("the secret")

    await agent_with(uses("burn"), "done", tools=[burn]).invoke_async("go")
    span = recorder.one("execute_tool burn")
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "KeyError")
    assert "secret" not in recorder.everything()


async def test_a_cancelled_call_is_no_error(recorder: Recorder) -> None:
    class Slow(ScriptedModel):
        async def stream(self, *args: Any, **options: Any) -> Any:
            await anyio.sleep(60)
            yield {}

    agent = Agent(Slow(["x"]), callback_handler=None, name="anna")
    async with anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "hello")
        await anyio.sleep(1)
        agent.cancel()
    assert recorder.one("chat").attributes["repertory.cancelled"] is True
    call = recorder.one("invoke_agent anna")
    assert call.attributes["repertory.stop_reason"] == "cancelled"
    assert call.status.status_code is StatusCode.UNSET


async def test_the_answer_to_an_interrupt_is_a_new_call_linked_to_the_one_that_asked(recorder: Recorder) -> None:
    @tool(effects=False, context=True)
    async def ask(tool_context: ToolContext) -> str:
        """Ask."""
        return str(tool_context.interrupt("may I"))

    agent = agent_with(uses("ask"), "done", tools=[ask], name="anna")
    asked = await agent.invoke_async("go")
    answer = {"interruptResponse": {"interruptId": asked.interrupts[0].id, "response": "yes"}}
    await agent.invoke_async([answer])
    first, second = recorder.named("invoke_agent anna")
    assert first.attributes["repertory.stop_reason"] == "interrupt"
    assert [link.context.span_id for link in second.links] == [first.context.span_id]
    assert recorder.named("execute_tool ask")[0].attributes["repertory.interrupted"] is True


async def test_structured_output_is_json(recorder: Recorder) -> None:
    class Answer(BaseModel):
        number: int

    await agent_with(uses("Answer", number=4), name="anna").invoke_async("go", structured_output_model=Answer)
    assert recorder.one("invoke_agent anna").attributes["gen_ai.output.type"] == "json"


async def test_an_agent_as_a_tool_is_a_child_of_the_tool(recorder: Recorder) -> None:
    inner = agent_with("from inside", name="inner")
    outer = agent_with(uses("inner", input="hi"), "done", tools=[inner], name="outer")
    await outer.invoke_async("go")
    path = recorder.path(recorder.one("invoke_agent inner"))
    assert path == ["invoke_agent outer", "step", "execute_tool inner", "invoke_agent inner"]


async def test_nodes_of_graphs_and_swarms_are_children_of_their_run(recorder: Recorder) -> None:
    graph = Graph({"a": agent_with("A", name="anna"), "b": agent_with("B", name="ben")}, id="g")
    await graph.invoke_async("go")
    path = recorder.path(recorder.one("invoke_agent anna"))
    assert path == ["invoke_workflow g", "execute_node a", "invoke_agent anna"]
    run = recorder.one("invoke_workflow g")
    assert run.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert run.attributes["repertory.orchestrator.kind"] == "graph"
    await Swarm([agent_with("S", name="solo")], id="s").invoke_async("go")
    assert recorder.path(recorder.one("invoke_agent solo"))[0] == "invoke_workflow s"


async def test_memory_is_searched_beside_the_turn_and_extracted_behind_it(recorder: Recorder) -> None:
    facts = Facts("facts")
    facts.entries.append("tea is green")
    agent = agent_with("ok", name="anna", memory_manager=MemoryManager(stores=[facts]))
    await agent.invoke_async("tea please")
    search = recorder.one("retrieval facts")
    assert recorder.path(search)[0] == "invoke_agent anna"
    assert search.attributes["gen_ai.operation.name"] == "retrieval"
    assert search.attributes["gen_ai.data_source.id"] == "facts"
    assert "gen_ai.retrieval.query.text" not in search.attributes


async def test_a_summary_is_work_of_the_call(recorder: Recorder) -> None:
    manager = SummarizingConversationManager(preserve_recent_messages=1)
    overflow = ContextWindowOverflowException("too long")
    said = [{"role": role, "content": [{"text": "x"}]} for _ in range(5) for role in ("user", "assistant")]
    agent = agent_with(overflow, "in short", "hi", name="anna", messages=said, conversation_manager=manager)
    await agent.invoke_async("hello")
    assert recorder.path(recorder.one("repertory.summarize"))[0] == "invoke_agent anna"
    inside = [span for span in recorder.named("chat") if "repertory.summarize" in recorder.path(span)]
    assert len(inside) == 1


async def test_extraction_is_a_trace_of_its_own_linked_to_the_call(recorder: Recorder) -> None:
    extractor = ModelExtractor(model=ScriptedModel(['[{"content": "tea is green"}]'], loop=True))
    facts = Facts("facts", extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=extractor))
    manager = MemoryManager(stores=[facts])
    agent = agent_with("ok", name="anna", memory_manager=manager)
    async with agent:
        await agent.invoke_async("tea please")
        await manager.flush()
    call, extraction = recorder.one("invoke_agent anna"), recorder.one("repertory.memory.extract")
    assert extraction.parent is None
    assert [link.context.span_id for link in extraction.links] == [call.context.span_id]
    assert recorder.path(recorder.named("chat")[-1]) == ["repertory.memory.extract", "chat"]


class Away:
    """An extractor that cannot work now."""

    async def extract(self, *args: object, **options: object) -> list[Any]:
        raise Unavailable("the extractor is away")


@pytest.mark.real_time
async def test_extraction_left_by_an_earlier_process_is_a_trace_of_its_own(recorder: Recorder, tmp_path: Path) -> None:
    def agent(extractor: Any) -> tuple[Agent, MemoryManager]:
        facts = Facts("facts", extraction=ExtractionConfig(trigger=InvocationTrigger(), extractor=extractor))
        manager = MemoryManager(stores=[facts])
        session = SQLiteSessionManager("s", path=tmp_path / "s.db")
        return agent_with("ok", name="anna", memory_manager=manager, session_manager=session), manager

    first, _ = agent(Away())
    async with first:
        await first.invoke_async("tea please")
    recorder.exporter.clear()
    second, manager = agent(ModelExtractor(model=ScriptedModel(['[{"content": "tea is green"}]'])))
    async with second:
        await manager.flush()
    extraction = recorder.one("repertory.memory.extract")
    assert (extraction.parent, extraction.links) == (None, ())
    assert recorder.path(recorder.one("chat")) == ["repertory.memory.extract", "chat"]


KILLED = """
import os, signal, sys
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry import trace
from repertory import Agent, ScriptedModel, SQLiteSessionManager, tool
trace.set_tracer_provider(TracerProvider())

@tool(idempotent=True)
def stop() -> str:
    "Stop."
    span = trace.get_current_span()
    print(f"{span.parent.span_id:016x}", flush=True)
    if sys.argv[2] == "first":
        os.kill(os.getpid(), signal.SIGKILL)
    return "stopped"

model = ScriptedModel([{"toolUse": {"name": "stop", "input": {}}}] if sys.argv[2] == "first" else ["done"])
agent = Agent(model, tools=[stop], session_manager=SQLiteSessionManager("s", path=sys.argv[1]), callback_handler=None)
agent("go")
"""


@pytest.mark.real_time
def test_a_turn_that_a_killed_process_left_is_linked_to_by_the_one_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    command = [sys.executable, "-c", KILLED, str(path), "first"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == -signal.SIGKILL, done.stderr

    @tool(idempotent=True)
    def stop() -> str:
        """Stop."""
        return "stopped"

    with recording(monkeypatch) as recorder:
        agent = agent_with("done", tools=[stop], session_manager=SQLiteSessionManager("s", path=path), name="anna")
        assert str(agent()) == "done"
        agent.shutdown()
        (link,) = recorder.one("invoke_agent anna").links
        assert dict(link.attributes) == {"repertory.link": "interrupted"}
        assert link.context.is_remote
        assert link.context.trace_id != recorder.one("invoke_agent anna").context.trace_id


@pytest.mark.real_time
def test_a_commit_is_linked_to_the_calls_whose_rows_it_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with recording(monkeypatch) as recorder:
        agent_with("hi", name="anna", session_manager=SQLiteSessionManager("s", path=tmp_path / "s.db"))("hello")
        call = recorder.one("invoke_agent anna")
        commit = recorder.one("repertory.commit")
        assert commit.parent is None
        assert call.context.span_id in [link.context.span_id for link in commit.links]
        assert commit.attributes["repertory.commit.sessions"] == 1
        assert call.attributes["gen_ai.conversation.id"] == "s"


async def test_a_call_that_a_peer_serves_is_a_child_of_what_called_it(recorder: Recorder) -> None:
    site = Site()
    async with site.process("a") as a, site.process("b") as b:
        await anyio.sleep(3)
        await a.agent.session("s").invoke("one")
        recorder.exporter.clear()
        with recorder.tracers.get_tracer("program").start_as_current_span("request"):
            await b.agent.session("s").invoke("two")
    chat = recorder.one("chat")
    assert recorder.path(chat) == ["request", "invoke_agent support", "invoke_agent support", "step", "chat"]
    outer = recorder.named("invoke_agent support")[-1]
    assert (outer.kind, outer.attributes["gen_ai.agent.id"]) == (SpanKind.CLIENT, "support")
    assert outer.attributes["repertory.peer"]


async def test_agents_of_a_runtime_have_their_own_attributes(recorder: Recorder) -> None:
    async with Runtime() as runtime:
        helper = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["x"]), trace_attributes={"team": "bees"}))
        await helper.session("marta").invoke("hi")
    call = recorder.one("invoke_agent helper")
    assert (call.attributes["team"], call.attributes["gen_ai.conversation.id"]) == ("bees", "marta")


async def test_baggage_is_current_during_the_call_alone(recorder: Recorder) -> None:
    seen: list[Any] = []

    @tool(effects=False)
    async def look() -> str:
        """Look."""
        seen.append(baggage.get_baggage("tenant"))
        return "x"

    agent = agent_with(uses("look"), "done", tools=[look], baggage_attributes={"tenant": "t-1"})
    await agent.invoke_async("go")
    assert seen == ["t-1"]
    assert baggage.get_baggage("tenant") is None
    assert context.get_current() == {}


# What is shown.


async def test_content_is_shown_when_the_program_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    @tool(effects=False)
    async def look(what: str) -> str:
        """Look."""
        return f"seen {what}"

    with recording(monkeypatch, CapturePolicy(capture=True)) as recorder:
        agent = agent_with(uses("look", what="tea"), "done", tools=[look], system_prompt="be kind", name="anna")
        await agent.invoke_async("hello")
    call, chat = recorder.one("invoke_agent anna"), recorder.named("chat")[0]
    assert json.loads(call.attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "hello"}]}
    ]
    assert json.loads(call.attributes["gen_ai.output.messages"]) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}
    ]
    assert json.loads(chat.attributes["gen_ai.system_instructions"]) == [{"type": "text", "content": "be kind"}]
    assert json.loads(chat.attributes["gen_ai.tool.definitions"])[0]["name"] == "look"
    (said,) = json.loads(chat.attributes["gen_ai.output.messages"])
    assert (said["parts"][0]["type"], said["finish_reason"]) == ("tool_call", "tool_call")
    ran = recorder.one("execute_tool look")
    assert json.loads(ran.attributes["gen_ai.tool.call.arguments"]) == {"what": "tea"}
    assert json.loads(ran.attributes["gen_ai.tool.call.result"]) == [{"text": "seen tea"}]
    later = json.loads(recorder.named("chat")[1].attributes["gen_ai.input.messages"])
    assert later[-1]["role"] == "tool"


async def test_a_scrubber_decides_and_one_that_fails_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def scrub(value: Any) -> Any:
        if isinstance(value, list) and value[0].get("role") == "user":
            return "hidden"
        raise ValueError("the secret")

    with recording(monkeypatch, CapturePolicy(capture=True, scrub=scrub)) as recorder:
        await agent_with("the secret", name="anna").invoke_async("the secret")
    call = recorder.one("invoke_agent anna")
    assert call.attributes["gen_ai.input.messages"] == "hidden"
    assert "gen_ai.output.messages" not in call.attributes
    assert "the secret" not in recorder.everything() + caplog.text


async def test_what_a_guardrail_redacts_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with recording(monkeypatch, CapturePolicy(capture=True)) as recorder:
        model = GuardedModel(Verdict(user="[gone]"))
        await Agent(model, callback_handler=None, name="anna").invoke_async("the secret")
    assert "[gone]" in recorder.one("invoke_agent anna").attributes["gen_ai.input.messages"]
    assert "the secret" not in recorder.everything()


SECRET = "xyzzy-4711"


async def test_nothing_secret_is_in_any_span_by_default(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedModel):
        async def stream(self, *args: Any, **options: Any) -> Any:
            raise RuntimeError(SECRET)
            yield {}

    @tool(effects=False)
    async def look(what: str) -> str:
        """Look."""
        if what.startswith("fail"):
            raise ValueError(what)
        return what

    facts = Facts("facts", extraction=True)
    facts.entries.append(f"{SECRET} tea")
    agents = [
        agent_with(uses("look", what=SECRET), SECRET, tools=[look], system_prompt=SECRET),
        agent_with(uses("look", what=f"fail {SECRET}"), SECRET, tools=[look]),
        agent_with(SECRET, memory_manager=MemoryManager(stores=[facts])),
        agent_with(SECRET, messages=[{"role": "user", "content": [{"text": SECRET}]}]),
    ]
    for agent in agents:
        await agent.invoke_async(f"tea {SECRET}", invocation_state={"key": SECRET})
        agent.load_snapshot(agent.save_snapshot(metadata={"m": SECRET}))
    with pytest.raises(ModelFailed):
        await Agent(Broken([]), callback_handler=None, retry_strategy=None).invoke_async(SECRET)
    await Graph({"a": agent_with(SECRET)}, id="g").invoke_async(SECRET)
    assert len(recorder.spans) > 20
    assert SECRET not in recorder.everything()


# Without a provider, and with one that fails.


async def test_without_a_provider_nothing_is_made_or_written() -> None:
    assert find_telemetry() is None
    agent = agent_with("hi")
    await agent.invoke_async("hello")
    assert "metadata" not in agent.messages[0]


@pytest.mark.real_time
def test_an_open_turn_names_its_trace_in_the_journal_and_an_answer_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with recording(monkeypatch) as recorder:
        agent = agent_with("hi", name="anna", session_manager=SQLiteSessionManager("s", path=tmp_path / "s.db"))
        agent("hello")
        context = recorder.one("invoke_agent anna").context
        kept = [message.get("metadata", {}).get("custom", {}).get("traceparent") for message in agent.messages]
        agent.shutdown()
    assert kept[0].startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert kept[1] is None


async def test_a_processor_that_fails_takes_no_turn_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            raise RuntimeError("bad processor")

    with recording(monkeypatch) as recorder:
        recorder.tracers.add_span_processor(Bad())
        assert str(await agent_with("hi").invoke_async("hello")) == "hi"
    assert "a span is lost" in caplog.text


async def test_a_call_that_is_not_sampled_has_no_spans_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with recording(monkeypatch) as recorder:
        off = TracerProvider(sampler=ALWAYS_OFF)
        monkeypatch.setattr(trace, "get_tracer_provider", lambda: off)
        assert str(await agent_with("hi").invoke_async("hello")) == "hi"
        assert not recorder.spans
        assert len(recorder.points("repertory.turn.duration")) == 1


@pytest.mark.real_time
async def test_a_drain_sends_what_the_exporters_hold(recorder: Recorder) -> None:
    flushed: list[threading.Thread] = []

    class Held(SpanProcessor):
        def force_flush(self, timeout_millis: int = 0) -> bool:
            flushed.append(threading.current_thread())
            return True

    recorder.tracers.add_span_processor(Held())
    telemetry = await anyio.to_thread.run_sync(Telemetry, recorder.tracers)
    async with Runtime() as runtime:
        await runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["x"]))).session("s").invoke("hi")
        assert not flushed
    assert flushed
    assert threading.main_thread() not in flushed
    telemetry.shutdown()


async def test_a_posted_call_is_a_child_of_what_posted_it(recorder: Recorder) -> None:
    site = Site()
    async with site.process("a") as a:
        with recorder.tracers.get_tracer("program").start_as_current_span("request"):
            await a.agent.session("s").post("one")
        await anyio.sleep(60)
    assert recorder.path(recorder.one("invoke_agent support")) == ["request", "invoke_agent support"]


def test_a_scrubber_is_a_function() -> None:
    with pytest.raises(Invalid, match="scrub"):
        Telemetry(TracerProvider(), scrub="x")  # type: ignore[arg-type]


# Durable steps of tools.


async def test_each_step_of_a_tool_is_a_child_of_its_tool(recorder: Recorder) -> None:
    failures = ["first", "second"]

    def charge() -> str:
        if failures:
            raise ConnectionError(failures.pop())
        return "charged"

    def fail() -> None:
        raise KeyError("secret")

    @tool(durable=True)
    async def buy(tool_context: ToolContext) -> str:
        """Buy."""
        tool_context.on_failure("refund", charge)
        await tool_context.step("charge", charge, retry=StepRetry(on=(ConnectionError,)))
        await tool_context.step("charge", charge)
        return str(await tool_context.step("ship", fail))

    agent = agent_with([uses("buy")], "done", tools=[buy], name="anna")
    await agent.invoke_async("go")
    first, second = recorder.named("execute_step charge")
    tool_path = ["invoke_agent anna", "step", "execute_tool buy"]
    assert recorder.path(first) == [*tool_path, "execute_step charge"]
    assert [event.attributes["error.type"] for event in first.events] == ["ConnectionError"] * 2
    assert [event.name for event in first.events] == ["repertory.step_retry"] * 2
    assert first.attributes["repertory.attempt"] == 1
    assert first.attributes["repertory.tool_step.outcome"] == "completed"
    assert first.attributes["repertory.tool_step"] != second.attributes["repertory.tool_step"]
    failed, undone = recorder.one("execute_step ship"), recorder.one("execute_step refund")
    assert failed.attributes["repertory.tool_step.outcome"] == "failed"
    assert failed.attributes["error.type"] == "KeyError"
    assert undone.attributes["repertory.tool_step.undoes"] is True
    assert "secret" not in "".join(span.to_json() for span in (first, second, failed, undone))


@pytest.mark.real_time
async def test_steps_of_tools_in_threads_are_children_of_their_tool(recorder: Recorder) -> None:
    @tool(durable=True)
    def count(tool_context: ToolContext) -> str:
        """Count."""
        return str(tool_context.run_step("shelf", lambda: 1))

    agent = agent_with([uses("count")], "done", tools=[count], name="anna")
    await agent.invoke_async("go")
    path = ["invoke_agent anna", "step", "execute_tool count", "execute_step shelf"]
    assert recorder.path(recorder.one("execute_step shelf")) == path


async def test_a_step_that_an_earlier_life_has_done_says_so(recorder: Recorder) -> None:
    asked = list[str]()

    @tool(durable=True)
    async def buy(tool_context: ToolContext) -> str:
        """Buy."""
        await tool_context.step("charge", lambda: "charged")
        asked.append(str(tool_context.interrupt("sure?")))
        return "bought"

    agent = agent_with([uses("buy")], "done", tools=[buy], name="anna")
    result = await agent.invoke_async("go")
    (question,) = result.interrupts
    answer = {"interruptResponse": {"interruptId": question.id, "response": "yes"}}
    await agent.invoke_async([answer])
    outcomes = [span.attributes["repertory.tool_step.outcome"] for span in recorder.named("execute_step charge")]
    assert (outcomes, asked) == (["completed", "recorded"], ["yes"])


async def test_a_step_that_is_cut_off_has_an_unknown_outcome(recorder: Recorder) -> None:
    @tool(durable=True)
    async def wait(tool_context: ToolContext) -> str:
        """Wait."""
        return str(await tool_context.step("long", anyio.sleep, 1000))

    async with agent_with([uses("wait")], "done", tools=[wait], name="anna") as agent:
        with anyio.move_on_after(1):
            await agent.invoke_async("go")
    span = recorder.one("execute_step long")
    assert span.attributes["repertory.tool_step.outcome"] == "unknown"
    assert span.attributes["repertory.cancelled"] is True
