"""Trees of agents of three levels (`subagent_trees.py`), killed at each of their commits and effects, or erased there.

`subagents`, in memory and on virtual time: each moment of a tree is the end of its process once, and another process
goes on; some of those are killed as well. And at each moment another program erases the session while the tree works.
`subagent-deaths` in processes of their own: SIGKILL at each commit, in SQLite, files and PostgreSQL.

With nobody calling, the boss is told each result once, each effect takes place once (one that may be repeated: under
one key), each agent of the tree has one journal, and nothing is owed. What was erased stays so.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from repertory import Runtime
from repertory.backends.ports import Batch, Position
from repertory.backends.tools.function_tool import schema_class
from repertory.core.turns.subagents import is_subagent
from repertory.errors import LeaseLost, RepertoryError
from repertory.operations.erasing import delete
from repertory.runtime.testing.virtual_time import virtual_asyncio, virtual_trio
from repertory.testing.in_memory_sessions import MemorySessionStore
from tests.campaigns.campaigns import Report
from tests.campaigns.subagent_trees import Act, Branch, answer, boss, branches, told, wanted
from tests.operations.operated_places import server_for
from tests.postgres_server import programs
from tests.simulation.killed_worlds import RecordingStore, World, killed
from tests.source_tree import ROOT

T = TypeVar("T")
_SESSION = "s"
_END_S = 600.0
"""Seconds, of the virtual clock, in which nothing may be owed any more."""
_PLACES = ("sqlite", "sqlite, encrypted", "journal in files", *(["postgres"] if programs() else []))


# In memory.


def subagents(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Trees, until the time is over: one at least, with some of its moments."""
    del folder
    schema_class()  # Loading it uses a thread, which a clock that jumps would pass.
    report, end = Report(), time.monotonic() + seconds
    while not report.acknowledged or time.monotonic() < end:
        seed, small = rng.randrange(2**31), seconds < 10
        _tree_in_memory(random.Random(seed), 1 if small else 2, end, report, f"tree {seed}")
    return report


def _tree_in_memory(rng: random.Random, most: int, end: float, report: Report, name: str) -> None:
    tree, loop = branches(rng, rng.randint(1, most)), rng.choice(("asyncio", "trio"))
    name = f"{name}, {loop}, {[(each.child, each.grandchildren, each.tools) for each in tree]}"
    world = World()
    _go_on(world, tree, loop, report, name)
    moments, erased_at = list(enumerate(world.left)), list(range(2 * len(world.left)))
    rng.shuffle(moments)
    rng.shuffle(erased_at)
    for number, left in moments:
        if erased_at:
            _erase(tree, loop, erased_at.pop(), report, name)
        left.left.clear()
        _go_on(killed(left), tree, loop, report, f"{name}, killed at {number}")
        if left.left:
            twice = rng.choice(left.left)
            _go_on(killed(twice), tree, loop, report, f"{name}, killed at {number} and then")
        if time.monotonic() > end:
            return


def _go_on(world: World, tree: Sequence[Branch], loop: str, report: Report, name: str) -> None:
    report.acknowledged += len(wanted(tree))
    before = len(report.faults)
    try:
        found = _on_virtual_time(loop, _to_the_end, world, tree)
    except (TimeoutError, RepertoryError) as error:
        report.check(False, f"{name}: {error!r}")
        return
    effects = [key for key, count in world.effects.items() for _ in range(count)]
    _check(tree, found, effects, report, name)
    agents = [each for each in world.shelf.sessions[_SESSION].journals if is_subagent(each)]
    count = sum(len(each.children) + len(each.workers) for each in tree)
    report.check(len(agents) == count, f"{name}: {len(agents)} subagents, not {count}")
    report.counts["lives in memory"] += 1
    report.found += len(wanted(tree)) * (len(report.faults) == before)


def _check(tree: Sequence[Branch], found: Sequence[str], effects: Sequence[str], report: Report, name: str) -> None:
    report.check(found == wanted(tree), f"{name}: told {found}")
    lines, names = Counter(effects), Counter(line.split()[0] for line in set(effects))
    missing = names.keys() ^ {effect for branch in tree for effect in branch.effects}
    report.check(not missing, f"{name}: effects {sorted(missing)}")
    keys = [effect for effect, count in names.items() if count > 1]
    report.check(not keys, f"{name}: effects under two keys {keys}")
    twice = [line for line, count in lines.items() if count > 1 and not line.startswith("count-")]
    report.check(not twice, f"{name}: effects that took place twice {twice}")


def _acting(world: World) -> Act:
    async def act(name: str, key: str) -> str:
        await anyio.lowlevel.checkpoint()
        world.effect(f"{name} {key}")
        await anyio.lowlevel.checkpoint()
        return name

    return act


async def _to_the_end(world: World, tree: Sequence[Branch]) -> list[str]:
    """What the boss was told. Nobody calls it behind the first time, but to answer its questions."""
    async with Runtime(sessions=world) as runtime:
        session = runtime.agent(boss(tree, _acting(world))).session(_SESSION)
        with suppress(RepertoryError):  # It may have been asked something.
            await session.invoke("go", idempotency_token="t")
        with anyio.fail_after(_END_S):
            while (pending := await session.pending()) is not None:
                if pending.interrupts:
                    done = [key.split()[0] for key in world.effects]
                    await session.invoke([answer(each, done) for each in pending.interrupts])
                else:
                    await anyio.sleep(0.5)
        return told(await session.messages())


class _ErasingStore(RecordingStore):
    """A store at one of whose moments another program erases the session."""

    def __init__(self, world: _ErasedWorld) -> None:
        super().__init__(world)
        self._erased = world

    async def append(self, batches: Sequence[Batch]) -> Sequence[Position | LeaseLost]:
        await self._erased.pass_one()
        outcomes = await super().append(batches)
        await self._erased.pass_one()
        return outcomes


class _ErasedWorld(World):
    """A world whose session is erased at this moment."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.count, self.gone = at, 0, False

    def open_store(self) -> RecordingStore:
        return _ErasingStore(self)

    def moment(self) -> None:
        """Nobody goes on with what a kill would leave."""

    async def pass_one(self) -> None:
        self.count += 1
        if self.count == self.at:
            with suppress(RepertoryError):  # There may be no session yet.
                await delete(MemorySessionStore(self.shelf, owner="eraser"), _SESSION, 0.0, takeover=True)
                self.gone = True


def _erase(tree: Sequence[Branch], loop: str, at: int, report: Report, name: str) -> None:
    world, name = _ErasedWorld(at), f"{name}, erased at {at}"
    try:
        _on_virtual_time(loop, _erased_meanwhile, world, tree)
    except TimeoutError as error:
        report.check(False, f"{name}: {error!r}")
    if not world.gone:
        return
    report.counts["erased"] += 1
    found = world.shelf.sessions.get(_SESSION)
    journals = {} if found is None else {agent: len(rows) for agent, rows in found.journals.items()}
    report.check(not journals, f"{name}: came back: {journals}")
    report.check(not world.shelf.pending_work, f"{name}: owed: {world.shelf.pending_work}")


async def _erased_meanwhile(world: _ErasedWorld, tree: Sequence[Branch]) -> None:
    """Work until nothing goes on any more; questions are answered as long as there is a session."""
    with anyio.fail_after(_END_S):
        async with Runtime(sessions=world) as runtime:
            session = runtime.agent(boss(tree, _acting(world))).session(_SESSION)
            with suppress(RepertoryError):
                await session.invoke("go", idempotency_token="t")
            for _ in range(20):
                await anyio.sleep(1.0)
                pending = None if world.gone else await session.pending()
                if pending is not None and pending.interrupts:
                    done = [key.split()[0] for key in world.effects]
                    with suppress(RepertoryError):
                        await session.invoke([answer(each, done) for each in pending.interrupts])


def _on_virtual_time(loop: str, function: Callable[..., Awaitable[T]], *args: object) -> T:
    made: Any = virtual_asyncio() if loop == "asyncio" else virtual_trio()
    backend, options = made
    return anyio.run(function, *args, backend=backend, backend_options=options)


# In processes.


def deaths(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One tree in one place, killed at a few moments, or at each of them."""
    report, short = Report(), seconds < 10
    kind, loop = rng.choice(("sqlite", "journal in files") if short else _PLACES), rng.choice(("asyncio", "trio"))
    seed, count, kills = rng.randrange(2**31), 1 if short else rng.randint(1, 2), 3 if short else 10_000
    tree = branches(random.Random(seed), count)
    name = f"{kind}, {loop}, {[(each.child, each.grandchildren, each.tools) for each in tree]}"
    with server_for(kind, folder) as url:
        command = ["-m", "tests.campaigns.dying_subagents", kind, loop, str(folder), url, str(seed), str(count)]
        done = subprocess.run(
            [sys.executable, *command, str(kills)], cwd=ROOT, text=True, capture_output=True, check=False, timeout=3600
        )
    report.check(done.returncode == 0, f"{name}: ended with {done.returncode}: {done.stderr[-4000:]}")
    for line in done.stdout.splitlines():
        what, number, *rest = line.split(" ", 2)
        if what == "told":
            found, before = json.loads(rest[0]), len(report.faults)
            _check(tree, found["told"], found["effects"], report, f"{name}, killed at {number}")
            report.acknowledged += 1
            report.found += len(report.faults) == before
            report.counts["kills"] += number != "0"
    report.counts[f"{kind}, {loop}"] += 1
    return report
