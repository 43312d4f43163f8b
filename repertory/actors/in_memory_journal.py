"""The journal of a session that has no store."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from repertory.actors.writer import CommitBuffer
from repertory.core.journal.fold import Fold
from repertory.core.journal.paths import paths_to, within
from repertory.core.journal.records import Branched, MessageAdded, NodeChanged, Record, Redacted, ViewChanged
from repertory.core.journal.redact import Copy
from repertory.core.journal.view import message_with_view, visible_messages
from repertory.core.memory.progress import JournaledMessage
from repertory.core.messages import Message, copy_message
from repertory.core.orchestration.run import RUN, earlier_in
from repertory.core.retry import StorePatience


class InMemoryJournal(Struct):
    """The fold of a session and all its messages. It outlives the actors that use it."""

    fold: Fold = field(default_factory=Fold)
    messages: dict[int, Message] = {}
    """Every message, by sequence number."""

    times: dict[int, float] = {}
    """The epoch seconds at which each message was added, by sequence number."""
    branches: list[tuple[int, Record]] = []
    nodes: dict[tuple[int, str], tuple[int, Record]] = {}
    """The latest record of each node with its number, by run and node: of the current run, and of earlier ones that may
    still be read.
    """

    last: MessageAdded | None = None
    """The last record, if it is a message: a change of the view may become part of it."""

    random: bytes = b""
    """Random bytes, for `secret`; empty for a conversation to which no result can come later."""

    def secret(self) -> bytes:
        """The bytes that nobody knows who has read the conversation only; see `JournalAuthor.secret`."""
        return self.random

    def before_last_message(self) -> bytes:
        """Bytes that no other journal has; see `JournalAuthor.before_last_message`."""
        return self.random

    def add(self, record: Record) -> int:
        """Append a record; returns its sequence number. Errors: `Invalid` if the record is not allowed here."""
        seq = self.fold.last_seq + 1
        if type(record) is Branched:
            self.fold.rewind(seq, record, visible_messages(self.fold.shown))
            self.branches.append((seq, record))
        else:
            self.fold.apply(seq, record)
        match record:
            case MessageAdded(message=message):
                self.messages[seq], self.times[seq] = message, record.at
            case NodeChanged():
                # Once for each run, at its first record: runs that nothing can go back to any more are forgotten, or a
                # long session would keep the results of all its runs.
                if (record.run, RUN) not in self.nodes:
                    known = {record.run, *earlier_in(record).values()}
                    self.nodes = {key: entry for key, entry in self.nodes.items() if key[0] in known}
                self.nodes[record.run, record.node] = seq, record
            case Redacted(target=target, message=message):
                self.messages[target] = message
            case _:
                pass
        self.last = record if type(record) is MessageAdded else None
        return seq

    def add_view(self, change: ViewChanged) -> None:
        """Append a change of the view. Errors: `Invalid` if it is not allowed here."""
        whole = None if self.last is None else message_with_view(self.last, change)
        if whole is None:
            self.add(change)
        else:
            self.fold.show_with_last(change.view)
            self.last = whole

    def run_records(self) -> list[tuple[int, Record]]:
        """The records of all known runs, with the rewinds, in order."""
        return sorted([*self.branches, *self.nodes.values()], key=lambda entry: entry[0])

    def redact(self, instead: Mapping[int, Message], at: float) -> tuple[Copy, ...]:
        """Replace these messages, by sequence number, for good. Errors: `UnpairedTools`."""
        for target, message in instead.items():
            # O(n) for each one, as nobody keeps indexes here; a redaction is rare.
            index = list(self.messages).index(target)
            self.add(Redacted(at=at, target=target, message=message, turn=self.fold.turns, index=index))
        return ()

    def buffer_of(self, session_id: str, agent_id: str, patience: StorePatience | None = None) -> CommitBuffer:
        """An empty commit buffer: nothing ever waits here."""
        del patience
        return CommitBuffer(session_id, agent_id)

    def history(self) -> tuple[Message, ...]:
        """A copy of all messages, oldest first."""
        return tuple(map(copy_message, self.messages.values()))

    def messages_between(self, after: int, until: int | None) -> list[JournaledMessage]:
        """The messages after a sequence number, oldest first, without those that a rewind up to `until` has left
        behind.
        """
        path = paths_to(self.branches, [self.fold.last_seq if until is None else until])
        return [
            JournaledMessage(seq, self.times[seq], message)
            for seq, message in self.messages.items()
            if seq > after and within(seq, path)
        ]
