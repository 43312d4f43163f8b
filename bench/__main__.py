"""Run benchmarks: all `bench_*.py` and `recall`, or those named. A missed bar is printed, and fails with --strict.

Arguments that are not understood here are the benchmark's, so `python -m bench conservation --seeds 5` works.
Each benchmark runs in a process of its own, so that one cannot warm up, or spoil, the next.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).parent
_USAGE_ERROR = 2


def _modules() -> dict[str, str]:
    """Every benchmark by its short name; `bench_journal.py` is `journal`."""
    paths = [*sorted(_FOLDER.glob("bench_*.py")), _FOLDER / "recall.py"]
    return {path.stem.removeprefix("bench_"): path.stem for path in paths}


def _run(module: str, arguments: list[str]) -> int:
    program = f"import sys; from bench.{module} import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *arguments], cwd=_FOLDER.parent, check=False).returncode


def _selection(names: list[str]) -> list[str] | None:
    """The modules to run, or None when a name is unknown."""
    known = _modules()
    if not names:
        return list(known.values())
    by_name = {**known, **{path.stem: path.stem for path in _FOLDER.glob("[!_]*.py")}}
    chosen = [by_name.get(name, "") for name in names]
    if all(chosen):
        return chosen
    print(f"no such benchmark among {', '.join(names)}; there are: {', '.join(sorted(by_name)) or 'none'}")
    return None


def main() -> int:
    """Run what was asked for; 0, or 1 when a bar was missed and --strict was given, or 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run benchmarks.")
    parser.add_argument("names", nargs="*", help="benchmarks to run; all of bench_*.py without one")
    parser.add_argument("--strict", action="store_true", help="end with 1 when a bar was missed")
    parsed, rest = parser.parse_known_args()
    modules = _selection(parsed.names)
    if modules is None:
        return _USAGE_ERROR
    print(f"machine: {platform.platform()}, {os.cpu_count()} CPUs, Python {platform.python_version()}")
    missed: list[str] = []
    for module in modules:
        print(f"\n== {module}", flush=True)
        if _run(module, rest):
            missed.append(module)
    print(f"\n{len(modules)} run, missed: {', '.join(missed) or 'none'}")
    return 1 if missed and parsed.strict else 0


if __name__ == "__main__":
    sys.exit(main())
