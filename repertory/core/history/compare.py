"""Compare two conversations: messages, messages that the model gets, state, and cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal

from repertory.core.journal.codec import dump
from repertory.core.journal.redact import texts_of
from repertory.core.messages import Json, Message

Side = Literal["first", "second"]
PAIRS_MAX = 250_000
"""The pairs of messages that are compared: of 500 messages on each side, in a second at worst."""
_SIGNS: Mapping[Side, str] = {"first": "-", "second": "+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A message and its position in its journal."""

    seq: int
    message: Message
    source: str | None = None
    """The message's journal, as `session/agent`, when that is a source of the journal asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Tokens that the models reported for the answers of a conversation."""

    answers: int = 0
    """The number of answers with reported usage."""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One side of a comparison."""

    messages: Sequence[Placed]
    """The conversation, in order."""
    visible: Sequence[Placed]
    """The messages that the model gets, in order."""
    state: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDifference:
    """A message that only one side has."""

    side: Side
    """The side that has it."""
    seq: int
    message: Message
    source: str | None = None
    """The journal of `seq`, as `session/agent`, when that is a source of the journal asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """A key whose value differs. On a side without the key the value is None, and `in_first` or `in_second`
    is False.
    """

    key: str
    first: Json
    second: Json
    in_first: bool
    in_second: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The differences between two conversations.

    As a string: one line for each message and key, with a minus for what only the first has and a plus for what only
    the second has; then what is shown, and the cost.
    """

    same: int
    """The number of messages that both have."""
    messages: tuple[MessageDifference, ...] = ()
    """The messages that only one side has, in conversation order; at one position, the first side's come first."""
    state: tuple[StateDifference, ...] = ()
    """The keys whose values differ, sorted."""
    view: tuple[MessageDifference, ...] = ()
    """Messages that only one side shows to the model, as shown; a summary has the number 0."""
    first_cost: Cost = field(default_factory=Cost)
    second_cost: Cost = field(default_factory=Cost)

    def __str__(self) -> str:
        lines = [_line(each) for each in self.messages]
        for each in self.state:
            if each.in_first:
                lines.append(f"- state {each.key} = {dump(each.first).decode()}")
            if each.in_second:
                lines.append(f"+ state {each.key} = {dump(each.second).decode()}")
        listed = {(each.side, each.seq) for each in self.messages}
        lines += [f"{_line(each)} (shown)" for each in self.view if (each.side, each.seq) not in listed]
        if self.first_cost != self.second_cost:
            lines.append(f"- {self.first_cost.total_tokens} tokens")
            lines.append(f"+ {self.second_cost.total_tokens} tokens")
        return "\n".join(lines)

    @property
    def empty(self) -> bool:
        """True if messages, shown messages and state are the same. Costs may differ."""
        return not (self.messages or self.state or self.view)


def compare(first: Compared, second: Compared) -> Difference:
    """Compare two conversations. Messages are equal when role and content are.

    Between the first and the last difference, equal messages are looked for among at most `PAIRS_MAX` pairs. Longer
    stretches count as different as a whole, because the time grows with the cube of their length.
    """
    same, messages = _differences(first.messages, second.messages)
    _, view = _differences(first.visible, second.visible)
    return Difference(
        same=same,
        messages=messages,
        state=tuple(_state(first.state, second.state)),
        view=view,
        first_cost=cost_of(each.message for each in first.messages),
        second_cost=cost_of(each.message for each in second.messages),
    )


def cost_of(messages: Iterable[Message]) -> Cost:
    """The sum of the reported token counts."""
    usages = [usage for message in messages if (usage := message.get("metadata", {}).get("usage")) is not None]
    return Cost(
        answers=len(usages),
        input_tokens=sum(usage["inputTokens"] for usage in usages),
        output_tokens=sum(usage["outputTokens"] for usage in usages),
    )


def _differences(first: Sequence[Placed], second: Sequence[Placed]) -> tuple[int, tuple[MessageDifference, ...]]:
    """The number of equal messages, and the messages on one side only."""
    our_keys, their_keys = [_key(each.message) for each in first], [_key(each.message) for each in second]
    found: list[MessageDifference] = []
    same = 0
    for tag, start, end, other_start, other_end in _stretches(our_keys, their_keys):
        if tag == "equal":
            same += end - start
            continue
        found.extend(_on("first", each) for each in first[start:end])
        found.extend(_on("second", each) for each in second[other_start:other_end])
    return same, tuple(found)


def _on(side: Side, each: Placed) -> MessageDifference:
    return MessageDifference(side=side, seq=each.seq, message=each.message, source=each.source)


def _line(each: MessageDifference) -> str:
    where = f"{each.source} #{each.seq}" if each.source is not None else f"#{each.seq}"
    return f"{_SIGNS[each.side]} {where} {each.message['role']}: {' '.join(texts_of(each.message))}"


def _stretches(first: Sequence[bytes], second: Sequence[bytes]) -> Iterator[tuple[str, int, int, int, int]]:
    """The common beginning and end are found first: most conversations that are compared differ only at the end."""
    shorter = min(len(first), len(second))
    begin = next((n for n in range(shorter) if first[n] != second[n]), shorter)
    rest = shorter - begin
    end = next((n for n in range(rest) if first[-1 - n] != second[-1 - n]), rest)
    yield "equal", 0, begin, 0, begin
    if (len(first) - begin - end) * (len(second) - begin - end) > PAIRS_MAX:
        yield "replace", begin, len(first) - end, begin, len(second) - end
        yield "equal", len(first) - end, len(first), len(second) - end, len(second)
        return
    # With `autojunk`, which is the default, `difflib` begins no match at what makes up more than 1 % of 200 items or
    # more: an "ok" that is said again and again would count as different wherever nothing rarer stands beside it.
    middle = SequenceMatcher(None, first[begin : len(first) - end], second[begin : len(second) - end], autojunk=False)
    for tag, start, stop, other_start, other_stop in middle.get_opcodes():
        yield tag, begin + start, begin + stop, begin + other_start, begin + other_stop
    yield "equal", len(first) - end, len(first), len(second) - end, len(second)


def _state(first: Mapping[str, Json], second: Mapping[str, Json]) -> Iterator[StateDifference]:
    for key in sorted({*first, *second}):
        # By their bytes: to Python `1`, `1.0` and `True` are equal, and a restart tells them apart.
        if key in first and key in second and dump(first[key]) == dump(second[key]):
            continue
        yield StateDifference(
            key=key,
            first=first.get(key),
            second=second.get(key),
            in_first=key in first,
            in_second=key in second,
        )


def _key(message: Message) -> bytes:
    return dump([message["role"], message["content"]])
