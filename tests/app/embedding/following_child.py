"""Streams a turn slowly, and prints each event's kind and offset, until it is killed."""

from __future__ import annotations

import sys

import anyio

from repertory import AgentSpec, Runtime, SQLiteSessions
from tests.app.embedding.test_followed_turns import Typing


async def main(path: str) -> None:
    async with Runtime(sessions=SQLiteSessions(path)) as runtime:
        session = runtime.agent(AgentSpec(model=Typing(pause_s=0.05))).session("s")
        async for event in session.stream("Count.", token="t", detach=True):
            print(next(iter(event)), event["offset"], flush=True)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
