"""The whole demonstration: customers talk, workers die, and in the end every acknowledged turn is there.

talk       each customer says its lines to the current worker
kill       now and then, in the middle of turns, the worker gets SIGKILL, and a new one is started
drain      the last worker gets SIGTERM while turns are running
check      the journals are read from the database and compared with the acknowledged turns
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import anyio

from examples.demo.exchange import Exchange, Fate, exchanges, fate
from examples.demo.orders import ORDER_TOOL, Order, read_orders
from examples.demo.worker import ORDER_PAUSES, WorkerSettings
from examples.demo.worker_process import Refused, WorkerLost, WorkerProcess, started
from repertory.app.host.model_choice import Chosen
from repertory.app.sessions.sessions import SQLiteSessions
from repertory.core.journal.restore import messages_of, records_of
from repertory.core.journal.rows import verify
from repertory.core.messages import Message, ToolUse, check_next, tool_results, tool_uses
from repertory.errors import Corrupt, Failed, UnpairedTools

NAMES = ("ada", "ben", "cleo", "dora", "emil", "finn", "gita", "hugo")
AIM_TIMEOUT_S = 3.0
Aim = Literal["a turn", "before an order", "after an order"]
AIMS: tuple[Aim, ...] = ("a turn", "before an order", "after an order")
"""The targets of kills, in rotation: any turn, or a tool with effects before or after its effect."""
DRAIN_TIMEOUT_S = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The length of the run, its customers, and the number of kills."""

    folder: Path
    lines: Sequence[str]
    model: Chosen
    seed: int
    sessions: int = 4
    seconds: float = 12.0
    """The time from the start to the drain."""
    kills: int = 6
    pause_s: float = 0.02
    """How long the offline model waits before each event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run."""

    checks: Sequence[Check]
    resumed: Mapping[str, int]
    """By kind: how often turns continued after a kill."""
    killed_in_turn: int
    """Kills that hit at least one running turn."""
    drain: Mapping[str, Any]
    """The last worker's `DrainReport`, as JSON."""
    exit_code: int | None
    """The exit code of the last worker."""
    in_flight_at_drain: int
    answered_in_drain: int

    @property
    def good(self) -> bool:
        """Whether every check held."""
        return self.exit_code == 0 and bool(self.drain.get("ok")) and not any(one.problems for one in self.checks)


class Demonstration:
    """One run. `say` is called with each line of the report."""

    def __init__(self, settings: DemoSettings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._rng = random.Random(settings.seed)
        self._worker_settings = WorkerSettings(folder=settings.folder, model=settings.model, pause_s=settings.pause_s)
        self._talkers = [
            Talker(name, settings.lines, self._worker_settings.book(name), self._pauses(name))
            for name in names(settings.sessions)
        ]
        self._worker: WorkerProcess | None = None
        self._changed = anyio.Event()
        self._ordering = anyio.Event()
        self._closing = False
        self._killed_in_turn = 0
        self._hit_by_drain: list[Talker] = []

    async def run(self) -> Outcome:
        """Talk, kill, drain, check. Errors: `Failed` when a worker does not start or does not drain."""
        async with anyio.create_task_group() as talking:
            for talker in self._talkers:
                talking.start_soon(talker.talk, self._next_worker)
            for number, seconds in enumerate(self._pauses_before_kills()):
                await self._serve_until_killed(seconds, AIMS[number % len(AIMS)])
            await self._serve_until_drained()
        return await self._outcome()

    async def _serve_until_killed(self, seconds: float, aim: Aim) -> None:
        async with started(self._worker_settings, self._heard, self._log) as worker:
            self._came_up(worker)
            await anyio.sleep(seconds)
            await self._take_aim(aim)
            await self._kill(worker)

    async def _serve_until_drained(self) -> None:
        async with started(self._worker_settings, self._heard, self._log) as worker:
            self._came_up(worker)
            await anyio.sleep(self._settings.seconds / (self._settings.kills + 1))
            await self._drain(worker)

    @property
    def _log(self) -> Path:
        return self._settings.folder / "worker.log"

    def _pauses(self, name: str) -> Iterator[float]:
        """How long a customer thinks before each line, so that customers do not speak at the same time."""
        rng = random.Random(f"{self._settings.seed} {name}")
        while True:
            yield rng.uniform(0, 20 * self._settings.pause_s)

    def _pauses_before_kills(self) -> list[float]:
        """How long each worker lives before it is aimed at."""
        slot = self._settings.seconds / (self._settings.kills + 1)
        return [self._rng.uniform(0.3, 1.0) * slot for _ in range(self._settings.kills)]

    def _came_up(self, worker: WorkerProcess) -> None:
        told = sum(len(talker.acknowledged) for talker in self._talkers)
        self._say(f"worker {worker.pid} is up; {told} turns acknowledged so far")
        self._worker = worker
        self._changed.set()
        self._changed = anyio.Event()

    async def _next_worker(self) -> WorkerProcess | None:
        """The current worker, or the next one; None when there will be none."""
        while not self._closing and (self._worker is None or self._worker.gone.is_set()):
            await self._changed.wait()
        return None if self._closing else self._worker

    def _heard(self, event: Mapping[str, Any]) -> None:
        if event.get("tool") == ORDER_TOOL:
            self._ordering.set()
            self._ordering = anyio.Event()

    async def _take_aim(self, aim: Aim) -> None:
        """Wait for the moment of the kill."""
        half_s = ORDER_PAUSES * self._settings.pause_s
        if aim != "a turn":
            with anyio.move_on_after(AIM_TIMEOUT_S):
                await self._ordering.wait()
        await anyio.sleep(self._rng.uniform(0, half_s) + (half_s if aim == "after an order" else 0))

    def _in_flight(self) -> list[Talker]:
        return [talker for talker in self._talkers if talker.in_flight is not None]

    async def _kill(self, worker: WorkerProcess) -> None:
        hit = self._in_flight()
        self._killed_in_turn += bool(hit)
        worker.kill()
        await worker.gone.wait()
        self._say(f"worker {worker.pid} killed with SIGKILL; in the middle of a turn: {_listed(hit)}")

    async def _drain(self, worker: WorkerProcess) -> None:
        """Send SIGTERM under load and wait for the end. Errors: `Failed` when the worker does not end by itself."""
        hit = self._hit_by_drain = self._in_flight()
        self._closing = True
        worker.terminate()
        self._say(f"worker {worker.pid} asked to stop with SIGTERM; in the middle of a turn: {_listed(hit)}")
        with anyio.move_on_after(DRAIN_TIMEOUT_S):
            await worker.gone.wait()
        self._changed.set()
        if not worker.gone.is_set() or worker.drained is None:
            raise Failed("the worker did not drain", pid=worker.pid, log=str(self._log))

    async def _outcome(self) -> Outcome:
        assert self._worker is not None
        worker, hit = self._worker, self._hit_by_drain
        evidence = await gather(self._talkers, self._worker_settings)
        resumed: Counter[str] = Counter()
        for talker in self._talkers:
            resumed.update(talker.resumed)
        return Outcome(
            checks=check(evidence),
            resumed=resumed,
            killed_in_turn=self._killed_in_turn,
            drain=worker.drained or {},
            exit_code=worker.exit_code,
            in_flight_at_drain=len(hit),
            answered_in_drain=sum(talker.in_flight is None and not talker.refused for talker in hit),
        )


async def gather(talkers: Sequence[Talker], settings: WorkerSettings) -> list[Evidence]:
    """The stored messages and orders beside the acknowledged turns. Errors: `CorruptJournal`."""
    sessions = SQLiteSessions(settings.database)
    owners = {info.session_id: info.owner for info in await sessions.list()}
    store = sessions.open_store()
    found: list[Evidence] = []
    try:
        for talker in talkers:
            rows = await store.load(talker.session_id, "default", whole=True)
            verify(rows, session_id=talker.session_id)
            messages = messages_of(records_of(rows, session_id=talker.session_id))
            evidence = Evidence(
                session_id=talker.session_id,
                acknowledged=talker.acknowledged,
                in_flight=talker.in_flight,
                messages=list(messages.values()),
                orders=read_orders(settings.book(talker.session_id)),
                owner=owners.get(talker.session_id),
            )
            found.append(evidence)
    finally:
        await store.aclose()
    return found


def names(count: int) -> list[str]:
    """That many session ids."""
    return [NAMES[number] if number < len(NAMES) else f"customer-{number + 1}" for number in range(count)]


def _listed(talkers: Sequence[Talker]) -> str:
    return ", ".join(talker.session_id for talker in talkers) or "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The final state of one session, from all sources."""

    session_id: str
    acknowledged: Sequence[Exchange]
    """The acknowledged turns, in order."""
    in_flight: str | None
    """The customer's last prompt, if it has no answer."""
    messages: Sequence[Message]
    """The stored messages."""
    orders: Sequence[Order]
    """The orders in the book."""
    owner: str | None
    """The session's owner, if it has one still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One claim: the number of things checked, and the problems found."""

    claim: str
    count: int
    problems: Sequence[str]


def check(evidence: Sequence[Evidence]) -> list[Check]:
    """Every claim, checked on all sessions."""
    placed = sum(len(one.orders) for one in evidence)
    told = sum(len(one.acknowledged) for one in evidence)
    stored = sum(len(exchanges(one.messages)) for one in evidence)
    reported = sum(len(_reported_orders(one)) for one in evidence)
    claims = (
        ("acknowledged turns are stored, word for word, in order", told, _lost),
        ("stored turns are those that were said, once each", stored, _invented),
        ("messages follow each other with tools and results paired", _message_count(evidence), _unpaired),
        ("orders in the book were placed once per idempotency key", placed, _placed_twice),
        ("orders that a conversation knows stand in the book", reported, _never_placed),
        ("orders in the book are known to their conversation", placed, _forgotten_orders),
        ("sessions have no owner after the drain", len(evidence), _still_owned),
    )
    return [
        Check(
            claim=claim, count=count, problems=[f"{one.session_id}: {text}" for one in evidence for text in find(one)]
        )
        for claim, count, find in claims
    ]


def _lost(one: Evidence) -> Iterator[str]:
    stored = exchanges(one.messages)
    for number, told in enumerate(one.acknowledged):
        if number >= len(stored):
            yield f"turn {number + 1} is gone: {told.prompt!r}"
        elif stored[number] != told:
            yield f"turn {number + 1} was acknowledged as {told} and is stored as {stored[number]}"


def _invented(one: Evidence) -> Iterator[str]:
    rest = exchanges(one.messages)[len(one.acknowledged) :]
    if rest and rest[0].prompt == one.in_flight:
        rest = rest[1:]
    for extra in rest:
        yield f"nobody said {extra.prompt!r} at this place"


def _unpaired(one: Evidence) -> Iterator[str]:
    for previous, message in pairwise([None, *one.messages]):
        assert message is not None
        try:
            check_next(previous, message)
        except UnpairedTools as error:
            yield str(error)


def _placed_twice(one: Evidence) -> Iterator[str]:
    for key, times in Counter(order.key for order in one.orders).items():
        if times > 1:
            yield f"placed {times} times: {key}"


def _never_placed(one: Evidence) -> Iterator[str]:
    in_book = {order.tool_use_id for order in one.orders}
    for use_id in _reported_orders(one):
        if use_id not in in_book:
            yield f"the conversation has a receipt for an order that is not in the book: {use_id}"


def _forgotten_orders(one: Evidence) -> Iterator[str]:
    known = _reported_orders(one)
    asked = {use["toolUseId"] for use in _open_uses(one)}
    for order in one.orders:
        if order.tool_use_id not in known and order.tool_use_id not in asked:
            yield f"placed, and the conversation does not know: {order.item!r}"


def _still_owned(one: Evidence) -> Iterator[str]:
    if one.owner is not None:
        yield f"owned by {one.owner}"


def _reported_orders(one: Evidence) -> set[str]:
    """Tool use ids of the orders that succeeded according to the conversation."""
    uses = {use["toolUseId"] for message in one.messages for use in tool_uses(message) if use["name"] == ORDER_TOOL}
    results = (result for message in one.messages for result in tool_results(message))
    return {result["toolUseId"] for result in results if result["status"] == "success"} & uses


def _open_uses(one: Evidence) -> Iterator[ToolUse]:
    """Tool uses of a last message that waits for their results."""
    if one.messages:
        yield from tool_uses(one.messages[-1])


def _message_count(evidence: Sequence[Evidence]) -> int:
    return sum(len(one.messages) for one in evidence)


# One customer of the demonstration: says line after line, and keeps the acknowledged turns.
#
# A customer knows only its own side. When the worker is gone, the customer asks the next worker for the history to find
# out about its last line, and continues from there.

INEXPLICABLE = "the history did not fit what was acknowledged: gave up"
FOUND = "unknown outcome: the order was in the book, so its receipt was given"
NOT_FOUND = "unknown outcome: the order was not in the book, so it was placed now"


class Talker:
    """The client side of one session."""

    def __init__(self, session_id: str, lines: Sequence[str], book: Path, pauses: Iterator[float]) -> None:
        """`book`: the session's order book, which shows what really happened. `pauses`: seconds before each line."""
        self.session_id = session_id
        self._lines = itertools.cycle(lines)
        self._book = book
        self._pauses = pauses
        self.acknowledged: list[Exchange] = []
        self.in_flight: str | None = None
        """The prompt that has no answer yet."""
        self.resumed: Counter[str] = Counter()
        """By kind: how often turns continued after a kill."""
        self.refused = 0
        """Lines that a draining worker refused."""
        self._uncertain = False

    async def talk(self, next_worker: Callable[[], Awaitable[WorkerProcess | None]]) -> None:
        """Talk until there is no worker any more, or the history contradicts the acknowledged turns.

        Errors: `Refused` for a refusal that no drain explains.
        """
        await anyio.sleep(next(self._pauses))
        while (worker := await next_worker()) is not None:
            try:
                await self._take_turn(worker)
            except WorkerLost:
                self._uncertain = self.in_flight is not None
            except Corrupt:
                self.resumed[INEXPLICABLE] += 1
                return  # the checks say what is wrong
            except Refused as error:
                if error.fields["kind"] not in ("Unavailable", "ActorDead"):
                    raise
                self.refused += 1  # Its prompt may be stored all the same, if it was said before a kill.
                return

    async def _take_turn(self, worker: WorkerProcess) -> None:
        if self.in_flight is None:
            self.in_flight = next(self._lines)
        prompt = self.in_flight
        reply = await (self._resume(worker, prompt) if self._uncertain else self._say(worker, prompt))
        while reply["stop_reason"] == "interrupt":
            responses = {interrupt["id"]: self._settle(interrupt) for interrupt in reply["interrupts"]}
            reply = await worker.ask("answer", self.session_id, {"responses": responses})
        if reply["stop_reason"] != "cancelled":
            self.acknowledged.append(Exchange(prompt, reply["text"]))
            self.in_flight = None
        self._uncertain = False
        await anyio.sleep(next(self._pauses))

    async def _say(self, worker: WorkerProcess, prompt: str) -> Mapping[str, Any]:
        return await worker.ask("say", self.session_id, {"prompt": prompt})

    async def _resume(self, worker: WorkerProcess, prompt: str) -> Mapping[str, Any]:
        """Find out how far the prompt got, and do the rest. Errors: `Corrupt` when the history cannot be explained."""
        messages = (await worker.ask("history", self.session_id))["messages"]
        what = fate(messages, len(self.acknowledged), prompt)
        match what:
            case Fate.UNHEARD:
                reply = await self._say(worker, prompt)
            case Fate.UNANSWERED:
                reply = await worker.ask("go_on", self.session_id)
            case Fate.ANSWERED:
                reply = {"stop_reason": "end_turn", "text": exchanges(messages)[-1].answer}
        self.resumed[what] += 1
        return reply

    def _settle(self, interrupt: Mapping[str, Any]) -> object:
        """The answer about an order of unknown outcome, from the book."""
        use_id = interrupt["reason"]["toolUseId"]
        receipts = [order.receipt for order in read_orders(self._book) if order.tool_use_id == use_id]
        self.resumed[FOUND if receipts else NOT_FOUND] += 1
        return {"result": receipts[0]} if receipts else "retry"
