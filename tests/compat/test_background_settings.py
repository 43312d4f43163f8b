"""Settings of tools in the background: what is refused as an agent is made, here and by the released strands-agents
package.

The comparison needs the interpreter that `tests/app/sessions/test_layout_interop.py` describes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.app.sessions.test_layout_interop import PYTHON
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

PROGRAM = textwrap.dedent(
    """\
    import json
    import logging

    from strands import Agent, tool
    from strands.types.tools import AgentTool

    logging.disable(logging.CRITICAL)


    def made(name, schema):
        class Made(AgentTool):
            tool_name = name
            tool_type = "function"
            tool_spec = {"name": name, "description": "A tool.", "inputSchema": {"json": schema}}

            async def stream(self, tool_use, invocation_state, **kwargs):
                yield {"toolUseId": tool_use["toolUseId"], "status": "success", "content": [{"text": "done"}]}

        return Made()


    @tool
    def plain(text: str) -> str:
        '''A tool.'''
        return text


    FLAG = "_background_execution"
    union = made("union", {"type": "object", "anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}})
    listed = made("listed", {"type": "array"})
    own = made("own", {"type": "object", "properties": {FLAG: {"type": "boolean"}}})
    needed = made("needed", {"type": "object", "properties": {}, "required": [FLAG]})
    pin = made("pin_context", {"type": "object", "properties": {}})


    def helper():
        return Agent(model=MODEL, name="helper", callback_handler=None)


    def delegate():
        return helper().as_tool(delegate=True)


    def attempt(tools, config):
        try:
            tools = [each() if each is delegate else each for each in tools]
            Agent(model=MODEL, tools=tools, background_tasks=config, callback_handler=None)
        except (TypeError, ValueError) as error:
            return str(error)
        return "taken"


    TRIED = {
        "nothing": ([plain], True),
        "all": ([plain, union, listed, pin, delegate], True),
        "never": ([plain, union, delegate, pin], {"never": ["union", "helper", "pin_context"]}),
        "union is chosen": ([plain, union], {"agentic": ["union"]}),
        "union always": ([plain, union], {"always": ["union"]}),
        "a list is chosen": ([listed], {"agentic": [listed]}),
        "a list always": ([listed], {"always": [listed]}),
        "delegate is chosen": ([delegate], {"agentic": ["helper"]}),
        "delegate always": ([delegate], {"always": ["helper"]}),
        "delegate as others": ([delegate], {"always": ["*"]}),
        "pin is chosen": ([pin], {"agentic": ["pin_context"]}),
        "pin always": ([pin], {"always": ["pin_context"]}),
        "pin never": ([pin], {"never": ["pin_context"]}),
        "manage always": ([plain], {"always": ["strands_manage_background_task"]}),
        "own flag": ([own], True),
        "own flag never": ([own], {"never": ["own"]}),
        "own flag off": ([own], None),
        "needs the flag": ([needed], {"always": ["plain"]}),
        "two wrongs": ([union, pin, own], {"agentic": ["union"], "always": ["pin_context"]}),
        "unknown tool": ([plain], {"always": ["nobody"]}),
        "two modes": ([plain], {"always": ["plain"], "never": ["plain"]}),
        "no room": ([plain], {"max_concurrency": 0}),
        "half a room": ([plain], {"max_concurrency": 1.5}),
        "true rooms": ([plain], {"max_concurrency": True}),
        "no time": ([plain], {"timeout": 0}),
        "endless": ([plain], {"timeout": float("inf")}),
        "not a number": ([plain], {"timeout": float("nan")}),
        "a word of time": ([plain], {"timeout": "1"}),
    }
    MODEL = None
    if __name__ == "__main__":
        from strands.models import BedrockModel

        MODEL = BedrockModel(region_name="us-east-1")
        print(json.dumps({name: attempt(*each) for name, each in TRIED.items()}, indent=1))
    """
)
CANNOT, UNION, FLAG = "cannot run in the background", "cannot choose the background", "has a parameter"
REFUSED = {
    "union is chosen": UNION,
    "a list is chosen": UNION,
    "delegate is chosen": CANNOT,
    "delegate always": CANNOT,
    "pin is chosen": CANNOT,
    "pin always": CANNOT,
    "own flag": FLAG,
    "own flag never": FLAG,
    "needs the flag": FLAG,
    "two wrongs": f"{UNION}|{CANNOT}|{FLAG}",
    "two modes": "one mode",
    "no room": "from 1 to 1,000",
    "half a room": "from 1 to 1,000",
    "true rooms": "from 1 to 1,000",
    "no time": "positive number",
    "not a number": "positive number",
    "a word of time": "positive number",
}


def said(folder: Path, *command: str, path: str) -> dict[str, str]:
    (folder / "program.py").write_text(PROGRAM)
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **keys}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_agent_is_not_made_with_tools_that_cannot_do_what_the_settings_say(tmp_path: Path) -> None:
    found = said(tmp_path, sys.executable, "-m", "repertory.strands", "program.py", path=str(ROOT))
    assert {name: words for name, words in found.items() if words != "taken"}.keys() == REFUSED.keys()
    for name, words in REFUSED.items():
        assert all(each in found[name] for each in words.split("|")), (name, found[name])


@pytest.mark.skipif(not PYTHON.exists(), reason="NOT TESTED against strands-agents: `make peers` installs it")
def test_the_released_package_refuses_the_same(tmp_path: Path) -> None:
    theirs = said(tmp_path, str(PYTHON), "program.py", path="")
    assert {name for name, words in theirs.items() if words != "taken"} == REFUSED.keys()
