"""The actor runtime against the bare loop: asks, tells, jobs, starts, and what an idle actor weighs.

The limit of an ask is two bare tasks that wake each other, measured in the same rounds on the same loop: nothing that
passes a message to another task and gets an answer can be faster; an idle actor that handles an ask without waiting
passes none. Asks carry everything: deadline, bounds, statistics, trace, and the wait-for graph where one actor asks
another.

A tell does not touch the loop, so its cost is the same everywhere; uvloop's bare round trip is less than half of
asyncio's, so the same bar asks twice as much there.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import statistics
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.lowlevel

from bench.harness import Figure, report
from repertory.runtime.actor import Actor
from repertory.runtime.message import Ask, Next, carry_on, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.system import ActorSystem

ROUNDS = 9
ASKS = 4000
TELLS = 12_800
BURST = 64
STARTS = 100
JOBS = 300
IDLE = 5000
BARS = {
    "asyncio": {"ask at once": 0.5, "ask": 1.8, "actor to actor": 2.2, "tell": 0.2},
    "uvloop": {"ask at once": 0.5, "ask": 2.2, "actor to actor": 2.8, "tell": 0.2},
    "trio": {"ask at once": 0.5, "ask": 1.5, "actor to actor": 1.6, "tell": 0.2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Ask[int]):
    """Answered."""

    amount: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMany(Ask[None]):
    """Ask the other actor that many times."""

    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJobs(Ask[None]):
    """Run that many jobs, one after the other."""

    times: int


class Counter(Actor[Add | int]):
    """Counts asks and tells."""

    def __init__(self) -> None:
        self.total = 0

    async def handle(self, message: Add | int) -> Next:
        if isinstance(message, Add):
            self.total += message.amount
            return reply(self.total)
        self.total += 1
        return carry_on()


class Quick(Actor[Add]):
    """Counts asks without waiting."""

    def __init__(self) -> None:
        self.total = 0

    def handle_now(self, message: Add) -> Next:
        self.total += message.amount
        return reply(self.total)


class Asker(Actor[AskMany | RunJobs]):
    """Asks a counter, or runs jobs."""

    def __init__(self, other: ActorRef[object]) -> None:
        self._other = other

    async def handle(self, message: AskMany | RunJobs) -> Next:
        if isinstance(message, AskMany):
            for _ in range(message.times):
                await self._other.ask(Add(amount=1), timeout_s=30)
        else:
            for _ in range(message.times):
                await self.context.job(anyio.lowlevel.checkpoint).wait()
        return reply(None)


async def bare_round_trips(count: int) -> None:
    """Two tasks that wake each other with what the loop has at its lowest level."""
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        await _bare_asyncio(count)
    else:
        await _bare_trio(count)


async def _bare_asyncio(count: int) -> None:
    loop = asyncio.get_running_loop()
    there, back = loop.create_future(), loop.create_future()

    async def other() -> None:
        nonlocal there, back
        for _ in range(count):
            await there
            there = loop.create_future()
            back.set_result(None)

    task = asyncio.create_task(other())
    for _ in range(count):
        there.set_result(None)
        await back
        back = loop.create_future()
    await task


async def _bare_trio(count: int) -> None:
    import trio

    lowlevel = trio.lowlevel
    parked: dict[str, trio.lowlevel.Task] = {}

    def abort(_: object) -> trio.lowlevel.Abort:
        return lowlevel.Abort.SUCCEEDED

    async def other() -> None:
        for _ in range(count):
            parked["other"] = lowlevel.current_task()
            await lowlevel.wait_task_rescheduled(abort)
            lowlevel.reschedule(parked["main"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await lowlevel.checkpoint()
        while "other" not in parked:
            await lowlevel.checkpoint()
        for _ in range(count):
            parked["main"] = lowlevel.current_task()
            lowlevel.reschedule(parked["other"])
            await lowlevel.wait_task_rescheduled(abort)


async def ask_many(ref: ActorRef[Add], count: int) -> None:
    """One client, one ask after the other."""
    for _ in range(count):
        await ref.ask(Add(amount=1), timeout_s=30)


async def tell_in_bursts(ref: ActorRef[Add | int], count: int) -> None:
    """Bursts of tells; each burst is handled before the next one."""
    for _ in range(count // BURST):
        for number in range(BURST):
            ref.tell(number)
        while ref.mailbox.queue:
            await anyio.lowlevel.checkpoint()


async def start_and_stop(system: ActorSystem, count: int, seconds: dict[str, float]) -> None:
    """A supervisor with three children, as one session is."""
    started = stopped = 0.0
    for _ in range(count):
        began = time.perf_counter()
        ref = await system.start(ChildSpec(name="session", factory=_session))
        middle = time.perf_counter()
        await system.stop(ref)
        started += middle - began
        stopped += time.perf_counter() - middle
    seconds["start"], seconds["stop"] = started, stopped


def _session() -> Supervisor:
    return Supervisor([ChildSpec(name=name, factory=Counter) for name in ("first", "second", "third")])


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    gc.collect()
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def measure_times(taken: dict[str, list[float]]) -> None:
    """Microseconds per operation of everything, round by round."""
    async with ActorSystem() as system:
        counter = await system.start(ChildSpec(name="counter", factory=Counter))
        quick = await system.start(ChildSpec(name="quick", factory=Quick))
        asker = await system.start(ChildSpec(name="asker", factory=lambda: Asker(counter)))
        parts: dict[str, float] = {}
        work: dict[str, tuple[Callable[[], Awaitable[object]], int]] = {
            "bare": (partial(bare_round_trips, ASKS), ASKS),
            "ask at once": (partial(ask_many, quick, ASKS), ASKS),
            "ask": (partial(ask_many, counter, ASKS), ASKS),
            "actor to actor": (partial(asker.ask, AskMany(times=ASKS), timeout_s=math.inf), ASKS),
            "tell": (partial(tell_in_bursts, counter, TELLS), TELLS),
            "job": (partial(asker.ask, RunJobs(times=JOBS), timeout_s=math.inf), JOBS),
        }
        for _ in range(ROUNDS):
            for name, (do, count) in work.items():
                taken.setdefault(name, []).append(await _seconds(do) / count * 1e6)
            await start_and_stop(system, STARTS, parts)
            for name, seconds in parts.items():
                taken.setdefault(name, []).append(seconds / STARTS * 1e6)


async def measure_weight(weights: list[float]) -> None:
    """Bytes per idle actor, its task included."""
    async with ActorSystem() as system:
        specs = [ChildSpec(name=str(number), factory=Counter) for number in range(IDLE)]
        await system.start(ChildSpec(name="first", factory=Counter))
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for spec in specs:
            await system.start(spec)
        gc.collect()
        weights.append((tracemalloc.get_traced_memory()[0] - before) / IDLE)
        tracemalloc.stop()


def _run(loop: str, work: Callable[..., Awaitable[None]], *arguments: object) -> None:
    if loop == "uvloop":
        anyio.run(work, *arguments, backend="asyncio", backend_options={"use_uvloop": True})
    else:
        anyio.run(work, *arguments, backend=loop)


def figures_of(loop: str) -> list[Figure]:
    """Everything about one loop."""
    taken: dict[str, list[float]] = {}
    _run(loop, measure_times, taken)
    ratios = {
        name: statistics.median(value / bare for value, bare in zip(values, taken["bare"], strict=True))
        for name, values in taken.items()
    }
    bare = statistics.median(taken["bare"])
    figures = [Figure(f"{loop}: {name}", ratios[name] * bare, bare, bar, "us") for name, bar in BARS[loop].items()]
    for name, label in (("job", "job"), ("start", "start of four"), ("stop", "stop of four")):
        figures.append(Figure(f"{loop}: {label}", ratios[name] * bare, bare, None, "us"))
    weights: list[float] = []
    _run(loop, measure_weight, weights)
    figures.append(Figure(f"{loop}: idle actor", weights[0], 6.5 * 1024, 1.0, "B"))
    return figures


def main() -> int:
    """Print the table; 1 when a bar was missed."""
    logging.getLogger("repertory").setLevel(logging.CRITICAL)
    return report([figure for loop in BARS for figure in figures_of(loop)])
