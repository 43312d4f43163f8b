"""One program for every library that is compared: the same turns, the same tool, the same measurements.

Each library has a file beside this one, which says how it runs a turn and what it has stored. That file runs in an
environment of its own:

    python bench/compared/langgraph_sqlite.py turns FOLDER WRITER COUNT
    python bench/compared/langgraph_sqlite.py resume FOLDER
    python bench/compared/langgraph_sqlite.py prompts FOLDER
    python bench/compared/langgraph_sqlite.py cost FOLDER COUNT

A turn is a prompt, a model that asks for the tool `note`, the tool, and an answer: four messages. The model answers at
once, and is on no network.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path

SESSION = "shared"
PAUSE_S = 0.004
"""How long the tool takes, so that a kill can hit it."""
EARLY_TURN, AROUND = 10, 4
"""A cost is the median of a turn and so many on either side of it."""
COSTS = ("cpu_ms", "written_kib", "stall_ms")


class Subject(ABC):
    """A library under comparison, with its own durable place of sessions in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    async def turn(self, prompt: str) -> None:
        """Run one turn of the session and return when the library says that it is over."""

    @abstractmethod
    async def prompts(self) -> list[str]:
        """The prompts of the session that a new process finds."""

    @abstractmethod
    async def resume(self) -> None:
        """Go on with a turn that a killed process left, in the way that the library's documents name.

        Where they name none, the prompt is sent again.
        """

    async def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Leave in the way that the library's documents name."""


class Tool:
    """What the tool does: it leaves a line in a file, and takes a moment. Under `park` it never returns."""

    def __init__(self, folder: Path) -> None:
        self._effects = folder / "effects"
        self._park = folder / "park"

    async def __call__(self, text: str) -> str:
        append(self._effects, text)
        await asyncio.sleep(3600 if self._park.exists() else PAUSE_S)
        return "noted"


def append(path: Path, line: str) -> None:
    """Write one line at the end of a file that others write as well."""
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


async def _turns(subject: Subject, writer: str, count: int) -> None:
    for number in range(count):
        prompt = f"{writer}-{number}"
        append(subject.folder / "asked", prompt)
        try:
            await subject.turn(prompt)
        except Exception as error:  # noqa: BLE001 - whatever a library refuses a turn with is counted
            append(subject.folder / "refused", f"{prompt} {type(error).__name__}")
        else:
            append(subject.folder / "answered", prompt)
    await subject.close()


async def _cost(subject: Subject, count: int) -> dict[str, float]:
    """Medians of a turn: of the 10th, and after `count` turns, there with the longest stall of the event loop too."""
    for number in range(EARLY_TURN - AROUND - 1):
        await subject.turn(f"first-{number}")
    early = await _turn_costs(subject, "early")
    for number in range(count - EARLY_TURN - AROUND):
        await subject.turn(f"before-{number}")
    late = await _turn_costs(subject, "measured")
    await subject.close()
    return {"early_ms": early["ms"], "late_ms": late["ms"], **{name: late[name] for name in COSTS}}


async def _turn_costs(subject: Subject, name: str) -> dict[str, float]:
    longest = 0.0
    stop = False

    async def heart() -> None:
        nonlocal longest
        before = time.perf_counter()
        while not stop:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            longest = max(longest, now - before - 0.001)
            before = now

    beating = asyncio.create_task(heart())
    spent: list[tuple[float, float, float, float]] = []
    for number in range(2 * AROUND + 1):
        began, cpu, written, longest = time.perf_counter(), time.process_time(), _written(), 0.0
        await subject.turn(f"{name}-{number}")
        wall_ms, cpu_ms = (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000
        spent.append((wall_ms, cpu_ms, (_written() - written) / 1024, longest * 1000))
    stop = True
    await beating
    medians = [sorted(column)[AROUND] for column in zip(*spent, strict=True)]
    return dict(zip(("ms", *COSTS), medians, strict=True))


def _written() -> int:
    """Bytes that this process has handed to the kernel so far, threads included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


def main(subject: type[Subject]) -> None:
    """Carry out one command."""
    command, folder, *rest = sys.argv[1:]
    opened = subject(Path(folder))
    if command == "turns":
        asyncio.run(_turns(opened, rest[0], int(rest[1])))
    elif command == "resume":
        asyncio.run(opened.resume())
    elif command == "prompts":
        print(json.dumps(asyncio.run(opened.prompts())))
    elif command == "cost":
        print(json.dumps(asyncio.run(_cost(opened, int(rest[0])))))
    sys.stdout.flush()
    os._exit(0)  # no library's threads are waited for
