"""A client that speaks to an ASGI application in this process, as slowly as it likes, and reads server-sent events.

httpx has a whole answer before it gives any of it, so streams need a client of our own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import anyio
import httpx

from repertory import Runtime
from repertory.asgi import asgi_app

ASKS_EVENTS = {"accept": "text/event-stream"}
AGENT = "/v1/agents/helper"
ADA = f"{AGENT}/sessions/ada"


class Event(NamedTuple):
    """A server-sent event."""

    kind: str
    data: Any
    id: str | None


def events_in(text: str) -> list[Event]:
    """The whole events of a text, as a browser reads them: what is cut off at its end is no event."""
    found: list[Event] = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append(Event(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id")))
    return found


def text_of(events: Sequence[Event]) -> str:
    """The text of the answer, as a client puts it together: what a retry makes void is not in it."""
    said: list[str] = []
    pieces = ""
    for event in events:
        match event:
            case Event("data", {"data": str(piece)}):
                pieces += piece
            case Event("model_retry"):
                pieces = ""
            case Event("message", {"message": message}):
                pieces = ""
                if message["role"] == "assistant":
                    said.append("".join(block.get("text", "") for block in message["content"]))
            case _:
                pass
    return "".join(said) + pieces


class Streamed:
    """An answer that is on its way. The application waits while nobody reads, as a server lets it."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self._cut = ""
        self.sent_bytes = 0
        self.over = anyio.Event()
        self._begun = anyio.Event()
        self._gone = anyio.Event()
        self._put, self._got = anyio.create_memory_object_stream[bytes](0)

    async def run(self, app: Any, scope: dict[str, Any], body: bytes) -> None:
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await self._gone.wait()
                return {"type": "http.disconnect"}
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                self._begun.set()
            elif message.get("body"):
                self.sent_bytes += len(message["body"])
                try:
                    await self._put.send(message["body"])
                except anyio.BrokenResourceError:
                    raise OSError("the client has gone") from None

        try:
            await app(scope, receive, send)
        finally:
            self._put.close()
            self.over.set()

    async def begun(self) -> None:
        await self._begun.wait()

    async def events(self) -> AsyncGenerator[Event]:
        """Each event when it has come."""
        async for piece in self._got:
            self.text += piece.decode()
            whole, sign, self._cut = (self._cut + piece.decode()).rpartition("\n\n")
            for event in events_in(whole + sign):
                yield event

    async def next(self, kind: str) -> Event:
        """The next event of that kind."""
        async with aclosing(self.events()) as events:
            async for event in events:
                if event.kind == kind:
                    return event
        raise AssertionError(f"there is no more {kind}: {self.text}")

    async def rest(self) -> list[Event]:
        """Everything from the beginning, when it is over."""
        async for _ in self.events():
            pass
        return events_in(self.text)

    def leave(self) -> None:
        """The connection is lost."""
        self._gone.set()
        self._got.close()


class Client(httpx.AsyncClient):
    """Speaks to one application."""

    def __init__(self, app: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://localhost",
            headers=dict(headers or {}),
        )
        self.app = app

    async def say(self, text: str | None, path: str = ADA, **more: Any) -> httpx.Response:
        """One turn."""
        return await self.post(f"{path}/turns", json={"prompt": text, **more})

    @asynccontextmanager
    async def streaming(
        self, path: str, body: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[Streamed]:
        """A request whose answer is read as it comes; the client has gone at the end of the block."""
        method, content = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
        split = urlsplit(path)
        given = {**self.headers, "content-type": "application/json", "host": "localhost", **(headers or {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "path": unquote(split.path),
            "raw_path": split.path.encode(),
            "query_string": split.query.encode(),
            "root_path": "",
            "scheme": "http",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        streamed = Streamed()
        async with anyio.create_task_group() as group:
            group.start_soon(streamed.run, self.app, scope, content)
            try:
                yield streamed
            finally:
                streamed.leave()
                with anyio.CancelScope(shield=True), anyio.move_on_after(30) as waiting:
                    await streamed.over.wait()
                assert not waiting.cancelled_caught, "the application goes on for a client that has gone"


@asynccontextmanager
async def serving(runtime: Runtime, headers: Mapping[str, str] | None = None, **options: Any) -> AsyncGenerator[Client]:
    """A client of a service over the runtime, which ends with the block. When it is over, no request is in progress."""
    app = asgi_app(runtime, **options)
    async with app.router.lifespan_context(app), Client(app, headers) as client:
        yield client
        assert app.state.service.in_progress == 0
