"""The process in which code runs: started for one code, spoken to in lines of JSON, killed with all it has started.

It gets no environment and no open files, bounds itself (`interpreter.py`), and is killed when it says nothing for too
long, or a line that is too long. What it says is not believed further than its form.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from msgspec import Struct

from repertory.backends.this_machine import python_command
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import CommandFailed, Invalid

if TYPE_CHECKING:
    from anyio.abc import Process

LINE_BYTES_MAX = 16 * 1024 * 1024
"""The longest line that is read: a call with its arguments, which the process itself bounds at a quarter of it."""
GRACE_S = 10.0
"""Seconds beyond its time of computing in which the process must say something: to start, above all."""
CROWDED = 8.0
"""Seconds by the clock that a second of computing may take, where many codes share a processor."""
_REAP_S = 5.0
_PROGRAM = str(Path(__file__).with_name("interpreter.py"))
_MISSING = "code runs in pydantic-monty, which is not installed: pip install 'repertory[code]'"
_GONE = "the code was ended: it took too much time or memory, or crashed its interpreter"


class CodeBounds(Struct, frozen=True, kw_only=True):
    """The bounds of one code."""

    cpu_s: float
    """Seconds of computing; while it waits for functions, they do not count."""
    memory_bytes: int
    output_bytes: int
    calls_max: int


class CodeProcess:
    """A process that runs one code. Made by `open_code_process`."""

    def __init__(self, process: Process, silence_s: float) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = BufferedByteReceiveStream(process.stdout)
        self._silence_s = silence_s

    async def receive(self) -> Mapping[str, Any]:
        """The next message of the process. Errors: `CommandFailed` if it has ended, is silent for too long, or sends
        what is no message.
        """
        try:
            with anyio.fail_after(self._silence_s):
                line = await self._stdout.receive_until(b"\n", LINE_BYTES_MAX)
            message: object = json.loads(line)
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, TimeoutError) as error:
            raise CommandFailed(_GONE) from error
        except (anyio.DelimiterNotFound, ValueError, RecursionError) as error:
            raise CommandFailed("the code was ended: its interpreter said what is no message") from error
        if not isinstance(message, dict):
            raise CommandFailed("the code was ended: its interpreter said what is no message")
        return cast("Mapping[str, Any]", message)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Send the process a message. Errors: `CommandFailed` if it has ended."""
        try:
            with anyio.fail_after(self._silence_s):
                await self._stdin.send(json.dumps(message).encode() + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:  # `TimeoutError` among them
            raise CommandFailed(_GONE) from error


def check_interpreter() -> None:
    """Errors: `ImportError` without the interpreter; `Invalid` where no process can be started."""
    if find_spec("pydantic_monty") is None:
        raise ImportError(_MISSING)
    if python_command() is None or sys.platform == "win32":
        raise Invalid("code needs a process of its own: a Python interpreter, on Linux or macOS")


@asynccontextmanager
async def open_code_process(code: str, names: list[str], seed: str, bounds: CodeBounds) -> AsyncGenerator[CodeProcess]:
    """Start the process with this code. It is gone when the block ends.

    `names`: of the functions that the code may call; `seed`: of its random numbers. Errors: `CommandFailed`,
    `ImportError`, `Invalid`, `OSError`.
    """
    check_interpreter()
    setup = {
        "code": code,
        "names": names,
        "seed": seed,
        "path": [each for each in sys.path if each],
        "monty": await run_in_thread(_monty),  # It looks at files.
        "cpu_s": bounds.cpu_s,
        "clock_s": bounds.cpu_s * CROWDED,
        "memory_bytes": bounds.memory_bytes,
        "output_bytes": bounds.output_bytes,
        "calls_max": bounds.calls_max,
    }
    process = await anyio.open_process(
        # -I and -S: neither the user's packages nor the current folder may change what it does.
        [python_command() or "", "-I", "-S", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={},
        cwd="/",
        start_new_session=True,  # A group of its own, which can be killed as a whole.
    )
    try:
        running = CodeProcess(process, bounds.cpu_s * CROWDED + GRACE_S)
        await running.send(setup)
        yield running
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with anyio.move_on_after(_REAP_S, shield=True):
            await process.wait()
            await process.aclose()


def _monty() -> str | None:
    """The interpreter's own program, found as its package finds it."""
    given = os.environ.get("MONTY_BIN")
    beside = Path(sysconfig.get_path("scripts")) / "monty"
    return given or (str(beside) if beside.is_file() else shutil.which("monty"))
