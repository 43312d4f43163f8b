"""A PostgreSQL server in bad weather, while two runtimes that share its sessions run turns.

One fault comes after the other: people bar the login, take rights away or set timeouts, servers are stopped, frozen,
crash and are replaced by their replica, networks are cut in the middle of a commit. Callers repeat each call under its
token until it is answered. In the end each prompt stands once with its answer, each effect was had at most once, no
tool ran beside itself, and both runtimes live and work.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from repertory import AgentSpec, Peers, PostgresSessions, Runtime, Sessions, StorePatience, tool
from repertory.core.messages import text_of
from repertory.errors import RepertoryError
from tests.campaigns.campaigns import Report
from tests.postgres_server import PostgresServer, Road, postgres_server, programs, promote, road, standby_of
from tests.simulation.peer_host import AGENT, SECRET, Clerk

SESSIONS = 4
_BACK_S = 90.0
"""How long the last calls may take when the weather is fine again."""
_DRAIN_S = 10.0


@dataclass
class Weather:
    """The server, the roads to it, and what the tool has done."""

    server: PostgresServer
    standby: PostgresServer | None
    rng: random.Random
    report: Report
    roads: list[Road] = field(default_factory=list[Road])
    noted: Counter[str] = field(default_factory=Counter[str])
    running: Counter[str] = field(default_factory=Counter[str])
    calling: bool = True
    long: bool = False
    shared: bool = False
    """Whether the runtimes are peers; otherwise a session goes to the one that is called."""

    async def sql(self, *statements: str) -> None:
        for statement in statements:
            await anyio.to_thread.run_sync(self.server.sql, statement)

    async def drop_all(self) -> None:
        """New sessions meet what was changed."""
        await self.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")

    async def rest(self) -> None:
        """As long as a fault lasts: sometimes longer than an owner counts as alive, where there is time."""
        await anyio.sleep(self.rng.uniform(0.3, 15.0 if self.long and self.rng.random() < 0.3 else 1.5))

    def pids(self) -> list[int]:
        found = self.server.sql("SELECT pid FROM pg_stat_activity WHERE usename = 'app' ORDER BY pid")
        return [pid for (pid,) in found if isinstance(pid, int)]


@asynccontextmanager
async def _changed(do: str, undo: str, weather: Weather) -> AsyncGenerator[None]:
    """A setting that new connections meet."""
    await weather.sql(do)
    await weather.drop_all()
    yield
    await weather.sql(undo)
    await weather.drop_all()


def _setting(name: str, value: str) -> Callable[[Weather], AbstractAsyncContextManager[None]]:
    return partial(_changed, f"ALTER ROLE app SET {name} = '{value}'", f"ALTER ROLE app RESET {name}")


@asynccontextmanager
async def _logins(rule: str, weather: Weather) -> AsyncGenerator[None]:
    """Another rule of who may log in, and how."""
    server = weather.server

    def change(new: str | None) -> str:
        before = (server.data / "pg_hba.conf").read_text()
        text = f"host all app 127.0.0.1/32 {rule}\n{before}" if new is None else new
        (server.data / "pg_hba.conf").write_text(text)
        server.sql("SELECT pg_reload_conf()::text")
        return before

    before = await anyio.to_thread.run_sync(change, None)
    await weather.drop_all()
    yield
    await anyio.to_thread.run_sync(change, before)


@asynccontextmanager
async def _silent_commits(weather: Weather) -> AsyncGenerator[None]:
    """Each commit waits for a replica that does not come."""
    await weather.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()::text")
    yield
    await weather.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()::text")


@asynccontextmanager
async def _locked(weather: Weather) -> AsyncGenerator[None]:
    import psycopg

    def lock() -> psycopg.Connection[Any]:
        connection = psycopg.connect(weather.server.dsn())
        connection.execute("LOCK TABLE repertory.sessions IN ACCESS EXCLUSIVE MODE")
        return connection

    connection = await anyio.to_thread.run_sync(lock)
    yield
    await anyio.to_thread.run_sync(connection.close)


@asynccontextmanager
async def _once(what: Callable[[Weather], object], weather: Weather) -> AsyncGenerator[None]:
    await anyio.to_thread.run_sync(what, weather)
    yield


def _drop_connections(weather: Weather) -> None:
    weather.server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")


def _crash_one(weather: Weather) -> None:
    """The server then ends all its processes, and begins anew."""
    pids = weather.pids()
    if pids:
        os.kill(weather.rng.choice(pids), signal.SIGKILL)
        _until_up(weather)


def _break_disk(weather: Weather) -> None:
    """What the processes write is refused, so that they cannot write their log."""
    import resource

    for pid in weather.pids():
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        except (ProcessLookupError, PermissionError):
            continue
    _until_up(weather)


def _until_up(weather: Weather) -> None:
    assert weather.server.running is not None
    weather.server._wait(weather.server.running.process)


@asynccontextmanager
async def _stopped(how: int, weather: Weather) -> AsyncGenerator[None]:
    await anyio.to_thread.run_sync(weather.server.stop, how)
    yield
    await anyio.to_thread.run_sync(weather.server.start)


@asynccontextmanager
async def _frozen(weather: Weather) -> AsyncGenerator[None]:
    assert weather.server.running is not None
    group = weather.server.running.process.pid
    os.killpg(group, signal.SIGSTOP)
    yield
    os.killpg(group, signal.SIGCONT)


@asynccontextmanager
async def _replaced(weather: Weather) -> AsyncGenerator[None]:
    """The replica takes over, once in a round."""
    standby, weather.standby = weather.standby, None
    if standby is None:
        yield
        return
    # What is acknowledged is on the replica: it is one that commits wait for.
    await anyio.to_thread.run_sync(weather.server.stop, signal.SIGQUIT)
    yield
    await anyio.to_thread.run_sync(promote, standby)
    weather.server = standby
    await weather.sql("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()::text")
    for way in weather.rng.sample(weather.roads, len(weather.roads)):
        way.port_there = standby.port
        await anyio.sleep(weather.rng.uniform(0, 0.5))


@asynccontextmanager
async def _cut_in_a_message(weather: Weather) -> AsyncGenerator[None]:
    """It is unknown then whether the commit was made."""
    for way in weather.roads:
        way.plan(weather.rng.choice(("before", "after")), weather.rng.randint(1, 20))
    yield
    for way in weather.roads:
        way.mend()


@asynccontextmanager
async def _cut(weather: Weather) -> AsyncGenerator[None]:
    """One runtime, or all."""
    ways = weather.rng.choice((weather.roads, weather.roads[:1], weather.roads[1:]))
    for way in ways:
        way.down = True
    await weather.drop_all()
    yield
    for way in ways:
        way.mend()


@asynccontextmanager
async def _held(weather: Weather) -> AsyncGenerator[None]:
    """Nothing that a runtime sends arrives, and no connection ends."""
    way = weather.rng.choice(weather.roads)
    way.hold()
    yield
    way.let_flow()


FAULTS: dict[str, Callable[[Weather], AbstractAsyncContextManager[None]]] = {
    "barred logins": partial(_changed, "ALTER ROLE app NOLOGIN", "ALTER ROLE app LOGIN"),
    "read-only servers": _setting("default_transaction_read_only", "on"),
    "missing grants": partial(
        _changed,
        "REVOKE ALL ON ALL TABLES IN SCHEMA repertory FROM app",
        "GRANT ALL ON ALL TABLES IN SCHEMA repertory TO app",
    ),
    "missing tables": partial(
        _changed, "ALTER TABLE repertory.owners RENAME TO gone", "ALTER TABLE repertory.gone RENAME TO owners"
    ),
    "dropped indexes": partial(
        _changed, "DROP INDEX repertory.due", "CREATE INDEX due ON repertory.pending_work (at) WHERE claims < 5"
    ),
    "statement timeouts": _setting("statement_timeout", "1ms"),
    "lock timeouts": _setting("lock_timeout", "1ms"),
    "timeouts of idle transactions": _setting("idle_in_transaction_session_timeout", "1ms"),
    "connection limits": partial(_changed, "ALTER ROLE app CONNECTION LIMIT 1", "ALTER ROLE app CONNECTION LIMIT -1"),
    "closed databases": partial(_logins, "reject"),
    "wrong passwords": partial(_logins, "scram-sha-256"),
    "silent commits": _silent_commits,
    "locked tables": _locked,
    "dropped connections": partial(_once, _drop_connections),
    "crashes of a process": partial(_once, _crash_one),
    "disk errors": partial(_once, _break_disk),
    "stops": partial(_stopped, signal.SIGINT),
    "crashes": partial(_stopped, signal.SIGQUIT),
    "freezes": _frozen,
    "failovers": _replaced,
    "cuts in a message": _cut_in_a_message,
    "cuts": _cut,
    "silent networks": _held,
}


def weather(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One server with its replica."""
    del folder
    report = Report()
    if programs() is None:
        report.counts["skipped: PostgreSQL is needed"] += 1
        report.acknowledged = report.found = 1
        return report
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(max_wal_senders="4"))
        server.sql("CREATE ROLE app LOGIN")
        server.sql("GRANT ALL ON DATABASE postgres TO app")
        standby = stack.enter_context(standby_of(server)) if rng.random() < 0.5 else None
        if standby is not None:
            server.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
            server.sql("SELECT pg_reload_conf()::text")
        here = Weather(server, standby, rng, report, long=seconds > 20, shared=rng.random() < 0.5)
        anyio.run(_run, here, seconds, backend=rng.choice(["asyncio", "trio"]))
    return report


async def _run(weather: Weather, seconds: float) -> None:
    said: dict[str, list[str]] = {f"s{number}": [] for number in range(SESSIONS)}
    async with AsyncExitStack() as stack:
        agents: list[Any] = []
        runtimes: list[Runtime] = []
        for number in range(2):
            way = await stack.enter_async_context(road(weather.server))
            weather.roads.append(way)
            place = PostgresSessions(f"host=127.0.0.1 port={way.port} dbname=postgres user=app connect_timeout=2")
            patience = StorePatience(wait_s=2.0, busy_s=1.0)
            peers = Peers("127.0.0.1:0", secret=SECRET) if weather.shared else None
            runtime = Runtime(sessions=place, patience=patience, drain_timeout_s=_DRAIN_S, peers=peers)
            await stack.enter_async_context(runtime)
            runtimes.append(runtime)
            agents.append(runtime.agent(_clerk(weather, f"r{number}")))
        await agents[0].session("first").invoke("first")  # The faults need its tables.
        async with anyio.create_task_group() as group:
            for session, prompts in said.items():
                group.start_soon(_call, weather, agents, session, prompts)
            await _storms(weather, seconds)
            weather.calling = False
            weather.report.check(all(runtime.healthy for runtime in runtimes), "a runtime has ended")
        if weather.rng.random() < 0.5:
            async with _frozen(weather):
                drained = [await runtime.drain() for runtime in runtimes]
            late = [report.duration_s for report in drained if report.duration_s > _DRAIN_S]
            weather.report.check(not late, f"drains of {_DRAIN_S} s beside a server that hangs took {late} s")
    await _look(weather, said)


async def _storms(weather: Weather, seconds: float) -> None:
    until = anyio.current_time() + seconds
    while anyio.current_time() < until or not weather.report.counts:
        await anyio.sleep(weather.rng.uniform(0.1, 0.6))
        name = weather.rng.choice([*FAULTS])
        if name == "silent commits" and weather.standby is not None:
            continue  # It would undo what the failover needs.
        weather.report.counts[name] += 1
        async with FAULTS[name](weather):
            await weather.rest()


def _clerk(weather: Weather, name: str) -> AgentSpec:
    @tool
    async def note(what: str) -> str:
        """Write it down."""
        weather.running[what] += 1
        weather.report.check(weather.running[what] == 1, f"{what}: the tool runs twice at once")
        await anyio.sleep(weather.rng.uniform(0, 0.3))
        weather.noted[what] += 1
        weather.running[what] -= 1
        return f"noted {what}"

    return AgentSpec(name=AGENT, model=Clerk(None, name), tools=[note], unknown_tool_outcome="fail")


async def _call(weather: Weather, agents: list[Any], session: str, prompts: list[str]) -> None:
    while weather.calling:
        prompt = f"{session}.{len(prompts)}"
        late = anyio.current_time() + _BACK_S
        while True:
            agent = weather.rng.choice(agents)
            try:
                await agent.session(session).invoke(prompt, idempotency_token=prompt, timeout_s=20)
                break
            except RepertoryError as error:
                weather.report.counts["refusals"] += 1
                if weather.calling:
                    late = anyio.current_time() + _BACK_S
                elif anyio.current_time() > late:
                    weather.report.faults.append(f"{prompt}: not answered though all is well: {error!r}")
                    return
                await anyio.sleep(weather.rng.uniform(0.02, 0.2))
        prompts.append(prompt)


async def _look(weather: Weather, said: dict[str, list[str]]) -> None:
    report, sessions = weather.report, Sessions(PostgresSessions(weather.server.dsn()))
    for session, prompts in said.items():
        if not prompts:
            continue
        stored = (await sessions.show(session)).agents[AGENT]
        texts = [text_of(each.message) for each in stored.messages]
        for prompt in prompts:
            report.acknowledged += 1
            there = (texts.count(prompt), texts.count(f"noted {prompt}")) == (1, 1)
            report.found += there
            report.check(there, f"{prompt} stands {texts.count(prompt)} times")
    for prompt, count in weather.noted.items():
        report.check(count == 1, f"{prompt}: the effect was had {count} times")
    examined = await sessions.doctor()
    report.check(examined.ok, f"the doctor says {examined}")
