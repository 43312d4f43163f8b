"""The ends of a stored session's agents: what they wait for, and what went wrong last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from repertory.app.sessions.reading import in_thread_when_many
from repertory.core.journal.codec import decode
from repertory.core.journal.deferrals import has_untold
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import Interrupted
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind
from repertory.core.messages import tool_results, tool_uses
from repertory.core.orchestration.calls import run_questions, waiting
from repertory.core.orchestration.journals import orchestrator_in
from repertory.core.orchestration.run import Run
from repertory.core.run_results import Status
from repertory.core.turns.activity import ActivityFacts, agent_facts
from repertory.operations.reading import end_of, sound_ends_of

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.interrupts import Interrupt
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.rows import Row

_NAMES_MAX = 20
_INTERRUPT = RecordKind.INTERRUPT


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEnd:
    """The end of an agent's journal, or of a graph's or swarm's."""

    facts: ActivityFacts
    """The facts that the journal has of its activity: also a turn that is under way in its owner's process is cut short
    there.
    """
    questions: Sequence[Interrupt] = ()
    """The open questions to a person, in the order asked."""
    asked_at: Mapping[str, float] = field(default_factory=dict[str, float])
    """The times in epoch seconds at which they were asked, by their ids, where the place says."""
    failed: str = ""
    """The tools of the last turn, or the nodes of the last run, that failed, by name; empty for none."""


async def ends_of(store: SessionStore, session_id: str) -> Mapping[str, StoredEnd]:
    """See `Sessions.ends`."""
    found = await sound_ends_of(store, session_id)
    return {
        agent_id: await in_thread_when_many(partial(stored_end, session_id, agent_id, rows), rows)
        for agent_id, rows in found.rows.items()
    }


async def last_run(store: SessionStore, session_id: str, agent_id: str) -> Run | None:
    """See `Sessions.run`."""
    rows = await end_of(store, session_id, agent_id)
    fold = (await in_thread_when_many(partial(restore, rows, session_id=session_id), rows)).fold
    if orchestrator_in(agent_id) is None or not fold.run:
        return None
    return Run.of(fold.nodes.values(), fold.frontier, fold.run)


def stored_end(session_id: str, agent_id: str, rows: Sequence[Row]) -> StoredEnd:
    """The end of an agent's journal, or of a run's. `rows`: those that opening it reads."""
    fold = restore(rows, session_id=session_id).fold
    if orchestrator_in(agent_id) is not None:
        return _end_of_run(fold, session_id)
    pending = pending_tools_of(fold)
    facts, failed = agent_facts(pending, fold.deferred, untold=has_untold(fold)), _failed_tools(fold)
    questions = pending.waiting_in(session_id)
    return StoredEnd(facts=facts, questions=questions, asked_at=_times(rows) if questions else {}, failed=failed)


def _times(rows: Sequence[Row]) -> dict[str, float]:
    """The times of the questions in these rows; of one that was asked again the last."""
    records = (decode(row.kind, row.version, row.body) for row in rows if row.kind == _INTERRUPT and not row.erased)
    return {one.id: record.at for record in records if isinstance(record, Interrupted) for one in record.interrupts}


def _end_of_run(fold: Fold, session_id: str) -> StoredEnd:
    run = Run.of(fold.nodes.values(), fold.frontier, fold.run)
    questions = run_questions(run, session_id)
    times = {one.id: fold.nodes[node].at for node, asked in waiting(run).items() for one in asked}
    failed = ", ".join(run.with_status(Status.FAILED)[:_NAMES_MAX]) or (run.reason or "")
    facts = ActivityFacts(asks=bool(questions), cut_short=not run.over)
    return StoredEnd(facts=facts, questions=questions, asked_at=times, failed=failed)


def _failed_tools(fold: Fold) -> str:
    """The tools of the last turn that failed, as far as its messages are shown."""
    names: dict[str, str] = {}
    failed: list[str] = []
    messages = [message for _, message in fold.shown]
    prompts = (each for each, one in enumerate(messages) if one["role"] == "user" and not any(tool_results(one)))
    for message in messages[max(prompts, default=0) :]:
        names.update((use["toolUseId"], use["name"]) for use in tool_uses(message))
        for result in tool_results(message):
            if result.get("status") == "error":
                failed.append(names.get(result["toolUseId"], "a tool"))
    failed += [names.get(use_id, "a tool") for use_id, each in fold.finished_tools.items() if each["status"] == "error"]
    return ", ".join(list(dict.fromkeys(failed))[:_NAMES_MAX])
