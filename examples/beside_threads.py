"""A program with threads, such as a WSGI server, and one `Runtime` for all of them. Needs no network and no account.

    python beside_threads.py             # asks a few questions from several threads, and ends
    python beside_threads.py for-ever    # until SIGTERM or Ctrl-C

The runtime lives in an event loop in a thread of its own, behind anyio's blocking portal. Any thread calls it through
the portal and waits for the answer. (A single `Agent` needs none of this: `agent("...")` works from any thread.)
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from anyio.from_thread import BlockingPortal, start_blocking_portal

from repertory import AgentSpec, Model, OfflineModel, RepertoryError, Runtime, SQLiteSessions
from repertory.app.embedding.hosted import HostedAgent
from repertory.runtime.drain import ActorsReport

NAMES = ("Ada", "Ben", "Cleo", "Dora")


class Clerk:
    """An agent that any thread may ask."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime, agent: HostedAgent) -> None:
        self._portal = portal
        self._runtime = runtime
        self._agent = agent

    def ask(self, session: str, text: str) -> str:
        """Run a turn and return its answer. Errors: `Unavailable` once the drain has begun, and those of any turn."""
        return str(self._portal.call(self._agent.session(session).invoke, text))

    def drain(self) -> ActorsReport:
        """Refuse new turns and let running ones finish. Threads that wait in `ask` get their answers."""
        return self._portal.call(self._runtime.drain)


@contextmanager
def clerk_beside(database: Path, model: Model) -> Iterator[Clerk]:
    """A clerk with its own event loop, which runs as long as the block."""
    runtime = Runtime(sessions=SQLiteSessions(database), drain_timeout_s=10)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(runtime):
        yield Clerk(portal, runtime, runtime.agent(AgentSpec(name="clerk", model=model)))


def handle(clerk: Clerk, name: str, stopped: threading.Event, *, for_ever: bool) -> None:
    """Handle the requests of one thread."""
    try:
        print(f"{name}: {clerk.ask(name, f'My name is {name}.')}", flush=True)
        while for_ever and not stopped.wait(0.1):
            print(f"{name}: {clerk.ask(name, 'Do you remember my name?')}", flush=True)
    except RepertoryError as error:
        print(f"{name}: {type(error).__name__}: {error}", flush=True)


def serve(database: Path, model: Model, *, for_ever: bool) -> None:
    """Handle requests until there are no more, or until a signal; then drain while the handlers finish.

    The program handles signals itself: the main thread gets them, and tells the others by an event.
    """
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    with clerk_beside(database, model) as clerk, ThreadPoolExecutor(len(NAMES)) as pool:
        handled = [pool.submit(handle, clerk, name, stopped, for_ever=for_ever) for name in NAMES]
        if for_ever:
            stopped.wait()
        else:
            wait(handled)
        report = clerk.drain()
    print(f"drained in {report.duration_s:.2f} s ok={report.ok} unfinished={report.unfinished}", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        serve(Path(folder) / "sessions.db", OfflineModel(), for_ever="for-ever" in sys.argv)
