"""A process of a cluster loses one of its networks, and has it back after a while: that to the database, or that to its
callers. Each process has a network namespace of its own, with a cable to each.

What `campaign_cluster.py` promises holds here as well, and every call is answered within the time that an owner counts
as alive, and two seconds. Needs root, and `ip` of iproute2.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio

from repertory import AgentSpec, Peers, Runtime, ScriptedModel
from tests.campaigns.campaign_cluster import TTL_S, Cluster, Host, call, look
from tests.campaigns.campaigns import Report
from tests.postgres_server import PostgresServer, postgres_server, programs
from tests.simulation.peer_host import AGENT, SECRET, place_of

_LATE_S = TTL_S + 2.0
_ANSWER_S = 1.0
"""What a turn itself takes at most."""


class Cables:
    """The networks of one process: `data` to the database, `calls` to its callers."""

    def __init__(self, number: int) -> None:
        tag = f"{os.getpid() % 100000}{number}"
        self.namespace = f"rep{tag}"
        self.ends = {"data": f"rd{tag}", "calls": f"rc{tag}"}
        """This side's names."""
        place = (os.getpid() * 2 + number) % 250
        self.subnets = {"data": f"198.18.{place}", "calls": f"198.19.{place}"}
        """Of the range for measuring networks, which no machine has (RFC 2544)."""

    def __enter__(self) -> Cables:
        try:
            self._lay()
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def _lay(self) -> None:
        _ip("netns", "add", self.namespace)
        for what, end in self.ends.items():
            inside = f"{end}i"
            _ip("link", "add", end, "type", "veth", "peer", "name", inside)
            _ip("link", "set", inside, "netns", self.namespace)
            _ip("addr", "add", f"{self.subnets[what]}.1/24", "dev", end)
            _ip("link", "set", end, "up")
            _ip("-n", self.namespace, "addr", "add", f"{self.subnets[what]}.2/24", "dev", inside)
            _ip("-n", self.namespace, "link", "set", inside, "up")
        _ip("-n", self.namespace, "link", "set", "lo", "up")

    def __exit__(self, *_: object) -> None:
        for end in self.ends.values():
            _ip("link", "del", end, check=False)
        _ip("netns", "del", self.namespace, check=False)

    def set(self, what: str, state: str) -> None:
        """`down` or `up`: what is sent meanwhile is lost, and no side is told."""
        _ip("link", "set", self.ends[what], state)


def _ip(*arguments: str, check: bool = True) -> None:
    subprocess.run(["ip", *arguments], check=check, capture_output=True)


def cuts(rng: random.Random, folder: Path, seconds: float) -> Report:
    """Cut one network of one process, for longer than an owner counts as alive."""
    report = Report()
    if not _may_cut() or programs() is None:
        report.counts["skipped: network namespaces (root, `ip`, the right to make them) and PostgreSQL are needed"] += 1
        report.acknowledged = report.found = 1
        return report
    with ExitStack() as stack:
        server = stack.enter_context(_reachable_server())
        cluster = Cluster(server.dsn(), folder, rng, report, stack, server)
        anyio.run(_run, cluster, stack, server, seconds)
    return report


def _may_cut() -> bool:
    """Whether this machine lets us lay cables."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        with Cables(99):
            return True
    except subprocess.CalledProcessError:
        return False


@contextmanager
def _reachable_server() -> Iterator[PostgresServer]:
    with postgres_server(listen_addresses="*") as server:
        with open(server.data / "pg_hba.conf", "a") as rules:
            rules.write("host all all 198.18.0.0/15 trust\n")
        server.sql("SELECT pg_reload_conf()")
        yield server


async def _run(cluster: Cluster, stack: ExitStack, server: PostgresServer, seconds: float) -> None:
    report, rng = cluster.report, cluster.rng
    cabled: list[Cables] = []
    for number in range(2):
        cables = stack.enter_context(Cables(number))
        where = server.dsn(connect_timeout="3").replace("127.0.0.1", f"{cables.subnets['data']}.1")
        env = {"LISTEN": f"{cables.subnets['calls']}.2:0"}
        within = ["ip", "netns", "exec", cables.namespace]
        host = Host.start(where, cluster.folder, f"host {number}", rng.choice(("asyncio", "trio")), "1", within, **env)
        stack.callback(host.end)
        line = await host.line()
        assert line == "there", (line, (cluster.folder / f"errors host {number}").read_text()[-3000:])
        cluster.hosts.append(host)
        cabled.append(cables)
    said: dict[str, list[str]] = {f"session {number}": [] for number in range(6)}
    peers = Peers(room=0, secret=SECRET, patience_s=60.0)
    async with Runtime(sessions=place_of(server.dsn()), peers=peers, wakes_max=0) as gateway:
        agent = gateway.agent(AgentSpec(name=AGENT, model=ScriptedModel(["never asked"])))
        async with anyio.create_task_group() as group:
            for session, prompts in said.items():
                group.start_soon(call, cluster, agent, session, prompts)
            until = anyio.current_time() + seconds
            while anyio.current_time() < until or not report.counts:
                await anyio.sleep(rng.uniform(0.5, 1.5))
                what, cables = rng.choice(("data", "calls")), rng.choice(cabled)
                cables.set(what, "down")
                report.counts[f"cuts of {what}"] += 1
                await anyio.sleep(TTL_S + 4)
                cables.set(what, "up")
                await anyio.sleep(3)
            cluster.calling = False
    for host in cluster.hosts:
        host.end()
    slowest = max(taken for _, taken in cluster.taken)
    report.check(slowest <= _LATE_S + _ANSWER_S, f"a call took {slowest:.1f} s")
    await look(cluster, said)
