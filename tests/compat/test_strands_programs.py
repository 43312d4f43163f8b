"""Programs of the SDK as they were written: run as they are, with one line more, or with one word changed."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from repertory import Agent, FileSessionManager, HookRegistry, ScriptedModel, tool
from repertory.core.messages import tool_results
from repertory.errors import Invalid

PROGRAM = textwrap.dedent(
    """\
    import sys
    from strands import Agent, tool
    from strands.agent.conversation_manager import SlidingWindowConversationManager
    from strands.hooks import BeforeToolCallEvent, HookProvider, HookRegistry
    from strands.session.file_session_manager import FileSessionManager
    from strands.types.tools import ToolResult, ToolUse
    import strands.types.content
    from repertory import ScriptedModel

    class Watch(HookProvider):
        def register_hooks(self, registry: HookRegistry, **kwargs) -> None:
            registry.add_callback(BeforeToolCallEvent, self.seen)

        def seen(self, event: BeforeToolCallEvent) -> None:
            print("about to run", event.tool_use["name"])

    @tool
    def add(a: int, b: int) -> int:
        '''Add two numbers.'''
        return a + b

    model = ScriptedModel([{"toolUse": {"name": "add", "input": {"a": 2, "b": 3}}}, "it is five"])
    agent = Agent(
        model=model,
        tools=[add],
        hooks=[Watch()],
        conversation_manager=SlidingWindowConversationManager(window_size=10),
        session_manager=FileSessionManager(session_id="s", storage_dir="sessions"),
        callback_handler=None,
    )
    print(agent("what is 2 + 3?"))
    print(len(agent.messages), sys.argv[1:], __name__)
    """
)
SAID = ["about to run add", "it is five"]


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60)


def lines(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_program_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = run("-m", "repertory.strands", "program.py", "one", "two", folder=tmp_path)
    assert lines(done) == [*SAID, "", "4 ['one', 'two'] __main__"]
    assert (tmp_path / "sessions/session_s/session.json").exists()


def test_a_program_runs_with_one_line_more(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"import repertory.strands.install\n{PROGRAM}")
    assert lines(run("program.py", folder=tmp_path)) == [*SAID, "", "4 [] __main__"]


def test_a_program_runs_with_one_word_changed(tmp_path: Path) -> None:
    changed = PROGRAM.replace("from strands", "from repertory.strands")
    (tmp_path / "program.py").write_text(changed.replace("import strands", "import repertory.strands"))
    assert lines(run("program.py", folder=tmp_path)) == [*SAID, "4 [] __main__"]


def test_a_program_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/helper.py").write_text("from strands import Agent\nname = Agent.__module__\n")
    (tmp_path / "part/program.py").write_text("from helper import name\nprint(name)\n")
    assert lines(run("-m", "repertory.strands", "part/program.py", folder=tmp_path)) == ["repertory.compat.programs"]


def test_a_module_has_one_set_of_objects_under_both_names(tmp_path: Path) -> None:
    program = """\
import repertory.strands.install
import strands.hooks.events, repertory.strands.hooks, repertory
assert strands.hooks.events.BeforeToolCallEvent is repertory.strands.hooks.BeforeToolCallEvent
assert strands.hooks.events.BeforeToolCallEvent is repertory.BeforeToolCallEvent
assert strands.hooks is repertory.strands.hooks and strands is repertory.strands
import repertory.strands.install
"""
    (tmp_path / "program.py").write_text(program)
    assert lines(run("program.py", folder=tmp_path)) == []


def test_the_real_sdk_that_is_loaded_already_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "strands.py").write_text("")
    (tmp_path / "program.py").write_text("import strands\nimport repertory.strands.install\n")
    done = run("program.py", folder=tmp_path)
    assert done.returncode == 1
    assert "ImportError: the SDK itself is loaded already" in done.stderr


def test_a_program_without_a_name_is_told_how_to_give_it(tmp_path: Path) -> None:
    done = run("-m", "repertory.strands", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "usage: python -m repertory.strands PROGRAM [ARGUMENT ...]\n")
    done = run("-m", "repertory.strands", "nowhere.py", folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "there is no program 'nowhere.py'\n")
    done = run("-m", "repertory.strands", "--help", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("usage: python -m repertory.strands PROGRAM")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import repertory.strands.bidi.audio", "strands.bidi.audio is not here: there are no speech agents"),
        ("from repertory.strands.bidi import Bidi", "strands.bidi.Bidi is not here: there are no speech agents"),
    ],
)
def test_what_is_not_here_says_what_to_use_instead(line: str, reason: str) -> None:
    with pytest.raises(ImportError, match=reason):
        exec(line)


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("bidi", "BidiAgent", "there are no speech agents"),
        ("bidi.hooks", "BidiAgentStopEvent", "there are no speech agents"),
    ],
)
def test_a_class_that_cannot_be_made_here_may_be_imported_and_asked_about(module: str, name: str, reason: str) -> None:
    from importlib import import_module

    kind = getattr(import_module(f"repertory.strands.{module}"), name)
    assert not isinstance(object(), kind)
    if name.endswith("Event"):
        HookRegistry().add_callback(kind, print)
    with pytest.raises(Invalid, match=f"{name} cannot be made here: {reason}"):
        kind(model="m")


def test_pydantic_takes_the_messages_of_the_sdk_as_fields() -> None:
    from pydantic import BaseModel, TypeAdapter
    from repertory.strands.types.content import ContentBlock, Message  # type: ignore[import-not-found]

    class Reply(BaseModel):
        message: str | list[ContentBlock] | None = None

    block = {"toolUse": {"toolUseId": "1", "name": "add", "input": {"a": [1, {"b": None}]}}}
    assert Reply(message=[block]).message == [block]
    assert TypeAdapter(Message).validate_python({"role": "user", "content": [block]})["role"] == "user"


@pytest.mark.anyio
@pytest.mark.real_time
async def test_a_function_tool_may_be_put_together_by_hand() -> None:
    from repertory.strands.tools.decorator import (  # type: ignore[import-not-found]
        DecoratedFunctionTool,
        FunctionToolMetadata,
    )

    def price(item: str, count: int = 1) -> float:
        """Look up a price."""
        raise AssertionError

    def simulated(**arguments: Any) -> dict[str, Any]:
        return {"asked": arguments}

    metadata = FunctionToolMetadata(price)
    spec = {**metadata.extract_metadata(), "name": "cost"}
    made = DecoratedFunctionTool(tool_name="cost", tool_spec=spec, tool_func=simulated, metadata=metadata)
    assert isinstance(tool(price), DecoratedFunctionTool)
    assert isinstance(made, DecoratedFunctionTool)
    assert (made.tool_name, made.tool_spec["name"]) == ("cost", "cost")
    model = ScriptedModel([{"toolUse": {"name": "cost", "input": {"item": "tea", "count": "2"}}}, "Done."])
    agent = Agent(model, tools=[made], callback_handler=None)
    await agent.invoke_async("Go")
    (result,) = tool_results(agent.messages[2])
    assert json.loads(result["content"][0].get("text", "")) == {"asked": {"item": "tea", "count": 2}}
    assert Agent(model, limits=agent.spec().agent.limits).tool_names == []


@pytest.mark.anyio
@pytest.mark.real_time
async def test_pieces_that_a_tool_object_yields_come_as_the_events_that_packages_import() -> None:
    from repertory.strands.types._events import (  # type: ignore[import-not-found]
        ToolInterruptEvent,
        ToolResultEvent,
        ToolStreamEvent,
    )
    from repertory.strands.types.tools import AgentTool  # type: ignore[import-not-found]

    class Count(AgentTool):  # type: ignore[misc]
        tool_name, tool_type = "count", "function"
        tool_spec: Any = {"name": "count", "description": "Count.", "inputSchema": {"json": {"type": "object"}}}  # noqa: RUF012

        async def stream(self, tool_use: Any, invocation_state: Any, **kwargs: Any) -> Any:
            yield ToolStreamEvent(tool_use, "one")
            yield ToolResultEvent(
                {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": "two"}]}
            )

    use = {"toolUseId": "t", "name": "count", "input": {}}
    assert ToolStreamEvent(use, 1).tool_use_id == ToolInterruptEvent(use, []).tool_use_id == "t"
    assert ToolInterruptEvent(use, ["?"]).interrupts == ["?"]
    agent = Agent(
        ScriptedModel([{"toolUse": {"name": "count", "input": {}}}, "Done."]), tools=[Count()], callback_handler=None
    )
    events = [event async for event in agent.stream_async("Go")]
    streamed = [event["tool_stream_event"]["data"] for event in events if "tool_stream_event" in event]
    assert streamed == ["one"]


def test_every_tool_and_manager_is_what_programs_of_the_sdk_ask_for(tmp_path: Path) -> None:
    from repertory.strands.session import RepositorySessionManager, S3SessionManager  # type: ignore[import-not-found]
    from repertory.strands.types.tools import AgentTool  # type: ignore[import-not-found]

    class Shop:
        @tool
        def price(self, item: str) -> float:
            """Look up a price."""
            return 4.2

    agent = Agent(ScriptedModel([]), tools=[Shop().price], callback_handler=None)
    for each in (Shop.price, Shop().price, agent.as_tool(), agent.tool_registry.registry["price"]):
        assert isinstance(each, AgentTool), each
    assert isinstance(FileSessionManager("s", storage_dir=str(tmp_path)), RepositorySessionManager)
    assert issubclass(S3SessionManager, RepositorySessionManager)


def test_an_unknown_name_is_an_import_error_and_an_attribute_error() -> None:
    import repertory.strands.hooks as hooks

    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        exec("from repertory.strands.hooks import Nonsense")
    assert not hasattr(hooks, "Nonsense")
    with pytest.raises(ModuleNotFoundError):
        exec("import repertory.strands.nonsense")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_name_of_every_module_is_an_object_that_is_here() -> None:
    from importlib import import_module

    from repertory.compat.table import MODULES

    for path, names in MODULES.items():
        module = import_module(f"repertory.strands.{path}" if path else "repertory.strands")
        assert set(names) <= set(dir(module)), path
        for name in names:
            getattr(module, name)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("experimental.steering", "vended_plugins.steering", "Guide"),
        ("experimental.steering.core.handler", "vended_plugins.steering.core.handler", "SteeringHandler"),
        ("experimental.tools", "vended_tools", "stop"),
    ],
)
def test_a_name_that_has_moved_is_here_in_both_places_and_warns_in_the_old_one(old: str, new: str, name: str) -> None:
    from importlib import import_module

    with pytest.warns(DeprecationWarning, match=f"{name} has been moved.*{new}"):
        found = getattr(import_module(f"repertory.strands.{old}"), name)
    assert found is getattr(import_module(f"repertory.strands.{new}"), name)
    assert name not in vars(import_module(f"repertory.strands.{old}"))["__all__"]


def test_the_shell_tool_is_there_under_its_earlier_name_which_warns() -> None:
    from repertory.strands import vended_tools

    with pytest.warns(DeprecationWarning, match="use shell"):
        assert vended_tools.bash.name == "bash"
    with pytest.warns(DeprecationWarning, match="use make_shell"):
        assert vended_tools.make_bash().name == "bash"


STREAMING = """\
import asyncio
from strands import Agent
from repertory import ScriptedModel

async def main():
    agent = Agent(model=ScriptedModel(["a short answer"]), callback_handler=None)
    async for event in agent.stream_async("hello"):
        if "data" in event:
            print(event["data"], end="")
    print()

asyncio.run(main())
"""
FORM = """\
from pydantic import BaseModel, Field
from strands import Agent
from repertory import ScriptedModel

class Person(BaseModel):
    name: str = Field(description="The name")
    age: int

model = ScriptedModel([{"toolUse": {"name": "Person", "input": {"name": "Ann", "age": 30}}}])
result = Agent(model=model, callback_handler=None)("Ann is 30", structured_output_model=Person)
print(result.structured_output)
"""
GRAPH = """\
from strands import Agent
from strands.multiagent import GraphBuilder
from repertory import ScriptedModel

builder = GraphBuilder()
builder.add_node(Agent(name="finder", model=ScriptedModel(["found"]), callback_handler=None), "find")
builder.add_node(Agent(name="writer", model=ScriptedModel(["written"]), callback_handler=None), "write")
builder.add_edge("find", "write")
builder.set_entry_point("find")
result = builder.build()("a report")
print(result.status.value, *[node.node_id for node in result.execution_order])
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(STREAMING, "a short answer"), (FORM, "name='Ann' age=30"), (GRAPH, "completed find write")],
    ids=["streaming", "form", "graph"],
)
def test_programs_in_the_manner_of_the_documents_run(tmp_path: Path, program: str, printed: str) -> None:
    (tmp_path / "program.py").write_text(program)
    assert lines(run("-m", "repertory.strands", "program.py", folder=tmp_path)) == [printed]
