"""The rows that opening a session needs, of every agent in it, kept up to date as rows are added."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from repertory.core.journal.codec import at_of
from repertory.core.journal.rows import Row

Erasing = Collection[tuple[str, int]]
"""Rows, each by agent id and sequence number, whose content must be gone."""


def without(rows: Sequence[Row], erasing: Erasing) -> list[Row]:
    """The rows, those that are named without their content."""
    if not erasing:
        return list(rows)
    return [row.without_content() if (row.agent_id, row.seq) in erasing else row for row in rows]


class Window:
    """Per agent the rows from its last row's `low` on."""

    def __init__(self, rows: Sequence[Row] = ()) -> None:
        self._journals: dict[str, list[Row]] = {}
        for row in rows:
            self._journals.setdefault(row.agent_id, []).append(row)

    def add(self, rows: Iterable[Row]) -> None:
        """Rows that were committed, in order. Those that are not needed any more go."""
        grown: set[str] = set()
        for row in rows:
            self._journals.setdefault(row.agent_id, []).append(row)
            grown.add(row.agent_id)
        for agent_id in grown:
            journal = self._journals[agent_id]
            del journal[: max(0, journal[-1].low - journal[0].seq)]

    def erase(self, erasing: Erasing) -> None:
        """Destroy contents."""
        for agent_id in {agent_id for agent_id, _ in erasing} & self._journals.keys():
            self._journals[agent_id] = without(self._journals[agent_id], erasing)

    def fill(self, agent_id: str, rows: Sequence[Row]) -> None:
        """Take in what an agent was `missing`: rows that were there before, in order. What has been added meanwhile
        stays.
        """
        known = [*rows, *(row for row in self._journals[agent_id] if row.seq > rows[-1].seq)]
        self._journals[agent_id] = known[max(0, known[-1].low - known[0].seq) :]

    @property
    def missing(self) -> list[str]:
        """Agents that went back so far that rows from before the window are needed again."""
        return [agent_id for agent_id, rows in self._journals.items() if rows[-1].low < rows[0].seq]

    def gap(self, agent_id: str) -> tuple[int, int]:
        """The first and the last sequence number that such an agent is `missing`."""
        rows = self._journals[agent_id]
        return rows[-1].low, rows[0].seq - 1

    def of(self, agent_id: str) -> list[Row]:
        """An agent's rows; empty when it has none."""
        return list(self._journals.get(agent_id, ()))

    def rows(self) -> list[Row]:
        """The rows of all agents."""
        return [row for rows in self._journals.values() for row in rows]

    def last_seq(self, agent_id: str) -> int:
        """The sequence number of an agent's last row; 0 when it has none."""
        rows = self._journals.get(agent_id)
        return rows[-1].seq if rows else 0

    @property
    def seqs(self) -> dict[str, int]:
        """Agent id to last sequence number."""
        return {agent_id: rows[-1].seq for agent_id, rows in self._journals.items()}

    def updated_at(self, before: float) -> float:
        """When the last row was made, of those that still have their content; `before` when there is none."""
        last = (next((row for row in reversed(rows) if not row.erased), None) for rows in self._journals.values())
        return max((at_of(row.body) or 0.0 for row in last if row is not None), default=before) or before


def seqs_after(seqs: Mapping[str, int], rows: Iterable[Row]) -> dict[str, int]:
    """Agent id to last sequence number, with these rows added."""
    return {**seqs, **{row.agent_id: row.seq for row in rows}}
