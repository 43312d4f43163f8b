"""A program that sends a turn to a browser."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import anyio

from repertory import Agent, AgentStreamEvent, ScriptedModel, event_to_json


def line(event: AgentStreamEvent) -> str | None:
    if "data" in event:
        return f"data: {json.dumps({'text': event['data'], 'delta': event['delta']})}\n\n"
    if "result" in event:
        return f"event: done\ndata: {event['result'].stop_reason}\n\n"
    return None


async def lines(agent: Agent, prompt: str) -> AsyncIterator[str]:
    async with aclosing(agent.stream_async(prompt)) as events:
        async for event in events:
            if (made := line(event)) is not None:
                yield made


async def raw(agent: Agent, prompt: str) -> AsyncIterator[bytes]:
    async for event in agent.stream_async(prompt):
        if "event" not in event:
            yield json.dumps(event_to_json(event)).encode()


async def main() -> None:
    async for each in lines(Agent(ScriptedModel(["Hello."])), "Hi."):
        print(each.strip())
    count = 0
    async for made in raw(Agent(ScriptedModel(["Hello."])), "Hi."):
        count += len(made) > 0
    print(count)


if __name__ == "__main__":
    anyio.run(main)
