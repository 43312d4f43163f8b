"""The example service with a model that does what it is told, for the servers that tests start and stop.

The database is `$DATABASE`. One more request, `POST /lose`, kills the root of all actors, as nobody should.
"""

from __future__ import annotations

import os

from fastapi import FastAPI

from examples.service_fastapi import service
from repertory import AgentSpec, Runtime, SQLiteSessions
from tests.worker.obedient_model import ObedientModel


def build() -> FastAPI:
    """The service."""
    sessions = SQLiteSessions(os.environ["DATABASE"])
    runtime = Runtime(sessions=sessions, drain_timeout_s=5, on_fatal="signal")
    spec = AgentSpec(name="helper", model=ObedientModel(), busy="reject", retry_strategy=None)
    app = service(runtime, spec)

    @app.post("/lose")
    async def lose() -> None:
        runtime._host.system._root._child.cell.kill()

    return app


app = build()
