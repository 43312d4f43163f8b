"""What is wrong with a journal, and how much of it can still be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repertory.core.journal.appender import Appender, Entropy
from repertory.core.journal.records import SnapshotTaken
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import Row, fault, first_link
from repertory.errors import CorruptJournal

REPAIRED_LABEL = "repaired"
"""Of the snapshot that stands where the rest of a journal was set aside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """One agent's journal."""

    agent_id: str
    usable: Sequence[Row]
    """The longest beginning that is proved and can be replayed."""
    last_seq: int
    """The highest sequence number that was found."""
    fault: str | None
    """Why it ends there; None when there is nothing more."""


def examine(agent_id: str, found: Iterable[Row]) -> Examined:
    """Look at rows of one agent, in any order, some of them perhaps twice or another's work."""
    by_seq: dict[int, list[Row]] = {}
    for row in found:
        by_seq.setdefault(row.seq, []).append(row)
    proved, wrong = _proved(agent_id, by_seq)
    usable, misfit = _replayed(proved)
    return Examined(agent_id=agent_id, usable=usable, last_seq=max(by_seq, default=0), fault=misfit or wrong)


def repaired(examined: Examined, why: str | None, *, at: float, entropy: Entropy) -> list[Row]:
    """The rows to go on with: those that can be used, and a snapshot that says what was set aside behind them, and
    why. Nothing when none can be used; without a reason or a fault, the journal as it is.
    """
    rows = list(examined.usable)
    why = examined.fault or why
    if not rows or why is None:
        return rows
    restored = restore(rows)
    appender = Appender(examined.agent_id, restored.fold, restored.link, entropy)
    kept = rows[-1].seq
    said = SnapshotTaken(
        at=at,
        label=REPAIRED_LABEL,
        metadata={"why": why, "kept": kept, "set_aside": max(0, examined.last_seq - kept)},
    )
    return [*rows, appender.append(said)]


def _proved(agent_id: str, by_seq: dict[int, list[Row]]) -> tuple[list[Row], str | None]:
    """Rows that follow each other from the first one on; of several with one number, the one that follows."""
    proved: list[Row] = []
    previous = first_link(agent_id)
    while candidates := by_seq.get(len(proved) + 1):
        seq = len(proved) + 1
        wrong = [fault(row, agent_id, seq, previous) for row in candidates]
        if None not in wrong:
            return proved, f"row {seq}: {wrong[0]}"
        # The erased one wins over one that has its content: somebody wanted that to be gone.
        fitting = [row for row, why in zip(candidates, wrong, strict=True) if why is None]
        proved.append(min(fitting, key=lambda row: len(row.salt)))
        previous = proved[-1].link
    beyond = max(by_seq, default=0)
    return proved, f"row {len(proved) + 1} is missing" if beyond > len(proved) else None


def _replayed(rows: list[Row]) -> tuple[list[Row], str | None]:
    """The longest beginning that amounts to something."""
    why: str | None = None
    while True:
        try:
            restore(rows)
        except CorruptJournal as error:
            seq = error.fields.get("seq")
            end = seq - 1 if isinstance(seq, int) and seq <= len(rows) else len(rows) - 1
            rows, why = rows[:end], why or str(error)
        else:
            return rows, why
