"""What stands around the content of every snapshot that a program keeps itself: kind, version, time, metadata, digest.

The digest covers everything but itself and the metadata, which belongs to the application. Bytes are marked as in
journals, so that whatever users store comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from repertory.core.depth import RECORD_DEPTH_MAX, is_too_deep
from repertory.core.journal.plain_json import dump, load
from repertory.core.snapshots.document import SCHEMA_VERSION, content_digest
from repertory.errors import Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.messages import Json

_KEYS = frozenset(("type", "state", "metadata", "created_at", "schema_version", "sha256"))


def sealed(kind: str, state: Mapping[str, Json], metadata: Mapping[str, Json], created_at: str) -> dict[str, Json]:
    """The snapshot. `state` in JSON's values."""
    envelope: dict[str, Json] = {"type": kind, "state": dict(state), "created_at": created_at}
    envelope["schema_version"] = SCHEMA_VERSION
    return {**envelope, "metadata": dict(metadata), "sha256": content_digest(envelope)}


def check_seal(snapshot: Mapping[str, Json], kind: str) -> None:
    """Errors: `SnapshotException` for one that was changed or truncated, or is of another version or kind."""
    missing = _KEYS - snapshot.keys()
    if missing:
        raise SnapshotException("not a snapshot, or a truncated one", missing=sorted(missing))
    check_version(snapshot["schema_version"])
    if snapshot["type"] != kind:
        raise SnapshotException(f"Expected a snapshot of type {kind!r}, got {snapshot['type']!r}")
    if not isinstance(snapshot["state"], dict) or not isinstance(snapshot["metadata"], dict):
        raise SnapshotException("state and metadata of a snapshot are JSON objects")
    covered = {name: value for name, value in snapshot.items() if name not in ("metadata", "sha256")}
    try:
        digest = content_digest(covered)
    except Invalid as error:
        raise SnapshotException("what a snapshot holds is not JSON", cause=str(error)) from error
    if snapshot["sha256"] != digest:
        raise changed()


def check_version(version: object) -> None:
    """Errors: `SnapshotException` for one that nobody here can read."""
    if version != SCHEMA_VERSION:
        raise SnapshotException(f"Unsupported snapshot schema version: {version!r}. Current version: {SCHEMA_VERSION}")


def changed() -> SnapshotException:
    """What to say of content that is not what was digested."""
    return SnapshotException("the snapshot was changed after it was taken: its digest does not fit; use `overrides`")


def plain(fields: Mapping[str, object]) -> dict[str, Json]:
    """A copy in JSON's values, bytes marked. Errors: `Invalid`."""
    return cast("dict[str, Json]", json.loads(dump(dict(fields))))


def revived(state: Mapping[str, Json]) -> dict[str, Json]:
    """A copy with bytes as bytes. Errors: `SnapshotException`."""
    try:
        said = load(json.dumps(state).encode())
        if not isinstance(said, dict) or is_too_deep(said, RECORD_DEPTH_MAX):
            raise ValueError("it is no JSON object, or nested too deeply")
        return said
    except (ValueError, TypeError, RecursionError) as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error
