"""What a journal on an object store costs: requests and bytes per turn, and requests to open and to read it.

The object store is memory behind a counter, so counts are exact. Times are measured by `latency` and `opening`.
"""

from __future__ import annotations

import random
import sys

import anyio

from bench.counted import Counted, said
from bench.harness import Figure, report
from repertory import (
    Agent,
    AgentSpec,
    JournalSessionManager,
    JournalSessions,
    Runtime,
    ScriptedModel,
    SlidingWindowConversationManager,
    tool,
)

TURNS = 400


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


async def requests_of(*replies: object) -> int:
    """Requests of a later turn with these answers."""
    storage = Counted()
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent("hello", *replies, loop=False)).session("s")
        await session.invoke("hi")
        storage.count.take()
        await session.invoke("go")
        return sum(storage.count.take().values())


async def requests_of_a_call() -> int:
    """Requests of a call outside any block, of a session that was called before."""
    storage = Counted()
    manager = JournalSessionManager("s", storage=storage)
    bare = Agent(ScriptedModel(["hello"], loop=True), session_manager=manager, callback_handler=None)
    await bare.invoke_async("hi")
    storage.count.take()
    await bare.invoke_async("go")
    return sum(storage.count.take().values())


async def bytes_per_turn() -> tuple[float, float, float]:
    """Bytes put, bytes said and requests per turn of 1 KB asked and 1 KB answered, with all that is tidied."""
    rng = random.Random(1)
    storage = Counted()
    spoken = 0

    def answer(*request: object) -> str:
        del request
        return said(rng, 1000)

    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent(answer)).session("s")
        for _ in range(TURNS):
            await session.invoke(said(rng, 1000))
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


async def opening(storage: Counted) -> float:
    """Requests until the session is open."""
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        await runtime.agent(agent("ok")).session("s").messages()
        return sum(storage.count.requests.values())


async def reading(storage: Counted) -> float:
    """Requests of reading the whole history."""
    async with Runtime(sessions=JournalSessions(storage)) as runtime:
        session = runtime.agent(agent("ok")).session("s")
        await session.messages()
        storage.count.take()
        await session.history()
        return sum(storage.count.take().values())


def main() -> int:
    use_pay = {"toolUse": {"name": "pay", "input": {"amount": 1}}}
    use_look = {"toolUse": {"name": "look", "input": {}}}
    plain = anyio.run(requests_of, "a plain answer")
    one = anyio.run(requests_of, use_pay, "paid")
    three = anyio.run(requests_of, use_pay, use_pay, use_pay, "paid")
    harmless = anyio.run(requests_of, use_look, "seen")
    put, spoken, per_turn = anyio.run(bytes_per_turn)
    long = anyio.run(filled, 10_000)
    short_requests, middle_requests = (anyio.run(opening, anyio.run(filled, messages)) for messages in (100, 200))
    return report(
        [
            Figure("requests of a plain turn", plain, 1.0, 1.0, ""),
            Figure("requests of a call outside any block", anyio.run(requests_of_a_call), 1.0, 3.0, ""),
            Figure("requests of a turn, one step with effects", one, 1.0, 2.0, ""),
            Figure("requests of a turn, three steps with effects", three, 1.0, 4.0, ""),
            Figure("requests of a turn, tools without effects", harmless, 1.0, 1.0, ""),
            Figure("requests per turn, all that is tidied included", per_turn, 1.0, None, ""),
            Figure("bytes put against bytes said", put, spoken, 1.5, "B"),
            Figure("requests to open 200 messages", middle_requests, 1.0, 3.0, ""),
            Figure("requests to open 10,000 against 100 messages", anyio.run(opening, long), short_requests, 1.3, ""),
            Figure("requests to read 10,000 messages", anyio.run(reading, long), 1.0, None, ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
