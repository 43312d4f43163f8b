"""A process ends in time, whatever its memory stores, its tools and its event loop are doing by then."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from repertory import Agent, IntervalTrigger, MemoryManager, ScriptedModel
from repertory.actors.memory.store import MemoryStoreClient, MemoryStoreSettings
from repertory.backends.worker_threads import ABANDONED_MAX, run_foreign, run_in_thread
from repertory.core.memory.options import AddMessagesContext
from repertory.errors import Unavailable
from tests.app.memory.toy_memories import Transcripts
from tests.compat.test_outside_turns import PLACES, agent_on, run_to_its_end

pytestmark = pytest.mark.real_time

HEAD = """
import atexit, sys, threading, time
import anyio
from repertory import Agent, MemoryManager, ScriptedModel, tool
from repertory.app.host import blocking
from tests.compat.test_outside_turns import PLACES, agent_on

blocking.EXIT_S = float(sys.argv[1])
atexit.register(lambda: print("writes", writes, flush=True))  # Called last.
writes = 0

class Dead:
    description, max_search_results, writable, extraction = None, None, True, True

    def __init__(self):
        self.name = type(self).__name__

    def search(self, query):
        return []

class Down(Dead):
    async def add_messages(self, messages):
        global writes
        writes += 1
        raise OSError("down")

class Buggy(Dead):
    def add_messages(self, messages):
        global writes
        writes += 1
        raise RuntimeError("a bug")

class Waiting(Dead):
    async def add_messages(self, messages):
        global writes
        writes += 1
        await anyio.sleep_forever()

class Stuck(Dead):
    def add_messages(self, messages):
        global writes
        writes += 1
        threading.Event().wait()

def say(agent):
    agent("hi")
    agent.state.set("n", 1)

def remembering(store):
    return {"memory_manager": MemoryManager([store], injection=False)}

"""
DEAD_STORES = """
for kind in (Down, Buggy, Waiting, Stuck):
    say(Agent(ScriptedModel(["hello"]), callback_handler=None, **remembering(kind())))
    for place in PLACES:
        say(agent_on(place, f"{sys.argv[2]}/{kind.__name__}", "hello", **remembering(kind())))
"""
MANY_AGENTS = """
blocking.HELD_MAX = 4
for _ in range(20):
    say(Agent(ScriptedModel(["hello"]), callback_handler=None, **remembering(Down())))
"""
BLOCKED_LOOP = """
class Blocking(ScriptedModel):
    async def stream(self, *given, **options):
        begun.set()
        time.sleep(1000)
        yield {}

begun = threading.Event()
agent = Agent(Blocking([]), callback_handler=None)
threading.Thread(target=agent, args=("hi",), daemon=True).start()
begun.wait()
"""
STUCK_TOOL = """
@tool
def wait() -> str:
    "Never returns."
    begun.set()
    threading.Event().wait()

begun = threading.Event()
use = {"toolUse": {"name": "wait", "input": {}}}
agent = Agent(ScriptedModel([use, "done"]), tools=[wait], callback_handler=None)
threading.Thread(target=agent, args=("hi",), daemon=True).start()
begun.wait()
"""


def test_a_dead_memory_store_is_tried_once_named_and_left_to_the_next_process(tmp_path: Path) -> None:
    done = run_to_its_end(HEAD + DEAD_STORES, "5.0", str(tmp_path))
    kinds = ["Down", "Buggy", "Waiting", "Stuck"]
    assert done.stdout == f"writes {len(kinds) * (len(PLACES) + 1)}\n"
    told = [line for line in done.stderr.splitlines() if "have not taken in what was said" in line]
    for kind in kinds:
        of_kind = [line for line in told if f"stores=['{kind}']" in line]
        assert len([line for line in of_kind if "it stands in the journal" in line]) == len(PLACES)
        assert len([line for line in of_kind if "session=" not in line]) == 1
        for place in PLACES:
            store = Transcripts(kind, extraction={"trigger": IntervalTrigger(turns=100)})
            agent = agent_on(place, tmp_path / kind, memory_manager=MemoryManager([store], injection=False))
            assert agent.state.get("n") == 1
            agent.shutdown()
            assert store.batches == [["hi", "hello"]]


def test_agents_beyond_the_bound_are_tried_once_and_not_held_again() -> None:
    done = run_to_its_end(HEAD + MANY_AGENTS, "10.0")
    unasked = [line for line in done.stderr.splitlines() if "more than 8 agents wait" in line]
    assert done.stdout == f"writes {20 - len(unasked)}\n"
    assert len([line for line in done.stderr.splitlines() if "kept nowhere else, and lost" in line]) == 20


@pytest.mark.parametrize("program", [BLOCKED_LOOP, STUCK_TOOL], ids=["blocked loop", "stuck tool"])
def test_a_process_does_not_wait_for_what_never_returns(program: str) -> None:
    run_to_its_end(HEAD + program, "1.0")


def test_the_end_of_a_block_and_shutdown_ask_a_dead_store_once() -> None:
    store = Transcripts(extraction={"trigger": IntervalTrigger(turns=100)})
    store.down = OSError("down")
    manager = MemoryManager([store], injection=False)
    with Agent(ScriptedModel(["hello"]), callback_handler=None, memory_manager=manager) as agent:
        agent("hi")
        agent.shutdown()
    assert store.asked == 1
    store.down = None
    agent.shutdown()
    assert store.batches == [["hi", "hello"]]


class Stuck:
    name, description, max_search_results, writable, extraction = "stuck", None, None, True, None

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def search(self, query: str) -> list[object]:
        raise NotImplementedError

    def add(self, content: str, metadata: object = None) -> None:
        self.goes_on.wait()


@pytest.mark.anyio
async def test_a_synchronous_store_that_does_not_return_is_given_up_in_time() -> None:
    stuck = Stuck()
    client = MemoryStoreClient(stuck, MemoryStoreSettings(write_timeout_s=0.02))
    try:
        for _ in range(2):
            with pytest.raises(Unavailable, match="did not answer in time"):
                await client.add("a", None, AddMessagesContext())
    finally:
        stuck.goes_on.set()


@pytest.mark.anyio
async def test_foreign_code_that_hangs_is_bounded_and_in_nobodys_way() -> None:
    goes_on, begun = threading.Event(), list[None]()

    def hang() -> None:
        begun.append(None)
        goes_on.wait()

    try:
        async with anyio.create_task_group() as group:
            for _ in range(ABANDONED_MAX):
                group.start_soon(partial(run_foreign, hang, grace_s=0.0))
            while len(begun) < ABANDONED_MAX:
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        with pytest.raises(Unavailable, match="did not return in time"):
            await run_foreign(goes_on.wait)
        assert await run_in_thread(lambda: "ours") == "ours"
    finally:
        goes_on.set()
    while True:  # The threads end by themselves.
        try:
            assert await run_foreign(lambda: "theirs") == "theirs"
            break
        except Unavailable:
            await anyio.lowlevel.checkpoint()
