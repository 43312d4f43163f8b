"""What a call gives back: its result, what it cost, and the events on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
import pytest

from repertory import Agent, Model, ScriptedModel, Throttled, ToolContext, tool
from repertory.backends.ports import StreamEvent
from repertory.backends.tools.function_tool import schema_class
from repertory.core.answer import message_events, whole
from repertory.core.messages import Message, ToolSpec
from repertory.core.result import AgentResult

pytestmark = pytest.mark.anyio

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.


@tool
async def work(seconds: float, fail: bool = False) -> str:
    """Work for a while."""
    await anyio.sleep(seconds)
    if fail:
        raise ValueError("no")
    return "done"


@tool(effects=False)
async def glance() -> AsyncIterator[str]:
    """Look for a moment."""
    yield "half"
    await anyio.lowlevel.checkpoint()
    yield "whole"


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


class CachingModel(Model):
    """Answers with the usage that it is given, two seconds after it is asked."""

    def __init__(self, *answers: tuple[Any, dict[str, int]]) -> None:
        self._answers = list(answers)

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        await anyio.sleep(2)
        block, usage = self._answers.pop(0)
        for event in message_events([block], split=whole):
            yield event
        yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1500}}}


async def test_a_summary_holds_every_cycle_every_tool_and_the_sums_as_plain_json() -> None:
    first = {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 135,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 20,
    }
    second = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
    asked = {"toolUse": {"toolUseId": "t1", "name": "work", "input": {"seconds": 4}}}
    agent = Agent(CachingModel((asked, first), ({"text": "ok"}, second)), tools=[work], callback_handler=None)
    result = await agent.invoke_async("go")
    summary = result.metrics.get_summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["total_duration"] == pytest.approx(8, abs=0.01)
    assert [cycle.pop("duration_s") for cycle in summary["cycles"]] == pytest.approx([2, 2], abs=0.01)
    tool_usage = summary["tool_usage"].pop("work")
    assert tool_usage.pop("total_time") == tool_usage.pop("average_time") == pytest.approx(4, abs=0.01)
    stats = tool_usage.pop("execution_stats")
    assert (stats.pop("total_time"), stats.pop("average_time")) == pytest.approx((4, 4), abs=0.01)
    assert tool_usage == {**stats, "tool_info": {"name": "work"}}
    assert stats == {"call_count": 1, "success_count": 1, "error_count": 0, "success_rate": 1.0}
    assert summary.pop("average_cycle_time") == pytest.approx(2, abs=0.01)
    del summary["total_duration"]
    turns = summary.pop("agent_invocations")
    assert turns == [
        {
            "usage": summary["accumulated_usage"],
            "cycles": [{"event_loop_cycle_id": "1", "usage": first}, {"event_loop_cycle_id": "2", "usage": second}],
        }
    ]
    assert summary == {
        "total_cycles": 2,
        "left_out": {},
        "traces": [],
        "accumulated_usage": {
            "inputTokens": 17,
            "outputTokens": 8,
            "totalTokens": 145,
            "cacheReadInputTokens": 100,
            "cacheWriteInputTokens": 20,
        },
        "accumulated_metrics": {"latencyMs": 3000.0},
        "cycles": [
            {"usage": first, "latency_ms": 1500, "attempts": 1},
            {"usage": second, "latency_ms": 1500, "attempts": 1},
        ],
        "tool_usage": {},
    }
    assert result.context_size == 7
    assert result.metrics.accumulated_usage == result.metrics.usage


async def test_cached_tokens_are_part_of_what_the_model_read() -> None:
    usage = {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 135,
        "cacheReadInputTokens": 100,
        "cacheWriteInputTokens": 20,
    }
    result = await Agent(CachingModel(({"text": "ok"}, usage)), callback_handler=None).invoke_async("go")
    assert result.context_size == result.metrics.latest_context_size == 130


async def test_tools_are_counted_by_name_with_their_errors_and_their_time() -> None:
    asked = [use("work", seconds=2), use("work", seconds=4), use("work", seconds=3, fail=True), use("glance")]
    agent = Agent(ScriptedModel([asked, [use("nope")], "ok"]), tools=[work, glance], callback_handler=None)
    metrics = (await agent.invoke_async("go")).metrics
    assert metrics.tool_calls == {"work": 3, "glance": 1}
    worked = metrics.tool_metrics["work"]
    assert (worked.call_count, worked.success_count, worked.error_count) == (3, 2, 1)
    assert worked.total_time == pytest.approx(9, abs=0.01)
    assert worked.average_time == pytest.approx(3, abs=0.01)
    assert metrics.steps == metrics.cycle_count == 3


async def test_attempts_at_the_model_are_counted_in_their_cycle() -> None:
    agent = Agent(ScriptedModel([Throttled("slow down"), Throttled("slow down"), "ok"]), callback_handler=None)
    metrics = (await agent.invoke_async("go")).metrics
    assert [cycle.attempts for cycle in metrics.cycles] == [3]
    assert metrics.get_summary()["cycles"][0]["attempts"] == 3


async def test_every_call_is_measured_by_itself() -> None:
    agent = Agent(ScriptedModel([use("glance"), "one", "two"]), tools=[glance], callback_handler=None)
    first, second = await agent.invoke_async("1"), await agent.invoke_async("2")
    assert (first.metrics.steps, second.metrics.steps) == (2, 1)
    assert second.metrics.tool_calls == {}


async def test_a_result_reads_as_the_text_of_its_answer() -> None:
    replies = [
        [{"text": "first line"}, {"text": "second line"}],
        [{"reasoningContent": {"reasoningText": {"text": "hm"}}}, {"text": "said"}],
    ]
    agent = Agent(ScriptedModel(replies), callback_handler=None)
    assert str(await agent.invoke_async("go")) == "first line\nsecond line"
    assert str(await agent.invoke_async("go")) == "said"
    assert str(AgentResult(stop_reason="cancelled", message=None)) == ""
    assert AgentResult(stop_reason="cancelled", message=None).context_size is None


# ------------------------------------------------------------------------------------------------------------ events


def shape(event: dict[str, Any]) -> object:
    """What of an event a program may rely on."""
    match event:
        case {"event": inner}:
            return f"event {next(iter(inner))}"
        case {"message": message}:
            return f"message {message['role']} {[next(iter(block)) for block in message['content']]}"
        case {"result": result}:
            return f"result {result.stop_reason}"
        case _:
            return event


async def test_the_events_of_a_turn_with_a_tool_in_their_order() -> None:
    """The list that the page on tools names. Raw events of the model first, then what is derived from them."""
    thought = {"reasoningContent": {"reasoningText": {"text": "A look, then."}}}
    model = ScriptedModel([[thought, use("glance")], "Seen."])
    agent = Agent(model, tools=[glance], callback_handler=None)
    asked = {"toolUseId": "tooluse_1", "name": "glance", "input": {}}
    raw = [event async for event in agent.stream_async("Look!")]
    start: list[Any] = [{"start": True}, {"start_event_loop": True}]
    use_input = {"toolUse": {"input": "{}"}}
    use_so_far = {"toolUseId": "tooluse_1", "name": "glance", "input": "{}"}
    assert [shape(event) for event in raw] == [
        {"init_event_loop": True},
        *start,
        "event messageStart",
        "event contentBlockDelta",
        {
            "reasoning": True,
            "reasoningText": "A look, then.",
            "delta": {"reasoningContent": {"text": "A look, then."}},
        },
        "event contentBlockStop",
        "event contentBlockStart",
        "event contentBlockDelta",
        {"type": "tool_use_stream", "current_tool_use": use_so_far, "delta": use_input},
        "event contentBlockStop",
        "event messageStop",
        "event metadata",
        "message assistant ['reasoningContent', 'toolUse']",
        {"tool_started": asked},
        {"type": "tool_stream", "tool_stream_event": {"tool_use": asked, "data": "half"}},
        {"type": "tool_stream", "tool_stream_event": {"tool_use": asked, "data": "whole"}},
        {"tool_finished": {"toolUseId": "tooluse_1", "status": "success", "content": [{"text": "whole"}]}},
        "message user ['toolResult']",
        {"start": True},
        *start,
        "event messageStart",
        "event contentBlockDelta",
        {"data": "Seen.", "delta": {"text": "Seen."}},
        "event contentBlockStop",
        "event messageStop",
        "event metadata",
        "message assistant ['text']",
        "result end_turn",
    ]


async def test_a_handler_is_told_the_same_events_as_a_stream_and_the_agent_of_each_piece() -> None:
    told: list[object] = []

    def handler(*, request_state: dict[str, Any], **event: Any) -> None:
        assert (event.pop("agent", None) is not None) == ("delta" in event)
        told.append(shape(event))

    agent = Agent(ScriptedModel([use("glance"), "Seen."]), tools=[glance], callback_handler=handler)
    streamed = [shape(event) async for event in agent.stream_async("Look!")]
    assert told == streamed
    told.clear()
    again = Agent(ScriptedModel([use("glance"), "Seen."]), tools=[glance], callback_handler=handler)
    await again.invoke_async("Look!")
    assert told == streamed


async def test_a_model_that_is_asked_again_says_so_between_its_pieces() -> None:
    agent = Agent(ScriptedModel([Throttled("slow down"), "ok"]), callback_handler=None)
    retries = [event["model_retry"] async for event in agent.stream_async("go") if "model_retry" in event]
    assert [(retry["attempt"], type(retry["error"])) for retry in retries] == [(1, Throttled)]  # type: ignore[index]


async def test_a_failed_turn_has_no_result_event() -> None:
    events: list[str] = []
    agent = Agent(ScriptedModel([ValueError("bug")]), callback_handler=None)
    with pytest.raises(Exception, match="bug"):
        async for event in agent.stream_async("go"):
            events.append(next(iter(event)))
    assert events == ["init_event_loop", "start", "start_event_loop", "force_stop"]


async def test_whoever_edits_what_they_are_given_edits_no_history() -> None:
    def spoil(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                spoil(inner)
            value["spoilt"] = True
        elif isinstance(value, list):
            for inner in value:
                spoil(inner)
            value.append("spoilt")

    @tool
    async def meddle(number: int, tool_context: ToolContext) -> dict[str, Any]:
        """Meddle."""
        await anyio.lowlevel.checkpoint()
        spoil(tool_context.tool_use)
        return {"number": number}

    model = ScriptedModel([use("meddle", number=1), "done", "later", "last"])
    initial: Any = [{"role": "user", "content": [{"text": "x"}]}, {"role": "assistant", "content": [{"text": "y"}]}]
    agent = Agent(model, messages=initial, tools=[meddle], callback_handler=None)
    spoil(initial)
    async with agent:
        prompt: Any = [{"text": "go"}]
        async for event in agent.stream_async(prompt):
            spoil(prompt)
            spoil(event.get("message"))
            spoil(event.get("tool_started"))
            spoil(event.get("tool_finished"))
            if "result" in event:
                result: Any = event["result"]
                spoil(result.message)
        before = agent.messages
        for message in agent.messages:  # The list itself is the conversation's, and may be edited.
            spoil(message)
        prompt = [{"role": "user", "content": [{"text": "again"}]}]
        await agent.invoke_async(prompt)
        spoil(prompt)
        await agent.invoke_async("last")
    assert "spoilt" not in str(before)
    assert "spoilt" not in str(agent.messages)
    assert not [call for call in model.calls if "spoilt" in str(call.messages)]


async def test_an_agent_has_the_sums_over_its_turns_however_they_were_asked_for() -> None:
    agent = Agent(
        ScriptedModel([[use("work", seconds=2), use("work", seconds=1, fail=True)], "one", "two", "three"]),
        tools=[work],
        callback_handler=None,
    )
    assert (agent.event_loop_metrics.cycle_count, agent.event_loop_metrics.latest_context_size) == (0, None)
    results: list[Any] = [await agent.invoke_async("go")]
    async with agent:
        results.append(await agent.invoke_async("go"))
        results += [each["result"] async for each in agent.stream_async("go") if "result" in each]
    found = agent.event_loop_metrics
    assert found.cycle_count == 4
    assert found.cycle_durations == [seconds for each in results for seconds in each.metrics.cycle_durations]
    assert found.agent_invocations == [one for each in results for one in each.metrics.agent_invocations]
    assert found.accumulated_usage["totalTokens"] == sum(each.metrics.usage["totalTokens"] for each in results)
    assert found.tool_metrics["work"].to_dict()["success_rate"] == 0.5
    assert found.latest_agent_invocation == results[-1].metrics.latest_agent_invocation
    assert found.projected_context_size == results[-1].metrics.projected_context_size
    assert json.loads(json.dumps(found.get_summary())) == found.get_summary()


async def test_the_sums_of_an_agent_are_over_more_turns_than_it_keeps() -> None:
    turns = 1_100
    async with Agent(model=ScriptedModel(["yes"] * turns)) as agent:
        spent = [(await agent.invoke_async("go")).metrics.usage["totalTokens"] for _ in range(turns)]
    found = agent.event_loop_metrics
    assert (found.cycle_count, len(found.cycle_durations), len(found.agent_invocations)) == (turns, 1000, 1000)
    assert found.accumulated_usage["totalTokens"] == sum(spent) > 0
