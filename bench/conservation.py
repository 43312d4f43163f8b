"""Nothing is lost and every ask ends: seeded runs of a tree under failures, kills, restarts, cancellations and a drain.

    python -m bench.conservation --seeds 1000

Each seed runs on asyncio and on trio, on virtual time. What must hold after each run, by the identity of every message:

- every ask and every stream has ended, within virtual minutes;
- every tell that was accepted was either handled once or is one dead letter, never both, never neither;
- `processed` counts exactly the messages that handlers finished;
- whoever should run again does, and everybody stops in time;
- nothing but the expected errors was raised, and no task is left.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import trio._core._run as trio_run

from repertory.errors import (
    ActorDead,
    ActorFailed,
    AlreadyExists,
    AskTimeout,
    Deadlock,
    MailboxFull,
    NotFound,
    RepertoryError,
    StartFailed,
)
from repertory.runtime.actor import Actor
from repertory.runtime.channel import Sink
from repertory.runtime.lifecycle import State
from repertory.runtime.mailbox import DeadLetter, MailboxSettings
from repertory.runtime.message import Ask, Next, Reject, Stream, carry_on, fail, refuse, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import Backoff, ChildSpec, Restart, Strategy, SupervisorSettings
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.system import ActorSystem, SystemSettings
from repertory.runtime.testing.virtual_time import virtual_asyncio, virtual_trio

EXPECTED = (ActorDead, ActorFailed, AlreadyExists, AskTimeout, Deadlock, MailboxFull, NotFound, StartFailed)
CLIENTS, STEPS = 10, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A message that nobody waits for."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(Ask[int]):
    """A message that is answered with its own number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated(Asked):
    """One that is not worth finishing once its asker has gone."""

    on_abandon = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed(Stream[int]):
    """A message that is answered with a few numbers."""

    number: int


@dataclass
class Ledger:
    """What happened to every message of one run."""

    rng: random.Random
    numbers: int = 0
    accepted: set[int] = field(default_factory=set)
    begun: Counter[int] = field(default_factory=Counter)
    dead: Counter[int] = field(default_factory=Counter)
    asks: int = 0
    ended: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    refs: list[ActorRef[object]] = field(default_factory=list)

    def next(self) -> int:
        self.numbers += 1
        return self.numbers

    def choose(self) -> ActorRef[object]:
        """Somebody to speak to; the dead now and then."""
        living = [ref for ref in self.refs if ref.ended is None]
        return self.rng.choice(living if living and self.rng.random() < 0.95 else self.refs)

    def bury(self, letter: DeadLetter) -> None:
        if isinstance(letter.message, Told | Asked | Streamed):
            self.dead[letter.message.number] += 1


class Chaotic(Actor[object]):
    """Does something at random with every message: answers, fails, sleeps, defers, asks a peer, takes a batch."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def on_start(self) -> None:
        await anyio.sleep(self._ledger.rng.choice([0, 0, 0.01]))
        if self._ledger.rng.random() < 0.1:
            raise OSError("did not start")

    async def on_stop(self, reason: object) -> None:
        await anyio.sleep(self._ledger.rng.choice([0, 0.01, 0.1]))
        if self._ledger.rng.random() < 0.05:
            raise OSError("did not stop well")

    async def handle(self, message: object) -> Next:
        rng = self._ledger.rng
        if not isinstance(message, Told | Asked | Streamed):
            return carry_on()
        self._ledger.begun[message.number] += 1
        if rng.random() < 0.3:
            await anyio.sleep(rng.choice([0.001, 0.01, 0.3]))
        if isinstance(message, Streamed):
            return self._stream(message)
        match rng.randrange(14):
            case 0:
                raise ValueError("crashed")
            case 1:
                return fail(ValueError("failed"))
            case 2:
                raise Reject(NotFound("rejected"))
            case 3:
                return refuse(NotFound("refused"))
            case 4 if isinstance(message, Asked):
                return self._defer(message)
            case 5:
                await self._ask_peer()
            case 6:
                for told in self.context.take_queued(5, Told):
                    self._ledger.begun[told.number] += 1
            case 7:
                self.context.after(rng.random() / 10, "timer", key=rng.randrange(3))
            case 8:
                self.context.job(self._work)
            case 9:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._ask_peer)
                    group.start_soon(self._ask_peer)
            case _:
                pass
        return reply(message.number)

    def handle_now(self, message: object) -> Next | None:
        """Half of the messages are handled without waiting, which an idle actor does in its sender's step."""
        rng = self._ledger.rng
        if not isinstance(message, Told | Asked) or rng.random() < 0.5:
            return None
        self._ledger.begun[message.number] += 1
        match rng.randrange(10):
            case 0:
                raise ValueError("crashed at once")
            case 1:
                return fail(ValueError("failed at once"))
            case 2:
                raise Reject(NotFound("rejected at once"))
            case 3 if isinstance(message, Asked):
                return self._defer(message)
            case 4:
                self.context.after(rng.random() / 10, "timer", key=rng.randrange(3))
            case 5:
                self.context.job(self._work)
            case 6:
                for told in self.context.take_queued(5, Told):
                    self._ledger.begun[told.number] += 1
            case _:
                pass
        return reply(message.number)

    def _stream(self, message: Streamed) -> Next:
        sink = self.context.sink()
        job = self.context.job(self._write, sink)
        sink.on_closed = job.cancel
        return carry_on()

    async def _write(self, sink: Sink[object]) -> None:
        for number in range(self._ledger.rng.randrange(8)):
            await sink.send(number)
            await anyio.sleep(0.01)
        if self._ledger.rng.random() < 0.8:
            sink.end()

    def _defer(self, message: Asked) -> Next:
        slot = self.context.defer()

        async def later() -> None:
            await anyio.sleep(0.05)
            if self._ledger.rng.random() < 0.8:
                slot.reply(message.number)

        self.context.job(later)
        return carry_on()

    async def _ask_peer(self) -> None:
        await ask(self._ledger, self._ledger.choose(), timeout_s=self._ledger.rng.random())

    async def _work(self) -> None:
        await anyio.sleep(self._ledger.rng.random() / 10)
        await self._ask_peer()
        if self._ledger.rng.random() < 0.3:
            raise ValueError("job crashed")


async def ask(ledger: Ledger, ref: ActorRef[object], timeout_s: float) -> None:
    """One ask, counted; whatever it ends with must be an answer to it or an expected error."""
    number = ledger.next()
    ledger.asks += 1
    kind = Generated if number % 3 == 0 else Asked
    try:
        answer = await ref.ask(kind(number=number), timeout_s=timeout_s)
        assert answer == number, f"asked {number}, answered {answer}"
    except EXPECTED as error:
        ledger.errors[type(error).__name__] += 1
    finally:
        ledger.ended += 1


async def read(ledger: Ledger, ref: ActorRef[object]) -> None:
    """One stream, perhaps left in the middle."""
    ledger.asks += 1
    leave_at = ledger.rng.randrange(10)
    try:
        async with ref.stream(Streamed(number=ledger.next()), timeout_s=2, buffer=2) as events:
            async for event in events:
                if event == leave_at:
                    break
    except EXPECTED as error:
        ledger.errors[type(error).__name__] += 1
    finally:
        ledger.ended += 1


class Client:
    """Sends, asks, cancels, kills, stops and starts at random."""

    def __init__(self, system: ActorSystem, ledger: Ledger) -> None:
        self._system = system
        self._ledger = ledger

    async def run(self) -> None:
        for _ in range(STEPS):
            await self._step(self._ledger.choose())
            await anyio.sleep(self._ledger.rng.choice([0, 0.001, 0.02]))

    async def _step(self, ref: ActorRef[object]) -> None:
        rng, ledger = self._ledger.rng, self._ledger
        match rng.randrange(12):
            case 0 | 1 | 2:
                self._tell(ref)
            case 3 | 4:
                await self._send(ref)
            case 5 | 6 | 7:
                await ask(ledger, ref, timeout_s=rng.choice([0.01, 0.2, 60]))
            case 8:
                with anyio.move_on_after(rng.random() / 20):
                    await ask(ledger, ref, timeout_s=60)
            case 9:
                await read(ledger, ref)
            case 10:
                await self._disturb(ref)
            case _:
                with anyio.move_on_after(rng.random() / 20):
                    await self._send(ref)

    def _tell(self, ref: ActorRef[object]) -> None:
        number = self._ledger.next()
        try:
            (ref.tell if number % 2 else ref.tell_now)(Told(number=number))
            self._ledger.accepted.add(number)
        except MailboxFull:
            pass

    async def _send(self, ref: ActorRef[object]) -> None:
        number = self._ledger.next()
        try:
            await ref.send(Told(number=number))
            self._ledger.accepted.add(number)
        except MailboxFull:
            pass

    async def _disturb(self, ref: ActorRef[object]) -> None:
        try:
            if self._ledger.rng.random() < 0.5:
                self._system.kill(ref)
            else:
                await self._system.stop(ref)
                again = await self._system.start(_spec(self._ledger, f"new{self._ledger.next()}"))
                self._ledger.refs[self._ledger.refs.index(ref)] = again
        except (*EXPECTED, ValueError):
            pass


def _spec(ledger: Ledger, name: str) -> ChildSpec:
    rng = ledger.rng
    policy = rng.choice(["wait", "wait", "reject", "drop_oldest", "drop_newest"])
    return ChildSpec(
        name=name,
        factory=lambda: Chaotic(ledger),
        restart=rng.choice([*[Restart.PERMANENT] * 5, Restart.TRANSIENT, Restart.TEMPORARY]),
        mailbox=MailboxSettings(capacity=rng.choice([1, 3, 1000]), overflow=policy),
        start_timeout_s=0.5,
        stop_timeout_s=0.3,
    )


def _supervisor(ledger: Ledger, name: str) -> ChildSpec:
    settings = SupervisorSettings(
        strategy=ledger.rng.choice(list(Strategy)),
        intensity=ledger.rng.choice([3, 1000]),
        failures_max=1000,
        backoff=Backoff(base_s=0.01, limit_s=0.1),
        stop_together=ledger.rng.random() < 0.3,
    )
    specs = [_spec(ledger, f"{name}{number}") for number in range(4)]
    return ChildSpec(name=name, factory=lambda: _Registering(specs, settings, ledger), restart=Restart.PERMANENT)


class _Registering(Supervisor):
    """Tells the run who its children are."""

    def __init__(self, specs: list[ChildSpec], settings: SupervisorSettings, ledger: Ledger) -> None:
        super().__init__((), settings)
        self._specs = specs
        self._ledger = ledger

    async def on_start(self) -> None:
        await super().on_start()
        for spec in self._specs:
            with suppress(StartFailed):
                self._ledger.refs.append(await self.context.start_child(spec))


@dataclass(frozen=True)
class Outcome:
    """What one run came to."""

    seed: int
    messages: int
    asks: int
    restarts: int
    dead: int
    violations: tuple[str, ...]


async def simulate(seed: int) -> Outcome:
    """One run."""
    ledger = Ledger(rng=random.Random(seed))
    before = {task.id for task in anyio.get_running_tasks()}
    behind: list[str] = []
    lenient = SupervisorSettings(intensity=10_000, failures_max=10_000, backoff=Backoff(base_s=0.01, limit_s=0.1))
    async with ActorSystem(SystemSettings(supervision=lenient), rng=ledger.rng) as system:
        system.dead_letters.subscribe(ledger.bury)
        for name in "abc":
            await system.start(_supervisor(ledger, name))
        with anyio.fail_after(600):
            async with anyio.create_task_group() as group:
                for _ in range(CLIENTS):
                    group.start_soon(Client(system, ledger).run)
                if seed % 2:
                    await anyio.sleep(ledger.rng.random() * 3)
                    if seed % 4 == 1:
                        group.start_soon(_cut_later, system, ledger.rng.random() / 10)
                    await system.drain()
        if system.healthy:
            await anyio.sleep(5)  # longer than any backoff here
            behind = [actor.path for actor in system.tree().walk() if actor.state is not State.RUNNING]
        report = await system.drain()
    await anyio.lowlevel.checkpoint()
    left = len({task.id for task in anyio.get_running_tasks()} - before)
    stats = system.stats()
    return Outcome(
        seed=seed,
        messages=ledger.numbers,
        asks=ledger.asks,
        restarts=stats.restarts,
        dead=sum(stats.dead_letters.values()),
        violations=tuple(_violations(ledger, stats.processed, left, [*report.unfinished, *behind])),
    )


async def _cut_later(system: ActorSystem, delay_s: float) -> None:
    await anyio.sleep(delay_s)
    system.cut_short()


def _violations(ledger: Ledger, processed: int, left: int, behind: list[str]) -> list[str]:
    found: list[str] = []
    if ledger.asks != ledger.ended:
        found.append(f"{ledger.asks - ledger.ended} asks never ended")
    lost = ledger.accepted - ledger.begun.keys() - ledger.dead.keys()
    if lost:
        found.append(f"accepted tells lost: {sorted(lost)}")
    twice = [number for number, times in (*ledger.begun.items(), *ledger.dead.items()) if times > 1]
    if twice:
        found.append(f"handled or buried twice: {twice}")
    finished = len(ledger.begun.keys() - ledger.dead.keys())
    if processed != finished:
        found.append(f"processed says {processed}, handlers finished {finished}")
    if left:
        found.append(f"{left} tasks are left")
    if behind:
        found.append(f"not restarted, or not stopped in time: {behind}")
    return found


def run(seed: int, backend: str) -> Outcome:
    """One run on a loop of its own, on virtual time."""
    if backend == "asyncio":
        name, asyncio_options = virtual_asyncio()
        return anyio.run(simulate, seed, backend=name, backend_options=dict(asyncio_options))
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)
    name, trio_options = virtual_trio()
    return anyio.run(simulate, seed, backend=name, backend_options=dict(trio_options))


def _run_whatever_happens(seed: int, backend: str) -> Outcome:
    try:
        return run(seed, backend)
    except (AssertionError, ExceptionGroup, RepertoryError, TimeoutError) as error:
        return Outcome(seed, 0, 0, 0, 0, (f"raised {error!r}",))


def main() -> int:
    """Run all seeds on both loops; 1 when anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.getLogger("repertory").setLevel(logging.CRITICAL)
    failed = 0
    for backend in ("asyncio", "trio"):
        began = time.perf_counter()
        totals = Counter[str]()
        for seed in range(arguments.first, arguments.first + arguments.seeds):
            outcome = _run_whatever_happens(seed, backend)
            totals.update(messages=outcome.messages, asks=outcome.asks, restarts=outcome.restarts, dead=outcome.dead)
            if outcome.violations:
                failed += 1
                print(f"{backend} seed {seed}: {'; '.join(outcome.violations)}", flush=True)
        took = time.perf_counter() - began
        print(f"{backend}: {arguments.seeds} seeds, {dict(totals)}, {took:.1f} s", flush=True)
    print(f"violations: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
