"""Random tenants with limits begin turns in every way that there is: calls, streams whose readers leave, posted calls,
timers, late results, conversations that nobody keeps. On virtual time.

At no moment have a tenant, or all together, more turns than they may; nor has a tenant begun more than its rate allows.
A tenant that has nothing else under way waits for one turn of each other tenant at most. In the end every prompt that
was acknowledged has been said once.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, ClassVar

import anyio
from msgspec import Struct, field

from repertory import AfterInvocationEvent, AgentSpec, BeforeInvocationEvent, Runtime, ScriptedModel
from repertory.app.embedding.hosted import HostedAgent
from repertory.backends.tools.function_tool import schema_class
from repertory.core.admission import ServiceLimits
from repertory.core.messages import text_of
from repertory.core.tenants import stored_id, tenant_part
from repertory.errors import AgentBusy, RepertoryError
from repertory.runtime.testing.virtual_time import virtual_asyncio
from repertory.service.http.service import Service
from repertory.testing.in_memory_sessions import MemorySessionStore, SessionShelf
from tests.campaigns.campaigns import Report

EPOCH = 1_800_000_000.0
_BUSY_S = 60.0
_END_S = 3600.0


class _Place(Struct):
    """Sessions in memory that can be woken."""

    shelf: SessionShelf = field(default_factory=SessionShelf)
    wakes: ClassVar[bool] = True

    @property
    def key(self) -> str:
        return f"tenants {id(self)}"

    def open_store(self) -> MemorySessionStore:
        return MemorySessionStore(self.shelf, owner="one")


class _Watch:
    """Hooks that see every turn, and hold it against the limits."""

    def __init__(self, limits: ServiceLimits, rng: random.Random, report: Report) -> None:
        self._limits, self._rng, self._report = limits, rng, report
        self.running = Counter[str]()
        self.begun = Counter[str]()
        self.before = dict[str, Counter[str]]()
        """By tenant, what was begun when its last turn began."""
        self._since = anyio.current_time()

    async def begins(self, event: BeforeInvocationEvent) -> None:
        tenant = tenant_part(event.agent.session_id or "")
        self._report.check(bool(tenant), "a turn of no tenant")
        self.running[tenant] += 1
        self.before[tenant] = self.begun.copy()
        self.begun[tenant] += 1
        limits, passed_s = self._limits, max(anyio.current_time() - self._since, 1e-9)
        check = self._report.check
        check(self.running[tenant] <= limits.concurrent, f"{tenant} runs {self.running[tenant]} turns")
        check(self.running.total() <= limits.concurrent_in_all, f"{self.running.total()} turns run")
        bound = limits.burst + passed_s * limits.rate_per_s + 1e-3
        check(self.begun[tenant] <= bound, f"{tenant} has begun {self.begun[tenant]} turns in {passed_s} s")
        await anyio.sleep(self._rng.choice((0.0, 0.1, 1.0, 3.0)))

    def ended(self, event: AfterInvocationEvent) -> None:
        self.running[tenant_part(event.agent.session_id or "")] -= 1


class _Tenant:
    """One that does everything."""

    def __init__(self, name: str, agent: HostedAgent, runtime: Runtime, rng: random.Random) -> None:
        self.name, self._agent, self._runtime, self._rng = name, agent, runtime, rng
        self.prompts: list[tuple[str, str]] = []
        """What was acknowledged: session and prompt."""
        self._number = 0

    async def act(self) -> str:
        """Do something. Returns what."""
        self._number += 1
        session_id = stored_id(self.name, f"s{self._rng.randrange(4)}")
        session, prompt = self._agent.session(session_id), f"{self.name} {self._number}."
        what = self._rng.choice(("call", "left", "post", "post", "timer", "impatient", "unsaved"))
        match what:
            case "call":
                await session.invoke(prompt)
            case "left":  # It goes on without its reader.
                async with aclosing(session.stream(prompt, token=f"t{self._number}", detach=True)) as events:
                    await anext(events)
            case "post":
                await session.post(prompt, token=f"t{self._number}")
            case "timer":
                await self._runtime.schedule(session, prompt, in_s=self._rng.uniform(0.0, 5.0))
            case "unsaved":
                await self._agent.unsaved(self.name).invoke(prompt)
                return what
            case _:
                with suppress(AgentBusy):
                    await session.invoke(prompt, timeout_s=self._rng.uniform(0.1, 2.0))
                return what
        self.prompts.append((session_id, prompt))
        return what

    async def be_busy(self, report: Report) -> None:
        """Do one thing after the other, often before the one before is over."""
        async with anyio.create_task_group() as group:
            while anyio.current_time() < _BUSY_S:
                group.start_soon(self._act, report)
                await anyio.sleep(self._rng.expovariate(1.0))

    async def _act(self, report: Report) -> None:
        try:
            report.counts[await self.act()] += 1
        except RepertoryError as error:
            report.faults.append(f"{self.name}: {error!r}")


async def _be_quiet(name: str, agent: HostedAgent, watch: _Watch, rng: random.Random, report: Report) -> None:
    """Call now and then, when everything before is over."""
    while anyio.current_time() < _BUSY_S:
        before = watch.begun.copy()
        await agent.session(stored_id(name, f"q{rng.randrange(2)}")).invoke("Hello.")
        passed = watch.before[name] - before
        report.counts["quiet calls"] += 1
        # One may begin while the call is on its way to the gate, and one in its round.
        report.check(max(passed.values(), default=0) <= 2, f"others went before a quiet tenant: {passed}")
        await anyio.sleep(rng.uniform(3.0, 6.0))


async def _round(rng: random.Random, report: Report) -> None:
    limits = ServiceLimits(
        concurrent=rng.randint(1, 3),
        concurrent_in_all=rng.randint(1, 4),
        rate_per_s=rng.choice((0.5, 2.0, float("inf"))),
        burst=rng.randint(1, 4),
    )
    watch = _Watch(limits, rng, report)
    place = _Place()
    runtime = Runtime(sessions=place, wall=lambda: EPOCH + anyio.current_time(), wakes_max=rng.randint(1, 4))
    hooks: Sequence[Any] = (watch.begins, watch.ended)
    async with runtime:
        agent = runtime.agent(AgentSpec(name="helper", model=ScriptedModel(["done"], loop=True), hooks=hooks))
        Service(runtime, limits=limits)
        tenants = [_Tenant(f"busy{number}", agent, runtime, rng) for number in range(rng.randint(1, 3))]
        async with anyio.create_task_group() as group:
            for tenant in tenants:
                group.start_soon(tenant.be_busy, report)
            group.start_soon(_be_quiet, "quiet", agent, watch, rng, report)
        wanted = Counter(one for tenant in tenants for one in tenant.prompts)
        said = Counter[tuple[str, str]]()
        while anyio.current_time() < _END_S and wanted - said:
            await anyio.sleep(10.0)
            said.clear()
            for session_id in {session_id for session_id, _ in wanted}:
                history = await agent.session(session_id).history()
                said.update((session_id, text_of(each)) for each in history if each["role"] == "user")
        report.acknowledged += wanted.total()
        report.found += (wanted & said).total()
        report.check(max(said.values(), default=1) == 1, f"said twice: {said.most_common(3)}")
        report.check(not watch.running.total(), f"turns that run in the end: {watch.running}")


def tenants(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One runtime, a minute of virtual time, and then everything to its end."""
    del folder, seconds
    schema_class()  # Loading it uses a thread, which a clock that jumps would pass.
    report = Report()
    backend, options = virtual_asyncio()
    anyio.run(_round, rng, report, backend=backend, backend_options=dict(options))
    return report
