"""The events of a turn in their order, each with its offset, so that a reader who comes back reads on where it was.

An offset names a place in the conversation, not in a connection: `17` is the message that the journal has as record 17,
`17.b3e9.42` a piece that was told after it, `17.end` the end. A piece is known to the log alone that told it, which its
second part names; in the process that goes on after a kill, the model is asked again, and such a piece is void.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from repertory.core.latest_values import weight_of
from repertory.core.messages import tool_results
from repertory.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from repertory.core.messages import Message
    from repertory.core.result import TurnEvent

PIECES_MAX = 4096
"""The number of stored pieces of whole messages, besides those of the message that is being streamed."""
PIECE_BYTES = 16 * 1024
"""The bytes for each of which a piece that a tool streams counts once more."""
BEFORE_MAX = 1024
"""The number of records before the message with a turn's token that are searched for the prompt of a continued turn."""
_ANSWER_KEYS = frozenset(("event", "data", "reasoning"))
"""The keys that name events of a model's answer while it comes."""
_OFFSET = re.compile(
    r"(?P<seq>0|[1-9]\d{0,17})(?:\.(?:(?P<end>end)|(?P<run>[0-9a-f]{1,12})\.(?P<piece>[1-9]\d{0,17})))?"
)


class Offset(NamedTuple):
    """The position of a reader in a turn."""

    seq: int
    """The sequence number of the last message that the reader has; 0 for none."""
    run: str = ""
    """The name of the log that has the pieces after that message; empty without pieces."""
    piece: int = 0
    """The number, in that log, of the last of these pieces that the reader has; 0 for none."""
    over: bool = False
    """True if the reader has the end of the turn."""

    def __str__(self) -> str:
        if self.over:
            return f"{self.seq}.end"
        return f"{self.seq}.{self.run}.{self.piece}" if self.piece else str(self.seq)


START = Offset(0)
"""The offset before all events."""


def read_offset(text: object) -> Offset:
    """The offset that an event had. Errors: `Invalid` for anything else."""
    found = _OFFSET.fullmatch(text) if isinstance(text, str) and text.isascii() else None
    if found is None:
        raise Invalid("after is the offset of an event", got=text if isinstance(text, str) else type(text).__name__)
    run, piece = found["run"], found["piece"]
    return Offset(int(found["seq"]), run or "", int(piece or 0), found["end"] is not None)


class Entry(NamedTuple):
    """One event of a log."""

    number: int
    """The entry's number in the log, from 1."""
    offset: Offset
    event: TurnEvent
    units: int = 1
    """The units that it counts for; see `PIECE_BYTES`."""


def is_piece(entry: Entry) -> bool:
    """True if the entry is a piece of a message or a tool's result, which will replace it."""
    return entry.offset.piece > 0


class TurnLog:
    """The events of one turn that runs in this process. Readers ask for the events after the number that they have.

    It stores every message, and the pieces of the message that is being streamed. Of the pieces before that it stores
    the last that count `PIECES_MAX`, and so many of those that running tools stream: a reader further behind gets
    the message, or the tool's result, in their place. Pieces that a `model_retry` makes void are not stored: a reader
    that has none of them gets none.
    """

    __slots__ = (
        *("_entries", "_last", "_message_at", "_pieces", "_pieces_before", "_streamed", "base", "over", "run", "seq"),
    )

    def __init__(self, run: str, base: int) -> None:
        """`run`: a name that no other log of this conversation has, of letters and digits. `base`: the sequence number
        of the last message in the journal; the log begins behind it.
        """
        self.run = run
        self.base = base
        self.seq = base
        """The sequence number of the journal's last message when the latest event came."""
        self.over = False
        self._entries: list[Entry] = []
        self._last = 0
        self._message_at = 0
        """The number of the last entry that is a message."""
        self._pieces_before = 0
        """The units of the stored pieces before it."""
        self._pieces = 0
        """The units of the pieces after it."""
        self._streamed = 0
        """The units of the stored pieces that tools have streamed."""

    def add(self, event: TurnEvent, seq: int) -> None:
        """Add an event; `seq`: the last message in the journal now, which is the event's own if it is a message."""
        self._last += 1
        self.seq = seq
        whole = "message" in event
        if "result" in event:
            offset = Offset(seq, over=True)
        else:
            offset = Offset(seq) if whole else Offset(seq, self.run, self._last)
        # The pieces of an answer are bounded together: `answer_bytes`.
        streamed = _is_streamed(event)
        units = 1 + weight_of(event, PIECES_MAX * PIECE_BYTES) // PIECE_BYTES if streamed else 1
        self._entries.append(Entry(self._last, offset, {**event, "offset": str(offset)}, units))
        if whole:
            self._pieces_before += self._pieces
            self._message_at, self._pieces, self._streamed = self._last, 0, 0
            if self._pieces_before > PIECES_MAX:
                self._pieces_before = self._drop(is_piece)
            return
        self._pieces += units
        if "model_retry" in event:
            # `_pieces` keeps counting those that go: it only makes the next `_drop` come earlier, which counts anew.
            since = bisect_right(self._entries, self._message_at, key=_number_of)
            self._entries[since:] = [each for each in self._entries[since:] if _ANSWER_KEYS.isdisjoint(each.event)]
        elif streamed:
            self._streamed += units
            # Of both kinds: streamed pieces before the last message are still stored, and are the oldest, so they go
            # first.
            if self._streamed > PIECES_MAX:
                self._streamed = self._drop(lambda entry: _is_streamed(entry.event))

    def _drop(self, what: Callable[[Entry], bool]) -> int:
        """Drop the oldest entries of this kind until the others of it count half of `PIECES_MAX` at most, so that it is
        not done each time. Returns the units of the others.
        """
        held, remaining = sum(entry.units for entry in self._entries if what(entry)), list[Entry]()
        for entry in self._entries:
            if held > PIECES_MAX // 2 and what(entry):
                held -= entry.units
            else:
                remaining.append(entry)
        self._entries = remaining
        return held

    def end(self) -> None:
        """Mark the log as complete."""
        self.over = True

    def has(self, after: Offset) -> bool:
        """True if a reader at this offset reads on here, without anything of the journal in between."""
        return after.run == self.run if after.piece else after.seq >= self.base

    def number_after(self, after: Offset) -> int:
        """The number of the last entry that a reader who has got so far has; 0 for none."""
        if after.over:
            return self._last
        # A piece's number is that of its entry, so a reader of this log needs no search; it holds even when the entry
        # was dropped.
        if after.piece and after.run == self.run:
            return after.piece
        if after.seq <= self.base:
            return 0
        # A reader that has pieces of another log is served like one that has none: those are void.
        have = 0
        for entry in self._entries:
            if entry.offset.seq > after.seq:
                break
            if not is_piece(entry) and not entry.offset.over:
                have = entry.number
        return have

    def units_after(self, number: int) -> int:
        """The units of the entries after that number that are still stored."""
        return sum(entry.units for entry in self.after(number))

    def after(self, number: int) -> list[Entry]:
        """The entries after that number that have come and are still stored."""
        if number >= self._last:
            return []
        return self._entries[bisect_right(self._entries, number, key=_number_of) :]


def _is_streamed(event: Mapping[str, object]) -> bool:
    """True if a tool streams it, or a node of a run: its result stands for it."""
    return "tool_stream_event" in event or event.get("type") == "multiagent_node_stream"


def _number_of(entry: Entry) -> int:
    return entry.number


def begun_at(messages: Sequence[tuple[int, Message]], first: int) -> int:
    """The sequence number at which the turn with the token of message `first` begins: `first`, or the prompt before it,
    as after a turn was cut short the first message of its continuation has the token. `messages`: by sequence number.
    """
    begun = first
    for seq, message in reversed([one for one in messages if one[0] <= first]):
        begun = seq
        if message["role"] == "user" and not any(tool_results(message)):
            break
    return begun
