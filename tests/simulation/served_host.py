"""One process of a service: it answers HTTP for sessions that others share, until SIGTERM, and says where it listens.

Arguments: the place (a path, a DSN, or `s3:` and the server, with `VALKEY` for its peers), the folder of the ledgers,
its own name, the event loop's backend, its port.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from repertory import JournalSessions, Peers, Runtime, S3Storage, Valkey
from repertory.app.sessions.sessions import SessionPlace
from repertory.asgi import asgi_app
from repertory.service.process.listening import listen_at, url_of
from repertory.service.process.web_server import serve_web
from tests.simulation.peer_host import SECRET, clerk, place_of

BUCKET = "service"


def served_place(where: str) -> SessionPlace:
    if where.startswith("s3:"):
        return JournalSessions(S3Storage(BUCKET, region_name="us-east-1", endpoint_url=where.removeprefix("s3:")))
    return place_of(where)


def peers_of(where: str) -> Peers:
    if where.startswith("s3:"):
        return Peers("127.0.0.1:0", secret=SECRET, directory=Valkey(os.environ["VALKEY"]))
    return Peers("127.0.0.1:0" if "=" in where else None, secret=SECRET)


async def main() -> None:
    where, folder, name, _, port = sys.argv[1:]
    runtime = Runtime(sessions=served_place(where), peers=peers_of(where), drain_timeout_s=10)
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
