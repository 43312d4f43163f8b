"""A web service that answers over HTTP, in one piece or as a stream. Needs no network and no account.

    uvicorn service_fastapi:app --timeout-graceful-shutdown 15
    hypercorn service_fastapi:app --worker-class trio --graceful-timeout 15
    python service_fastapi.py            # talks to itself, and ends

The server handles signals: it stops taking requests, waits for those in flight, and then ends the lifespan, which
drains the runtime. So this program installs no signal handlers.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from repertory import AgentResult, AgentSpec, OfflineModel, RepertoryError, Runtime, SQLiteSessions
from repertory.asgi import problem_of
from repertory.errors import ActorDead, Conflict, Failed, Gone, Invalid, NotFound, Retryable, Throttled, Unavailable

STATUSES: tuple[tuple[type[RepertoryError], int], ...] = (
    (Throttled, 429),
    (Retryable, 503),
    (ActorDead, 503),
    (Conflict, 409),
    (Gone, 404),
    (Invalid, 422),
    (Failed, 502),
    (RepertoryError, 500),
)
"""The first class that matches an error gives its status, which tells the client to wait, retry or give up."""


class Said(BaseModel):
    """A prompt. Without a text, the turn that was cut short continues."""

    text: str | None = None


class Stream(StreamingResponse):
    """Server-sent events. When the client disconnects, the turn ends at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):
            await super().stream_response(send)


class CutShort:
    """Middleware that answers 503 when the server cancels a request that has no answer yet."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = scope["type"] != "http"

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except anyio.get_cancelled_exc_class():
            if not started:
                with anyio.move_on_after(1, shield=True):
                    await problem(Unavailable("the turn was cut short; what was said is kept"))(scope, receive, send)
            raise


def problem(error: RepertoryError) -> JSONResponse:
    """Turn an error into a response."""
    status = next(status for kind, status in STATUSES if isinstance(error, kind))
    wait_s = error.retry_after_s if isinstance(error, Throttled) else None
    headers = {"Retry-After": str(math.ceil(wait_s or 1))} if status in (429, 503) else {}
    return JSONResponse(described(error), status, headers)


def described(error: RepertoryError) -> dict[str, str]:
    """What the client is told: nothing of this machine, its stores and the services behind it."""
    told = problem_of(error)
    return {"error": type(error).__name__, "detail": told.detail or told.title}


async def server_sent(events: AsyncGenerator[dict[str, object]]) -> AsyncGenerator[str]:
    """Stream a turn's text, then its end. The status is already sent by then, so an error is an event too."""
    async with aclosing(events):
        try:
            async for event in events:
                match event:
                    case {"data": text}:
                        yield f"data: {json.dumps(text)}\n\n"
                    case {"result": AgentResult(stop_reason=reason)}:
                        yield f"event: end\ndata: {json.dumps(reason)}\n\n"
                    case _:
                        pass  # tools, messages, raw events: docs/guides/agents/tools.md lists them
        except RepertoryError as error:
            yield f"event: error\ndata: {json.dumps(described(error))}\n\n"


def service(runtime: Runtime, spec: AgentSpec) -> FastAPI:
    """Build the service, which opens the runtime when the server starts and drains it when the server stops."""
    agent = runtime.agent(spec)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with runtime:
            yield
            report = await runtime.drain()
            print(f"drained in {report.duration_s:.2f} s ok={report.ok} unfinished={report.unfinished}", flush=True)

    app = FastAPI(title="Conversations", lifespan=lifespan)
    app.add_middleware(CutShort)
    # Nobody is asked who they are, so only this machine is answered: not a name that leads here from elsewhere.
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])

    @app.exception_handler(RepertoryError)
    async def refuse(request: Request, error: RepertoryError) -> JSONResponse:
        return problem(error)

    @app.post("/sessions/{session_id}/messages")
    async def say(session_id: str, said: Said) -> dict[str, Any]:
        result = await agent.session(session_id).invoke(said.text)
        if result.stop_reason == "cancelled":
            raise Unavailable("the turn was cut short; what was said is kept", session=session_id)
        return {"text": str(result), "stop_reason": result.stop_reason}

    @app.post("/sessions/{session_id}/stream")
    async def stream(session_id: str, said: Said) -> Stream:
        return Stream(server_sent(agent.session(session_id).stream(said.text)))

    @app.get("/sessions/{session_id}/messages")
    async def messages(session_id: str) -> list[dict[str, Any]]:
        history = await agent.session(session_id).history()
        if not history:
            raise NotFound("nothing was said in this session yet", session=session_id)
        return [dict(message) for message in history]

    @app.get("/healthz")
    async def health() -> JSONResponse:
        return JSONResponse(asdict(runtime.stats()), 200 if runtime.healthy else 503)

    return app


app = service(
    Runtime(sessions=SQLiteSessions(), drain_timeout_s=10, on_fatal="signal"),
    AgentSpec(name="helper", model=OfflineModel(), busy="reject"),
)
"""The application for a server. `on_fatal="signal"` ends the server when its actors are lost."""


def talk_to_itself(folder: Path) -> None:
    """Send a few requests to the service from this process, without a server."""
    from fastapi.testclient import TestClient

    own = service(
        Runtime(sessions=SQLiteSessions(folder / "sessions.db")), AgentSpec(name="helper", model=OfflineModel())
    )
    with TestClient(own, base_url="http://localhost") as client:
        print(client.post("/sessions/marta/messages", json={"text": "My stall is called Warm Crumb."}).json())
        print(client.post("/sessions/marta/stream", json={"text": "Do you remember my stall?"}).text)
        print(client.get("/sessions/nobody/messages").json())
        print(client.get("/healthz").status_code)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        talk_to_itself(Path(folder))
