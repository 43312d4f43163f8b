"""Which rows led to a position, and which ones lie on ways that were left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from repertory.core.journal.records import Branched, Record


def path_to(records: Sequence[tuple[int, Record | None]], position: int) -> list[tuple[int, int]]:
    """The stretches (first and last sequence number, in order) that lead to a position: all but what rewinds on the way
    have left behind. A rewind belongs to the stretch that it begins.

    A rewind that was erased cannot say where it led; what it left behind counts as if it belonged there.
    """
    return _path(branches_in(records[:position]), position)


def paths_to(records: Sequence[tuple[int, Record | None]], positions: Iterable[int]) -> list[tuple[int, int]]:
    """The stretches that lead to any of these positions, joined where they meet."""
    branches = branches_in(records)
    found: list[tuple[int, int]] = []
    for first, last in sorted({stretch for position in positions for stretch in _path(list(branches), position)}):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def branches_in(records: Sequence[tuple[int, Record | None]]) -> list[tuple[int, Branched]]:
    """The rewinds, and the beginning of a fork."""
    return [(seq, record) for seq, record in records if isinstance(record, Branched)]


def _path(branches: list[tuple[int, Branched]], position: int) -> list[tuple[int, int]]:
    """The stretches that lead to a position. `branches` is used up."""
    found: list[tuple[int, int]] = []
    end = position
    while end > 0:
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
    """Whether a number lies in one of the stretches."""
    return any(first <= seq <= last for first, last in stretches)
