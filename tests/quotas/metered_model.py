"""A model that says when it was asked, and takes as many tokens as its prompt names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio

from repertory import Model, Throttled
from repertory.core.converse import StreamEvent
from repertory.core.messages import Message, ToolSpec, Usage, text_of


class MeteredModel(Model):
    """Answers to a text such as `12 of 5`: 12 tokens in all, after 5 seconds."""

    def __init__(self, model_id: str = "metered", **config: Any) -> None:
        self._config = {"model_id": model_id, **config}
        self.asked: list[tuple[float, str]] = []
        """The time of each call, and its last text."""
        self.running = 0
        self.running_most = 0
        self.refuse: list[Throttled] = []
        """The errors of the next calls."""
        self.spent: Callable[[float], object] = lambda tokens: None

    def get_config(self) -> dict[str, Any]:
        return self._config

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        text = text_of(messages[-1])
        tokens, _, lasts_s = text.partition(" of ")
        self.asked.append((anyio.current_time(), text))
        if self.refuse:
            raise self.refuse.pop(0)
        self.spent(float(tokens))
        self.running += 1
        self.running_most = max(self.running, self.running_most)
        try:
            await anyio.sleep(float(lasts_s or 0))
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockDelta": {"delta": {"text": "fine"}, "contentBlockIndex": 0}}
            yield {"contentBlockStop": {"contentBlockIndex": 0}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            output = max(int(tokens) - 1, 0)
            usage: Usage = {"inputTokens": int(tokens) - output, "outputTokens": output, "totalTokens": int(tokens)}
            yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 1}}}
        finally:
            self.running -= 1
