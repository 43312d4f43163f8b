"""The reports of a runtime about itself: its totals, and the report of its drain."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from repertory.actors.writer import NotStored
from repertory.app.host.admission import AdmissionQueue
from repertory.app.host.host import Host
from repertory.backends.ports import NotPublished
from repertory.core.memory.progress import FlushReport
from repertory.runtime.drain import ActorsReport
from repertory.runtime.lifecycle import SystemStats


@dataclass(frozen=True, kw_only=True)
class RuntimeStats(SystemStats):
    """The sums over all actors and sessions of a runtime."""

    records_waiting: int
    """Records that were accepted and are not stored yet."""
    sessions_behind: int
    """Agents in sessions whose store does not take their records at the moment."""
    not_published: int = 0
    """Agents whose snapshots or documents lack their last records, since they cannot be written."""
    turns: int = 0
    """Turns of agents that have ended, failed ones included."""
    takeovers: int = 0
    """Sessions that it has taken over from owners that had not given them up, since they were ended or silent."""
    room: int = 0
    """Sessions that may run turns at the same time; 0 without `peers`, and for a gateway."""
    busy: int = 0
    """Sessions that run turns, and calls that wait for a place: more than `room` when it is full."""


def runtime_stats(host: Host, admission: AdmissionQueue | None) -> RuntimeStats:
    """The counters of actors and sessions, the sums of what waits to be stored, and what the doorman has admitted."""
    actors = host.system.stats()
    counters = {field.name: getattr(actors, field.name) for field in fields(SystemStats)}
    counts = [(buffer.count, buffer.error is not None) for buffer in host.buffers]
    waiting, behind = sum(count for count, _ in counts), sum(late for _, late in counts)
    room, busy = (0, 0) if admission is None else (admission.room, admission.busy)
    return RuntimeStats(
        **counters,
        records_waiting=waiting,
        sessions_behind=behind,
        not_published=len(host.not_published()),
        turns=host.counts.turns,
        takeovers=host.counts.takeovers,
        room=room,
        busy=busy,
    )


@dataclass(frozen=True, kw_only=True)
class DrainReport(ActorsReport):
    """The report of a drain: its actors, and the records and memories that were not stored.

    Args:
        reason: The reason for which the drain began.
        phases: A report of each phase, in order.
        duration_s: Seconds of the whole drain.
        cut_short: True if a second signal cut it short.
        dead_letters: Messages that no actor took, by reason.
        fatal: The error that ended the actors; None for none.
    """

    not_stored: tuple[NotStored, ...] = ()
    """Records that the store did not take until the end, by session and agent, and answered turns
    (`durability="relaxed"`) that were lost without an error for any call."""

    not_published: tuple[NotPublished, ...] = ()
    """Agents whose snapshots or documents lack their last records, since they could not be written. Nothing is lost:
    the next owner of the session writes them from its journal."""

    memory: FlushReport = field(default_factory=lambda: FlushReport(stores={}))
    """The flush of each memory store: what it stored of active sessions, and what not. The rest is in their journals,
    and is tried again when the sessions are open again."""

    @property
    def ok(self) -> bool:
        """True if every phase completed, no actor was lost for good, and every record is stored."""
        return super().ok and not self.not_stored


def drain_report(actors: ActorsReport, host: Host, memory: FlushReport) -> DrainReport:
    """The report of the actors' drain, with what was not stored, or not written for other programs."""
    known = {each.name: getattr(actors, each.name) for each in fields(ActorsReport)}
    not_stored, not_published = host.buffers.not_stored(), host.not_published()
    return DrainReport(**known, not_stored=not_stored, not_published=not_published, memory=memory)
