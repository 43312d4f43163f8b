"""HTTP/1.1 of uvicorn with a bound on how long a head may take. uvicorn itself has none for a connection that says
nothing, or never ends the head of a request: `uvicorn --http repertory.app.serving.uvicorn_http:BoundedHttp app:app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle


class BoundedHttp(H11Protocol):
    """Closes a connection that sends no whole head in time: after it was made, or after its last answer."""

    head_s = 10.0
    """Seconds for the first head, and for each after its first byte; between requests uvicorn's own bound holds."""
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

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
