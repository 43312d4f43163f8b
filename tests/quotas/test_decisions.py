"""The account and the desks, against a simple model: a list of what was used, and when."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest
from msgspec import Struct, msgpack

from repertory.quotas.decisions import Account, Desk, Learned, QuotaCall, Report, Want, WindowLimits

LIMITS = WindowLimits(tokens=1000, requests=200, concurrent=12)
MODEL, TENANT = "model", "model acme"


class Process(Struct, eq=False):
    desk: Desk
    name: str
    offset_s: float
    """Its clock is that of the world plus so much."""
    alive: bool = True


class World:
    """Processes with clocks of their own, one store, and a network that takes its time and loses answers."""

    def __init__(self, rng: random.Random, limits: WindowLimits, processes: int = 4, *, losses: float = 0.0) -> None:
        self.rng, self.limits, self.losses, self.now = rng, limits, losses, 1e6
        self.accounts: dict[str, bytes] = {}
        self.names = count()
        self.processes = [self.process() for _ in range(processes)]
        self.events: list[tuple[float, int, Any]] = []
        self.numbers = count()
        self.used: list[tuple[float, float]] = []
        """The simple model: when each call began, and the tokens that it took."""
        self.costs: dict[QuotaCall, tuple[float, float]] = {}
        """The tokens and seconds of each call."""
        self.running: set[QuotaCall] = set()
        self.running_most = 0
        self.began: list[tuple[float, QuotaCall]] = []
        self.late: list[QuotaCall] = []
        self.exchanges = 0

    def process(self) -> Process:
        name = f"p{next(self.names)}"
        return Process(Desk(name), name, self.rng.uniform(-1e5, 1e5))

    def at(self, after_s: float, act: Any) -> None:
        heappush(self.events, (self.now + after_s, next(self.numbers), act))

    def run(self, for_s: float) -> None:
        until = self.now + for_s
        while True:
            nexts = [(p.desk.next_at() - p.offset_s, p) for p in self.processes if p.alive]
            at, process = min(nexts, key=lambda each: each[0], default=(math.inf, None))
            if self.events and self.events[0][0] <= at:
                at, _, act = heappop(self.events)
                if at > until:
                    heappush(self.events, (at, next(self.numbers), act))
                    break
                self.now = max(self.now, at)
                act()
            elif at <= until and process is not None:
                self.now = max(self.now, at)
                self.send(process)
            else:
                break
        self.now = until

    def send(self, process: Process) -> None:
        now = max(self.now + process.offset_s, process.desk.next_at())  # Sums of floats are rounded.
        for key, report, limits in process.desk.reports(now):
            self.exchanges += 1
            self.at(self.rng.uniform(0.001, 0.02), lambda k=key, r=report, b=limits: self.arrive(process, k, r, b))

    def arrive(self, process: Process, key: str, report: Report, limits: WindowLimits) -> None:
        if self.rng.random() < self.losses:
            return self.at(0.1, lambda: self.lost(process, key))
        account = msgpack.decode(self.accounts[key], type=Account) if key in self.accounts else Account()
        grant = account.exchange(report, limits, self.now)
        self.accounts[key] = msgpack.encode(account)
        if self.rng.random() < self.losses:
            return self.at(0.1, lambda: self.lost(process, key))
        return self.at(self.rng.uniform(0.001, 0.02), lambda: self.answered(process, key, grant))

    def lost(self, process: Process, key: str) -> None:
        if process.alive:
            process.desk.fail(key, self.now + process.offset_s, 0.05)

    def answered(self, process: Process, key: str, grant: Any) -> None:
        if process.alive:
            self.begin(process, process.desk.receive(key, grant, self.now + process.offset_s))

    def call(
        self,
        process: Process,
        tokens: float,
        *,
        actual: float | None = None,
        lasts_s: float = 0.5,
        background: bool = False,
        within_s: float = math.inf,
        keys: tuple[str, ...] = (MODEL,),
        limits: tuple[WindowLimits, ...] | None = None,
    ) -> QuotaCall:
        now = self.now + process.offset_s
        ask = QuotaCall(keys, tokens, background, now, now + within_s)
        self.costs[ask] = tokens if actual is None else actual, lasts_s
        self.begin(process, process.desk.enter(ask, limits or (self.limits,) * len(keys), now))
        return ask

    def begin(self, process: Process, asks: list[QuotaCall]) -> None:
        for ask in asks:
            if ask.retry_after_s is not None:
                self.late.append(ask)
                continue
            actual, lasts_s = self.costs[ask]
            self.used.append((self.now, actual))
            self.began.append((self.now, ask))
            self.running.add(ask)
            self.running_most = max(self.running_most, len(self.running))
            self.at(lasts_s, lambda a=ask: self.end(process, a))

    def end(self, process: Process, ask: QuotaCall) -> None:
        self.running.discard(ask)
        if process.alive:
            now = self.now + process.offset_s
            process.desk.leave(ask, self.costs[ask][0], now)
            self.begin(process, process.desk.admit(now))

    def kill(self, process: Process) -> Process:
        process.alive = False
        self.processes.remove(process)
        new = self.process()
        self.processes.append(new)
        return new

    def most_in_a_window(self) -> tuple[float, int]:
        """The most tokens and calls of any window."""
        return most_in_a_window(self.used, self.limits.window_s)


def most_in_a_window(used: list[tuple[float, float]], window_s: float) -> tuple[float, int]:
    most, calls, first, tokens = 0.0, 0, 0, 0.0
    for index, (at, each) in enumerate(used):
        tokens += each
        while used[first][0] <= at - window_s:
            tokens -= used[first][1]
            first += 1
        most, calls = max(most, tokens), max(calls, index - first + 1)
    return most, calls


def arrivals(rng: random.Random, for_s: float, mean_s: float) -> Iterator[float]:
    at = 0.0
    while (at := at + rng.expovariate(1 / mean_s)) < for_s:
        yield at


@pytest.mark.parametrize("kills", [0, 6])
def test_no_window_has_more_than_the_quota_and_load_uses_it(rng: random.Random, kills: int) -> None:
    world, minutes = World(rng, WindowLimits(tokens=1000)), 6
    for at in arrivals(rng, minutes * 60, 0.4):  # About twice the quota.
        world.at(at, lambda: world.call(rng.choice(world.processes), rng.randint(5, 25), lasts_s=rng.uniform(0, 3)))
    for _ in range(kills):
        world.at(rng.uniform(0, minutes * 60), lambda: world.kill(rng.choice(world.processes)))
    world.run(minutes * 60)
    most, _ = world.most_in_a_window()
    assert most <= 1000 * 1.000001
    assert sum(tokens for _, tokens in world.used) >= 0.9 * 1000 * minutes


@pytest.mark.parametrize("_", range(20))
def test_nothing_is_exceeded_in_any_weather(rng: random.Random, _: int) -> None:
    limits = WindowLimits(
        tokens=rng.choice([300.0, 1000.0, math.inf]),
        requests=rng.choice([20.0, 200.0, math.inf]),
        concurrent=rng.choice([1.0, 5.0, math.inf]),
    )
    world = World(rng, limits, rng.randint(1, 5), losses=rng.choice([0.0, 0.1, 0.4]))

    def call() -> None:
        tokens = rng.randint(1, 60)
        world.call(
            rng.choice(world.processes),
            tokens,
            actual=rng.uniform(0.3, 1.0) * tokens,
            lasts_s=rng.uniform(0, 8),
            background=rng.random() < 0.3,
            within_s=rng.choice([5.0, math.inf]),
        )

    for at in arrivals(rng, 180, rng.choice([0.1, 1.0, 5.0])):
        world.at(at, call)
    world.run(180)
    tokens, calls = world.most_in_a_window()
    assert tokens <= limits.tokens + 1e-3
    assert calls <= limits.requests
    assert world.running_most <= limits.concurrent
    assert world.used


def test_each_call_begins_when_the_load_is_over(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000, concurrent=10), losses=0.05)
    asks: list[QuotaCall] = []
    for at in arrivals(rng, 30, 0.2):
        world.at(at, lambda: asks.append(world.call(rng.choice(world.processes), rng.randint(1, 20))))
    asks.append(world.call(world.processes[0], 990))  # A large one is not passed over for ever.
    world.run(600)
    assert all(ask.begun_at < math.inf for ask in asks)


def test_a_quota_of_a_tenant_holds_up_no_other(rng: random.Random) -> None:
    world, tenant = World(rng, WindowLimits(tokens=1000), 2), WindowLimits(tokens=100)
    greedy = [
        world.call(world.processes[0], 50, keys=(MODEL, f"{MODEL} greedy"), limits=(world.limits, tenant))
        for _ in range(10)
    ]
    world.run(1)
    other = world.call(world.processes[0], 50, keys=(MODEL, f"{MODEL} other"), limits=(world.limits, tenant))
    world.run(1)
    assert sum(ask.begun_at < math.inf for ask in greedy) == 2
    assert other.begun_at < math.inf


def test_interactive_calls_go_first_in_one_process_and_in_all(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000), 2)
    here, there = world.processes
    world.call(here, 1000)
    world.run(1)
    world.run(39)
    later = [world.call(each, 100, background=True) for each in (here, there) for _ in range(3)]
    first = [world.call(here, 100) for _ in range(10)]
    world.run(28)
    began = {ask for _, ask in world.began}
    assert began.issuperset(first)
    assert not began.intersection(later)


def test_work_in_the_background_that_has_waited_for_long_counts_as_interactive(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000), 2)
    here, there = world.processes
    world.call(here, 1000)
    world.run(1)
    later = world.call(there, 100, background=True)
    world.run(30)
    for _ in range(20):
        world.call(here, 100)
    world.run(35)
    assert later.begun_at < math.inf


def test_a_process_that_dies_gives_its_block_back() -> None:
    account, limits = Account(), LIMITS
    block = account.exchange(Report("a", want=Want(10, tokens_wished=50, permits_wished=12)), limits, 1000.0)
    assert (block.tokens, block.permits) == (50, 12)
    want = Want(960, tokens_wished=960)
    refused = account.exchange(Report("b", want=want), limits, 1001.0)
    assert refused.tokens == 0
    assert account.exchange(Report("b", want=want), limits, 1000.0 + limits.lease_s + 59.9).tokens == 0
    given = account.exchange(Report("b", want=want), limits, 1000.0 + limits.lease_s + 60.1)
    assert given.tokens == 960
    assert given.permits == 1


def test_a_pause_is_taken_in_by_all(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000), 3)
    for process in world.processes:
        world.call(process, 1)
    world.run(1)
    first, *others = world.processes
    first.desk.throttled(MODEL, 20.0, world.now + first.offset_s)
    paused = world.now
    world.run(LIMITS.lease_s + 0.1)  # Others use up what they hold, for a lease at most.
    asks = [world.call(process, 1) for process in world.processes]
    refused = world.call(others[0], 1, within_s=5)
    world.run(60)
    assert all(at >= paused + 20 for at, ask in world.began if ask in asks)
    assert all(ask.begun_at < math.inf for ask in asks)
    assert refused.retry_after_s == pytest.approx(20 - LIMITS.lease_s - 0.1, abs=0.5)


def test_a_call_that_cannot_begin_in_time_is_told_at_once(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000), 1)
    world.call(world.processes[0], 1000)
    world.run(10)
    ask = world.call(world.processes[0], 10, within_s=20)
    world.run(1)
    assert ask.retry_after_s == pytest.approx(50, abs=3)


def test_no_call_is_refused_for_a_block_that_another_process_may_give_back() -> None:
    account, limits = Account(), WindowLimits(tokens=1000)
    account.exchange(Report("a", want=Want(10, tokens_wished=1000)), limits, 1000.0)
    refused = account.exchange(Report("b", want=Want(500, tokens_wished=500)), limits, 1001.0)
    assert refused.tokens == 0
    assert refused.wait_s <= limits.lease_s


def test_a_call_that_took_less_gives_the_rest_back(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000), 2)
    here, there = world.processes
    world.call(here, 900, actual=100, lasts_s=5)
    world.run(1)
    ask = world.call(there, 800)
    world.run(3)
    assert ask.begun_at == math.inf
    world.run(10)
    assert ask.begun_at < math.inf


def test_calls_that_take_more_than_was_estimated_are_paid_for_later(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1000))
    for at in arrivals(rng, 600, 0.2):
        world.at(at, lambda: world.call(rng.choice(world.processes), 10, actual=rng.choice([5, 16])))
    world.run(600)
    assert world.most_in_a_window()[0] <= 1.1 * 1000
    assert 9_000 <= sum(tokens for _, tokens in world.used) <= 10_500


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    account, limits = Account(), WindowLimits(tokens=100)
    want = Want(100, tokens_wished=100)
    assert account.exchange(Report("a", want=want), limits, 5000.0).tokens == 100
    assert account.exchange(Report("b", want=want), limits, 1000.0).tokens == 0
    assert account.exchange(Report("b", want=want), limits, 1063.0).tokens == 100


def test_an_account_has_a_bounded_size_and_many_calls_share_a_write(rng: random.Random) -> None:
    world = World(rng, WindowLimits(tokens=1e6))
    for at in arrivals(rng, 300, 0.05):
        world.at(at, lambda: world.call(rng.choice(world.processes), 10))
    world.run(300)
    assert len(world.accounts[MODEL]) < 6000
    assert len(world.used) > 5000
    assert world.exchanges < 0.25 * len(world.used)  # Blocks: not one write a call.


def test_a_desk_forgets_tenants_that_are_idle(rng: random.Random) -> None:
    world = World(rng, LIMITS, 1)
    for tenant in range(50):
        world.call(world.processes[0], 1, keys=(MODEL, f"{MODEL} {tenant}"), limits=(LIMITS, LIMITS))
    world.run(30)
    world.call(world.processes[0], 1)
    world.run(30)
    assert len(world.processes[0].desk._purses) <= 1


def test_estimates_are_learned() -> None:
    learned = Learned()
    assert learned.estimate(100, 50) == 150
    for _ in range(40):
        learned.learn(100, 200, 30)
    assert learned.estimate(100, None) == pytest.approx(230, abs=2)
