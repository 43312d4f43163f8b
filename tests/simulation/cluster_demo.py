"""Four processes share sessions in PostgreSQL and are called all the time, while one is killed, one is frozen, and all
are replaced by a new version. `make cluster-demo` runs it, in about a minute, and prints what was checked.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import anyio

from repertory import AgentSpec, Peers, Runtime, ScriptedModel
from tests.campaigns.campaign_cluster import Cluster, call, look
from tests.campaigns.campaigns import Report
from tests.postgres_server import MISSING, postgres_server, programs
from tests.simulation.peer_host import AGENT, SECRET, place_of

HOSTS, SESSIONS = 4, 12
STEADY_S = 6.0


async def demo(cluster: Cluster) -> None:
    """Call, disturb, and print a line for each disturbance."""
    await cluster.start(HOSTS)
    said: dict[str, list[str]] = {f"session {number}": [] for number in range(SESSIONS)}
    print(f"{'':<34}{'calls':>7}{'errors':>8}{'p50':>9}{'p99':>9}{'slowest':>9}")
    async with Runtime(sessions=place_of(cluster.where), peers=Peers(room=0, secret=SECRET), wakes_max=0) as gateway:
        agent = gateway.agent(AgentSpec(name=AGENT, model=ScriptedModel(["never asked"])))

        async def phase(name: str, what: Callable[[], Awaitable[object]]) -> None:
            began, errors = anyio.current_time(), len(cluster.report.faults)
            await what()
            await anyio.sleep(1)
            taken = [seconds * 1000 for at, seconds in cluster.taken if at >= began]
            p99 = quantiles(taken, n=100)[98] if len(taken) > 1 else taken[0]
            figures = f"{median(taken):>6.0f} ms{p99:>6.0f} ms{max(taken):>6.0f} ms"
            print(f"{name:<34}{len(taken):>7}{len(cluster.report.faults) - errors:>8}{figures}", flush=True)

        async with anyio.create_task_group() as group:
            for session, prompts in said.items():
                group.start_soon(call, cluster, agent, session, prompts)
            await anyio.sleep(2)
            await phase("four processes, undisturbed", lambda: anyio.sleep(STEADY_S))
            await phase("one is killed (SIGKILL)", cluster.kill)
            await phase("one is frozen (SIGSTOP, 14 s)", cluster.freeze)
            cluster.versions = True
            await phase("all are replaced (rolling deploy)", cluster.deploy)
            cluster.calling = False
    await look(cluster, said)
    for host in cluster.hosts:
        host.end()
    report = cluster.report
    acknowledged = report.acknowledged
    print(f"\n{acknowledged} calls were answered. {report.found} turns stand in the journals, once and in order.")
    print("Every effect was had at most once, and no journal is damaged." if not report.faults else "FAULTS:")
    for fault in report.faults:
        print(f"  {fault[:300]}")


def main() -> int:
    """1 when something was found wrong."""
    if programs() is None:
        print(MISSING)
        return 1
    began, report = time.monotonic(), Report()
    seed = int(os.environ.get("SEED", "0")) or random.randrange(10**6)
    print(f"seed {seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-demo-")))
        server = stack.enter_context(postgres_server(fsync="on", autovacuum="on"))
        anyio.run(demo, Cluster(server.dsn(), folder, random.Random(seed), report, stack, server))
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if report.faults or report.found != report.acknowledged else 0


if __name__ == "__main__":
    sys.exit(main())
