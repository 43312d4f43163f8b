"""The document that says which number the next snapshot gets, and what of ours stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.core.message_tree.documents import ALTERED, DIGEST, OURS, digest_of_document, is_altered
from repertory.core.message_tree.spelling import epoch, zulu
from repertory.core.snapshots.location import SnapshotManifest

if TYPE_CHECKING:
    from repertory.core.messages import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """How far an agent's numbered snapshots have come."""

    next_number: int = 1
    last_at: float | None = None
    """When the last one was taken, in epoch seconds."""
    taken: int = 0
    """The record of our journal that marks the last one. The latest snapshot is saved after it."""
    mark: int = 0
    """Every snapshot up to this record of our journal has its document."""


def manifest_of(numbering: Numbering, at: float) -> SnapshotManifest:
    """As others are told of it."""
    return SnapshotManifest(next_snapshot_id=str(numbering.next_number), updated_at=zulu(at))


def manifest_document(numbering: Numbering, at: float) -> dict[str, object]:
    """The document, in values that JSON has."""
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
    return {**document, OURS: {**ours, DIGEST: digest_of_document(document)}}


def read_manifest(found: object) -> Numbering:
    """What a manifest says: a `SnapshotManifest`, a document in either spelling, or None for none.

    Errors: `ValueError`.
    """
    if found is None:
        return Numbering()
    if isinstance(found, SnapshotManifest):
        found = {"next_snapshot_id": found.next_snapshot_id, "updated_at": found.updated_at}
    if not isinstance(found, Mapping):
        raise ValueError("a manifest is a JSON object")
    said = cast("Mapping[str, object]", found)
    if is_altered(said):
        raise ValueError(ALTERED)
    following = int(str(said.get("next_snapshot_id", said.get("nextSnapshotId", "1"))))
    if following < 1:
        raise ValueError("numbers of snapshots start at 1")
    ours = said.get(OURS)
    kept = cast("dict[str, Json]", ours) if isinstance(ours, dict) else {}
    last_at = kept.get("last_snapshot_at")
    if not isinstance(last_at, float | int):
        updated_at = epoch(said.get("updated_at", said.get("updatedAt")))
        last_at = updated_at if following > 1 and updated_at else None
    return Numbering(
        next_number=following, last_at=last_at, taken=_number(kept.get("taken")), mark=_number(kept.get("mark"))
    )


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
