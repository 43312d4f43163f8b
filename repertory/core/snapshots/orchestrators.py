"""What a snapshot says of an orchestrator: its run, and each of its nodes as it was at that moment.

    {"orchestrator_id", "kind", "run": [RECORD, ...], "frontier": [NODE, ...], "nodes": {NODE: SAID}}
    SAID    {"type": "agent", FIELDS..., "turn": {"visit", "messages"}}     without messages: it had said nothing yet
            {"type": "multiAgent", the same again..., "turn": {"visit"}}
            {"type": "other", "state"}     of an object that keeps itself

A node that owes work goes on with it: `turn` says which of its executions in this run its last messages belong to.
What the SDK whose users we serve can read of it is the document of the run; ours stands beside that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from repertory.core.interrupt_state import snapshot_state
from repertory.core.journal.records import NodeChanged
from repertory.core.journal.shown import SUMMARY_SEQ
from repertory.core.journal.standing import standing_of
from repertory.core.orchestration.document import document_of, records_from
from repertory.core.orchestration.run import Kind, Run
from repertory.core.snapshots.fields import NamedTurn, SnapshotFields, fields_of, mapping
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import Corrupt, SnapshotException

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json

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
    kind: Kind
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

    kind: Kind
    nodes: Mapping[str, RunShape | Literal["agent", "other"]]


def check_shape(name: str, said: NodeFields, here: RunShape | Literal["agent", "other"]) -> None:
    """Errors: `SnapshotException` when it is something else here, or one of its nodes is."""
    match said, here:
        case RunFields(), RunShape(kind=kind, nodes=nodes):
            if said.kind != kind:
                raise SnapshotException(f"the snapshot is that of a {said.kind}", orchestrator=name, expected=kind)
            for node in said.nodes.keys() & nodes.keys():
                check_shape(node, said.nodes[node], nodes[node])
        case (AgentInRun(), "agent") | (OtherInRun(), "other"):
            pass
        case _:
            raise SnapshotException("a node of the snapshot is something else here", node=name)


def said_of_run(orchestrator_id: str, kind: Kind, run: Run, nodes: Mapping[str, object]) -> dict[str, object]:
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
        "interrupt_state": snapshot_state(standing_of(image)),
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


def read(said: Mapping[str, Json], created_at: float) -> RunFields:
    """What it says of an orchestrator, bytes as bytes; `created_at` in epoch seconds. Errors: `SnapshotException`."""
    try:
        return _read(said, created_at)
    except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise SnapshotException("what a snapshot says of an orchestrator cannot be read", cause=repr(error)) from error


def documented(state: Mapping[str, Json]) -> dict[str, Json]:
    """The same as the SDK has it, with ours beside it. Errors: `SnapshotException`."""
    fields = read(state, 0.0)
    document = cast("Json", document_of(fields.run(), fields.orchestrator_id))
    return {"orchestrator_id": fields.orchestrator_id, "state": document, OURS: cast("Json", dict(state))}


def from_documented(data: Mapping[str, Json], at: float) -> dict[str, object]:
    """What a snapshot of ours says, out of one in the SDK's words; `at` in epoch seconds. Where somebody else has
    written it, only nodes that wait for a person have conversations. Errors: `SnapshotException`.
    """
    ours, document = mapping(data, OURS), mapping(data, "state")
    if ours is not None:
        return dict(ours)
    if document is None:
        raise SnapshotException("the snapshot of an orchestrator has no state")
    try:
        records = records_from(document, Run(), at=at)
    except Corrupt as error:
        raise SnapshotException("the run of a snapshot cannot be read", cause=str(error)) from error
    run = Run.of(records, records[-1].frontier if records else ())
    kind: Kind = "swarm" if document.get("type") == "swarm" else "graph"
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
    nodes = {node: _node(_object(each), created_at) for node, each in _object(said["nodes"]).items()}
    fields = RunFields(
        orchestrator_id=_text(said["orchestrator_id"]),
        kind=_kind(said["kind"]),
        records=[_record(_object(each)) for each in _list(said["run"])],
        frontier=_texts(said["frontier"]),
        nodes=nodes,
        visit=_visit(said),
    )
    fields.run()
    return fields


def _node(said: Mapping[str, Json], created_at: float) -> NodeFields:
    kind = said.get("type")
    rest = {name: value for name, value in said.items() if name not in ("type", "turn")}
    if kind == "agent":
        turn = _object(said.get("turn") or {})
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
        frontier=_texts(said["frontier"]),
        result=said["result"],
        data=_object(said["data"]),
    )


def _visit(said: Mapping[str, Json]) -> int | None:
    turn = said.get("turn")
    return None if turn is None else _whole(_object(turn)["visit"])


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


def _texts(value: Json) -> tuple[str, ...]:
    return tuple(_text(each) for each in _list(value))


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise TypeError(value)
    return value


def _object(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value
