"""A service that gives its runtime to the server as its lifespan, with a model that does what it is told.

The database is `$DATABASE`. With `$SHARED`, its runtime shares the sessions with those of other workers. `$FRAMEWORK`
is `starlette` or `fastapi`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.service_fastapi import problem
from repertory import AgentSpec, Peers, RepertoryError, Runtime, SQLiteSessions
from tests.worker.obedient_model import ObedientModel

runtime = Runtime(
    sessions=SQLiteSessions(os.environ["DATABASE"]),
    peers=Peers() if "SHARED" in os.environ else None,
    drain_timeout_s=5,
    on_fatal="signal",
)
helper = runtime.agent(AgentSpec(name="helper", model=ObedientModel(), retry_strategy=None))


async def say(request: Request) -> JSONResponse:
    """One turn: `text`, and `token` if the client may say it again."""
    said = json.loads(await request.body())
    session = helper.session(request.path_params["session"])
    options: dict[str, Any] = {"idempotency_token": said["token"]} if "token" in said else {}
    try:
        answer = str(await session.invoke(said["text"], **options))
    except RepertoryError as error:
        return problem(error)
    return JSONResponse({"text": answer, "pid": os.getpid()})


async def health(request: Request) -> JSONResponse:
    """Whether the runtime that the lifespan has given to the request takes calls."""
    found = request.state.runtime
    return JSONResponse({"same": found is runtime, "healthy": found.healthy}, 200 if found.healthy else 503)


async def drained() -> None:
    """Say that the sessions are closed."""
    print("closed", flush=True)


runtime.on_shutdown("close", drained)
routes = [Route("/sessions/{session}/messages", say, methods=["POST"]), Route("/healthz", health)]
app: Starlette | FastAPI
if os.environ.get("FRAMEWORK") == "starlette":
    app = Starlette(routes=routes, lifespan=runtime.lifespan)
else:
    app = FastAPI(lifespan=runtime.lifespan)
    app.router.routes.extend(routes)
