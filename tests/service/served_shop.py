"""What served configurations of tests name: a model that takes its time, and a runtime as a target."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import anyio

from repertory import AgentSpec, Model, Runtime, SQLiteSessions


class Echo(Model):
    """Answers `done: PROMPT` after `DELAY_S` seconds, or after as many as the prompt says: `wait 5`."""

    def get_config(self) -> dict[str, Any]:
        return {}

    def update_config(self, **changes: Any) -> None:
        del changes

    async def stream(
        self,
        messages: Sequence[Any],
        tool_specs: Sequence[Any] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncGenerator[Any]:
        said = messages[-1]["content"][0]["text"]
        waits = said.split()
        if waits[0] in ("slow", "wait"):
            # With its newline in one piece: other workers write there too.
            print(f"begun {said}\n", end="", flush=True)
        await anyio.sleep(float(waits[1]) if waits[0] == "wait" else float(os.environ.get("DELAY_S", "0")))
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"contentBlockIndex": 0, "start": {}}}
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": f"done: {said}"}}}
        yield {"contentBlockStop": {"contentBlockIndex": 0}}
        yield {"messageStop": {"stopReason": "end_turn"}}


runtime = Runtime(sessions=SQLiteSessions(os.environ.get("DATABASE", "target.db")), drain_timeout_s=10)
clerk = runtime.agent(AgentSpec(name="clerk", model=Echo()))

no_runtime = 3


def made() -> Runtime:
    """The same as a function."""
    return runtime
