"""The open questions to a person of many sessions, page by page.

A question stands at the end of its session's journal. SQLite and PostgreSQL know by an index in which journals a
question is the last word, and others give every session. So a page reads the lines of sessions in a range of ids, and
then the ends of a few of them, the last changed ones first or last.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple, cast

import anyio

from repertory.app.sessions.reading import in_thread_when_many, info_of
from repertory.backends.ports import IdPage, call_queue_of
from repertory.core.interrupts import Interrupt, is_passed_on
from repertory.core.journal.sealing import LOCKED
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.tenants import StoredRange, public_id
from repertory.errors import Corrupt, Gone, Invalid, RepertoryError
from repertory.operations.ends import stored_end

if TYPE_CHECKING:
    from repertory.backends.peer_ports import QueuedCall
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.messages import Json

QUESTIONS_MAX = 1000
"""The most questions that a caller may want on a page."""
_RANGE_SESSIONS = 1000
"""The sessions among which one page is chosen."""
_ENDS_READ_MAX = 400
"""The sessions of which one page reads the ends."""
_ENDS_AT_ONCE, _ENDS_A_STEP = 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question to a person that has no answer."""

    session_id: str
    agent_id: str
    """The journal in which it stands: the agent's id, or `multi_agent.NAME` of a graph or swarm."""
    interrupt: Interrupt
    """The question, with its tool and input, its end, and the people who may answer."""
    asked_at: float
    """The time in epoch seconds at which it was asked; where the place does not say, that of the last change."""
    answer_posted: bool = False
    """True if an answer to it is posted, and waits for a process that has the agent."""

    @property
    def agent(self) -> str:
        """The name of the agent, graph or swarm that takes the answer, as `post` has it."""
        return orchestrator_in(self.agent_id) or self.agent_id


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionPage:
    """Some of the open questions. Those of one session stand together."""

    questions: Sequence[OpenQuestion]
    next: str | None
    """The `after` of the next page; None behind the last one. Also a page without a question may have one."""
    unreadable: Mapping[str, str] = field(default_factory=dict[str, str])
    """The reasons why sessions could not be read, by session."""


class QuestionFilter(NamedTuple):
    """The questions that are wanted, and their order."""

    agent: str | None
    tenant: str | None
    """The tenant; empty for the sessions of none, None for all."""
    until: float
    """The questions asked until this time, in epoch seconds."""
    since: float
    """The questions asked since this time, in epoch seconds."""
    newest_first: bool

    def lets_in(self, info: SessionInfo) -> bool:
        """True if the session may have such questions, as far as its line says: it changed when it asked."""
        own = self.tenant is None or public_id(self.tenant, info.session_id) is not None
        agents = info.damaged or any(map(self.is_to, info.agents))
        return own and agents and not info.erased and info.updated_at >= self.since

    def is_to(self, agent_id: str) -> bool:
        """True for the journal of the agent that is wanted, or of the graph or swarm."""
        return self.agent is None or self.agent in (agent_id, orchestrator_in(agent_id))

    def is_behind(self, rank: tuple[float, str], last: tuple[float, str]) -> bool:
        """True if a session comes after the last one that was read. Both by their last change and id."""
        return rank < last if self.newest_first else rank > last


class QuestionCursor(NamedTuple):
    """The end of a page."""

    begins: str
    """The id behind which the range of sessions begins."""
    last: tuple[float, str] | None
    """The last session of the range that was read, by its last change and its id; None: none was."""

    @classmethod
    def read(cls, text: str) -> QuestionCursor:
        """Read a cursor of an earlier page. Errors: `Invalid`."""
        try:
            begins, last = cast("tuple[object, object]", json.loads(urlsafe_b64decode(text))) if text else ("", None)
            at, session_id = (0.0, "") if last is None else cast("tuple[object, object]", last)
            if isinstance(begins, str) and isinstance(at, int | float) and isinstance(session_id, str):
                return cls(begins, None if last is None else (at, session_id))
        except (ValueError, TypeError, RecursionError):
            pass
        raise Invalid("after is the cursor of an earlier page", got=str(text)[:200])

    @property
    def text(self) -> str:
        return urlsafe_b64encode(json.dumps([self.begins, self.last]).encode()).decode()


async def open_questions(store: SessionStore, wanted: QuestionFilter, after: str, limit: int) -> QuestionPage:
    """See `Sessions.interrupts`."""
    if not isinstance(cast("object", limit), int) or not 1 <= limit <= QUESTIONS_MAX:
        raise Invalid(f"a page has 1 to {QUESTIONS_MAX} questions", got=limit)
    cursor = QuestionCursor.read(after)
    infos, behind = await _range_of(store, wanted.tenant, cursor.begins)
    ordered = sorted(filter(wanted.lets_in, infos), key=_rank, reverse=wanted.newest_first)
    if (last := cursor.last) is not None:
        ordered = [one for one in ordered if wanted.is_behind(_rank(one), last)]
    found, unreadable, read = list[OpenQuestion](), dict[str, str](), 0
    while read < min(len(ordered), _ENDS_READ_MAX) and len(found) < limit:
        step = ordered[read : min(read + _ENDS_A_STEP, _ENDS_READ_MAX)]
        for info, questions in zip(step, await _read_each(store, step, wanted), strict=True):
            read += 1
            if isinstance(questions, str):
                unreadable[info.session_id] = questions
            else:
                found += questions
            if len(found) >= limit:
                break
    if read < len(ordered):
        follows = QuestionCursor(cursor.begins, _rank(ordered[read - 1]))
    else:
        follows = None if behind is None else QuestionCursor(behind, None)
    return QuestionPage(questions=found, next=None if follows is None else follows.text, unreadable=unreadable)


async def posted_answers(store: SessionStore, session_id: str) -> Mapping[str, tuple[QueuedCall, Json]]:
    """The posted answers of a session that wait for their agent, each with its call, by the ids of the questions."""
    box = call_queue_of(store)
    if box is None:
        return {}
    found: dict[str, tuple[QueuedCall, Json]] = {}
    for call in await box.calls(session_id):
        match call.call.get("prompt"):
            case [{"interruptResponse": _}, *_] as blocks if not call.parked:
                answers = cast("Sequence[Mapping[str, Mapping[str, Json]]]", blocks)
                for answer in (block["interruptResponse"] for block in answers):
                    # The oldest is made first, so its answer is the one that counts.
                    found.setdefault(str(answer["interruptId"]), (call, answer["response"]))
            case _:
                continue
    return found


async def questions_of_session(store: SessionStore, session_id: str) -> Sequence[OpenQuestion]:
    """See `Sessions.interrupts_in`."""
    return await _of_session(store, await info_of(store, session_id), QuestionFilter(None, None, inf, -inf, False))


def _rank(info: SessionInfo) -> tuple[float, str]:
    return info.updated_at, info.session_id


async def _range_of(store: SessionStore, tenant: str | None, begins: str) -> tuple[list[SessionInfo], str | None]:
    """The sessions of the tenant behind an id, and the last of them if there may be more."""
    among, at = StoredRange(tenant or ""), begins
    infos: list[SessionInfo] = []
    while True:
        room = _RANGE_SESSIONS - len(infos)
        lines = await store.sessions(page=IdPage(among.prefix, at, room, asking=True))
        infos += [one for one in lines if tenant is None or public_id(tenant, one.session_id) is not None]
        if len(lines) < room:
            return infos, None
        if len(infos) == _RANGE_SESSIONS:
            # An id of the tenant's own: a cursor must not tell it the names of others.
            return infos, infos[-1].session_id
        at = lines[-1].session_id if tenant is None else among.behind_others(lines[-1].session_id)


async def _read_each(
    store: SessionStore, infos: Sequence[SessionInfo], wanted: QuestionFilter
) -> list[list[OpenQuestion] | str]:
    """The questions of each session, a few at once, or the reason why it cannot be read. Errors: those of the store."""
    outcomes: list[list[OpenQuestion] | str | RepertoryError] = [[] for _ in infos]
    numbers = iter(range(len(infos)))

    async def work() -> None:
        for number in numbers:
            try:
                outcomes[number] = await _of_session(store, infos[number], wanted)
            except (Corrupt, Invalid, *LOCKED) as error:  # Damage may leave an invalid name.
                outcomes[number] = str(error)
            except Gone:  # Deleted meanwhile.
                continue
            except RepertoryError as error:  # Raised below, outside of the group, which would wrap it.
                outcomes[number] = error

    async with anyio.create_task_group() as group:
        for _ in range(_ENDS_AT_ONCE):
            group.start_soon(work)
    for outcome in outcomes:
        if isinstance(outcome, RepertoryError):
            raise outcome
    return cast("list[list[OpenQuestion] | str]", outcomes)


async def _of_session(store: SessionStore, info: SessionInfo, wanted: QuestionFilter) -> list[OpenQuestion]:
    found: list[OpenQuestion] = []
    for agent_id in sorted(info.agents):
        if wanted.is_to(agent_id):
            rows = await store.load(info.session_id, agent_id)
            end = await in_thread_when_many(partial(stored_end, info.session_id, agent_id, rows), rows)
            found += [
                OpenQuestion(
                    session_id=info.session_id,
                    agent_id=agent_id,
                    interrupt=one,
                    asked_at=end.asked_at.get(one.id, info.updated_at),
                )
                for one in end.questions
            ]
    # What a node, or an agent that is a tool, asks stands in its own journal and in that of its caller, which alone
    # takes the answer.
    several = found if len(info.agents) > 1 else ()
    inner = {one.interrupt.id for one in several for other in several if is_passed_on(one.interrupt, other.interrupt)}
    outer = [one for one in found if one.interrupt.id not in inner]
    if outer:
        posted = await posted_answers(store, info.session_id)
        outer = [replace(one, answer_posted=True) if one.interrupt.id in posted else one for one in outer]
    if info.damaged and not outer:
        raise Corrupt("some of it is damaged")
    return sorted((one for one in outer if wanted.since <= one.asked_at <= wanted.until), key=lambda one: one.asked_at)
