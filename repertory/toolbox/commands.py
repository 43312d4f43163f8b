"""Tools by which the model runs commands and Python programs.

They run on this machine, with the rights of this process, unless they are made with a `Sandbox`. Have a person allow
each use: `Agent(tools=[shell], interventions=[HumanInTheLoop()])`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import Any

from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.backends.ports import ToolContext
from repertory.backends.sandbox_ports import check_language
from repertory.backends.this_machine import TIMEOUT_S, ToolSandbox, sandbox_for
from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import CommandFailed, Invalid

SANDBOX_SHELL_DESCRIPTION = (
    "Run a command of a POSIX shell. Gives what it wrote to output and error, and its exit_code, where anything but 0 "
    "is a failure. Each command has a new shell: variables and the working directory are not kept."
)
PYTHON_REPL_DESCRIPTION = (
    "Run a Python program. Gives what it wrote to output and error, and its exit_code, where anything but 0 is a "
    "failure. Each program has a new interpreter, so keep in files what a later one needs, and print what you want to "
    "see. There is no input."
)
_TIMED_OUT = 124
_TIMEOUT_S_MAX = 86_400
"""A model may ask for no more; neither for infinity, nor for what is no number, which event loops do not take."""


class ShellOutput(TypedDict):
    """The output of a command, and its exit code."""

    output: str
    error: str
    exit_code: int


def make_shell(
    *, sandbox: ToolSandbox | None = None, name: str = "shell", description: str = SANDBOX_SHELL_DESCRIPTION
) -> FunctionTool[Any]:
    """The tool `shell(command, timeout)`. `sandbox`: where commands run; None for this machine."""

    @tool(name=name, description=description)
    def shell_tool(command: str, tool_context: ToolContext, timeout: float = TIMEOUT_S) -> Awaitable[ShellOutput]:
        """Run a command.

        Args:
            command: For `sh`.
            timeout: Seconds it may take.
        """
        runner = sandbox_for(sandbox, tool_context.agent)
        return _output_of(runner.execute(command, timeout=_positive(timeout)))

    return shell_tool


def make_python_repl(
    *,
    sandbox: ToolSandbox | None = None,
    name: str = "python_repl",
    description: str = PYTHON_REPL_DESCRIPTION,
    language: str = "python3",
) -> FunctionTool[Any]:
    """The tool `python_repl(code, timeout)`. `sandbox`: where programs run; None for this machine. `language`: the
    interpreter's command. Errors: `Invalid` for an empty name, and an interpreter that is no plain name.
    """
    if not name:
        raise Invalid("name must be a non-empty string")
    check_language(language)

    @tool(name=name, description=description)
    def python_repl_tool(code: str, tool_context: ToolContext, timeout: float = TIMEOUT_S) -> Awaitable[ShellOutput]:
        """Run a program.

        Args:
            code: The program.
            timeout: Seconds it may take.
        """
        runner = sandbox_for(sandbox, tool_context.agent)
        return _output_of(runner.execute_code(code, language, timeout=_positive(timeout)))

    return python_repl_tool


def _positive(timeout_s: float) -> float:
    if not 0 < timeout_s <= _TIMEOUT_S_MAX:
        raise Invalid(f"timeout must be a positive number of seconds, at most {_TIMEOUT_S_MAX:,}", got=timeout_s)
    return timeout_s


async def _output_of(running: Awaitable[Any]) -> ShellOutput:
    """Errors: `CommandTimeout`, or the `TimeoutError` of another sandbox, with what was written until then;
    `CommandFailed` when nothing could be run.
    """
    try:
        ended = await running
    except TimeoutError as error:
        written = (str(getattr(error, name, "")) for name in ("stdout", "stderr"))
        until_then = ShellOutput(output=next(written), error=next(written), exit_code=_TIMED_OUT)
        error.args = (f"{error}\n{json.dumps(until_then)}",)
        raise
    except Exception as error:
        raise CommandFailed(str(error)) from error
    return {"output": ended.stdout, "error": ended.stderr, "exit_code": ended.exit_code}


shell = make_shell()
python_repl = make_python_repl()
