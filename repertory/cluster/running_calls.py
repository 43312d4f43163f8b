"""Turns that run here for callers in other processes.

A turn belongs to its token and not to a connection: it goes on when the caller is gone, and a caller that comes back
under the same token reads its log on from the last event that it has. A caller that reads a plain stream holds the turn
up while it is connected, as a slow reader in this process would. The end is kept for a while, for a connection that
broke off on the way.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, TypeAlias

import anyio

from repertory.actors.turn_log import TurnReader
from repertory.backends.peer_ports import JsonLine, Lines
from repertory.core.wire import error_to_json, event_to_json
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.core.result import TurnEvent
    from repertory.core.turn_log import Offset

READABLE_S = 10.0
"""Seconds that a turn can still be read after its end."""

_TAKEN_S = 0.01
"""Seconds until a caller is told that its call was taken: quick turns have a line less."""

CallKey: TypeAlias = tuple[str, str, str]
"""The key of a call: agent, session and token."""


class RunningCall:
    """One turn and its readers. For one event loop."""

    def __init__(self, key: CallKey, signal: threading.Event | None = None) -> None:
        """`signal` ends the turn in order."""
        self.key = key
        self._signal = signal
        self.scope = anyio.CancelScope()
        """The scope around the turn."""
        self.over_at: float | None = None
        self._read: Callable[[Offset | None, bool], TurnReader] | None = None
        """Gives readers of the turn's log; None until there is one, and for a call that wants the result alone."""
        self._last: JsonLine | None = None
        """The result or error, when the turn is over."""
        self._readers: set[anyio.Event] = set()
        """An event for each reader, set when it leaves."""
        self._waits: set[anyio.CancelScope] = set()
        """The scopes in which readers wait for something new."""
        self._begun, self._over = anyio.Event(), anyio.Event()

    def open(self, read: Callable[[Offset | None, bool], TurnReader]) -> None:
        """Have the turn's log read: `read` gives its readers."""
        self._read = read
        self._begun.set()

    def end(self, line: JsonLine) -> None:
        """End the turn with its result or error; of a turn with a log, its readers have the result."""
        if self.over_at is None:
            self.over_at, self._last = anyio.current_time(), line
            self._begun.set()
            self._over.set()
            self.send_away()

    def cancel(self, *, at_once: bool) -> None:
        """Cancel the turn: in order, which gives a result, or at once, when nobody wants one."""
        if at_once or self._signal is None:
            self.scope.cancel()
        else:
            self._signal.set()

    async def lines(self, after: Offset | None, *, holds: bool) -> AsyncGenerator[Lines]:
        """The events after that offset, and the result or error. `after`: None for all of this turn's log. `holds`: the
        turn waits for the reader.
        """
        taken, reader, left = False, None, anyio.Event()
        self._readers.add(left)
        try:
            while True:
                events: list[TurnEvent] = []
                last = None
                with anyio.move_on_after(math.inf if taken else _TAKEN_S) as scope:
                    self._waits.add(scope)
                    try:
                        if reader is None and not self._begun.is_set():
                            await self._begun.wait()
                        if reader is None and (read := self._read) is not None:
                            reader = read(after, holds)
                        # Without its end the log belongs to an actor that is gone, and brings nothing more.
                        if reader is not None and (self._last is None or reader.over):
                            events = await reader.next()
                        if not events and self._last is None:
                            await self._over.wait()
                    except RepertoryError as error:
                        last = {"error": error_to_json(error)}
                    finally:
                        self._waits.remove(scope)
                # `end` wakes the readers, since the log of an actor that died never ends. One that has ended may hold
                # more.
                if scope.cancelled_caught and self._last is not None and reader is not None and reader.over:
                    continue
                if events:
                    lines = [event_to_json(one) if "result" in one else {"event": event_to_json(one)} for one in events]
                    ends = "result" in events[-1]
                elif (last := last or self._last) is not None:
                    lines, ends = [last], True
                else:
                    # The time for the first line is over, or the readers were sent away. In the first moment the one
                    # hides the other, and they are sent away again a second later.
                    lines, ends = [{"moved" if taken else "taken": None}], taken
                yield Lines(lines=lines, end=ends)
                if ends:
                    return
                taken = True
        finally:
            self._readers.remove(left)
            left.set()
            if reader is not None:
                reader.close()

    def send_away(self) -> None:
        """Have those that wait for something new now look for the owner of the session again. The turn goes on."""
        for scope in self._waits:
            scope.cancel()

    async def delivered(self) -> None:
        """Return when the turn is over, and those that read it have read the end."""
        await self._over.wait()
        while self._readers:
            await next(iter(self._readers)).wait()
