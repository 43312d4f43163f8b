"""The tree of an agent's documents as a projection of its journal: which documents its rows make.

The journal is the truth, and no document has a key of ours. So what stands in the tree is noted beside the journal
(`TreeMark`): up to which row it was written, and which message has which number. `intake.py` compares a tree with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from repertory.core.journal.fold import Fold
from repertory.core.journal.records import MessageAdded, Record, Redacted, View
from repertory.core.journal.restore import restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.json_bytes import read, to_file
from repertory.core.message_tree.agent_state import AgentDocument, record_in
from repertory.core.message_tree.documents import (
    ERASED_TEXT,
    AgentFile,
    manager_named,
    message_fields,
    replaced_message,
    tracked,
)
from repertory.core.message_tree.opening import outdated
from repertory.core.messages import Message

BLANK: Message = {"role": "user", "content": [{"text": ERASED_TEXT}]}
"""The message in the place of one that was erased, and that nothing stands for."""


class NumberRun(Struct, frozen=True, array_like=True):
    """Messages that follow each other in the journal and in the tree."""

    index: int
    """The first one's place among all messages of the journal, from 0."""
    number: int
    """The number of its document."""
    count: int


class TreeMark(Struct, kw_only=True):
    """The state of the tree of an agent, or of an orchestrator.

    Attributes:
        seq: The last row whose documents are written.
        next_number: The number that the next message gets; all lower ones were written, or looked at.
        messages: How many documents of messages there are.
        count: How many messages the journal has up to `seq`.
        runs: Which message has which number, in the order of the numbers.
        taken: Documents of other programs that say something else than the journal, where that had to be repaired: the
            number, and the digest of what was taken in.
        unreadable: Numbers of documents of other programs that could not be read.
        agent: The digest of the agent's or orchestrator's document, as it was last written or taken in; empty without
            one.
    """

    seq: int = 0
    next_number: int = 0
    messages: int = 0
    count: int = 0
    runs: list[NumberRun] = field(default_factory=list[NumberRun])
    taken: dict[int, str] = {}
    unreadable: list[int] = []
    agent: str = ""

    def number_of(self, index: int) -> int | None:
        """The number of a message's document, by the message's place in the journal; None if it has none."""
        return next(
            (run.number + index - run.index for run in self.runs if run.index <= index < run.index + run.count), None
        )

    def last_numbers(self, count: int) -> list[int]:
        """The numbers of the last documents whose messages the journal has, at most so many, in order."""
        found: list[int] = []
        for run in reversed(self.runs):
            new = min(run.count, count - len(found))
            found = [*range(run.number + run.count - new, run.number + run.count), *found]
            if len(found) == count:
                break
        return found

    def add(self, index: int, number: int) -> None:
        """Note a document that was written or taken in."""
        last = self.runs[-1] if self.runs else None
        if last is not None and (last.index + last.count, last.number + last.count) == (index, number):
            self.runs[-1] = NumberRun(last.index, last.number, last.count + 1)
        else:
            self.runs = runs_of([*pairs_of(self.runs), (index, number)])
        self.messages += 1
        self.next_number = max(self.next_number, number + 1)


def pairs_of(runs: Iterable[NumberRun]) -> list[tuple[int, int]]:
    """Each message's place in the journal, and the number of its document."""
    return [(run.index + at, run.number + at) for run in runs for at in range(run.count)]


def runs_of(pairs: Iterable[tuple[int, int]]) -> list[NumberRun]:
    """The runs of pairs as `pairs_of` gives them, in any order."""
    runs: list[NumberRun] = []
    for index, number in sorted(pairs, key=lambda pair: pair[1]):
        last = runs[-1] if runs else None
        if last is not None and (last.index + last.count, last.number + last.count) == (index, number):
            runs[-1] = NumberRun(last.index, last.number, last.count + 1)
        else:
            runs.append(NumberRun(index, number, 1))
    return runs


class NewDocument(Struct, frozen=True):
    """A message that gets a document of its own, under the next number that is free."""

    seq: int
    index: int
    message: Message
    """The message, with a tracking id."""
    at: float
    redacted: bool
    """True if the message stands for one that was erased."""

    def body(self, number: int) -> bytes:
        """The document."""
        return to_file(message_fields(number, self.message, self.at, redacted=self.redacted))


class ReplacedMessage(Struct, frozen=True):
    """A message whose contents were destroyed: another one stands in its document from now on."""

    index: int
    message: Message
    at: float

    def body(self, found: bytes) -> bytes:
        """The document, from the one before. Errors: `ValueError` when that cannot be read."""
        return to_file(replaced_message(read(found), self.message, self.at))


class AgentTree(AgentDocument, kw_only=True):
    """An agent's documents, as the owner of its journal knows them."""

    mark: TreeMark = field(default_factory=TreeMark)
    count: int = 0
    """The number of messages in the journal."""

    @property
    def is_behind(self) -> bool:
        """True if rows, or the agent's document, are not written yet."""
        return self.last_seq > self.mark.seq or self.due

    def begin(self, rows: Sequence[Row], fold: Fold, agent: AgentFile | None, mark: TreeMark) -> None:
        """Start from a journal. `rows`: those that opening it needs. `agent`: its document, None without one."""
        self.mark, self.fold, self.agent = mark, fold, agent
        self.last_seq, self.count = fold.last_seq, fold.message_count
        self.next_number, self.messages = mark.next_number, mark.messages
        self.numbers = numbers_in(rows, fold.message_count, mark)
        self.state_due = agent is None and self.last_seq > 0
        self.view_due = mark.seq < self.last_seq or (agent is not None and outdated(agent, fold))
        self.asks = agent is not None and agent.asks
        self.manager = manager_named(View(), agent)

    def refold(self, rows: Sequence[Row]) -> None:
        """Fold the rows that opening the journal needs, where following them needed more than was known."""
        self.fold = restore(rows).fold
        self.numbers = numbers_in(rows, self.fold.message_count, self.mark)

    def skip_number(self) -> None:
        """Leave out a number, whose document is another program's."""
        self.mark.next_number += 1
        self.mark.messages += 1
        self.next_number, self.messages = self.mark.next_number, self.mark.messages

    def plan(self, rows: Sequence[Row], now: float) -> list[NewDocument | ReplacedMessage]:
        """Fold the rows after the last one. Returns the changes to documents of messages, in order."""
        planned, self.count = changes_for([(row, self.follow(row)) for row in rows], self.count, now)
        self.last_seq = rows[-1].seq
        return planned

    def go_on(
        self, window: Sequence[Row], rows: Sequence[Row], agent: AgentFile | None, mark: TreeMark, now: float
    ) -> list[NewDocument | ReplacedMessage]:
        """Start from a journal whose documents are written but for its last rows. Returns the changes that these make.
        `window`: the rows that opening the journal needs, with them.
        """
        self.begin(window, restore(window).fold, agent, mark)
        return changes_for([(row, record_in(row)) for row in rows], mark.count, now)[0]

    def written(self, change: NewDocument, number: int) -> None:
        """A message's document was written."""
        self.mark.add(change.index, number)
        self.numbers[change.seq] = number
        self.next_number, self.messages = self.mark.next_number, self.mark.messages


def numbers_in(rows: Sequence[Row], count: int, mark: TreeMark) -> dict[int, int]:
    """The number of each message's document, by the sequence number of its row. `rows`: the last ones of a journal with
    `count` messages.
    """
    seqs = [row.seq for row in rows if row.kind == RecordKind.MESSAGE]
    found: dict[int, int] = {}
    for index, seq in enumerate(seqs, count - len(seqs)):
        number = mark.number_of(index)
        if number is not None:
            found[seq] = number
    return found


def changes_for(
    records: Sequence[tuple[Row, Record | None]], count: int, now: float
) -> tuple[list[NewDocument | ReplacedMessage], int]:
    """The changes that rows make to the documents of messages, in order, and how many messages there are behind them.

    `count`: how many there are before. `now`: the time of messages that have none.
    """
    # Known beforehand: the document of a message that is redacted in the same commit never has the original.
    redactions = {record.target: record for _, record in records if isinstance(record, Redacted)}
    planned: list[NewDocument | ReplacedMessage] = []
    for row, record in records:
        instead = redactions.get(row.seq)
        if isinstance(record, Redacted):
            planned.append(ReplacedMessage(record.index, record.message, record.at))
        elif isinstance(record, MessageAdded):
            planned.append(NewDocument(row.seq, record.index, tracked(record.message, row.link), record.at, False))
            count = record.index + 1
        # Erased, and its redaction may lie behind these rows.
        elif row.kind == RecordKind.MESSAGE:
            message = instead.message if instead is not None else BLANK
            planned.append(NewDocument(row.seq, count, tracked(message, row.link), now, True))
            count += 1
    return planned, count
