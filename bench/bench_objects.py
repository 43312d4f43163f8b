"""What a session on an object store costs: requests, bytes and time per turn, and opening against length.

The object store is memory behind a counter, so counts are exact. For the times every request takes 50 ms longer, which
is about what a bucket takes; the bare limit is one such request.
"""

from __future__ import annotations

import random
import sys
import time

import anyio

from bench.harness import Figure, report
from repertory import (
    AgentSpec,
    InMemoryStorage,
    JournalSessions,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    tool,
)
from repertory.backends.ports import ObjectStore
from repertory.testing.counting_objects import CountingObjectStore

LATENCY_S = 0.05
TURNS = 400
SESSIONS = 20
WORDS = ["".join(random.Random(seed).choices("etaoinshrdlucmfwypvbgkjqxz", k=2 + seed % 8)) for seed in range(2000)]


class Counted(InMemoryStorage):
    """Memory, with everything counted that is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.latency_s = 0.0
        self.last: CountingObjectStore | None = None

    def open_objects(self, writer: str) -> ObjectStore:
        self.last = CountingObjectStore(super().open_objects(writer), latency_s=self.latency_s)
        return self.last

    @property
    def count(self) -> CountingObjectStore:
        """What was opened last."""
        assert self.last is not None
        return self.last


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool(effects=False)
def look() -> str:
    """Look something up."""
    return "seen"


def agent(*replies: object, loop: bool = True) -> AgentSpec:
    manager = SlidingWindowConversationManager(window_size=40)
    model = ScriptedModel(list(replies), loop=loop)
    return AgentSpec(model=model, tools=[pay, look], conversation_manager=manager)


def said(rng: random.Random, bytes_wanted: int = 1000) -> str:
    words = ""
    while len(words) < bytes_wanted:
        words += f"{rng.choice(WORDS)} "
    return words[:bytes_wanted]


async def requests_of(*replies: object) -> int:
    """Requests of a later turn with these answers."""
    storage = Counted()
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent("hello", *replies, loop=False)).session("s")
        await session.invoke("hi")
        storage.count.take()
        await session.invoke("go")
        return sum(storage.count.take().values())


async def bytes_per_turn() -> tuple[float, float, float]:
    """Bytes put, bytes said and requests per turn of 1 KB asked and 1 KB answered, with all that is tidied."""
    rng = random.Random(1)
    storage = Counted()
    spoken = 0

    def answer(*request: object) -> str:
        del request
        return said(rng)

    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent(answer)).session("s")
        for _ in range(TURNS):
            await session.invoke(said(rng))
            spoken += 2000
            await anyio.sleep(0.002)
    count = storage.count
    return count.bytes_put, spoken, sum(count.requests.values()) / TURNS


async def filled(messages: int) -> Counted:
    storage = Counted()
    rng = random.Random(2)
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent(lambda *request: said(rng, 100))).session("s")
        for _ in range(messages // 2):
            await session.invoke(said(rng, 100))
        while storage.count.take():  # noqa: ASYNC110 - what is tidied in the background is no part of opening
            await anyio.sleep(0.1)
    return storage


async def opening(storage: Counted) -> tuple[float, float]:
    """Milliseconds from asking for the session until its model is called on a slow store, and the requests of that."""
    called: list[float] = []

    def answer(*request: object) -> str:
        del request
        called.append(time.perf_counter())
        return "ok"

    storage.latency_s = LATENCY_S
    times: list[float] = []
    requests = 0
    for _ in range(5):
        async with Runtime(sessions=JournalSessions(storage)) as runtime:
            session = runtime.agent(agent(answer)).session("s")
            began = time.perf_counter()
            await session.messages()
            requests = sum(storage.count.requests.values())
            await session.invoke("and?")
            times.append((called[-1] - began) * 1e3)
    storage.latency_s = 0.0
    return sorted(times)[2], requests


async def reading(storage: Counted) -> float:
    """Requests of reading the whole history."""
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent("ok")).session("s")
        await session.messages()
        storage.count.take()
        await session.history()
        return sum(storage.count.take().values())


async def slow_turns(sessions: int, turns: int) -> tuple[float, float]:
    """Milliseconds of a turn (all sessions talk at once) and of a bare request, on a slow store."""
    storage = Counted()
    storage.latency_s = LATENCY_S
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        hosted = runtime.agent(agent("a plain answer"))

        async def talk(number: int) -> None:
            for _ in range(turns):
                await hosted.session(f"s{number}").invoke("a plain question")

        for number in range(sessions):
            await hosted.session(f"s{number}").messages()
        began = time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(talk, number)
        ours = (time.perf_counter() - began) / turns * 1e3
        began = time.perf_counter()
        for _ in range(turns):
            await storage.count.list("none/")
        return ours, (time.perf_counter() - began) / turns * 1e3


def main() -> int:
    use_pay = {"toolUse": {"name": "pay", "input": {"amount": 1}}}
    use_look = {"toolUse": {"name": "look", "input": {}}}
    plain = anyio.run(requests_of, "a plain answer")
    one = anyio.run(requests_of, use_pay, "paid")
    three = anyio.run(requests_of, use_pay, use_pay, use_pay, "paid")
    harmless = anyio.run(requests_of, use_look, "seen")
    put, spoken, per_turn = anyio.run(bytes_per_turn)
    short, long = anyio.run(filled, 100), anyio.run(filled, 10_000)
    middle_ms, middle_requests = anyio.run(opening, anyio.run(filled, 200))
    short_ms, short_requests = anyio.run(opening, short)
    long_ms, long_requests = anyio.run(opening, long)
    turn_ms, bare_ms = anyio.run(slow_turns, 1, 40)
    many_ms, _ = anyio.run(slow_turns, SESSIONS, 20)
    return report(
        [
            Figure("requests of a plain turn", plain, 1.0, 1.0, ""),
            Figure("requests of a turn, one step with effects", one, 1.0, 2.0, ""),
            Figure("requests of a turn, three steps with effects", three, 1.0, 4.0, ""),
            Figure("requests of a turn, tools without effects", harmless, 1.0, 1.0, ""),
            Figure("requests per turn, all that is tidied included", per_turn, 1.0, None, ""),
            Figure("bytes put against bytes said", put, spoken, 1.5, "B"),
            Figure("requests to open 200 messages", middle_requests, 1.0, 3.0, ""),
            Figure("opening 200 messages, 50 ms per request", middle_ms, bare_ms, None, "ms"),
            Figure("requests to open 10,000 against 100 messages", long_requests, short_requests, 1.3, ""),
            Figure("opening 10,000 against 100 messages", long_ms, short_ms, 1.3, "ms"),
            Figure("requests to read 10,000 messages", anyio.run(reading, long), 1.0, None, ""),
            Figure("turn against one request of 50 ms", turn_ms, bare_ms, 1.2, "ms"),
            Figure(f"turn of {SESSIONS} sessions at once", many_ms, bare_ms, 2.0, "ms"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
