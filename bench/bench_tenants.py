"""What other tenants cost one: listing its sessions beside 8,000 of another tenant, and a turn that is counted.

A page of a tenant's sessions is a range read, so beside many sessions of others it is to take as long as alone. A turn
passes the gate of tenants before it begins, which is to cost next to nothing where nobody waits.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from bench.harness import Figure, report
from repertory import AgentSpec, Runtime, ScriptedModel, Sessions, SQLiteSessions
from repertory.app.embedding.hosted import HostedSession
from repertory.backends.ports import Batch
from repertory.core.admission import ServiceLimits, turn_bounds
from repertory.testing.session_contract import grow

OWN, OTHERS, GROUP = 50, 8_000, 400
ROUNDS, TURNS = 15, 400
LISTING_BAR, TURN_BAR = 1.5, 1.15


async def fill(place: SQLiteSessions, names: Sequence[str]) -> None:
    """Sessions with two rows."""
    store = place.open_store()
    try:
        for start in range(0, len(names), GROUP):
            leases = [(await store.acquire(name)).lease for name in names[start : start + GROUP]]
            await store.append([Batch(lease=lease, rows=grow(2)) for lease in leases])
            await store.release(leases)
    finally:
        await store.aclose()


async def listings(folder: Path) -> dict[str, float]:
    """Milliseconds, by what lies beside."""
    own = [f"m~{number}" for number in range(OWN)]
    others = [f"{tenant}~{number}" for tenant in ("a", "z") for number in range(OTHERS // 2)]
    alone, beside = SQLiteSessions(folder / "alone.db"), SQLiteSessions(folder / "beside.db")
    await fill(alone, own)
    await fill(beside, [*own, *others])
    took: dict[str, list[float]] = {"alone": [], "beside": []}
    async with Sessions(alone) as one, Sessions(beside) as two:
        for _ in range(ROUNDS):
            for name, sessions in (("alone", one), ("beside", two)):
                began = time.perf_counter()
                assert len(await sessions.list_page("m~")) == OWN
                took[name].append((time.perf_counter() - began) * 1e3)
    return {name: statistics.median(times) for name, times in took.items()}


async def turns() -> dict[str, float]:
    """Microseconds of a turn in memory, by whether it is counted."""
    took: dict[str, list[float]] = {"free": [], "counted": []}
    async with Runtime() as free, Runtime() as counted:
        counted.host.gate.limit(turn_bounds(ServiceLimits(rate_per_s=float("inf"))))
        sessions: dict[str, HostedSession] = {}
        for name, runtime in (("free", free), ("counted", counted)):
            agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["done"], loop=True)))
            sessions[name] = agent.session("m~1")
        for number in range(TURNS):
            for name in ("free", "counted") if number % 2 else ("counted", "free"):
                began = time.perf_counter()
                await sessions[name].invoke("Hello.")
                took[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(times) for name, times in took.items()}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        listed = anyio.run(listings, Path(folder))
    took = anyio.run(turns)
    return report(
        [
            Figure("listing beside 8,000 | alone", listed["beside"], listed["alone"], LISTING_BAR, "ms"),
            Figure("turn, counted | free", took["counted"], took["free"], TURN_BAR, "us"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
