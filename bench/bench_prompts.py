"""Prompts that are lost when a process is killed right after the models of many sessions have been asked.

A process asks 200 models at once, and is killed five milliseconds after the last one was asked. Nothing of such a turn
was acknowledged, so nothing is promised; who asks again must know whether the question is there. The limit is none.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import anyio

from bench.asked_models import place
from bench.harness import Figure, report

SESSIONS = 200
THEN_MS = 5
ROUNDS = 3


async def stored(kind: str, folder: Path) -> int:
    """The sessions whose prompt is found."""
    store = place(kind, folder).open_store()
    try:
        found = 0
        for info in await store.sessions():
            prompt = f"the prompt of {info.session_id}".encode()
            for agent_id in info.agents:
                found += any(prompt in row.body for row in await store.load(info.session_id, agent_id))
        return found
    finally:
        await store.aclose()


def gone(kind: str, how: str) -> int:
    """How many of the prompts are lost, at the median."""
    lost: list[int] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            asked = [sys.executable, "-m", "bench.asked_models", kind, folder, str(SESSIONS), how, str(THEN_MS)]
            subprocess.run(asked, check=False, timeout=120)
            lost.append(SESSIONS - anyio.run(stored, kind, Path(folder)))
    return sorted(lost)[len(lost) // 2]


def figures() -> list[Figure]:
    return [
        Figure(f"prompts gone of {SESSIONS}: {kind}, {how}", gone(kind, how), 1.0, 0.0, "prompts")
        for kind in ("sqlite", "log", "files")
        for how in ("bare", "runtime")
    ]


def main() -> int:
    return report(figures())


if __name__ == "__main__":
    sys.exit(main())
