"""A snapshot that a program keeps itself: an agent at one moment, as plain JSON with a digest.

`type`, `state` and `metadata` are the documented fields; `created_at`, `schema_version` and `sha256` are ours. The
digest covers everything but itself and the metadata, which belongs to the application. Bytes in messages are marked as
in journals, so that whatever users store comes back as it was. The newest release of the SDK whose users we serve
spells the same as `scope`, `data` and `app_data`: `to_dict` gives that, and it is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from repertory.core.journal.plain_json import dump, load
from repertory.core.message_tree.spelling import decoded, encoded, epoch, zulu
from repertory.core.pairing import check_message
from repertory.core.snapshots.document import SCHEMA_VERSION, content_digest
from repertory.core.state import as_json
from repertory.core.system_prompt import SystemPrompt, check_system_prompt
from repertory.errors import Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.messages import Json, Message

TYPE = "agent"
Preset = Literal["session"]
SESSION_FIELDS = ("messages", "state", "conversation_manager_state", "interrupt_state", "model_state")
"""What a session keeps, and a snapshot holds unless it is told otherwise."""
ALL_FIELDS = (*SESSION_FIELDS, "system_prompt", "enabled_tools", "components")
_KEYS = frozenset(("type", "state", "metadata", "created_at", "schema_version", "sha256"))
_STATE_KEY = "state."
"""In front of one key of the state, in the name of an override."""


class Snapshot(dict[str, "Json"]):
    """An agent at one moment: a dictionary that `json.dump` takes as it is.

    `type` is "agent"; `state` is opaque: do not modify it; `metadata` is yours; `created_at` is when, in UTC;
    `schema_version` says how to read it, and `sha256` proves that nothing but the metadata was changed. Read as
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
        read_fields(self)

    def to_dict(self) -> dict[str, Json]:
        """The same as the SDK's newest release spells it, JSON throughout."""
        data = cast("dict[str, Json]", encoded(cast("dict[str, object]", _revived(self.data))))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFields:
    """What a snapshot says, checked. A field that it does not hold is None."""

    messages: Sequence[Message] | None = None
    """What the model is shown, a summary included."""
    state: Mapping[str, Json] | None = None
    manager: Mapping[str, Json] | None = None
    """The conversation manager's class as `__name__`, what it counts, and what it keeps."""
    interrupts: Mapping[str, Json] | None = None
    """Where a turn that was cut off among its tools stands."""
    system_prompt: SystemPrompt = None
    enabled_tools: Sequence[str] | None = None
    components: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    names: frozenset[str] = frozenset()
    """The fields that it holds, by their names in a snapshot."""
    created_at: float = 0.0
    """Epoch seconds."""


def fields_wanted(
    preset: str | None, include: Collection[str] | None, exclude: Collection[str] | None
) -> frozenset[str]:
    """The fields that are asked for: those of the preset, those to include, without those to exclude.

    Errors: `Invalid` for a name that is no preset or field; `SnapshotException` when nothing is left.
    """
    if preset not in (None, "session"):
        raise Invalid("a preset is 'session'", got=preset)
    for name in (*(include or ()), *(exclude or ())):
        if name not in ALL_FIELDS:
            raise Invalid(f"Invalid snapshot field: {name!r}", known=sorted(ALL_FIELDS))
    wanted = {*(SESSION_FIELDS if preset else ()), *(include or ())} - set(exclude or ())
    if not wanted:
        raise SnapshotException("No snapshot fields resolved: give a preset, or at least one field to include")
    return frozenset(wanted)


def snapshot_of(fields: Mapping[str, object], metadata: Mapping[str, object] | None, at: float) -> Snapshot:
    """The snapshot that holds these fields. Copies everything. Errors: `Invalid` for what JSON cannot say."""
    return _sealed(_plain(fields), cast("dict[str, Json]", as_json(dict(metadata or {}))), zulu(at))


def read_fields(document: object, overrides: Mapping[str, object] | None = None) -> SnapshotFields:
    """What a snapshot says, in either spelling, with other values for the fields in `overrides`; `state.KEY` names one
    value of the state.

    Errors: `SnapshotException` saying what is wrong with the snapshot; `Invalid` for overrides that make no sense.
    """
    snapshot = _in_our_spelling(document)
    _check_envelope(snapshot)
    said = _overridden(_revived(snapshot.data), overrides or {})
    unknown = said.keys() - set(ALL_FIELDS)
    if unknown:
        raise SnapshotException("a snapshot of fields that nobody knows", fields=sorted(unknown))
    try:
        return SnapshotFields(
            messages=_messages(said["messages"]) if "messages" in said else None,
            state=_mapping(said, "state"),
            manager=_mapping(said, "conversation_manager_state"),
            interrupts=_mapping(said, "interrupt_state"),
            system_prompt=check_system_prompt(cast("SystemPrompt", said.get("system_prompt"))),
            enabled_tools=_names(said.get("enabled_tools")),
            components=_mapping(said, "components") or {},
            names=frozenset(said),
            created_at=epoch(snapshot.created_at),
        )
    except SnapshotException:
        raise
    except Invalid as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error


def _sealed(state: dict[str, Json], metadata: dict[str, Json], created_at: str) -> Snapshot:
    envelope: dict[str, Json] = {"type": TYPE, "state": state, "created_at": created_at}
    envelope["schema_version"] = SCHEMA_VERSION
    return Snapshot({**envelope, "metadata": metadata, "sha256": content_digest(envelope)})


def _in_our_spelling(document: object) -> Snapshot:
    if not isinstance(document, Mapping):
        raise SnapshotException("a snapshot is a dictionary", got=type(document).__name__)
    said = cast("Mapping[str, Json]", document)
    if "type" in said or "scope" not in said:
        return Snapshot(said)
    data, app_data, version = said.get("data"), said.get("app_data", {}), said.get("schema_version")
    if said["scope"] != TYPE:
        raise SnapshotException(f"Expected snapshot scope {TYPE!r}, got {said['scope']!r}")
    _check_version(version)
    if not isinstance(data, dict) or not isinstance(app_data, dict):
        raise SnapshotException("the data of a snapshot are a JSON object")
    digest = said.get("sha256")
    if digest is not None and digest != content_digest({"data": data, "app_data": app_data}):
        raise _changed()
    try:
        fields = decoded(data)
    except ValueError as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error
    known = {name: value for name, value in fields.items() if name in ALL_FIELDS}
    return _sealed(_plain(known), app_data, str(said.get("created_at", "")))


def _check_envelope(snapshot: Snapshot) -> None:
    missing = _KEYS - snapshot.keys()
    if missing:
        raise SnapshotException("not a snapshot, or a truncated one", missing=sorted(missing))
    _check_version(snapshot["schema_version"])
    if snapshot["type"] != TYPE:
        raise SnapshotException(f"Expected a snapshot of type {TYPE!r}, got {snapshot['type']!r}")
    if not isinstance(snapshot["state"], dict) or not isinstance(snapshot["metadata"], dict):
        raise SnapshotException("state and metadata of a snapshot are JSON objects")
    sealed = {name: value for name, value in snapshot.items() if name not in ("metadata", "sha256")}
    try:
        digest = content_digest(sealed)
    except Invalid as error:
        raise SnapshotException("what a snapshot holds is not JSON", cause=str(error)) from error
    if snapshot["sha256"] != digest:
        raise _changed()


def _check_version(version: object) -> None:
    if version != SCHEMA_VERSION:
        raise SnapshotException(f"Unsupported snapshot schema version: {version!r}. Current version: {SCHEMA_VERSION}")


def _changed() -> SnapshotException:
    return SnapshotException("the snapshot was changed after it was taken: its digest does not fit; use `overrides`")


def _overridden(said: dict[str, Json], overrides: Mapping[str, object]) -> dict[str, Json]:
    for name, value in overrides.items():
        if name.startswith(_STATE_KEY):
            state = said.get("state")
            said["state"] = {
                **(state if isinstance(state, dict) else {}),
                name.removeprefix(_STATE_KEY): as_json(value),
            }
        elif name in ALL_FIELDS:
            said[name] = _revived(_plain({name: value}))[name]
        else:
            known = sorted((*ALL_FIELDS, f"{_STATE_KEY}KEY"))
            raise Invalid(f"Invalid snapshot field: {name!r}", known=known)
    return said


def _plain(fields: Mapping[str, object]) -> dict[str, Json]:
    """A copy in JSON's values, bytes marked. Errors: `Invalid`."""
    return cast("dict[str, Json]", json.loads(dump(dict(fields))))


def _revived(state: Mapping[str, Json]) -> dict[str, Json]:
    """A copy with bytes as bytes. Errors: `SnapshotException`."""
    try:
        return cast("dict[str, Json]", load(json.dumps(state).encode()))
    except (ValueError, TypeError, RecursionError) as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error


def _mapping(said: Mapping[str, Json], name: str) -> Mapping[str, Json] | None:
    value = said.get(name)
    if value is not None and not isinstance(value, dict):
        raise SnapshotException(f"the {name} of a snapshot is a JSON object", got=type(value).__name__)
    return value


def _messages(found: object) -> Sequence[Message]:
    if not isinstance(found, list):
        raise SnapshotException("the messages of a snapshot are a list", got=type(found).__name__)
    return [check_message(message) for message in cast("list[object]", found)]


def _names(found: object) -> Sequence[str] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in cast("list[object]", found)):
        raise SnapshotException("the enabled tools of a snapshot are a list of names")
    return cast("list[str]", found)
