"""The list of sessions with its filters: read in ranges of ids, and never more of them than a page can wait for.

What a session waits for stands at the end of its journal. So the ends are read of those sessions alone that a page is
about, a few at once and for a short time, and remembered until the session has more records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
from msgspec.structs import replace as replace_fields

from repertory.core.interrupts import Interrupt
from repertory.core.turns.activity import AT_REST, Activity, ActivityFacts, activity_of
from repertory.errors import RepertoryError
from repertory.inspector.wording import first_words

if TYPE_CHECKING:
    from repertory.app.embedding.live import LiveSession
    from repertory.backends.ports import SessionInfo
    from repertory.operations.ends import StoredEnd
    from repertory.operations.sessions import Sessions

SESSIONS_AT_ONCE = 50
"""Lines on a page of the list."""
RANGE_LINES = 1000
LINES_MAX = 5000
"""Sessions among which one page is chosen; later ids are on the pages behind."""
ENDS_MAX = 400
"""Sessions of which one page reads the ends to find those that it shows."""
READ_S = 2.0
"""Seconds after which a page shows what it has read."""
_AT_ONCE = 8
_REMEMBERED_MAX = 5000
WITHIN: Mapping[str, float] = {"15m": 900, "1h": 3600, "24h": 86400, "7d": 7 * 86400, "30d": 30 * 86400}
"""The filters by time: how many seconds ago a session changed at most."""
STATES: Mapping[str, frozenset[Activity]] = {
    "asks": frozenset((Activity.ASKS,)),
    "turn": frozenset((Activity.RUNS, Activity.STORE)),
    "unanswered": frozenset((Activity.CUT_SHORT,)),
    "tool": frozenset((Activity.TOOL,)),
    "rest": AT_REST,
}
"""The filters by state."""
Ends = Mapping[str, "StoredEnd"]
LiveStates = Mapping[tuple[str, str], "LiveSession"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The filters of a request."""

    words: str = ""
    sort: str = "changed"
    state: str = ""
    agent: str = ""
    errors: bool = False
    within: str = ""
    after: str = ""
    """The id behind which the list begins."""
    page: int = 1
    skip: int = 0
    """The sessions that the pages before looked at, where each has to be looked at."""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Wanted:
        """The filters in a query; what cannot be understood is no filter."""
        within, state = query.get("within", ""), query.get("state", "")
        return cls(
            words=query.get("q", "").strip(),
            sort=query.get("sort", "changed"),
            state=state if state in STATES else "",
            agent=query.get("agent", "").strip(),
            errors=bool(query.get("errors")),
            within=within if within in WITHIN else "",
            after=query.get("after", ""),
            page=_count(query.get("page", ""), 1),
            skip=_count(query.get("skip", ""), 0),
        )

    @property
    def deep(self) -> bool:
        """True if the ends of sessions have to be read to know which ones are meant."""
        return bool(self.state or self.errors)

    @property
    def any(self) -> bool:
        """True if there is any filter."""
        return bool(self.deep or self.words or self.agent or self.within)

    def lets_in(self, info: SessionInfo, now: float) -> bool:
        """True if the line of a session passes the filters that need no more than it."""
        named = self.words.casefold() in info.session_id.casefold()
        agents = not self.agent or any(self.agent.casefold() in agent.casefold() for agent in info.agents)
        return named and agents and (not self.within or info.updated_at >= now - WITHIN[self.within])


def _count(text: str, otherwise: int) -> int:
    return max(int(text), otherwise) if text.isascii() and text.isdecimal() and len(text) < 9 else otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLine:
    """A session in the list."""

    info: SessionInfo
    state: Activity | None
    """The session's state; None: its end was not read, or cannot be."""
    alive: bool = False
    """True if it is alive in this process."""
    question: str = ""
    """The first open question to a person, in words."""
    failed: str = ""
    """The failure of the last turn: see `StoredEnd`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage:
    """One page of the list."""

    lines: Sequence[ListLine]
    total: int
    """Sessions that were read."""
    found: int
    """Sessions among them that pass the filters which need no more than a line."""
    agents: Sequence[str]
    page: int
    pages: int
    next_skip: int | None = None
    """The `skip` of the next page; None behind the last one."""
    next_after: str | None = None
    """The id behind which there are sessions that were not read."""


class KnownEnds:
    """The ends of sessions, remembered until they have more records."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, Ends]] = {}

    async def read(self, sessions: Sessions, infos: Sequence[SessionInfo]) -> Mapping[str, Ends]:
        """The ends by session, of those that could be read in time."""
        found: dict[str, Ends] = {}
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def read(info: SessionInfo) -> None:
            async with limiter:
                ends = await whole_ends(sessions, info)
            if not ends:
                return
            found[info.session_id] = {agent_id: _short(end) for agent_id, end in ends.items()}
            self._known[info.session_id] = (_mark(info), found[info.session_id])
            if len(self._known) > _REMEMBERED_MAX:
                del self._known[next(iter(self._known))]

        with anyio.move_on_after(READ_S):
            async with anyio.create_task_group() as group:
                for info in infos:
                    mark, ends = self._known.get(info.session_id, (None, {}))
                    if mark == _mark(info):
                        found[info.session_id] = ends
                    else:
                        group.start_soon(read, info)
        return found


async def whole_ends(sessions: Sessions, info: SessionInfo) -> Ends:
    """The ends of one session; none of one that is damaged, erased, or deleted meanwhile."""
    try:
        return {} if info.damaged else await sessions.ends(info.session_id)
    except RepertoryError:
        return {}


def _short(end: StoredEnd) -> StoredEnd:
    """The end as the list needs it, without inputs of tools, which may be large."""
    asked = [
        Interrupt(one.id[:300], one.name[:120], first_words(one.reason if isinstance(one.reason, str) else one.text))
        for one in end.questions[:1]
    ]
    return replace(end, questions=asked, failed=end.failed[:200])


def _mark(info: SessionInfo) -> object:
    return info.created_at, info.updated_at, tuple(info.agents.items())


async def lines_behind(sessions: Sessions, wanted: Wanted) -> tuple[Sequence[SessionInfo], str | None]:
    """Lines behind an id, at most `LINES_MAX` and for a short time, and the last id if there are more behind it."""
    lines: list[SessionInfo] = []
    last = wanted.after
    ends = anyio.current_time() + READ_S
    while len(lines) < LINES_MAX and anyio.current_time() < ends:
        found = await sessions.list_page(after=last, limit=RANGE_LINES)
        lines += found
        if len(found) < RANGE_LINES:
            return lines, None
        last = found[-1].session_id
    if wanted.words and not wanted.after:  # A session whose whole id is known is found wherever it stands.
        known = {info.session_id for info in lines}
        named = await sessions.list_page(wanted.words, limit=SESSIONS_AT_ONCE)
        lines += [info for info in named if info.session_id not in known]
    return lines, last


async def list_page_of(
    read: Callable[[], Awaitable[tuple[Sequence[SessionInfo], str | None]]],
    ends_of: Callable[[Sequence[SessionInfo]], Awaitable[Mapping[str, Ends]]],
    wanted: Wanted,
    live: LiveStates,
    now: float,
) -> ListPage:
    """The page of the list that is wanted."""
    infos, last = await read()
    found = ordered([info for info in infos if wanted.lets_in(info, now)], wanted.sort)
    agents = sorted({agent for info in infos for agent in info.agents})[:100]
    if not wanted.deep:
        pages = max(1, -(-len(found) // SESSIONS_AT_ONCE))
        page = min(wanted.page, pages)
        chosen = found[(page - 1) * SESSIONS_AT_ONCE : page * SESSIONS_AT_ONCE]
        lines = list_lines(chosen, await ends_of(chosen), live)
        return ListPage(
            lines=lines,
            total=len(infos),
            found=len(found),
            agents=agents,
            page=page,
            pages=pages,
            next_after=last if page == pages else None,
        )
    lines = list[ListLine]()
    at, until = wanted.skip, anyio.current_time() + READ_S
    while at < min(len(found), wanted.skip + ENDS_MAX) and anyio.current_time() < until:
        looked = found[at : at + SESSIONS_AT_ONCE]
        for line in list_lines(looked, await ends_of(looked), live):
            if len(lines) == SESSIONS_AT_ONCE:
                break
            at += 1
            if is_meant(line, wanted):
                lines.append(line)
        if len(lines) == SESSIONS_AT_ONCE:
            break
    over = at >= len(found)
    return ListPage(
        lines=lines,
        total=len(infos),
        found=len(found),
        agents=agents,
        page=1,
        pages=1,
        next_skip=None if over else at,
        next_after=last if over else None,
    )


def is_meant(line: ListLine, wanted: Wanted) -> bool:
    """True if a session passes the filters by state and by errors."""
    right = not wanted.state or line.state in STATES[wanted.state]
    return right and (not wanted.errors or bool(line.failed or line.info.damaged))


def list_lines(infos: Sequence[SessionInfo], ends: Mapping[str, Ends], live: LiveStates) -> list[ListLine]:
    """Sessions with their states."""
    return [list_line(info, ends.get(info.session_id), live) for info in infos]


def list_line(info: SessionInfo, ends: Ends | None, live: LiveStates) -> ListLine:
    """A session with its state. `ends`: None where it is not known."""
    lives = {agent: live[info.session_id, agent].state for agent in info.agents if (info.session_id, agent) in live}
    found = [*lives.values()]
    for agent in info.agents.keys() - lives.keys() if ends is not None else ():
        facts = ends[agent].facts if ends is not None and agent in ends else ActivityFacts()
        found.append(activity_of(replace_fields(facts, owned=info.owner is not None)))
    known = [] if ends is None else list(ends.values())
    return ListLine(
        info=info,
        state=min(found, key=list(Activity).index, default=None if ends is None else Activity.STORED),
        alive=bool(lives),
        question=next((str(one.reason) for end in known for one in end.questions), ""),
        failed=", ".join(dict.fromkeys(end.failed for end in known if end.failed)),
    )


def ordered(infos: Sequence[SessionInfo], sort: str) -> Sequence[SessionInfo]:
    """The sessions by last change, by name, by length, or by beginning."""
    match sort:
        case "id":
            return sorted(infos, key=lambda info: info.session_id)
        case "length":
            return sorted(infos, key=lambda info: -sum(info.agents.values()))
        case "began":
            return sorted(infos, key=lambda info: -info.created_at)
        case _:
            return sorted(infos, key=lambda info: -info.updated_at)
