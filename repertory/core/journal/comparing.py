"""What differs between two conversations, message by message, and between two states, key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from repertory.core.journal.leaves import texts_of
from repertory.core.journal.plain_json import dump
from repertory.core.messages import Json, Message

Side = Literal["first", "second"]
_SIGNS: Mapping[Side, str] = {"first": "-", "second": "+"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDifference:
    """A message that one of the two has and the other one has not, at this place."""

    side: Side
    """Who has it."""
    seq: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDifference:
    """A key whose value differs. None stands for a side that has no such key, as `in_first` and `in_second` say."""

    key: str
    first: Json
    second: Json
    in_first: bool
    in_second: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What differs between a first and a second one; nothing at all when it is empty.

    As a string it is a line for each message and key: what only the first has after a minus, what only the second has
    after a plus.
    """

    same: int
    """How many messages both have."""
    messages: tuple[MessageDifference, ...] = ()
    """In the order of the conversations; where both differ, what the first has comes first."""
    state: tuple[StateDifference, ...] = ()
    """By key."""

    def __str__(self) -> str:
        lines = [
            f"{_SIGNS[each.side]} #{each.seq} {each.message['role']}: {' '.join(texts_of(each.message))}"
            for each in self.messages
        ]
        for each in self.state:
            if each.in_first:
                lines.append(f"- state {each.key} = {dump(each.first).decode()}")
            if each.in_second:
                lines.append(f"+ state {each.key} = {dump(each.second).decode()}")
        return "\n".join(lines)

    @property
    def empty(self) -> bool:
        """Whether nothing differs."""
        return not (self.messages or self.state)


def compare(
    first: Mapping[int, Message],
    second: Mapping[int, Message],
    first_state: Mapping[str, Json],
    second_state: Mapping[str, Json],
) -> Difference:
    """Compare two conversations (sequence number to message, in order) and two states.

    Messages are the same when role and content are. Costs about the square of what lies between the first and the last
    difference.
    """
    ours, theirs = list(first.items()), list(second.items())
    our_keys, their_keys = [_key(message) for _, message in ours], [_key(message) for _, message in theirs]
    found: list[MessageDifference] = []
    same = 0
    for tag, start, end, other_start, other_end in _stretches(our_keys, their_keys):
        if tag == "equal":
            same += end - start
            continue
        found.extend(MessageDifference(side="first", seq=seq, message=said) for seq, said in ours[start:end])
        found.extend(
            MessageDifference(side="second", seq=seq, message=said) for seq, said in theirs[other_start:other_end]
        )
    return Difference(same=same, messages=tuple(found), state=tuple(_state(first_state, second_state)))


def _stretches(first: Sequence[bytes], second: Sequence[bytes]) -> Iterator[tuple[str, int, int, int, int]]:
    """What both begin and end with is found at once: most conversations that are compared differ at the end only."""
    shorter = min(len(first), len(second))
    begin = next((n for n in range(shorter) if first[n] != second[n]), shorter)
    rest = shorter - begin
    end = next((n for n in range(rest) if first[-1 - n] != second[-1 - n]), rest)
    yield "equal", 0, begin, 0, begin
    middle = SequenceMatcher(None, first[begin : len(first) - end], second[begin : len(second) - end], autojunk=False)
    for tag, start, stop, other_start, other_stop in middle.get_opcodes():
        yield tag, begin + start, begin + stop, begin + other_start, begin + other_stop
    yield "equal", len(first) - end, len(first), len(second) - end, len(second)


def _state(first: Mapping[str, Json], second: Mapping[str, Json]) -> Iterator[StateDifference]:
    for key in sorted({*first, *second}):
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
