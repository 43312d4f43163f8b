"""The rows that led to a position, and those that a rewind left behind."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repertory.core.journal.records import Branched, Record


def path_to(records: Sequence[tuple[int, Record | None]], position: int) -> list[tuple[int, int]]:
    """The ranges (first and last sequence number, in order) that lead to a position, without what rewinds left behind.

    A rewind belongs to the range that it begins. The target of an erased rewind is unknown: what it left behind counts
    as part of the path.
    """
    return _path(branches_in(records[:position]), position)


def paths_to(records: Sequence[tuple[int, Record | None]], positions: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges that lead to any of these positions; overlapping and adjacent ranges are merged."""
    branches = branches_in(records)
    found: list[tuple[int, int]] = []
    for first, last in sorted({stretch for position in positions for stretch in _path(list(branches), position)}):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def branches_in(records: Sequence[tuple[int, Record | None]]) -> list[tuple[int, Branched]]:
    """The `Branched` records: rewinds, and the first record of a fork."""
    return [(seq, record) for seq, record in records if isinstance(record, Branched)]


def _path(branches: list[tuple[int, Branched]], position: int) -> list[tuple[int, int]]:
    """The ranges that lead to a position. Consumes `branches`."""
    found: list[tuple[int, int]] = []
    end = position
    while end > 0:
        # Rewinds that were themselves left behind do not count.
        while branches and branches[-1][0] > end:
            branches.pop()
        if not branches:
            found.append((1, end))
            break
        seq, record = branches.pop()
        found.append((seq, end))
        end = record.position
    return found[::-1]


def within(seq: int, stretches: Iterable[tuple[int, int]]) -> bool:
    """True if a sequence number lies in one of the ranges."""
    return any(first <= seq <= last for first, last in stretches)
