"""Metrics of this process's runtimes, by OpenTelemetry: read when somebody collects them, and not before.

A host is watched from its start (`watch_host`) if the program has a meter provider. The instruments are made once,
and read every watched host when a reader collects. Nothing is written on the way
of a turn, except into the histograms: of commits, and of the time that calls wait. What an ended host had counted stays
in the sums, so a counter never goes back.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias, cast

from msgspec import Struct, field
from msgspec.structs import replace

from repertory.app.embedding.live import memories_of, session_counts
from repertory.app.host.session import meter_provider
from repertory.app.host.shared import CLOSE, COMMIT, MEMORY, REFUSE, TURNS
from repertory.core.turns.activity import ALIVE, Activity
from repertory.forking import call_in_children
from repertory.runtime.system import QueueDepth

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation

    from repertory.app.embedding.live import LiveMemory
    from repertory.app.host.call_router import CallRouter
    from repertory.app.host.host import Host
    from repertory.errors import RepertoryError

METER = "repertory"
FRESH_S = 0.2
"""Seconds that one reading serves: a collection asks every instrument, and all get the same reading."""
PHASES = (REFUSE, TURNS, MEMORY, COMMIT, CLOSE)
BREAKERS = ("closed", "half-open", "open")
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Bounds of the buckets of durations, in seconds."""
SESSIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Bounds of the buckets of sessions that share a commit: a writer takes 512 at most."""


class Counts(Struct):
    """The counters, which only grow."""

    commits: int = 0
    records: int = 0
    failures: int = 0
    takeovers: int = 0
    restarts: int = 0
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The number of dead letters by the receiver's class and the reason."""
    tries: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """The number of tries to deliver an event, by destination and outcome."""
    given_up: Counter[str] = field(default_factory=Counter[str])
    """The number of events that were given up, by destination."""

    def add(self, host: Host) -> None:
        commits = host.buffers.commits
        self.commits += commits.count
        self.records += commits.records
        self.failures += commits.failed
        self.takeovers += host.counts.takeovers
        self.restarts += host.system.restarts
        for (kind, reason), count in host.system.dead_letters.counts.items():
            self.dead_letters[kind, reason.value] += count
        if host.destinations is not None:
            for name, tried in [*host.destinations.counts.items()]:
                self.tries[name, "delivered"] += tried.delivered
                self.tries[name, "failed"] += tried.failed
                self.given_up[name] += tried.given_up

    def copied(self) -> Counts:
        """The same counts, to be counted on."""
        return replace(
            self, dead_letters=self.dead_letters.copy(), tries=self.tries.copy(), given_up=self.given_up.copy()
        )


class Reading(Struct):
    """Every value at one moment, summed over the hosts of the process."""

    at: float
    """Monotonic seconds."""
    counts: Counts
    sessions: Counter[Activity] = field(default_factory=Counter[Activity])
    """The number of sessions by activity."""
    calls: int = 0
    """The calls that wait behind a turn."""
    queues: dict[str, QueueDepth] = {}
    """The depth of the mailboxes by the actor's class."""
    behind: int = 0
    records_waiting: int = 0
    memories: list[LiveMemory] = []
    deliveries: dict[str, tuple[int, float]] = {}
    """The deliveries that wait after a failed try, and the age of the oldest event in seconds, by destination."""
    phases: Counter[str] = field(default_factory=Counter[str])
    peers: Counter[str] | None = None
    """The numbers of the peers' metrics, by the name of the metric; None without peers."""


class _Watched(Struct, frozen=True):
    host: Host
    cluster: Callable[[], CallRouter | None]
    clock: Callable[[], float]
    """The time of the host's event loop, from any thread."""


class Watch:
    """The hosts of this process that are watched. Any thread may read them."""

    def __init__(self) -> None:
        self.forget_all()

    def forget_all(self) -> None:
        """Begin anew, as in a forked child: the hosts are the parent's, and so are its counts."""
        self._guard = threading.Lock()
        self._watched: list[_Watched] = []
        self._ended = Counts()
        self._reading: Reading | None = None
        self._instruments: dict[int, Instruments] = {}
        """The instruments by the identity of the provider, to which they hold a reference."""

    def begin(self, host: Host, cluster: Callable[[], CallRouter | None] = lambda: None) -> None:
        """Have the program's metrics tell of this host, while it is open. `cluster`: its peers, once it has joined."""
        late_s = host.system.now() - time.monotonic()
        with self._guard:
            self._drop_ended()
            if all(each.host is not host for each in self._watched):
                self._watched.append(_Watched(host, cluster, lambda: time.monotonic() + late_s))
        self.use_provider()

    def end(self, host: Host) -> None:
        """Stop watching a host: keep its counters, and nothing else of it."""
        with self._guard:
            self._end([each for each in self._watched if each.host is host])

    def use_provider(self) -> bool:
        """Make the instruments, if the program has a meter provider by now. False without one."""
        provider = cast("MeterProvider | None", meter_provider())
        if provider is None:
            return False
        with self._guard:
            instruments = self._instruments.get(id(provider))
            if instruments is None:
                instruments = self._instruments[id(provider)] = Instruments(provider, self.read)
            for each in self._watched:
                each.host.buffers.commits.observe = self._note_commit
                each.host.system.observe_waits(self._note_wait)
        return True

    def read(self) -> Reading:
        """The values of now, or of a moment ago."""
        now = time.monotonic()
        with self._guard:
            if self._reading is None or now - self._reading.at > FRESH_S:
                self._drop_ended()
                self._reading = self._read(now)
            return self._reading

    def _read(self, now: float) -> Reading:
        reading = Reading(now, self._ended.copied())
        for each in self._watched:
            _add(reading, each)
        return reading

    def _note_commit(self, sessions: int, duration_s: float, error: RepertoryError | None) -> None:
        for instruments in self._instruments.values():
            instruments.note_commit(sessions, duration_s, error)

    def _note_wait(self, seconds: float) -> None:
        for instruments in self._instruments.values():
            instruments.waits.record(seconds)

    def _drop_ended(self) -> None:
        self._end([each for each in self._watched if each.host.system.drained.is_set()])

    def _end(self, over: list[_Watched]) -> None:
        for each in over:
            self._watched.remove(each)
            self._ended.add(each.host)
            each.host.buffers.commits.observe = None
            each.host.system.observe_waits(None)
            self._reading = None


def _add(reading: Reading, watched: _Watched) -> None:
    host, cluster = watched.host, watched.cluster()
    reading.counts.add(host)
    sessions, calls = session_counts(host, watched.clock())
    reading.sessions.update(sessions)
    reading.calls += calls
    for kind, depth in host.system.queues().items():
        known = reading.queues.get(kind, QueueDepth(0, 0, 0))
        both = QueueDepth(known.actors + depth.actors, known.queued + depth.queued, max(known.longest, depth.longest))
        reading.queues[kind] = both
    for buffer in host.buffers:
        reading.records_waiting += buffer.count
        reading.behind += buffer.error is not None
    reading.memories += memories_of(host, watched.clock())
    if host.destinations is not None:
        for name, (waiting, age_s) in host.destinations.waiting(host.wall()).items():
            before, oldest_s = reading.deliveries.get(name, (0, 0.0))
            reading.deliveries[name] = (before + waiting, max(oldest_s, age_s))
    if host.system.phase is not None:
        reading.phases[host.system.phase] += 1
    if cluster is not None:
        reading.peers, admission = reading.peers or Counter(), cluster.admission
        reading.peers.update(count=cluster.peer_count, room=admission.room, busy=admission.inside)
        reading.peers["call.waiting"] += admission.waiting


_watch = Watch()
watch_host, unwatch_host, use_provider = _watch.begin, _watch.end, _watch.use_provider
call_in_children(_watch.forget_all)


class Instruments:
    """The instruments of one meter provider. `docs/reference/metrics.md` lists them."""

    def __init__(self, provider: MeterProvider, read: Callable[[], Reading]) -> None:
        from repertory.version import __version__

        self._read = read
        self.provider = provider
        self._meter: Meter = provider.get_meter(METER, __version__)
        self._observation: type[Observation] = import_module("opentelemetry.metrics").Observation
        self._gauges()
        self._counters()
        meter = self._meter
        self._durations = meter.create_histogram(
            "repertory.commit.duration",
            unit="s",
            description="How long a store took for a commit",
            explicit_bucket_boundaries_advisory=SECONDS,
        )
        self._sizes = meter.create_histogram(
            "repertory.commit.size",
            unit="{session}",
            description="Sessions that shared a commit",
            explicit_bucket_boundaries_advisory=SESSIONS,
        )
        self.waits = meter.create_histogram(
            "repertory.call.wait.duration",
            unit="s",
            description="How long calls waited for the turns before them",
            explicit_bucket_boundaries_advisory=SECONDS,
        )

    def note_commit(self, sessions: int, duration_s: float, error: RepertoryError | None) -> None:
        self._durations.record(duration_s, None if error is None else {"error.type": type(error).__name__})
        self._sizes.record(sessions)

    def _gauges(self) -> None:
        self._gauge("repertory.session.count", "{session}", "Sessions that are alive", _sessions)
        self._gauge("repertory.session.behind", "{session}", "Sessions whose store takes nothing", lambda r: r.behind)
        self._gauge("repertory.call.waiting", "{call}", "Calls that wait behind a turn", lambda r: r.calls)
        self._gauge("repertory.record.waiting", "{record}", "Records not stored yet", lambda r: r.records_waiting)
        self._gauge("repertory.actor.count", "{actor}", "Actors", _of_queues(lambda depth: depth.actors))
        self._gauge("repertory.actor.mailbox.size", "{message}", "Queued messages", _of_queues(lambda d: d.queued))
        text = "Messages in the fullest mailbox"
        self._gauge("repertory.actor.mailbox.size.max", "{message}", text, _of_queues(lambda d: d.longest), sums=False)
        text = "Messages of which a memory store lacks something"
        self._gauge("repertory.memory.waiting", "{message}", text, _of_memories(lambda m: m.waiting))
        text = "What memory stores were not able to take, of sessions that are alive"
        self._gauge("repertory.memory.dead_letter.count", "{entry}", text, _of_memories(lambda m: m.dead_letters))
        text = "1 for the state of the breaker before a memory store, 0 for the others"
        self._gauge("repertory.memory.breaker", "1", text, _breakers, sums=False)
        text = "Deliveries that wait after a try that has failed here"
        self._gauge("repertory.delivery.waiting", "{event}", text, _of_deliveries(0))
        text = "The age of the oldest event among them"
        self._gauge("repertory.delivery.waiting.age", "s", text, _of_deliveries(1), sums=False)
        self._gauge("repertory.drain.phase", "1", "1 for the phase of the drain that runs", _phases, sums=False)
        self._peer_gauge("count", "{peer}", "Peers that are known")
        self._peer_gauge("room", "{session}", "Sessions that may run turns at once")
        self._peer_gauge("busy", "{session}", "Sessions that have a place")
        self._peer_gauge("call.waiting", "{call}", "Calls that wait for a place")

    def _peer_gauge(self, name: str, unit: str, what: str) -> None:
        self._gauge(f"repertory.peer.{name}", unit, what, lambda r: None if r.peers is None else r.peers[name])

    def _counters(self) -> None:
        self._counter("repertory.commits", "{commit}", "Commits taken by stores", lambda r: r.counts.commits)
        text = "Commits refused or not answered; they are tried again"
        self._counter("repertory.commit.failures", "{commit}", text, lambda r: r.counts.failures)
        self._counter("repertory.commit.records", "{record}", "Records stored", lambda r: r.counts.records)
        text = "Sessions taken over from owners that had not given them up"
        self._counter("repertory.session.takeovers", "{session}", text, lambda r: r.counts.takeovers)
        self._counter("repertory.actor.restarts", "{restart}", "Actors started again", lambda r: r.counts.restarts)
        self._counter("repertory.actor.dead_letters", "{message}", "Messages that no actor took", _dead_letters)
        self._counter("repertory.delivery.tries", "{try}", "Tries to deliver an event", _tries)
        self._counter("repertory.delivery.dead_letters", "{event}", "Events that were given up", _given_up)

    def _gauge(self, name: str, unit: str, what: str, get: _Get, *, sums: bool = True) -> None:
        """`sums`: values of several processes may be added."""
        meter = self._meter
        create = meter.create_observable_up_down_counter if sums else meter.create_observable_gauge
        create(name, callbacks=[self._observing(get)], unit=unit, description=what)

    def _counter(self, name: str, unit: str, what: str, get: _Get) -> None:
        self._meter.create_observable_counter(name, callbacks=[self._observing(get)], unit=unit, description=what)

    def _observing(self, get: _Get) -> Callable[[CallbackOptions], list[Observation]]:
        def observe(options: CallbackOptions) -> list[Observation]:
            del options
            value = get(self._read())
            points: _Points = value if isinstance(value, list) else [] if value is None else [(value, {})]
            return [self._observation(number, attributes) for number, attributes in points]

        return observe


_Points: TypeAlias = "list[tuple[float, Mapping[str, str]]]"
"""Values with their attributes."""
_Get: TypeAlias = "Callable[[Reading], int | _Points | None]"
"""A function that returns a value, several with their attributes, or None when there is none."""


def _sessions(reading: Reading) -> _Points:
    return [(reading.sessions[state], {"repertory.session.state": state.value}) for state in ALIVE]


def _of_queues(get: Callable[[QueueDepth], int]) -> _Get:
    def points(reading: Reading) -> _Points:
        return [(get(depth), {"repertory.actor.kind": kind}) for kind, depth in reading.queues.items() if kind]

    return points


def _of_memories(get: Callable[[LiveMemory], int]) -> _Get:
    def points(reading: Reading) -> _Points:
        sums = Counter[str]()
        for memory in reading.memories:
            sums[memory.store] += get(memory)
        return [(value, {"repertory.memory.store": store}) for store, value in sums.items()]

    return points


def _breakers(reading: Reading) -> _Points:
    """The points of the memory stores' breakers; of stores with the same name, the worst state."""
    worst: dict[str, int] = {}
    for memory in reading.memories:
        worst[memory.store] = max(worst.get(memory.store, 0), BREAKERS.index(memory.breaker))
    return [
        (int(BREAKERS[found] == state), {"repertory.memory.store": store, "repertory.memory.breaker.state": state})
        for store, found in worst.items()
        for state in BREAKERS
    ]


def _phases(reading: Reading) -> _Points:
    return [(min(reading.phases[phase], 1), {"repertory.drain.phase.name": phase}) for phase in PHASES]


def _dead_letters(reading: Reading) -> _Points:
    return [
        (count, {"repertory.actor.kind": kind, "repertory.dead_letter.reason": reason})
        for (kind, reason), count in reading.counts.dead_letters.items()
    ]


def _of_deliveries(which: int) -> _Get:
    return lambda reading: [
        (values[which], {"repertory.delivery.destination": name}) for name, values in reading.deliveries.items()
    ]


def _tries(reading: Reading) -> _Points:
    return [
        (count, {"repertory.delivery.destination": name, "repertory.delivery.outcome": outcome})
        for (name, outcome), count in reading.counts.tries.items()
    ]


def _given_up(reading: Reading) -> _Points:
    return [(count, {"repertory.delivery.destination": name}) for name, count in reading.counts.given_up.items()]
