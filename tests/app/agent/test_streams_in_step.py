"""Streams and callback handlers of an agent go in step with its hooks and tools, and have the events of the SDK's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from repertory import (
    AfterModelCallEvent,
    AfterToolCallEvent,
    Agent,
    BeforeModelCallEvent,
    BeforeToolCallEvent,
    MessageAddedEvent,
    ScriptedModel,
    tool,
)
from repertory.errors import ModelFailed
from tests.app.orchestration.recorder import use

pytestmark = pytest.mark.anyio


@tool(effects=False)
async def look() -> str:
    """Look."""
    return "seen"


async def happened(*, stream: bool) -> list[str]:
    """What hooks and the reader noted, in the order of their notes."""
    notes: list[str] = []

    async def read(event: dict[str, Any]) -> None:
        await anyio.sleep(1)
        if "data" not in event and "event" not in event and event.get("type") != "tool_use_stream":
            notes.append(next(iter(event)))

    async def handler(**event: Any) -> None:
        await read(event)

    agent = Agent(ScriptedModel([use("look"), "Seen."]), tools=[look], callback_handler=None if stream else handler)
    for kind in (BeforeModelCallEvent, AfterModelCallEvent, BeforeToolCallEvent, AfterToolCallEvent, MessageAddedEvent):
        agent.add_hook(lambda event: notes.append(type(event).__name__), kind)
    if stream:
        async for event in agent.stream_async("go"):
            await read({**event})
    else:
        await agent.invoke_async("go")
    return notes


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_reader_is_told_stands_among_what_hooks_saw_in_the_order_of_what_happened(*, stream: bool) -> None:
    assert await happened(stream=stream) == [
        *("init_event_loop", "MessageAddedEvent"),
        *("start", "start_event_loop", "BeforeModelCallEvent", "AfterModelCallEvent", "MessageAddedEvent", "message"),
        *("BeforeToolCallEvent", "tool_started", "AfterToolCallEvent", "tool_finished", "MessageAddedEvent", "message"),
        *("start", "start", "start_event_loop"),
        *("BeforeModelCallEvent", "AfterModelCallEvent", "MessageAddedEvent", "message", "result"),
    ]


async def test_a_reader_that_cancels_on_the_first_piece_is_heard_before_there_are_many() -> None:
    agent = Agent(ScriptedModel(["x" * 1000], chunk=1), callback_handler=None)
    events: list[Any] = []
    async for event in agent.stream_async("go"):
        events.append(event)
        if "data" in event:
            agent.cancel()
    assert (events[-1]["result"].stop_reason, sum("data" in event for event in events)) == ("cancelled", 1)


async def test_pieces_of_every_kind_and_values_of_the_caller_are_told_as_the_sdk_does() -> None:
    source = {"title": "A page", "location": {"web": {"url": "https://example.org"}}}

    class Citing(ScriptedModel):
        async def stream(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
            yield {"messageStart": {"role": "assistant"}}
            for delta in ({"reasoningContent": {"text": "hm"}}, {"reasoningContent": {"signature": "s"}}):
                yield {"contentBlockDelta": {"delta": delta}}
            yield {"contentBlockStop": {}}
            yield {"contentBlockDelta": {"delta": {"text": "so"}}}
            yield {"contentBlockDelta": {"delta": {"citation": source}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    agent = Agent(Citing([]), callback_handler=None)
    events = [event async for event in agent.stream_async("go", invocation_state={"user": "ann"})]
    told = [{**event, "delta": 0} for event in events if "delta" in event]
    assert told == [
        {"reasoning": True, "reasoningText": "hm", "delta": 0, "user": "ann"},
        {"reasoning_signature": "s", "reasoning": True, "delta": 0, "user": "ann"},
        {"data": "so", "delta": 0, "user": "ann"},
        {"citation": source, "delta": 0, "user": "ann"},
    ]
    assert events[0] == {"init_event_loop": True, "user": "ann"}


async def test_a_stream_says_why_its_turn_fails_and_that_a_callback_cancelled_a_tool() -> None:
    def refuse(event: BeforeToolCallEvent) -> None:
        event.cancel_tool = "not today"

    model = ScriptedModel([use("look"), ValueError("a bug")])
    agent = Agent(model, tools=[look], hooks=[refuse], callback_handler=None)
    seen: list[Any] = []
    with pytest.raises(ModelFailed):
        async for event in agent.stream_async("go"):
            seen.append(event)
    assert seen[-1] == {"force_stop": True, "force_stop_reason": "a bug"}
    asked = {"toolUseId": "tooluse_1", "name": "look", "input": {}}
    assert {"tool_cancel_event": {"tool_use": asked, "message": "not today"}} in seen
