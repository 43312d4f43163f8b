"""What `import repertory` costs, and `from repertory import Agent`, beside a bare interpreter."""

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
    statements = {"bare": "pass", "package": "import repertory", "Agent": "from repertory import Agent, Runtime, tool"}
    times = interleaved({name: (lambda s=statement: process(s)[0]) for name, statement in statements.items()}, rounds=9)
    memory = interleaved(
        {name: (lambda s=statement: process(s)[1]) for name, statement in statements.items()}, rounds=3
    )
    return report(
        [
            Figure("bare interpreter, whole process", times["bare"], 1.0, None, "ms"),
            Figure("import repertory, whole process", times["package"], 1.0, 120.0, "ms"),
            Figure("import Agent, Runtime, tool, whole process", times["Agent"], 1.0, 120.0, "ms"),
            Figure("import repertory, peak memory", memory["package"], 1.0, 32.0, "MB"),
            Figure("import Agent, Runtime, tool, peak memory", memory["Agent"], 1.0, 32.0, "MB"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
