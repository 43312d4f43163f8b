"""An interpreter that code has taken over: its process may say anything, and gets no further than a call of a tool."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repertory import CodeMode, tool
from repertory.code import code_process
from tests.code.coders import printed

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]

CALL = '{"call": 1, "name": "%s", "args": [], "named": {}}'
HEAD = """
import os, sys, json
def say(text): os.write(1, text.encode() + b"\\n")
def hear(): return sys.stdin.buffer.readline()
setup = hear()
"""
PROGRAMS = {
    "ends at once": "",
    "says no JSON": "say('hello')",
    "says no object": "say('[1]')",
    "says half a line": "os.write(1, b'{')",
    "says a line without end": "while True: os.write(1, b'x' * 65536)",
    "says nests": "say('[' * 200000)",
    "waits for what it has not asked for": "say('{\"wait\": [7]}'); hear()",
    "asks for another value": 'say(\'{"ask": "environment"}\'); hear()',
    "asks for too many bytes": 'say(\'{"ask": "random", "n": 1000000000}\'); hear()',
    "asks for bytes below zero": 'say(\'{"ask": "random", "n": -1}\'); hear()',
    "calls in another form": 'say(\'{"call": "1", "name": 5}\'); hear()',
    "ends in another form": "say('{\"end\": 5}')",
    "says too much": 'for _ in range(300_000): say(\'{"print": ""}\')',
    "says one call twice": f"say('{CALL % 'one'}'); say('{CALL % 'one'}'); hear()",
}


@tool
def one() -> int:
    """One."""
    return 1


@tool
def secret() -> str:
    """A tool that code may not call."""
    calls.append("secret")
    return "canary"


calls: list[str] = []


def taken_over(program: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = folder / "interpreter.py"
    file.write_text(HEAD + program)
    monkeypatch.setattr(code_process, "_PROGRAM", str(file))


@pytest.mark.parametrize("name", PROGRAMS)
async def test_nonsense_ends_the_code_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_over(PROGRAMS[name], tmp_path, monkeypatch)
    text = await printed("print(1)", one, plugin=CodeMode(cpu_s=2))
    assert "the code was ended" in text


async def test_a_silent_interpreter_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_process, "GRACE_S", 0.5)
    taken_over("import time; time.sleep(1000)", tmp_path, monkeypatch)
    text = await printed("print(1)", one, plugin=CodeMode(cpu_s=0.05))
    assert text.startswith("the code was ended: it took too much time or memory")


async def test_it_calls_no_tool_that_code_may_not_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"say('{CALL % 'secret'}'); say('{{\"wait\": [1]}}'); say(json.dumps({{'end': hear().decode()}}))"
    taken_over(program, tmp_path, monkeypatch)
    text = await printed("print(1)", one, secret, plugin=CodeMode(["one"]))
    assert "name 'secret' is not defined" in text
    assert not calls


async def test_it_has_the_environment_of_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ
    program = "say(json.dumps({'print': str(dict(os.environ)) + ' ' + os.getcwd()})); say('{\"end\": null}')"
    taken_over(program, tmp_path, monkeypatch)
    assert (await printed("print(1)", one)).replace("'LC_CTYPE': 'C.UTF-8'", "") == "{} /"


@pytest.mark.parametrize(
    ("says", "told"), [("7", "1,500 more"), ("99999", "99,999 more"), ("-1", "1,500"), ('"a"', "1,500")]
)
async def test_it_is_believed_about_what_it_has_left_out_and_no_further(
    says: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"say(json.dumps({{'print': 'x' * 2000}})); say('{{\"end\": null, \"over\": {says}}}')"
    taken_over(program, tmp_path, monkeypatch)
    assert told in await printed("print(1)", one, plugin=CodeMode(output_bytes=500))


async def test_its_output_is_bounded_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "for _ in range(100): say(json.dumps({'print': 'x' * 1000}))\nsay('{\"end\": null}')"
    taken_over(program, tmp_path, monkeypatch)
    text = await printed("print(1)", one, plugin=CodeMode(output_bytes=500))
    assert text == "x" * 500 + "\n[99,500 more bytes were printed and left out: print less]"
