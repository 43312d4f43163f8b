"""The port to a sandbox: a place where commands and code run and files are, for an agent and its tools.

Subclass `Sandbox` for a place of your own. `this_machine.py` has this machine, `shell_sandboxes.py` containers and
other machines.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal

from repertory.backends.ports import Tool
from repertory.errors import CommandFailed, Invalid

FILE_BYTES_MAX = 1_048_576
"""The largest file that the tools read or write."""
LANGUAGE_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""The command of an interpreter."""
ENV_KEY_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The name of an environment variable."""

StreamType = Literal["stdout", "stderr"]
Env = Mapping[str, str]


@dataclass
class StreamChunk:
    """A piece of what a command writes."""

    data: str
    stream_type: StreamType = "stdout"


@dataclass
class FileInfo:
    """An entry of a folder. None: not known."""

    name: str
    is_dir: bool | None = None
    size: int | None = None
    """The size of the file in bytes; None when unknown."""


@dataclass
class OutputFile:
    """A file that code has made, such as a picture."""

    name: str
    content: bytes
    mime_type: str = "application/octet-stream"


@dataclass
class ExecutionResult:
    """The end of a command. One that a signal ended has 128 and the signal's number as its `exit_code`."""

    exit_code: int
    stdout: str
    stderr: str
    output_files: list[OutputFile] = field(default_factory=list[OutputFile])


Output = AsyncGenerator[StreamChunk | ExecutionResult, None]
"""Pieces as they are written, and the result as the last one. Close it (`aclosing`) if you leave it early."""


class Sandbox(ABC):
    """A place where commands run and files are, shared by the tools of an agent: `Agent(sandbox=...)`.

    Six methods make one; the others use those. A `timeout` is in seconds, None for none; relative paths are below a
    place's own folder. Cancelling a call ends what it runs.
    """

    @abstractmethod
    def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Output:
        """Run a command of a shell.

        Args:
            command: The command, for a POSIX shell.
            timeout: Seconds until it is stopped; None for no limit.
            cwd: The folder where it starts; None for the sandbox's own.
            env: Environment variables besides those of the sandbox.

        Raises:
            CommandTimeout: With what was written until then. Allow more time, or run less.
            CommandFailed: When nothing could be run. Read its output.
            Invalid: For the name of a variable. Correct the argument.
        """

    @abstractmethod
    def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Env | None = None,
    ) -> Output:
        """Run code by the interpreter with this command. Errors: as `execute_streaming`. An interpreter that is not
        there ends with 127.

        Args:
            code: The source text.
            language: The program that runs it, such as `python` or `bash`.
            timeout: Seconds until it is stopped; None for no limit.
            cwd: The folder where it starts; None for the sandbox's own.
            env: Environment variables besides those of the sandbox.

        Raises:
            Invalid: For a language that is no plain name. Correct the argument.
        """

    @abstractmethod
    async def read_file(self, path: str) -> bytes:
        """A file.

        Args:
            path: The file or folder, within the sandbox.

        Raises:
            FileNotFoundError: If there is no such file. Check the path.
            OSError: If it cannot be read. Read its message.
        """

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file, and make the folders above it.

        Args:
            path: The file or folder, within the sandbox.
            content: The bytes.

        Raises:
            OSError: If the sandbox cannot run it. Read its message.
        """

    @abstractmethod
    async def remove_file(self, path: str) -> None:
        """Delete one file.

        Args:
            path: The file or folder, within the sandbox.

        Raises:
            FileNotFoundError: If there is no such file. Check the path.
            OSError: If it cannot be deleted. Read its message.
        """

    @abstractmethod
    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a folder, by name.

        Args:
            path: The file or folder, within the sandbox.

        Raises:
            FileNotFoundError: If there is no such folder. Check the path.
            OSError: If it cannot be read. Read its message.
        """

    def get_tools(self) -> Sequence[Tool]:
        """Tools that an agent with this sandbox has besides its own."""
        return ()

    def execute(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Coroutine[object, object, ExecutionResult]:
        """Run a command of a shell, and wait for its end. Errors: those of `execute_streaming`.

        Args:
            command: The command, for a POSIX shell.
            timeout: Seconds until it is stopped; None for no limit.
            cwd: The folder where it starts; None for the sandbox's own.
            env: Environment variables besides those of the sandbox.
        """
        return _end_of(self.execute_streaming(command, timeout=timeout, cwd=cwd, env=env), "execute_streaming")

    def execute_code(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Env | None = None,
    ) -> Coroutine[object, object, ExecutionResult]:
        """Run this code, and wait for its end. Errors: those of `execute_code_streaming`.

        Args:
            code: The source text.
            language: The program that runs it, such as `python` or `bash`.
            timeout: Seconds until it is stopped; None for no limit.
            cwd: The folder where it starts; None for the sandbox's own.
            env: Environment variables besides those of the sandbox.
        """
        output = self.execute_code_streaming(code, language, timeout=timeout, cwd=cwd, env=env)
        return _end_of(output, "execute_code_streaming")

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """A text file. Errors: those of `read_file`.

        Args:
            path: The file or folder, within the sandbox.
            encoding: The encoding of the text.

        Raises:
            UnicodeDecodeError: If the file is not text in that encoding. Read it as bytes.
        """
        return (await self.read_file(path)).decode(encoding)

    async def write_text(self, path: str, content: str, encoding: str = "utf-8") -> None:
        """Create or replace a text file. Errors: those of `write_file`.

        Args:
            path: The file or folder, within the sandbox.
            content: The text.
            encoding: The encoding of the text.
        """
        await self.write_file(path, content.encode(encoding))


async def _end_of(output: Output, who: str) -> ExecutionResult:
    async with aclosing(output) as pieces:
        async for piece in pieces:
            if isinstance(piece, ExecutionResult):
                return piece
    raise CommandFailed(f"{who}() did not yield an ExecutionResult")


def check_language(language: str) -> str:
    """The same language. Errors: `Invalid` unless it is a plain name."""
    if LANGUAGE_PATTERN.fullmatch(language) is None:
        raise Invalid("language contains invalid characters", got=language)
    return language


def validate_env_keys(env: Env) -> None:
    """Check the names of variables. Errors: `Invalid` for a name that no shell takes."""
    for name in env:
        if ENV_KEY_PATTERN.fullmatch(name) is None:
            raise Invalid("Invalid environment variable name", got=name)


def check_sandbox(sandbox: object) -> Sandbox:
    """The same sandbox. Errors: `TypeError` for anything else."""
    if not isinstance(sandbox, Sandbox):
        raise TypeError(f"sandbox must be a Sandbox instance, got {type(sandbox).__name__}")
    return sandbox
