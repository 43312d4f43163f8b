"""Owes four kinds of work, says so, and waits to be killed: a run, a timer, a question that expires, and memories.

Argument: the database. `Desk` is also what the process has that does the work.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio

from repertory import (
    Agent,
    AgentSpec,
    ExtractionConfig,
    ExtractionResult,
    Graph,
    InvocationTrigger,
    MemoryManager,
    Model,
    Runtime,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
    ToolContext,
    tool,
)
from repertory.core.messages import Message

LATER_S = 5.0
"""When the timer is due, and the question expires."""
PENDING_WORK = {"run": "turn", "timer": "timer", "question": "expiry", "memory": "memory"}
"""Why, by session."""


class Silent(Model):
    """Never answers."""

    async def stream(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await anyio.sleep_forever()
        yield {}


class Desk:
    """The agents and the graph of one process."""

    name, description, max_search_results, writable = "desk", "What was said.", 5, True

    def __init__(self, *, works: bool) -> None:
        """`works`: whether its models and its extractor answer, and what it sets is due later."""
        self.works = works
        self.kept: list[str] = []
        """What its memory store was given."""
        self.extraction = ExtractionConfig(trigger=InvocationTrigger(), extractor=self)

    async def add(self, content: str, metadata: Any = None, *, context: Any = None) -> None:
        del metadata, context
        self.kept.append(content)

    async def search(self, query: str, options: Any = None) -> list[Any]:
        del query, options
        return []

    async def extract(self, messages: Sequence[Message], context: Any) -> list[ExtractionResult]:
        del context
        if not self.works:
            await anyio.sleep_forever()
        return [ExtractionResult(f"{len(messages)} messages")]

    def team(self, _: str) -> Graph:
        model = ScriptedModel(["the run is over"]) if self.works else Silent()
        return Graph({"clerk": Agent(model, callback_handler=None)}, id="team")

    def clerk(self) -> AgentSpec:
        return AgentSpec(name="clerk", model=ScriptedModel(["here I am"]))

    def asker(self) -> AgentSpec:
        @tool
        async def send(tool_context: ToolContext) -> str:
            """Send if a person allows it."""
            return str(tool_context.interrupt("may I", expires_s=LATER_S))

        asks = [{"toolUse": {"name": "send", "input": {}}}]
        return AgentSpec(name="asker", model=ScriptedModel(["nobody said so"] if self.works else [asks]), tools=[send])

    def scribe(self) -> AgentSpec:
        memory = MemoryManager(stores=[self], injection=False)
        return AgentSpec(name="scribe", model=ScriptedModel(["noted"]), memory_manager=memory)


async def main() -> None:
    place, desk = SQLiteSessions(sys.argv[1]), Desk(works=False)
    async with Runtime(sessions=place) as runtime, anyio.create_task_group() as group:
        run = runtime.orchestrator("team", desk.team).session("run")
        group.start_soon(lambda: run.invoke("work", idempotency_token="the run"))
        await runtime.schedule(runtime.agent(desk.clerk()).session("timer"), "it is time", in_s=LATER_S)
        await runtime.agent(desk.asker()).session("question").invoke("send it")
        await runtime.agent(desk.scribe()).session("memory").invoke("I like tea")
        while {work.session_id: work.why for work in await Sessions(place).pending_work()} != PENDING_WORK:  # noqa: ASYNC110
            await anyio.sleep(0.02)
        print("owes", flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
