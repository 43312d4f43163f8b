"""A process that is killed as soon as a person who has stopped an answer has the result.

python -m tests.app.agent.stopped_child asyncio|trio DATABASE
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio

from repertory import AgentSpec, Model, Runtime, SQLiteSessions

HALF = "It rains, "


class Stopping(Model):
    """Streams half of its first answer and waits for ever; then gives these texts."""

    def __init__(self, *then: str) -> None:
        self.then = [*then]
        self.first = HALF
        self.more: list[Any] = []
        """Further events of the first answer."""
        self.stops = True
        self.pauses = False
        """Whether another answer comes before, of which this is the second part."""
        self.waits = anyio.Event()
        """Set when the first answer waits."""
        self.shown: list[list[Any]] = []

    async def stream(  # type: ignore[override]
        self, messages: Any, tool_specs: Any = None, system_prompt: Any = None, **options: Any
    ) -> AsyncIterator[Any]:
        self.shown.append([*messages])
        stops, self.stops = self.stops, False
        text = self.first if stops else self.then.pop(0)
        yield {"messageStart": {"role": "assistant"}}
        if text:
            yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": text}}}
        for event in self.more if stops else ():
            yield event
        if stops:
            self.waits.set()
            await anyio.sleep_forever()
        self.stops, self.pauses = self.pauses, False
        yield {"messageStop": {"stopReason": "pause_turn" if self.stops else "end_turn"}}


async def _main(path: str) -> None:
    model = Stopping()
    async with Runtime(sessions=SQLiteSessions(path)) as runtime, anyio.create_task_group() as group:
        session = runtime.agent(AgentSpec(model=model)).session("s")

        async def stop() -> None:
            await model.waits.wait()
            await session.cancel()

        group.start_soon(stop)
        print(await session.invoke("go"), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    anyio.run(_main, sys.argv[2], backend=sys.argv[1])
