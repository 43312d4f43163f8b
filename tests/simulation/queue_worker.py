"""A worker that is killed: `python -m tests.simulation.queue_worker FOLDER QUEUE [asyncio|trio]`.

The agent `clerk` has one tool, which writes a file under its idempotency key, once, and then answers. QUEUE is as on
the command line; a queue in SQS is at the endpoint that `SQS_URL` names. Prints a line for each job that is done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from repertory import (
    AgentSpec,
    PostgresQueue,
    Runtime,
    ScriptedModel,
    SQLiteQueue,
    SQLiteSessions,
    SQSQueue,
    TurnJob,
    Worker,
    tool,
)
from repertory.backends.ports import ToolContext
from repertory.core.messages import Message, text_of, tool_results

LEASE_S = 2.0


def opened_queue(name: str) -> Any:
    scheme, _, rest = name.partition(":")
    if scheme == "sqs":
        return SQSQueue(rest, region_name="us-east-1", endpoint_url=os.environ["SQS_URL"], lease_s=LEASE_S)
    if scheme == "postgresql":
        return PostgresQueue(name, lease_s=LEASE_S)
    return SQLiteQueue(rest, lease_s=LEASE_S)


def clerk(folder: Path) -> AgentSpec:
    @tool(idempotent=True)
    async def ship(order: str, tool_context: ToolContext) -> str:
        """Ship an order. The same key ships once."""
        name = tool_context.idempotency_key
        packed = folder / "packed" / f"{name}.{os.getpid()}"
        packed.write_text(order)
        try:
            os.link(packed, folder / "shipped" / name)
        except FileExistsError:
            return "shipped before"
        return "shipped"

    def answer(messages: Sequence[Message], *rest: object) -> Any:
        del rest
        if any(tool_results(messages[-1])):
            return "done"
        return [{"toolUse": {"name": "ship", "input": {"order": text_of(messages[-1])}}}]

    return AgentSpec(name="clerk", model=ScriptedModel([answer], loop=True), tools=[ship])


async def work() -> None:
    folder = Path(sys.argv[1])

    def told(job: TurnJob, outcome: object) -> None:
        print(f"{job.token} {outcome}", flush=True)

    async with Runtime(sessions=SQLiteSessions(folder / "agents.db"), drain_timeout_s=5) as runtime:
        runtime.agent(clerk(folder))
        worker = Worker(runtime, opened_queue(sys.argv[2]), at_once=4, tries=1000, on_done=told)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.serve_signals)
            await worker.run()


if __name__ == "__main__":
    anyio.run(work, backend=sys.argv[3] if len(sys.argv) > 3 else "asyncio")
