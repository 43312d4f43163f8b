"""Servers that want what they are not given, and clients that want no one else to be served.

Agents and tool servers over loopback lead a program to a foreign server: by their cards, their metadata for OAuth,
redirects, and addresses that look like others; or they send without end. No credential and no prompt reaches the
foreign server, each call ends with an answer or a typed error, and no more is read than the bound. An honest agent is
answered. Meanwhile clients of a service with few descriptors say nothing, half of a head, or a body that drips: an
honest client of it is answered.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
from a2a.client import A2AClientError, ClientConfig

from repertory import MCPClient
from repertory.app.strands import a2a_agent
from repertory.app.strands.a2a_agent import A2AAgent
from repertory.errors import RepertoryError
from tests.app.embedding_process import started
from tests.app.serving_process import CONFIGURATION, Served
from tests.backends.recorded_http import Answer, Heard, RecordedServer, recorded_server
from tests.simulation.campaigns import Report

SECRETS = ("the-secret-of-the-program", "the-token-of-the-program", "what nobody else may read")
JSON = {"content-type": "application/json"}
CALL_S = 20.0
READ_MAX = 1_000_000
SOCKETS_MAX = 16_000_000
"""What the system holds of a connection, at the most, when nobody reads it any more."""
DESCRIPTORS = 128
SERVE = """
import os, resource, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
from repertory.app.cli.main import main
print("process", os.getpid(), flush=True)
sys.exit(main(["serve", *sys.argv[1:]]))
"""
TRIES = 60
"""A client comes again after a second, as `Retry-After` says, for as long as slow clients may hold the descriptors."""
ATTACKS = (
    b"",
    b"GET /healthz HTTP/1.1\r\nHost: local",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nG",
    b"POST /v1/agents/clerk/sessions/a/turns HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 1000\r\n\r\n{",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01",
)


def hostile_servers(rng: random.Random, folder: Path, seconds: float) -> Report:
    """A round: calls to hostile servers for so long, beside a service that is under attack."""
    report = Report()
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    loop = rng.choice(("asyncio", "trio"))
    (folder / "repertory.toml").write_text(CONFIGURATION.replace("limits = {", "limits = { body_s = 2,"))
    options = ("--trio",) if loop == "trio" else ()
    with started("-c", SERVE, str(DESCRIPTORS), *options, folder=folder) as program:
        pid = int(program.wait_for(r"process (\d+)")[1])
        served = Served(program)
        attack = threading.Thread(target=_attack, args=(served, pid, random.Random(rng.random()), report))
        attack.start()
        anyio.run(_call_hostile_servers, rng, seconds, report, backend=rng.choice(("asyncio", "trio")))
        attack.join()
    return report


def _attack(served: Served, pid: int, rng: random.Random, report: Report) -> None:
    """Take all descriptors of the service, and ask it something."""
    pause = threading.Event()
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS + 20):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=30))
            with suppress(OSError):
                slow.sendall(rng.choice(ATTACKS))
        for number in range(2):
            report.acknowledged += 1
            answer, tries = served.say("ada", f"hello {number}", token=f"t{number}"), 1
            while answer.status in (0, 503) and tries < TRIES:
                report.counts["tries again"] += 1
                pause.wait(1)
                answer, tries = served.say("ada", f"hello {number}", token=f"t{number}"), tries + 1
            report.found += answer.status == 200
            report.check(answer.status == 200, f"an honest client was not answered: {answer}")
    status = Path(f"/proc/{pid}/status").read_text()
    (most_kb,) = (int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    report.check(most_kb < 600_000, f"the service took {most_kb} KiB")
    report.counts["attacks"] += 1


async def _call_hostile_servers(rng: random.Random, seconds: float, report: Report) -> None:
    end = time.monotonic() + seconds
    before, a2a_agent.ANSWER_BYTES_MAX = a2a_agent.ANSWER_BYTES_MAX, READ_MAX
    try:
        with recorded_server() as server, recorded_server() as issuer, recorded_server() as foreign:
            while time.monotonic() < end:
                kind = rng.choice((_ask_an_agent, _ask_an_endless_agent, _ask_a_tool_server))
                report.counts[kind.__name__.removeprefix("_")] += 1
                with anyio.move_on_after(CALL_S) as scope:
                    await kind(rng, server, issuer, foreign, report)
                report.check(not scope.cancelled_caught, f"{kind.__name__} has no end")
                leaked = [each.path for each in foreign.heard if any(map(each.carries, SECRETS))]
                report.check(not leaked, f"{kind.__name__} sent what nobody else may have to {leaked}")
                for each in (server, issuer, foreign):
                    each.heard.clear()
    finally:
        a2a_agent.ANSWER_BYTES_MAX = before


def _looks_like(rng: random.Random, own: str, foreign: str) -> str:
    """An address at the foreign server, perhaps in the shape of one's own."""
    host = foreign.removeprefix("http://")
    port = host.rpartition(":")[2]
    return rng.choice(
        (
            foreign,
            f"{foreign}/{own}",
            f"http://{own.removeprefix('http://')}@{host}/",
            f"http://LOCALHOST:{port}/",
            f"http://localhost.:{port}/",
            f"{foreign}#{own}",
            f"{foreign}?{own}",
            f"//{host}/",
            f"http:/\\{host}",
            "http://[",
            "",
        )
    )


async def _ask_an_agent(
    rng: random.Random, server: RecordedServer, issuer: RecordedServer, foreign: RecordedServer, report: Report
) -> None:
    del issuer
    away = _looks_like(rng, server.url, foreign.url)
    honest = rng.random() < 0.3
    redirects = () if honest else rng.choice(((), ("GET",), ("POST",)))
    url = server.url if honest or rng.random() < 0.3 else away
    others = [{"transport": rng.choice(("JSONRPC", "HTTP+JSON", "GRPC")), "url": away} for _ in range(rng.randrange(3))]
    about = {"name": "a", "description": "b", "version": "1", "skills": [], "capabilities": {}, "url": url}
    card = {**about, "defaultInputModes": [], "defaultOutputModes": [], "additionalInterfaces": others}

    def answer(heard: Heard) -> Answer:
        if heard.method in redirects:
            return rng.choice((301, 302, 303, 307, 308)), {"location": away or foreign.url}, b""
        if heard.method == "GET":
            return 200, JSON, json.dumps(card).encode()
        said = {"kind": "message", "messageId": "1", "role": "agent", "parts": [{"kind": "text", "text": "four"}]}
        return 200, JSON, json.dumps({"jsonrpc": "2.0", "id": json.loads(heard.body)["id"], "result": said}).encode()

    server.answer = answer
    found = ""
    headers = {"x-api-key": SECRETS[1], "authorization": f"Bearer {SECRETS[1]}"}
    async with httpx.AsyncClient(headers=headers, follow_redirects=True) as http:
        config = ClientConfig(httpx_client=http, streaming=False, use_client_preference=rng.random() < 0.5)
        try:
            found = str(await A2AAgent(server.url, client_config=config).invoke_async(SECRETS[2]))
        except (RepertoryError, A2AClientError, httpx.HTTPError, httpx.InvalidURL, ValueError):
            report.counts["refused"] += 1
    if honest:
        report.acknowledged += 1
        report.found += found == "four"
    report.check(not foreign.heard, f"an agent's card at {url!r} was followed")


@contextmanager
def _endless(rng: random.Random) -> Generator[tuple[str, Callable[[], int]]]:
    """A server that answers without end, and how much it has got rid of."""
    sent, over = 0, threading.Event()
    head = rng.choice((b"content-type: application/json", b"content-type: text/event-stream"))
    piece = rng.choice((b"[", b"data: x", b"\n")) * 65_536

    def run(bound: socket.socket) -> None:
        nonlocal sent
        while not over.is_set():
            with suppress(OSError), bound.accept()[0] as client:
                client.settimeout(5)
                client.recv(65_536)
                client.sendall(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
                while not over.is_set():
                    client.sendall(piece)
                    sent += len(piece)

    with socket.create_server(("127.0.0.1", 0)) as bound:
        bound.settimeout(0.05)
        thread = threading.Thread(target=run, args=(bound,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}", lambda: sent
        finally:
            over.set()
            thread.join()


async def _ask_an_endless_agent(
    rng: random.Random, server: RecordedServer, issuer: RecordedServer, foreign: RecordedServer, report: Report
) -> None:
    del server, issuer, foreign
    with _endless(rng) as (url, sent):
        try:
            await A2AAgent(url).invoke_async(SECRETS[2])
            report.check(False, "an endless card was read")
        except (RepertoryError, A2AClientError, httpx.HTTPError):
            report.counts["refused"] += 1
        report.check(sent() < READ_MAX + SOCKETS_MAX, f"{sent()} bytes of an endless answer were read")


async def _ask_a_tool_server(
    rng: random.Random, server: RecordedServer, issuer: RecordedServer, foreign: RecordedServer, report: Report
) -> None:
    away = _looks_like(rng, server.url, foreign.url)
    token = {"access_token": SECRETS[1], "token_type": "Bearer"}

    def place() -> str:
        return rng.choice((server.url, issuer.url, foreign.url, away))

    def answer(heard: Heard) -> Answer:
        if rng.random() < 0.1:
            return rng.choice((301, 302, 307, 308)), {"location": f"{place()}{heard.path}"}, b""
        if rng.random() < 0.05:
            return 200, JSON, b"[" * 200_000
        if "authorization-server" in heard.path or "openid" in heard.path:
            about = {"issuer": place(), "authorization_endpoint": place(), "token_endpoint": f"{place()}/token"}
            return 200, JSON, json.dumps({**about, "response_types_supported": ["code"]}).encode()
        if "resource" in heard.path or "prm" in heard.path:
            about: Mapping[str, Any] = {"resource": f"{server.url}/mcp", "authorization_servers": [place(), place()]}
            return 200, JSON, json.dumps(about).encode()
        if "token" in heard.path:
            return 200, JSON, json.dumps(token).encode()
        challenge = f'Bearer resource_metadata="{place()}/prm", scope="admin"'
        return rng.choice((401, 403)), {"www-authenticate": f'{challenge}, error="insufficient_scope"'}, b""

    def honest(heard: Heard) -> Answer:
        about = {"issuer": issuer.url, "authorization_endpoint": issuer.url, "token_endpoint": f"{issuer.url}/token"}
        body = token if heard.method == "POST" else {**about, "response_types_supported": ["code"]}
        return 200, JSON, json.dumps(body).encode()

    server.answer = foreign.answer = answer
    issuer.answer = honest
    auth: Any = {"client_id": "me", "client_secret": SECRETS[0], "issuer": issuer.url}
    try:
        async with MCPClient(url=f"{server.url}/mcp", auth=auth, startup_timeout_s=5) as tools:
            await tools.list_tools()
        report.check(False, "a tool server that answers nothing was connected to")
    except RepertoryError:
        report.counts["refused"] += 1
    stolen = [each.path for each in server.heard if each.carries(SECRETS[0])]
    report.check(not stolen, f"the tool server got the secret of the issuer at {stolen}")
