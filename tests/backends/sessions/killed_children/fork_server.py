"""Processes that are forked of one that has imported a program once: real ones, to be stopped and killed.

The server is a process of its own with one thread and no event loop, since a fork copies neither well. It is asked over
a socket: for a child that calls `main` of its module with these arguments, or for the end of one. It keeps a dead child
until it is asked for, so the number of a process is nobody else's meanwhile.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]


class ForkedProcess:
    """A child: what it writes to its standard output, and what `subprocess.Popen` does with a process."""

    def __init__(self, server: ForkServer, pid: int, output: int) -> None:
        self.stdout = os.fdopen(output, encoding="utf-8")
        self._server, self._pid = server, pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """How it has ended, as in `subprocess`: minus the number of a signal; None if it lives."""
        return self._ended("poll")

    def wait(self) -> int:
        """How it has ended, when it has."""
        code = self._ended("wait")
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self._pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Kill it if it lives, and wait for its end."""
        self.kill()
        self.wait()
        self.stdout.close()

    def _ended(self, question: str) -> int | None:
        if self._code is None:
            self._code = self._server.ask({"do": question, "pid": self._pid})
        return self._code


class ForkServer:
    """A running server of a module, which has `main`, called with the arguments of a child.

    Args:
        module: The name of the module, which is imported once.
        environment: That of the server, and of its children.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._turn = threading.Lock()
        with theirs:
            command = [sys.executable, __file__, module, str(theirs.fileno())]
            variables = {"PYTHONPATH": str(ROOT), **environment}
            self._process = subprocess.Popen(command, cwd=ROOT, env=variables, pass_fds=[theirs.fileno()])

    def start(self, *arguments: str) -> ForkedProcess:
        """A child with these arguments."""
        read, write = os.pipe()
        try:
            pid = self.ask({"do": "fork", "arguments": arguments}, write)
        finally:
            os.close(write)
        return ForkedProcess(self, pid, read)

    def ask(self, question: Mapping[str, Any], *files: int) -> Any:
        """What the server answers."""
        with self._turn:
            socket.send_fds(self._socket, [json.dumps(question).encode()], files)
            answer = self._socket.recv(1000)
        assert answer, "the server has ended"
        return json.loads(answer)

    def close(self) -> None:
        """End the server. Its children are dead, or are killed."""
        self._socket.close()
        assert self._process.wait(60) == 0


def serve(module: str, questions: socket.socket) -> None:
    main = importlib.import_module(module).main
    children = set[int]()
    while True:
        message, files, _, _ = socket.recv_fds(questions, 100_000, 1)
        if not message:
            break
        question = json.loads(message)
        if question["do"] == "fork":
            pid = os.fork()
            if not pid:
                _be_child(main, question["arguments"], questions, files[0])
            os.close(files[0])
            children.add(pid)
            answer: int | None = pid
        else:
            pid, status = os.waitpid(question["pid"], os.WNOHANG if question["do"] == "poll" else 0)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            children.discard(pid)
        questions.send(json.dumps(answer).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _be_child(main: Any, arguments: Sequence[str], questions: socket.socket, output: int) -> None:
    questions.close()
    os.dup2(output, 1)
    os.close(output)
    try:
        main(*arguments)
    finally:
        # Whatever it has met, a child must not go on as a server, nor end as one.
        if failed := sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(failed)


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
