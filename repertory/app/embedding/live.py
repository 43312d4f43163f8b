"""The activity of a runtime at this instant: `runtime.look()`, for pages, terminals and metrics.

Nothing here asks an actor or waits for anything, so a view is whole while actors are stuck, stores hang, or a drain
runs. It is made when somebody asks for it: turns, commits and memories leave plain values where they work (such as
`TurnProgress`), and this file reads them.
"""

from __future__ import annotations

import os
import socket
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import anyio
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.orchestrator.orchestrator import RunSummary
from repertory.app.embedding.reports import RuntimeStats, runtime_stats
from repertory.core.session_life import SessionState
from repertory.core.turns.activity import AT_REST, Activity, ActivityFacts, activity_of, agent_facts
from repertory.runtime.lifecycle import ActorInfo

if TYPE_CHECKING:
    from collections.abc import Container

    from repertory.actors.memory.store import MemoryStoreClient
    from repertory.app.host.call_router import CallRouter
    from repertory.app.host.host import Host
    from repertory.app.host.session import ActiveSession, SessionSlot, SlotKey
    from repertory.core.memory.breaker import Breaker


class LiveSession(Struct, frozen=True, kw_only=True):
    """One agent, graph or swarm in a session that is alive in this process."""

    session_id: str
    agent_id: str
    """The agent's name; of a graph or swarm the name of its journal, with its nodes listed beside it."""
    state: Activity
    since_s: float
    """Seconds that it has been in this state."""
    queued: int
    """Calls that wait behind the one that runs."""
    step: int
    """Model calls so far in this turn, repeated ones included; 0 between turns, and for a graph or swarm."""
    tools: list[str]
    """The tools that run now, by name; one that runs twice is named twice."""


class LiveMemory(Struct, frozen=True, kw_only=True):
    """One memory store, summed over the sessions that are alive and use it."""

    store: str
    """The store's name, which two stores of different memory managers may share."""
    waiting: int
    """Messages that were said, and of which it does not have everything."""
    dead_letters: int
    """Memories of these sessions that it was not able to take, and is not offered again."""
    breaker: Literal["closed", "open", "half-open"]
    """`open`: it has failed, and is not asked for a while; `half-open`: the next call is a probe."""


class LiveCommits(Struct, frozen=True, kw_only=True):
    """The commits of all stores of the runtime since it began."""

    count: int
    """Commits that were taken, each of one session or of many that waited at the same moment."""
    records: int
    failed: int
    """Commits that were refused or not answered; they are tried again as long as `patience` says."""
    waiting: int
    """Records that were accepted and are not stored yet."""
    last_group: int
    """Sessions that shared the last commit."""


class LiveView(Struct, frozen=True, kw_only=True):
    """One process at one instant. `msgspec.json.encode(view)` is its wire form."""

    at: float
    """The time of the view, in epoch seconds."""
    name: str
    """Among its peers; without peers, host and process id."""
    pid: int
    version: str
    """The version of Repertory."""
    up_s: float
    phase: str | None
    """The phase of the drain that runs; None without a drain."""
    stats: RuntimeStats
    actors: ActorInfo
    """Every actor, from the root down; without those of the sessions that are left out."""
    sessions: list[LiveSession]
    memories: list[LiveMemory]
    commits: LiveCommits


def view_of(host: Host, cluster: CallRouter | None, *, idle: bool = True) -> LiveView:
    """The view of this host, with or without its idle sessions. In its event loop."""
    from repertory.version import __version__

    omitted = {
        key: slot.supervisor.name
        for key, slot in (() if idle else list(host.slots.items()))
        if slot.idle and slot.supervisor is not None and _activity_in(slot, _run_in(host, slot)) in AT_REST
    }
    stats = runtime_stats(host, None if cluster is None else cluster.admission)
    now, pid, commits = anyio.current_time(), os.getpid(), host.buffers.commits
    counted = {name: getattr(commits, name) for name in ("count", "records", "failed", "last_group")}
    return LiveView(
        at=host.wall(),
        name=f"{socket.gethostname()}:{pid}" if cluster is None else cluster.name,
        pid=pid,
        version=__version__,
        up_s=host.system.up_s,
        phase=host.system.phase,
        stats=stats,
        actors=host.system.tree(frozenset(omitted.values())),
        sessions=[each for each in _sessions(host, omitted, now) if idle or each.state not in AT_REST],
        memories=memories_of(host, now),
        commits=LiveCommits(waiting=stats.records_waiting, **counted),
    )


def _run_in(host: Host, slot: SessionSlot) -> RunSummary | None:
    """The run of the slot's orchestrator; None without one, and while that starts. From any thread."""
    active = slot.session
    found = None if active is None or active.orchestrator is None else host.system.summary(active.orchestrator.path)
    return found if isinstance(found, RunSummary) else None


def _activity_in(slot: SessionSlot, run: RunSummary | None) -> Activity | None:
    """The activity of what a slot has; None if nothing of it is alive or wanted. `run`: as `_run_in` gives it."""
    active, paused = slot.session, slot.state is SessionState.PAUSED
    if active is None or not active.alive:
        return activity_of(ActivityFacts(behind=True)) if slot.users else None
    if active.orchestrator is None:
        now, turn = active.read_model.now, active.read_model.turn
        if turn is not None:
            return activity_of(ActivityFacts(runs=True, behind=turn.store_since is not None))
        facts = agent_facts(now.turn, now.deferred)
        return activity_of(replace(facts, behind=slot.waits, alive=True, paused=paused))
    works, asks, owing = (slot.users > 0, False, 0) if run is None else (run.since is not None, run.asks, run.owing)
    return activity_of(
        ActivityFacts(runs=works, asks=asks, cut_short=owing > 0, behind=slot.waits, alive=True, paused=paused)
    )


def _sessions(host: Host, omitted: Container[SlotKey], now: float) -> Iterator[LiveSession]:
    for key, slot in list(host.slots.items()):
        if key in omitted:
            continue
        active, since_s = slot.session, now - slot.idle_since
        turn = None if active is None or not active.alive else active.read_model.turn
        run, queued = _run_in(host, slot), 0
        if active is None or not active.alive:
            queued = slot.users - 1
        elif run is not None:
            queued, since_s = run.waiting, since_s if run.since is None else now - run.since
        elif turn is not None:
            queued, store_since = len(turn.waiting), turn.store_since
            since_s = now - turn.began_at if store_since is None else host.wall() - store_since
        elif active.orchestrator is None:
            since_s = min(since_s, now - active.read_model.ended_at)
        state = _activity_in(slot, run)
        if state is None:
            continue  # Nothing of it is alive: its journal is kept here, or it is just being dropped.
        yield LiveSession(
            session_id=key[1],
            agent_id=key[2],
            state=state,
            since_s=max(since_s, 0.0),
            queued=queued,
            step=0 if turn is None else turn.step,
            tools=[] if turn is None else turn.tools.copy(),
        )


def answers_of(host: Host, session_id: str) -> dict[str, str]:
    """The text so far of the answers that are given in a session now, by agent id."""
    found: dict[str, str] = {}
    for key, slot in list(host.slots.items()):
        if key[1] == session_id and slot.session is not None and (turn := slot.session.read_model.turn) is not None:
            answer = turn.answer
            if answer is not None:
                found[key[2]] = answer.text
    return found


def active_in(host: Host, session_id: str, agent_id: str) -> ActiveSession | None:
    """The agent of a session, if it is alive here."""
    found = (slot.session for key, slot in list(host.slots.items()) if key[1:3] == (session_id, agent_id))
    return next((active for active in found if active is not None and active.alive), None)


def session_counts(host: Host, now: float) -> tuple[Counter[Activity], int]:
    """The number of sessions by activity, and of the calls behind them. `now`: as in `memories_of`. From any thread."""
    sessions = list(_sessions(host, (), now))
    return Counter(each.state for each in sessions), sum(each.queued for each in sessions)


def memories_of(host: Host, now: float) -> list[LiveMemory]:
    """Every memory store that is in use. `now`: of the event loop's clock. From any thread."""
    healths = host.memories.healths
    waiting, dead_letters = defaultdict["MemoryStoreClient", int](int), defaultdict["MemoryStoreClient", int](int)
    for slot in list(host.slots.values()) if healths else ():
        if slot.remembers is None:
            continue
        lags = slot.remembers.link.lag()
        for source in slot.remembers.sources:
            if (lag := lags.get(source.client.name)) is not None:
                waiting[source.client] += lag.waiting
                dead_letters[source.client] += lag.dead_letters
    return [
        LiveMemory(
            store=client.name,
            waiting=waiting[client],
            dead_letters=dead_letters[client],
            breaker=_breaker_state(health.writes, health.searches, now),
        )
        for client, health in healths.items()
    ]


def _breaker_state(writes: Breaker, searches: Breaker, now: float) -> Literal["closed", "open", "half-open"]:
    """The state of the worse of the two breakers."""
    failing = [each for each in (writes, searches) if each.is_open]
    if not failing:
        return "closed"
    return "half-open" if all(each.allows(now) for each in failing) else "open"
