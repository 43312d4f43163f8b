"""A service of which any number of pods run: every pod answers for every session.

    uvicorn app:app --host 0.0.0.0 --port 8000 --timeout-graceful-shutdown 15

`service.yaml` says the rest, and sets the environment. `docs/guides/services/scaling.md` tells what happens when pods
come, go and die.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import BaseModel

from repertory import AgentSpec, OfflineModel, Peers, PostgresSessions, RepertoryError, Runtime
from repertory.asgi import Caller, Problem, bearer_tokens, problem_of, problem_response

DRAIN_S = 20.0
"""How long the end of a pod may take after its requests are answered."""
PEER_PORT = 7000
"""Where the pods call each other."""

ROOM = 200
"""How many sessions of one pod run turns at the same time."""

CONNECTIONS = 4
"""To the database, for one pod; there is one more, which shows that the pod is alive."""

runtime = Runtime(
    sessions=PostgresSessions(os.environ["DATABASE_URL"], connections=CONNECTIONS),
    peers=Peers(
        listen=f"{os.environ['POD_IP']}:{PEER_PORT}",
        secret=os.environ["PEER_SECRET"],
        version=os.environ["VERSION"],
        room=ROOM,
    ),
    drain_timeout_s=DRAIN_S,
    on_fatal="signal",
)
helper = runtime.agent(AgentSpec(name="helper", model=OfflineModel()))
known_callers = bearer_tokens({os.environ["API_TOKEN"]: Caller()})
"""One secret for all clients. Several tenants: `repertory.asgi.asgi_app`, which keeps their sessions apart."""
app = FastAPI(title="Helper", lifespan=runtime.lifespan)


class Said(BaseModel):
    """A prompt."""

    text: str


@app.exception_handler(RepertoryError)
@app.exception_handler(Problem)
async def refuse(request: Request, error: Exception) -> Response:
    """Say what the client does next: wait and say it again under the same key, or give up. What an error says of this
    pod and of what stands behind it is not told.
    """
    return problem_response(problem_of(error), request.url.path)


def caller(request: Request) -> Caller:
    """Who shows the secret; 401 for anybody else."""
    found = known_callers(request)
    if not isinstance(found, Caller):
        raise Problem(401, "say who you are", headers={"www-authenticate": "Bearer"})
    return found


@app.post("/sessions/{session_id}/messages", dependencies=[Depends(caller)])
async def say(session_id: str, said: Said, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, Any]:
    """One turn. A client that gets no answer says it again with the same `Idempotency-Key`: it does not run twice."""
    result = await helper.session(session_id).invoke(said.text, idempotency_token=idempotency_key)
    return {"text": str(result), "replayed": result.replayed}


@app.get("/ready")
async def ready(request: Request) -> JSONResponse:
    """Whether the pod gets requests."""
    healthy: bool = request.state.runtime.healthy
    return JSONResponse({"healthy": healthy}, 200 if healthy else 503)


@app.get("/metrics")
async def metrics() -> PlainTextResponse:
    """How full the pod is, for Prometheus. The autoscaler follows it."""
    stats = runtime.stats()
    return PlainTextResponse(f"repertory_room {stats.room}\nrepertory_busy {stats.busy}\n")


@app.get("/alive")
async def alive() -> dict[str, bool]:
    """Whether the event loop runs. It asks nobody, so that pods are not restarted when the database is away."""
    return {"alive": True}
