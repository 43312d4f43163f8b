"""Turns that run here for callers in other processes, each with the lines that a broken connection may have lost.

A turn belongs to its token and not to a connection: it goes on when the caller is gone, and a caller that comes back
under the same token reads on after the last line that it has. Lines that nobody has read yet are bounded, and hold the
turn up as a slow reader in this process would; read ones are kept for a while, for a connection that broke off on the
way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncGenerator
from itertools import islice
from secrets import token_hex
from typing import TypeAlias

import anyio
import msgspec

from repertory.backends.peer_ports import JsonLine, Lines
from repertory.core.limits import JsonScale
from repertory.core.wire import error_to_json
from repertory.errors import Unavailable

_UNREAD_MAX = 256
_LINES_MAX = 4096
"""The lines of one turn that are kept after they were read, at most."""
_KEPT_BYTES_MAX = 32 * 1024 * 1024
"""The weight of the lines of one turn together, at most; of those that a reader has not read yet, half of it."""
_READABLE_S = 10.0
"""Seconds that a turn can still be read after its end."""

_NAMED_S = 0.01
"""Seconds that a log waits for a line before its name is sent alone: quick turns have a line less."""

_TOGETHER_MAX, _TOGETHER_BYTES_MAX = 64, 1024 * 1024
"""The lines that are sent together: so many, of such a weight, or one."""

CallKey: TypeAlias = tuple[str, str, str]
"""The key of a call: agent, session and token."""


class RunningCall:
    """One turn and its lines. For one event loop."""

    def __init__(self, key: CallKey, signal: threading.Event | None = None) -> None:
        """`signal` ends the turn in order."""
        self.key = key
        self._signal = signal
        self.run = token_hex(8)
        """The name of these lines: numbers of other ones mean nothing here."""
        self.scope = anyio.CancelScope()
        """The scope around the turn."""
        self.over_at: float | None = None
        self._lines: deque[tuple[int, JsonLine]] = deque()
        """The lines, each with the bytes of all lines up to and with it."""
        self._last = 0
        """The number of the last line."""
        self._weight = 0
        """The bytes of all lines until now."""
        self._gone = 0
        """The bytes of the lines that are forgotten."""
        self._read_weight = 0
        """The bytes of the lines that were read."""
        self._read = 0
        self._readers = 0
        self._sent_away = 0
        """The number of times that the readers were sent away."""
        self._changed = anyio.Event()

    async def tell(self, line: JsonLine) -> None:
        """Add a line, when a reader that is there has read most of the earlier ones."""
        # Without a reader it waits for nothing: the turn goes on, and its oldest lines are forgotten.
        while self._readers and self._is_far_ahead():
            await self._changed.wait()
        self._add(line)

    def end(self, line: JsonLine) -> None:
        """Add the last line."""
        if self.over_at is None:
            self.over_at = anyio.current_time()
            self._add(line)

    def cancel(self, *, at_once: bool) -> None:
        """Cancel the turn: in order, which gives a result, or at once, when nobody wants one."""
        if at_once or self._signal is None:
            self.scope.cancel()
        else:
            self._signal.set()

    async def lines(self, run: str | None, after: int) -> AsyncGenerator[Lines]:
        """The lines after that number of the log `run`, and the new ones until the last; of another log: all of them.

        The first line names the log. All have their number, but one that names a log which has no other line so soon.
        """
        at, sent_away = after if run == self.run else 0, self._sent_away
        named: JsonLine = {"run": self.run}
        self._readers += 1
        try:
            if at == self._last and self.over_at is None:
                with anyio.move_on_after(_NAMED_S):
                    await self._changed.wait()
            if at == self._last:
                yield Lines(lines=[named], end=self.over_at is not None)
                named = {}
            while True:
                if at < self._last:
                    first = self._last - len(self._lines) + 1
                    if at + 1 < first:
                        lost = error_to_json(Unavailable("the events in between are not kept any more"))
                        yield Lines(lines=[{"error": lost}], end=True)
                        return
                    some = list(islice(self._lines, at + 1 - first, at + 1 - first + _TOGETHER_MAX))
                    # Weights are sums from the beginning, so the first line is always among those that are sent.
                    most = some[0][0] + _TOGETHER_BYTES_MAX
                    found = [line for weight, line in some if weight <= most]
                    found[0], named = {**named, **found[0]}, {}
                    at += len(found)
                    # Of several readers the fastest counts: one that stands still must not stop the turn. It gets an
                    # error if its lines are gone.
                    self._read = max(self._read, at)
                    self._read_weight = max(self._read_weight, some[len(found) - 1][0])
                    self._change()
                    yield Lines(lines=found, end=self.over_at is not None and at == self._last)
                elif self.over_at is not None:
                    return
                elif self._sent_away != sent_away:
                    yield Lines(lines=[{"moved": None}], end=True)
                    return
                else:
                    await self._changed.wait()
        finally:
            self._readers -= 1
            self._change()

    def send_away(self) -> None:
        """Have those that read it now look for the owner of the session again. The turn goes on."""
        self._sent_away += 1
        self._change()

    async def delivered(self) -> None:
        """Return when the turn is over, and those that read it have read the end."""
        while self.over_at is None or (self._readers and self._read < self._last):
            await self._changed.wait()

    def _add(self, line: JsonLine) -> None:
        self._last += 1
        # Weighed as the objects that it holds, which take more memory than their text.
        scale = JsonScale()
        scale.put(msgspec.json.encode(line))
        self._weight += scale.weight
        self._lines.append((self._weight, {"n": self._last, **line}))
        while len(self._lines) > _LINES_MAX or (self._weight - self._gone > _KEPT_BYTES_MAX and len(self._lines) > 1):
            self._gone, _ = self._lines.popleft()
        self._change()

    def _is_far_ahead(self) -> bool:
        """True if the next line waits until a reader has read more."""
        unread = self._weight - max(self._read_weight, self._gone)
        return self._last - self._read >= _UNREAD_MAX or unread > _KEPT_BYTES_MAX // 2

    def _change(self) -> None:
        # A new event for each change: anyio's cannot be cleared.
        self._changed.set()
        self._changed = anyio.Event()


class RunningCalls:
    """The running calls of this process, by key."""

    def __init__(self) -> None:
        self._calls: dict[CallKey, RunningCall] = {}

    def get(self, key: CallKey) -> RunningCall | None:
        """The call with that key, also one that was over a moment ago."""
        return self._calls.get(key)

    def begin(self, key: CallKey, signal: threading.Event | None) -> RunningCall:
        """A new call, whose turn the caller starts. `signal`: see `RunningCall`."""
        call = self._calls[key] = RunningCall(key, signal)
        return call

    def send_away(self) -> None:
        """Have all readers look for the owners of their sessions again."""
        for call in self._calls.values():
            call.send_away()

    async def delivered(self) -> None:
        """Return when all are over, and read."""
        for call in list(self._calls.values()):
            await call.delivered()

    def forget(self, call: RunningCall) -> None:
        """Forget a call that was not begun here: another try is a new call."""
        if self._calls.get(call.key) is call:
            del self._calls[call.key]

    def forget_old(self) -> None:
        """Forget the calls that have been over for a while."""
        now = anyio.current_time()
        for key, call in list(self._calls.items()):
            if call.over_at is not None and now - call.over_at > _READABLE_S:
                del self._calls[key]
