"""Find the first fault in a journal, and the rows before it that can still be used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from repertory.core.journal.records import SnapshotTaken
from repertory.core.journal.restore import Appender, Entropy, restore
from repertory.core.journal.rows import Row, fault, first_link
from repertory.core.journal.sealing import LOCKED, Seal
from repertory.errors import CorruptJournal

REPAIRED_LABEL = "repaired"
"""The label of the snapshot that a repair appends where it set the remaining rows aside."""


class Examined(Struct, frozen=True, kw_only=True):
    """The usable rows of one agent's journal, and where they end."""

    agent_id: str
    usable: Sequence[Row]
    """The longest prefix whose chain holds and that can be replayed."""
    last_seq: int
    """The highest sequence number among the rows found."""
    fault: str | None
    """The reason why `usable` ends where it does; None when no row follows it."""
    locked: str | None = None
    """The reason why encrypted rows could not be read, if so: then `usable` is what the chain alone proves."""


def examine(agent_id: str, found: Iterable[Row]) -> Examined:
    """Examine rows of one agent. They may come in any order, repeat, or include rows of another agent."""
    by_seq: dict[int, list[Row]] = {}
    for row in found:
        by_seq.setdefault(row.seq, []).append(row)
    proved, wrong = _proved(agent_id, by_seq)
    try:
        usable, misfit = _replayed(proved)
        locked = None
    except LOCKED as error:
        usable, misfit, locked = proved, None, str(error)
    return Examined(
        agent_id=agent_id, usable=usable, last_seq=max(by_seq, default=0), fault=misfit or wrong, locked=locked
    )


def repaired(
    examined: Examined, why: str | None, *, at: float, entropy: Entropy, seal: Seal | None = None
) -> list[Row]:
    """The rows to go on with: the usable ones, then a snapshot that says why and how many rows were set aside.
    Empty when no row is usable; the usable rows alone when there is neither a fault nor a `why`, or nobody can look
    into them.
    """
    rows = list(examined.usable)
    why = examined.fault or why
    if not rows or why is None or examined.locked is not None:
        return rows
    restored = restore(rows)
    appender = Appender(examined.agent_id, restored.fold, restored.link, entropy, seal)
    kept = rows[-1].seq
    label = SnapshotTaken(
        at=at,
        label=REPAIRED_LABEL,
        metadata={"why": why, "kept": kept, "set_aside": max(0, examined.last_seq - kept)},
    )
    return [*rows, appender.append(label)]


def _proved(agent_id: str, by_seq: dict[int, list[Row]]) -> tuple[list[Row], str | None]:
    """The longest chain of rows from the first one on. Of rows with one number, one that fits the chain is taken."""
    proved: list[Row] = []
    previous = first_link(agent_id)
    while candidates := by_seq.get(len(proved) + 1):
        seq = len(proved) + 1
        wrong = [fault(row, agent_id, seq, previous) for row in candidates]
        if None not in wrong:
            return proved, f"row {seq}: {wrong[0]}"
        # An erased row wins over the same row with its content: the erasure was deliberate.
        fitting = [row for row, why in zip(candidates, wrong, strict=True) if why is None]
        proved.append(min(fitting, key=lambda row: len(row.salt)))
        previous = proved[-1].link
    beyond = max(by_seq, default=0)
    return proved, f"row {len(proved) + 1} is missing" if beyond > len(proved) else None


def _replayed(rows: list[Row]) -> tuple[list[Row], str | None]:
    """The longest prefix that can be folded."""
    why: str | None = None
    while True:
        try:
            # Each round drops at least one row, so it ends.
            restore(rows)
        except CorruptJournal as error:
            seq = error.fields.get("seq")
            end = seq - 1 if isinstance(seq, int) and seq <= len(rows) else len(rows) - 1
            rows, why = rows[:end], why or str(error)
        else:
            return rows, why
