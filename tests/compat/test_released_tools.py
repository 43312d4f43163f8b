"""The released `strands-agents-tools` package, by the names of its modules, with our agent: each is loaded, and each
that needs no account is really called.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = next(iter((Path(__file__).parents[1] / "peers").glob("strands/lib/*/site-packages")), Path())

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.skipif(
        not (PACKAGES / "strands_tools").exists(),
        reason="NOT TESTED against strands-agents-tools: `make peers` installs it",
    ),
]

PROGRAM = """\
import json, os, sys
sys.path.append(sys.argv[1])
os.environ.update(BYPASS_TOOL_CONSENT="true", STRANDS_NON_INTERACTIVE="true", STRANDS_DISABLE_LOAD_TOOL="false")
from importlib import import_module
from strands import Agent
from repertory import ScriptedModel

said = {}
for name, given in json.loads(sys.argv[2]).items():
    tool = import_module(f"strands_tools.{name}")
    asked = {"toolUse": {"name": name, "input": given}}
    agent = Agent(ScriptedModel([asked, "inner answer", "inner answer", "done"]), tools=[tool], callback_handler=None)
    result = agent(f"use {name}")
    block = agent.messages[2]["content"][0]["toolResult"]
    said[name] = [block["status"], json.dumps(block["content"], default=repr), result.stop_reason]
print("\\n" + json.dumps(said))
"""

CALLS: dict[str, tuple[dict[str, object], str]] = {
    "batch": ({"invocations": []}, ""),
    "calculator": ({"expression": "2 + 3"}, "5"),
    "current_time": ({}, "T"),
    "cron": ({"action": "raw"}, "Raw crontab entry required"),
    "editor": ({"command": "create", "path": "./made.txt", "file_text": "made"}, "made.txt"),
    "environment": ({"action": "get", "name": "STRANDS_NON_INTERACTIVE"}, "true"),
    "file_read": ({"path": "note.txt", "mode": "view"}, "a note"),
    "file_write": ({"path": "written.txt", "content": "written"}, "written"),
    "handoff_to_user": ({"message": "over to you", "breakout_of_loop": True}, ""),
    "http_request": ({"method": "GET", "url": "http://127.0.0.1:9/"}, "127.0.0.1"),
    "image_reader": ({"image_path": "dot.png"}, "png"),
    "journal": ({"action": "write", "content": "dear diary"}, ""),
    "load_tool": ({"name": "shout", "path": "shout.py"}, "shout"),
    "python_repl": ({"code": "print(6 * 7)", "interactive": False}, "42"),
    "shell": ({"command": "echo hello"}, "hello"),
    "sleep": ({"seconds": 0.01}, "0.01"),
    "stop": ({"reason": "enough"}, "enough"),
    "think": ({"thought": "why", "cycle_count": 1, "system_prompt": "Think."}, "inner answer"),
    "use_agent": ({"prompt": "hi", "system_prompt": "Greet."}, "inner answer"),
    "workflow": ({"action": "list"}, ""),
    "graph": ({"action": "list"}, ""),
    "agent_graph": ({"action": "list"}, ""),
}
"""What each is called with, and what its result has; an error is expected of those in `REFUSING`."""
REFUSING = {"cron", "http_request"}
LOADED = (
    *("bright_data", "elasticsearch_memory", "exa", "generate_image", "generate_image_stability", "mcp_client"),
    *(
        "memory",
        "mongodb_memory",
        "nova_reels",
        "retrieve",
        "rss",
        "search_video",
        "chat_video",
        "slack",
        "swarm",
        "tavily",
    ),
    "use_aws",
)
"""Those that need an account, or a service: they are given to an agent, whose model sees them."""


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "repertory.strands", program.name, str(PACKAGES), *arguments],
        cwd=program.parent,
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
SHOUT = '''\
from strands import tool

@tool
def shout(text: str) -> str:
    """Say it loudly."""
    return text.upper()
'''


def test_each_tool_is_called_and_answers(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "note.txt").write_text("a note")
    (tmp_path / "shout.py").write_text(SHOUT)
    (tmp_path / "dot.png").write_bytes(PNG)
    done = run(tmp_path / "program.py", json.dumps({name: given for name, (given, _) in CALLS.items()}))
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    wrong = {
        name: said[name]
        for name, (_, part) in CALLS.items()
        if said[name][0] != ("error" if name in REFUSING else "success") or part not in said[name][1]
    }
    assert not wrong, wrong
    assert (tmp_path / "written.txt").read_text() == "written"
    assert said["stop"][2] == "tool_use"


LISTING = """\
import sys
sys.path.append(sys.argv[1])
from importlib import import_module
from strands import Agent
from repertory import ScriptedModel

for name in sys.argv[2:]:
    try:
        module = import_module(f"strands_tools.{name}")
    except ImportError as error:
        print(name, "needs", error.name)
        continue
    model = ScriptedModel(["done"])
    agent = Agent(model, tools=[module], callback_handler=None)
    agent("go")
    print(name, "seen", *[spec["name"] for spec in model.calls[0].tool_specs])
"""


def test_each_tool_that_needs_an_account_is_seen_by_the_model(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LISTING)
    done = run(tmp_path / "program.py", *LOADED)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines() if " seen " in line or " needs " in line]
    assert [line[0] for line in lines] == [*LOADED]
    assert [line for line in lines if line[1] == "needs" and line[2].startswith(("strands", "repertory"))] == []
    assert [line for line in lines if line[1] == "seen" and len(line) < 3] == []


TELEMETRY = """\
import sys
sys.path.append(sys.argv[1])
from strands.telemetry import StrandsTelemetry
telemetry = StrandsTelemetry().setup_console_exporter(formatter=lambda span: f"span {span.name}\\n")
with telemetry.tracer_provider.get_tracer("mine").start_as_current_span("work"):
    pass
sys.modules["opentelemetry.exporter.otlp.proto.http.trace_exporter"] = None
try:
    telemetry.setup_otlp_exporter()
except ImportError as error:
    print(error)
"""


def test_a_programs_own_spans_go_where_it_says(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TELEMETRY)
    done = run(tmp_path / "program.py")
    assert done.returncode == 0, done.stderr[-3000:]
    needed = "opentelemetry-exporter-otlp-proto-http"
    told = f"StrandsTelemetry needs {needed}: pip install 'repertory[telemetry]'"
    assert done.stdout.splitlines() == ["span work", told]
