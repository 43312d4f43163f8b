"""Processes that fork after their first use: children have hosts, clients, databases and leases of their own."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from repertory.core.messages import text_of
from repertory.forking import Unforked
from tests.compat.test_outside_turns import PLACES, ROOT, agent_on, run_to_its_end

pytestmark = pytest.mark.real_time

HEAD = """
import atexit, multiprocessing, os, signal, subprocess, sys, threading, traceback
import anyio
from repertory import *
from repertory.errors import AgentBusy, Invalid, SessionBusy
from tests.compat.test_outside_turns import PLACES, agent_on

folder = sys.argv[1]

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def agent(place=None, session="s", **options):
    manager = None if place is None else PLACES[place](folder)
    if session != "s":
        where = manager.sessions.storage if place == "journal" else manager.sessions.path
        manager = type(manager)(session, where)
    model = ScriptedModel(["ok"], loop=True)
    return Agent(model, callback_handler=None, session_manager=manager, **options)

def texts(agent):
    return [message["content"][0]["text"] for message in agent.messages if message["role"] == "user"]

"""
USED_BEFORE = """
agents = {place: agent(place) for place in PLACES}
alone = agent()
memory = SQLiteMemoryStore(folder + "/memory.db", extraction=True)
remembering = agent(memory_manager=MemoryManager([memory]))
for each in [*agents.values(), alone, remembering]:
    each("before the fork")
remembering.shutdown()

def use():
    for each in [*agents.values(), alone]:
        each("in the child")
        assert texts(each)[-2:] == ["before the fork", "in the child"]
    remembering("in the child")
    remembering.shutdown()
    found = [entry.content for entry in anyio.run(memory.search, "before the fork child")]
    assert sorted(found) == ["before the fork", "in the child", "ok", "ok"]

child(use)
for place, each in agents.items():
    each("after the fork")
    assert texts(each) == ["before the fork", "in the child", "after the fork"], place
alone("after the fork")
assert texts(alone) == ["before the fork", "after the fork"]
found = [entry.content for entry in anyio.run(memory.search, "before the fork child")]
assert sorted(found) == ["before the fork", "in the child", "ok", "ok"]
"""
POOL = """
each = agent("sqlite")
each("before the fork")

@tool
def count_apart() -> str:
    "Counts in processes of its own."
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return str(sum(pool.map(work, range(4))))

def work(number):
    return len(texts_of_new(number))

def texts_of_new(number):
    other = agent("sqlite", f"child-{number}")
    other("one")
    other("two")
    return texts(other)

use = {"toolUse": {"name": "count_apart", "input": {}}}
asking = Agent(ScriptedModel([use, "done"]), tools=[count_apart], callback_handler=None)
asking("count")
assert asking.messages[2]["content"][0]["toolResult"]["content"] == [{"text": "8"}]
"""
HELD = """
agents = {place: agent(place) for place in PLACES}

def use():
    for place, held in agents.items():
        try:
            held("in the child", timeout_s=1.0)
        except (AgentBusy, SessionBusy):
            pass
        else:
            raise AssertionError(f"{place}: two processes have the session")
        other = agent(place, "another")
        other("in the child")
        assert texts(other) == ["in the child"]

for each in agents.values():
    each.__enter__()
    each("before the fork")
child(use)
for each in agents.values():
    each("after the fork")
    each.__exit__()
    assert texts(each) == ["before the fork", "after the fork"]
"""
KILLED = """
agents = {place: agent(place) for place in PLACES}
for each in agents.values():
    each.__enter__()
    each("before the fork")
child_ready, ready = os.pipe()
if os.fork() == 0:
    os.write(ready, b"x")
    sys.stdin.read()
    os._exit(0)
os.read(child_ready, 1)
subprocess.Popen(["cat"], close_fds=False)
print("ready", flush=True)
signal.pause()
"""
EXITS = """
class Written:
    name, description, max_search_results, writable, extraction = "written", None, None, True, True

    def search(self, query):
        return []

    def add_messages(self, messages):
        print(os.getpid() == parent, [message["content"][0]["text"] for message in messages], flush=True)

parent = os.getpid()
each = agent("sqlite", memory_manager=MemoryManager([Written()], injection=False))
each("before the fork")
each.state.set("n", 1)
pid = os.fork()
if pid == 0:
    sys.exit(7)  # Calls what is registered at exit.
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
LOG = """
from pathlib import Path
from repertory.backends.sqlite_files import DatabaseKind

held = agent("sqlite")
held.__enter__()
held("before the fork")
connection = DatabaseKind(name="database", entry="a row").connect(Path(folder, "a.db"), busy_timeout_s=5.0)
assert connection.execute("SELECT count(*) FROM rows").fetchone() > (0,)
to_child, parent_done = os.pipe()
if os.fork() == 0:
    os.close(parent_done)
    other = agent("sqlite", "another")
    other.__enter__()
    other("one")
    os.read(to_child, 1)  # The parent has closed the database, and so has one after it.
    other("two")
    os.kill(os.getpid(), signal.SIGKILL)
held.__exit__()
connection.close()
FROM = "from tests.compat.test_outside_turns import agent_on; import sys"
SECOND = FROM + "; agent_on('sqlite', sys.argv[1], 'ok')('third')"
subprocess.run([sys.executable, "-c", SECOND, folder], check=True)
os.close(parent_done)
os.wait()
assert texts(agent("sqlite", "another")) == ["one", "two"]
assert texts(agent("sqlite")) == ["before the fork", "third"]
"""
LOCKED = """
from repertory.app.host import blocking, session

each = agent("sqlite")
each("before the fork")
locks = [blocking._lock, blocking._host_lock, session._claims, each._parts.stop_request._lock]
holding = threading.Event()

def hold():
    for lock in locks:
        lock.acquire()
    holding.set()
    threading.Event().wait()

threading.Thread(target=hold, daemon=True).start()
holding.wait()

def use():
    each("in the child")
    each.cancel()
    each.state.set("n", 1)
    each.shutdown()
    assert texts(agent("sqlite")) == ["before the fork", "in the child"]

child(use)
os._exit(0)  # Here the locks are still held.
"""
STORE = """
store = SQLiteSessions(folder + "/a.db").open_store()
lease, _ = anyio.run(store.acquire, "s")

def use():
    for call in (store.release, store.load):
        try:
            anyio.run(call, *(([lease],) if call == store.release else ("s", "a")))
        except Invalid:
            continue
        raise AssertionError("the lease is the parent's")
    anyio.run(store.aclose)

child(use)
try:
    anyio.run(SQLiteSessions(folder + "/a.db").open_store().acquire, "s")
except SessionBusy:
    anyio.run(store.release, [lease])
else:
    raise AssertionError("the parent has the session")
"""
IN_A_LOOP = """
def use():
    each = agent("sqlite")
    assert texts(each) == ["before the fork"]
    each("in the child")

async def main():
    await agent("sqlite").invoke_async("before the fork")
    async with agent("documents") as held:
        await held.invoke_async("before the fork")
        child(use)
        await held.invoke_async("after the fork")

anyio.run(main, backend=sys.argv[2])
assert texts(agent("sqlite")) == ["before the fork", "in the child"]
assert texts(agent("documents")) == ["before the fork", "after the fork"]
"""
LISTENING = """
from contextlib import suppress
import time
from tests.app.embedding.test_yielding_processes import Unhurried, turns

ready, asked = threading.Event(), threading.Event()
bells = folder + "/sessions.db-owners-bells"

async def live(name, then):
    async with Runtime(sessions=Unhurried("sqlite", folder)) as runtime:
        await turns(runtime, name, 1)
        await anyio.to_thread.run_sync(then)

def listen():
    while not os.path.isdir(bells):
        time.sleep(0.01)
    ready.set()
    asked.wait()

def look():
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            assert bells not in os.readlink(f"/proc/self/fd/{number}")

owner = threading.Thread(target=anyio.run, args=(live, "owner", listen))
owner.start()
ready.wait()
child(look)
assert os.listdir(bells)
anyio.run(live, "asker", lambda: None)
asked.set()
owner.join()
assert not os.path.exists(bells)
"""


@pytest.mark.parametrize(
    "program",
    [USED_BEFORE, POOL, HELD, LOG, LOCKED, STORE, LISTENING],
    ids=[
        "used before",
        "pool in a tool",
        "held by the parent",
        "log of the database",
        "locks held",
        "bare store",
        "listening",
    ],
)
def test_a_forked_child_calls_agents_of_its_parent(program: str, tmp_path: Path) -> None:
    run_to_its_end(HEAD + program, str(tmp_path))


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_child_that_is_forked_inside_an_event_loop_makes_sync_calls(loop: str, tmp_path: Path) -> None:
    run_to_its_end(HEAD + IN_A_LOOP, str(tmp_path), loop)


def test_sessions_of_a_killed_parent_are_free_while_its_children_live(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HEAD + KILLED, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        parent.wait()
        for place in PLACES:
            agent = agent_on(place, tmp_path, "ok")
            agent("after the kill", timeout_s=20.0)
            said = [text_of(message) for message in agent.messages]
            assert said == ["before the fork", "ok", "after the kill", "ok"]
    finally:
        parent.kill()
        parent.stdin.close()  # The children end.
        parent.stdout.close()


def test_a_child_that_exits_leaves_to_its_parent_what_is_to_be_done_at_the_end(tmp_path: Path) -> None:
    assert run_to_its_end(HEAD + EXITS, str(tmp_path)).stdout == "True ['before the fork', 'ok']\n"
    assert agent_on("sqlite", tmp_path).state.get("n") == 1


def test_a_fork_waits_for_what_must_not_be_cut_in_two() -> None:
    unforked, steps = Unforked(), list[str]()
    entered, forking, late = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with unforked:
            entered.set()
            forking.wait()
            with unforked:  # It may go on, since it is inside.
                steps.append("worked")

    def fork() -> None:
        unforked.before_fork()
        steps.append("forked")
        unforked.after_fork()
        late.set()

    threads = [threading.Thread(target=work), threading.Thread(target=fork)]
    threads[0].start()
    entered.wait()
    threads[1].start()
    while not unforked._forks:
        pass
    forking.set()
    late.wait()
    with unforked:
        unforked.before_fork()  # Whoever forks inside does not wait for itself.
        unforked.after_fork()
        steps.append("worked again")
    for thread in threads:
        thread.join()
    assert steps == ["worked", "forked", "worked again"]
