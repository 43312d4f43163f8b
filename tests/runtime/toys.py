"""Small actors that the runtime's tests play with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import anyio

from repertory.runtime.actor import Actor
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Ask, Next, carry_on, reply
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec, Restart


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Ask[int]):
    """Add, and answer with the total."""

    amount: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bump:
    """Add one, told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total(Ask[int]):
    """The total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """Raise `ValueError`, told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashAsked(Ask[int]):
    """Raise `ValueError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nap(Ask[str]):
    """Sleep inside the handler, then answer."""

    seconds: float


CounterMessage: TypeAlias = Add | Bump | Total | Crash | CrashAsked | Nap


class Counter(Actor[CounterMessage]):
    """Counts, fails on demand, and writes its life down in `log`."""

    def __init__(self, log: list[str] | None = None, name: str = "counter") -> None:
        self.total = 0
        self._log = [] if log is None else log
        self._name = name

    async def on_start(self) -> None:
        self._log.append(f"{self._name} started")

    async def handle(self, message: CounterMessage) -> Next:
        match message:
            case Add(amount=amount):
                self.total += amount
                return reply(self.total)
            case Bump():
                self.total += 1
                return carry_on()
            case Total():
                return reply(self.total)
            case Nap(seconds=seconds):
                await anyio.sleep(seconds)
                return reply("awake")
            case Crash() | CrashAsked():
                raise ValueError("as ordered")

    async def on_stop(self, reason: ExitReason) -> None:
        self._log.append(f"{self._name} stopped: {type(reason).__name__}")

    def summary(self) -> object:
        return {"total": self.total}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Ask[object]):
    """Run the script given to the actor's constructor, and answer with what it returns."""


Script: TypeAlias = Callable[["Scripted", object], Awaitable[Next]]


class Scripted(Actor[object]):
    """Handles every message with the one function that it was given."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def handle(self, message: object) -> Next:
        return await self._script(self, message)


def counter(
    name: str = "counter",
    log: list[str] | None = None,
    restart: Restart = Restart.PERMANENT,
    mailbox: MailboxSettings | None = None,
    stop_timeout_s: float = 5.0,
) -> ChildSpec:
    """The spec of a counter."""
    return ChildSpec(
        name=name,
        factory=lambda: Counter(log, name),
        restart=restart,
        mailbox=mailbox or MailboxSettings(),
        stop_timeout_s=stop_timeout_s,
    )


def scripted(script: Script, name: str = "scripted", restart: Restart = Restart.PERMANENT) -> ChildSpec:
    """The spec of an actor that handles every message with `script(actor, message)`."""
    return ChildSpec(name=name, factory=lambda: Scripted(script), restart=restart)


class Gate:
    """Holds everybody who passes until it is opened, and says when somebody waits."""

    def __init__(self) -> None:
        self._open = anyio.Event()
        self.reached = anyio.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self.reached.set()
        await self._open.wait()


async def settle(rounds: int = 20) -> None:
    """Let everything run that can run without time passing."""
    for _ in range(rounds):
        await anyio.lowlevel.checkpoint()


def ended(ref: ActorRef[object]) -> bool:
    """Whether the address has ended for good."""
    return ref.ended is not None
