"""The first calls of a process, made by many threads at once, while the libraries that they need are being imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.test_outside_turns import run_to_its_end

pytestmark = pytest.mark.real_time

FIRST_CALLS = """
import sys, threading, traceback

if sys.argv[1] == "imported":
    import repertory
places, begin, failed = 16, threading.Barrier(16), []

def first_call(number):
    begin.wait()
    try:
        from repertory import Agent, ScriptedModel, SQLiteSessionManager

        manager = SQLiteSessionManager(f"session-{number}", sys.argv[2]) if number % 2 else None
        agent = Agent(ScriptedModel(["Hello!"]), callback_handler=None, session_manager=manager)
        assert str(agent("Hi")) == "Hello!"
        assert len(agent.messages) == 2
    except BaseException:
        failed.append(traceback.format_exc())

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=first_call, args=(number,)) for number in range(places)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(failed[0] if failed else 0)
"""

HALF_IMPORTED = """
import importlib, sys, threading

from repertory.app.tracebacks import inside_event_loop
from repertory.app.tracebacks import span

library, stops_at = sys.argv[1:]
halfway, go_on = threading.Event(), threading.Event()

class Stopping:
    def find_spec(self, name, path=None, target=None):
        if name == stops_at:
            halfway.set()
            go_on.wait()

sys.meta_path.insert(0, Stopping())
threading.Thread(target=importlib.import_module, args=(library,), daemon=True).start()
assert halfway.wait(30)
assert library in sys.modules
assert not inside_event_loop()
with span("turn", {}):
    go_on.set()
"""


@pytest.mark.parametrize("before", ["imported", "nothing"])
def test_sixteen_threads_may_make_the_first_calls_of_a_process_at_once(before: str, tmp_path: Path) -> None:
    run_to_its_end(FIRST_CALLS, before, str(tmp_path / "sessions.db"))


@pytest.mark.parametrize(
    ("library", "stops_at"),
    [
        ("asyncio", "asyncio.events"),
        ("trio", "trio.lowlevel"),
        ("opentelemetry.trace", "opentelemetry.trace.span"),
    ],
)
def test_a_library_that_another_thread_is_importing_is_not_used_yet(library: str, stops_at: str) -> None:
    run_to_its_end(HALF_IMPORTED, library, stops_at)
