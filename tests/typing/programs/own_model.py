"""A program with a model of its own."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from repertory import Agent, Message, Model, StreamEvent, ToolSpec


class Echo(Model):
    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[ToolSpec] | None = None,
        system_prompt: str | None = None,
        **options: Any,
    ) -> AsyncIterator[StreamEvent]:
        text = "".join(block.get("text", "") for block in messages[-1]["content"])
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": text.upper()}}}
        yield {"contentBlockStop": {"contentBlockIndex": 0}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def main() -> None:
    print(Agent(Echo())("hello"))


if __name__ == "__main__":
    main()
