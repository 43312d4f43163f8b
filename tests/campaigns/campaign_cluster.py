"""Processes that share sessions are killed, frozen and replaced while they are called.

Every call goes through a gateway in this process and is never repeated by its caller. In the end each prompt stands
once, in the order of its session, with its answer; each effect was had at most once, and nobody got an error.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from repertory import AgentSpec, Peers, Runtime, ScriptedModel, Sessions
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from tests.campaigns.campaigns import Report
from tests.postgres_server import postgres_server, programs
from tests.simulation.peer_host import AGENT, SECRET, place_of
from tests.source_tree import ROOT

_START_S = 60.0
TTL_S = 10.0


@dataclass
class Host:
    """A process of the cluster."""

    process: subprocess.Popen[str]
    name: str

    @classmethod
    def start(
        cls, where: str, folder: Path, name: str, backend: str, version: str, within: Sequence[str] = (), **env: str
    ) -> Host:
        """`within`: the command that runs it elsewhere."""
        command = [sys.executable, "-m", "tests.simulation.peer_host", where, str(folder), name, backend, version]
        errors = open(folder / f"errors {name}", "w")  # noqa: SIM115 - it is the child's
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": errors}
        process = subprocess.Popen([*within, *command], cwd=ROOT, text=True, env={**os.environ, **env}, **pipes)
        errors.close()
        return cls(process, name)

    async def line(self) -> str:
        assert self.process.stdout is not None
        with anyio.fail_after(_START_S):
            return (await anyio.to_thread.run_sync(self.process.stdout.readline)).strip()

    def send(self, what: signal.Signals) -> None:
        self.process.send_signal(what)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass
class Cluster:
    """The processes, and what callers have got."""

    where: str
    folder: Path
    rng: random.Random
    report: Report
    stack: ExitStack
    server: Any = None
    hosts: list[Host] = field(default_factory=list[Host])
    started: int = 0
    taken: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When each call ended, and how many seconds it had taken."""
    calling: bool = True
    versions: bool = False
    """Whether each process is of another version than those before it."""

    async def start(self, count: int = 1) -> None:
        """Start so many processes, and wait until they are there."""
        new: list[Host] = []
        for _ in range(count):
            backend = self.rng.choice(("asyncio", "trio"))
            name = f"v{self.started:03}"
            host = Host.start(self.where, self.folder, name, backend, name if self.versions else "1")
            self.stack.callback(host.end)
            self.started += 1
            new.append(host)
        for host in new:
            line = await host.line()
            assert line == "there", (line, (self.folder / f"errors {host.name}").read_text()[-3000:])
        self.hosts += new

    async def kill(self) -> None:
        """Kill one, and start another one."""
        host = self.hosts.pop(self.rng.randrange(len(self.hosts)))
        host.send(signal.SIGKILL)
        self.report.counts["kills"] += 1
        await self.start()

    async def freeze(self) -> None:
        """Stop one for longer than it counts as alive, and let it go on."""
        host = self.rng.choice(self.hosts)
        host.send(signal.SIGSTOP)
        self.report.counts["freezes"] += 1
        await anyio.sleep(TTL_S + 4)
        host.send(signal.SIGCONT)
        await anyio.sleep(1)

    async def deploy(self) -> None:
        """Replace all, one after the other, in order."""
        for host in list(self.hosts):
            await self.start()
            self.hosts.remove(host)
            host.send(signal.SIGTERM)
            line = await host.line()
            self.report.check(line == "over", f"a process that was asked to end says {line!r}")
            self.report.counts["replacements"] += 1

    async def stop_server(self) -> None:
        """The database is away for a while."""
        self.server.stop(signal.SIGINT)
        await anyio.sleep(min(5.0, 1 + self.rng.random() * 4))
        await anyio.to_thread.run_sync(self.server.start)
        self.report.counts["restarts of the database"] += 1


def kills(rng: random.Random, folder: Path, seconds: float) -> Report:
    """SIGKILL at random moments."""
    return _campaign(rng, folder, seconds, "kill")


def freezes(rng: random.Random, folder: Path, seconds: float) -> Report:
    """SIGSTOP for longer than an owner counts as alive."""
    return _campaign(rng, folder, seconds, "freeze")


def deploys(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Rolling deploys under load."""
    return _campaign(rng, folder, seconds, "deploy")


def restarts(rng: random.Random, folder: Path, seconds: float) -> Report:
    """The database is stopped for some seconds under load."""
    return _campaign(rng, folder, seconds, "stop_server", postgres=True)


def _campaign(rng: random.Random, folder: Path, seconds: float, what: str, *, postgres: bool = False) -> Report:
    report = Report()
    with ExitStack() as stack:
        server, where = None, str(folder / "sessions.db")
        if postgres or rng.random() < 0.5:
            if programs() is not None:
                server = stack.enter_context(postgres_server())
                where = server.dsn()
            elif postgres:
                report.counts["skipped: PostgreSQL is missing"] += 1
                report.acknowledged = report.found = 1
                return report
        report.counts["on PostgreSQL" if server else "on SQLite"] += 1
        cluster = Cluster(where, folder, rng, report, stack, server, versions=what == "deploy")
        backend = rng.choice(("asyncio", "trio"))
        report.counts[backend] += 1
        anyio.run(_run, cluster, what, seconds, backend=backend)
    return report


async def _run(cluster: Cluster, what: str, seconds: float) -> None:
    await cluster.start(3)
    said: dict[str, list[str]] = {f"session {number}": [] for number in range(8)}
    place = place_of(cluster.where)
    async with Runtime(sessions=place, peers=Peers(room=0, secret=SECRET, patience_s=60.0), wakes_max=0) as gateway:
        agent = gateway.agent(AgentSpec(name=AGENT, model=ScriptedModel(["never asked"])))
        async with anyio.create_task_group() as group:
            for session, prompts in said.items():
                group.start_soon(call, cluster, agent, session, prompts)
            until = anyio.current_time() + seconds
            while True:
                await anyio.sleep(cluster.rng.uniform(0.05, 0.6))
                await getattr(cluster, what)()
                if anyio.current_time() > until:
                    break
            await anyio.sleep(0.3)
            cluster.calling = False
    for host in cluster.hosts:
        host.send(signal.SIGTERM)
    for host in cluster.hosts:
        line = await host.line()
        cluster.report.check(line == "over", f"a process that was asked to end says {line!r}")
    await look(cluster, said)


async def call(cluster: Cluster, agent: Any, session: str, prompts: list[str]) -> None:
    """One caller of one session, one call after the other, some as streams."""
    rng = random.Random(f"{session} {cluster.rng.random()}")
    while cluster.calling:
        prompt = f"{session} prompt {len(prompts)}"
        prompts.append(prompt)
        began = anyio.current_time()
        try:
            if rng.random() < 0.5:
                answer = str(await agent.session(session).invoke(prompt))
            else:
                answer = await _streamed(cluster, agent, session, prompt)
        except RepertoryError as error:
            cluster.report.check(False, f"{prompt}: {error!r}")
            continue
        cluster.report.acknowledged += 1
        now = anyio.current_time()
        cluster.taken.append((now, now - began))
        cluster.report.check(answer == f"noted {prompt}", f"{prompt}: answered {answer!r}")


async def _streamed(cluster: Cluster, agent: Any, session: str, prompt: str) -> str:
    """The answer of a stream, whose pieces must be it."""
    pieces, answer = "", ""
    async for event in agent.session(session).stream(prompt):
        if "data" in event:
            pieces += event["data"]
        elif "message" in event or "model_retry" in event:
            whole = text_of(event["message"]) if "message" in event else ""
            if whole and event["message"]["role"] == "assistant":
                cluster.report.check(pieces in ("", whole), f"{prompt}: pieces {pieces!r} of {whole!r}")
            pieces = ""
        elif "result" in event:
            answer = str(event["result"])
    return answer


async def look(cluster: Cluster, said: dict[str, list[str]]) -> None:
    report, sessions = cluster.report, Sessions(place_of(cluster.where))
    for session, prompts in said.items():
        stored = await sessions.show(session)
        texts = [text_of(each.message) for each in stored.agents[AGENT].messages]
        found = [text for text in texts if " prompt " in text and not text.startswith("noted")]
        report.check(found == prompts, f"{session}: {[text for text in found if text not in prompts]}, {len(found)}")
        for prompt in prompts:
            report.found += texts.count(f"noted {prompt}") == 1 and texts.count(prompt) == 1
    noted = Counter((cluster.folder / "noted").read_text().splitlines())
    report.check(max(noted.values()) == 1, f"effects were had twice: {[what for what in noted if noted[what] > 1]}")
    asked = Counter(line.split(maxsplit=1)[1] for line in (cluster.folder / "asked").read_text().splitlines())
    report.check(max(asked.values()) <= 3, f"the model was asked too often: {asked.most_common(3)}")
    examined = await sessions.doctor()
    report.check(examined.ok, f"the doctor says {examined}")
    report.counts[f"slowest {max(seconds for _, seconds in cluster.taken):.1f} s"] += 1
