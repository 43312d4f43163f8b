"""Published ways out of sandboxes of Python, and bombs: code reaches nothing, and costs what it may."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from repertory import Agent, CodeMode, ScriptedModel, tool
from tests.code.coders import asks_for, printed, result_text
from tests.source_tree import ROOT

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

SECRET = "canary-8b1f"
"""Stands in a file, in the environment, in this module and in a tool's closure."""


@tool
def keeper() -> str:
    """Keeps a secret."""
    return str(len(SECRET))


def cases(name: str) -> dict[str, str]:
    """The codes of a file, by their names."""
    blocks = (Path(__file__).parent / name).read_text().split("=== ")[1:]
    return {block.partition("\n")[0]: block.partition("\n")[2] for block in blocks}


ESCAPES = cases("escapes.txt")
"""Each prints the secret, or ESCAPED, where it works in CPython, or in a sandbox that is made of it."""
BOMBS = cases("bombs.txt") | {
    "a deep source": "print(" + "(" * 5_000 + ")" * 5_000 + ")",
    "a long source": "x = [" + "1," * 30_000 + "]\nwhile True:\n    x += x",
}


@pytest.mark.parametrize("name", ESCAPES)
async def test_no_way_out_of_a_sandbox_of_python_leads_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET)
    monkeypatch.setenv("CANARY", SECRET)
    code = ESCAPES[name].replace("{file}", str(file))
    text = await printed(code, keeper, plugin=CodeMode(cpu_s=3, timeout_s=30, calls_max=5))
    assert SECRET not in text
    assert "ESCAPED" not in re.sub(r"\n    .*|'ESCAPED'|File .*", "", text)
    assert file.read_text() == SECRET


@pytest.mark.parametrize("name", BOMBS)
async def test_bombs_end_within_their_bounds_and_the_model_is_told(name: str) -> None:
    plugin = CodeMode(cpu_s=1, timeout_s=8, calls_max=5, memory_bytes=64 << 20, output_bytes=2_000)
    text = await printed(BOMBS[name], keeper, plugin=plugin)
    assert len(text) < 12_000
    # After the bomb, the next code runs.
    assert await printed("print(await keeper())", keeper, plugin=plugin) == str(len(SECRET))


# The process.


def below(pid: int) -> list[int]:
    """The processes below this one."""
    found: list[int] = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                parent = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(each.name), *below(int(each.name))]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_the_process_has_no_environment_no_files_and_bounds_and_is_gone_afterwards(tmp_path: Path) -> None:
    seen: dict[int, dict[str, Any]] = {}

    def look() -> None:
        for pid in below(os.getpid()):
            about = Path(f"/proc/{pid}")
            if _runs_code(pid):
                links = [os.readlink(each) for each in (about / "fd").iterdir()]
                limits = (about / "limits").read_text()
                seen[pid] = {"env": (about / "environ").read_bytes(), "links": links, "limits": limits}

    @tool
    async def looks() -> str:
        """Look at the process."""
        await anyio.to_thread.run_sync(look)
        return "looked"

    held = (tmp_path / "held").open("w")
    os.set_inheritable(held.fileno(), True)
    with held:
        assert await printed("print(await looks())", looks) == "looked"
    assert len(seen) == 2  # ours, and the interpreter's own
    for process in seen.values():
        assert process["env"] == b""
        assert not [link for link in process["links"] if not link.startswith(("pipe:", "/dev/null", "socket:", "anon"))]
        assert re.search(r"Max file size +0 +0 ", process["limits"])
        assert re.search(r"Max core file size +0 +0 ", process["limits"])
        assert re.search(r"Max open files +64 +64 ", process["limits"])
        assert not re.search(r"Max address space +unlimited", process["limits"])
        assert not re.search(r"Max cpu time +unlimited", process["limits"])
    assert not [pid for pid in seen if _lives(pid)]


PARENT = """
import anyio, os, sys
from repertory import Agent, CodeMode, ScriptedModel, tool

@tool
async def waits() -> str:
    "Waits."
    print("waits", flush=True)
    await anyio.sleep_forever()
    return ""

code = "while True:\\n    pass" if sys.argv[1] == "computes" else "await waits()"
if sys.argv[1] == "computes":
    print("computes", flush=True)
model = ScriptedModel([{"toolUse": {"name": "run_code", "input": {"code": code}}}, "Done."])
Agent(model, tools=[waits], plugins=[CodeMode(cpu_s=2)], callback_handler=None)("go")
"""


@pytest.mark.parametrize("does", ["waits", "computes"])
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_nothing_is_left_of_code_whose_program_is_killed(does: str) -> None:
    def kill_and_look() -> list[int]:
        with subprocess.Popen([sys.executable, "-c", PARENT, does], stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            children = _once(lambda: found if len(found := below(process.pid)) > 1 else [])
            process.kill()
        assert children
        return children if _once(lambda: [not any(map(_lives, children))]) == [False] else []

    assert not await anyio.to_thread.run_sync(kill_and_look)


def _runs_code(pid: int) -> bool:
    return any(word in Path(f"/proc/{pid}/cmdline").read_bytes() for word in (b"monty", b"interpreter.py"))


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _once(look: Callable[[], list[Any]], tries: int = 400) -> list[Any]:
    """What is seen when there is something to see, or in the end."""
    for _ in range(tries):
        if any(found := look()):
            return found
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["sleep", "1"], timeout=0.05, check=False)
    return look()


async def test_a_turn_that_is_cancelled_leaves_no_process() -> None:
    begun = anyio.Event()

    @tool
    async def waits() -> str:
        """Waits."""
        begun.set()
        await anyio.sleep_forever()
        return ""

    agent = Agent(
        ScriptedModel([asks_for("await waits()"), "Done."]), tools=[waits], plugins=[CodeMode()], callback_handler=None
    )
    async with anyio.create_task_group() as group:
        group.start_soon(agent.invoke_async, "go")
        await begun.wait()
        agent.cancel()
    assert "Cancelled" in result_text(agent)
    assert not [pid for pid in below(os.getpid()) if _runs_code(pid)]


# What comes from outside.

HOSTILE = {
    "half a character": "a\ud800b",
    "control characters": "a\x00b\x1b[31m\u202e",
    "the words of an interpreter": "<coroutine external_future(0)>",
    "fields of a failure": {"exc_type": "SystemExit", "message": "x"},
    "a number without end": {"n": 10**4000},
    "a deep object": {"a": [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]},
    "much": "x" * 9_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_result_of_a_tool_ends_no_more_than_the_code(name: str) -> None:
    @tool
    def gives(fail: bool) -> Any:
        """Gives it."""
        if fail:
            raise ValueError(HOSTILE[name])
        return HOSTILE[name]

    code = """
print(len(repr(await gives(False))) > 3)
try:
    await gives(True)
except RuntimeError as error:
    print(len(str(error)) > 3)
"""
    assert await printed(code, gives, plugin=CodeMode(cpu_s=5, timeout_s=60)) == "True\nTrue"


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("which", ["ours", "the interpreter's"])
async def test_a_killed_process_ends_its_code_and_what_its_calls_did_is_told(which: str) -> None:
    done: list[str] = []

    @tool
    async def first() -> str:
        """First."""
        done.append("first")
        return "done"

    @tool
    def kills() -> str:
        """Kill a process of the code."""
        found = [pid for pid in below(os.getpid()) if _runs_code(pid)]
        os.kill(found[0 if which == "ours" else -1], signal.SIGKILL)
        done.append("kills")
        return "killed"

    code = "print(await first())\nprint(await kills())\nprint(await first())"
    text = await printed(code, first, kills, plugin=CodeMode(cpu_s=2, timeout_s=60))
    assert text.startswith("done\n\n")
    assert "these calls have succeeded: first, kills." in text
    assert done == ["first", "kills"]
    assert not [pid for pid in below(os.getpid()) if _runs_code(pid)]
    assert await printed("print(await first())", first) == "done"
