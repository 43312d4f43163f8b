"""An application of others behind the doors of a service: who calls, by which name, from which page, and how much."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from repertory.service.decisions.heads import is_ambiguous
from repertory.service.http.problems import Problem, problem_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from repertory.service.http.service import Caller, Service

CALLER: ContextVar[Caller | None] = ContextVar("repertory_caller", default=None)
"""The caller of the request that is being answered; None where nobody is asked who they are."""
_READS = ("GET", "HEAD", "OPTIONS")


class Guarded:
    """Middleware. Requests that the service refuses get its answer, and so do those beyond its limits. `refuses` reads
    the body of what is sent, with the bounds of the service, and may have an answer as well. WebSockets are refused.
    """

    def __init__(
        self, app: ASGIApp, service: Service, refuses: Callable[[Service, Request], Awaitable[Response | None]]
    ) -> None:
        self._app = app
        self._service = service
        self._refuses = refuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # 1008 is "policy violation": neither the caller of a socket nor what it takes would be checked.
            await send({"type": "websocket.close", "code": 1008})
            return
        body, last = bytearray(), dict[str, Any]()

        async def reading() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            last.update(message)
            return message

        async def again() -> Message:
            # What was read for the check is given once; then the application reads on itself, and hears when the client
            # goes.
            if not last:
                return await receive()
            message: Message = {**last, "body": bytes(body)}  # The pieces as one: a body may have a million of them.
            last.clear()
            body.clear()
            return message

        request, passed, refusal = Request(scope, reading), False, None
        try:
            if is_ambiguous(scope["headers"]):
                raise Problem(400, "the head of the request is ambiguous", headers={"connection": "close"})
            caller = await self._service.caller(request)
            CALLER.set(caller if self._service.knows_callers else None)
            async with self._service.admitted(caller):
                if request.method not in _READS:
                    refusal = await self._refuses(self._service, request)
                passed = True
                await (refusal or self._app)(scope, again, send)
        except Problem as problem:
            if passed:
                raise
            await problem_response(problem, request.url.path)(scope, receive, send)
