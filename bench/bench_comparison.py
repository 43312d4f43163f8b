"""Repertory beside other libraries that keep sessions: what kills and second writers cost, and what a turn costs.

Each library runs in an environment of its own (`bench/compared/*-requirements.txt`), with the same model, the same tool
and its own durable sessions on this disk. `--write` stores the figures in bench/compared/results.json and renews the
table of README.md; without it they are only printed.

    python -m bench comparison [--kills 20] [--turns 250] [--write]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.harness import Figure, report

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "compared"
RESULTS = FOLDER / "results.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- comparison: python -m bench comparison --write -->", "<!-- comparison ends -->"
WRITERS_TURNS = 25
DEADLINE_S = 300


@dataclass(frozen=True)
class Library:
    """One library: the program that runs it, its environment, and the packages whose versions count."""

    title: str
    sessions: str
    program: str
    environment: str | None
    packages: tuple[str, ...]


LIBRARIES = (
    Library("Repertory", "SQLite", "repertory_sqlite", None, ("repertory",)),
    Library("Repertory", "files", "repertory_files", None, ("repertory",)),
    Library("Strands Agents", "files", "strands_files", "compared", ("strands-agents",)),
    Library("LangGraph", "SQLite", "langgraph_sqlite", "compared", ("langgraph", "langgraph-checkpoint-sqlite")),
    Library("OpenAI Agents SDK", "SQLite", "openai_agents_sqlite", "compared", ("openai-agents",)),
    Library("Google ADK", "SQLite", "google_adk_sqlite", "adk", ("google-adk",)),
)


@dataclass(frozen=True)
class Row:
    """What was measured of one library."""

    title: str
    sessions: str
    versions: dict[str, str]
    kills: int
    answered: int
    answered_lost: int
    """Prompts whose call had returned, and that no new process finds."""
    asked_lost: int
    """Prompts whose call was running at a kill, and that no new process finds."""
    written_by_two: int
    """Turns of two processes whose calls returned, without an error."""
    kept_of_two: int
    """How many of their prompts a new process finds."""
    refused_to_two: int
    """Turns of the two that ended with an error, which a caller can act on."""
    tool_ran: int
    """How often a tool ran that was killed while it ran, after a new process went on."""
    tool_asked: bool
    """Whether that process asked before it ran the tool again."""
    early_ms: float
    """Of the 10th turn, by the clock."""
    late_ms: float
    cpu_ms: float
    written_kib: float
    stall_ms: float


def _interpreter(library: Library) -> Path:
    """The interpreter of a library's environment, which is made if it is missing."""
    if library.environment is None:
        return Path(sys.executable)
    place = FOLDER / "environments" / library.environment
    python = place / "bin" / "python"
    needs = FOLDER / f"{library.environment}-requirements.txt"
    stamp = place / "installed"
    if not stamp.exists() or stamp.read_bytes() != needs.read_bytes():
        print(f"comparison: installing {needs.name}", flush=True)
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--require-hashes", "--requirement", str(needs)]
        subprocess.run(install, check=True)
        stamp.write_bytes(needs.read_bytes())
    return python


def _start(library: Library, *arguments: str) -> subprocess.Popen[str]:
    command = [str(_interpreter(library)), str(FOLDER / f"{library.program}.py"), *arguments]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "OTEL_SDK_DISABLED": "true"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=settings)


def _run(library: Library, *arguments: str) -> str:
    """The last line that a program printed; a program that fails ends the benchmark with what it said."""
    process = _start(library, *arguments)
    out, err = process.communicate(timeout=DEADLINE_S)
    if process.returncode != 0:
        sys.exit(f"comparison: {library.title} {arguments[0]} failed:\n{out}{err}")
    return out.strip().splitlines()[-1] if out.strip() else ""


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _kills(library: Library, folder: Path, kills: int, chance: random.Random) -> tuple[set[str], set[str], set[str]]:
    """Prompts answered, asked, and found, after processes of one session were killed at random moments."""
    asked = folder / "asked"
    for number in range(kills):
        before = len(_lines(asked))
        process = _start(library, "turns", str(folder), f"killed{number}", "1000")
        until = time.monotonic() + 60
        while len(_lines(asked)) < before + 3 and process.poll() is None and time.monotonic() < until:
            time.sleep(0.005)
        time.sleep(chance.uniform(0.0, 0.06))
        process.send_signal(signal.SIGKILL)
        process.communicate()
    found = set(json.loads(_run(library, "prompts", str(folder))))
    return set(_lines(folder / "answered")), set(_lines(asked)), found


def _two_writers(library: Library, folder: Path) -> tuple[int, int, int]:
    """Turns of two processes on one session: reported done, found, and refused with an error."""
    pair = [_start(library, "turns", str(folder), name, str(WRITERS_TURNS)) for name in ("left", "right")]
    for process in pair:
        process.communicate(timeout=DEADLINE_S)
    answered = set(_lines(folder / "answered"))
    found = set(json.loads(_run(library, "prompts", str(folder))))
    return len(answered), len(answered & found), len(_lines(folder / "refused"))


def _killed_tool(library: Library, folder: Path) -> tuple[int, bool]:
    """How often a tool ran that was killed in its middle, after a new process went on; whether it asked first."""
    (folder / "park").touch()
    process = _start(library, "turns", str(folder), "parked", "1")
    until = time.monotonic() + 60
    while not _lines(folder / "effects") and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (folder / "park").unlink()
    _run(library, "resume", str(folder))
    return Counter(_lines(folder / "effects"))["parked-0"], (folder / "interrupted").exists()


def _versions(library: Library) -> dict[str, str]:
    program = "import json, sys; from importlib.metadata import version; "
    program += "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    command = [str(_interpreter(library)), "-c", program, *library.packages]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(library: Library, place: Path, kills: int, turns: int) -> Row:
    """Everything about one library, in folders of its own."""
    folders = {name: place / library.program / name for name in ("kills", "two", "tool", "cost")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    answered, asked, found = _kills(library, folders["kills"], kills, random.Random(7))
    written, kept, refused = _two_writers(library, folders["two"])
    ran, interrupted = _killed_tool(library, folders["tool"])
    cost = json.loads(_run(library, "cost", str(folders["cost"]), str(turns)))
    return Row(
        title=library.title,
        sessions=library.sessions,
        versions=_versions(library),
        kills=kills,
        answered=len(answered),
        answered_lost=len(answered - found),
        asked_lost=len(asked - answered - found),
        written_by_two=written,
        kept_of_two=kept,
        refused_to_two=refused,
        tool_ran=ran,
        tool_asked=interrupted,
        **cost,
    )


def table(results: dict[str, Any]) -> str:
    """The Markdown of the figures, as README.md has it."""
    rows = [Row(**row) for row in results["rows"]]
    turns = results["turns"]

    def line(name: str, cells: list[str]) -> str:
        return f"| {name} | {' | '.join(cells)} |"

    def tool(row: Row) -> str:
        return "asks first" if row.tool_asked else ("runs it again" if row.tool_ran > 1 else "runs it once")

    heads = [f"{row.title} {next(iter(row.versions.values()))}, {row.sessions}" for row in rows]
    kills = rows[0].kills
    return "\n".join(
        [
            line("", heads),
            "|---" * (len(rows) + 1) + "|",
            line(
                f"{kills} processes killed: answered turns that are gone",
                [f"{r.answered_lost} of {r.answered}" for r in rows],
            ),
            line(
                "The same: prompts that were being answered, and are gone", [f"{r.asked_lost} of {kills}" for r in rows]
            ),
            line(
                "Two processes, one session: answered turns that are kept",
                [f"{r.kept_of_two} of {r.written_by_two}" for r in rows],
            ),
            line("The same: calls that ended with an error", [str(r.refused_to_two) for r in rows]),
            line("A tool that was killed while it ran, when the turn goes on", [tool(r) for r in rows]),
            line("Time of the 10th turn with a tool of 4 ms", [f"{r.early_ms:.1f} ms" for r in rows]),
            line(f"Time of such a turn after {turns} turns", [f"{r.late_ms:.1f} ms" for r in rows]),
            line("CPU of that turn", [f"{r.cpu_ms:.1f} ms" for r in rows]),
            line("Written to files by that turn", [f"{r.written_kib:.0f} KiB" for r in rows]),
            line("Longest wait of the event loop in it", [f"{r.stall_ms:.1f} ms" for r in rows]),
            "",
            f"Measured on {results['date']} by `python -m bench comparison`, on {results['machine']}.",
        ]
    )


def renewed(text: str, results: dict[str, Any]) -> str:
    """A document with its table renewed."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{BEGIN}\n\n{table(results)}\n\n{END}", text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench comparison", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--turns", type=int, default=250)
    parser.add_argument("--write", action="store_true", help="store the figures, and renew the table of README.md")
    options, _ = parser.parse_known_args()
    try:
        for library in LIBRARIES:
            _interpreter(library)
    except subprocess.CalledProcessError as error:
        print(f"comparison: NOT MEASURED: the other libraries cannot be installed: {error}")
        return 0
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="repertory-comparison-", dir=ROOT / "build") as place:
        rows = [measure(library, Path(place), options.kills, options.turns) for library in LIBRARIES]
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} shared cores, {platform.system()}, Python {platform.python_version()}",
        "turns": options.turns,
        "rows": [asdict(row) for row in rows],
    }
    print(table(results))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        README.write_text(renewed(README.read_text(encoding="utf-8"), results), encoding="utf-8")
    ours, files, others = rows[0], rows[1], rows[2:]
    return report(
        [
            Figure("answered turns lost at kills", ours.answered_lost + files.answered_lost, 1.0, 0.0, "turns"),
            Figure("two writers: kept / answered", ours.kept_of_two, ours.written_by_two, 1.0, "turns", "higher"),
            Figure("the same in files", files.kept_of_two, files.written_by_two, 1.0, "turns", "higher"),
            Figure("files, the 10th turn / Strands Agents", files.early_ms, others[0].early_ms, None, "ms"),
            Figure("CPU of a turn / best of the others", ours.cpu_ms, min(r.cpu_ms for r in others), 1.0, "ms"),
            Figure("event loop / best of the others", ours.stall_ms, min(r.stall_ms for r in others), None, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
