"""Tools in the forms of the SDK: objects, modules, files, folders and providers, on both event loops."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from repertory.strands.tools.decorator import (  # type: ignore[import-not-found]
    DecoratedFunctionTool,
    FunctionToolMetadata,
)
from repertory.strands.tools.loader import ToolLoader, load_tool_from_string  # type: ignore[import-not-found]
from repertory.strands.tools.registry import ToolRegistry  # type: ignore[import-not-found]
from repertory.strands.types.events import ToolResultEvent  # type: ignore[import-not-found]
from repertory.strands.types.tools import AgentTool, ToolResult, ToolSpec, ToolUse  # type: ignore[import-not-found]

from repertory import Agent, ScriptedModel, tool
from repertory.errors import Invalid
from repertory.strands import Agent as SdkAgent  # type: ignore[import-not-found]
from repertory.strands import tool as sdk_tool

pytestmark = pytest.mark.real_time

SPEC = {"name": "shout", "description": "Say it loudly.", "inputSchema": {"json": {"properties": {"text": {}}}}}
MODULE = """
TOOL_SPEC = {"name": "shout", "description": "Say it loudly.", "inputSchema": {"json": {"properties": {"text": {}}}}}

def shout(tool, **kwargs):
    text = f"{tool['input']['text'].upper()} {kwargs['agent'].name} {kwargs.get('user')} {len(kwargs['messages'])}"
    return {"toolUseId": tool["toolUseId"], "status": "success", "content": [{"text": text}]}
"""
DECORATED = """
from repertory import tool

@tool
def two() -> str:
    '''Two.'''
    return "2"

@tool
def one() -> str:
    '''One.'''
    return "1"
"""


class Shout(AgentTool):
    """A tool as its users write it."""

    def __init__(self, *, fails: bool = False) -> None:
        super().__init__()
        self.fails = fails
        self.threads: list[str] = []

    @property
    def tool_name(self) -> str:
        return "shout"

    @property
    def tool_spec(self) -> ToolSpec:
        return SPEC

    @property
    def tool_type(self) -> str:
        return "custom"

    async def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        await asyncio.sleep(0)  # The SDK's tools know asyncio alone.
        yield "a piece"
        if self.fails:
            raise RuntimeError("no voice")
        text = f"{tool_use['input']['text'].upper()} {invocation_state['agent'].name} {invocation_state.get('user')}"
        result: ToolResult = {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": text}]}
        yield ToolResultEvent(result)


def asking(name: str = "shout", **given: Any) -> ScriptedModel:
    return ScriptedModel([{"toolUse": {"name": name, "input": given or {"text": "hello"}}}, "done"])


def written(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def result_of(agent: Agent) -> Any:
    return agent.messages[2]["content"][0]["toolResult"]


@pytest.mark.anyio
async def test_a_tool_object_runs_with_the_agent_and_the_state_of_the_call() -> None:
    agent = Agent(asking(), tools=[Shout()], name="Ann", callback_handler=None)
    assert str(await agent.invoke_async("go", invocation_state={"user": "u1"})) == "done"
    assert result_of(agent)["content"] == [{"text": "HELLO Ann u1"}]
    assert result_of(agent)["status"] == "success"


@pytest.mark.anyio
async def test_the_pieces_of_a_tool_object_reach_the_stream() -> None:
    agent = Agent(asking(), tools=[Shout()], callback_handler=None)
    seen = [event["tool_stream_event"] async for event in agent.stream_async("go") if "tool_stream_event" in event]
    assert [each["data"] for each in seen] == ["a piece"]


@pytest.mark.anyio
async def test_a_tool_object_that_fails_gives_an_error_result() -> None:
    agent = Agent(asking(), tools=[Shout(fails=True)], callback_handler=None)
    await agent.invoke_async("go")
    assert result_of(agent)["status"] == "error"
    assert result_of(agent)["content"] == [{"text": "Error: RuntimeError - no voice"}]


@pytest.mark.anyio
async def test_the_model_sees_the_spec_of_a_tool_object() -> None:
    model = asking()
    await Agent(model, tools=[Shout()], callback_handler=None).invoke_async("go")
    assert model.calls[0].tool_specs[0]["name"] == "shout"
    assert model.calls[0].tool_specs[0]["inputSchema"]["json"] == {"type": "object", "properties": {"text": {}}}


@sdk_tool
def paint(wall: str, colour: Any, layers: int | str | None = None, notes: dict[str, Any] | None = None) -> str:
    """Paint a wall.

    Args:
        wall: One of:
            - north
            - south
        layers: How many.
            Example: 2
    Usage: never outside.

    Returns:
        Nothing new.
    """
    return f"{wall} {colour} {layers} {notes}"


PAINT = {
    "type": "object",
    "properties": {
        "wall": {"type": "string", "description": "One of:\n- north\n- south"},
        "colour": {"type": "string", "description": "Parameter colour"},
        "layers": {
            "anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}],
            "default": None,
            "description": "How many.\nExample: 2",
        },
        "notes": {"type": "object", "default": None, "description": "Parameter notes"},
    },
    "required": ["wall", "colour"],
}
NESTED: ToolSpec = {
    "name": "shout",
    "description": "Say it loudly.",
    "inputSchema": {"json": {"properties": {"how": {"type": "object", "properties": {"loud": {}}}}}},
}


class Nested(Shout):
    """A tool with a field in a field."""

    @property
    def tool_spec(self) -> ToolSpec:
        return NESTED


@pytest.mark.anyio
async def test_the_model_of_a_program_of_the_sdk_is_shown_docstrings_and_whole_schemas_as_there() -> None:
    model = ScriptedModel(["done"])
    await SdkAgent(model=model, tools=[paint, Nested()], callback_handler=None).invoke_async("go")
    of_function, of_object = model.calls[0].tool_specs
    assert of_function["description"] == (
        "Paint a wall.\n\n        Example: 2\nUsage: never outside.\n\nReturns:\n    Nothing new."
    )
    assert of_function["inputSchema"]["json"] == PAINT
    assert "type" not in paint.tool_spec["inputSchema"]["json"]["properties"]["colour"], "the tool itself says less"
    assert of_object["inputSchema"]["json"] == {
        "type": "object",
        "properties": {
            "how": {
                "type": "object",
                "properties": {"loud": {"type": "string", "description": "Property loud"}},
                "required": [],
            }
        },
        "required": [],
    }


def test_a_function_takes_the_place_of_another_under_a_name_of_its_own() -> None:
    def simulated(**given: Any) -> str:
        return f"as if {sorted(given)}"

    spec = {**paint.tool_spec, "name": "painted"}
    for metadata in (paint._metadata, FunctionToolMetadata(paint.__wrapped__)):
        made = DecoratedFunctionTool(tool_name="painted", tool_spec=spec, tool_func=simulated, metadata=metadata)
        assert isinstance(made, DecoratedFunctionTool)
        assert isinstance(paint, DecoratedFunctionTool)
        agent = SdkAgent(model=asking("painted", wall="north", colour="red"), tools=[made], callback_handler=None)
        agent("go")
        assert result_of(agent)["content"] == [{"text": "as if ['colour', 'wall']"}]
    assert paint.tool_name == "paint"


def test_more_arguments_of_a_function_are_parameters_for_programs_of_the_sdk() -> None:
    @sdk_tool(description="Where somebody is.")
    def where(user: str, *args: Any, **kwargs: Any) -> str:
        return f"{user} {args} {kwargs}"

    assert where.tool_spec["inputSchema"]["json"]["required"] == ["user", "args", "kwargs"]
    agent = SdkAgent(model=asking("where", user="ann", args=1, kwargs=2), tools=[where], callback_handler=None)
    agent("go")
    assert result_of(agent)["content"] == [{"text": "ann () {'args': 1, 'kwargs': 2}"}]
    with pytest.raises(TypeError, match="named one by one"):
        tool(name="more")(lambda **kwargs: "x")


def test_what_is_no_tool_is_left_out_for_programs_of_the_sdk(caplog: pytest.LogCaptureFixture) -> None:
    agent = SdkAgent(model=asking(), tools=[paint, paint.__wrapped__, [...]], callback_handler=None)
    assert agent.tool_names == ["paint"]
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == [
        "left out of the tools, since it is none"
    ] * 2


def test_a_file_with_a_tool_spec_is_a_tool(tmp_path: Path) -> None:
    written(tmp_path / "shout.py", MODULE)
    for given in (str(tmp_path / "shout.py"), tmp_path / "shout.py", {"path": str(tmp_path / "shout.py")}):
        agent = Agent(asking(), tools=[given], name="Ann", callback_handler=None)
        agent("go", invocation_state={"user": "u1"})
        assert result_of(agent)["content"] == [{"text": "HELLO Ann u1 2"}]


def test_all_decorated_functions_of_a_file_are_tools_and_a_name_chooses_one(tmp_path: Path) -> None:
    path = written(tmp_path / "numbers_here.py", DECORATED)
    assert Agent(ScriptedModel([]), tools=[path]).tool_names == ["one", "two"]
    assert Agent(ScriptedModel([]), tools=[{"path": path, "name": "two"}]).tool_names == ["two"]
    assert [each.name for each in load_tool_from_string(path)] == ["one", "two"]


def test_a_module_is_given_by_its_name_or_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "numbers_there.py", DECORATED)
    monkeypatch.syspath_prepend(tmp_path)
    import numbers_there  # type: ignore[import-not-found]

    assert Agent(ScriptedModel([]), tools=["numbers_there"]).tool_names == ["one", "two"]
    assert Agent(ScriptedModel([]), tools=["numbers_there:two"]).tool_names == ["two"]
    assert Agent(ScriptedModel([]), tools=[numbers_there]).tool_names == ["one", "two"]
    assert Agent(ScriptedModel([]), tools=[[numbers_there.one], (numbers_there.two,)]).tool_names == ["one", "two"]
    sys.modules.pop("numbers_there")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no_such_module", "not a valid tool string"),
        ("json", "not a valid module: decorate a function"),
        ("json:loads", "the module has no tool of this name"),
        ({"name": "x"}, "not a tool"),
        (42, "not a tool"),
    ],
)
def test_what_is_no_tool_is_refused_with_what_to_give(given: object, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        Agent(ScriptedModel([]), tools=[given])


def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    written(tmp_path / "broken.py", "1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        Agent(ScriptedModel([]), tools=[str(tmp_path / "broken.py")])
    assert "_repertory_tool_broken" not in sys.modules
    assert str(tmp_path) not in sys.path


def test_the_tools_of_the_folder_are_loaded_and_a_broken_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Agent(ScriptedModel([]), load_tools_from_directory=True).tool_names == []
    written(tmp_path / "tools/shout.py", MODULE)
    written(tmp_path / "tools/broken.py", "1 / 0\n")
    assert Agent(ScriptedModel([]), load_tools_from_directory=True).tool_names == ["shout"]
    assert "a file with tools could not be loaded" in caplog.text


RETURNS = """
from repertory import tool

@tool
def number() -> str:
    '''A number.'''
    return "{}"
"""


@pytest.mark.anyio
async def test_a_changed_file_of_the_folder_gives_its_tools_from_the_next_turn_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "tools/number.py"
    written(path, RETURNS.format("1"))
    model = ScriptedModel([{"toolUse": {"name": "number", "input": {}}}, "done"] * 4)
    agent = await anyio.to_thread.run_sync(lambda: Agent(model, load_tools_from_directory=True, callback_handler=None))

    async def answer() -> object:
        await agent.invoke_async("go")
        return agent.messages[-2]["content"][0].get("toolResult", {}).get("content")

    assert await answer() == [{"text": "1"}]
    kept = path.stat()
    written(path, RETURNS.format("2"))  # As long as before, and within the same second: Python's cache is not asked.
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns + 1))
    assert await answer() == [{"text": "2"}]
    written(path, "1 / 0  # half an edit\n")
    assert await answer() == [{"text": "2"}]
    written(tmp_path / "tools/shout.py", MODULE)
    assert await answer() == [{"text": "2"}]
    assert agent.tool_names == ["number", "shout"]
    assert caplog.text.count("a file with tools could not be loaded") == 1


def test_a_registry_by_hand_takes_tools_in_all_forms_and_completes_their_specs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry, provider, path = ToolRegistry(), Provider(), written(tmp_path / "numbers_here.py", DECORATED)
    helper = Agent(ScriptedModel([]), name="helper")
    names = registry.process_tools([provider, [{"path": path, "name": "two"}, (helper,)], 42])
    assert names == ["shout", "two", "helper"]
    assert "not a tool given=42" in caplog.text
    text = {"type": "string", "description": "Property text"}
    schema = {"type": "object", "properties": {"text": text}, "required": []}
    assert registry.get_all_tools_config()["shout"] == {**SPEC, "inputSchema": {"json": schema}}
    assert SPEC["inputSchema"] == {"json": {"properties": {"text": {}}}}
    assert len(provider.consumers) == 1
    registry.cleanup()
    assert provider.consumers == []


def test_a_registry_by_hand_refuses_a_name_twice_and_replaces_when_told_to(tmp_path: Path) -> None:
    registry, first, second = ToolRegistry(), Shout(), Shout()
    registry.register_tool(first)
    with pytest.raises(ValueError, match="'shout' already exists"):
        registry.register_tool(second)
    registry.replace(second)
    assert registry.registry == {"shout": second}
    with pytest.raises(ValueError, match="Failed to load tool nothing"):
        registry.process_tools(["nothing"])
    with pytest.raises(ValueError, match="Failed to load tool x"):
        registry.load_tool_from_filepath("x", str(tmp_path / "x.py"))


def test_a_registry_by_hand_reads_a_file_of_the_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "tools/json.py", MODULE)
    written(tmp_path / "tools/broken.py", "1 / 0\n")
    registry, known = ToolRegistry(), sys.modules.get("json")
    registry.initialize_tools(load_tools_from_directory=True)
    assert registry.registry == {}  # TOOL_SPEC needs a function of the file's name.
    written(tmp_path / "tools/json.py", MODULE.replace("def shout", "def json"))
    registry.reload_tool("json")
    before = registry.registry["shout"]
    registry.reload_tool("json")
    assert registry.registry["shout"] is not before
    assert registry.dynamic_tools == registry.registry
    assert sys.modules.get("json") is known
    with pytest.raises(FileNotFoundError):
        registry.reload_tool("missing")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("x = 1", AttributeError),
        ("TOOL_SPEC = {'name': 'x'}", AttributeError),
        ("TOOL_SPEC = {'name': 'x'}\nx = 1", TypeError),
    ],
)
def test_a_file_without_its_tool_is_refused_by_the_loader(tmp_path: Path, text: str, error: type[Exception]) -> None:
    path = written(tmp_path / "x.py", text)
    with pytest.warns(DeprecationWarning, match="load_tool is deprecated"), pytest.raises(error):
        ToolLoader.load_tool(path, "x")


class Provider:
    """A provider of tools, such as a client of a tool server."""

    def __init__(self) -> None:
        self.consumers: list[object] = []

    async def load_tools(self, **kwargs: object) -> Sequence[Shout]:
        await asyncio.sleep(0)
        return [Shout()]

    def add_consumer(self, consumer_id: object, **kwargs: object) -> None:
        self.consumers.append(consumer_id)

    def remove_consumer(self, consumer_id: object, **kwargs: object) -> None:
        self.consumers.remove(consumer_id)


def test_a_provider_gives_its_tools_and_knows_who_uses_them() -> None:
    provider = Provider()
    agent = Agent(asking(), tools=[provider], name="Ann", callback_handler=None)
    assert len(provider.consumers) == 1
    agent("go")
    assert result_of(agent)["content"] == [{"text": "HELLO Ann None"}]


def test_a_tool_may_give_the_agent_more_tools_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    written(tmp_path / "shout.py", MODULE)

    @tool
    def learn(agent: Any) -> str:
        """Learn to shout."""
        agent.tool_registry.load_tool_from_filepath("shout", str(tmp_path / "shout.py"))
        return "learned"

    model = ScriptedModel(
        [{"toolUse": {"name": "learn", "input": {}}}, {"toolUse": {"name": "shout", "input": {"text": "hi"}}}, "done"]
    )
    agent = Agent(model, tools=[learn], callback_handler=None)
    agent("go")
    assert agent.tool_names == ["learn", "shout"]
    assert agent.messages[4]["content"][0]["toolResult"]["status"] == "success"
    assert [spec["name"] for spec in model.calls[1].tool_specs] == ["learn", "shout"]
    agent.tool_registry.unregister_tool("learn")
    assert list(agent.tool_registry.registry) == ["shout"]
    with pytest.raises(AttributeError, match="'learn' not found"):
        agent.tool_registry.unregister_tool("learn")
    with pytest.raises(FileNotFoundError):
        agent.tool_registry.load_tool_from_filepath("x", str(tmp_path / "missing.py"))


@pytest.mark.anyio
async def test_a_call_with_other_keywords_passes_them_on_and_says_where_they_belong() -> None:
    agent = Agent(asking(), tools=[Shout()], name="Ann", callback_handler=None)
    with pytest.warns(UserWarning, match="pass user in invocation_state"):
        await agent.invoke_async("go", user="u2")  # type: ignore[call-arg]
    assert result_of(agent)["content"] == [{"text": "HELLO Ann u2"}]


@pytest.mark.anyio
async def test_a_tool_object_that_is_cancelled_leaves_a_valid_history() -> None:
    class Slow(Shout):
        async def stream(self, tool_use: ToolUse, invocation_state: dict[str, Any], **kwargs: Any) -> Any:
            started.set()
            await asyncio.sleep(0.3)
            yield "late"

    started = threading.Event()
    agent = Agent(asking(), tools=[Slow()], callback_handler=None)
    async with anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "go")
        await anyio.to_thread.run_sync(started.wait)
        group.cancel_scope.cancel()
    assert [message["role"] for message in await agent.history()] in (
        ["user", "assistant", "user"],
        ["user", "assistant", "user", "assistant"],
    )
