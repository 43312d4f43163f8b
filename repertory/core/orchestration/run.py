"""One run of an orchestrator, as the records of its journal say it: the task, what ended how, and what owes work.

    begun            node "", status started     the task and the first frontier
    a node ended     its id and status            its result, and the frontier after it
    stopped          node "", status failed       a limit ended the run: the frontier is empty

A run is over when its frontier is empty. The end of a node and what follows from it are one record, so a crash never
lies between them. What runs is on no record: a node that owes work is begun again under the same token, and its own
journal knows how far it had got. A node's latest record has the sums of all that it did in the run, so the latest ones
are enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, cast

from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import NodeChanged
from repertory.core.messages import repair_stored_message
from repertory.core.orchestration.results import (
    NO_USAGE,
    NodeResult,
    Status,
    counts_in,
    executions_in,
    json_number,
    json_object,
    json_texts,
    latency_in,
    sum_of,
    usage_in,
)
from repertory.errors import CorruptJournal

if TYPE_CHECKING:
    from repertory.core.journal.records import NodeStatus, Record
    from repertory.core.messages import ContentBlock, Json, Usage

# Where in the order of a run's work the executions of one node stand, as stretches: a loop of any length is a few.
# In records: numbers, and [first, step, how many] for stretches of three and more.

STRETCHES_MAX = 256
"""Of a node that runs very often at irregular times, this many are kept, the latest."""
TIMES_MAX = 1_000_000
"""What a stretch may say that it stands for. A few numbers in a record must not take all memory when they are read."""
_SHORTEST = 3


class _Stretch(NamedTuple):
    first: int
    step: int
    times: int

    @property
    def last(self) -> int:
        return self.first + self.step * (self.times - 1)


@dataclass(frozen=True, slots=True)
class Places:
    """Numbers from 1 that rise."""

    _stretches: tuple[_Stretch, ...] = ()

    def __iter__(self) -> Iterator[int]:
        for first, step, times in self._stretches:
            for number in range(times):
                yield first + step * number

    def __len__(self) -> int:
        return sum(stretch.times for stretch in self._stretches)

    @property
    def last(self) -> int:
        """The highest; 0 when there is none."""
        return self._stretches[-1].last if self._stretches else 0

    def and_then(self, place: int) -> Places:
        """These, and one behind them."""
        kept, last = self._stretches[:-1], self._stretches[-1] if self._stretches else None
        if last is not None and last.times == 1:
            return Places((*kept, _Stretch(last.first, place - last.first, 2)))
        if last is not None and place == last.last + last.step:
            return Places((*kept, last._replace(times=last.times + 1)))
        return Places((*self._stretches, _Stretch(place, 1, 1))[-STRETCHES_MAX:])

    def said(self) -> list[Json]:
        """As a record has them."""
        said: list[Json] = []
        for stretch in self._stretches:
            if stretch.times >= _SHORTEST:
                said.append(list(stretch))
            else:
                said.extend(Places((stretch,)))
        return said

    @classmethod
    def of(cls, places: Iterable[int]) -> Places:
        """These numbers."""
        found = cls()
        for place in places:
            found = found.and_then(place)
        return found

    @classmethod
    def read(cls, said: object) -> Places:
        """What `said` gave. Errors: `TypeError`, `ValueError`."""
        if not isinstance(said, list):
            raise TypeError(said)
        found = _NOWHERE
        for each in cast("list[object]", said):
            if isinstance(each, list):
                first, step, times = map(_whole, cast("list[object]", each))
                if min(first, step, times) < 1 or times > TIMES_MAX:
                    raise ValueError((first, step, times))
                found = cls((*found._stretches, _Stretch(first, step, times)))
            else:
                found = found.and_then(_whole(each))
        return found


_NOWHERE = Places()


OrchestratorKind = Literal["graph", "swarm"]
"""What an orchestrator is, by the name that documents have for it."""
Task: TypeAlias = "str | Sequence[ContentBlock]"
"""What a run is about: text, or content blocks."""
TOKENS_MAX = 64
"""Names of a run, and of runs before it, that are known."""
RUN = ""
"""What stands in place of a node's id in records of the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What one execution of a node led to."""

    result: NodeResult
    done: bool = True
    """Whether its work is done, well or badly; else it owes it still."""
    context: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    """What it leaves for others."""
    handed: tuple[str, str] | None = None
    """Whom it gives control to, and with which words."""


class KeptResult:
    """The result of a node, as it is or as a record has it: reading that takes longer than all the rest of opening a
    run, and is often for nothing.
    """

    __slots__ = ("_result", "_said")

    def __init__(self, result: NodeResult | Mapping[str, Json]) -> None:
        self._result = result if isinstance(result, NodeResult) else None
        self._said = None if isinstance(result, NodeResult) else result

    def read(self) -> NodeResult:
        """The result. Errors: `Corrupt`."""
        if self._result is None:
            self._result, self._said = NodeResult.from_dict(self._said or {}), None
        return self._result

    def said(self) -> Mapping[str, Json]:
        """The result as a record has it."""
        return self._said if self._said is not None else self.read().to_record()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNote:
    """What a run knows of one node that has ended once at least."""

    kept: KeptResult
    """What the last time led to."""
    status: Status
    """Of the last time."""
    visits: int = 0
    """How often it has done its work."""
    places: Places = field(default_factory=Places)
    """Where in the order of all work that is done it stands."""
    usage: Mapping[str, int] = field(default_factory=lambda: cast("dict[str, int]", dict(NO_USAGE)))
    """Tokens, all times together."""
    latency_ms: float = 0.0
    executions: int = 0
    """Agents' turns below it, all times together."""
    context: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    """What it has left for others."""
    handed: tuple[str, str] | None = None
    """Whom it gave control to, and with which words."""
    left: Mapping[str, Json] | None = None
    """What a snapshot would say of its agent, which somebody else has left waiting, until it has been taken over."""

    @property
    def result(self) -> NodeResult:
        """Of the last time. Errors: `Corrupt` for one that no release of ours has written."""
        return self.kept.read()

    def next(self, end: Ended, place: int) -> NodeNote:
        """After it has ended once more."""
        result = end.result
        return NodeNote(
            kept=KeptResult(result),
            status=result.status,
            visits=self.visits + end.done,
            places=self.places.and_then(place) if end.done else self.places,
            usage=sum_of(self.usage, result.accumulated_usage),
            latency_ms=self.latency_ms + result.accumulated_metrics.get("latencyMs", 0),
            executions=self.executions + result.execution_count,
            context={**self.context, **end.context},
            handed=end.handed,
        )

    def said(self, result: Mapping[str, Json]) -> dict[str, Json]:
        """What a record says of it besides the result, and of sums only what that does not say."""
        said: dict[str, Json] = {"places": self.places.said()}
        if self.visits != len(self.places):
            said["visits"] = self.visits
        if self.usage != usage_in(result):
            said["usage"] = dict(self.usage)
        if self.latency_ms != latency_in(result):
            said["latency_ms"] = self.latency_ms
        if self.executions != executions_in(result):
            said["executions"] = self.executions
        if self.context:
            said["context"] = dict(self.context)
        if self.handed is not None:
            said["handed"] = list(self.handed)
        if self.left is not None:
            said["left"] = dict(self.left)
        return said


class _Results(Mapping[str, "NodeResult"]):
    """The results of nodes, each read when it is asked for."""

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
    """What is known of a run. `apply` is the only way in, for records that were just made and for stored ones."""

    def __init__(self) -> None:
        self.number: int = 0
        """From 1; 0 before the first one."""
        self.begun_at = 0.0
        """Epoch seconds. With the number it tells the run from any other one."""
        self.kind: OrchestratorKind = "graph"
        """Of the orchestrator that it is a run of."""
        self.task: Task = ""
        self.tokens: tuple[str, ...] = ()
        """What its callers named it, the latest ones."""
        self.earlier: dict[str, int] = {}
        """The numbers of runs before it that are over, by what their callers named them, the latest ones. Nobody edits
        it.
        """
        self.frontier: tuple[str, ...] = ()
        """The nodes that owe work; one that owes it twice stands here twice."""
        self.ready: tuple[str, ...] = ()
        """Those of them that wait for nothing when the run is gone on with."""
        self.responses: dict[str, Json] = {}
        """What people answered about work that is not done yet, by the ids of `calls.py`. Nobody edits it."""
        self.notes: dict[str, NodeNote] = {}
        """By node, in the order in which they ended first. Nobody edits it."""
        self.ends = 0
        """How often nodes have done their work."""
        self.elapsed_ms = 0
        """How long somebody has worked on it."""
        self.reason: str | None = None
        """Why it ended before its work was done."""
        self.loading = False
        """Whether it came with a snapshot whose nodes do not all stand where it says yet."""

    @classmethod
    def of(cls, records: Iterable[NodeChanged], frontier: tuple[str, ...], last: int = 0) -> Run:
        """The run whose latest word on each node this is, in the order in which they were mentioned first. `last`: the
        highest number that a run had: after a rewind there may be nothing left of it.
        """
        run, ready = cls(), dict[tuple[str, ...], tuple[str, ...]]()
        for record in records:
            run.apply(record)
            ready[run.frontier] = run.ready
        run.frontier, run.ready = frontier, ready.get(frontier, frontier)
        run.number = max(run.number, last)
        return run

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        return not self.frontier

    @property
    def status(self) -> Status:
        """How far it is. One that owes work is `executing`, even when nobody works on it."""
        if not self.number:
            return Status.PENDING
        if self.reason is not None:
            return Status.FAILED
        owing = {note.status for node, note in self.notes.items() if node in self.frontier}
        for status in (Status.INTERRUPTED, Status.FAILED):
            if status in owing:
                return status
        return Status.COMPLETED if self.over else Status.EXECUTING

    @property
    def results(self) -> Mapping[str, NodeResult]:
        """What each node led to when it ended last."""
        return _Results(dict(self.notes))

    @property
    def order(self) -> tuple[str, ...]:
        """The nodes whose work is done, one entry for each time, in order; see `STRETCHES_MAX`."""
        places = {place: node for node, note in self.notes.items() for place in note.places}
        return tuple(places[place] for place in sorted(places))

    @property
    def last(self) -> NodeNote | None:
        """What is known of the node that did its work last."""
        done = (note for note in self.notes.values() if note.places.last)
        return max(done, key=lambda note: note.places.last, default=None)

    @property
    def usage(self) -> Usage:
        """Tokens, of everything that was done in it."""
        total = cast("dict[str, int]", dict(NO_USAGE))
        for note in self.notes.values():
            total = sum_of(total, note.usage)
        return cast("Usage", total)

    @property
    def latency_ms(self) -> float:
        """Of all model calls in it, as the providers measured."""
        return sum(note.latency_ms for note in self.notes.values())

    @property
    def executions(self) -> int:
        """Agents' turns in it."""
        return sum(note.executions for note in self.notes.values())

    def with_status(self, status: Status) -> tuple[str, ...]:
        """The nodes that ended so when they ended last."""
        return tuple(node for node, note in self.notes.items() if note.status is status)

    def begun(
        self, task: Task, entries: tuple[str, ...], *, at: float, kind: OrchestratorKind, tokens: tuple[str, ...] = ()
    ) -> NodeChanged:
        """The record of a new run after this one."""
        said = _said(task, kind, tokens, self.named_so_far, at)
        return NodeChanged(at=at, run=self.number + 1, node=RUN, status="started", frontier=entries, data=said)

    def ended(self, node: str, end: Ended, frontier: tuple[str, ...], *, at: float, elapsed_ms: int) -> NodeChanged:
        """The record of a node that has ended."""
        first = NodeNote(kept=KeptResult(end.result), status=end.result.status)
        note = self.notes.get(node, first).next(end, self.ends + 1)
        result = end.result.to_record()
        return NodeChanged(
            at=at,
            run=self.number,
            node=node,
            status=_STATUS[end.result.status],
            frontier=frontier,
            result=result,
            data={**note.said(result), "elapsed_ms": elapsed_ms},
        )

    def restated(
        self, *, at: float, responses: Mapping[str, Json] | None = None, elapsed_ms: int | None = None
    ) -> NodeChanged:
        """The record of the answers that count now, and of the time that was worked on it; None: those that did."""
        spent_ms = self.elapsed_ms if elapsed_ms is None else elapsed_ms
        counting = self.responses if responses is None else responses
        said: dict[str, Json] = {"responses": dict(counting), "elapsed_ms": spent_ms}
        said |= self._again()
        record = NodeChanged(at=at, run=self.number, node=RUN, status="started", data=said)
        return leading_to(record, self.frontier, self.ready)

    def stopped(self, reason: str, *, at: float, elapsed_ms: int) -> NodeChanged:
        """The record of a run that ends here."""
        said = {**self._again(), "reason": reason, "elapsed_ms": elapsed_ms}
        return NodeChanged(at=at, run=self.number, node=RUN, status="failed", data=said)

    def records(self, *, at: float) -> list[NodeChanged]:
        """The latest word on each node, all of it as of now: what `of` makes this run of again. None before the first
        run.
        """
        if not self.number:
            return []
        said = self._again()
        said |= {"responses": dict(self.responses), "elapsed_ms": self.elapsed_ms}
        if self.reason is not None:
            said["reason"] = self.reason
        if self.loading:
            said["loading"] = True
        status: NodeStatus = "started" if self.reason is None else "failed"
        made = [NodeChanged(at=at, run=self.number, node=RUN, status=status, data=said)]
        for node, note in self.notes.items():
            result, status = note.kept.said(), _STATUS[note.status]
            data = {**note.said(result), "elapsed_ms": self.elapsed_ms}
            word = cast("Json", result)
            made.append(NodeChanged(at=at, run=self.number, node=node, status=status, result=word, data=data))
        return [leading_to(record, self.frontier, self.ready) for record in made]

    def forget_end(self, node: str, before: NodeNote | None) -> None:
        """The node has not ended after all; `before` is what was known of it until then."""
        if before is None:
            del self.notes[node]
        else:
            self.notes[node] = before
        self.ends = max((note.places.last for note in self.notes.values()), default=0)

    def _again(self) -> dict[str, Json]:
        return _said(self.task, self.kind, self.tokens, self.earlier, self.begun_at)

    @property
    def named_so_far(self) -> dict[str, int]:
        """What is `earlier` for a run that follows this one."""
        known = {**self.earlier, **(dict.fromkeys(self.tokens, self.number) if self.over else {})}
        return dict([*known.items()][-TOKENS_MAX:])

    def called(self, token: str) -> None:
        """It has one more name."""
        self.tokens = (*self.tokens, token)[-TOKENS_MAX:]

    @property
    def left(self) -> dict[str, Mapping[str, Json]]:
        """What a snapshot would say of agents that others have left waiting, by node."""
        return {node: note.left for node, note in self.notes.items() if note.left is not None}

    def taken_over(self) -> None:
        """The agents that others have left waiting are where they were left."""
        self.notes = {node: replace(note, left=None) for node, note in self.notes.items()}

    def apply(self, record: NodeChanged, result: NodeResult | None = None) -> None:
        """Take the next record in. `result`: what it says, where that is at hand: JSON cannot say all of it.

        Errors: `CorruptJournal` for one that no release of ours has written.
        """
        try:
            if record.node == RUN:
                self._on_run(record)
            else:
                note = self.notes[record.node] = _note(record, result)
                self.ends = max(self.ends, note.places.last)
            self.frontier = record.frontier
            self.ready = json_texts(list(cast("Sequence[Json]", record.data.get("ready", record.frontier))))
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
    """The record with what owes work after it, and what of that waits for nothing."""
    more: dict[str, Json] = {} if ready == frontier else {"ready": list(ready)}
    return replace(record, frontier=frontier, data={**record.data, **more})


def earlier_in(record: NodeChanged) -> dict[str, int]:
    """The numbers of earlier runs, by what their callers named them, that a record of a run says."""
    return {token: _whole(number) for token, number in json_object(record.data.get("earlier", {})).items()}


def _said(
    task: Task, kind: OrchestratorKind, tokens: tuple[str, ...], earlier: Mapping[str, int], begun_at: float
) -> dict[str, Json]:
    """What every record of the run itself says."""
    told = cast("Json", task if isinstance(task, str) else list(task))
    said: dict[str, Json] = {"task": told, "kind": kind, "begun_at": begun_at}
    if tokens:
        said["token"] = tokens[0]
    if earlier:
        said["earlier"] = dict(earlier)
    return {**said, "more_tokens": list(tokens[1:])} if tokens[1:] else said


def _note(record: NodeChanged, result: NodeResult | None) -> NodeNote:
    data, said = record.data, record.result
    if not isinstance(said, Mapping):
        raise TypeError(said)
    handed = None if data.get("handed") is None else json_texts(data["handed"])
    places = Places.read(data["places"])
    usage, latency_ms = data.get("usage"), data.get("latency_ms")
    return NodeNote(
        kept=KeptResult(result or said),
        status=Status(record.status),
        visits=_whole(data.get("visits", len(places))),
        places=places,
        usage=usage_in(said) if usage is None else counts_in(usage),
        latency_ms=latency_in(said) if latency_ms is None else json_number(latency_ms),
        executions=_whole(data["executions"]) if "executions" in data else executions_in(said),
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


# The names of executions: one for each, the same whenever it is gone on with. A node's own journal knows by it whether
# the execution was answered, begun or neither.


def execution_token(orchestrator: str, run: Run, node: str, visit: int) -> str:
    """The idempotency token of a node's execution in a run; `visit` counts those before it."""
    return f"{_named(orchestrator, run, node)}{visit}"


def visit_of(token: str, orchestrator: str, run: Run, node: str) -> int | None:
    """Which execution of the node that is; None when it is none of this run."""
    visit = token.removeprefix(_named(orchestrator, run, node))
    return int(visit) if visit != token and visit.isdecimal() else None


def _named(orchestrator: str, run: Run, node: str) -> str:
    return f"{orchestrator}:{run.number}@{run.begun_at}:{node}:"


def past_run(records: Sequence[tuple[int, Record | None]], number: int) -> Run | None:
    """The run of that number, without what a rewind has left behind; None when it is not there or is not over.

    `records`: all of the journal, in order, or at least those of the run and of what came after it. Errors:
    `CorruptJournal`.
    """
    path = paths_to(records, [records[-1][0]]) if records else []
    run = Run()
    for seq, record in records:
        if isinstance(record, NodeChanged) and record.run == number and within(seq, path):
            run.apply(record)
    return run if run.number == number and run.over else None


class NodeNotice(NamedTuple):
    """What one record tells."""

    text: str
    """Of a run that begins its task, of one that ends early the reason; of a node what it led to, or what it asks."""
    tokens: int | None = None
    """What a node took that time; None when it does not say so."""


def told_by(record: NodeChanged) -> NodeNotice | None:
    """None for a record that only says something once more. Errors: `Corrupt` for a result that nobody can read."""
    if record.node:
        result = NodeResult.from_dict(cast("Mapping[str, Json]", record.result))
        asked = ", ".join(each.name for each in result.interrupts)
        text = asked if result.status is Status.INTERRUPTED else str(result)
        return NodeNotice(text, result.accumulated_usage.get("totalTokens") or None)
    if record.status == "failed":
        return NodeNotice(str(record.data.get("reason")))
    again = "responses" in record.data and not record.data.get("loading")  # One that is loaded begins here.
    return None if again else NodeNotice(_words_of(record.data.get("task")))


def _words_of(task: Json) -> str:
    if isinstance(task, str):
        return task
    blocks = [each for each in task if isinstance(each, dict)] if isinstance(task, list) else []
    return " ".join(str(each["text"]) for each in blocks if "text" in each)
