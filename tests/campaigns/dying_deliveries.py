"""Either end of webhooks, each of which is killed at any moment.

serve FOLDER PORT SEED [hangs]  a receiver that fails half the time; a line in its ledger is an event that it has. One
                                that hangs keeps some of its senders waiting
send FOLDER PORT SESSIONS TURNS LOOP [URL [sealed]]
                                a clerk that answers so many turns in each of so many sessions, and delivers them; with
                                a URL, the sessions are in a bucket there, and encrypted if they are to be sealed, or in
                                PostgreSQL
"""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from pathlib import Path

import anyio
import anyio.abc

from repertory import (
    AgentSpec,
    JournalSessions,
    LocalKeys,
    PostgresSessions,
    Runtime,
    S3Storage,
    ScriptedModel,
    Sessions,
    SQLiteSessions,
)
from repertory.app.embedding.hosted import HostedSession
from repertory.app.sessions.sessions import SessionLocation
from repertory.errors import RepertoryError

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def serve(folder: Path, port: int, seed: int, *, hangs: bool) -> None:
    rng = random.Random(seed)

    async def hang() -> None:
        if hangs and rng.random() < 0.1:
            await anyio.sleep(rng.choice((0.3, 1.0, 7.0)))  # The last one: longer than a session's end waits for it.

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            lines = [line.partition(":") for line in head.decode().split("\r\n")[1:]]
            headers = {name.lower(): value.strip() for name, _, value in lines}
            while len(body) < int(headers["content-length"]):
                body += await stream.receive()
            fails = rng.random() < 0.5
            await hang()
            if not fails:
                event = json.loads(body)["data"]
                with (folder / "ledger").open("a") as ledger:
                    ledger.write(f"{event['session_id']} {event['turn']} {headers['webhook-id']}\n")
            await hang()
            status = b"503 Busy" if fails else b"204 No Content"
            await stream.send(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    print("ready", flush=True)
    await listener.serve(handle)


def place_of(folder: Path, bucket_url: str | None, *, sealed: bool) -> SessionLocation:
    if bucket_url is None:
        return SQLiteSessions(folder / "agents.db")
    if bucket_url.startswith("postgresql:"):
        return PostgresSessions(bucket_url)
    bucket = S3Storage("bucket", f"d/{folder.name}", endpoint_url=bucket_url)
    return JournalSessions(bucket, lease_s=4.0, encryption=LocalKeys(folder / "keys") if sealed else None)


async def begun_turns(session: HostedSession) -> int:
    """How many turns have an answer for sure: all but the last."""
    while True:
        try:
            told = await session.history()
        except RepertoryError:
            await anyio.sleep(0.05)
        else:
            return max(0, sum(message["role"] == "user" for message in told) - 1)


async def send(folder: Path, port: int, sessions: int, turns: int, bucket_url: str | None, sealed: bool) -> None:
    place = place_of(folder, bucket_url, sealed=sealed)
    async with Runtime(sessions=place) as runtime:
        url = f"http://127.0.0.1:{port}/hook"
        runtime.deliver(url, on=["answer"], secret=SECRET, retry_s=[0.02, 0.05, 0.2])
        agent = runtime.agent(AgentSpec(name="clerk", model=ScriptedModel(["done"], loop=True)))

        async def talk(number: int) -> None:
            session = agent.session(f"s{number}")
            # An agent remembers the tokens of its last 64 turns: whoever comes back goes on where the session is.
            for turn in range(await begun_turns(session), turns):
                while True:  # Another process may take the session away at any moment.
                    try:
                        await session.invoke(f"turn {turn}", idempotency_token=f"t{turn}", timeout_s=60)
                    except RepertoryError:
                        await anyio.sleep(0.05)
                    else:
                        break

        async with anyio.create_task_group() as group:
            for number in range(sessions):
                group.start_soon(talk, number)
        print("answered", flush=True)
        async with Sessions(place) as stored:
            while waits := await stored.deliveries():
                print(f"waits {len(waits)}", flush=True)
                await anyio.sleep(0.3)
    print("over", flush=True)


if __name__ == "__main__":
    place, port, more = Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    if sys.argv[1] == "serve":
        anyio.run(partial(serve, hangs="hangs" in more), place, port, int(more[0]))
    else:
        url = more[3] if len(more) > 3 else None
        anyio.run(send, place, port, int(more[0]), int(more[1]), url, "sealed" in more, backend=more[2])
