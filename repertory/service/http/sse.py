"""Server-sent events: what is sent, and a response that sends a turn's events while the client listens.

A stream that is quiet gets comments, so that nobody in between takes the connection for dead. A slow client holds back
the reading of its own events, and nothing else. A client that goes ends the reading at once.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, TypeAlias, cast

import anyio
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from repertory.core.wire import event_to_json
from repertory.errors import RepertoryError
from repertory.service.http.problems import Problem

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from repertory.core.messages import Json
    from repertory.core.result import TurnEvent

MEDIA_TYPE = "text/event-stream"
HEARTBEAT_S = 15.0
"""The longest silence of a stream, in seconds; then a comment is sent."""
# The second one is for nginx, which would hold events back until its buffer is full.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_COMMENT = b":\n\n"
_JSON = json.JSONEncoder(separators=(",", ":"))
_KINDS = ("result", "message", "data", "reasoning")
"""The keys that name an event which has others beside."""

Problems: TypeAlias = "Callable[[BaseException], Problem]"


def sent(kind: str, data: object, id: object = None) -> bytes:
    """One event. `data`: JSON. `id`: what the client sends as `Last-Event-ID` to read on after it."""
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {_JSON.encode(data)}\n\n".encode()


def turn_event(event: Mapping[str, object], problems: Problems) -> bytes:
    """An event of a turn; its kind is its key, its id the offset that it has."""
    offset = event.get("offset")
    match event:
        case {"data": str(text)}:
            return sent("data", {"data": text}, offset)
        case {"model_retry": dict()}:
            retry = cast("Mapping[str, object]", event["model_retry"])
            return sent("model_retry", {"model_retry": _retry(retry, problems)}, offset)
        case _:
            fields = event_to_json({name: value for name, value in event.items() if name != "offset"})
            of_run = str(event.get("type", "")).startswith("multiagent_") and "result" not in fields
            kind = next((name for name in _KINDS if name in fields), next(iter(fields), "other"))
            kind = str(event["type"]) if of_run else kind
            return sent(kind, fields, offset)


def _retry(retry: Mapping[str, object], problems: Problems) -> dict[str, Json]:
    error = retry.get("error")
    problem = problems(error).as_json() if isinstance(error, BaseException) else None
    attempt, delay_s = retry.get("attempt"), retry.get("delay_s")
    return {
        "attempt": attempt if isinstance(attempt, int) else 0,
        "delay_s": delay_s if isinstance(delay_s, int | float) else 0.0,
        "error": problem,
    }


async def turn_events(
    events: AsyncGenerator[TurnEvent], problems: Problems, *, raw: bool = False
) -> AsyncGenerator[bytes]:
    """The events of a turn as they are sent. `raw`: also those of the model's own stream. Errors: those of the turn."""
    async with aclosing(events):
        async for event in events:
            inner: Mapping[str, object] = event
            while inner.get("type") == "multiagent_node_stream" and isinstance(inner.get("event"), dict):
                inner = cast("Mapping[str, object]", inner["event"])
            if raw or "event" not in inner:
                yield turn_event(event, problems)


class EventStream(Response):
    """Sends events as they come, until there are no more, or until the client has gone. Then they are closed.

    The answer begins with the first event, or when there was none for a while. An error before that is raised, and gets
    a status of its own; one after that is the last event, `error`. Without any event the answer is 204, at which
    browsers do not come back.
    """

    media_type = MEDIA_TYPE

    def __init__(
        self,
        events: AsyncGenerator[bytes],
        problems: Problems,
        headers: Mapping[str, str] | None = None,
        *,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._problems = problems
        self._heartbeat_s = heartbeat_s
        self.init_headers({**_HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = _Writer(send, self.raw_headers)
        failed: Exception | None = None
        async with aclosing(self._events), anyio.create_task_group() as group:
            group.start_soon(_until_gone, receive, group.cancel_scope)
            group.start_soon(writer.beat, self._heartbeat_s)
            failed = await writer.write_all(self._events, self._problems)
            group.cancel_scope.cancel()
        # Outside of the group, or it would be in an `ExceptionGroup`.
        if failed is not None:
            raise failed


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


class _Writer:
    """Writes to one client: one piece after the other, from two tasks."""

    def __init__(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        self._send = send
        self._headers = headers
        self._begun = False
        self._lock = anyio.Lock(fast_acquire=True)  # Whoever waits for a server's buffer yields there.
        self._last = anyio.current_time()

    async def write_all(self, events: AsyncIterator[bytes], problems: Problems) -> Exception | None:
        """Write all events. Returns the error that came before anything was written."""
        try:
            async for piece in events:
                await self._write(piece)
        except ClientDisconnect:
            return None
        except (RepertoryError, Problem) as error:
            if not self._begun:
                return error
            await self._write(sent("error", problems(error).as_json()))
        if not self._begun:
            await self._tell({"type": "http.response.start", "status": 204, "headers": []})
        await self._tell({"type": "http.response.body", "body": b"", "more_body": False})
        return None

    async def beat(self, every_s: float) -> None:
        """Write a comment whenever nothing was written for so long."""
        while True:
            quiet_s = anyio.current_time() - self._last
            if quiet_s >= every_s:
                # The other task notices it as well, and ends both.
                with suppress(ClientDisconnect):
                    await self._write(_COMMENT)
            else:
                await anyio.sleep(every_s - quiet_s)

    async def _write(self, piece: bytes) -> None:
        begun, self._begun = self._begun, True
        if not begun:
            await self._tell({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._tell({"type": "http.response.body", "body": piece, "more_body": True})

    async def _tell(self, message: Message) -> None:
        """Send a message to the client. Errors: `ClientDisconnect`."""
        async with self._lock:
            try:
                await self._send(message)
            except OSError:
                # A server may say so by this, where a client has gone.
                raise ClientDisconnect from None
        self._last = anyio.current_time()
