"""How long a service takes to end with turns in flight: SIGTERM to the end of its process.

`repertory serve` has 200 turns of 200 ms in flight, each for a client of its own. The limit is measured in the same
rounds: what is left of a turn when the signal comes (all of it), and the exit of a Python process that does nothing but
wait for a signal. No client may be without its answer.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.bench_session import folder
from bench.harness import Figure, report

TURNS = 200
TURN_S = 0.2
ROUNDS = 7
BAR_S = 0.28
PATIENCE_S = 30.0
_CONFIGURATION = f"""
[agents.clerk]
model = {{ python = "slow_clerk:Slow" }}
[sessions]
kind = "sqlite"
path = "agents.db"
[service]
port = 0
loop = "LOOP"
limits = {{ concurrent = {2 * TURNS}, rate_per_s = 100000, burst = 100000 }}
"""
_MODEL = f"""
import anyio
from repertory import Model

class Slow(Model):
    begun = 0

    def get_config(self):
        return {{}}

    def update_config(self, **changes):
        pass

    async def stream(self, messages, tool_specs=None, system_prompt=None, **options):
        Slow.begun += 1
        if Slow.begun == {TURNS}:
            print("all turns run", flush=True)
        await anyio.sleep({TURN_S})
        yield {{"messageStart": {{"role": "assistant"}}}}
        yield {{"contentBlockStart": {{"contentBlockIndex": 0, "start": {{}}}}}}
        yield {{"contentBlockDelta": {{"contentBlockIndex": 0, "delta": {{"text": "done"}}}}}}
        yield {{"contentBlockStop": {{"contentBlockIndex": 0}}}}
        yield {{"messageStop": {{"stopReason": "end_turn"}}}}
"""
_IDLE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", flush=True)
signal.pause()
"""


def empty_exit_s() -> float:
    """Seconds from SIGTERM to the end of a process that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", _IDLE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    began = time.perf_counter()
    process.send_signal(signal.SIGTERM)
    process.wait(PATIENCE_S)
    return time.perf_counter() - began


def stop_s(where: Path, loop: str) -> tuple[float, int]:
    """Seconds from SIGTERM to the end of the service, and how many clients had no answer."""
    where.mkdir()
    (where / "repertory.toml").write_text(_CONFIGURATION.replace("LOOP", loop))
    (where / "slow_clerk.py").write_text(_MODEL)
    command = [sys.executable, "-m", "repertory.console.main", "serve"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, cwd=where, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as service:
        assert service.stdout is not None
        port = next(int(found[1]) for line in service.stdout if (found := re.search(r"at http://[\d.]+:(\d+)/", line)))
        together = threading.Barrier(TURNS)
        with ThreadPoolExecutor(TURNS) as clients:
            calls = [clients.submit(_call, port, number, together) for number in range(TURNS)]
            for line in service.stdout:
                if "all turns run" in line:
                    break
            began = time.perf_counter()
            service.send_signal(signal.SIGTERM)
            code = service.wait(PATIENCE_S)
            taken = time.perf_counter() - began
            lost = sum(call.result() != "done" for call in calls)
        return taken, lost + (code != 0)


def _call(port: int, number: int, together: threading.Barrier) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.connect()
    together.wait(PATIENCE_S)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/v1/agents/clerk/sessions/s{number}/turns", json.dumps({"prompt": "x"}), headers)
    try:
        return str(json.loads(connection.getresponse().read()).get("text"))
    except (http.client.HTTPException, OSError):
        return ""
    finally:
        connection.close()


def main() -> int:
    """Print the table; 1 when a bar was missed, or an answer was lost."""
    taken: dict[str, list[float]] = {"asyncio": [], "trio": []}
    empty: list[float] = []
    lost = 0
    with folder() as where:
        for number in range(ROUNDS):
            empty.append(empty_exit_s())
            for loop, times in taken.items():
                seconds, without_answer = stop_s(where / f"{loop}{number}", loop)
                times.append(seconds)
                lost += without_answer
    limit_s = TURN_S + statistics.median(empty)
    figures = [
        Figure(f"SIGTERM with {TURNS} turns, {loop} / a turn and an exit", statistics.median(times), limit_s, None, "s")
        for loop, times in taken.items()
    ]
    figures += [Figure(f"the same, {loop}", statistics.median(times), BAR_S, 1.0, "s") for loop, times in taken.items()]
    figures.append(Figure("answers that were lost, and wrong exit codes", float(lost), 1.0, 0.0, ""))
    return report(figures)


if __name__ == "__main__":
    sys.exit(main())
