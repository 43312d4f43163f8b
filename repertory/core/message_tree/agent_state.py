"""The state that an agent's document shows, and when the document must be rewritten. Pure.

The documented tree and AgentCore Memory show the same document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec import Struct

from repertory.core.journal.codec import decode
from repertory.core.journal.fold import Fold
from repertory.core.journal.image import Image
from repertory.core.journal.pending_tools import pending_tools_of
from repertory.core.journal.records import Branched, Record, View
from repertory.core.journal.rows import MadeRow, Row
from repertory.core.message_tree.documents import AgentFile, agent_document, manager_named
from repertory.core.message_tree.opening import due_after, manager_in
from repertory.core.turns.interrupt_state import asks_somebody
from repertory.core.window.decision import DEFAULT_MANAGER
from repertory.errors import CorruptJournal

_NUMBERS_MAX = 256


class AgentDocument(Struct, kw_only=True):
    """The state that an agent's document shows, and whether the document is due."""

    agent_id: str
    last_seq: int = 0
    next_number: int = 0
    """The number of the next message."""
    messages: int = 0
    """The number of stored messages."""
    numbers: dict[int, int] = {}
    """Sequence number of a message's row to the message's number, for messages that may still be shown."""
    numbers_max: int = _NUMBERS_MAX
    """The number of `numbers` above which those of messages that are shown no more are dropped."""
    fold: Fold | None = None
    """None: must be folded from the store."""
    agent: AgentFile | None = None
    """The agent's document, as read."""
    state_due: bool = False
    view_due: bool = False
    manager: str = DEFAULT_MANAGER
    """The conversation manager that the agent's document names."""
    created_at: float = 0.0
    """The time of the agent's first document, if this owner has made that; 0.0 if not."""
    asks: bool = False
    """True if the agent's document says that the turn waits for a person."""

    @property
    def due(self) -> bool:
        """True if the agent's document must be rewritten before the journal is released."""
        return bool(self.last_seq) and (self.view_due or self.state_due)

    def follow(self, row: Row) -> Record | None:
        """Fold a stored row, and note whether the agent's document is due. Returns its record, if that can be read."""
        record = record_in(row)
        due = due_after(record, asks=self.asks, manager=self.manager)
        self.state_due, self.view_due = self.state_due or due.state, self.view_due or due.view
        if record is None or isinstance(record, Branched):
            self.fold = None  # Folding it needs more than is known here.
        elif self.fold is not None:
            self.fold.apply(row.seq, record)
        if self.fold is not None and len(self.numbers) > self.numbers_max:
            low = self.fold.needed - 1  # The link of the row before the first that is needed proves the others.
            self.numbers = {seq: number for seq, number in self.numbers.items() if seq >= low}
            self.numbers_max = max(_NUMBERS_MAX, 2 * len(self.numbers))  # So that many that are shown cost once.
        return record

    def first_document(self, rows: Sequence[Row], at: float) -> bytes:
        """The agent's document before the first message. It names the conversation manager of these rows: other
        programs refuse a session with another manager than theirs.
        """
        fold = self.fold or Fold()
        named = next((name for name in map(manager_in, map(record_in, rows)) if name), "")
        if named and not fold.shown.view.manager:
            fold = Fold(Image(view=View(manager=named), state=dict(fold.state)))
        self.manager = manager_named(fold.shown.view, self.agent)
        return self._document(fold, 0, at)

    def document(self, at: float) -> bytes:
        """The agent's document as of now. Needs `fold`."""
        assert self.fold is not None
        first = self.fold.shown.view.first_shown
        removed = _offset_of(first, self.numbers, self.messages, self.next_number - 1)
        return self._document(self.fold, removed, at)

    def _document(self, fold: Fold, removed: int, at: float) -> bytes:
        self.created_at = self.created_at or at
        return agent_document(self.agent_id, fold, removed, self.agent, (self.created_at, at))

    def mark_stored(self) -> None:
        """The document was stored."""
        assert self.fold is not None
        self.state_due = self.view_due = False
        self.asks = asks_somebody(pending_tools_of(self.fold))
        self.manager = manager_named(self.fold.shown.view, self.agent)


def record_in(row: Row) -> Record | None:
    """The record; None when it is erased or cannot be read."""
    if isinstance(row, MadeRow) and row.record is not None:
        return cast("Record", row.record)
    try:
        return decode(row.kind, row.version, row.body) if not row.erased else None
    except CorruptJournal:
        return None


def _offset_of(first_shown: int, numbers: Mapping[int, int], messages: int, last_number: int) -> int:
    """The number of messages before the first one shown, which other programs skip on opening.

    `numbers`: those of the known rows. When no message is shown, all are skipped.
    """
    numbers_shown = [number for seq, number in numbers.items() if seq >= first_shown]
    return max(0, messages - (last_number + 1 - min(numbers_shown))) if numbers_shown else messages
