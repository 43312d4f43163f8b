"""A script that adds its own hook to each phase of the shutdown. Needs no network and no account.

    python script_with_hooks.py          # reads one story and ends
    python script_with_hooks.py for-ever # reads until SIGTERM or Ctrl-C; a second signal cuts the story short

Each hook runs in its phase, after the earlier phases: stores that it may still use are open until `close`. The report
names a hook that fails or takes too long, and the next phase runs anyway.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from contextlib import aclosing
from pathlib import Path

import anyio

from repertory import AgentSpec, RepertoryError, Runtime, ScriptedModel, SQLiteSessions

STORY = "A journal lay open on a desk. Whoever came by wrote a line, and nobody ever tore out a page."
PIECE, PAUSE_S = 4, 0.02


class Reading:
    """A program that counts its stories, beside its conversations."""

    def __init__(self, folder: Path) -> None:
        self.stories = Counter[str]()
        self.open = True
        self._counts = folder / "counts.txt"

    async def close_the_door(self) -> None:
        """`refuse`: no new turns are accepted. Tell whoever sends work, such as a load balancer."""
        self.open = False
        print("\nrefuse: the door is closed", flush=True)

    async def wait_for_listeners(self) -> None:
        """`turns`: runs while running turns finish. Wait here for work that depends on them."""
        print("turns: the story may go on to its end", flush=True)

    async def write_counts(self) -> None:
        """`memory`: the turns are over, the stores still open. Flush your own data."""
        await anyio.Path(self._counts).write_text(f"{dict(self.stories)}\n")
        print("memory: counts are written", flush=True)

    async def announce(self) -> None:
        """`commit`: runs while journals are committed and sessions released."""
        print("commit: sessions are released", flush=True)

    async def turn_off_the_light(self) -> None:
        """`close`: no turn runs any more. Close your own clients."""
        print("close: the light is off", flush=True)


async def main(*, for_ever: bool) -> None:
    """Read to one listener, then shut down in order."""
    with tempfile.TemporaryDirectory() as folder:
        reading = Reading(Path(folder))
        async with Runtime(sessions=SQLiteSessions(Path(folder) / "sessions.db"), drain_timeout_s=10) as runtime:
            runtime.on_shutdown("refuse", reading.close_the_door)
            runtime.on_shutdown("turns", reading.wait_for_listeners)
            runtime.on_shutdown("memory", reading.write_counts)
            runtime.on_shutdown("commit", reading.announce)
            runtime.on_shutdown("close", reading.turn_off_the_light)
            async with anyio.create_task_group() as group:
                group.start_soon(runtime.serve_signals)
                await read_aloud(runtime, reading, for_ever=for_ever)
                await runtime.drain()  # after a signal this joins the running drain
                group.cancel_scope.cancel()
            report = await runtime.drain()
        for phase in report.phases:
            print(f"{phase.name:8} {phase.duration_s:6.2f} s  {'done' if phase.completed else phase}")


async def read_aloud(runtime: Runtime, reading: Reading, *, for_ever: bool) -> None:
    """Print the story as it streams, again and again while the door is open."""
    model = ScriptedModel([STORY], chunk=PIECE, delay_s=PAUSE_S, loop=True)
    session = runtime.agent(AgentSpec(name="reader", model=model)).session("evening")
    while reading.open:
        try:
            async with aclosing(session.stream("Read to me.")) as events:
                async for event in events:
                    print(event.get("data", ""), end="", flush=True)
            print(flush=True)
        except RepertoryError as error:  # the drain has just begun
            print(type(error).__name__)
        reading.stories["evening"] += 1
        if not for_ever:
            return


if __name__ == "__main__":
    anyio.run(lambda: main(for_ever="for-ever" in sys.argv))
