"""Sandboxes that are reached by a POSIX shell: containers, other machines. Files travel through it as base64."""

from __future__ import annotations

import binascii
import math
import shlex
import shutil
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import aclosing
from posixpath import dirname

import anyio

from repertory.backends.ports import Tool
from repertory.backends.sandbox_ports import (
    FILE_BYTES_MAX,
    Env,
    ExecutionResult,
    FileInfo,
    Output,
    Sandbox,
    check_language,
    validate_env_keys,
)
from repertory.backends.this_machine import TIMEOUT_S, stream_process
from repertory.backends.worker_threads import run_in_thread
from repertory.core.json_bytes import from_base64, to_base64
from repertory.errors import CommandFailed, FileFailed, Invalid, PathNotFound
from repertory.toolbox.commands import SANDBOX_SHELL_DESCRIPTION, make_shell
from repertory.toolbox.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION, make_file_editor

_PIECE = 65_536
"""Bytes of a file that travel in one command; a shell takes 128 KiB as one argument."""
READ_BYTES_MAX = 64 * 1024 * 1024
"""The largest file that is read: one can be larger than this process's memory, and take no room where it is."""
_FILE_S = 5 * TIMEOUT_S
"""The time of all commands that read or write one file."""
_NO_SUCH = 66
"""The exit code by which our own commands say that a path is not there."""

SSH_OPTIONS = frozenset(
    {
        "addressfamily",
        "ciphers",
        "compression",
        "connectionattempts",
        "connecttimeout",
        "hostkeyalgorithms",
        "identitiesonly",
        "ipqos",
        "kexalgorithms",
        "loglevel",
        "macs",
        "preferredauthentications",
        "pubkeyauthentication",
        "rekeylimit",
        "serveralivecountmax",
        "serveraliveinterval",
        "tcpkeepalive",
    }
)
"""Options of ssh, in lower case, that run nothing on this machine and open nothing on it."""


def build_shell_env_prefix(env: Env | None = None) -> str:
    """The prefix that sets variables for the rest of a command. Errors: `Invalid` for a name that no shell takes."""
    if not env:
        return ""
    validate_env_keys(env)
    return f"export {' '.join(f'{name}={shlex.quote(value)}' for name, value in env.items())} && "


class PosixShellSandbox(Sandbox):
    """A sandbox that is made of `execute_streaming` alone. The place needs `sh`, `base64`, `head`, `tail` and `ls`.

    A command for a file has 120 seconds, and all commands for one file together ten minutes: then `CommandTimeout`.

    Examples:
        >>> from repertory import DockerSandbox, PosixShellSandbox
        >>> issubclass(DockerSandbox, PosixShellSandbox)
        True
    """

    @abstractmethod
    def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Output:
        """Run a command of `sh`; see `Sandbox`. `build_shell_env_prefix` makes `env` part of a command."""

    def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Env | None = None,
    ) -> Output:
        """Run code that the interpreter reads from its input; see `Sandbox`."""
        command = f"echo {_written(code.encode())} | base64 -d | {check_language(language)}"
        return self.execute_streaming(command, timeout=timeout, cwd=cwd, env=env)

    async def read_file(self, path: str) -> bytes:
        """A file, in several commands if it is large.

        Raises:
            PathNotFound: If there is no such path. Check the path.
            FileFailed: If the command failed, or the file has more than 64 MiB. Read its cause.
        """
        return await self._read(path, READ_BYTES_MAX)

    async def read_text(self, path: str, encoding: str = "utf-8") -> str:
        """A text file. Errors: those of `read_file`, also for more than 1 MiB; `UnicodeDecodeError`."""
        return (await self._read(path, FILE_BYTES_MAX)).decode(encoding)

    async def _read(self, path: str, bytes_max: int) -> bytes:
        quoted, content, piece, until = _quoted(path), bytearray(), b"", anyio.current_time() + _FILE_S
        while not content or len(piece) == _PIECE:
            seen = f"[ -e {quoted} ] || exit {_NO_SUCH}; [ -f {quoted} ] && [ -r {quoted} ] || exit 1"
            done = await self._run(
                f"{seen}; tail -c +{len(content) + 1} {quoted} | head -c {_PIECE} | base64", path, "read", until
            )
            try:
                piece = from_base64("".join(done.stdout.split()))
            except (binascii.Error, ValueError) as error:
                raise FileFailed(f"Failed to decode base64 contents of file: {path}") from error
            content += piece
            if len(content) > bytes_max:
                raise FileFailed(f"File size exceeds maximum allowed size ({bytes_max} bytes)", path=path)
            if not piece:
                break
        return bytes(content)

    async def write_file(self, path: str, content: bytes) -> None:
        """Create or replace a file, in several commands if it is large, and the folders above it. Errors: a large file
        may then be there in part.

        Raises:
            FileFailed: If the command failed. Read its cause.
        """
        quoted, folder, into, until = _quoted(path), dirname(path), ">", anyio.current_time() + _FILE_S
        before = f"mkdir -p {_quoted(folder)} && " if folder else ""
        for at in range(0, len(content) or 1, _PIECE):
            piece = _written(content[at : at + _PIECE])
            command = f"{before}printf %s {piece or repr('')} | base64 -d {into} {quoted}"
            await self._run(command, path, "written", until)
            before, into = "", ">>"

    async def remove_file(self, path: str) -> None:
        """Delete one file.

        Raises:
            PathNotFound: If there is no such path. Check the path.
            FileFailed: If the command failed. Read its cause.
        """
        quoted = _quoted(path)
        await self._run(f"[ -e {quoted} ] || [ -L {quoted} ] || exit {_NO_SUCH}; rm {quoted}", path, "removed")

    async def list_files(self, path: str) -> list[FileInfo]:
        """The entries of a folder, by name; their sizes are not known.

        Raises:
            PathNotFound: If there is no such path. Check the path.
            FileFailed: If the command failed. Read its cause.
        """
        quoted = _quoted(path)
        done = await self._run(f"[ -d {quoted} ] || exit {_NO_SUCH}; ls -1Ap {quoted}", path, "listed")
        names = sorted(name for name in done.stdout.splitlines() if name)
        return [FileInfo(name.removesuffix("/"), name.endswith("/")) for name in names]

    async def _run(self, command: str, path: str, what: str, until: float = math.inf) -> ExecutionResult:
        """Run a command; its programs may be replaced ones, so it has a time. Errors: also `CommandTimeout`."""
        remaining_s = max(0.1, until - anyio.current_time())
        done = await self.execute(command, timeout=min(TIMEOUT_S, remaining_s))
        if done.exit_code == _NO_SUCH:
            raise PathNotFound("no such file or folder", path=path)
        if done.exit_code != 0:
            raise FileFailed(f"the file could not be {what}", path=path, error=done.stderr.strip()[-500:])
        return done


def _written(content: bytes) -> str:
    return to_base64(content)


def _quoted(path: str) -> str:
    return shlex.quote(f"./{path}" if path.startswith("-") else path)


def _tools(where: str) -> Sequence[Tool]:
    return (
        make_file_editor(name="sandbox_file_editor", description=f"{DEFAULT_FILE_EDITOR_DESCRIPTION} {where}"),
        make_shell(name="sandbox_shell", description=f"{SANDBOX_SHELL_DESCRIPTION} {where}"),
    )


async def _streamed(program: str, arguments: Sequence[str], timeout_s: float | None) -> Output:
    """Run a program, and give its output as it comes. Errors: `CommandFailed` when the program is not installed."""
    if await run_in_thread(lambda: shutil.which(program)) is None:
        raise CommandFailed(f"{program} is not installed or not on PATH")
    async with aclosing(stream_process([program, *arguments], timeout_s=timeout_s)) as pieces:
        async for piece in pieces:
            yield piece


class DockerSandbox(PosixShellSandbox):
    """A container that runs already, by its name or id. The program `docker` of this machine reaches it.

    A command that is cancelled or late is left: `docker` ends, and the container decides what becomes of the command.

    Examples:
        >>> from repertory import Agent, DockerSandbox, OfflineModel
        >>> agent = Agent(OfflineModel(), sandbox=DockerSandbox("builder", working_dir="/src"))
    """

    def __init__(self, container: str, *, user: str | None = None, working_dir: str | None = None) -> None:
        """
        Args:
            container: The container's name or id.
            user: The user that runs the commands; None for the container's own.
            working_dir: The folder in it where commands start; None for the container's own.
        """
        self.container = container
        self.user = user
        self.working_dir = working_dir

    def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Output:
        """Run a command of the container's `sh`; see `Sandbox`."""
        validate_env_keys(env or {})
        folder = cwd or self.working_dir
        options = [*(["--user", self.user] if self.user else ()), *(["-w", folder] if folder else ())]
        for name, value in (env or {}).items():
            options += ["-e", f"{name}={value}"]
        return _streamed("docker", ["exec", *options, "--", self.container, "sh", "-c", command], timeout)

    def get_tools(self) -> Sequence[Tool]:
        """`sandbox_file_editor` and `sandbox_shell`."""
        return _tools(f"All of this happens in the container {self.container}.")


class SshSandbox(PosixShellSandbox):
    """Another machine, by the program `ssh` of this one, which never asks for a password.

    A command that is cancelled or late is left: `ssh` ends, and the machine decides what becomes of the command.

    Examples:
        >>> from repertory import Agent, OfflineModel, SshSandbox
        >>> agent = Agent(OfflineModel(), sandbox=SshSandbox("build.example.com", working_dir="/src"))
    """

    def __init__(
        self,
        host: str,
        *,
        working_dir: str,
        port: int = 22,
        identity_file: str | None = None,
        allow_unknown_hosts: bool = False,
        ssh_options: Sequence[str] = (),
        allow_unsafe_ssh_options: bool = False,
    ) -> None:
        """
        Args:
            host: The host, as ssh takes it: `HOST` or `USER@HOST`.
            working_dir: The folder in which commands run.
            port: The port of the server.
            identity_file: The private key; None for what ssh finds itself.
            allow_unknown_hosts: True also connects to a host whose key has changed.
            ssh_options: `Name=value`, of those in `SSH_OPTIONS` unless `allow_unsafe_ssh_options`.
            allow_unsafe_ssh_options: True takes any option of ssh, also those that run programs on this machine.

        Raises:
            Invalid: For other options. Correct the argument.
        """
        for option in () if allow_unsafe_ssh_options else ssh_options:
            if option.partition("=")[0].strip().lower() not in SSH_OPTIONS or "\n" in option:
                raise Invalid("this option of ssh is not allowed", option=option)
        self.host = host
        self.working_dir = working_dir
        checked = "no" if allow_unknown_hosts else "accept-new"
        self._arguments = ["-o", f"StrictHostKeyChecking={checked}", "-o", "BatchMode=yes", "-p", str(port)]
        if identity_file is not None:
            self._arguments += ["-i", identity_file]
        for option in ssh_options:
            self._arguments += ["-o", option]

    def execute_streaming(
        self, command: str, *, timeout: float | None = None, cwd: str | None = None, env: Env | None = None
    ) -> Output:
        """Run a command of the machine's shell; see `Sandbox`."""
        whole = f"cd {shlex.quote(cwd or self.working_dir)} && {build_shell_env_prefix(env)}{command}"
        return _streamed("ssh", [*self._arguments, "--", self.host, whole], timeout)

    def get_tools(self) -> Sequence[Tool]:
        """`sandbox_file_editor` and `sandbox_shell`."""
        return _tools(f"All of this happens on {self.host}, in {self.working_dir}.")
