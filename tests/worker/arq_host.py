"""A worker of arq that starts and stops a runtime: `arq tests.worker.arq_host.WorkerSettings`.

The database is `$DATABASE`, Redis's port is `$PORT`. As a program with a session and a text it asks the worker.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
from arq import create_pool
from arq.connections import RedisSettings

from repertory import AgentSpec, Runtime, SQLiteSessions
from tests.worker.obedient_model import ObedientModel

runtime = Runtime(sessions=SQLiteSessions(os.environ["DATABASE"]), drain_timeout_s=5, on_fatal="signal")
helper = runtime.agent(AgentSpec(name="helper", model=ObedientModel()))


async def on_startup(context: dict[str, Any]) -> None:
    del context
    await runtime.start()
    print("started", flush=True)


async def on_shutdown(context: dict[str, Any]) -> None:
    del context
    report = await runtime.stop()
    print(f"stopped ok={report.ok}", flush=True)


async def say(context: dict[str, Any], session_id: str, text: str) -> str:
    """One turn, once for each job, however often arq tries it."""
    session = helper.session(session_id)
    return str(await session.invoke(text, idempotency_token=context["job_id"]))


class WorkerSettings:
    """What arq reads."""

    functions = (say,)
    on_startup = on_startup
    on_shutdown = on_shutdown
    redis_settings = RedisSettings(port=int(os.environ["PORT"]))
    handle_signals = True
    poll_delay = 0.05
    job_completion_wait = 20


async def ask(session_id: str, text: str) -> None:
    pool = await create_pool(WorkerSettings.redis_settings)
    job = await pool.enqueue_job("say", session_id, text)
    assert job is not None
    print(await job.result(timeout=25, poll_delay=0.05), flush=True)
    await pool.aclose()


if __name__ == "__main__":
    anyio.run(ask, *sys.argv[1:])
