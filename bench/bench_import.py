"""What `import repertory` costs, and `from repertory import Agent`, beside an interpreter with anyio and sqlite3."""

from __future__ import annotations

import subprocess
import sys

from bench.harness import Figure, interleaved, report

_WHOLE = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run([sys.executable, "-c", {!r}], check=True)
print((time.perf_counter() - began) * 1000, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
"""


def process(statement: str) -> tuple[float, float]:
    """Milliseconds and peak MB of an interpreter that runs the statement."""
    done = subprocess.run([sys.executable, "-c", _WHOLE.format(statement)], check=True, capture_output=True, text=True)
    milliseconds, megabytes = done.stdout.split()
    return float(milliseconds), float(megabytes)


def main() -> int:
    statements = {
        "bare": "pass",
        "base": "import anyio, sqlite3",
        "package": "import repertory",
        "Agent": "from repertory import Agent, Runtime, tool",
        "made": "from repertory import Agent, OfflineModel; Agent(OfflineModel())",
    }
    times = interleaved({name: (lambda s=statement: process(s)[0]) for name, statement in statements.items()}, rounds=9)
    memory = interleaved(
        {name: (lambda s=statement: process(s)[1]) for name, statement in statements.items()}, rounds=3
    )
    return report(
        [
            Figure("bare interpreter, whole process", times["bare"], 1.0, None, "ms"),
            Figure("import repertory, whole process", times["package"], 1.0, 120.0, "ms"),
            Figure("import anyio and sqlite3, whole process", times["base"], times["bare"], None, "ms"),
            Figure("import Agent, Runtime, tool / anyio and sqlite3", times["Agent"], times["base"], None, "ms"),
            Figure("make the first agent / anyio and sqlite3", times["made"], times["base"], None, "ms"),
            Figure("import repertory, peak memory", memory["package"], 1.0, 32.0, "MB"),
            Figure("import Agent, Runtime, tool, peak memory", memory["Agent"], 1.0, 32.0, "MB"),
            Figure("make the first agent, peak memory", memory["made"], 1.0, 32.0, "MB"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
