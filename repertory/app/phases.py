"""The phases in which a host shuts down, in order, and what each may take of the time.

refuse   take no more turns
turns    let turns in flight finish; those that do not are cancelled, which leaves a valid history
memory   extract and flush what memory stores have to take in
commit   stop the sessions: every record is committed, every lease released
close    close stores and models
"""

from __future__ import annotations

from repertory.runtime.drain import Phase

REFUSE, TURNS, MEMORY, COMMIT, CLOSE = "refuse", "turns", "memory", "commit", "close"


def drain_phases(total_s: float) -> tuple[Phase, ...]:
    """The phases within `total_s` seconds. Committing and closing have their share whatever the turns take."""
    return (
        Phase(name=REFUSE, timeout_s=total_s * 0.04),
        Phase(name=TURNS, timeout_s=total_s * 0.60),
        Phase(name=MEMORY, timeout_s=total_s * 0.12),
        Phase(name=COMMIT, timeout_s=total_s * 0.20, reserve_s=total_s * 0.16, stops_actors=True),
        Phase(name=CLOSE, timeout_s=total_s * 0.08, reserve_s=total_s * 0.04),
    )
