"""aimock (npm, `tests/peers`) as a server for one test module: started on a free port, ended with it.

aimock answers Converse, Messages and Chat Completions from fixtures, on loopback HTTP. `make peers` installs it.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
_PROGRAM = _HERE.parents[1] / "peers/node_modules/@copilotkit/aimock/dist/cli.js"
_START_TIMEOUT_S = 20.0


@contextmanager
def aimock(fixtures: list[dict[str, Any]], folder: Path, *options: str) -> Iterator[str]:
    """The URL of a running aimock that serves these fixtures. Skips, saying so, where node or aimock is missing."""
    node = shutil.which("node")
    if node is None or not _PROGRAM.exists():
        missing = "node is not on PATH" if node is None else "aimock is not installed: run `make peers`"
        pytest.skip(f"*** NOT TESTED against aimock: {missing} ***")
    file = folder / "fixtures.json"
    file.write_text(json.dumps({"fixtures": fixtures}))
    port = _free_port()
    preload = (_HERE / "no_empty_start.mjs").as_uri()
    program = [node, "--import", preload, str(_PROGRAM)]
    command = [*program, "-p", str(port), "-f", str(file), "--log-level", "warn", *options]
    with (folder / "aimock.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _wait_until_ready(process, port, folder / "aimock.log")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"aimock ended with {process.returncode}: {log.read_text()}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1):
                return
        except ConnectionRefusedError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.05)
    pytest.fail(f"aimock did not answer on port {port}: {log.read_text()}")
