"""Clients talk to a service of two processes that is stopped, killed and replaced, and come and go as they like.

A client says each prompt under a token of its own, to either process, and may lose its connection at any moment: then
it says the same again, or reads on with the id of the last event that it has. In the end each prompt stands once, in
the order of its session, with its answer; each effect was had at most once, no piece came twice, and none was missing.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import h11
import httpx

from repertory import Sessions
from repertory.core.messages import text_of
from tests.campaigns.campaign_cluster import Host
from tests.campaigns.campaigns import Report
from tests.postgres_server import postgres_server, programs
from tests.simulation.peer_host import AGENT, place_of
from tests.source_tree import ROOT

_ANSWER_S = 60.0
_PAUSE_S = 0.05
_LOST = (OSError, anyio.BrokenResourceError, anyio.EndOfStream, h11.RemoteProtocolError)
"""The connection broke, or was not made."""


@dataclass
class ServiceHost(Host):
    """One process of the service."""

    url: str = ""


@dataclass
class Service:
    """The processes, and what clients have got."""

    where: str
    folder: Path
    rng: random.Random
    report: Report
    stack: ExitStack
    hosts: list[ServiceHost] = field(default_factory=list[ServiceHost])
    started: int = 0
    calling: bool = True
    slowest_s: float = 0.0

    async def start(self) -> None:
        """Start one, and wait until it is there."""
        host = self._new()
        host.url = await host.line()
        errors = self.folder / f"errors {host.name}"
        assert host.url.startswith("http"), (host.url, errors.read_text()[-3000:])
        self.hosts.append(host)

    def _new(self) -> ServiceHost:
        name, backend = f"h{self.started:03}", self.rng.choice(("asyncio", "trio"))
        self.started += 1
        command = [
            sys.executable,
            "-m",
            "tests.simulation.served_host",
            self.where,
            str(self.folder),
            name,
            backend,
            "0",
        ]
        with open(self.folder / f"errors {name}", "w") as errors:
            process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=errors)
        host = ServiceHost(process, name)
        self.stack.callback(host.end)
        return host

    async def kill(self) -> None:
        """SIGKILL one, and start another one."""
        host = self.hosts.pop(self.rng.randrange(len(self.hosts)))
        host.process.kill()
        self.report.counts["kills"] += 1
        await self.start()

    async def replace(self) -> None:
        """Start another one, and stop one in order by SIGTERM."""
        await self.start()
        await self.stop(self.hosts.pop(0))
        self.report.counts["replacements"] += 1

    async def stop(self, host: ServiceHost) -> None:
        host.send(signal.SIGTERM)
        line = await host.line()
        self.report.check(line == "over", f"a process that was asked to end says {line!r}")
        code = await anyio.to_thread.run_sync(host.process.wait)
        self.report.check(code == 0, f"a process that was asked to end gave {code}")


def restarts(rng: random.Random, folder: Path, seconds: float) -> Report:
    """On SQLite or PostgreSQL, by chance."""
    return served(rng, folder, seconds, rng.choice(("sqlite", "postgres")))


def served(rng: random.Random, folder: Path, seconds: float, kind: str) -> Report:
    """One round on this kind of place."""
    report = Report()
    if kind == "postgres" and not programs():
        report.counts["skipped: PostgreSQL is missing"] += 1
        report.acknowledged = report.found = 1
        return report
    with ExitStack() as stack:
        where = str(folder / "sessions.db")
        if kind == "postgres":
            where = stack.enter_context(postgres_server()).dsn()
        report.counts[kind] += 1
        service = Service(where, folder, rng, report, stack)
        backend = rng.choice(("asyncio", "trio"))
        anyio.run(_run, service, seconds, backend=backend)
    return report


async def _run(service: Service, seconds: float) -> None:
    await service.start()
    await service.start()
    said: dict[str, list[str]] = {f"session {number}": [] for number in range(6)}
    async with httpx.AsyncClient(timeout=_ANSWER_S) as http:
        async with anyio.create_task_group() as group:
            for session, prompts in said.items():
                rng = random.Random(f"{session} {service.rng.random()}")
                group.start_soon(Client(service, session, rng).talk, prompts)
            until = anyio.current_time() + seconds
            while anyio.current_time() < until:
                await anyio.sleep(service.rng.uniform(0.05, 0.6))
                await (service.kill if service.rng.random() < 0.5 else service.replace)()
            await anyio.sleep(0.3)
            service.calling = False
        for session in said:
            await _look_by_http(service, http, session, said[session])
    for host in service.hosts:
        await service.stop(host)
    await _look(service, said)


class Client:
    """Talks in one session, one prompt after the other, over whatever connection it can get."""

    def __init__(self, service: Service, session: str, rng: random.Random) -> None:
        self._service = service
        self._session = session
        self._rng = rng
        self._last: str | None = None
        self._whole: list[str] = []
        """The ids of the events of this turn."""
        self._pieces = ""
        self._answer: str | None = None

    async def talk(self, prompts: list[str]) -> None:
        report = self._service.report
        while self._service.calling:
            prompt = f"{self._session} prompt {len(prompts)}"
            prompts.append(prompt)
            began = anyio.current_time()
            self._last, self._whole, self._pieces, self._answer = None, [], "", None
            token, tries = prompt.replace(" ", "-"), 0
            with anyio.move_on_after(_ANSWER_S):
                while self._answer is None:
                    await self._try(prompt, token)
                    tries += 1
                    if self._answer is None:
                        await anyio.sleep(_PAUSE_S * self._rng.uniform(0.5, 1.5))
            report.check(self._answer == f"noted {prompt}", f"{prompt}: answered {self._answer!r} after {tries} tries")
            twice = [id for id, count in Counter(self._whole).items() if count > 1]
            report.check(not twice, f"{prompt}: events came twice: {twice} of {self._whole}")
            report.acknowledged += 1
            self._service.slowest_s = max(self._service.slowest_s, anyio.current_time() - began)

    async def _try(self, prompt: str, token: str) -> None:
        """One request, which may be left at any event."""
        url, way = self._rng.choice(self._service.hosts).url, self._rng.random()
        path = f"/v1/agents/{AGENT}/sessions/{self._session.replace(' ', '%20')}/turns"
        body: dict[str, Any] = {"prompt": prompt, "token": token}
        try:
            if self._last is not None and way < 0.7:
                await self._listen(url, "GET", f"{path}/{token}/events", {"last-event-id": self._last})
            elif self._last is not None or way < 0.6:
                headers = {"last-event-id": self._last} if self._last is not None else {}
                await self._listen(url, "POST", path, headers, {**body, "stream": True})
            else:
                await self._ask(url, path, body)
        except _LOST:
            self._service.report.counts["connections lost"] += 1

    async def _ask(self, url: str, path: str, body: dict[str, Any]) -> None:
        async with requested(url, "POST", path, {}, body) as answer:
            told = await answer.rest()
            if answer.status == 200:
                self._answer = json.loads(told)["text"].strip()
            else:
                self._refused(answer.status, told)

    async def _listen(
        self, url: str, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None = None
    ) -> None:
        leaves_after = self._rng.choice((1, 2, 3, 5, 8, 10**6))
        async with requested(url, method, path, {**headers, "accept": "text/event-stream"}, body) as answer:
            if answer.status not in (200, 204):
                self._refused(answer.status, await answer.rest())
                return
            while (event := await answer.event()) is not None:
                self._told(*event)
                leaves_after -= 1
                if leaves_after == 0:
                    self._service.report.counts["clients gone"] += 1
                    return

    def _refused(self, status: int, text: str) -> None:
        """Another try is for what the service says may succeed later, and for nothing else."""
        self._service.report.counts[f"status {status}"] += 1
        fine = status in (409, 429, 503) or (status == 404 and self._last is not None)
        self._service.report.check(fine, f"{self._session}: {status} {text[:300]}")

    def _told(self, kind: str, id: str | None, data: Any) -> None:
        report = self._service.report
        if kind == "error":
            self._refused(data["status"], json.dumps(data))
            return
        report.check(id is not None or kind == "accepted", f"{self._session}: {kind} without an id")
        self._last = id or self._last
        if kind not in ("model_retry", "accepted"):
            self._whole.append(id or "")
        match kind:
            case "data":
                self._pieces += data["data"]
            case "model_retry":
                self._pieces = ""
            case "message":
                whole = text_of(data["message"])
                if data["message"]["role"] == "assistant":
                    held = whole.startswith(self._pieces)
                    report.check(held, f"{self._session}: pieces {self._pieces!r} of {whole!r}")
                self._pieces = ""
            case "result":
                message = data["result"]["message"]
                self._answer = text_of(message).strip() if message else ""
            case _:
                pass


class Answer:
    """What a server says, as it comes. One that is left is closed like that of a client that is killed."""

    def __init__(self, stream: anyio.abc.ByteStream, wire: h11.Connection) -> None:
        self._stream = stream
        self._wire = wire
        self._text = b""
        self.status = 0

    async def head(self) -> None:
        """Wait for the status."""
        found = await self._next()
        assert isinstance(found, h11.Response), found
        self.status = found.status_code

    async def rest(self) -> str:
        """All of it."""
        while await self._more():
            pass
        return self._text.decode()

    async def event(self) -> tuple[str, str | None, Any] | None:
        """Kind, id and data of the next whole event; None at the end."""
        while True:
            block, end, rest = self._text.partition(b"\n\n")
            if end:
                self._text = rest
                lines = [line for line in block.decode().split("\n") if line and not line.startswith(":")]
                fields = dict(line.split(": ", 1) for line in lines)
                if fields:
                    return fields.get("event", "message"), fields.get("id"), json.loads(fields["data"])
            elif not await self._more():
                return None

    async def _more(self) -> bool:
        found = await self._next()
        if isinstance(found, h11.Data):
            self._text += found.data
        return isinstance(found, h11.Data)

    async def _next(self) -> object:
        while (found := self._wire.next_event()) is h11.NEED_DATA:
            try:
                self._wire.receive_data(await self._stream.receive())
            except anyio.EndOfStream:
                self._wire.receive_data(b"")
        return found


@asynccontextmanager
async def requested(
    url: str, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None
) -> AsyncGenerator[Answer]:
    """A request on a connection of its own. Errors: those of `_LOST`."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    sent = b"" if body is None else json.dumps(body).encode()
    told = {"host": f"{host}:{port}", "content-type": "application/json", "content-length": str(len(sent)), **headers}
    stream = await anyio.connect_tcp(host, int(port))
    try:
        wire = h11.Connection(h11.CLIENT)
        head = wire.send(h11.Request(method=method, target=path, headers=[*told.items()])) or b""
        wire.send(h11.Data(sent))
        wire.send(h11.EndOfMessage())
        await stream.send(head + sent)
        answer = Answer(stream, wire)
        with anyio.fail_after(_ANSWER_S):
            await answer.head()
        yield answer
    finally:
        await anyio.aclose_forcefully(stream)


async def _look_by_http(service: Service, http: httpx.AsyncClient, session: str, prompts: list[str]) -> None:
    """What the service itself says of the conversation."""
    told: list[str] = []
    after: str | None = None
    while True:
        params = {"limit": "40", **({"after": after} if after else {})}
        path = f"{service.hosts[-1].url}v1/agents/{AGENT}/sessions/{session}/messages"
        page = (await http.get(path, params=params)).raise_for_status().json()
        told += [text_of(one["message"]) for one in page["messages"]]
        after = page.get("next")
        if not after:
            break
    found = [text for text in told if " prompt " in text and not text.startswith("noted")]
    service.report.check(found == prompts, f"{session} over HTTP: {len(found)} of {len(prompts)}")


async def _look(service: Service, said: dict[str, list[str]]) -> None:
    report, sessions = service.report, Sessions(place_of(service.where))
    for session, prompts in said.items():
        stored = await sessions.show(session)
        texts = [text_of(each.message) for each in stored.agents[AGENT].messages]
        found = [text for text in texts if " prompt " in text and not text.startswith("noted")]
        report.check(found == prompts, f"{session}: {[text for text in found if text not in prompts]}, {len(found)}")
        for prompt in prompts:
            report.found += texts.count(f"noted {prompt}") == 1 and texts.count(prompt) == 1
    noted = Counter((service.folder / "noted").read_text().splitlines())
    report.check(max(noted.values()) == 1, f"effects were had twice: {[what for what in noted if noted[what] > 1]}")
    examined = await sessions.doctor()
    report.check(examined.ok, f"the doctor says {examined}")
    report.counts[f"slowest {service.slowest_s:.1f} s"] += 1
