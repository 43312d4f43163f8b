"""Commands and files of this machine, for the tools that use them, and processes for the sandboxes that need some.

Nothing here is a sandbox in the strict sense: a command may do whatever the user of this process may do, such as read
its files and its environment in `/proc`, or kill what watches over the command. What it is given and what it leaves is
bounded against mistakes, and against a model that was talked into something.
"""

from __future__ import annotations

import codecs
import math
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, Protocol

import anyio
from anyio.abc import ByteReceiveStream, Process

from repertory.backends.sandbox_ports import (
    FILE_BYTES_MAX,
    Env,
    ExecutionResult,
    FileInfo,
    Output,
    Sandbox,
    StreamChunk,
    StreamType,
    check_language,
    validate_env_keys,
)
from repertory.backends.sqlite_files import refuse_open_database
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import CommandTimeout, Invalid, PathNotFound

OUTPUT_BYTES_MAX = 1_048_576
"""The most bytes of each output stream of a command; the rest is dropped, and the end says so."""
TIMEOUT_S = 120.0
_DRAIN_S = 0.5
_REAP_S = 5.0
_NOT_FOUND = 127
_KEEPER = str(Path(__file__).with_name("command_keeper.py"))
ENVIRONMENT = frozenset(
    ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV")
)
"""Variables of this process that commands get, besides those whose names begin with `LC_`."""
_BY_SIGNAL = 128


class FileAccess(Protocol):
    """Text files, by their paths."""

    async def read_text(self, path: str) -> str:
        """A text file."""
        ...

    async def write_text(self, path: str, content: str) -> None:
        """Create or replace a text file."""
        ...

    async def list_files(self, path: str) -> Sequence[Any]:
        """Objects with `name` and `is_dir`. Errors: `FileNotFoundError` or `NotFound` for no folder."""
        ...


class ToolSandbox(FileAccess, Protocol):
    """The methods that the tools need of a sandbox. Any object that has them will do, and `Sandbox` has."""

    def execute(self, command: str, *, timeout: float | None = None) -> Awaitable[Any]:
        """Run a command of a shell; gives an object with `exit_code`, `stdout` and `stderr`."""
        ...

    def execute_code(self, code: str, language: str, *, timeout: float | None = None) -> Awaitable[Any]:
        """Run code with this interpreter; the same."""
        ...


class ThisMachine(Sandbox):
    """This machine, with the rights of this process: the `sandbox` of an agent that is given none.

    Commands run in `working_dir`, None for this process's own. All that a command has started is killed when it ends,
    is cancelled or takes too long: on Linux also what has left its process group.

    `env`: variables for every command. Of this process's own, commands get those in `ENVIRONMENT` alone, because the
    others may be secrets.
    """

    def __init__(self, working_dir: str | os.PathLike[str] | None = None, *, env: Env | None = None) -> None:
        validate_env_keys(env or {})
        self._working_dir = None if working_dir is None else str(working_dir)
        self._env = dict(env or {})

    def _environment(self, env: Env | None) -> Env:
        validate_env_keys(env or {})
        harmless = {name: os.environ[name] for name in os.environ if name in ENVIRONMENT or name.startswith("LC_")}
        return {**harmless, **self._env, **(env or {})}

    def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Output:
        """Run a command of `sh`. Errors: `CommandTimeout`; `OSError` for a folder that is not there."""
        given, folder = self._environment(env), cwd or self._working_dir
        return stream_process([*_keeper(), "sh", "-c", command], timeout_s=timeout, cwd=folder, env=given)

    def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Env | None = None,
    ) -> Output:
        """Run code that the interpreter reads from its input. Errors: as `execute_streaming`."""
        command, folder = [*_keeper(), check_language(language), "-"], cwd or self._working_dir
        environment = self._environment(env)
        return stream_process(command, given=code.encode(), timeout_s=timeout, cwd=folder, env=environment)

    def _path(self, path: str) -> Path:
        return Path(self._working_dir or ".") / path

    async def read_file(self, path: str) -> bytes:
        """A file. Errors: `FileNotFoundError`, another `OSError`."""
        return await run_in_thread(lambda: _read_bytes(self._path(path)))

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file and the folders above it, so that a crash leaves the old or the new one. Errors:
        `OSError`.
        """
        await run_in_thread(lambda: _write(self._path(path), content))

    async def remove_file(self, path: str) -> None:
        """Remove a file. Errors: `FileNotFoundError`, another `OSError`."""
        await run_in_thread(self._path(path).unlink)

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a folder, by name. Errors: `PathNotFound`, `OSError`."""
        return await run_in_thread(lambda: _list(self._path(path)))

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """A text file. Errors: `OSError`, `Invalid` when it is no text in this encoding, or too large."""
        return await run_in_thread(lambda: _read(self._path(path), encoding))


# Processes.


def _keeper() -> Sequence[str]:
    """The beginning of a command that ends with all that it has started; empty where that cannot be."""
    python = python_command()
    # -I and -S: neither the user's packages nor the current folder may change what the keeper does.
    return [python, "-I", "-S", _KEEPER] if python is not None and sys.platform == "linux" else ()


def python_command() -> str | None:
    """The interpreter; None inside programs that are their own (frozen ones, and servers that embed Python)."""
    name = Path(sys.executable or "").name.lower()
    return sys.executable if name.startswith(("python", "pypy")) and not hasattr(sys, "frozen") else None


async def stream_process(
    command: Sequence[str],
    *,
    given: bytes = b"",
    timeout_s: float | None = None,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
    """Run a program: what it writes, and its end as the last piece. `given`: its input; `env`: None for this process's.

    A program that is not there ends with 127. Between two pieces nothing is held open that belongs to the task, so it
    may be left, and closed, anywhere. Errors: `CommandTimeout`, `OSError`.
    """
    file = await run_in_thread(lambda: _input_file(given)) if given else None
    try:
        process = await anyio.open_process(
            command,
            stdin=file or subprocess.DEVNULL,
            cwd=cwd,
            env=env,
            # A process group of its own, which can be killed as a whole.
            start_new_session=True,
        )
    except FileNotFoundError as error:
        if error.filename != command[0]:
            raise
        yield ExecutionResult(_NOT_FOUND, "", f"{command[0]}: not found\n")
        return
    finally:
        if file is not None:
            file.close()
    running = _Running(process, timeout_s)
    try:
        while not running.over:
            for piece in await running.more():
                yield piece
    finally:
        await _end(process, with_keeper=_KEEPER in command)
    stdout, stderr = running.texts()
    if running.late:
        raise CommandTimeout(f"Execution timed out after {timeout_s} seconds", stdout=stdout, stderr=stderr)
    code = process.returncode or 0
    yield ExecutionResult(code if code >= 0 else _BY_SIGNAL - code, stdout, stderr)


def _input_file(given: bytes) -> IO[bytes]:
    """A file that has no name, at its beginning."""
    number = os.memfd_create("input") if hasattr(os, "memfd_create") else _unnamed()
    file = os.fdopen(number, "w+b")
    file.write(given)
    file.seek(0)
    return file


def _unnamed() -> int:
    number, path = tempfile.mkstemp()
    os.unlink(path)
    return number


class _Stream:
    """One of the streams of a process."""

    def __init__(self, name: StreamType, source: ByteReceiveStream) -> None:
        self.name: StreamType = name
        self.source = source
        self.written = bytearray()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, piece: bytes) -> str:
        """The text that came to an end with this piece, as far as it is kept."""
        # One byte more than the bound, which tells that there was more.
        text = piece[: max(0, OUTPUT_BYTES_MAX + 1 - len(self.written))]
        self.written += text
        return self._decoder.decode(text)

    def text(self) -> str:
        whole = len(self.written) <= OUTPUT_BYTES_MAX
        text = bytes(self.written[:OUTPUT_BYTES_MAX]).decode(errors="replace")
        return text if whole else f"{text}\n[more was written and dropped]"


class _Running:
    def __init__(self, process: Process, timeout_s: float | None) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._streams = [_Stream("stdout", process.stdout), _Stream("stderr", process.stderr)]
        self._open = list(self._streams)
        self._ended = False
        self._until = math.inf if timeout_s is None else anyio.current_time() + timeout_s
        self.late = False

    @property
    def over(self) -> bool:
        return self.late or (self._ended and not self._open)

    async def more(self) -> Sequence[StreamChunk]:
        """Wait until it writes something, ends, or is late. What others hold its streams open for is not waited for
        long.
        """
        pieces: list[StreamChunk] = []
        with anyio.CancelScope(deadline=self._until) as bound:
            async with anyio.create_task_group() as tasks:
                for stream in self._open:
                    tasks.start_soon(self._receive, stream, pieces, tasks.cancel_scope.cancel)
                if not self._ended:
                    tasks.start_soon(self._wait, tasks.cancel_scope.cancel)
        if bound.cancelled_caught:
            self.late, self._open = not self._ended, []
        return pieces

    async def _receive(self, stream: _Stream, pieces: list[StreamChunk], done: Callable[[], None]) -> None:
        try:
            text = stream.take(await stream.source.receive())
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._open.remove(stream)
        else:
            if text:
                pieces.append(StreamChunk(text, stream.name))
        done()

    async def _wait(self, done: Callable[[], None]) -> None:
        await self._process.wait()
        self._ended = True
        self._until = min(self._until, anyio.current_time() + _DRAIN_S)
        done()

    def texts(self) -> tuple[str, str]:
        stdout, stderr = self._streams
        return stdout.text(), stderr.text()


async def _end(process: Process, *, with_keeper: bool) -> None:
    """Kill what is left of the group, and wait for the command itself. One with a keeper is ended by that."""
    with anyio.move_on_after(_REAP_S, shield=True):
        with suppress(ProcessLookupError):
            if with_keeper and process.returncode is None:
                # The keeper hears it and kills what is below; killed itself, it would leave that behind.
                process.terminate()
                await process.wait()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with anyio.move_on_after(_REAP_S, shield=True):
        await process.wait()
        await process.aclose()


# Files.


def _read_bytes(path: Path) -> bytes:
    refuse_open_database(path)
    return path.read_bytes()


def _read(path: Path, encoding: str) -> str:
    refuse_open_database(path)
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # A pipe would be waited for.
            raise Invalid("the path is no file", path=str(path))
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise Invalid(f"File size exceeds maximum allowed size ({FILE_BYTES_MAX} bytes)", path=str(path))
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Invalid(f"the file is not {encoding.upper()} text", path=str(path)) from error


def _write(path: Path, content: bytes) -> None:
    path = path.resolve()  # A link stays one.
    for folder in (*reversed(path.parent.parents), path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    temporary = path.with_name(f".{path.name[:50]}.{token_hex(8)}.repertory")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:  # Nobody else may read it meanwhile.
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _list(path: Path) -> list[FileInfo]:
    try:
        with os.scandir(path) as entries:
            found = [_info(entry) for entry in entries]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PathNotFound("no such folder", path=str(path)) from error
    return sorted(found, key=lambda entry: entry.name)


def _info(entry: os.DirEntry[str]) -> FileInfo:
    with suppress(OSError):  # It is gone, or a link to nothing.
        return FileInfo(entry.name, entry.is_dir(), entry.stat().st_size)
    return FileInfo(entry.name)


def sandbox_for(given: ToolSandbox | None, agent: object) -> ToolSandbox:
    """The one that the tool was made with, else the agent's own if it has one, else this machine."""
    return given or getattr(agent, "sandbox", None) or _HERE


_HERE = ThisMachine()
