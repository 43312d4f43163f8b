"""A snapshot that a program keeps itself: an agent, or an orchestrator with its nodes, as plain JSON with a digest.

`type`, `state` and `metadata` are the documented fields; `created_at`, `schema_version` and `sha256` are ours. The
newest release of the SDK whose users we serve spells the same as `scope`, `data` and `app_data`: `to_dict` gives that,
and it is read as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from repertory.core.interrupt_state import snapshot_state
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.plain_json import dump, load
from repertory.core.journal.records import NodeChanged
from repertory.core.journal.view import SUMMARY_SEQ
from repertory.core.limits import RECORD_DEPTH_MAX, is_too_deep
from repertory.core.message_tree.json_files import decoded, encoded, epoch, zulu
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.results import json_object, json_texts
from repertory.core.orchestration.run import OrchestratorKind, Run
from repertory.core.snapshots.document import SCHEMA_VERSION, content_digest
from repertory.core.snapshots.fields import ALL_FIELDS, NamedTurn, SnapshotFields, fields_of, object_field
from repertory.core.state import json_copy
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import Corrupt, Invalid, SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json

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
        said = documented_run(state) if self["type"] == ORCHESTRATOR else state
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
    return Snapshot(
        make_snapshot(kind, plain_json(state), cast("dict[str, Json]", json_copy(dict(metadata or {}))), zulu(at))
    )


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
    return read_run_state(revived(snapshot.data), epoch(snapshot.created_at))


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
        raise digest_mismatch()
    try:
        fields = cast("dict[str, Json]", decoded(data))
    except ValueError as error:
        raise SnapshotException("what a snapshot holds cannot be read", cause=str(error)) from error
    if kind == ORCHESTRATOR:
        state = run_from_documented(fields, epoch(created_at))
    else:
        state = {name: value for name, value in fields.items() if name in ALL_FIELDS}
    return Snapshot(make_snapshot(cast("str", kind), plain_json(state), app_data, created_at))


def _overridden(said: dict[str, Json], overrides: Mapping[str, object]) -> dict[str, Json]:
    for name, value in overrides.items():
        if name.startswith(_STATE_KEY):
            state = said.get("state")
            said["state"] = {
                **(state if isinstance(state, dict) else {}),
                name.removeprefix(_STATE_KEY): json_copy(value),
            }
        elif name in ALL_FIELDS:
            said[name] = revived(plain_json({name: value}))[name]
        else:
            known = sorted((*ALL_FIELDS, f"{_STATE_KEY}KEY"))
            raise Invalid(f"Invalid snapshot field: {name!r}", known=known)
    return said


# What stands around the content of every snapshot that a program keeps itself: kind, version, time, metadata, digest.
#
# The digest covers everything but itself and the metadata, which belongs to the application. Bytes are marked as in
# journals, so that whatever users store comes back as it was.

_KEYS = frozenset(("type", "state", "metadata", "created_at", "schema_version", "sha256"))


def make_snapshot(
    kind: str, state: Mapping[str, Json], metadata: Mapping[str, Json], created_at: str
) -> dict[str, Json]:
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
        raise digest_mismatch()


def check_version(version: object) -> None:
    """Errors: `SnapshotException` for one that nobody here can read."""
    if version != SCHEMA_VERSION:
        raise SnapshotException(f"Unsupported snapshot schema version: {version!r}. Current version: {SCHEMA_VERSION}")


def digest_mismatch() -> SnapshotException:
    """What to say of content that is not what was digested."""
    return SnapshotException("the snapshot was changed after it was taken: its digest does not fit; use `overrides`")


def plain_json(fields: Mapping[str, object]) -> dict[str, Json]:
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


# What a snapshot says of an orchestrator: its run, and each of its nodes as it was at that moment.
#
#     {"orchestrator_id", "kind", "run": [RECORD, ...], "frontier": [NODE, ...], "nodes": {NODE: SAID}}
#     SAID    {"type": "agent", FIELDS..., "turn": {"visit", "messages"}}     without messages: it had said nothing yet
#             {"type": "multiAgent", the same again..., "turn": {"visit"}}
#             {"type": "other", "state"}     of an object that keeps itself
#
# A node that owes work goes on with it: `turn` says which of its executions in this run its last messages belong to.
# What the SDK whose users we serve can read of it is the document of the run; ours stands beside that.

OURS = "repertory"
_STATUSES = ("started", "completed", "failed", "interrupted")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInRun:
    """An agent that is a node."""

    fields: SnapshotFields
    visit: int | None = None
    """Which of its executions in the run its last turn is; None when it is none of this run."""
    messages: int = 0
    """How many of the last messages belong to that turn."""

    def under(self, token: str | None) -> SnapshotFields:
        """What it shows, with its last turn under that name."""
        turn = None if token is None or not self.messages else NamedTurn(token, self.messages)
        return replace(self.fields, turn=turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherInRun:
    """An object that keeps itself, as a node."""

    state: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFields:
    """An orchestrator, checked."""

    orchestrator_id: str
    kind: OrchestratorKind
    records: Sequence[NodeChanged] = ()
    """The latest word on each node; none when there was no run."""
    frontier: tuple[str, ...] = ()
    nodes: Mapping[str, NodeFields] = field(default_factory=dict[str, "NodeFields"])
    """Those that had done anything."""
    visit: int | None = None
    """As a node: which of its executions the run is."""

    def run(self) -> Run:
        """The run as it was. Errors: `SnapshotException`."""
        try:
            run = Run.of(self.records, self.frontier)
            for note in run.notes.values():
                note.kept.read()
        except Corrupt as error:
            raise SnapshotException("the run of a snapshot cannot be read", cause=str(error)) from error
        run.kind = self.kind
        return run


NodeFields: TypeAlias = AgentInRun | RunFields | OtherInRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RunShape:
    """What an orchestrator, and each of its nodes, is."""

    kind: OrchestratorKind
    nodes: Mapping[str, RunShape | Literal["agent", "other"]]


def check_orchestrator(name: str, said: NodeFields, here: RunShape | Literal["agent", "other"]) -> None:
    """Errors: `SnapshotException` when it is something else here, or one of its nodes is."""
    match said, here:
        case RunFields(), RunShape(kind=kind, nodes=nodes):
            if said.kind != kind:
                raise SnapshotException(f"the snapshot is that of a {said.kind}", orchestrator=name, expected=kind)
            for node in said.nodes.keys() & nodes.keys():
                check_orchestrator(node, said.nodes[node], nodes[node])
        case (AgentInRun(), "agent") | (OtherInRun(), "other"):
            pass
        case _:
            raise SnapshotException("a node of the snapshot is something else here", node=name)


def said_of_run(
    orchestrator_id: str, kind: OrchestratorKind, run: Run, nodes: Mapping[str, object]
) -> dict[str, object]:
    """What a snapshot says of an orchestrator. `nodes`: what it says of each of them."""
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


def token_of(said: Mapping[str, object]) -> str | None:
    """What the caller of the run named it, out of what a snapshot says of an orchestrator."""
    records = cast("Sequence[Mapping[str, Mapping[str, Json]]]", said["run"])
    return cast("str | None", records[0]["data"].get("token")) if records else None


def said_of_agent(image: Image) -> dict[str, object]:
    """What a snapshot says of the conversation of a node."""
    manager = {**image.view.manager_state, "__name__": image.view.manager or DEFAULT_MANAGER}
    return {
        "messages": [message for _, message in image.shown],
        "state": dict(image.state),
        "conversation_manager_state": manager,
        "interrupt_state": snapshot_state(pending_tools_of(image)),
        "model_state": {},
    }


def last_turn(image: Image) -> NamedTurn | None:
    """The last turn of a conversation, answered or not, if its caller gave it a name."""
    begun = image.token
    if begun is None:
        answered = [turn for turn in image.finished_turns.values() if turn.answer_seq == image.last_message_seq]
        begun = (answered[-1].token, answered[-1].seq) if answered else None
    if begun is None:
        return None
    token, first = begun
    messages = sum(1 for seq, _ in image.shown if seq != SUMMARY_SEQ and seq >= first)
    return NamedTurn(token, messages) if messages else None


def read_run_state(said: Mapping[str, Json], created_at: float) -> RunFields:
    """What it says of an orchestrator, bytes as bytes; `created_at` in epoch seconds. Errors: `SnapshotException`."""
    try:
        return _read(said, created_at)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SnapshotException("what a snapshot says of an orchestrator cannot be read", cause=repr(error)) from error


def documented_run(state: Mapping[str, Json]) -> dict[str, Json]:
    """The same as the SDK has it, with ours beside it. Errors: `SnapshotException`."""
    fields = read_run_state(state, 0.0)
    document = cast("Json", document_of(fields.run(), fields.orchestrator_id))
    return {"orchestrator_id": fields.orchestrator_id, "state": document, OURS: cast("Json", dict(state))}


def run_from_documented(data: Mapping[str, Json], at: float) -> dict[str, object]:
    """What a snapshot of ours says, out of one in the SDK's words; `at` in epoch seconds. Where somebody else has
    written it, only nodes that wait for a person have conversations. Errors: `SnapshotException`.
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
    left = run.left
    run.taken_over()
    return said_of_run(str(data.get("orchestrator_id", "")), kind, run, left)


def left_agents(left: Mapping[str, Mapping[str, Json]]) -> dict[str, NodeFields]:
    """What somebody else has left of agents that wait, checked. Errors: `SnapshotException`."""
    try:
        return {node: _node(said, 0.0) for node, said in left.items()}
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SnapshotException("what was left of a node cannot be read", cause=repr(error)) from error


def _read(said: Mapping[str, Json], created_at: float) -> RunFields:
    nodes = {node: _node(json_object(each), created_at) for node, each in json_object(said["nodes"]).items()}
    fields = RunFields(
        orchestrator_id=_text(said["orchestrator_id"]),
        kind=_kind(said["kind"]),
        records=[_record(json_object(each)) for each in _list(said["run"])],
        frontier=json_texts(said["frontier"]),
        nodes=nodes,
        visit=_visit(said),
    )
    fields.run()
    return fields


def _node(said: Mapping[str, Json], created_at: float) -> NodeFields:
    kind = said.get("type")
    rest = {name: value for name, value in said.items() if name not in ("type", "turn")}
    if kind == "agent":
        turn = json_object(said.get("turn") or {})
        messages = _whole(turn["messages"]) if turn else 0
        return AgentInRun(fields=fields_of(rest, created_at), visit=_visit(said), messages=messages)
    if kind == "multiAgent":
        return _read(said, created_at)
    if kind == "other":
        return OtherInRun(state=rest.get("state"))
    raise ValueError(kind)


def _record(said: Mapping[str, Json]) -> NodeChanged:
    status = said["status"]
    if status not in _STATUSES:
        raise ValueError(status)
    at = said["at"]
    if not isinstance(at, int | float):
        raise TypeError(at)
    return NodeChanged(
        at=at,
        run=_whole(said["run"]),
        node=_text(said["node"]),
        status=status,
        frontier=json_texts(said["frontier"]),
        result=said["result"],
        data=json_object(said["data"]),
    )


def _visit(said: Mapping[str, Json]) -> int | None:
    turn = said.get("turn")
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
