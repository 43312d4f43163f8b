"""What a tool returns, as it arrives: at the model, in the history, in the events, and after a restart."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pydantic
import pytest

from repertory import AfterToolCallEvent, Agent, ScriptedModel, SQLiteSessionManager, ToolContext, tool
from repertory.backends.tools.function_tool import schema_class
from repertory.core.limits import DEPTH_MAX
from repertory.core.messages import ToolResult, tool_results
from repertory.errors import Failed

schema_class()  # Loading it uses a thread, which a clock that jumps would pass.

PNG = {"image": {"format": "png", "source": {"bytes": b"\x89PNG\r\n\x1a\n\x00\xff"}}}
PDF = {"document": {"format": "pdf", "name": "report", "source": {"bytes": b"%PDF-1.7"}}}


class Weather(pydantic.BaseModel):
    city: str
    at: datetime.datetime
    celsius: float | None = None


@dataclasses.dataclass
class Place:
    name: str
    tags: set[str]


NOON = datetime.datetime(2026, 1, 2, 12, tzinfo=datetime.UTC)


def use(name: str, **arguments: object) -> dict[str, object]:
    return {"toolUse": {"name": name, "input": arguments}}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


VALUES: dict[str, tuple[object, list[dict[str, object]]]] = {
    "none": (None, [{"text": "None"}]),
    "true": (True, [{"text": "True"}]),
    "number": (-1.5, [{"text": "-1.5"}]),
    "large number": (10**30, [{"text": str(10**30)}]),
    "empty text": ("", [{"text": ""}]),
    "text": ("grüße\n\0", [{"text": "grüße\n\0"}]),
    "half a pair": ("a\ud800b", [{"text": "a?b"}]),
    "list": ([1, [None, {"a": "b"}]], [{"text": '[1, [null, {"a": "b"}]]'}]),
    "empty list": ([], [{"text": "[]"}]),
    "dictionary": ({"a": {"b": [1, None, True]}}, [{"json": {"a": {"b": [1, None, True]}}}]),
    "empty dictionary": ({}, [{"json": {}}]),
    "pydantic model": (
        Weather(city="Rome", at=NOON),
        [{"json": {"city": "Rome", "at": "2026-01-02T12:00:00Z", "celsius": None}}],
    ),
    "models in a list": ([Place("a", {"b"})], [{"text": '[{"name": "a", "tags": ["b"]}]'}]),
    "dataclass": (Place("a", {"b"}), [{"json": {"name": "a", "tags": ["b"]}}]),
    "datetime": (NOON, [{"text": "2026-01-02T12:00:00+00:00"}]),
    "image": (PNG, [PNG]),
    "document": (PDF, [PDF]),
    "whole result": (
        {"status": "success", "content": [{"text": "both"}, PNG, {"json": {"n": 1}}]},
        [{"text": "both"}, PNG, {"json": {"n": 1}}],
    ),
    "look-alike of stored bytes": (
        {"$bytes": "x", "__bytes_encoded__": True},
        [{"json": {"$bytes": "x", "__bytes_encoded__": True}}],
    ),
    "huge": ("x" * 5_000_000, [{"text": "x" * 5_000_000}]),
    "deep": (nested(DEPTH_MAX), [{"json": nested(DEPTH_MAX)}]),
}


def giving(value: object) -> Any:
    @tool
    async def give() -> Any:
        """Give something."""
        await anyio.lowlevel.checkpoint()
        return value

    return give


def results(agent: Agent) -> list[ToolResult]:
    return [result for message in agent.messages for result in tool_results(message)]


@pytest.mark.parametrize("name", VALUES)
def test_a_result_is_the_same_for_the_model_the_history_the_caller_and_the_next_process(
    name: str, tmp_path: Path
) -> None:
    value, content = VALUES[name]
    model = ScriptedModel([use("give"), "done"])
    manager = SQLiteSessionManager("s", path=tmp_path / "a.db")
    agent = Agent(model, tools=[giving(value)], session_manager=manager, callback_handler=None)
    agent("go")
    direct = agent.tool.give()
    assert direct["content"] == content
    expected: ToolResult = {"toolUseId": "tooluse_1", "status": "success", "content": content}
    assert next(tool_results(model.calls[1].messages[-1])) == expected
    assert results(agent) == [expected, direct]
    again = Agent(ScriptedModel([]), session_manager=manager, callback_handler=None)
    assert results(again) == [expected, direct]


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"raw", "bytes travel in an image or document block"),
        ({"a": [b"raw"]}, "place=\"result['a'][0]\" got='bytes'"),
        (math.nan, "NaN and infinities are not JSON"),
        (Weather.model_construct(city=b"\xff", at=NOON), "got='Weather'"),
        (object(), "got='object'"),
        ({NOON: 1}, "a key of result"),
        (nested(DEPTH_MAX + 1), "nested too deeply"),
        (nested(900), "nested too deeply"),
        ({"status": "success", "content": [{"text": 1}]}, "text, json, image or document"),
        (ValueError("returned"), "Error: ValueError - returned"),
    ],
    ids=["bytes", "bytes inside", "nan", "model", "object", "key", "too deep", "far too deep", "block", "exception"],
)
@pytest.mark.anyio
async def test_what_cannot_be_said_is_an_error_result_that_names_it(value: object, told: str) -> None:
    agent = Agent(ScriptedModel([use("give"), "sorry"]), tools=[giving(value)], callback_handler=None)
    assert str(await agent.invoke_async("go")) == "sorry"
    (result,) = results(agent)
    assert result["status"] == "error"
    assert told in str(result["content"][0]["text"])


@pytest.mark.anyio
async def test_an_error_result_that_a_tool_builds_itself_is_an_error() -> None:
    made = {"status": "error", "content": [{"text": "no such order"}]}
    agent = Agent(ScriptedModel([use("give"), "sorry"]), tools=[giving(made)], callback_handler=None)
    result = await agent.invoke_async("go")
    assert results(agent)[0] == {"toolUseId": "tooluse_1", **made}
    assert result.metrics.tool_metrics["give"].error_count == 1


@pytest.mark.anyio
async def test_what_a_tool_does_to_its_object_later_changes_no_history() -> None:
    kept: dict[str, list[int]] = {"numbers": [1]}
    agent = Agent(ScriptedModel([use("give"), "done"]), tools=[giving(kept)], callback_handler=None)
    await agent.invoke_async("go")
    kept["numbers"].append(2)
    assert results(agent)[0]["content"] == [{"json": {"numbers": [1]}}]


# -------------------------------------------------------------------------------------------------- as it comes


@tool
async def count(to: int) -> AsyncIterator[object]:
    """Count."""
    for step in range(to):
        await anyio.sleep(1)
        yield {"step": step}
    yield f"counted to {to}"


@pytest.mark.anyio
async def test_what_a_generator_yields_is_streamed_and_its_last_value_is_the_result() -> None:
    agent = Agent(ScriptedModel([use("count", to=2), "done"]), tools=[count], callback_handler=None)
    events = [event async for event in agent.stream_async("go")]
    pieces = [event["tool_stream_event"] for event in events if "tool_stream_event" in event]
    asked = {"toolUseId": "tooluse_1", "name": "count", "input": {"to": 2}}
    assert pieces == [{"tool_use": asked, "data": data} for data in ({"step": 0}, {"step": 1}, "counted to 2")]
    assert results(agent)[0]["content"] == [{"text": "counted to 2"}]
    order = [str(event.get("type", next(iter(event)))) for event in events]
    assert order.index("tool_started") < order.index("tool_stream") < order.index("tool_finished")


@pytest.mark.anyio
async def test_pieces_of_tools_that_run_at_once_name_their_tool_use() -> None:
    asked = [use("count", to=2), use("count", to=3)]
    agent = Agent(ScriptedModel([asked, "done"]), tools=[count], callback_handler=None)
    seen: dict[str, int] = {}
    async for event in agent.stream_async("go"):
        if "tool_stream_event" in event:
            piece: Any = event["tool_stream_event"]
            seen[piece["tool_use"]["toolUseId"]] = seen.get(piece["tool_use"]["toolUseId"], 0) + 1
    assert seen == {"tooluse_1": 3, "tooluse_2": 4}


@pytest.mark.anyio
async def test_nobody_need_look_at_the_pieces() -> None:
    agent = Agent(ScriptedModel([use("count", to=2), "done"]), tools=[count], callback_handler=None)
    await agent.invoke_async("go")
    direct = await agent.tool.count.invoke_async(to=1)
    assert direct["content"] == [{"text": "counted to 1"}]


@pytest.mark.anyio
async def test_a_generator_that_fails_half_way_is_an_error_after_its_pieces() -> None:
    @tool
    async def halfway() -> AsyncIterator[str]:
        """Begin and fail."""
        yield "begun"
        await anyio.lowlevel.checkpoint()
        raise ConnectionError("gone")

    agent = Agent(ScriptedModel([use("halfway"), "sorry"]), tools=[halfway], callback_handler=None)
    pieces = [event async for event in agent.stream_async("go") if "tool_stream_event" in event]
    assert len(pieces) == 1
    assert results(agent)[0]["content"] == [{"text": "Error: ConnectionError - gone"}]


@pytest.mark.anyio
async def test_a_generator_that_yields_nothing_has_none_as_its_result() -> None:
    @tool
    async def nothing() -> AsyncIterator[str]:
        """Yield nothing."""
        await anyio.lowlevel.checkpoint()
        for text in ():
            yield text

    agent = Agent(ScriptedModel([use("nothing"), "done"]), tools=[nothing], callback_handler=None)
    await agent.invoke_async("go")
    assert results(agent)[0]["content"] == [{"text": "None"}]


@pytest.mark.anyio
async def test_leaving_the_stream_closes_the_generator() -> None:
    closed = anyio.Event()

    @tool
    async def endless() -> AsyncIterator[int]:
        """Never end."""
        try:
            while True:
                await anyio.sleep(1)
                yield 1
        finally:
            closed.set()

    agent = Agent(ScriptedModel([use("endless"), "later"]), tools=[endless], callback_handler=None)
    with anyio.CancelScope() as scope:
        async for event in agent.stream_async("go"):
            if "tool_stream_event" in event:
                scope.cancel()
    assert closed.is_set()
    assert results(agent)[0]["status"] == "error"


@pytest.mark.anyio
async def test_any_tool_may_show_pieces_through_its_context() -> None:
    @tool
    async def report(tool_context: ToolContext) -> str:
        """Report progress."""
        if tool_context.on_partial is not None:
            await tool_context.on_partial({"done": 0.5})
        return "reported"

    agent = Agent(ScriptedModel([use("report"), "done"]), tools=[report], callback_handler=None)
    pieces = [event async for event in agent.stream_async("go") if "tool_stream_event" in event]
    assert [piece["tool_stream_event"]["data"] for piece in pieces] == [{"done": 0.5}]  # type: ignore[index]


# ------------------------------------------------------------------------------------------------------ what was raised


@pytest.mark.anyio
async def test_hooks_are_told_what_a_tool_raised() -> None:
    @tool
    async def fail(kind: str) -> Any:
        """Fail."""
        await anyio.lowlevel.checkpoint()
        if kind == "unsayable":
            return object()
        raise KeyError("lost")

    told: list[type[Exception] | None] = []

    def look(event: AfterToolCallEvent) -> None:
        told.append(type(event.exception) if event.exception is not None else None)

    asked = [use("fail", kind="raise"), use("fail", kind="unsayable"), use("fail"), use("give")]
    agent = Agent(ScriptedModel([[one] for one in asked] + ["done"]), tools=[fail, giving(1)], callback_handler=None)
    agent.add_hook(look)
    await agent.invoke_async("go")
    assert told[0] is KeyError
    assert told[1] is Failed
    assert told[2] is not None
    assert told[3] is None
