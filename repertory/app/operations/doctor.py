"""Examining every session of a place, and setting aside what is damaged so that the rest opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.operations.reading import in_thread_when_many, owned
from repertory.backends.ports import Corruption, SalvagedRows
from repertory.core.journal.examination import Examined, examine, repaired
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import verify
from repertory.errors import Corrupt, Invalid, RepertoryError

if TYPE_CHECKING:
    from repertory.app.operations.reading import RecordStamp
    from repertory.backends.ports import SessionInfo, SessionStore
    from repertory.core.journal.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What was done about a damaged session."""

    moved_to: str
    """Where everything lies now that was stored of it, as it was."""
    kept: Mapping[str, int]
    """Agent id to the last sequence number that is still there. Empty when nothing was usable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHealth:
    """One session."""

    session_id: str
    problems: Sequence[str]
    """What is wrong; nothing in a sound one."""
    repair: Repair | None = None
    not_repaired: str | None = None
    """Why it was not, when it should have been."""

    @property
    def ok(self) -> bool:
        """Whether it is sound now."""
        return not self.problems or self.repair is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """What was found in a place."""

    place: str
    sessions: Sequence[SessionHealth]
    damages: Sequence[Corruption]
    """What is wrong with the place as a whole."""
    strays: Sequence[str]
    """What lies among the sessions and belongs to none. It does no harm and is left alone."""
    rebuilt_from: str | None = None
    """What the place was made anew of, which lies there now as it was. A session that is known to end earlier for it
    has a snapshot `repaired`; one of which nothing was sound is in there alone.
    """

    @property
    def ok(self) -> bool:
        """Whether everything is sound now."""
        return (not self.damages or self.rebuilt_from is not None) and all(session.ok for session in self.sessions)


async def examine_place(store: SessionStore, made: RecordStamp, *, repair: bool) -> DoctorReport:
    """Examine everything; with `repair`, set aside what is damaged."""
    inspection = await store.inspect()
    damages = list(inspection.damages)
    rebuilt_from: str | None = None
    sessions: list[SessionHealth] = []
    if damages and repair and store.capabilities.rebuilds:
        before = await _names(store)
        try:
            rebuilt_from = await store.rebuild(partial(_sound, made))
        except Corrupt as error:
            damages.append(Corruption(where=store.name, what=str(error)))
        else:
            sessions += [_lost(name, rebuilt_from) for name in sorted(before - await _names(store))]
    try:
        infos = await store.sessions()
    except Corrupt as error:
        infos = ()
        if not damages:
            damages.append(Corruption(where=store.name, what=str(error)))
    for info in infos:
        problems = await _problems(store, info)
        if problems and info.owner is not None:  # It may have been changed while it was read.
            problems = await _problems(store, info)
        if rebuilt_from is None and info.session_id in inspection.sick and not problems:
            problems = [inspection.sick[info.session_id]]
        health = SessionHealth(session_id=info.session_id, problems=problems)
        sessions.append(await _repaired(store, health, made) if repair and problems else health)
    return DoctorReport(
        place=store.name,
        sessions=sessions,
        damages=damages,
        strays=inspection.strays,
        rebuilt_from=rebuilt_from,
    )


async def _names(store: SessionStore) -> set[str]:
    """The sessions that can be listed."""
    try:
        return {info.session_id for info in await store.sessions()}
    except Corrupt:
        return set()


def _lost(session_id: str, moved_to: str) -> SessionHealth:
    """A session of which nothing can be used, so that it is only in what was moved aside."""
    repair = Repair(moved_to=moved_to, kept={})
    return SessionHealth(session_id=session_id, problems=["nothing of it can be read"], repair=repair)


async def _problems(store: SessionStore, info: SessionInfo) -> list[str]:
    """What is wrong with a session, by what opening and reading it say."""
    problems: list[str] = []
    for agent_id in sorted(info.agents):
        try:
            opened = await store.load(info.session_id, agent_id)  # first: an owner may add to it meanwhile
            rows = await store.load(info.session_id, agent_id, whole=True)
        except (Corrupt, Invalid) as error:  # damage may leave a name that none can have
            problems.append(str(error))
            continue
        forgotten = store.capabilities.forgets_the_oldest and bool(rows) and rows[0].seq > 1
        problem_of = _problem_of_the_rest if forgotten else _problem
        problem = await in_thread_when_many(
            partial(problem_of, agent_id, rows, opened, info.agents[agent_id]), len(rows)
        )
        problems += [] if problem is None else [problem]
    found = [f"{damage.where}: {damage.what}" for damage in await store.examine(info.session_id)]
    problems += [each for each in found if not any(each.partition(": ")[0] in problem for problem in problems)]
    if info.damaged and not problems and store.capabilities.quarantines:
        try:
            salvage = await store.salvage(info.session_id)
        except Invalid as error:
            return [str(error)]
        problems = [f"{damage.where}: {damage.what}" for damage in salvage.damages]
    return problems or (["some of it cannot be read"] if info.damaged else [])


def _problem(agent_id: str, rows: Sequence[Row], opened: Sequence[Row], last_seq: int) -> str | None:
    """What is wrong with a journal that could be read."""
    found = examine(agent_id, rows)
    if found.fault is not None:
        return f"agent {agent_id}: {found.fault}"
    if found.last_seq < last_seq:
        return f"agent {agent_id}: the listing says {last_seq} rows, there are {found.last_seq}"
    try:
        amounts_to = restore(opened).fold.image()
    except Corrupt as error:
        return f"agent {agent_id}: it cannot be opened: {error}"
    behind, first = rows[: amounts_to.last_seq], opened[0].seq if opened else 1
    if restore(behind).fold.image().since(first) != amounts_to.since(first):
        return f"agent {agent_id}: opening it shows something else than its rows say"
    return None


def _problem_of_the_rest(agent_id: str, rows: Sequence[Row], opened: Sequence[Row], last_seq: int) -> str | None:
    """The same of a journal whose beginning has expired."""
    try:
        verify(rows)
        restore(opened)
    except Corrupt as error:
        return f"agent {agent_id}: it cannot be opened: {error}"
    if rows[-1].seq < last_seq:
        return f"agent {agent_id}: the listing says {last_seq} rows, there are {rows[-1].seq}"
    return None


async def _repaired(store: SessionStore, health: SessionHealth, made: RecordStamp) -> SessionHealth:
    """What became of a damaged session."""
    if not store.capabilities.quarantines:
        return replace(health, not_repaired="nothing can be set aside in this store")
    try:
        try:
            async with owned(store, health.session_id, takeover=False):  # Nobody adds to what is being moved.
                return await _set_aside(store, health, made)
        except Corrupt:  # Nobody can own it.
            return await _set_aside(store, health, made)
    except RepertoryError as error:
        return replace(health, not_repaired=str(error))


async def _set_aside(store: SessionStore, health: SessionHealth, made: RecordStamp) -> SessionHealth:
    salvage = await store.salvage(health.session_id)
    examined, keep = await in_thread_when_many(partial(_kept, salvage, health.problems[0], made), len(salvage.rows))
    moved_to = await store.set_aside(health.session_id, keep)
    kept = {each.agent_id: each.usable[-1].seq for each in examined if each.usable}
    found = [f"{damage.where}: {damage.what}" for damage in salvage.damages]
    return replace(
        health,
        problems=[*health.problems, *(what for what in found if what not in health.problems)],
        repair=Repair(moved_to=moved_to, kept=kept),
    )


def _sound(made: RecordStamp, salvage: SalvagedRows) -> Sequence[Row]:
    """The rows of a session to go on with, when only some sessions of a damaged place are damaged themselves."""
    why = salvage.damages[0].what if salvage.damages else None
    return _kept(salvage, why, made)[1]


def _kept(salvage: SalvagedRows, why: str | None, made: RecordStamp) -> tuple[list[Examined], list[Row]]:
    """What was found of each agent, and the rows to go on with. `why` says that something is wrong in any case."""
    by_agent: dict[str, list[Row]] = {}
    for row in salvage.rows:
        by_agent.setdefault(row.agent_id, []).append(row)
    examined = [examine(agent_id, rows) for agent_id, rows in by_agent.items()]
    return examined, [row for each in examined for row in repaired(each, why, at=made.at, entropy=made.entropy)]
