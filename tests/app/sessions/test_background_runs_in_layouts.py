"""Tools in the background where sessions are in a documented layout: a SIGKILL in the middle loses no run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.app.sessions.test_layout_interop import BUCKET
from tests.app.sessions.test_layout_interop import bucket_url as bucket_url
from tests.bedrock.test_agentcore_interop import ACTOR, MEMORY
from tests.bedrock.test_agentcore_interop import server as server
from tests.source_tree import ROOT

pytestmark = pytest.mark.real_time

PROGRAM = textwrap.dedent(
    """\
    import json
    import os
    import signal
    import sys

    import anyio

    from repertory import Agent, FileSessionManager, FileStorage, S3SessionManager, ScriptedModel, SessionManager, tool
    from repertory import ToolContext
    from repertory.app.sessions import documented
    from repertory.core.messages import text_of

    kind, life, folder, url = sys.argv[1:]
    SHORT = 2.0  # Seconds: where only time tells that an owner is dead, the second life waits for so long.


    def manager():
        if kind == "files":
            return FileSessionManager("s", folder)
        if kind == "snapshots":
            return SessionManager("s", storage=FileStorage(folder))
        if kind == "s3":
            documented.LEASE_S = SHORT
            name = os.path.basename(folder)
            return S3SessionManager("s", "BUCKET", f"{name}/", region_name="us-east-1", endpoint_url=url)
        from repertory.bedrock import agentcore
        from repertory.bedrock.agentcore import AgentCoreMemoryConfig, AgentCoreMemorySessionManager

        agentcore.LEASE_S = SHORT
        session = os.path.basename(folder)[-40:].replace("_", "-")
        config = AgentCoreMemoryConfig(memory_id="MEMORY", session_id=f"s-{session}", actor_id="ACTOR")
        return AgentCoreMemorySessionManager(config, region_name="us-east-1", endpoint_url=url)


    def act(name):
        with open(os.path.join(folder, "effects"), "a") as effects:
            effects.write(f"{name}\\n")


    @tool(durable=True)
    async def work(tool_context: ToolContext) -> str:
        '''Work.'''
        await tool_context.step("act", act, "work")
        await tool_context.step("wait", anyio.sleep, 3600 if life == "1" else 0, idempotent=True)
        return "worked"


    @tool
    async def once() -> str:
        '''Do it once.'''
        act("once")
        await anyio.sleep(3600)


    def think(messages, *_):
        if text_of(messages[-1]) == "go":
            flag = {"_background_execution": True}
            return [{"toolUse": {"name": name, "input": flag}} for name in ("work", "once")]
        return "Fine."


    async def main():
        model = ScriptedModel([think], loop=True)
        settings = {"background_tasks": {"wait_for_completion": False}, "callback_handler": None}
        agent = Agent(model, tools=[work, once], session_manager=manager(), **settings)
        async with agent:
            if life == "1":
                await agent.invoke_async("go")
                while not os.path.exists(os.path.join(folder, "effects")) or len(
                    open(os.path.join(folder, "effects")).readlines()
                ) < 2:
                    await anyio.sleep(0.02)
                os.kill(os.getpid(), signal.SIGKILL)
            questions = []
            for _ in range(100):
                result = await agent.invoke_async("and?" if not questions else questions)
                questions = [
                    {"interruptResponse": {"interruptId": each.id, "response": {"result": "seen"}}}
                    for each in result.interrupts
                ]
                said = str(list(agent.messages))
                if "worked" in said and "seen" in said:
                    break
                await anyio.sleep(0.05)
            print(json.dumps(list(agent.messages)))


    anyio.run(main)
    """
)


@pytest.mark.parametrize("kind", ["files", "snapshots", "s3", "agentcore"])
def test_a_run_that_a_kill_has_cut_goes_on_or_is_asked_about_with_the_next_call(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = ""
    if kind == "s3":
        url = str(request.getfixturevalue("bucket_url"))
    if kind == "agentcore":
        url = str(request.getfixturevalue("server").url)
    program = PROGRAM.replace("BUCKET", BUCKET).replace("MEMORY", MEMORY).replace("ACTOR", ACTOR)
    (tmp_path / "program.py").write_text(program)

    def life(number: int) -> subprocess.CompletedProcess[str]:
        keys = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "program.py", kind, str(number), str(tmp_path), url]
        return subprocess.run(
            command, cwd=tmp_path, env={**os.environ, **keys}, capture_output=True, text=True, timeout=90, check=False
        )

    killed = life(1)
    assert killed.returncode == -9, killed.stderr
    second = life(2)
    assert second.returncode == 0, second.stderr
    messages = json.loads(second.stdout)
    # Late, or as a tool of a turn: a kill between the effect and the record of the step's end leaves a question, too.
    given = [json.dumps(each) for message in messages if message["role"] == "user" for each in message["content"]]
    for word in ("worked", "seen"):
        assert sum(word in each for each in given) == 1, given
    assert sorted((tmp_path / "effects").read_text().split()) == ["once", "work"]
