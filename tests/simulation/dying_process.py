"""A process that says what it acknowledges, a line each, until it is killed."""

from __future__ import annotations

import signal
import subprocess
import threading


class DyingProcess:
    """A program, and the lines that it has printed by the time it was killed. Half a line is none."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                self._lines.append(line.strip())
                self._first.set()
        self._first.set()

    def kill_after(self, seconds: float) -> list[str]:
        """Kill it so many seconds after its first line."""
        assert self._first.wait(30)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self.ended()

    def ended(self) -> list[str]:
        """Its lines, when it has been killed."""
        code = self.process.wait(30)
        self._reader.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert code == -signal.SIGKILL
        return self._lines
