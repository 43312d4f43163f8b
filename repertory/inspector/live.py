"""Live views of a runtime, or of a place that others work on, as long as somebody looks.

There is no task here. Each connection makes its own updates, about once a second, and shares what was found with the
others; a client that is behind gets the newest state next, never a queue of older ones. A connection ends after
`STREAM_S`, and the browser opens another one: no server has to wait long for it when it stops.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec
from starlette.responses import Response, StreamingResponse

from repertory.core.plural import counted
from repertory.core.turns.activity import ALIVE, AT_REST
from repertory.errors import Invalid, NotFound, RepertoryError, Throttled
from repertory.inspector.listing import KnownEnds, ListLine, Wanted, lines_behind, list_lines, ordered
from repertory.inspector.wording import HIDDEN, rich_text

if TYPE_CHECKING:
    from markupsafe import Markup

    from repertory.app.embedding.live import LiveSession, LiveView
    from repertory.app.embedding.runtime import Runtime
    from repertory.core.pending_work import PendingWork
    from repertory.operations.cluster import ClusterReport
    from repertory.operations.sessions import Sessions
    from repertory.runtime.lifecycle import ActorInfo

EVERY_S = 1.0
"""Seconds between two updates on a connection."""
ANSWER_EVERY_S = 0.25
"""Seconds between two updates of a page that shows an answer while it grows."""
ANSWER_CHARACTERS_MAX = 8_000
"""The last characters of a growing answer that are shown."""
STREAM_S = 10.0
"""Seconds that one connection lasts."""
STREAMS_MAX = 64
"""Connections at the same time; more are refused."""
FRESH_S = 0.5
"""Seconds that one view serves all who ask."""
STORED_FRESH_S = 2.0
"""Seconds that one reading of the cluster and of pending work serves all who ask."""
NOTICES_MAX = 40
SAMPLES_MAX = 60
BUSY_LISTED_MAX = 12
"""Sessions in a turn that the overview names."""
RECENT_MAX = 50
"""The sessions that changed last and whose states the overview of a place reads."""
RECENT_LINES_MAX = 12
CHILDREN_UNFOLDED_MAX = 12
"""Children that an actor may have before each of them becomes one line, with what is below it."""
CHILDREN_LISTED_MAX = 60
"""Actors with one parent that the tree shows at once."""
MakeParts = Callable[[], Awaitable[Mapping[str, str]]]
OpenSessions = Callable[[], AbstractAsyncContextManager["Sessions"]]
Sign = Literal["woken", "rested", "failed", "restarted", "lost", "drain", "given up", "taken over"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that happened between two looks."""

    at: float
    sign: Sign
    text: str
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Counters at one moment."""

    at: float
    turns: int
    commits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFacts:
    """Facts read from the store of sessions, which other processes change as well."""

    lines: Sequence[ListLine]
    """The sessions that changed last; those that wait for a person come first."""
    total: int
    owned: int
    more: bool
    """True if there are sessions that were not counted."""
    pending_work: Sequence[PendingWork]
    cluster: ClusterReport | None
    """The report of the cluster; None where sessions cannot be shared."""
    error: str = ""
    """The reason why the place could not be read; empty if it could."""


class Observed:
    """The comparison of successive views of a runtime: rates, and events in between. It does no I/O."""

    def __init__(self) -> None:
        self.notices: deque[Notice] = deque(maxlen=NOTICES_MAX)
        """The notices, the newest first."""
        self.samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._before: LiveView | None = None

    def look(self, view: LiveView) -> None:
        """Take in a view, later than those before."""
        before, self._before = self._before, view
        for notice in () if before is None else _notices(before, view):
            self.notices.appendleft(notice)
        self.samples.append(Sample(at=view.at, turns=view.stats.turns, commits=view.commits.count))

    def rates(self, of: Literal["turns", "commits"]) -> list[float]:
        """The rates per second between each two looks, the oldest first."""
        found: list[float] = []
        samples = list(self.samples)
        for one, two in pairwise(samples):
            gone = two.at - one.at
            if 0 < gone <= 5 * EVERY_S:
                found.append(max(0, getattr(two, of) - getattr(one, of)) / gone)
        return found


def _notices(before: LiveView, now: LiveView) -> list[Notice]:
    found: list[Notice] = []

    def note(sign: Sign, text: str, session_id: str | None = None) -> None:
        found.append(Notice(at=now.at, sign=sign, text=text, session_id=session_id))

    was = {(each.session_id, each.agent_id): each for each in before.sessions}
    there = {(each.session_id, each.agent_id): each for each in now.sessions}
    begun = [each for key, each in there.items() if key not in was]
    ended = [each for key, each in was.items() if key not in there]
    changes: list[tuple[Sign, str, list[LiveSession]]] = [
        ("woken", "began or was woken", begun),
        ("rested", "came to rest", ended),
    ]
    for sign, text, group in changes:
        if len(group) > 3:
            note(sign, f"{len(group)} sessions {text.replace('was', 'were')}")
        else:
            for each in group:
                note(sign, f"{each.session_id} {text}", each.session_id)
    taken = now.stats.takeovers - before.stats.takeovers
    if taken > 0:
        note("taken over", f"{counted(taken, 'session')} taken over from an owner that was gone")
    failed, restarts = now.stats.failed - before.stats.failed, now.stats.restarts - before.stats.restarts
    if failed > 0:
        note("failed", f"{counted(failed, 'actor')} failed")
    if restarts > 0:
        note("restarted", f"{counted(restarts, 'actor')} restarted")
    lost = sum(now.stats.dead_letters.values()) - sum(before.stats.dead_letters.values())
    if lost > 0:
        note("lost", f"{counted(lost, 'dead letter')}")
    if now.commits.failed > before.commits.failed:
        note("failed", f"{counted(now.commits.failed - before.commits.failed, 'commit')} failed")
    given_up = sum(each.dead_letters for each in now.memories) - sum(each.dead_letters for each in before.memories)
    if given_up > 0:
        note("given up", f"{counted(given_up, 'memory', 'memories')} given up")
    if now.phase != before.phase:
        note("drain", f"Drain: {now.phase}" if now.phase else "The drain is over")
    return found


class LiveFeed:
    """Views of one runtime or place, made when somebody asks and shared by all who ask soon after."""

    def __init__(
        self,
        runtime: Runtime | None,
        sessions: OpenSessions | None,
        wall: Callable[[], float],
        ends: KnownEnds,
        *,
        content: bool,
    ) -> None:
        self._runtime = runtime
        self._sessions = sessions
        self._wall = wall
        self._ends = ends
        self._content = content
        self._view: LiveView | None = None
        self._viewed_at = -math.inf
        self._stored: StoredFacts | None = None
        self._stored_at = -math.inf
        self._reading = anyio.Lock()
        self._observed = Observed()
        self.streams = 0
        """Connections that are open now."""
        self.closing = anyio.Event()
        """The event that is set when every connection is to end."""

    @property
    def live(self) -> bool:
        """True if there is a runtime to look at."""
        return self._runtime is not None

    def close(self) -> None:
        """End every connection."""
        self.closing.set()

    @property
    def over(self) -> bool:
        """True if connections are to end: the inspector was closed, or the runtime has drained."""
        return self.closing.is_set() or (self._runtime is not None and self._runtime.drained.is_set())

    def view(self) -> LiveView:
        """The runtime as it is, at most half a second old. Errors: `NotFound` without a runtime."""
        if self._runtime is None:
            raise NotFound("nothing is live here: these are the pages of stored sessions")
        now = anyio.current_time()
        if self._view is None or now - self._viewed_at >= FRESH_S:
            self._view, self._viewed_at = self._runtime.look(), now
            self._observed.look(self._view)
        return self._view

    def json(self) -> bytes:
        """The view on the wire."""
        return msgspec.json.encode(self.view(), enc_hook=repr)

    def states(self) -> Mapping[tuple[str, str], LiveSession]:
        """The state by session and agent id, of those that live here."""
        if self._runtime is None or self.over:
            return {}
        return {(each.session_id, each.agent_id): each for each in self.view().sessions}

    async def facts(self, page: str, query: Mapping[str, str]) -> dict[str, object]:
        """The values for the moving parts of a page."""
        match page:
            case "actors":
                return tree_facts(self.view().actors, query)
            case "turn":
                return self._turn_facts(query)
            case _:
                return {**(self._live_facts() if self.live else {"view": None}), "stored": await self.stored()}

    def _live_facts(self) -> dict[str, object]:
        view = self.view()
        busy = sorted((each for each in view.sessions if each.state not in AT_REST), key=lambda each: -each.since_s)
        counts = Counter(each.state for each in view.sessions)
        return {
            "view": view,
            "counts": {state.name.lower(): counts[state] for state in ALIVE},
            "queued": sum(each.queued for each in view.sessions),
            "busy": busy[:BUSY_LISTED_MAX],
            "more_busy": max(0, len(busy) - BUSY_LISTED_MAX),
            "notices": list(self._observed.notices),
            "turn_rates": self._observed.rates("turns"),
            "commit_rates": self._observed.rates("commits"),
            "phases": DRAIN_PHASES,
        }

    def _turn_facts(self, query: Mapping[str, str]) -> dict[str, object]:
        wanted = query.get("session", "")
        found = [each for each in self.view().sessions if each.session_id == wanted]
        answers = {} if self._runtime is None else self._runtime.answers(wanted)
        return {"found": found, "answers": [_growing(*each, content=self._content) for each in answers.items()]}

    async def stored(self) -> StoredFacts | None:
        """The facts of the store, at most two seconds old; None where nothing is stored."""
        if self._sessions is None or self.over:
            return None
        async with self._reading:
            now = anyio.current_time()
            if self._stored is None or now - self._stored_at >= STORED_FRESH_S:
                self._stored, self._stored_at = await self._read(self._sessions), now
        return self._stored

    async def _read(self, opened: OpenSessions) -> StoredFacts:
        try:
            async with opened() as sessions:
                infos, last = ((), None) if self.live else await lines_behind(sessions, Wanted())
                newest = ordered(infos, "changed")[:RECENT_MAX]
                lines = list_lines(newest, await self._ends.read(sessions, newest), {})
                try:
                    cluster = await sessions.cluster()
                    pending_work = cluster.pending_work
                except Invalid:
                    cluster, pending_work = None, await sessions.pending_work()
                return StoredFacts(
                    lines=sorted(lines, key=lambda line: line.state != "asks")[:RECENT_LINES_MAX],
                    total=len(infos),
                    owned=sum(info.owner is not None for info in infos),
                    more=last is not None,
                    pending_work=pending_work,
                    cluster=cluster,
                )
        except RepertoryError as error:
            return StoredFacts(lines=(), total=0, owned=0, more=False, pending_work=(), cluster=None, error=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingAnswer:
    """An answer that a model gives now."""

    agent_id: str
    characters: int
    html: Markup


def _growing(agent_id: str, text: str, *, content: bool) -> GrowingAnswer:
    end = text[-ANSWER_CHARACTERS_MAX:]
    html = rich_text(end if end == text else f"\N{HORIZONTAL ELLIPSIS} {end}") if content else HIDDEN
    return GrowingAnswer(agent_id=agent_id, characters=len(text), html=html)


DRAIN_PHASES = ("refuse", "turns", "memory", "commit", "close")


# Server-sent events.


def events_of(feed: LiveFeed, parts: MakeParts | None, every_s: float = EVERY_S) -> Response:
    """A connection: `view` events with the view as JSON, or `parts` events with those parts of a page that changed.

    Errors: `Throttled` when too many are open.
    """
    if feed.streams >= STREAMS_MAX:
        raise Throttled("too many browsers look at this inspector at once", connections=feed.streams)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(_stream(feed, parts, every_s), media_type="text/event-stream", headers=headers)


async def _stream(feed: LiveFeed, parts: MakeParts | None, every_s: float) -> AsyncGenerator[bytes]:
    feed.streams += 1
    try:
        known: Mapping[str, str] = {}
        yield b"retry: 500\n\n"
        ends = anyio.current_time() + STREAM_S
        while not feed.over:
            if parts is None:
                yield b"event: view\ndata: " + feed.json() + b"\n\n"
            else:
                try:
                    now = await parts()
                except RepertoryError as error:
                    yield _event("refused", {"error": str(error)})
                    return
                changed = {name: html for name, html in now.items() if known.get(name) != html}
                known = now
                yield _event("parts", changed) if changed else b": nothing changed\n\n"
            if anyio.current_time() >= ends:
                return
            with anyio.move_on_after(every_s):
                await feed.closing.wait()
        yield _event("over", {})
    finally:
        feed.streams -= 1


def _event(name: str, data: Mapping[str, str]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


# The tree of actors, folded where it is large.


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorLine:
    """One actor, alone or with all below it that are folded into its line; or a line for those that are left out."""

    depth: int
    name: str
    path: str
    actor: ActorInfo | None
    left_out: int = 0
    folded: bool = False
    below: int = 0
    """Actors below it."""
    state: str = ""
    """The actor's state; for a folded line the first that is not `running`."""
    queued: int = 0
    processed: int = 0
    failed: int = 0
    restarts: int = 0
    now: str = ""
    """The message that it handles, and the jobs that run."""


def tree_facts(tree: ActorInfo, query: Mapping[str, str]) -> dict[str, object]:
    """The lines of the tree. With wanted words, those whose path has them and what is above them; else, where an actor
    has many children, each is folded into one line.
    """
    wanted = query.get("q", "").strip().casefold()
    under = query.get("under", "").strip()
    root = next((actor for actor in tree.walk() if actor.path == under), tree) if under else tree
    counts = Counter(actor.state.value for actor in tree.walk())
    lines: list[ActorLine] = []
    _add_lines(root, 0, wanted, lines)
    return {"lines": lines, "states": counts, "total": sum(counts.values()), "wanted": wanted, "under": under}


def _add_lines(actor: ActorInfo, depth: int, wanted: str, lines: list[ActorLine]) -> None:
    children = actor.children
    if wanted:
        children = tuple(child for child in children if any(wanted in each.path.casefold() for each in child.walk()))
    lines.append(_line(actor, (actor,), depth))
    folds = len(children) > CHILDREN_UNFOLDED_MAX
    # What fails or restarts comes first where not all can be shown.
    ordered = sorted(children, key=_calm) if len(children) > CHILDREN_LISTED_MAX else children
    for child in ordered[:CHILDREN_LISTED_MAX]:
        if folds and child.children:
            lines.append(_line(child, tuple(child.walk()), depth + 1))
        else:
            _add_lines(child, depth + 1, wanted, lines)
    more = len(children) - CHILDREN_LISTED_MAX
    if more > 0:
        lines.append(ActorLine(depth=depth + 1, name="", path=actor.path, actor=None, left_out=more))


def _line(actor: ActorInfo, within: Sequence[ActorInfo], depth: int) -> ActorLine:
    states = [each.state.value for each in within]
    doing = [word for each in within for word in (each.current, *each.jobs) if word]
    return ActorLine(
        depth=depth,
        name=actor.path.rsplit("/", 1)[-1] or "root",
        path=actor.path,
        actor=actor,
        folded=len(within) > 1,
        below=sum(1 for _ in actor.walk()) - 1,
        state=next((state for state in states if state != "running"), "running"),
        queued=sum(each.queued for each in within),
        processed=sum(each.processed for each in within),
        failed=sum(each.failed for each in within),
        restarts=sum(each.incarnation - 1 for each in within),
        now=", ".join(dict.fromkeys(doing)),
    )


def _calm(actor: ActorInfo) -> tuple[bool, int, str]:
    every = list(actor.walk())
    troubles = sum(each.failed + each.incarnation - 1 for each in every)
    return all(each.state.value == "running" for each in every), -troubles, actor.path
