"""The channel of a call whose caller reads a stream: the events of its turn, and its result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from repertory.core.caller_events import is_of_piece
from repertory.errors import RepertoryError, StreamClosed
from repertory.runtime.actor import Context

if TYPE_CHECKING:
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.run_results import MultiAgentResult

_FIRST_PIECE = 2
"""A piece is told raw, and once more as what it means."""
_NOT_IN_STEP = sys.maxsize


class StreamChannel:
    """The channel of a caller that reads a stream."""

    def __init__(self, context: Context) -> None:
        self._sink = context.sink()
        self._pieces = _NOT_IN_STEP
        """The number of pieces of an answer since the last event of another kind."""

    def go_in_step(self) -> None:
        """Wait for the reader before anything else happens in the turn, from now on."""
        self._pieces = 0

    def goes_on_alone(self) -> bool:
        return False

    async def publish(self, event: TurnEvent) -> None:
        """Send an event; wait while the reader is behind. Events for a reader that has left are dropped.

        In step, the reader has read each event before the turn goes on: only pieces of an answer behind its first one
        may wait for it.
        """
        try:
            if not self._sink.send_nowait(event):
                await self._sink.send(event)
        # The turn is told by `on_caller_gone`, and ends by itself: an error here would fail it.
        except StreamClosed:
            return
        if self._pieces is _NOT_IN_STEP:
            return
        self._pieces = self._pieces + 1 if is_of_piece(event) else 0
        if self._pieces <= _FIRST_PIECE:
            await self._sink.caught_up()

    def on_caller_gone(self, callback: Callable[[], None]) -> None:
        self._sink.on_closed = callback

    def wait_no_more(self) -> None:
        self._sink.wait_no_more()

    async def succeed(self, result: AgentResult | MultiAgentResult) -> None:
        self.wait_no_more()
        # The turn is over and must not wait for its reader: the session would stay in use.
        await self.publish({"result": result})
        self._sink.end()

    def fail(self, error: RepertoryError) -> None:
        self._sink.fail(error)
