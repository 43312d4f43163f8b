"""The worker in a terminal, or under systemd: `run` works until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import os
from datetime import datetime
from time import time

import anyio

from repertory import AfterInvocationEvent, Runtime, Sessions, SQLiteSessions

from .reports import DAY_S, PROMPT, TIMER, Settings, agent_of

SOON_S = 10.0
"""What `run --once` waits for."""
LOOK_S = 60.0
"""How long a new shop waits for its timer."""


def arguments() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(prog="python -m examples.nightly_worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="write the reports that are due")
    running.add_argument("--once", action="store_true", help="end when nothing is due in the next ten seconds")
    commands.add_parser("shops", help="list the shops, and when each is due")
    setting = commands.add_parser("schedule", help="have a report of a shop written, and then one every night")
    setting.add_argument("shop")
    setting.add_argument("--in-s", type=float, help="seconds from now (default: the next night)")
    return parser.parse_args()


def told(event: AfterInvocationEvent) -> None:
    """Print how a turn has ended. Send a message here, or count, as you need it."""
    if event.result is not None and event.agent is not None:
        print(f"{event.agent.session_id}: {event.result}", flush=True)


class NightlyWorker:
    """What the commands do."""

    def __init__(self, settings: Settings, runtime: Runtime, stored: Sessions) -> None:
        self._settings = settings
        self._runtime = runtime
        self._stored = stored
        self._agent = runtime.agent(agent_of(settings, hooks=[told]))

    async def schedule(self, shop: str, in_s: float | None = None) -> None:
        """Set the timer of a shop. An earlier one is replaced."""
        at = self._settings.next_night() if in_s is None else time() + in_s
        await self._runtime.schedule(self._agent.session(shop), PROMPT, at=at, every=DAY_S, id=TIMER)

    async def due(self) -> dict[str, float | None]:
        """When the session of each shop is due, in epoch seconds; None without a timer. This opens no session."""
        pending_work = {work.session_id: work.at for work in await self._stored.pending_work()}
        return {shop: pending_work.get(shop) for shop in self._settings.shops()}

    async def run(self, *, once: bool) -> None:
        """Give each new shop a timer, until the drain begins. The runtime fires them."""
        while not self._runtime.draining.is_set():
            due = await self.due()
            # A timer that is overdue stays as it is: its night was missed, and is made up for at once.
            for shop in (shop for shop, at in due.items() if at is None):
                await self.schedule(shop)
            if once and not any(at is not None and at < time() + SOON_S for at in due.values()):
                return
            with anyio.move_on_after(0.2 if once else LOOK_S):
                await self._runtime.draining.wait()


async def main() -> None:
    """Do one command."""
    typed, settings = arguments(), Settings.of(os.environ)
    await anyio.Path(settings.data).mkdir(parents=True, exist_ok=True)
    place = SQLiteSessions(settings.data / "reports.db")
    async with Runtime(sessions=place, drain_timeout_s=20) as runtime, anyio.create_task_group() as group:
        await group.start(runtime.serve_signals)
        worker = NightlyWorker(settings, runtime, Sessions(place))
        match typed.command:
            case "run":
                await worker.run(once=typed.once)
            case "schedule":
                await worker.schedule(typed.shop, typed.in_s)
            case _:
                for shop, at in (await worker.due()).items():
                    print(
                        f"{shop}: {'no timer' if at is None else datetime.fromtimestamp(at).isoformat(' ', 'minutes')}"
                    )
        group.cancel_scope.cancel()
    report = await runtime.drain()  # what the end of the block has done
    if not report.ok:
        raise SystemExit(f"not stored: {report.not_stored}, unfinished: {report.unfinished}")


if __name__ == "__main__":
    anyio.run(main)
