"""An application of others behind the doors of a service: who calls, by which name, from which page, and how much."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from starlette.requests import Request

from repertory.app.asgi.problems import Problem, problem_response
from repertory.core.serving.heads import is_ambiguous

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from repertory.app.asgi.service import Caller, Service

CALLER: ContextVar[Caller | None] = ContextVar("repertory_caller", default=None)
"""The caller of the request that is being answered; None where nobody is asked who they are."""
_READS = ("GET", "HEAD", "OPTIONS")


class Guarded:
    """Middleware. Requests that the service refuses get its answer, and so do those beyond its limits, and bodies that
    are no JSON, too large or too slow; WebSockets are refused.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        read: list[Message] = []

        async def reading() -> Message:
            read.append(await receive())
            return read[-1]

        async def again() -> Message:
            return read.pop(0) if read else await receive()

        request, passed = Request(scope, reading), False
        try:
            if is_ambiguous(scope["headers"]):
                raise Problem(400, "the head of the request is ambiguous", headers={"connection": "close"})
            caller = await self._service.caller(request)
            CALLER.set(caller if self._service.knows_callers else None)
            async with self._service.admitted(caller):
                if request.method not in _READS:
                    await self._service.json(request)
                passed = True
                await self._app(scope, again, send)
        except Problem as problem:
            if passed:
                raise
            await problem_response(problem, request.url.path)(scope, receive, send)
