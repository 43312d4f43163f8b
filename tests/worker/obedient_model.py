"""A model that does what the prompt says, for tests that stop, kill or leave whoever is in the middle of a turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import anyio

from repertory import Model, ScriptedModel
from repertory.backends.ports import StreamEvent
from repertory.core.messages import Message, ToolSpec, text_of
from repertory.errors import Throttled, Unavailable

PAUSE_S = 0.025


class ObedientModel(Model):
    """Answers `done: PROMPT`, a letter at a time.

    A prompt that begins with `slow` takes about half a second, one with `endless` says everything and never ends, and
    `throttled` and `down` fail. It prints `begun PROMPT` when it is asked and `ended PROMPT` when it is left.
    """

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        prompt = text_of(messages[-1])
        print(f"begun {prompt}\n", end="", flush=True)  # One write: other processes share the pipe.
        try:
            async with aclosing(ScriptedModel([f"done: {prompt}"], chunk=1).stream(messages)) as events:
                async for event in events:
                    await self._obey(prompt, event)
                    yield event
        finally:
            print(f"ended {prompt}\n", end="", flush=True)

    async def _obey(self, prompt: str, event: StreamEvent) -> None:
        match prompt.split()[0]:
            case "slow":
                await anyio.sleep(PAUSE_S)
            case "endless" if "contentBlockStop" in event:
                await anyio.sleep_forever()
            case "throttled":
                raise Throttled("too many requests", retry_after_s=7)
            case "down":
                raise Unavailable("the model cannot be reached")
