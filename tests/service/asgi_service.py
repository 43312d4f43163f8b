"""A service of `repertory.asgi` with a model that does what it is told, for the servers that tests start and stop.

The database is `$DATABASE`. With `$MOUNTED`, a FastAPI application has it below `/agents` and enters the runtime.
"""

from __future__ import annotations

import math
import os

from fastapi import FastAPI

from repertory import Agent, AgentSpec, OfflineModel, Runtime, SQLiteSessions, Swarm
from repertory.asgi import ServiceLimits, asgi_app
from tests.worker.obedient_model import ObedientModel

LIMITS = ServiceLimits(rate_per_s=math.inf, body_bytes=100_000)
runtime = Runtime(sessions=SQLiteSessions(os.environ["DATABASE"]), drain_timeout_s=5, on_fatal="signal")
runtime.agent(AgentSpec(name="helper", model=ObedientModel(), retry_strategy=None))
runtime.agent(AgentSpec(name="offline", model=OfflineModel()))
runtime.orchestrator("team", lambda _: Swarm([Agent(OfflineModel(), name="only", callback_handler=None)], id="team"))


async def drained() -> None:
    """Say that the sessions are closed."""
    print("closed", flush=True)


runtime.on_shutdown("close", drained)
service = asgi_app(runtime, limits=LIMITS)
mounting = FastAPI(lifespan=runtime.lifespan)
mounting.mount("/agents", service)
app = mounting if "MOUNTED" in os.environ else service
