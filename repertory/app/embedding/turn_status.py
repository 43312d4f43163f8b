"""The status of a turn, for callers who want to know of it without going on with it.

A session that is not active here is read from its store, and not opened: whoever opens it has to do its pending
work.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from repertory.actors.persister import Commit, ReadMessages
from repertory.app.sessions.reading import in_thread_when_many, rows_reaching
from repertory.app.sessions.sessions import WakingLocation
from repertory.backends.ports import pending_work_of
from repertory.core.interrupts import asked_about
from repertory.core.journal.restore import restore
from repertory.core.memory.progress import messages_in_rows
from repertory.core.turn_log import BEFORE_MAX
from repertory.core.turns.turn_status import first_message, turn_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.app.host.host import Host
    from repertory.app.host.session import ActiveSession, SessionSpec
    from repertory.core.journal.image import Image
    from repertory.core.journal.rows import Row
    from repertory.core.memory.progress import JournaledMessage
    from repertory.core.turns.turn_status import AskTurn, TurnStatus


async def status_of_active(host: Host, session: ActiveSession, spec: SessionSpec, asked: AskTurn) -> TurnStatus | None:
    """The turn that is asked for, of a session that is active here; None when it is not known."""
    image, read_model = await session.image(), session.read_model
    carried = first_message(image, asked.token)
    if carried is None:
        return None
    token, first = carried
    running = read_model.turn
    joined = token in image.tokens
    runs = running is not None and (running.token == token or (joined and running.token in image.tokens))
    cancelled = asked.cancel and runs and joined
    if cancelled:
        session.cancel()
    if asked.stored:
        await session.persister.ask(Commit(seq=image.last_seq), timeout_s=math.inf)
    finished = image.finished_turns.get(token)
    until = None if finished is None else finished.answer_seq
    read = ReadMessages(after=max(first - BEFORE_MAX, 0), until=until)
    entries = await session.persister.ask(read, timeout_s=math.inf)
    pending = finished is None and running is None and await turn_is_pending(host, spec)
    return _in_session(turn_status(image, carried, entries, runs=runs, pending=pending, cancelled=cancelled), spec)


async def status_of_stored(host: Host, spec: SessionSpec, asked: AskTurn) -> TurnStatus | None:
    """The status in a session that is not active here, as its store has it. Errors: `CorruptJournal`, the store's."""
    assert spec.sessions is not None
    ids, store = spec.agent, await host.store_of(spec.sessions)
    rows = await store.load(ids.session_id, ids.agent_id)
    image, messages = await in_thread_when_many(partial(_read, rows, ids.session_id), rows)
    carried = first_message(image, asked.token)
    if carried is None:
        return None
    whole = await rows_reaching(store, rows, carried[1], ids.session_id, ids.agent_id)
    if whole is not rows:
        image, messages = await in_thread_when_many(partial(_read, whole, ids.session_id), whole)
    finished = image.finished_turns.get(carried[0])
    last = math.inf if finished is None else finished.answer_seq
    before = [each for each in messages if each.seq <= last]
    pending = finished is None and await turn_is_pending(host, spec)
    return _in_session(turn_status(image, carried, before, runs=False, pending=pending, cancelled=False), spec)


def _in_session(status: TurnStatus, spec: SessionSpec) -> TurnStatus:
    return replace(status, interrupts=[*asked_about(status.interrupts, (), spec.agent.session_id)])


def _read(rows: Sequence[Row], session_id: str) -> tuple[Image, list[JournaledMessage]]:
    image = restore(rows, session_id=session_id).fold.image()
    after = rows[0].seq if rows and rows[0].seq > 1 else 0  # The first row of a partial journal is there for its link.
    return image, messages_in_rows(rows, after, session_id=session_id)


async def turn_is_pending(host: Host, spec: SessionSpec) -> bool:
    """True if somebody goes on with a turn of the session: it runs elsewhere, or its process was killed."""
    if spec.sessions is None or not isinstance(spec.sessions, WakingLocation):
        return False
    ids = spec.agent
    found = await pending_work_of(await host.store_of(spec.sessions), ids.session_id)
    return any((work.agent_id, work.why, work.parked) == (ids.agent_id, "turn", False) for work in found)
