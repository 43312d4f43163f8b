"""The released `strands-harness` package here and on the SDK itself: the same agent, the same requests to its model,
and the programs of its own documents.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).parents[1] / "peers" / "strands"
PACKAGES = next(iter(PEERS.glob("lib/*/site-packages")), Path())

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.timeout(200),
    pytest.mark.skipif(
        not (PACKAGES / "strands_harness").exists(),
        reason="NOT TESTED against strands-harness: `make peers` installs it",
    ),
]

MODEL = '''\
import json, os, sys, warnings
warnings.simplefilter("ignore")
if sys.argv[1] == "here":
    import repertory.strands.install
from strands.models import BedrockModel, Model

class Scripted(Model):
    """Answers as it is told, and keeps what it was asked. Both sides have it, as any program's own model."""

    def __init__(self, answers):
        self.answers, self.asked = list(answers), []
    def update_config(self, **settings): pass
    def get_config(self): return {"model_id": "scripted"}
    config = property(get_config)
    async def structured_output(self, *given, **options):
        raise NotImplementedError
        yield
    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        asked = {"messages": messages, "tools": tool_specs, "system": system_prompt}
        if not (system_prompt or "").startswith(("You extract", "Write down")):  # A memory, written at another moment.
            self.asked.append(json.loads(json.dumps(asked, default=repr)))
        answer = self.answers.pop(0) if self.answers else "nothing more"
        for event in events_of(answer, len(self.asked)):
            yield event

def events_of(answer, number):
    yield {"messageStart": {"role": "assistant"}}
    if isinstance(answer, str):
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": answer}}}
        yield {"contentBlockStop": {}}
    for at, (name, given) in enumerate([] if isinstance(answer, str) else answer):
        use = {"name": name, "toolUseId": f"use{number}x{at}"}
        yield {"contentBlockStart": {"start": {"toolUse": use}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(given)}}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": "end_turn" if isinstance(answer, str) else "tool_use"}}
    usage = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}
'''

CONVERSATION = f"""\
{MODEL}
from strands_harness import create_harness

open("AGENTS.md", "w").write("Say please.\\n")
note = os.path.abspath("note.txt")
todos = [{{"content": "Do it", "activeForm": "Doing it", "status": "in_progress"}}]
model = Scripted([
    [("todo_write", {{"todos": todos}})],
    [("write", {{"path": note, "content": "one\\ntwo\\nthree\\n"}}), ("shell", {{"command": "echo hi"}})],
    [("edit", {{"path": note, "old_str": "two", "new_str": "TWO"}})],
    [("read", {{"path": note}})],
    [("read", {{"path": "relative"}})],
    [("programmatic_tool_caller", {{"code": f"print(len(await read(path={{note!r}})))"}})],
    [("subagent", {{"task": "Look around."}})],
    "I have looked.",
    "done",
    "fine",
])
agent = create_harness(model=model, callback_handler=None, background_tasks=False, session={{"id": "s1"}}, memory=False)
stops = [agent("Work, please.").stop_reason, agent("And now?").stop_reason]
again = create_harness(model=model, callback_handler=None, background_tasks=False, session={{"id": "s1"}}, memory=False)
print("\\n" + json.dumps({{
    "tools": list(agent.tool_registry.registry), "stops": stops, "asked": model.asked, "folder": os.getcwd(),
    "messages": len(agent.messages), "again": len(again.messages), "snapshot": os.path.exists(
        ".agent/sessions/session/s1/scopes/agent/default/snapshots/snapshot_latest.json"),
}}))
"""

IN_THE_BACKGROUND = f"""\
{MODEL}
from strands_harness import create_harness

class Answering(Scripted):
    '''The parent delegates, and is done when it has read the child's answer; the child answers at once.'''
    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        texts = json.dumps(messages, default=repr)
        self.asked.append(tool_specs)
        answer = [("subagent", {{"task": "Look around."}})]
        if messages[0]["content"][0].get("text", "").startswith("Look around."):
            answer = "I have looked."
        elif "I have looked." in texts:
            answer = "done"
        elif "subagent" in texts:
            answer = "I wait."
        for event in events_of(answer, len(self.asked)):
            yield event

model = Answering([])
agent = create_harness(model=model, callback_handler=None, session=False, memory=False, builtin_plugins=[])
result = agent("Work, please.")
print("\\n" + json.dumps({{
    "stop": result.stop_reason, "answer": str(result).strip(), "tools": sorted(agent.tool_registry.registry),
    "parameters": {{spec["name"]: sorted(spec["inputSchema"]["json"]["properties"]) for spec in model.asked[0]}},
}}))
"""

ASKS = f"""\
{MODEL}
from strands import tool
from strands_harness import create_harness

ran = []

@tool
def deploy(where: str) -> str:
    '''Deploy it.

    Args:
        where: The place.
    '''
    ran.append(where)
    return f"deployed to {{where}}"

model = Scripted([
    [("subagent", {{"task": "Deploy it."}})], [("deploy", {{"where": "prod"}})], "The child has.", "The parent has.",
])
agent = create_harness(
    model=model, tools=[deploy], builtin_tools=["subagent"], builtin_plugins=[], memory=False, session=False,
    callback_handler=None, interventions="ask", background_tasks=False,
)
result, questions = agent("Deploy it."), []
while result.stop_reason == "interrupt":
    questions.append([one.name for one in result.interrupts])
    assert not ran
    result = agent([{{"interruptResponse": {{"interruptId": one.id, "response": "y"}}}} for one in result.interrupts])
print("\\n" + json.dumps({{"questions": questions, "ran": ran, "answer": str(result).strip()}}))
"""

SERVER = """\
try:
    from mcp.server import FastMCP
except ImportError:
    from mcp.server.mcpserver import MCPServer as FastMCP
server = FastMCP("echo")

@server.tool(description="Say it again", structured_output=False)
def echo(text: str) -> str:
    return f"echo:{text}"

server.run(transport="stdio")
"""
WITH_SERVERS = f"""\
{MODEL}
from strands import tool
from strands_harness import create_harness

open("server.py", "w").write({SERVER!r})
servers = {{name: {{"command": sys.executable, "args": [os.path.abspath("server.py")]}} for name in ("srv", "other")}}
open("mcp.json", "w").write(json.dumps({{"mcpServers": servers}}))
prepared = []

class Marker:
    name, hooks, tools = "marker", [], []
    def init_agent(self, agent):
        prepared.append(agent.agent_id)

model = Scripted([
    [("srv_echo", {{"text": "hi"}})],
    [("subagent", {{"task": "Echo it.", "mcp_servers": ["srv"]}})], [("srv_echo", {{"text": "child"}})], "Echoed.",
    [("subagent", {{"task": "Echo it.", "mcp_servers": []}})], "I cannot.",
    "done",
])
agent = create_harness(
    model=model, mcp_servers="./mcp.json", memory=False, session=False, callback_handler=None, background_tasks=False,
    builtin_tools=["subagent"], builtin_plugins=[], context_manager=False, plugins=[Marker()],
)
names = sorted(agent.tool_names)
axis = agent.tool_registry.registry["subagent"].tool_spec["inputSchema"]["json"]["properties"]["mcp_servers"]
direct = agent.tool.srv_echo(text="by hand")["content"]
stop = agent("Echo.").stop_reason
print("\\n" + json.dumps({{
    "names": names, "axis": axis["items"]["enum"], "direct": direct, "stop": stop, "prepared": len(prepared),
    "tools": [sorted(spec["name"] for spec in each["tools"] or []) for each in model.asked],
    "results": [
        [part.get("text") for block in message["content"] for part in block.get("toolResult", {{}}).get("content", [])]
        for message in agent.messages
    ],
}}))
"""

OWN_SUBAGENTS = f"""\
{MODEL}
from strands import Agent
from strands_harness import create_harness
from strands_harness.tools import Choice, Fixed, Inherit, Open, Option, Preset, make_subagent

child, built = Scripted(["I have read it."]), []

def build(spec):
    built.append([spec.task, spec.agent_type, spec.instructions, spec.tools, spec.model, spec.context])
    return Agent(model=child, system_prompt=spec.instructions, callback_handler=None)

roles = {{
    "reader": Preset(instructions="You read.", tools=["read"], description="reads alone"),
    "writer": Preset(instructions="You write.", tools=["read", "write"], context="all", description="writes too"),
}}
modes = [
    {{}}, {{"presets": roles, "default_preset": "writer"}}, {{"presets": roles, "instructions": Fixed(None)}},
    {{"tools": Inherit(), "instructions": Fixed("You edit.")}}, {{"tools": Choice(["read"], multiple=True)}},
    {{"model": Choice([Option("small", "bedrock/small", "cheap"), "bedrock/large"]), "tools": Fixed(None)}},
    {{"context": Choice(["none", "all"]), "instructions": Choice([Option("terse", "Be terse.")]), "name": "delegate"}},
]
specs = [make_subagent(builder=build, inherited_tools=["read", "write"], **mode).tool_spec for mode in modes]
own = make_subagent(
    builder=build, presets=roles, instructions=Open(), inherited_tools=["read", "write"],
    context=Choice(["none", "all"]),
)
model = Scripted([
    [("subagent", {{"task": "Read it.", "agent_type": "reader", "context": "none"}})],
    [("subagent", {{"task": "Read it.", "agent_type": "nobody"}})],
    [("subagent", {{"task": "Read it.", "instructions": "Be quick.", "tools": ["read", "shell"]}})],
    "done",
])
agent = create_harness(
    model=model, tools=[own], builtin_tools=["read", "write"], builtin_plugins=[], memory=False, session=False,
    callback_handler=None, background_tasks=False, context_manager=False,
)
stop = agent("Go.").stop_reason
results = [block["toolResult"] for message in agent.messages for block in message["content"] if "toolResult" in block]
print("\\n" + json.dumps({{
    "specs": specs, "built": built, "stop": stop, "prompts": [each["system"] for each in child.asked],
    "results": [[each["status"], each["content"][0]["text"]] for each in results],
}}, default=repr))
"""

DOCUMENTS = f"""\
{MODEL}
import traceback
import strands_harness, strands_harness.agent as home
from strands import Agent, tool
from strands.memory import MemoryManager
from strands.plugins import Plugin
from strands.storage import LocalFileStorage
from strands.vended_memory_stores.file_memory_store import FileMemoryStore

async def stream(self, *given, **options):
    for event in events_of("answered", 1):
        yield event

BedrockModel.stream = stream

class MyMetricsPlugin(Plugin):
    name = "metrics"

os.environ.update(OPENAI_API_KEY="k", ANTHROPIC_API_KEY="k", GOOGLE_API_KEY="k", AWS_DEFAULT_REGION="us-east-1")
os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="s")
ended = []
for program in json.loads(open(sys.argv[2]).read()):
    store = FileMemoryStore(name="mine", storage=LocalFileStorage("./mine"))
    names = {{
        "create_harness": strands_harness.create_harness, "Agent": Agent, "tool": tool, "my_store": store,
        "my_memory_manager": MemoryManager(stores=[store]), "MyMetricsPlugin": MyMetricsPlugin, "now": "noon",
        "my_slack_ask": lambda prompt, **options: "n", "__name__": "program",
        **{{name: getattr(strands_harness, name) for name in strands_harness.__all__}},
    }}
    try:
        exec(compile(program, "program", "exec"), names)
        ended.append("ran")
    except BaseException as error:
        ended.append(type(error).__name__)
        if sys.argv[1] == "here":
            traceback.print_exc()
print("\\n" + json.dumps(ended))
"""


@pytest.fixture
def only_the_package(tmp_path: Path) -> Path:
    """A folder that has the package and its interpreter of code, and nothing else of the SDK's environment."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in ("strands_harness", "pydantic_monty"):
        (folder / name).symlink_to(PACKAGES / name)
    return folder


def told(tmp_path: Path, program: str, side: str, packages: Path, *arguments: str) -> Any:
    folder = tmp_path / side
    folder.mkdir()
    (folder / "program.py").write_text(program)
    python = Path(sys.executable) if side == "here" else PEERS / "bin" / "python"
    path = [str(packages), str(Path(__file__).parents[2])] if side == "here" else []
    done = subprocess.run(
        [str(python), "program.py", side, *arguments],
        cwd=folder,
        env={**os.environ, "MONTY_BIN": str(PEERS / "bin" / "monty"), "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        timeout=180,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer if side == "here" else json.loads(json.dumps(answer))


def both(tmp_path: Path, program: str, packages: Path, *arguments: str) -> tuple[Any, Any]:
    return told(tmp_path, program, "sdk", packages, *arguments), told(tmp_path, program, "here", packages, *arguments)


OUR_WORDS = {"shell", "retrieve_context"}
"""The tools that the SDK has and not the package: their parameters are the same here, and their texts are ours."""


def shape_of(spec: Any, name: str) -> Any:
    """A spec without what differs for a reason: titles, `additionalProperties: false`, and our own words."""
    if isinstance(spec, list):
        return [shape_of(one, name) for one in spec]
    if not isinstance(spec, dict):
        return spec
    left_out = {"title", "additionalProperties"} | ({"description", "default"} if name in OUR_WORDS else set())
    return {key: shape_of(value, name) for key, value in spec.items() if key not in left_out}


def parameters_of(spec: Any) -> tuple[list[str], list[str]]:
    schema = spec["inputSchema"]["json"]
    return sorted(schema["properties"]), sorted(schema["required"])


def plain(message: Any, folder: str) -> Any:
    text = json.dumps({"role": message["role"], "content": message["content"]}, sort_keys=True)
    return json.loads(text.replace(folder, "/folder").replace(r'{"text": "\n\n<system', '{"text": "<system'))


def test_the_agent_has_the_same_tools_and_asks_its_model_the_same(tmp_path: Path, only_the_package: Path) -> None:
    sdk, here = both(tmp_path, CONVERSATION, only_the_package)
    assert here["tools"] == sdk["tools"]
    assert here["stops"] == sdk["stops"] == ["end_turn", "end_turn"]
    assert here["messages"] == sdk["messages"]
    assert here["snapshot"], "the session is not in the SDK's layout"
    assert here["again"] == sdk["again"] == sdk["messages"]
    assert len(here["asked"]) == len(sdk["asked"])
    for mine, theirs in zip(here["asked"], sdk["asked"], strict=True):
        assert mine["system"] == theirs["system"]
        assert [plain(one, here["folder"]) for one in mine["messages"]] == [
            plain(one, sdk["folder"]) for one in theirs["messages"]
        ]
        for spec, other in zip(mine["tools"] or (), theirs["tools"] or (), strict=True):
            assert parameters_of(spec) == parameters_of(
                {**other, "inputSchema": {"json": other["inputSchema"]["json"]}}
            )
            if spec["name"] not in OUR_WORDS:
                assert shape_of(spec, spec["name"]) == shape_of(other, other["name"])


def test_by_default_it_delegates_in_the_background_and_goes_on_with_the_result(
    tmp_path: Path, only_the_package: Path
) -> None:
    sdk, here = both(tmp_path, IN_THE_BACKGROUND, only_the_package)
    assert here == sdk
    assert (here["stop"], here["answer"]) == ("end_turn", "done")
    assert "strands_manage_background_task" in here["tools"]


def test_a_question_of_a_subagent_reaches_the_person_and_its_answer_the_subagent(
    tmp_path: Path, only_the_package: Path
) -> None:
    sdk, here = both(tmp_path, ASKS, only_the_package)
    assert here == sdk
    assert here["ran"] == ["prod"]
    assert len(here["questions"]) == 2  # One for the subagent itself, one for its tool.


def test_servers_of_tools_are_known_before_the_first_turn_and_reach_subagents_as_their_parent_says(
    tmp_path: Path, only_the_package: Path
) -> None:
    sdk, here = both(tmp_path, WITH_SERVERS, only_the_package)
    assert here == sdk
    assert here["names"] == ["other_echo", "srv_echo", "subagent"]
    assert here["axis"] == ["srv", "other"]
    assert here["direct"] == [{"text": "echo:by hand"}]
    assert [["srv_echo" in names, "other_echo" in names] for names in here["tools"]] == [
        [True, True], [True, True], [True, False], [True, False], [True, True], [False, False], [True, True],
    ]  # fmt: skip
    assert here["prepared"] == 3


def test_a_subagent_of_ones_own_has_the_same_parameters_in_each_mode_and_is_built_with_the_same(
    tmp_path: Path, only_the_package: Path
) -> None:
    sdk, here = both(tmp_path, OWN_SUBAGENTS, only_the_package)
    assert here == sdk
    assert len(here["specs"]) == 7
    assert [each[0] for each in here["results"]][:2] == ["success", "error"]
    assert here["built"][0][:4] == ["Read it.", "reader", "You read.", ["read"]]


def test_the_programs_of_its_documents_run(tmp_path: Path, only_the_package: Path) -> None:
    metadata = next(PACKAGES.glob("strands_harness-*.dist-info/METADATA")).read_text()
    programs = re.findall(r"^```python\n(.*?)^```", metadata, re.MULTILINE | re.DOTALL)
    programs = [each for each in programs if '"npx"' not in each]  # It would install a package from the network.
    assert len(programs) > 15
    (tmp_path / "programs.json").write_text(json.dumps(programs))
    sdk, here = both(tmp_path, DOCUMENTS, only_the_package, str(tmp_path / "programs.json"))
    worse = [(end, program) for end, other, program in zip(here, sdk, programs, strict=True) if other == "ran" != end]
    [(end, program)] = worse  # Every session is durable here, and no turn ends at a checkpoint.
    assert end == "Invalid"
    assert "checkpointing=True" in program
    assert here.count("ran") > 12
