"""One customer of the demonstration: says line after line, and keeps what was acknowledged.

A customer knows only its own side. When the worker is gone it does not know what became of the last line, so it asks
the next worker for the history, and goes on from there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from repertory.app.demo.exchange import Exchange, Fate, exchanges, fate
from repertory.app.demo.orders import read_orders
from repertory.app.demo.worker_process import Refused, WorkerLost, WorkerProcess
from repertory.errors import Corrupt

INEXPLICABLE = "the history did not fit what was acknowledged: gave up"
FOUND = "unknown outcome: the order was in the book, so its receipt was given"
NOT_FOUND = "unknown outcome: the order was not in the book, so it was placed now"


class Talker:
    """The client side of one session."""

    def __init__(self, session_id: str, lines: Sequence[str], book: Path, pauses: Iterator[float]) -> None:
        """`book` is the session's order book, which says what really happened. `pauses`: seconds before each line."""
        self.session_id = session_id
        self._lines = itertools.cycle(lines)
        self._book = book
        self._pauses = pauses
        self.acknowledged: list[Exchange] = []
        self.in_flight: str | None = None
        """What was said and has no answer yet."""
        self.resumed: Counter[str] = Counter()
        """How turns went on after a kill."""
        self.refused = 0
        """Lines that a draining worker did not take."""
        self._uncertain = False

    async def talk(self, next_worker: Callable[[], Awaitable[WorkerProcess | None]]) -> None:
        """Talk until there is no worker any more, or the history does not fit what was acknowledged.

        Errors: `Refused` for a refusal that no drain explains.
        """
        await anyio.sleep(next(self._pauses))
        while (worker := await next_worker()) is not None:
            try:
                await self._take_turn(worker)
            except WorkerLost:
                self._uncertain = self.in_flight is not None
            except Corrupt:
                self.resumed[INEXPLICABLE] += 1
                return  # the checks say what is wrong
            except Refused as error:
                if error.fields["kind"] not in ("Unavailable", "ActorDead"):
                    raise
                self.in_flight = None
                self.refused += 1
                return

    async def _take_turn(self, worker: WorkerProcess) -> None:
        if self.in_flight is None:
            self.in_flight = next(self._lines)
        prompt = self.in_flight
        reply = await (self._resume(worker, prompt) if self._uncertain else self._say(worker, prompt))
        while reply["stop_reason"] == "interrupt":
            responses = {interrupt["id"]: self._settle(interrupt) for interrupt in reply["interrupts"]}
            reply = await worker.ask("answer", self.session_id, {"responses": responses})
        if reply["stop_reason"] != "cancelled":
            self.acknowledged.append(Exchange(prompt, reply["text"]))
            self.in_flight = None
        self._uncertain = False
        await anyio.sleep(next(self._pauses))

    async def _say(self, worker: WorkerProcess, prompt: str) -> Mapping[str, Any]:
        return await worker.ask("say", self.session_id, {"prompt": prompt})

    async def _resume(self, worker: WorkerProcess, prompt: str) -> Mapping[str, Any]:
        """Find out what became of the prompt, and do what is left to do. Errors: `Corrupt` when nothing explains it."""
        messages = (await worker.ask("history", self.session_id))["messages"]
        what = fate(messages, len(self.acknowledged), prompt)
        match what:
            case Fate.UNHEARD:
                reply = await self._say(worker, prompt)
            case Fate.UNANSWERED:
                reply = await worker.ask("go_on", self.session_id)
            case Fate.ANSWERED:
                reply = {"stop_reason": "end_turn", "text": exchanges(messages)[-1].answer}
        self.resumed[what] += 1
        return reply

    def _settle(self, interrupt: Mapping[str, Any]) -> object:
        """What to do about an order of unknown outcome: the book knows."""
        use_id = interrupt["reason"]["toolUseId"]
        receipts = [order.receipt for order in read_orders(self._book) if order.tool_use_id == use_id]
        self.resumed[FOUND if receipts else NOT_FOUND] += 1
        return {"result": receipts[0]} if receipts else "retry"
