"""What a runtime counts: its actors, and what waits for its stores."""

from __future__ import annotations

from dataclasses import dataclass, fields

from repertory.actors.backlog import Backlogs
from repertory.runtime.lifecycle import SystemStats


@dataclass(frozen=True, kw_only=True)
class RuntimeStats(SystemStats):
    """The sums over all actors and sessions of a runtime."""

    records_waiting: int
    """Records that were accepted and are not stored yet."""
    sessions_behind: int
    """Agents in sessions whose store does not take their records now."""


def runtime_stats(actors: SystemStats, backlogs: Backlogs) -> RuntimeStats:
    """The counters of the actors, with those of the backlogs."""
    said = {field.name: getattr(actors, field.name) for field in fields(SystemStats)}
    counts = [(backlog.count, backlog.error is not None) for backlog in backlogs]
    waiting, behind = sum(count for count, _ in counts), sum(late for _, late in counts)
    return RuntimeStats(**said, records_waiting=waiting, sessions_behind=behind)
