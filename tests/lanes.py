"""Which tests `make test` and `make fast` run, and where the time of a run went.

A whole run (`--alternate-loops`, as `make test` says) has every test in it, with every case: in `tests/runtime` and
`tests/actors`, where loops differ, on both event loops, elsewhere on one of them, and under `make soak` on the other
one (`--other-loops`). Without either option a test runs on both.

The fast lane looks at every file of tests but those of the documents, which `make check` runs, and at nearly every test
in it, in one case each where that is enough:

- as in a whole run, a test runs on one loop, but in `tests/runtime` and `tests/actors`;
- of a test that takes longer than `ONE_CASE_S`, or is in a file of very many cases, one case runs;
- one that takes longer than `LEFT_OUT_S` is left out, unless nothing else would be left of its file, and one that takes
  longer than `TOO_LONG_S` in any case.

Which case and which loop is decided by the test's name, so that loops, stores and seeds are mixed in the lane, and are
the same in every process and on every day. How long tests take stands in `slow.txt`, which a whole run of the suite on
a quiet machine writes anew: `make test ARGS=--note-slow`.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.source_tree import FOREIGN

BOTH_LOOPS = ("tests/runtime/", "tests/actors/")
MANY = (
    "tests/backends/encryption/test_sealed_store_contract.py",
    "tests/backends/models/test_gemini_answers.py",
    "tests/backends/models/test_sdk_aimock.py",
    "tests/backends/models/test_sdk_models.py",
    "tests/backends/objects/test_object_store_contract.py",
    "tests/worker/test_queue_contract.py",
    "tests/backends/sessions/test_agentcore_contract.py",
    "tests/backends/sessions/test_lost_connections.py",
    "tests/backends/sessions/test_message_tree_contract.py",
    "tests/backends/sessions/test_object_contract.py",
    "tests/backends/sessions/test_postgres_contract.py",
    "tests/backends/sessions/test_shared_contract.py",
    "tests/backends/sessions/test_snapshot_contract.py",
)
ONE_CASE_S = 0.05
LEFT_OUT_S = 0.1
TOO_LONG_S = 3.0
DOCUMENTS = "tests/docs/"
SLOWEST = 20
SLOW = Path(__file__).with_name("slow.txt")


def read_slow() -> dict[str, float]:
    """Seconds that one case takes, of every test that is slow."""
    lines = (line.split(maxsplit=1) for line in SLOW.read_text().splitlines())
    return {name: float(seconds) for seconds, name in lines}


def fast_lane(items: Sequence[pytest.Item], slow: Mapping[str, float]) -> list[pytest.Item]:
    """The tests of the lane, in their order."""
    items = [item for item in items if not item.nodeid.startswith(DOCUMENTS)]
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(map(_test, items)):
        by_file[name.partition("::")[0]].append(name)
    left_out: set[str] = set()
    for names in by_file.values():
        long = [name for name in names if slow.get(name, 0.0) > LEFT_OUT_S]
        stays = min(long, key=slow.__getitem__) if len(long) == len(names) else None
        left_out.update(name for name in long if name != stays or slow[name] > TOO_LONG_S)
    choices: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _test(item) not in left_out:
            choices[_choice(item, slow)].append(item)
    kept = {id(cases[zlib.crc32(name.encode()) % len(cases)]) for name, cases in choices.items()}
    return [item for item in items if id(item) in kept]


def alternated(items: Sequence[pytest.Item], *, other: bool = False) -> list[pytest.Item]:
    """The tests of a whole run, in their order. `other`: those that it leaves out, instead."""
    by_case: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        by_case[_loopless(item)].append(item)
    left_out = {
        id(case)
        for name, cases in by_case.items()
        for number, case in enumerate(cases)
        if number != zlib.crc32(name.encode()) % len(cases)
    }
    return [item for item in items if (id(item) in left_out) is other]


def import_share(worker: int, workers: int, ignored: Sequence[str] = ()) -> None:
    """Import a worker's share of the files of tests, before it collects all of them but those in `ignored`.

    pytest compiles a file anew for its `assert`, and keeps the result beside it. Workers that begin with the same file
    at the same moment all compile each: in a fresh clone that was a third of what the workers do until the first test.
    """
    above = {Path(each).absolute() for each in ignored}
    files = (path for path in SLOW.parent.rglob("test_*.py") if FOREIGN.isdisjoint(path.parts))
    for path in sorted(path for path in files if above.isdisjoint(path.parents))[worker::workers]:
        # What cannot be imported here is reported, or skipped, when it is collected.
        with suppress(Exception, pytest.skip.Exception):
            # As pytest does where folders are no packages: under another name it would be another module, made twice.
            if str(path.parent) not in sys.path:
                sys.path.insert(0, str(path.parent))
            import_module(path.stem)


def _test(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _choice(item: pytest.Item, slow: Mapping[str, float]) -> str:
    """What those tests have in common of which the lane runs one."""
    name = _test(item)
    return name if slow.get(name, 0.0) > ONE_CASE_S or name.startswith(MANY) else _loopless(item)


def _loopless(item: pytest.Item) -> str:
    """The case without its loop, where it is enough to look at one."""
    name, _, case = item.nodeid.partition("[")
    spec = getattr(item, "callspec", None)
    if spec is None or "anyio_backend" not in spec.params or name.startswith(BOTH_LOOPS):
        return item.nodeid
    loop = str(spec.params["anyio_backend"])
    return f"{name}[{'-'.join(part for part in case.removesuffix(']').split('-') if part != loop)}"


def note_slow(reports: Iterable[pytest.TestReport]) -> None:
    """Write down what one case of each slow test has taken, on the average."""
    seconds: Counter[str] = Counter()
    cases: Counter[str] = Counter()
    for report in reports:
        name = report.nodeid.partition("[")[0]
        seconds[name] += report.duration  # type: ignore[assignment]
        cases[name] += report.when == "call"
    means = {name: cost / max(1, cases[name]) for name, cost in seconds.items()}
    lines = [f"{mean:.2f} {name}\n" for name, mean in sorted(means.items()) if mean > ONE_CASE_S]
    SLOW.write_text("".join(lines))


def slowest_files(reports: Iterable[pytest.TestReport]) -> list[str]:
    """The files whose tests took longest, a line each: seconds of one core, how many tests, and the file."""
    seconds: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in reports:
        file = report.nodeid.partition("::")[0]
        seconds[file] += report.duration  # type: ignore[assignment]
        tests[file] += report.when == "call"
    return [f"{cost:7.1f} s  {tests[file]:4} tests  {file}" for file, cost in seconds.most_common(SLOWEST)]
