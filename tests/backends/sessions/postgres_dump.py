"""Makes the golden dump of a version of the tables in PostgreSQL, when that version is new, from the dump before it:

python -m tests.backends.sessions.postgres_dump tests/golden/postgres-v3.sql tests/golden/postgres-v4.sql
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import anyio

from repertory.backends.peer_ports import Peer
from repertory.backends.postgres.address import postgres_address
from repertory.backends.sessions.postgres.store import PostgresSessionStore
from repertory.testing.peer_contract import ALL, directory_of
from tests.postgres_server import PostgresServer, postgres_server, programs


async def fill(server: PostgresServer) -> None:
    """What a process leaves that dies: the server that it has met."""
    store = PostgresSessionStore(postgres_address(server.dsn()), owner="dead")
    await directory_of(store).join(Peer(name="dead", address="host:1", room=2, agents=frozenset(ALL), zone="eu"))
    store.abandon()


def main(before: Path, after: Path) -> None:
    folder = programs()
    assert folder is not None
    with postgres_server() as server:
        command = [str(folder / "psql"), "-q", "-v", "ON_ERROR_STOP=1", "-d", server.url, "-f", str(before)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        anyio.run(fill, server)
        dump = [str(folder / "pg_dump"), "--schema=repertory", "--no-owner", "--inserts", server.url]
        text = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line and not line.startswith(("--", "\\"))]
    after.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
