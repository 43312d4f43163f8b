"""A snapshot that a program keeps itself: an agent, or an orchestrator with its nodes, as plain JSON with a digest.

`type`, `state` and `metadata` are the documented fields; `created_at`, `schema_version` and `sha256` are ours. The
newest release of the SDK whose users we serve spells the same as `scope`, `data` and `app_data`: `to_dict` gives that,
and it is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from repertory.core.journal.plain_json import dump, load
from repertory.core.limits import RECORD_DEPTH_MAX, is_too_deep
from repertory.core.message_tree.spelling import decoded, encoded, epoch, zulu
from repertory.core.snapshots import orchestrators
from repertory.core.snapshots.document import SCHEMA_VERSION, content_digest
from repertory.core.snapshots.fields import ALL_FIELDS, SnapshotFields, fields_of
from repertory.core.state import as_json
from repertory.errors import Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.messages import Json
    from repertory.core.snapshots.orchestrators import RunFields

AGENT = "agent"
ORCHESTRATOR = "multiAgent"
_STATE_KEY = "state."
"""In front of one key of the state, in the name of an override."""


class Snapshot(dict[str, "Json"]):
    """An agent, or an orchestrator with its nodes, at one moment: a dictionary that `json.dump` takes as it is.

    `type` is "agent" or "multiAgent"; `state` is opaque: do not modify it; `metadata` is yours; `created_at` is when,
    in UTC; `schema_version` says how to read it, and `sha256` proves that nothing but the metadata was changed. Read as
    attributes, `scope`, `data` and `app_data` are the same three.
    """

    @property
    def scope(self) -> Json:
        """What it is a snapshot of."""
        return self["type"]

    @property
    def schema_version(self) -> Json:
        """How to read it."""
        return self["schema_version"]

    @property
    def created_at(self) -> Json:
        """When it was taken, in ISO 8601, UTC."""
        return self["created_at"]

    @property
    def data(self) -> dict[str, Json]:
        """What it holds, opaque."""
        return cast("dict[str, Json]", self["state"])

    @property
    def app_data(self) -> dict[str, Json]:
        """What the application keeps in it."""
        return cast("dict[str, Json]", self["metadata"])

    def validate(self) -> None:
        """Errors: `SnapshotException` when it was changed or truncated, or is of another version or kind."""
        if self.get("type") == ORCHESTRATOR:
            read_orchestrator(self)
        else:
            read_fields(self)

    def to_dict(self) -> dict[str, Json]:
        """The same as the SDK's newest release spells it, JSON throughout."""
        state = revived(self.data)
        said = orchestrators.documented(state) if self["type"] == ORCHESTRATOR else state
        data = cast("dict[str, Json]", encoded(cast("dict[str, object]", said)))
        return {
            "scope": self.scope,
            "schema_version": self.schema_version,
            "created_at": self.created_at,
            "data": data,
            "app_data": self.app_data,
            "sha256": content_digest({"data": data, "app_data": self.app_data}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> Snapshot:
        """A snapshot again, from either spelling. Errors: `SnapshotException`."""
        snapshot = _in_our_spelling(document)
        snapshot.validate()
        return snapshot


def snapshot_of(
    state: Mapping[str, object], metadata: Mapping[str, object] | None, at: float, kind: str = AGENT
) -> Snapshot:
    """The snapshot that holds this. Copies everything. Errors: `Invalid` for what JSON cannot say."""
    return Snapshot(sealed(kind, plain(state), cast("dict[str, Json]", as_json(dict(metadata or {}))), zulu(at)))


def read_fields(document: object, overrides: Mapping[str, object] | None = None) -> SnapshotFields:
    """What a snapshot of an agent says, in either spelling, with other values for the fields in `overrides`;
    `state.KEY` names one value of the state.

    Errors: `SnapshotException` saying what is wrong with the snapshot; `Invalid` for overrides that make no sense.
    """
    snapshot = _in_our_spelling(document, AGENT)
    check_seal(snapshot, AGENT)
    said = _overridden(revived(snapshot.data), overrides or {})
    return fields_of(said, epoch(snapshot.created_at))


def read_orchestrator(document: object) -> RunFields:
    """What a snapshot of an orchestrator says, in either spelling. Errors: `SnapshotException`."""
    snapshot = _in_our_spelling(document, ORCHESTRATOR)
    check_seal(snapshot, ORCHESTRATOR)
    return orchestrators.read(revived(snapshot.data), epoch(snapshot.created_at))


def _in_our_spelling(document: object, *expected: str) -> Snapshot:
    if not isinstance(document, Mapping):
        raise SnapshotException("a snapshot is a dictionary", got=type(document).__name__)
    said = cast("Mapping[str, Json]", document)
    if "type" in said or "scope" not in said:
        return Snapshot(said)
    kind, data, app_data = said["scope"], said.get("data"), said.get("app_data", {})
    known = expected or (AGENT, ORCHESTRATOR)
    if kind not in known:
        raise SnapshotException(f"Expected snapshot scope {' or '.join(map(repr, known))}, got {kind!r}")
    check_version(said.get("schema_version"))
    if not isinstance(data, dict) or not isinstance(app_data, dict):
        raise SnapshotException("the data of a snapshot are a JSON object")
    digest, created_at = said.get("sha256"), str(said.get("created_at", ""))
    if digest is not None and digest != content_digest({"data": data, "app_data": app_data}):
        raise changed()
    try:
        fields = cast("dict[str, Json]", decoded(data))
    except ValueError as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error
    if kind == ORCHESTRATOR:
        state = orchestrators.from_documented(fields, epoch(created_at))
    else:
        state = {name: value for name, value in fields.items() if name in ALL_FIELDS}
    return Snapshot(sealed(cast("str", kind), plain(state), app_data, created_at))


def _overridden(said: dict[str, Json], overrides: Mapping[str, object]) -> dict[str, Json]:
    for name, value in overrides.items():
        if name.startswith(_STATE_KEY):
            state = said.get("state")
            said["state"] = {
                **(state if isinstance(state, dict) else {}),
                name.removeprefix(_STATE_KEY): as_json(value),
            }
        elif name in ALL_FIELDS:
            said[name] = revived(plain({name: value}))[name]
        else:
            known = sorted((*ALL_FIELDS, f"{_STATE_KEY}KEY"))
            raise Invalid(f"Invalid snapshot field: {name!r}", known=known)
    return said


# What stands around the content of every snapshot that a program keeps itself: kind, version, time, metadata, digest.
#
# The digest covers everything but itself and the metadata, which belongs to the application. Bytes are marked as in
# journals, so that whatever users store comes back as it was.

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
