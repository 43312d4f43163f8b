"""A snapshot for a program to keep: an agent, or an orchestrator with its nodes, as plain JSON with a digest.

`type`, `state` and `metadata` are the documented fields; `created_at`, `schema_version` and `sha256` are ours. The
newest release of the SDK whose users we serve names the three `scope`, `data` and `app_data`: `to_dict` writes that
form, and both are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from repertory.core.journal.codec import dump, load
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import NodeChanged
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.json_bytes import decoded, encoded, epoch, zulu
from repertory.core.json_fields import json_object, json_texts
from repertory.core.limits import RECORD_DEPTH_MAX, is_too_deep
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.run import OrchestratorKind, Run
from repertory.core.provider_parts import agent_as_ours, agent_for_others
from repertory.core.snapshots.document import SCHEMA_VERSION, content_digest
from repertory.core.snapshots.fields import ALL_FIELDS, NamedTurn, SnapshotFields, fields_of, object_field
from repertory.core.state import json_copy
from repertory.core.turns.interrupt_state import snapshot_state
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import Corrupt, Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.limits import RECORD_DEPTH_MAX, is_too_deep
from repertory.core.messages import Json

AGENT = "agent"
ORCHESTRATOR = "multiAgent"
_STATE_KEY = "state."
"""The prefix of an override for one key of the state."""


class PortableSnapshot(dict[str, "Json"]):
    """The dictionary of a snapshot, with its keys as attributes in both spellings."""

    @property
    def scope(self) -> Json:
        """The kind of snapshot."""
        return self["type"]

    @property
    def schema_version(self) -> Json:
        """The format's version."""
        return self["schema_version"]

    @property
    def created_at(self) -> Json:
        """The time at which the snapshot was taken, in ISO 8601, UTC."""
        return self["created_at"]

    @property
    def data(self) -> dict[str, Json]:
        """The snapshot's content, opaque."""
        return cast("dict[str, Json]", self["state"])

    @property
    def app_data(self) -> dict[str, Json]:
        """The application's own data."""
        return cast("dict[str, Json]", self["metadata"])

    def validate(self) -> None:
        """Errors: `SnapshotException` when it was changed or truncated, or has another version or type."""
        if self.get("type") == ORCHESTRATOR:
            read_orchestrator(self)
        else:
            read_fields(self)

    def to_dict(self) -> dict[str, Json]:
        """The form of the SDK's newest release, as JSON."""
        state = revived(self.data)
        spelled = documented_run(state) if self["type"] == ORCHESTRATOR else agent_for_others(state)
        data = cast("dict[str, Json]", encoded(cast("Mapping[str, object]", spelled)))
        return {
            "scope": self.scope,
            "schema_version": self.schema_version,
            "created_at": self.created_at,
            "data": data,
            "app_data": self.app_data,
            "sha256": content_digest({"data": data, "app_data": self.app_data}),
        }

    @classmethod
    def from_dict(cls, d: Mapping[str, object]) -> Self:
        """A snapshot from either form.

        Args:
            d: The snapshot as a mapping.

        Raises:
            SnapshotException: For anything else. Use an intact snapshot.
        """
        snapshot = cls(_in_our_spelling(d))
        snapshot.validate()
        return snapshot


def snapshot_of(
    state: Mapping[str, object], metadata: Mapping[str, object] | None, at: float, kind: str = AGENT
) -> PortableSnapshot:
    """A snapshot of copies of this content. Errors: `Invalid` for values that are not JSON."""
    return PortableSnapshot(
        make_snapshot(kind, plain_json(state), cast("dict[str, Json]", json_copy(dict(metadata or {}))), zulu(at))
    )


def read_fields(document: object, overrides: Mapping[str, object] | None = None) -> SnapshotFields:
    """The fields of an agent's snapshot, in either form, with the values of `overrides` in the place of its own;
    `state.KEY` names one value of the state.

    Errors: `SnapshotException` with the snapshot's fault; `Invalid` for unknown overrides.
    """
    snapshot = _in_our_spelling(document, AGENT)
    check_seal(snapshot, AGENT)
    fields = _overridden(revived(snapshot.data), overrides or {})
    return fields_of(fields, epoch(snapshot.created_at))


def read_orchestrator(document: object) -> RunFields:
    """The fields of an orchestrator's snapshot, in either form. Errors: `SnapshotException`."""
    snapshot = _in_our_spelling(document, ORCHESTRATOR)
    check_seal(snapshot, ORCHESTRATOR)
    return read_run_state(revived(snapshot.data), epoch(snapshot.created_at))


def _in_our_spelling(document: object, *expected: str) -> PortableSnapshot:
    if not isinstance(document, Mapping):
        raise SnapshotException("a snapshot is a dictionary", got=type(document).__name__)
    form = cast("Mapping[str, Json]", document)
    # Before anything copies it: the document may come from anywhere.
    if is_too_deep(form, RECORD_DEPTH_MAX):
        raise SnapshotException("a snapshot is nested too deeply", depth_max=RECORD_DEPTH_MAX)
    if set(form) == {"type", "state", "metadata"}:  # The documented fields alone have no digest to compare with.
        whole: dict[str, Json] = {**form, "created_at": "", "schema_version": SCHEMA_VERSION}
        return PortableSnapshot({**whole, "sha256": _digest_of(whole)})
    if "type" in form or "scope" not in form:
        return PortableSnapshot(form)
    kind, data, app_data = form["scope"], form.get("data"), form.get("app_data", {})
    known = expected or (AGENT, ORCHESTRATOR)
    if kind not in known:
        raise SnapshotException(f"Expected snapshot scope {' or '.join(map(repr, known))}, got {kind!r}")
    check_version(form.get("schema_version"))
    if not isinstance(data, dict) or not isinstance(app_data, dict):
        raise SnapshotException("the data of a snapshot are a JSON object")
    digest, created_at = form.get("sha256"), str(form.get("created_at", ""))
    if digest is not None and digest != content_digest({"data": data, "app_data": app_data}):
        raise digest_mismatch()
    try:
        fields = cast("dict[str, Json]", decoded(data))
    except ValueError as error:
        raise SnapshotException("the content of a snapshot cannot be read", cause=str(error)) from error
    if kind == ORCHESTRATOR:
        state = run_from_documented(fields, epoch(created_at))
    else:
        state = {name: value for name, value in agent_as_ours(fields).items() if name in ALL_FIELDS}
    return PortableSnapshot(make_snapshot(cast("str", kind), plain_json(state), app_data, created_at))


def _overridden(fields: dict[str, Json], overrides: Mapping[str, object]) -> dict[str, Json]:
    for name, value in overrides.items():
        if name.startswith(_STATE_KEY):
            state = fields.get("state")
            fields["state"] = {
                **(state if isinstance(state, dict) else {}),
                name.removeprefix(_STATE_KEY): json_copy(value),
            }
        elif name in ALL_FIELDS:
            fields[name] = revived(plain_json({name: value}))[name]
        else:
            known = sorted((*ALL_FIELDS, f"{_STATE_KEY}KEY"))
            raise Invalid(f"Invalid snapshot field: {name!r}", known=known)
    return fields


# The envelope of every snapshot that a program keeps: kind, version, time, metadata, digest.
#
# The digest covers all but itself and the metadata, which belongs to the application. Bytes are marked as in journals,
# so that any user value comes back unchanged.

_KEYS = frozenset(("type", "state", "metadata", "created_at", "schema_version", "sha256"))


def make_snapshot(
    kind: str, state: Mapping[str, Json], metadata: Mapping[str, Json], created_at: str
) -> dict[str, Json]:
    """The snapshot. `state`: JSON values."""
    envelope: dict[str, Json] = {"type": kind, "state": dict(state), "created_at": created_at}
    envelope["schema_version"] = SCHEMA_VERSION
    return {**envelope, "metadata": dict(metadata), "sha256": content_digest(envelope)}


def check_seal(snapshot: Mapping[str, Json], kind: str) -> None:
    """Errors: `SnapshotException` when it was changed or truncated, or has another version or kind."""
    missing = _KEYS - snapshot.keys()
    if missing:
        raise SnapshotException("not a snapshot, or a truncated one", missing=sorted(missing))
    check_version(snapshot["schema_version"])
    if snapshot["type"] != kind:
        raise SnapshotException(f"Expected a snapshot of type {kind!r}, got {snapshot['type']!r}")
    if not isinstance(snapshot["state"], dict) or not isinstance(snapshot["metadata"], dict):
        raise SnapshotException("state and metadata of a snapshot are JSON objects")
    if snapshot["sha256"] != _digest_of(snapshot):
        raise digest_mismatch()


def _digest_of(snapshot: Mapping[str, Json]) -> str:
    try:
        return content_digest({name: value for name, value in snapshot.items() if name not in ("metadata", "sha256")})
    except Invalid as error:
        raise SnapshotException("the content of a snapshot is not JSON", cause=str(error)) from error


def check_version(version: object) -> None:
    """Errors: `SnapshotException` for an unknown version."""
    if version != SCHEMA_VERSION:
        raise SnapshotException(f"Unsupported snapshot schema version: {version!r}. Current version: {SCHEMA_VERSION}")


def digest_mismatch() -> SnapshotException:
    """The error for content that does not match its digest."""
    return SnapshotException("the snapshot was changed after it was taken: its digest does not fit; use `overrides`")


def plain_json(fields: Mapping[str, object]) -> dict[str, Json]:
    """A copy in JSON values, bytes marked. Errors: `Invalid`."""
    return cast("dict[str, Json]", json.loads(dump(dict(fields))))


def revived(state: Mapping[str, Json]) -> dict[str, Json]:
    """A copy with bytes decoded. Errors: `SnapshotException`."""
    try:
        # Through bytes, which also proves that nothing in it is shared with the caller.
        copied = load(json.dumps(state).encode())
        if not isinstance(copied, dict) or is_too_deep(copied, RECORD_DEPTH_MAX):
            raise ValueError("it is no JSON object, or nested too deeply")
        return copied
    except (ValueError, TypeError, RecursionError) as error:
        raise SnapshotException("the content of a snapshot cannot be read", cause=str(error)) from error


# The snapshot of an orchestrator: its run, and each of its nodes at that point in time.
#
#     {"orchestrator_id", "kind", "run": [RECORD, ...], "frontier": [NODE, ...], "nodes": {NODE: SAID}}
#     SAID    {"type": "agent", FIELDS..., "turn": {"visit", "messages"}}     without messages: it had said nothing yet
#             {"type": "multiAgent", the same again..., "turn": {"visit"}}
#             {"type": "other", "state"}     of an object that keeps itself
#
# A pending node goes on with it: `turn` says which of its executions in this run its last messages belong to. The SDK
# whose users we serve can read the document of the run; our data is next to it.

OURS = "repertory"
_STATUSES = ("started", "completed", "failed", "interrupted")


class AgentInRun(Struct, frozen=True, kw_only=True):
    """An agent that is a node."""

    fields: SnapshotFields
    visit: int | None = None
    """The execution in the run that its last turn is; None when it is none of this run."""
    messages: int = 0
    """The number of last messages that belong to that turn."""

    def under(self, token: str | None) -> SnapshotFields:
        """The snapshot's fields, with this token on its last turn."""
        turn = None if token is None or not self.messages else NamedTurn(token, self.messages)
        return replace(self.fields, turn=turn)


class OtherInRun(Struct, frozen=True, kw_only=True):
    """A node that saves and restores itself."""

    state: Json


class RunFields(Struct, frozen=True, kw_only=True):
    """An orchestrator, checked."""

    orchestrator_id: str
    kind: OrchestratorKind
    records: Sequence[NodeChanged] = ()
    """The latest record of each node; empty without a run."""
    frontier: tuple[str, ...] = ()
    nodes: Mapping[str, NodeFields] = {}
    """The nodes that had done anything."""
    visit: int | None = None
    """The number of the execution that the run is, in a graph of which it is a node."""

    def run(self) -> Run:
        """The run. Errors: `SnapshotException`."""
        try:
            run = Run.of(self.records, self.frontier)
            for note in run.notes.values():
                note.stored_result.read()
        except Corrupt as error:
            raise SnapshotException("the run of a snapshot cannot be read", cause=str(error)) from error
        run.kind = self.kind
        return run


NodeFields: TypeAlias = AgentInRun | RunFields | OtherInRun


class RunShape(Struct, frozen=True, kw_only=True):
    """The kinds of an orchestrator and of each of its nodes."""

    kind: OrchestratorKind
    nodes: Mapping[str, RunShape | Literal["agent", "other"]]


def check_orchestrator(name: str, found: NodeFields, here: RunShape | Literal["agent", "other"]) -> None:
    """Errors: `SnapshotException` when the orchestrator or one of its nodes is of another kind here."""
    match found, here:
        case RunFields(), RunShape(kind=kind, nodes=nodes):
            if found.kind != kind:
                raise SnapshotException(f"the snapshot is that of a {found.kind}", orchestrator=name, expected=kind)
            for node in found.nodes.keys() & nodes.keys():
                check_orchestrator(node, found.nodes[node], nodes[node])
        case (AgentInRun(), "agent") | (OtherInRun(), "other"):
            pass
        case _:
            raise SnapshotException("a node of the snapshot is something else here", node=name)


def run_snapshot_fields(
    orchestrator_id: str, kind: OrchestratorKind, run: Run, nodes: Mapping[str, object]
) -> dict[str, object]:
    """The fields of an orchestrator's snapshot. `nodes`: the fields of each node."""
    records = [
        {
            "at": record.at,
            "run": record.run,
            "node": record.node,
            "status": record.status,
            "frontier": list(record.frontier),
            "result": record.result,
            "data": dict(record.data),
        }
        for record in run.records(at=run.begun_at)
    ]
    return {
        "orchestrator_id": orchestrator_id,
        "kind": kind,
        "run": records,
        "frontier": list(run.frontier),
        "nodes": dict(nodes),
    }


def token_of(fields: Mapping[str, object]) -> str | None:
    """The idempotency token of the run in an orchestrator's fields."""
    records = cast("Sequence[Mapping[str, Mapping[str, Json]]]", fields["run"])
    return cast("str | None", records[0]["data"].get("token")) if records else None


def conversation_fields(image: Image) -> dict[str, object]:
    """The fields of a node's conversation."""
    manager = {**image.view.manager_state, "__name__": image.view.manager or DEFAULT_MANAGER}
    return {
        "messages": [message for _, message in image.shown],
        "state": dict(image.state),
        "conversation_manager_state": manager,
        "interrupt_state": snapshot_state(pending_tools_of(image)),
        "model_state": {},
    }


def last_turn(image: Image) -> NamedTurn | None:
    """The last turn of a conversation, answered or not, if it has an idempotency token."""
    begun = image.token
    if begun is None:
        answered = [turn for turn in image.finished_turns.values() if turn.answer_seq == image.last_message_seq]
        begun = (answered[-1].token, answered[-1].seq) if answered else None
    if begun is None:
        return None
    token, first = begun
    messages = sum(1 for seq, _ in image.shown if seq != SUMMARY_SEQ and seq >= first)
    return NamedTurn(token, messages) if messages else None


def read_run_state(fields: Mapping[str, Json], created_at: float) -> RunFields:
    """The fields of an orchestrator, with bytes decoded. `created_at`: epoch seconds. Errors: `SnapshotException`."""
    try:
        return _read(fields, created_at)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SnapshotException("the orchestrator in a snapshot cannot be read", cause=repr(error)) from error


def documented_run(state: Mapping[str, Json]) -> dict[str, Json]:
    """The fields in the SDK's form, with ours next to it. Errors: `SnapshotException`."""
    fields = read_run_state(state, 0.0)
    document = cast("Json", document_of(fields.run(), fields.orchestrator_id))
    return {"orchestrator_id": fields.orchestrator_id, "state": document, OURS: cast("Json", dict(state))}


def run_document(run: Run, orchestrator_id: str) -> dict[str, object]:
    """The run alone in the SDK's form, as JSON, with ours next to it. A node that waits for a person is only pending in
    ours: its question is in its conversation.
    """
    ours = run_snapshot_fields(orchestrator_id, run.kind, run, {})
    records = cast("list[dict[str, object]]", ours["run"])
    ours["run"] = [record for record in records if record["status"] != "interrupted"]
    return encoded({**document_of(run, orchestrator_id), OURS: ours})


def read_run_document(document: object, at: float) -> RunFields:
    """The run in what `run_document` gave, here or in another program; or in a snapshot. Errors:
    `SnapshotException`.
    """
    if not isinstance(document, Mapping):
        raise SnapshotException("a run is a dictionary", got=type(document).__name__)
    if "sha256" in document or "scope" in document:
        return read_orchestrator(cast("Mapping[str, object]", document))
    try:
        fields = cast("dict[str, Json]", decoded(cast("Mapping[str, object]", document)))
    except (ValueError, RecursionError) as error:
        raise SnapshotException("a run cannot be read", cause=str(error)) from error
    ours = fields.pop(OURS, None)
    data: dict[str, Json] = {"orchestrator_id": fields.get("id"), "state": fields}
    run = run_from_documented({**data, **({} if ours is None else {OURS: ours})}, at)
    return read_run_state(cast("dict[str, Json]", run), at)


def run_from_documented(data: Mapping[str, Json], at: float) -> dict[str, object]:
    """Our fields from the SDK's form. `at`: epoch seconds. When another program wrote it, only nodes that wait for a
    person have conversations. Errors: `SnapshotException`.
    """
    ours, document = object_field(data, OURS), object_field(data, "state")
    if ours is not None:
        return dict(ours)
    if document is None:
        raise SnapshotException("the snapshot of an orchestrator has no state")
    try:
        records = records_from(document, Run(), at=at)
    except Corrupt as error:
        raise SnapshotException("the run of a snapshot cannot be read", cause=str(error)) from error
    run = Run.of(records, records[-1].frontier if records else ())
    kind: OrchestratorKind = "swarm" if document.get("type") == "swarm" else "graph"
    waiting = run.left
    run.taken_over()
    return run_snapshot_fields(str(data.get("orchestrator_id", "")), kind, run, waiting)


def checked_agents(waiting: Mapping[str, Mapping[str, Json]]) -> dict[str, NodeFields]:
    """The waiting agents that another program left, checked. Errors: `SnapshotException`."""
    try:
        return {node: _node(fields, 0.0) for node, fields in waiting.items()}
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SnapshotException("the fields of a waiting node cannot be read", cause=repr(error)) from error


def _read(state: Mapping[str, Json], created_at: float) -> RunFields:
    nodes = {node: _node(json_object(each), created_at) for node, each in json_object(state["nodes"]).items()}
    fields = RunFields(
        orchestrator_id=_text(state["orchestrator_id"]),
        kind=_kind(state["kind"]),
        records=[_record(json_object(each)) for each in _list(state["run"])],
        frontier=json_texts(state["frontier"]),
        nodes=nodes,
        visit=_visit(state),
    )
    fields.run()
    return fields


def _node(fields: Mapping[str, Json], created_at: float) -> NodeFields:
    kind = fields.get("type")
    rest = {name: value for name, value in fields.items() if name not in ("type", "turn")}
    if kind == "agent":
        turn = json_object(fields.get("turn") or {})
        messages = _whole(turn["messages"]) if turn else 0
        return AgentInRun(fields=fields_of(rest, created_at), visit=_visit(fields), messages=messages)
    if kind == "multiAgent":
        return _read(fields, created_at)
    if kind == "other":
        return OtherInRun(state=rest.get("state"))
    raise ValueError(kind)


def _record(fields: Mapping[str, Json]) -> NodeChanged:
    status = fields["status"]
    if status not in _STATUSES:
        raise ValueError(status)
    at = fields["at"]
    if not isinstance(at, int | float):
        raise TypeError(at)
    return NodeChanged(
        at=at,
        run=_whole(fields["run"]),
        node=_text(fields["node"]),
        status=status,
        frontier=json_texts(fields["frontier"]),
        result=fields["result"],
        data=json_object(fields["data"]),
    )


def _visit(fields: Mapping[str, Json]) -> int | None:
    turn = fields.get("turn")
    return None if turn is None else _whole(json_object(turn)["visit"])


def _kind(value: Json) -> Literal["graph", "swarm"]:
    if value not in ("graph", "swarm"):
        raise ValueError(value)
    return value


def _whole(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value
