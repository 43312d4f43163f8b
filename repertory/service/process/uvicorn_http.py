"""HTTP/1.1 of uvicorn with bounds on how long a head may take, on how long a client may take nothing of its answer, and
on the framing of a request. uvicorn has none:
`uvicorn --http repertory.service.process.uvicorn_http:BoundedHttp app:app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from repertory.service.process.listening import forget_unsent
from repertory.service.process.strict_http import StrictHttp

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle


class BoundedHttp(H11Protocol):
    """Closes a connection that sends no whole head in time, after it was made or after its last answer, and one whose
    client takes nothing of what is written any more. What `StrictHttp` refuses gets 400.
    """

    head_s = 10.0
    """Seconds for the first head, and for each after its first byte; between requests uvicorn's own bound holds."""
    stalled_s = 60.0
    """Seconds in which a client takes something, while there is something for it."""
    _due: asyncio.TimerHandle | None = None
    _stalls: asyncio.TimerHandle | None = None

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            super().send_400_response(msg)
        else:
            self.transport.close()  # It has its answer, or a part of it.

    def connection_made(self, transport: asyncio.Transport) -> None:
        # In place of the one that uvicorn made in its constructor; nothing was read by it yet.
        self.conn = StrictHttp(h11.SERVER, self.config.h11_max_incomplete_event_size or 16 * 1024)
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # Writing is paused for as long as there is anything to be taken.
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._stop_stalling()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait_for_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_stalling()

    def _wait_for_progress(self) -> None:
        size = self.transport.get_write_buffer_size()
        self._stalls = self.loop.call_later(self.stalled_s, self._look_for_progress, size)

    def _look_for_progress(self, before: int) -> None:
        # Any progress counts: a slow client is served, and one that has stopped is not.
        if self.transport.get_write_buffer_size() < before:
            self._wait_for_progress()
        else:
            forget_unsent(self.transport.get_extra_info("socket"))
            self.transport.abort()

    def _stop_stalling(self) -> None:
        if self._stalls is not None:
            self._stalls.cancel()
            self._stalls = None

    def _look(self) -> None:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        answering = cycle is not None and not cycle.response_complete
        # The connection may be a WebSocket's by now.
        if answering or self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._stop()
        elif self._due is None:
            self._due = self.loop.call_later(self.head_s, self.transport.close)

    def _stop(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
