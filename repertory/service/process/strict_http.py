"""HTTP/1.1 of h11 that refuses what a proxy may read otherwise, and what costs more time than it carries."""

from __future__ import annotations

from typing import Any, Final

from repertory.service.decisions.heads import refused_head

try:
    import h11
except ImportError as error:
    message = f"the server needs h11 ({error}): pip install 'repertory[serve]', or 'repertory[inspect]'"
    raise ImportError(message, name=error.name) from error

_CHUNKS: Final = 1024
_CHUNK: Final = 64
"""The least bytes of a body's chunks on average, beyond `_CHUNKS` of them."""


class StrictHttp(h11.Connection):
    """The server's side of a connection."""

    _chunks = _size = 0

    def next_event(self) -> Any:
        """The next event. Errors: `RemoteProtocolError`, also for a head whose lines are odd or too many, for tiny
        chunks, and for trailers.
        """
        due = self.trailing_data[0] if self.their_state in {h11.IDLE, h11.SEND_BODY} else b""
        if self.their_state is h11.IDLE and (status := refused_head(due)):
            raise h11.RemoteProtocolError("the head is refused", error_status_hint=status)
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._size = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._size += len(event.data)
            if self._chunks > _CHUNKS + self._size // _CHUNK:
                raise h11.RemoteProtocolError("the chunks of the body are too small")
        elif isinstance(event, h11.EndOfMessage):
            end = due[: len(due) - len(self.trailing_data[0])]  # Nothing, for a body that has a length.
            if event.headers or (end and not end.endswith(b"\r\n")):
                raise h11.RemoteProtocolError("the body has trailers")
        return event
