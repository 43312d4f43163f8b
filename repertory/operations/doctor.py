"""Examining every session of a place, and moving damaged data aside so that the rest opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.sessions.reading import in_thread_when_many
from repertory.backends.ports import Corruption, Inspection, SalvagedRows
from repertory.core.journal.examination import Examined, examine, repaired
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import verify
from repertory.core.journal.sealing import LOCKED, plain_of
from repertory.errors import Corrupt, Invalid, RepertoryError
from repertory.operations.progress import OnProgress, OperationProgress
from repertory.operations.reading import owned

if TYPE_CHECKING:
    from repertory.backends.ports import SessionInfo, SessionStore, StoreRepair
    from repertory.core.journal.rows import Row
    from repertory.operations.reading import RecordStamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The repair of a damaged session."""

    moved_to: str
    """The place of all of the session's former data, unchanged."""
    kept: Mapping[str, int]
    """Agent id to the last sequence number that is still there. Empty when no row was sound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHealth:
    """The health of one session."""

    session_id: str
    problems: Sequence[str]
    """The problems found; empty for a sound session."""
    repair: Repair | None = None
    not_repaired: str | None = None
    """The reason why the repair failed, if it did."""
    locked: str | None = None
    """The reason why nobody could read it, if it is encrypted: then its rows were proved by their chain alone."""

    @property
    def ok(self) -> bool:
        """True if the session is sound now."""
        return not self.problems or self.repair is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """The outcome of examining a place."""

    place: str
    sessions: Sequence[SessionHealth]
    damages: Sequence[Corruption]
    """Problems of the place as a whole."""
    strays: Sequence[str]
    """Files or objects among the sessions that belong to none. They do no harm and are left alone."""
    rebuilt_from: str | None = None
    """The place of the old data, unchanged, if the place was rebuilt. A session that lost rows by it has a snapshot
    `repaired`; a session without any sound row is only in there.
    """

    @property
    def ok(self) -> bool:
        """True if everything is sound now."""
        return (not self.damages or self.rebuilt_from is not None) and all(session.ok for session in self.sessions)


async def examine_location(
    store: SessionStore, made: RecordStamp, *, repair: bool, progress: OnProgress = None
) -> DoctorReport:
    """Examine every session; with `repair`, move damaged data aside."""
    part = store.capabilities.repair
    inspection = Inspection() if part is None or part.inspect is None else await part.inspect()
    damages = list(inspection.damages)
    rebuilt_from: str | None = None
    sessions: list[SessionHealth] = []
    if damages and repair and part is not None and part.rebuild is not None:
        # Rebuilding makes the place anew, so a session that was lost by it is known by this listing alone.
        before = await _names(store)
        try:
            rebuilt_from = await part.rebuild(partial(_sound, made))
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
    for number, info in enumerate(infos, 1):
        problems = await _problems(store, info)
        if problems and info.owner is not None:  # It may have been changed while it was read.
            problems = await _problems(store, info)
        # The inspection is older than a rebuilding, which has left nothing sick.
        if rebuilt_from is None and info.session_id in inspection.sick and not problems:
            problems = [inspection.sick[info.session_id]]
        health = SessionHealth(session_id=info.session_id, problems=problems, locked=await _locked(store, info))
        sessions.append(await _repaired(store, health, made) if repair and problems else health)
        if progress is not None:
            progress(OperationProgress(number, len(infos), "sessions"))
    return DoctorReport(
        place=store.name,
        sessions=sessions,
        damages=damages,
        strays=inspection.strays,
        rebuilt_from=rebuilt_from,
    )


async def _names(store: SessionStore) -> set[str]:
    try:
        return {info.session_id for info in await store.sessions()}
    except Corrupt:
        return set()


def _lost(session_id: str, moved_to: str) -> SessionHealth:
    """A session without any sound row, which is only in the data moved aside."""
    repair = Repair(moved_to=moved_to, kept={})
    return SessionHealth(session_id=session_id, problems=["nothing of it can be read"], repair=repair)


async def _problems(store: SessionStore, info: SessionInfo) -> list[str]:
    problems: list[str] = []
    part = store.capabilities.repair
    for agent_id in sorted(info.agents):
        try:
            opened = await store.load(info.session_id, agent_id)  # first: an owner may add to it meanwhile
            rows = await store.load(info.session_id, agent_id, whole=True)
        except (Corrupt, Invalid) as error:  # damage may leave an invalid name
            problems.append(str(error))
            continue
        forgotten = part is not None and part.forgets_the_oldest and bool(rows) and rows[0].seq > 1
        problem_of = _problem_of_the_rest if forgotten else _problem
        problem = await in_thread_when_many(partial(problem_of, agent_id, rows, opened, info.agents[agent_id]), rows)
        problems += [] if problem is None else [problem]
    try:
        damages = () if part is None else await part.examine(info.session_id)
        found = [f"{damage.where}: {damage.what}" for damage in damages]
    except Corrupt as error:
        found = [str(error)]
    problems += [each for each in found if not any(each.partition(": ")[0] in problem for problem in problems)]
    if info.damaged and not problems and part is not None:
        try:
            salvage = await part.salvage(info.session_id)
        except Invalid as error:
            return [str(error)]
        problems = [f"{damage.where}: {damage.what}" for damage in salvage.damages]
    return problems or (["some of it cannot be read"] if info.damaged else [])


async def _locked(store: SessionStore, info: SessionInfo) -> str | None:
    """The reason why nobody can read a session, if it is encrypted; None if somebody can."""
    for agent_id in info.agents:
        try:
            rows = await store.load(info.session_id, agent_id)
            for row in rows[-1:]:
                _ = row.erased or plain_of(row.version, row.body)
        except LOCKED as error:
            return str(error)
        except (Corrupt, Invalid):  # `_problems` says so.
            continue
    return None


def _problem(agent_id: str, rows: Sequence[Row], opened: Sequence[Row], last_seq: int) -> str | None:
    found = examine(agent_id, rows)
    if found.fault is not None:
        return f"agent {agent_id}: {found.fault}"
    if found.last_seq < last_seq:
        return f"agent {agent_id}: the listing says {last_seq} rows, there are {found.last_seq}"
    if found.locked is not None:
        return None
    try:
        amounts_to = restore(opened).fold.image()
    except Corrupt as error:
        return f"agent {agent_id}: it cannot be opened: {error}"
    behind, first = rows[: amounts_to.last_seq], opened[0].seq if opened else 1
    if restore(behind).fold.image().since(first) != amounts_to.since(first):
        return f"agent {agent_id}: opening it shows something else than its rows say"
    return None


def _problem_of_the_rest(agent_id: str, rows: Sequence[Row], opened: Sequence[Row], last_seq: int) -> str | None:
    """`_problem` for a journal whose beginning has expired."""
    try:
        verify(rows)
        with suppress(*LOCKED):
            restore(opened)
    except Corrupt as error:
        return f"agent {agent_id}: it cannot be opened: {error}"
    if rows[-1].seq < last_seq:
        return f"agent {agent_id}: the listing says {last_seq} rows, there are {rows[-1].seq}"
    return None


async def _repaired(store: SessionStore, health: SessionHealth, made: RecordStamp) -> SessionHealth:
    part = store.capabilities.repair
    if part is None:
        return replace(health, not_repaired="nothing can be set aside in this store")
    try:
        try:
            async with owned(store, health.session_id, takeover=False):  # No other owner adds rows meanwhile.
                return await _set_aside(store, part, health, made)
        except Corrupt:  # Its ownership cannot be read.
            return await _set_aside(store, part, health, made)
    except RepertoryError as error:
        # One session that cannot be repaired must not end the examination of the others.
        return replace(health, not_repaired=str(error))


async def _set_aside(store: SessionStore, part: StoreRepair, health: SessionHealth, made: RecordStamp) -> SessionHealth:
    salvage = await part.salvage(health.session_id)
    if health.locked is None:
        made = await made.for_session(store, health.session_id)
    examined, keep = await in_thread_when_many(partial(_examined, salvage, health.problems[0], made), salvage.rows)
    moved_to = await part.set_aside(health.session_id, keep)
    last_seqs = {each.agent_id: each.usable[-1].seq for each in examined if each.usable}
    found = [f"{damage.where}: {damage.what}" for damage in salvage.damages]
    return replace(
        health,
        problems=[*health.problems, *(what for what in found if what not in health.problems)],
        repair=Repair(moved_to=moved_to, kept=last_seqs),
    )


def _sound(made: RecordStamp, salvage: SalvagedRows) -> Sequence[Row]:
    """The rows to keep of a session, when the place is damaged as a whole and the session may be sound."""
    why = salvage.damages[0].what if salvage.damages else None
    return _examined(salvage, why, made)[1]


def _examined(salvage: SalvagedRows, why: str | None, made: RecordStamp) -> tuple[list[Examined], list[Row]]:
    """The examination of each agent, and the rows to keep. `why`: a problem of the session as a whole, if any."""
    by_agent: dict[str, list[Row]] = {}
    for row in salvage.rows:
        by_agent.setdefault(row.agent_id, []).append(row)
    examined = [examine(agent_id, rows) for agent_id, rows in by_agent.items()]
    goes_on = partial(repaired, at=made.at, entropy=made.entropy, seal=made.seal)
    return examined, [row for each in examined for row in goes_on(each, why)]
