"""Sets a timer, says so, and waits to be killed. Arguments: the database, and when the timer is due.

Without that time it sets none, and says when each turn of a timer that is there begins.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import anyio

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions
from repertory.core.messages import Message


def slowly(messages: Sequence[Message], *_: object) -> object:
    """The reply of a model that says when it is asked."""
    print("turn", flush=True)
    return "done"


async def main() -> None:
    async with Runtime(sessions=SQLiteSessions(sys.argv[1])) as runtime:
        spec = AgentSpec(name="clerk", model=ScriptedModel([slowly], loop=True, delay_s=0.2))
        session = runtime.agent(spec).session("s")
        if len(sys.argv) > 2:
            await runtime.schedule(session, "timed", at=float(sys.argv[2]), id="t")
            print("set", flush=True)
        await anyio.sleep_forever()


anyio.run(main)
