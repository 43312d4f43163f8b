"""What every test gets: both event loops, clocks that jump, printed seeds, no blocking calls of ours on a loop.

A test marked `real_time` runs on plain loops with a real clock, so that threads, files, sockets and processes work.
`@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop", "trio"], indirect=True)` adds uvloop (on a real clock).
`REPERTORY_SEED=123` repeats a run whose failure printed `seed 123`; under `CI`, each test has the same seed every time.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import trio._core._run as trio_run
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings

from repertory.runtime.testing.virtual_time import virtual_asyncio, virtual_trio
from tests.lanes import SLOWEST, alternated, fast_lane, import_share, note_slow, read_slow, slowest_files
from tests.postgres_server import PostgresServer, shared_server

settings.register_profile("no times", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no times")  # Machines are shared: how long an example takes says nothing.


def pytest_configure() -> None:
    """A shell ignores SIGINT for what it starts in the background, and so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """See `tests/lanes.py`."""
    parser.addoption("--fast", action="store_true", help="the fast lane: see tests/lanes.py")
    parser.addoption("--alternate-loops", action="store_true", help="run each case on one loop, but where loops differ")
    parser.addoption("--other-loops", action="store_true", help="run what --alternate-loops leaves out")
    parser.addoption("--note-slow", action="store_true", help="write tests/slow.txt anew, after a run of all tests")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin the collection: without garbage, and of a whole run with a part of the files in each worker."""
    given: Mapping[str, Any] = getattr(session.config, "workerinput", {})
    if given or not session.config.getoption("numprocesses", None):  # The process above workers collects nothing.
        gc.disable()  # Nothing of what is collected is garbage, and to look for it takes a tenth of the time.
    if given and session.config.args_source is not session.config.ArgsSource.ARGS:
        ignored = session.config.getoption("ignore", None) or ()
        import_share(int(given["workerid"].removeprefix("gw")), int(given["workercount"]), ignored)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """See `tests/lanes.py`."""
    kept: list[pytest.Item] = items
    if config.getoption("fast"):
        kept = fast_lane(items, read_slow())
    elif config.getoption("alternate_loops") or config.getoption("other_loops"):
        kept = alternated(items, other=config.getoption("other_loops"))
    if kept is not items:
        chosen = {id(item) for item in kept}
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in chosen])
        items[:] = kept


def pytest_collection_finish() -> None:
    """Leave tens of thousands of tests out of every collection of garbage: each would take a second, the first too."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Where the time went."""
    stats = terminalreporter.stats.values()
    reports = [report for group in stats for report in group if isinstance(report, pytest.TestReport)]
    if len({report.nodeid.partition("::")[0] for report in reports}) > SLOWEST:
        terminalreporter.section(f"the {SLOWEST} slowest files")
        for line in slowest_files(reports):
            terminalreporter.write_line(line)
    if config.getoption("note_slow"):
        note_slow(reports)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest, seed: int) -> object:
    """The loop that a test runs on, as anyio's pytest plugin takes it. Virtual time unless the test is `real_time`."""
    name = str(request.param)
    real = request.node.get_closest_marker("real_time") is not None
    if name == "uvloop":
        return "asyncio", {"use_uvloop": True}
    if name == "trio":
        _seed_trio(seed)
        return "trio" if real else virtual_trio()
    return "asyncio" if real else virtual_asyncio()


def _seed_trio(seed: int) -> None:
    """Trio runs ready tasks in random order; the same seed gives the same order again."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number for every random choice of a test, printed so that a failure can be repeated with REPERTORY_SEED.

    A new one at every run, but under CI, where each test has one of its own: a change is refused for what it does, not
    for what chance finds that day. That is for runs at a desk, and for `make soak`.
    """
    own = zlib.crc32(request.node.nodeid.encode()) if os.environ.get("CI") else random.SystemRandom().randrange(2**32)
    value = int(os.environ.get("REPERTORY_SEED") or own)
    print(f"seed {value}")
    return value


@pytest.fixture(scope="session")
def postgres() -> PostgresServer:
    """The PostgreSQL server of this process."""
    return shared_server()


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> pytest.MonkeyPatch:
    """An AWS environment of the test's own: made-up keys and a region, no files, no metadata service, no proxies."""
    for name in os.environ:
        if name.startswith("AWS_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    folder = tmp_path_factory.mktemp("aws")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "no-credentials"))
    return monkeypatch


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A seeded generator."""
    return random.Random(seed)


@pytest.fixture(autouse=True, scope="session")
def no_blocking_calls() -> Iterator[None]:
    """A blocking call of ours inside an asyncio loop raises `BlockingError`. Under trio it passes unseen.

    Switched on once: switching it off while a thread runs can crash CPython 3.11 (a method descriptor freed in use).
    """
    with blockbuster_ctx("repertory") as blockbuster:
        for function in blockbuster.functions.values():
            function.can_block_in("repertory/backends/models/litellm.py", "_ask")  # LiteLLM reads certificates
            function.can_block_in("repertory/backends/sessions/liveness.py", "abandon")  # of a loop that has ended
            function.can_block_in(
                "repertory/app/agent/session.py", "_read_stored"
            )  # a property, of what is on this machine
            for name in ("give_up", "is_mine", "take_again"):  # a lock of the kernel, which waits for nobody
                function.can_block_in("repertory/backends/sessions/log/owner_record.py", name)
            function.can_block_in("repertory/core/timers.py", "_zone")  # a file of 2 KB, once for each time zone
            # two looks at names
            function.can_block_in("repertory/backends/sessions/snapshots/folder_tree.py", "is_unchanged")
            for name in ("acquire_again", "release", "says_held"):  # two bytes of a file, which are never synced
                function.can_block_in("repertory/backends/sessions/sqlite/journals.py", name)
            for name in ("is_unchanged", "stamp_of"):  # the kernel answers from memory as well
                function.can_block_in("repertory/backends/sessions/documents/folder_trees.py", name)
        blockbuster.functions["os.getcwd"].deactivate()  # the kernel answers from memory
        yield
