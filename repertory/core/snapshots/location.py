"""Where snapshots belong, and what they are called.

Source: the documented snapshot layout; names and fields are those of the SDK whose users we serve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from repertory.core.ids import check_id
from repertory.core.orchestration.journals import journal_of, orchestrator_in
from repertory.errors import Invalid

AGENT_SCOPE = "agent"
RUN_SCOPE = "multiAgent"
LATEST_ID = "0"
"""What the latest snapshot is called where an id has to be said. Numbers of others start at 1."""
_FILE = re.compile(r"snapshot_(.+)\.json")


@dataclass(frozen=True, slots=True)
class SnapshotLocation:
    """Whose snapshots: those of one agent in one session, or of one orchestrator."""

    session_id: str
    scope: str
    """`agent`, or `multiAgent` for a graph or swarm."""
    scope_id: str
    """The agent's id, or the orchestrator's."""

    @classmethod
    def of(cls, session_id: str, journal: str) -> SnapshotLocation:
        """Whose journal that is."""
        orchestrator = orchestrator_in(journal)
        if orchestrator is None:
            return cls(session_id, AGENT_SCOPE, journal)
        return cls(session_id, RUN_SCOPE, orchestrator)

    @property
    def journal(self) -> str:
        """The name of the journal again."""
        return journal_of(self.scope_id) if self.scope == RUN_SCOPE else self.scope_id


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """What is known of an agent's numbered snapshots."""

    schema_version: str = "1.0"
    next_snapshot_id: str = "1"
    """The number that the next one gets."""
    updated_at: str = ""
    """ISO 8601 in UTC."""


def check_snapshot_id(value: object) -> str:
    """The id as everything here spells it: numbers from 1 in digits without zeros in front, other ids as they are.

    Errors: `Invalid` (a ValueError).
    """
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    text = str(number) if number is not None else value
    if isinstance(text, str) and re.fullmatch("-?[0-9]+", text):
        if int(text) < 1:
            raise Invalid("numbers of snapshots start at 1; 0 is the latest, which is loaded anyway", got=value)
        return str(int(text))
    return check_id(text, "snapshot id")


def number_of(snapshot_id: str) -> int | None:
    """The number that an id is; None for one that others have made."""
    return int(snapshot_id) if snapshot_id.isascii() and snapshot_id.isdigit() else None


def file_name(snapshot_id: str) -> str:
    """The name of a snapshot's file: numbers have five digits or more."""
    number = number_of(snapshot_id)
    return f"snapshot_{snapshot_id if number is None else f'{number:05}'}.json"


def id_in(name: str) -> str | None:
    """The id again; None for another file."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    number = number_of(match[1])
    return match[1] if number is None else str(number)


def in_order(snapshot_ids: Iterable[str]) -> list[str]:
    """Numbers first, in their order, then ids that others have made, whose own order is that of their making."""
    found = set(snapshot_ids)
    numbers = sorted(number for each in found if (number := number_of(each)) is not None)
    return [*map(str, numbers), *sorted(each for each in found if number_of(each) is None)]
