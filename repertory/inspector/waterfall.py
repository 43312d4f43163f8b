"""The time of a turn: its model calls, tools and waits, as the times of its records say.

A model call begins where the record before it was made, so it contains what nothing records: hooks, retries and, in
sessions of other processes, commits. Of an agent that is alive here, the waits for its store are known besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from repertory.core.journal.records import DeferralsChanged, DeferredResult, Interrupted, MessageAdded, Resumed
from repertory.core.messages import tool_uses
from repertory.inspector.wording import first_words

if TYPE_CHECKING:
    from collections.abc import Callable

    from repertory.core.history.pages import StoredRecord
    from repertory.core.messages import Message

ROWS_MAX = 80
"""Rows of one turn."""
WIDTH = 1000
"""The length of the axis, in units of the picture."""
_WAIT_SHARE = 0.2
"""The share of the axis that waits for people get, where they take more of the time."""
SpanKind = Literal["model", "tool", "person", "later", "store"]


@dataclass(slots=True, kw_only=True)
class Span:
    """A stretch of time in a turn."""

    kind: SpanKind
    name: str
    began: float
    """Epoch seconds."""
    ended: float | None
    """Epoch seconds; None: it has not ended."""
    note: str = ""
    tokens: tuple[int, int] | None = None
    """Input and output tokens of a model call."""
    failed: bool = False
    latency_s: float = 0.0
    """The provider's own measure of a model call, which ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A row of the picture."""

    span: Span
    x: float
    width: float
    latency: float
    """The width of the part at its end that the provider measured."""
    took_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """A turn on one axis of time."""

    bars: Sequence[Bar]
    more: int
    took_s: float
    sums: Mapping[str, float]
    """The sums by kind, and `other` for what no record tells: the seconds in which at least one was under way."""
    cut: bool
    """True if waits for people are drawn shorter than they were."""


@dataclass(slots=True)
class SpansOfTurn:
    """Collects the spans of one turn from its records, in order."""

    tool: Callable[[int, str], Span | None]
    """Returns the span of a tool use, by the number of its message and its id; None where no time of it is known."""
    spans: list[Span] = field(default_factory=list["Span"])
    _since: float | None = None
    _asked: dict[str, Span] = field(default_factory=dict[str, "Span"])
    _later: dict[str, Span] = field(default_factory=dict[str, "Span"])

    def add(self, each: StoredRecord) -> None:
        """Take in a record of the turn."""
        match each.record:
            case MessageAdded(message=message, at=at):
                if message["role"] == "assistant":
                    self._answer(message, each.seq, at)
                self._since = at
            case Interrupted(interrupts=interrupts, at=at):
                for one in interrupts:
                    span = Span(kind="person", name="a person", began=at, ended=None, note=first_words(one.name, 40))
                    self._asked[one.id] = span
                    self.spans.append(span)
            case Resumed(responses=responses, at=at):
                for interrupt_id in responses:
                    if interrupt_id in self._asked:
                        self._asked.pop(interrupt_id).ended = at
                self._since = at
            case DeferralsChanged(deferrals=tools, ended=taken_back, at=at):
                for tool in tools:
                    if tool.id not in self._later:
                        span = Span(
                            kind="later", name=first_words(tool.tool, 60), began=at, ended=None, note="came later"
                        )
                        self._later[tool.id] = span
                        self.spans.append(span)
                for gone in taken_back:
                    if gone in self._later:
                        self._later[gone].ended = at
            case DeferredResult(id=deferred, at=at):
                if deferred in self._later:
                    self._later[deferred].ended = at
            case _:
                pass

    def _answer(self, message: Message, seq: int, at: float) -> None:
        metadata = message.get("metadata", {})
        usage, latency_ms = metadata.get("usage", {}), metadata.get("metrics", {}).get("latencyMs")
        latency_s = float(latency_ms) / 1000 if isinstance(latency_ms, int | float) else 0.0
        began = self._since if self._since is not None else at - latency_s
        if usage:
            tokens = (usage.get("inputTokens", 0), usage.get("outputTokens", 0))
            latency_s = min(max(latency_s, 0.0), at - began)
            span = Span(kind="model", name="model", began=began, ended=at, tokens=tokens, latency_s=latency_s)
            self.spans.append(span)
        for use in tool_uses(message):
            span = self.tool(seq, use["toolUseId"])
            if span is not None:
                self.spans.append(span)


def waterfall(spans: Iterable[Span], now: float) -> Waterfall | None:
    """The picture of these spans; None where there is nothing to compare. `now`: where spans end that have not."""
    ordered = sorted(
        (each for each in spans if each.began <= (now if each.ended is None else each.ended)),
        key=lambda each: each.began,
    )
    if len(ordered) < 2:
        return None
    first, last = ordered[0].began, max(_end(each, now) for each in ordered)
    axis = _Axis(first, last, _joined((each.began, _end(each, now)) for each in ordered if each.kind == "person"))
    sums = {kind: _length((one.began, _end(one, now)) for one in ordered if one.kind == kind) for kind in _KINDS}
    sums["other"] = (last - first) - _length((one.began, _end(one, now)) for one in ordered)
    bars: list[Bar] = []
    for each in ordered[:ROWS_MAX]:
        x, end = axis.at(each.began), axis.at(_end(each, now))
        width = max(end - x, 2.0)
        took_s = _end(each, now) - each.began
        latency = width * each.latency_s / took_s if took_s else 0.0
        bars.append(Bar(span=each, x=min(x, WIDTH - width), width=width, latency=latency, took_s=took_s))
    return Waterfall(
        bars=bars,
        more=len(ordered) - len(bars),
        took_s=last - first,
        sums={kind: seconds for kind, seconds in sums.items() if seconds > 0.0005},
        cut=axis.cut,
    )


_KINDS: Sequence[SpanKind] = ("model", "tool", "store", "person", "later")


def _end(span: Span, now: float) -> float:
    return now if span.ended is None else span.ended


def _joined(stretches: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same stretches without overlaps, in order."""
    found: list[tuple[float, float]] = []
    for began, ended in sorted(stretches):
        if found and began <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], ended))
        else:
            found.append((began, ended))
    return found


def _length(stretches: Iterable[tuple[float, float]]) -> float:
    return sum(ended - began for began, ended in _joined(stretches))


class _Axis:
    """Times as positions. A person may take days, and a model seconds: waits for people are then drawn shorter."""

    def __init__(self, first: float, last: float, waits: Sequence[tuple[float, float]]) -> None:
        self._first, self._waits = first, waits
        waited = sum(ended - began for began, ended in waits)
        work = max(last - first - waited, 0.0)
        self.cut = work > 0 and waited > work * _WAIT_SHARE / (1 - _WAIT_SHARE)
        self._slow = work * _WAIT_SHARE / (1 - _WAIT_SHARE) / waited if self.cut else 1.0
        self._whole = (work + waited * self._slow) or 1.0

    def at(self, moment: float) -> float:
        waited = sum(max(0.0, min(ended, moment) - began) for began, ended in self._waits)
        return WIDTH * (moment - self._first - waited * (1 - self._slow)) / self._whole
