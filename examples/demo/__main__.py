"""`make demo`: run the demonstration and print its checks. Exits with 1 when anything was lost."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import anyio

from examples.demo.demonstration import Demonstration, DemoSettings, Outcome
from repertory.app.host.model_choice import Chosen, choose_model
from repertory.errors import Invalid, NotFound, RepertoryError


def build_parser() -> argparse.ArgumentParser:
    """Every option, with its help."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Talk in several sessions, kill the worker in the middle of turns, and check that nothing is lost.",
    )
    parser.add_argument(
        "--model", help="'offline', a provider or provider:id (default: what the environment has, or offline)"
    )
    parser.add_argument(
        "--sessions", type=_whole_from(1), default=4, help="conversations at the same time (default: 4)"
    )
    parser.add_argument(
        "--seconds", type=_positive, default=12.0, help="how long they talk before the drain (default: 12)"
    )
    parser.add_argument(
        "--kills", type=_whole_from(0), help="how often the worker is killed (default: every other second)"
    )
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument("--dialogue", type=Path, default=DIALOGUE, help="a text file, one line per turn")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration. Returns the exit code: 0 when every check held, 1 when not."""
    options = build_parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    folder = Path(tempfile.mkdtemp(prefix="repertory-demo-"))
    try:
        good = _run(options, folder)
    except RepertoryError as error:
        print(f"demo: {error}", file=sys.stderr)
        good = False
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        return 128 + signal.SIGINT
    if good:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"demo: everything is kept in {folder}", file=sys.stderr)
    return 0 if good else 1


def _run(options: argparse.Namespace, folder: Path) -> bool:
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:5.1f} s  {line}", flush=True)

    choice = choose_model(options.model, offline=False, environ=os.environ)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    settings = DemoSettings(
        folder=folder,
        lines=read_dialogue(options.dialogue),
        model=choice if isinstance(choice, Chosen) else Chosen("offline"),
        seed=seed,
        sessions=options.sessions,
        seconds=options.seconds,
        kills=options.kills if options.kills is not None else max(2, round(options.seconds / 2)),
    )
    say(f"{settings.model.label}; {settings.sessions} sessions, {settings.kills} kills; seed {seed}")
    outcome = None
    try:
        outcome = anyio.run(Demonstration(settings, say).run)
    except* RepertoryError as errors:
        for error in errors.exceptions:
            print(f"demo: {error}", file=sys.stderr)
    if outcome is None:
        return False
    for line in report(outcome):
        print(line)
    return outcome.good


def report(outcome: Outcome) -> list[str]:
    """The outcome as a table, with every problem below it."""
    hit, answered = outcome.in_flight_at_drain, outcome.answered_in_drain
    lines = [
        "",
        f"drained: {hit} turns in flight at SIGTERM, {answered} of them answered; exit code {outcome.exit_code}",
    ]
    lines += [_phase_line(phase) for phase in outcome.drain.get("phases", ())]
    lines += ["", f"after {outcome.killed_in_turn} kills in the middle of turns"]
    lines += [f"  {count:4}  {what}" for what, count in sorted(outcome.resumed.items())] or ["  nothing had to go on"]
    lines += ["", f"{'checked':62}{'count':>6}{'wrong':>6}"]
    lines += [f"{one.claim:62}{one.count:6}{len(one.problems):6}" for one in outcome.checks]
    lines += [f"  WRONG {problem}" for one in outcome.checks for problem in one.problems]
    return [*lines, "", "nothing was lost" if outcome.good else "SOMETHING IS WRONG"]


def _phase_line(phase: Mapping[str, Any]) -> str:
    ended = "completed" if phase["completed"] else f"not completed: {phase['errors'] or phase['unfinished']}"
    return f"  {phase['name']:8} {phase['duration_s']:6.3f} s  {ended}"


def _whole_from(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"at least {least}")
        return value

    return number


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError("more than 0 and less than an hour")
    return value


def _end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the demonstration as Ctrl-C does: the worker is killed and the folder removed."""
    del number, frame
    signal.raise_signal(signal.SIGINT)


DIALOGUE = Path(__file__).parents[1] / "dialogue.txt"
"""The dialogue of the project. It is not part of an installed package."""


def read_dialogue(path: Path = DIALOGUE) -> list[str]:
    """The lines of a dialogue, in order, without comments. Errors: `NotFound`; `Invalid` when there are none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise NotFound("no dialogue there; name one with --dialogue", path=str(path)) from error
    lines = [line.strip() for line in text.splitlines()]
    said = [line for line in lines if line and not line.startswith("#")]
    if not said:
        raise Invalid("the dialogue has no lines", path=str(path))
    return said


if __name__ == "__main__":
    sys.exit(main())
