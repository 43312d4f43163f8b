"""`asgi_app`: the application that a server runs, or that another application mounts."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from repertory.core.admission import ServiceLimits
from repertory.core.callers import CallerRules
from repertory.errors import Invalid
from repertory.service.http import http_api
from repertory.service.http.gc_when_quiet import gc_when_quiet
from repertory.service.http.problems import Problem, problem_response
from repertory.service.http.requests import EachRequest
from repertory.service.http.service import Authenticate, Caller, Service
from repertory.version import __version__

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from repertory.app.embedding.hosted import HostedAgent
    from repertory.app.embedding.runtime import Runtime
    from repertory.app.memory.memory_manager import MemoryManager
    from repertory.service.answer_links import AnswerLinks
    from repertory.service.http.stored import CallersMemory

PROTOCOLS = ("openai", "a2a", "ag-ui")
"""The protocols beside our own."""


def asgi_app(
    runtime: Runtime,
    *,
    agents: Mapping[str, HostedAgent] | None = None,
    authenticate: Authenticate | None = None,
    limits: ServiceLimits | None = None,
    protocols: Collection[str] = PROTOCOLS,
    cors: Sequence[str] = (),
    hosts: Collection[str] = (),
    memory: MemoryManager | Callable[[Caller], MemoryManager] | None = None,
    callers: CallerRules | None = None,
    details: bool = False,
    index: bool = False,
    answer_links: AnswerLinks | None = None,
) -> Starlette:
    """An ASGI application over a runtime, for uvicorn, for Hypercorn on asyncio and trio, and to be mounted.

    The lifespan of the application enters the runtime and drains it, unless it was started before; meanwhile full
    garbage collections, which stop every turn, wait for a quiet moment, for five minutes at most. An application that
    mounts this one enters the runtime itself: `FastAPI(lifespan=runtime.lifespan)`. `app.state.service` is the
    `Service`.

    Args:
        runtime: The runtime that answers.
        agents: Those that are served; without it, all that the runtime has when a request comes.
        authenticate: Tells who calls, see `Authenticate`; without it there is one tenant, and only requests that name
            this machine are answered, or one of `hosts` (`*` for any).
        limits: The bounds of the service; None for the defaults of `ServiceLimits`.
        protocols: What is spoken besides Repertory's own API.
        cors: The origins of web pages that may call, such as `https://app.example.com`; none unless you name them.
        hosts: The names by which clients may call it, and that a card of A2A may have; `*` allows all.
        memory: What `/v1/memory/search` searches; with `authenticate`, a function of the caller.
        callers: The rules for prompts; None for the defaults of `CallerRules`, which take what a user says.
        details: Tell callers also what errors say of this machine and of the services behind it, for development.
        index: True answers `/` with a page to talk to agents, and programs with links. `repertory serve` does so.
        answer_links: Takes the answers of people who have a link of it. They need no token of `authenticate`.

    Raises:
        Invalid: For an unknown protocol, for one memory of all tenants, and for answer links of a runtime whose
            sessions are in memory. Correct the argument.
        ImportError: Naming the extra that a protocol needs. Install the extra that the message names.
    """
    unknown = sorted(set(protocols).difference(PROTOCOLS))
    if unknown:
        raise Invalid(f"protocols are {', '.join(PROTOCOLS)}", unknown=unknown)
    service = Service(
        runtime,
        agents=agents,
        authenticate=authenticate,
        limits=limits,
        hosts=hosts,
        origins=cors,
        callers=callers,
        details=details,
    )
    if answer_links is not None and runtime.sessions is None:
        raise Invalid("links answer questions of stored sessions: write Runtime(sessions=...)")
    known = _memory_of(memory, authenticate)
    routes: list[BaseRoute] = http_api.routes(
        service, memory=known, version=__version__, index=index, links=answer_links
    )
    for name in protocols:
        match name:  # Each is loaded when it is spoken.
            case "openai":
                from repertory.service.http import openai as protocol
            case "a2a":
                from repertory.service.http import a2a as protocol
            case _:
                from repertory.service.http import ag_ui as protocol
        routes += protocol.routes(service)
    handlers: dict[Any, Any] = {HTTPException: _refused}
    app = Starlette(routes=routes, middleware=_middleware(cors), exception_handlers=handlers, lifespan=_lifespan)
    app.router.redirect_slashes = False  # A redirect would go to the name that the request has made up.
    app.state.service = service
    return app


def _memory_of(memory: object, authenticate: Authenticate | None) -> CallersMemory | None:
    if memory is None or callable(memory):
        return cast("CallersMemory | None", memory)
    if authenticate is not None:
        raise Invalid("tenants would search the memory of others: memory= is a function of the caller")
    return lambda caller: cast("MemoryManager", memory)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncGenerator[dict[str, object]]:
    runtime: Runtime = app.state.service.runtime
    if runtime.started:
        yield {"runtime": runtime}
        return
    async with runtime, gc_when_quiet(lambda: app.state.service.in_progress):
        yield {"runtime": runtime}


def _middleware(cors: Sequence[str]) -> list[Middleware]:
    made = [Middleware(EachRequest)]
    if cors:
        methods, exposed = ["GET", "POST", "DELETE"], ["location", "retry-after", "x-request-id"]
        made.append(
            Middleware(
                CORSMiddleware,
                allow_origins=cors,
                allow_methods=methods,
                allow_headers=["*"],
                expose_headers=exposed,
            )
        )
    return made


async def _refused(request: Request, error: HTTPException) -> Response:
    """The answer to a request that the routing refuses: no such path, or no such method."""
    detail = "" if error.status_code in (404, 405) else str(error.detail)
    return problem_response(Problem(error.status_code, detail, headers=error.headers), request.url.path)
