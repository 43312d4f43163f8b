"""The names of snapshots, and of their files.

Source: the documented snapshot layout; names and fields are those of the SDK whose users we serve.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from msgspec import Struct

from repertory.core.ids import check_id
from repertory.core.json_bytes import digest_of_document, epoch, zulu
from repertory.core.message_tree.documents import OURS
from repertory.core.orchestration.journals import journal_name, orchestrator_in
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json

AGENT_SCOPE = "agent"
RUN_SCOPE = "multiAgent"
LATEST_ID = "0"
"""The id of the latest snapshot, where one is needed. Other programs number from 1."""
_DIGEST = "digest"
_FILE = re.compile(r"snapshot_(.+)\.json")


@dataclass(frozen=True, slots=True)
class SnapshotLocation:
    """The owner of snapshots: one agent in one session, or one orchestrator.

    Args:
        session_id: The id of the session.
    """

    session_id: str
    scope: str
    """`agent`, or `multiAgent` for a graph or swarm."""
    scope_id: str
    """The agent's or the orchestrator's id."""

    @classmethod
    def of(cls, session_id: str, journal: str) -> SnapshotLocation:
        """The owner of the journal with that name.

        Args:
            session_id: The id of the session.
            journal: The id of the journal, which is that of an agent, a graph or a swarm.
        """
        orchestrator = orchestrator_in(journal)
        if orchestrator is None:
            return cls(session_id, AGENT_SCOPE, journal)
        return cls(session_id, RUN_SCOPE, orchestrator)

    @property
    def journal(self) -> str:
        """The name of the owner's journal."""
        return journal_name(self.scope_id) if self.scope == RUN_SCOPE else self.scope_id


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """The state of an agent's numbered snapshots.

    Args:
        schema_version: The version of the layout.
    """

    schema_version: str = "1.0"
    next_snapshot_id: str = "1"
    """The number of the next snapshot."""
    updated_at: str = ""
    """ISO 8601 in UTC."""


def check_snapshot_id(value: object) -> str:
    """The normal form of an id: numbers from 1 without leading zeros, other ids unchanged. Errors: `Invalid` (a
    ValueError).
    """
    # True is an int.
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    text = str(number) if number is not None else value
    if isinstance(text, str) and re.fullmatch("-?[0-9]+", text):
        if int(text) < 1:
            raise Invalid("numbers of snapshots start at 1; 0 is the latest, which is loaded anyway", got=value)
        return str(int(text))
    return check_id(text, "snapshot id")


def number_of(snapshot_id: str) -> int | None:
    """The number in an id; None for an id that another program made."""
    return int(snapshot_id) if snapshot_id.isascii() and snapshot_id.isdigit() else None


def file_name(snapshot_id: str) -> str:
    """The name of a snapshot's file: numbers have at least five digits."""
    number = number_of(snapshot_id)
    return f"snapshot_{snapshot_id if number is None else f'{number:05}'}.json"


def id_of_file(name: str) -> str | None:
    """The id in a file name; None for other files."""
    match = _FILE.fullmatch(name)
    if match is None:
        return None
    number = number_of(match[1])
    return match[1] if number is None else str(number)


def in_order(snapshot_ids: Iterable[str]) -> list[str]:
    """Numbers first, in order, then other programs' ids, which sort by their creation."""
    found = set(snapshot_ids)
    numbers = sorted(number for each in found if (number := number_of(each)) is not None)
    return [*map(str, numbers), *sorted(each for each in found if number_of(each) is None)]


# The manifest: the number of the next snapshot, and our key in it.


class Numbering(Struct, frozen=True, kw_only=True):
    """The counters of an agent's numbered snapshots."""

    next_number: int = 1
    last_at: float | None = None
    """The epoch seconds at which the last one was taken."""
    taken: int = 0
    """The record of our journal that marks the last one. The latest snapshot is saved after it."""
    mark: int = 0
    """All snapshots up to this record of our journal have their documents."""


def manifest_of(numbering: Numbering, at: float) -> SnapshotManifest:
    """The manifest for other programs."""
    return SnapshotManifest(next_snapshot_id=str(numbering.next_number), updated_at=zulu(at))


def manifest_document(numbering: Numbering, at: float) -> dict[str, object]:
    """The document, in JSON values."""
    manifest = manifest_of(numbering, at)
    ours: dict[str, object] = {"mark": numbering.mark, "taken": numbering.taken}
    if numbering.last_at is not None:
        ours["last_snapshot_at"] = numbering.last_at
    document: dict[str, object] = {
        "schemaVersion": manifest.schema_version,
        "nextSnapshotId": manifest.next_snapshot_id,
        "updatedAt": manifest.updated_at,
        OURS: ours,
    }
    return {**document, OURS: {**ours, _DIGEST: digest_of_document(document)}}


def read_manifest(found: object) -> Numbering:
    """The counters in a manifest: a `SnapshotManifest`, a document in either spelling, or None. Errors:
    `ValueError`.
    """
    if found is None:
        return Numbering()
    if isinstance(found, SnapshotManifest):
        found = {"next_snapshot_id": found.next_snapshot_id, "updated_at": found.updated_at}
    if not isinstance(found, Mapping):
        raise ValueError("a manifest is a JSON object")
    fields = cast("Mapping[str, object]", found)
    # A number that was changed by accident would overwrite a snapshot, or leave a gap.
    if _is_altered(fields):
        raise ValueError("it is not as it was written")
    following = int(str(fields.get("next_snapshot_id", fields.get("nextSnapshotId", "1"))))
    if following < 1:
        raise ValueError("numbers of snapshots start at 1")
    ours = fields.get(OURS)
    numbers = cast("dict[str, Json]", ours) if isinstance(ours, dict) else {}
    last_at = numbers.get("last_snapshot_at")
    if not isinstance(last_at, float | int):
        updated_at = epoch(fields.get("updated_at", fields.get("updatedAt")))
        last_at = updated_at if following > 1 and updated_at else None
    return Numbering(
        next_number=following, last_at=last_at, taken=_number(numbers.get("taken")), mark=_number(numbers.get("mark"))
    )


def _is_altered(document: Mapping[str, object]) -> bool:
    """True if the document does not match the digest among our keys. False without one."""
    found = document.get(OURS)
    ours = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    bare = {name: value for name, value in ours.items() if name != _DIGEST}
    return _DIGEST in ours and ours[_DIGEST] != digest_of_document({**document, OURS: bare})


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
