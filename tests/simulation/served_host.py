"""One process of a service: it answers HTTP for sessions that others share, until SIGTERM, and says where it listens.

Arguments: the place (a path or a DSN), the folder of the ledgers, its own name, the event loop's backend, its port.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from repertory import Peers, Runtime
from repertory.asgi import asgi_app
from repertory.service.process.listening import listen_at, url_of
from repertory.service.process.web_server import serve_web
from tests.simulation.peer_host import SECRET, clerk, place_of


async def main() -> None:
    where, folder, name, _, port = sys.argv[1:]
    peers = Peers("127.0.0.1:0" if "=" in where else None, secret=SECRET)
    runtime = Runtime(sessions=place_of(where), peers=peers, drain_timeout_s=10)
    runtime.agent(clerk(Path(folder), name))
    app, ended = asgi_app(runtime, protocols=()), anyio.Event()
    listening = listen_at("127.0.0.1", int(port))

    async def serve() -> None:
        service = app.state.service
        await serve_web(app, listening, until=runtime.draining.wait, ending=service.leave, grace_s=5)
        ended.set()

    async with anyio.create_task_group() as group, runtime:
        print(url_of(listening), flush=True)
        group.start_soon(serve)
        report = await runtime.serve_signals()
        await ended.wait()
        print("over" if report.ok else f"lost {report}", flush=True)


if __name__ == "__main__":
    anyio.run(main, backend=sys.argv[4])
