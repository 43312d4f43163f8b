"""The commit buffer: records that sessions have accepted and their store has not stored yet.

Not an actor. A persister writes its session's buffer; the agent's journal, the host and the drain read it in the same
event loop without asking. The buffer outlives its persister, so a killed persister leaves a report of what it held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from repertory.core.journal.codec import at_of, decode
from repertory.core.journal.history.redact import Redaction
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.outage import DEFAULT_PATIENCE, StorePatience
from repertory.errors import RepertoryError


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStored:
    """Records of one agent in one session that are not on stable storage."""

    session_id: str
    agent_id: str
    records: int
    """0 if the only open work is an erasure: contents that were to be destroyed may still be stored."""
    size_bytes: int
    turns: tuple[int, ...]
    """Numbers of the turns that have such records."""
    since: float
    """When the first of these records was made, in epoch seconds."""
    answered: bool
    """True if a caller already has the answer of one of these turns: `relaxed` turns are answered before they are
    stored.
    """
    error: str


class CommitBuffer:
    """The records of one agent of a session that are accepted and not stored."""

    __slots__ = (
        "_patience",
        "agent_id",
        "erase",
        "erasing",
        "error",
        "failed",
        "lost",
        "promised",
        "sent",
        "session_id",
        "unsent",
    )

    def __init__(self, session_id: str, agent_id: str, patience: StorePatience = DEFAULT_PATIENCE) -> None:
        self.session_id = session_id
        self.agent_id = agent_id
        self._patience = patience
        self.sent: tuple[Row, ...] = ()
        """Handed to the writer, and not known to be stored."""
        self.unsent: list[Row] = []
        """The rows after them."""
        self.erasing: frozenset[int] = frozenset()
        """Stored rows whose contents the writer was asked to destroy; it has not confirmed that."""
        self.erase: frozenset[int] = frozenset()
        """Rows for the next such request."""
        self.error: RepertoryError | None = None
        """Why the store does not accept them; None while the store accepts rows."""
        self.failed: RepertoryError | None = None
        """Why the persister restarted; None once the session is open again."""
        self.promised = 0
        """Records up to this sequence number belong to turns that were answered before they were stored."""
        self.lost: NotStored | None = None
        """Records that were answered and will never be stored, until `take_lost` is called."""

    @property
    def count(self) -> int:
        return len(self.sent) + len(self.unsent)

    @property
    def rows(self) -> tuple[Row, ...]:
        return (*self.sent, *self.unsent)

    @property
    def waits(self) -> bool:
        """True if there is anything to store or to erase."""
        return bool(self.sent or self.unsent or self.erase or self.erasing)

    @property
    def size_bytes(self) -> int:
        return sum(len(row.body) for row in self.rows)

    def full(self, more: int = 0) -> bool:
        """True if the buffer holds as much as it may, counting `more` further records."""
        return self.count + more >= self._patience.records_max or self.size_bytes >= self._patience.bytes_max

    @property
    def last_seq(self) -> int:
        """The last record in the buffer; 0 if it is empty."""
        rows = self.unsent or self.sent
        return rows[-1].seq if rows else 0

    def redact(self, redaction: Redaction) -> None:
        """Apply a redaction. Contents that are not sent yet are destroyed here and never leave."""
        waiting = {row.seq for row in self.unsent}
        self.unsent = [row.without_content() if row.seq in redaction.erase else row for row in self.unsent]
        self.unsent += redaction.rows
        self.erase |= frozenset(redaction.erase) - waiting

    def take_all(self) -> None:
        """Move everything to `sent`: the writer gets it next."""
        self.sent, self.unsent = self.rows, []
        self.erasing, self.erase = self.erasing | self.erase, frozenset()

    def put_back(self) -> None:
        """Ask for the last erasures again, since the writer may not have done them."""
        self.erase, self.erasing = self.erase | self.erasing, frozenset()

    def stored(self, seq: int) -> None:
        """The rows up to `seq` are stored. Also clears the error."""
        self.sent = tuple(row for row in self.sent if row.seq > seq) if self.sent and self.sent[-1].seq > seq else ()
        if not self.sent:
            self.erasing = frozenset()
        self.error = None

    def abandon(self, error: RepertoryError) -> NotStored | None:
        """Forget all rows. If some were answered, remember and return them as lost."""
        rows, self.sent, self.unsent, self.error = self.rows, (), [], None
        self.erase = self.erasing = frozenset()
        if not rows or rows[0].seq > self.promised:
            return None
        self.lost = _sum(self.lost, self._told(rows, error))
        self.promised = rows[0].seq - 1
        return self.lost

    def take_lost(self) -> NotStored | None:
        """The answered records that were lost, given once. The caller must report them."""
        lost, self.lost = self.lost, None
        return lost

    def not_stored(self) -> NotStored | None:
        """What is not stored and what was answered and lost; None if neither exists."""
        return _sum(self.lost, self._told(self.rows, self.error) if self.waits else None)

    def _told(self, rows: Sequence[Row], error: RepertoryError | None) -> NotStored:
        records = (
            decode(row.kind, row.version, row.body) for row in rows if row.kind == RecordKind.MESSAGE and not row.erased
        )
        return NotStored(
            session_id=self.session_id,
            agent_id=self.agent_id,
            records=len(rows),
            size_bytes=sum(len(row.body) for row in rows),
            turns=tuple(sorted({record.turn for record in records if isinstance(record, MessageAdded)})),
            since=at_of(rows[0].body) or 0.0 if rows else 0.0,
            answered=bool(rows) and rows[0].seq <= self.promised,
            error=str(error) if error is not None else "the store has not answered",
        )


def _sum(first: NotStored | None, then: NotStored | None) -> NotStored | None:
    if first is None or then is None:
        return first or then
    return replace(
        then,
        records=first.records + then.records,
        size_bytes=first.size_bytes + then.size_bytes,
        turns=tuple(sorted({*first.turns, *then.turns})),
        since=min(first.since, then.since),
        answered=first.answered or then.answered,
    )


class CommitBuffers:
    """The buffers of all sessions of a host."""

    def __init__(self, patience: StorePatience = DEFAULT_PATIENCE) -> None:
        self.patience = patience
        self._by_key: dict[tuple[str, str, str], CommitBuffer] = {}

    def of(self, store: str, session_id: str, agent_id: str, patience: StorePatience | None = None) -> CommitBuffer:
        """An agent's buffer; every call gives the same one. `store` tells sessions of the same name apart. `patience`:
        the agent's own, instead of the host's.
        """
        key = store, session_id, agent_id
        buffer = self._by_key.get(key)
        if buffer is None:
            buffer = self._by_key[key] = CommitBuffer(session_id, agent_id, patience or self.patience)
        return buffer

    def forget(self, store: str, buffer: CommitBuffer) -> None:
        """Drop the buffer of a session at rest, unless it still has something to report."""
        if not buffer.waits and buffer.lost is None:
            self._by_key.pop((store, buffer.session_id, buffer.agent_id), None)

    def __iter__(self) -> Iterator[CommitBuffer]:
        return iter(tuple(self._by_key.values()))

    def not_stored(self) -> tuple[NotStored, ...]:
        """Everything that is not stored, and everything answered and lost, by agent and session."""
        found = [buffer.not_stored() for buffer in self]
        return tuple(told for told in found if told is not None)
