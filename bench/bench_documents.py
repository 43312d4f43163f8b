"""What a session in the documented layout costs on a bucket: requests per turn, and requests to open it.

The bucket is memory behind a counter, so counts are exact. The SDK that shares the layout takes 2, 6 and 14 requests
for these turns, and 205 to open 200 messages. Ours are the same documents, and a commit of the journal for each step. A
long tree is opened by listings of its last documents, side by side.
"""

from __future__ import annotations

import sys
from collections import Counter

import anyio

from bench.counted import CountedDocuments
from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, SlidingWindowConversationManager, tool

USE = {"toolUse": {"name": "pay", "input": {"amount": 1}}}


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def agent(*replies: object, loop: bool = False) -> AgentSpec:
    manager = SlidingWindowConversationManager(window_size=40)
    return AgentSpec(model=ScriptedModel(list(replies), loop=loop), tools=[pay], conversation_manager=manager)


async def requests_of(*replies: object) -> Counter[str]:
    """The requests of a later turn with these answers."""
    documents = CountedDocuments()
    async with Runtime(sessions=documents) as runtime:
        session = runtime.agent(agent("hello", *replies)).session("s")
        await session.invoke("hi")
        documents.count.take()
        await session.invoke("go")
        return Counter(documents.count.take())


async def requests_to_open(messages: int) -> float:
    """Requests until the model of the first turn is called, in a session that was given up in good order."""
    documents = CountedDocuments()
    async with Runtime(sessions=documents) as runtime:
        session = runtime.agent(agent("an answer", loop=True)).session("s")
        for _ in range(messages // 2):
            await session.invoke("a question")
    async with Runtime(sessions=documents) as runtime:
        await runtime.agent(agent("ok")).session("s").messages()
        return sum(documents.count.requests.values())


def main() -> int:
    plain, one, three = (
        anyio.run(requests_of, *replies)
        for replies in (("a plain answer",), (USE, "paid"), (USE, USE, USE, "paid three times"))
    )
    reads = sum(counted["get"] + counted["list"] for counted in (plain, one, three))
    return report(
        [
            Figure("puts of a plain turn", plain["put"], 1.0, 3.0, ""),
            Figure("puts of a turn with a tool", one["put"], 1.0, 6.0, ""),
            Figure("puts of a turn with three tools in a row", three["put"], 1.0, 12.0, ""),
            Figure("reads of all of them", reads, 1.0, 0.0, ""),
            Figure("requests to open 200 messages", anyio.run(requests_to_open, 200), 1.0, 4.0, ""),
            Figure("requests to open 2,000 messages", anyio.run(requests_to_open, 2000), 1.0, 10.0, ""),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
