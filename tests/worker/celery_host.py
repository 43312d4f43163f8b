"""A worker of Celery whose processes each start and stop a runtime: `celery -A tests.worker.celery_host worker`.

Tasks of Celery are synchronous, so the runtime lives in an event loop of a thread beside them. The database is
`$DATABASE`, and the broker is the folder `$BROKER`. As a program with a session and a text it asks the worker.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal
from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown

from repertory import AgentSpec, HostedAgent, Runtime, SQLiteSessions
from tests.worker.obedient_model import ObedientModel

_PARTS = {name: f"{os.environ['BROKER']}/{name}" for name in ("messages", "control", "results")}
for _part in _PARTS.values():
    os.makedirs(_part, exist_ok=True)
app = Celery("celery_host", broker="filesystem://", backend=f"file://{_PARTS['results']}")
app.conf.update(
    broker_transport_options={
        "data_folder_in": _PARTS["messages"],
        "data_folder_out": _PARTS["messages"],
        "control_folder": _PARTS["control"],
        "polling_interval": 0.05,
    },
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


class Hosted:
    """The runtime of this process."""

    stack: ExitStack
    portal: BlockingPortal
    runtime: Runtime
    helper: HostedAgent


@worker_process_init.connect
def start(**_: Any) -> None:
    Hosted.stack = ExitStack()
    Hosted.portal = Hosted.stack.enter_context(start_blocking_portal())
    Hosted.runtime = Runtime(sessions=SQLiteSessions(os.environ["DATABASE"]), drain_timeout_s=5)
    Hosted.helper = Hosted.runtime.agent(AgentSpec(name="helper", model=ObedientModel()))
    Hosted.portal.call(Hosted.runtime.start)
    print("started", flush=True)


@worker_process_shutdown.connect
def stop(**_: Any) -> None:
    report = Hosted.portal.call(Hosted.runtime.stop)
    Hosted.stack.close()
    print(f"stopped ok={report.ok}", flush=True)


@app.task(bind=True, name="say")
def say(self: Any, session_id: str, text: str) -> str:
    """One turn, once for each task, however often Celery delivers it."""

    async def turn() -> str:
        return str(await Hosted.helper.session(session_id).invoke(text, idempotency_token=self.request.id))

    return Hosted.portal.call(turn)


if __name__ == "__main__":
    print(app.send_task("say", sys.argv[1:]).get(timeout=25), flush=True)
