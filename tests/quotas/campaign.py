"""Four processes on one quota, some of which are killed: the most of any window, and the share that was used.

python -m tests.quotas.campaign sqlite|postgres [WINDOW_S] [WINDOWS] [KILLS] [COSTS]
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from tests.postgres_server import shared_server
from tests.source_tree import ROOT

TOKENS = 1000
"""The quota of a window."""
PROCESSES = 4


def _pause(for_s: float) -> None:
    threading.Event().wait(for_s)


class Outcome(NamedTuple):
    most: float
    """The most tokens of a window, as a share of the quota."""
    used: float
    """The tokens of all windows, as a share of the quota."""
    calls: int


def run(
    kind: str, place: Path, *, window_s: float, windows: int, kills: int, rng: random.Random, costs: str = "10"
) -> Outcome:
    """Run the processes, and look at what they noted from the first call on."""
    notes = place / "notes"
    where = f"{place / 'quotas.db'}" if kind == "sqlite" else f"{shared_server().dsn()} schema:q{rng.getrandbits(40)}"
    arguments = (f"{kind} {where}", f"{TOKENS * 60 / window_s}", f"{window_s}", str(notes), costs)
    command = [sys.executable, "-m", "tests.quotas.calling_child", *arguments]
    running = [subprocess.Popen(command, cwd=ROOT) for _ in range(PROCESSES)]
    try:
        while not notes.exists():
            _pause(0.05)
        ends = time.time() + windows * window_s
        deaths = sorted(time.time() + rng.uniform(0.1, 0.9) * windows * window_s for _ in range(kills))
        for death in deaths:
            _pause(max(death - time.time(), 0))
            killed = running.pop(rng.randrange(PROCESSES))
            killed.kill()
            killed.wait()
            running.append(subprocess.Popen(command, cwd=ROOT))
        _pause(max(ends - time.time(), 0))
    finally:
        for process in running:
            process.kill()
            process.wait()
    used = sorted((float(at), float(tokens)) for at, tokens in map(str.split, notes.read_text().splitlines()))
    began = used[0][0]
    used = [each for each in used if each[0] < began + windows * window_s]
    most = first = total = 0.0
    for at, tokens in used:
        total += tokens
        while used[int(first)][0] <= at - window_s:
            total -= used[int(first)][1]
            first += 1
        most = max(most, total)
    return Outcome(most / TOKENS, sum(tokens for _, tokens in used) / (TOKENS * windows), len(used))


if __name__ == "__main__":
    kind, window_s, windows, kills, costs = (*sys.argv[1:], *("sqlite", "6", "5", "4", "10")[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        outcome = run(
            kind,
            Path(folder),
            window_s=float(window_s),
            windows=int(windows),
            kills=int(kills),
            rng=random.Random(),
            costs=costs,
        )
    print(f"{kind}: most of a window {outcome.most:.3f}, used {outcome.used:.3f}, calls {outcome.calls}")
