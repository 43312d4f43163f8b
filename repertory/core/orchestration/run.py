"""One run of an orchestrator, as the records in its journal: the task, what ended how, and which nodes are pending.

    begun            node "", status started     the task and the first frontier
    a node ended     its id and status            its result, and the frontier after it
    stopped          node "", status failed       a limit ended the run: the frontier is empty

A run is over when its frontier is empty. A node's end and the frontier after it are one record, so a crash never falls
between them. Running nodes are not recorded: after a crash a pending node starts again with the same token, and its own
journal knows how far it got. A node's latest record has the sums over the whole run, so the latest records suffice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

from msgspec import Struct, field
from msgspec.structs import replace

from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import NodeChanged
from repertory.core.json_fields import counts_in, json_number, json_object, json_texts
from repertory.core.messages import repair_stored_message
from repertory.core.run_results import (
    NO_USAGE,
    NodeResult,
    Status,
    executions_in,
    latency_in,
    sum_of,
    usage_in,
)
from repertory.errors import CorruptJournal

if TYPE_CHECKING:
    from repertory.core.journal.records import NodeStatus, Record
    from repertory.core.messages import ContentBlock, Json, Usage

# The places of one node's executions in the order of the run's work, as arithmetic ranges: a loop of any length needs
# few. In records: numbers, and [first, step, times] for ranges of three and more.

PROGRESSIONS_MAX = 256
"""The number of latest ranges that are stored of a node that runs often at irregular positions."""
TIMES_MAX = 1_000_000
"""The largest `times` accepted from a record: a few numbers must not use up all memory."""
_SHORTEST = 3


class _Progression(NamedTuple):
    first: int
    step: int
    times: int

    @property
    def last(self) -> int:
        return self.first + self.step * (self.times - 1)


class Places(Struct, frozen=True):
    """Increasing numbers, from 1."""

    _progressions: tuple[_Progression, ...] = ()

    def __iter__(self) -> Iterator[int]:
        for first, step, times in self._progressions:
            for number in range(times):
                yield first + step * number

    def __len__(self) -> int:
        return sum(progression.times for progression in self._progressions)

    @property
    def last(self) -> int:
        """The highest number; 0 when there is none."""
        return self._progressions[-1].last if self._progressions else 0

    def and_then(self, position: int) -> Places:
        """A copy with one more number at the end."""
        earlier, last = self._progressions[:-1], self._progressions[-1] if self._progressions else None
        if last is not None and last.times == 1:
            return Places((*earlier, _Progression(last.first, position - last.first, 2)))
        if last is not None and position == last.last + last.step:
            return Places((*earlier, last._replace(times=last.times + 1)))
        # A record is written at each end of a node, so its size must not grow with the length of the run.
        return Places((*self._progressions, _Progression(position, 1, 1))[-PROGRESSIONS_MAX:])

    def to_json(self) -> list[Json]:
        """The JSON form for records."""
        numbers: list[Json] = []
        for progression in self._progressions:
            if progression.times >= _SHORTEST:
                numbers.append(list(progression))
            else:
                numbers.extend(Places((progression,)))
        return numbers

    @classmethod
    def of(cls, places: Iterable[int]) -> Places:
        found = cls()
        for position in places:
            found = found.and_then(position)
        return found

    @classmethod
    def read(cls, value: object) -> Places:
        """The places in the JSON of `value`. Errors: `TypeError`, `ValueError`."""
        if not isinstance(value, list):
            raise TypeError(value)
        found = _NOWHERE
        for each in cast("list[object]", value):
            if isinstance(each, list):
                first, step, times = map(_whole, cast("list[object]", each))
                if min(first, step, times) < 1 or times > TIMES_MAX:
                    raise ValueError((first, step, times))
                found = cls((*found._progressions, _Progression(first, step, times)))
            else:
                found = found.and_then(_whole(each))
        return found


_NOWHERE = Places()


OrchestratorKind = Literal["graph", "swarm"]
"""The kind of orchestrator, as documents name it."""
Task: TypeAlias = "str | Sequence[ContentBlock]"
"""The task of a run: text, or content blocks."""
TOKENS_MAX = 64
"""The number of idempotency tokens that are stored, of a run and of runs before it."""
RUN = ""
"""Stands for the node's id in records of the run itself."""


class Ended(Struct, frozen=True, kw_only=True):
    """The end of one execution of a node."""

    result: NodeResult
    done: bool = True
    """True if its work is done, with success or failure; False if it is still pending."""
    context: Mapping[str, Json] = {}
    """Values that it leaves for other nodes."""
    handed: tuple[str, str] | None = None
    """The agent it hands over to, and the message."""


class StoredResult:
    """A node's result, parsed on first use: parsing takes longer than all else in opening a run, and is often not
    needed.
    """

    __slots__ = ("_record", "_result")

    def __init__(self, result: NodeResult | Mapping[str, Json]) -> None:
        self._result = result if isinstance(result, NodeResult) else None
        self._record = None if isinstance(result, NodeResult) else result

    def read(self) -> NodeResult:
        """The result. Errors: `Corrupt`."""
        if self._result is None:
            self._result, self._record = NodeResult.from_record(self._record or {}), None
        return self._result

    def to_record(self) -> Mapping[str, Json]:
        """The result in the form of records."""
        return self._record if self._record is not None else self.read().to_record()


class NodeNote(Struct, frozen=True, kw_only=True):
    """The state, in a run, of a node that has ended at least once."""

    stored_result: StoredResult
    """The latest result."""
    status: Status
    """The status of the latest result."""
    visits: int = 0
    """The number of executions that finished its work."""
    places: Places = field(default_factory=Places)
    """The positions of these executions in the order of all finished work."""
    usage: Mapping[str, int] = field(default_factory=lambda: cast("dict[str, int]", dict(NO_USAGE)))
    """Tokens, over all executions."""
    latency_ms: float = 0.0
    executions: int = 0
    """Turns of the agents below it, over all executions."""
    context: Mapping[str, Json] = {}
    """Values that it has left for other nodes."""
    handed: tuple[str, str] | None = None
    """The agent it handed over to, and the message."""
    left: Mapping[str, Json] | None = None
    """The snapshot fields of its agent, when another program left it waiting, until the agent is restored from them."""

    @property
    def result(self) -> NodeResult:
        """The latest result. Errors: `Corrupt`."""
        return self.stored_result.read()

    def next(self, end: Ended, position: int) -> NodeNote:
        """The note after one more end."""
        result = end.result
        return NodeNote(
            stored_result=StoredResult(result),
            status=result.status,
            visits=self.visits + end.done,
            places=self.places.and_then(position) if end.done else self.places,
            usage=sum_of(self.usage, result.accumulated_usage),
            latency_ms=self.latency_ms + result.accumulated_metrics.get("latencyMs", 0),
            executions=self.executions + result.execution_count,
            context={**self.context, **end.context},
            handed=end.handed,
        )

    def to_data(self, result: Mapping[str, Json]) -> dict[str, Json]:
        """The record data besides the result; sums only where they differ from the result's."""
        data: dict[str, Json] = {"places": self.places.to_json()}
        if self.visits != len(self.places):
            data["visits"] = self.visits
        if self.usage != usage_in(result):
            data["usage"] = dict(self.usage)
        if self.latency_ms != latency_in(result):
            data["latency_ms"] = self.latency_ms
        if self.executions != executions_in(result):
            data["executions"] = self.executions
        if self.context:
            data["context"] = dict(self.context)
        if self.handed is not None:
            data["handed"] = list(self.handed)
        if self.left is not None:
            data["left"] = dict(self.left)
        return data


class _Results(Mapping[str, "NodeResult"]):
    """The results of nodes, each parsed on first use."""

    def __init__(self, notes: Mapping[str, NodeNote]) -> None:
        self._notes = notes

    def __getitem__(self, node: str) -> NodeResult:
        return self._notes[node].result

    def __iter__(self) -> Iterator[str]:
        return iter(self._notes)

    def __len__(self) -> int:
        return len(self._notes)

    def __repr__(self) -> str:
        return repr(dict(self))


class Run:
    """The state of a run. Only `apply` changes it, for new and for stored records alike."""

    def __init__(self) -> None:
        self.number: int = 0
        """The run's number, from 1; 0 before the first run."""
        self.begun_at = 0.0
        """The start of the run, in epoch seconds. Together with the number it identifies the run."""
        self.kind: OrchestratorKind = "graph"
        self.task: Task = ""
        self.edges: Mapping[str, Sequence[str]] = {}
        """The targets of each node's edges, of a graph. For pictures: a run goes by the edges of today's graph."""
        self.tokens: tuple[str, ...] = ()
        """The idempotency tokens of the run, the latest ones."""
        self.earlier: dict[str, int] = {}
        """Token to number, for finished earlier runs, the latest ones. Read-only."""
        self.frontier: tuple[str, ...] = ()
        """The pending nodes; one that must run twice is in it twice."""
        self.ready: tuple[str, ...] = ()
        """The pending nodes that may start at once when the run goes on."""
        self.responses: dict[str, Json] = {}
        """Responses about unfinished work, by the interrupt ids of `calls.py`. Read-only."""
        self.notes: dict[str, NodeNote] = {}
        """The notes by node, in the order of the nodes' first ends. Read-only."""
        self.ends = 0
        """The number of executions that finished their work."""
        self.elapsed_ms = 0
        """The working time of the run, in milliseconds."""
        self.reason: str | None = None
        """The reason of a run that ended before its work was done."""
        self.loading = False
        """True if it came with a snapshot that is not loaded into all nodes yet."""

    @classmethod
    def of(cls, records: Iterable[NodeChanged], frontier: tuple[str, ...], last: int = 0) -> Run:
        """The run from the latest record of each node, in order of first mention. `last`: the highest run number so
        far, which a rewind may have removed from the records.
        """
        run, ready = cls(), dict[tuple[str, ...], tuple[str, ...]]()
        for record in records:
            run.apply(record)
            ready[run.frontier] = run.ready
        # The nodes' records come in order of first mention, and the last of them need not be the newest; only the fold
        # knows the frontier.
        run.frontier, run.ready = frontier, ready.get(frontier, frontier)
        run.number = max(run.number, last)
        return run

    @property
    def over(self) -> bool:
        """True if no node is pending."""
        return not self.frontier

    @property
    def status(self) -> Status:
        """The status of the run. With pending nodes it is `executing`, even while nothing drives it."""
        if not self.number:
            return Status.PENDING
        if self.reason is not None:
            return Status.FAILED
        pending = {note.status for node, note in self.notes.items() if node in self.frontier}
        for status in (Status.INTERRUPTED, Status.FAILED):
            if status in pending:
                return status
        return Status.COMPLETED if self.over else Status.EXECUTING

    @property
    def results(self) -> Mapping[str, NodeResult]:
        """The latest result of each node."""
        return _Results(dict(self.notes))

    @property
    def order(self) -> tuple[str, ...]:
        """The nodes of all finished executions, in order; see `STRETCHES_MAX`."""
        places = {position: node for node, note in self.notes.items() for position in note.places}
        return tuple(places[position] for position in sorted(places))

    @property
    def last(self) -> NodeNote | None:
        """The note of the node that finished its work last."""
        done = (note for note in self.notes.values() if note.places.last)
        return max(done, key=lambda note: note.places.last, default=None)

    @property
    def usage(self) -> Usage:
        """The tokens of the whole run."""
        total = cast("dict[str, int]", dict(NO_USAGE))
        for note in self.notes.values():
            total = sum_of(total, note.usage)
        return cast("Usage", total)

    @property
    def latency_ms(self) -> float:
        """The latency of all model calls, in milliseconds, as the providers measured it."""
        return sum(note.latency_ms for note in self.notes.values())

    @property
    def executions(self) -> int:
        """The agents' turns in the run."""
        return sum(note.executions for note in self.notes.values())

    def with_status(self, status: Status) -> tuple[str, ...]:
        """The nodes whose latest end has this status."""
        return tuple(node for node, note in self.notes.items() if note.status is status)

    def begun(
        self,
        task: Task,
        entries: tuple[str, ...],
        *,
        at: float,
        kind: OrchestratorKind,
        tokens: tuple[str, ...] = (),
        edges: Mapping[str, Sequence[str]] = {},
    ) -> NodeChanged:
        """The record of a new run after this one."""
        data = _run_data(task, kind, tokens, self.named_so_far, at, edges)
        return NodeChanged(at=at, run=self.number + 1, node=RUN, status="started", frontier=entries, data=data)

    def ended(self, node: str, end: Ended, frontier: tuple[str, ...], *, at: float, elapsed_ms: int) -> NodeChanged:
        """The record of a node's end."""
        first = NodeNote(stored_result=StoredResult(end.result), status=end.result.status)
        note = self.notes.get(node, first).next(end, self.ends + 1)
        result = end.result.to_record()
        return NodeChanged(
            at=at,
            run=self.number,
            node=node,
            status=_STATUS[end.result.status],
            frontier=frontier,
            result=result,
            data={**note.to_data(result), "elapsed_ms": elapsed_ms},
        )

    def restated(
        self, *, at: float, responses: Mapping[str, Json] | None = None, elapsed_ms: int | None = None
    ) -> NodeChanged:
        """The record of the current responses and the working time; for None, those of the run."""
        spent_ms = self.elapsed_ms if elapsed_ms is None else elapsed_ms
        counting = self.responses if responses is None else responses
        data: dict[str, Json] = {"responses": dict(counting), "elapsed_ms": spent_ms}
        data |= self._again()
        record = NodeChanged(at=at, run=self.number, node=RUN, status="started", data=data)
        return leading_to(record, self.frontier, self.ready)

    def stopped(self, reason: str, *, at: float, elapsed_ms: int) -> NodeChanged:
        """The record of a run that ends here."""
        data = {**self._again(), "reason": reason, "elapsed_ms": elapsed_ms}
        return NodeChanged(at=at, run=self.number, node=RUN, status="failed", data=data)

    def records(self, *, at: float) -> list[NodeChanged]:
        """The latest record of each node, as of now, for `of`. Empty before the first run."""
        if not self.number:
            return []
        run_data = self._again()
        run_data |= {"responses": dict(self.responses), "elapsed_ms": self.elapsed_ms}
        if self.reason is not None:
            run_data["reason"] = self.reason
        if self.loading:
            run_data["loading"] = True
        status: NodeStatus = "started" if self.reason is None else "failed"
        made = [NodeChanged(at=at, run=self.number, node=RUN, status=status, data=run_data)]
        for node, note in self.notes.items():
            result, status = note.stored_result.to_record(), _STATUS[note.status]
            data = {**note.to_data(result), "elapsed_ms": self.elapsed_ms}
            word = cast("Json", result)
            made.append(NodeChanged(at=at, run=self.number, node=node, status=status, result=word, data=data))
        return [leading_to(record, self.frontier, self.ready) for record in made]

    def forget_end(self, node: str, before: NodeNote | None) -> None:
        """Take back the end of a node. `before`: its note before that end."""
        if before is None:
            del self.notes[node]
        else:
            self.notes[node] = before
        self.ends = max((note.places.last for note in self.notes.values()), default=0)

    def _again(self) -> dict[str, Json]:
        return _run_data(self.task, self.kind, self.tokens, self.earlier, self.begun_at, self.edges)

    @property
    def named_so_far(self) -> dict[str, int]:
        """The `earlier` of the run after this one."""
        known = {**self.earlier, **(dict.fromkeys(self.tokens, self.number) if self.over else {})}
        return dict([*known.items()][-TOKENS_MAX:])

    def called(self, token: str) -> None:
        """Add an idempotency token to the run."""
        self.tokens = (*self.tokens, token)[-TOKENS_MAX:]

    @property
    def left(self) -> dict[str, Mapping[str, Json]]:
        """Node to the snapshot fields of an agent that another program left waiting."""
        return {node: note.left for node, note in self.notes.items() if note.left is not None}

    def taken_over(self) -> None:
        """Drop these fields: the agents are restored from them."""
        self.notes = {node: replace(note, left=None) for node, note in self.notes.items()}

    def apply(self, record: NodeChanged, result: NodeResult | None = None) -> None:
        """Apply the next record. `result`: its result object, if at hand: JSON loses part of it.

        Errors: `CorruptJournal` for a malformed record.
        """
        try:
            if record.node == RUN:
                self._on_run(record)
            else:
                note = self.notes[record.node] = _note(record, result)
                self.ends = max(self.ends, note.places.last)
            self.frontier = record.frontier
            self.ready = json_texts(list(cast("Sequence[Json]", record.data.get("ready", record.frontier))))
            # Records of nodes that ended side by side may come in another order than their clocks were read.
            self.elapsed_ms = max(self.elapsed_ms, _whole(record.data.get("elapsed_ms", 0)))
        except (ArithmeticError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise CorruptJournal("a node's record cannot be read", node=record.node, cause=repr(error)) from error

    def _on_run(self, record: NodeChanged) -> None:
        if record.run != self.number:
            self.notes, self.ends, self.elapsed_ms = {}, 0, 0
        self.number = record.run
        task = record.data["task"]
        self.task = task if isinstance(task, str) else _blocks(task)
        self.begun_at = json_number(record.data.get("begun_at", 0.0))
        edges = json_object(record.data.get("edges", {}))
        self.edges = {node: json_texts(cast("list[Json]", targets)) for node, targets in edges.items()}
        self.kind = "swarm" if record.data.get("kind") == "swarm" else "graph"
        token, more = record.data.get("token"), record.data.get("more_tokens", [])
        self.earlier = earlier_in(record)
        self.tokens = () if token is None else json_texts([token, *cast("list[Json]", more)])
        reason = record.data.get("reason")
        self.reason = None if reason is None else str(reason)
        self.loading = record.data.get("loading") is True
        self.responses = dict(json_object(record.data.get("responses", {})))


_STATUS: Mapping[Status, NodeStatus] = {
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.INTERRUPTED: "interrupted",
}


def leading_to(record: NodeChanged, frontier: tuple[str, ...], ready: tuple[str, ...]) -> NodeChanged:
    """The record with this frontier and these ready nodes."""
    more: dict[str, Json] = {} if ready == frontier else {"ready": list(ready)}
    return replace(record, frontier=frontier, data={**record.data, **more})


def earlier_in(record: NodeChanged) -> dict[str, int]:
    """Token to run number of the earlier runs in a record."""
    return {token: _whole(number) for token, number in json_object(record.data.get("earlier", {})).items()}


def _run_data(
    task: Task,
    kind: OrchestratorKind,
    tokens: tuple[str, ...],
    earlier: Mapping[str, int],
    begun_at: float,
    edges: Mapping[str, Sequence[str]],
) -> dict[str, Json]:
    task_json = cast("Json", task if isinstance(task, str) else list(task))
    data: dict[str, Json] = {"task": task_json, "kind": kind, "begun_at": begun_at}
    if tokens:
        data["token"] = tokens[0]
    if earlier:
        data["earlier"] = dict(earlier)
    if edges:
        data["edges"] = {node: list(targets) for node, targets in edges.items()}
    return {**data, "more_tokens": list(tokens[1:])} if tokens[1:] else data


def _note(record: NodeChanged, result: NodeResult | None) -> NodeNote:
    data, fields = record.data, record.result
    if not isinstance(fields, Mapping):
        raise TypeError(fields)
    handed = None if data.get("handed") is None else json_texts(data["handed"])
    places = Places.read(data["places"])
    usage, latency_ms = data.get("usage"), data.get("latency_ms")
    return NodeNote(
        stored_result=StoredResult(result or fields),
        status=Status(record.status),
        visits=_whole(data.get("visits", len(places))),
        places=places,
        usage=usage_in(fields) if usage is None else counts_in(usage),
        latency_ms=latency_in(fields) if latency_ms is None else json_number(latency_ms),
        executions=_whole(data["executions"]) if "executions" in data else executions_in(fields),
        context=json_object(data.get("context", {})),
        handed=None if handed is None else (handed[0], handed[1]),
        left=None if data.get("left") is None else json_object(data["left"]),
    )


def _blocks(task: Json) -> list[ContentBlock]:
    return repair_stored_message({"role": "user", "content": task})["content"]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(value)
    return value


# Execution tokens: each execution of a node has one, the same after a crash. By it the node's own journal knows whether
# the execution was answered, begun or neither.


def execution_token(orchestrator: str, run: Run, node: str, visit: int) -> str:
    """The idempotency token of a node's execution. `visit`: the number of executions before it."""
    return f"{_named(orchestrator, run, node)}{visit}"


def visit_of(token: str, orchestrator: str, run: Run, node: str) -> int | None:
    """The execution's number, from its token; None for a token of another run or node."""
    visit = token.removeprefix(_named(orchestrator, run, node))
    return int(visit) if visit != token and visit.isdecimal() else None


def _named(orchestrator: str, run: Run, node: str) -> str:
    return f"{orchestrator}:{run.number}@{run.begun_at}:{node}:"


def past_run(records: Sequence[tuple[int, Record | None]], number: int) -> Run | None:
    """A finished run by its number, without what a rewind left behind; None when it is missing or unfinished.

    `records`: the whole journal, in order, or at least the run's records and all later ones. Errors: `CorruptJournal`.
    """
    path = paths_to(records, [records[-1][0]]) if records else []
    run = Run()
    for seq, record in records:
        if isinstance(record, NodeChanged) and record.run == number and within(seq, path):
            run.apply(record)
    return run if run.number == number and run.over else None


class NodeNotice(NamedTuple):
    """A timeline text from one record."""

    text: str
    """Run: its task when it begins, the reason when it ends early. Node: its result, or its question."""
    tokens: int | None = None
    """The tokens of that execution; None when unreported."""


def notice_of(record: NodeChanged) -> NodeNotice | None:
    """The timeline text of a record; None for a restatement. Errors: `Corrupt` for an unreadable result."""
    if record.node:
        result = NodeResult.from_record(cast("Mapping[str, Json]", record.result))
        asked = ", ".join(each.name for each in result.interrupts)
        text = asked if result.status is Status.INTERRUPTED else str(result)
        return NodeNotice(text, result.accumulated_usage.get("totalTokens") or None)
    if record.status == "failed":
        return NodeNotice(str(record.data.get("reason")))
    again = "responses" in record.data and not record.data.get("loading")  # A loaded run begins here.
    return None if again else NodeNotice(_words_of(record.data.get("task")))


def _words_of(task: Json) -> str:
    if isinstance(task, str):
        return task
    blocks = [each for each in task if isinstance(each, dict)] if isinstance(task, list) else []
    return " ".join(str(each["text"]) for each in blocks if "text" in each)
