"""An agent as its snapshots show it, followed row by row, and the bytes of its latest snapshot.

A snapshot holds every message that the model is shown, and nearly all of them stood in the one before. So each message
is encoded once, for the file and for the digest, and a snapshot is put together from those bytes: it costs what is new,
and a pass over bytes that exist. The bytes are those of `snapshot_document`, which says what a snapshot is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple, cast

from msgspec.structs import replace

from repertory.core.journal.codec import at_of
from repertory.core.journal.records import Branched
from repertory.core.journal.restore import records_of, replay_records, restore
from repertory.core.json_bytes import encoded, json_file
from repertory.core.provider_parts import for_others
from repertory.core.snapshots.document import JournalPosition, SnapshotContent, snapshot_document
from repertory.core.snapshots.intake import Published, identity
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.rows import Row
    from repertory.core.messages import Message

_in_file = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_in_digest = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode
_MESSAGES = "messages"
_NO_MESSAGES = b'"messages": []'


class _Encoded(NamedTuple):
    """A message, in the forms that a snapshot needs."""

    message: Message
    in_file: bytes
    in_digest: bytes
    identity: bytes


class AgentView:
    """The state of an agent's journal, and its shown messages as bytes. After an error it must be made anew.

    Attributes:
        fold: The state.
        seq: The last record that it shows.
        at: When that was made, in epoch seconds; 0.0 if nothing says so.
        size_bytes: About that of its messages.
    """

    def __init__(self, rows: Sequence[Row], *, session_id: str = "") -> None:
        """`rows`: those from the last one's `low` on, at least one. Errors: `CorruptJournal`."""
        self._session_id = session_id
        self.fold: Fold = restore(rows, session_id=session_id).fold
        self.at = last_time(rows)
        self.seq, self._link = rows[-1].seq, rows[-1].link
        self.size_bytes = sum(len(row.body) for row in rows)
        self._known: dict[int, _Encoded] = {}

    def add(self, rows: Sequence[Row]) -> None:
        """Follow rows that were committed; those that are known are left out. Errors: `CorruptJournal`, also for a gap;
        `Invalid` for rows that say only together with earlier ones what they change.
        """
        rows = [row for row in rows if row.seq > self.seq]
        if not rows:
            return
        records = records_of(rows, session_id=self._session_id)
        # Both need rows from before, which are not here: the view is made anew.
        if any(record is None or type(record) is Branched for _, record in records):
            raise Invalid("the effect of these rows is known with the earlier ones only")
        replay_records(self.fold, rows, records, session_id=self._session_id)
        self.at = next((record.at for _, record in reversed(records) if record is not None), self.at)
        self.seq, self._link = rows[-1].seq, rows[-1].link

    def position(self, generation: int) -> JournalPosition:
        """The position of a snapshot of this state. `generation`: that of the owner."""
        return JournalPosition(seq=self.seq, link=self._link.hex(), generation=generation)

    def snapshot(self, content: SnapshotContent, position: JournalPosition) -> tuple[bytes, Published]:
        """The file of the latest snapshot, and what other programs see in it. `content`: of this state; its messages
        are not looked at. Errors: `Invalid` for values that are not JSON.
        """
        try:
            messages = self._encoded()
            body = _put_together(replace(content, messages=()), self.at, position, messages)
        # Rare enough to be made the slow way, whole.
        except UnicodeEncodeError:  # A lone surrogate has no UTF-8 form, so the whole file is ASCII.
            messages = []
            content = replace(content, messages=self.fold.shown.messages())
            return json_file(snapshot_document(content, self.at, position), indent=None), Published.of(content)
        except (TypeError, ValueError, RecursionError) as error:
            raise Invalid("a snapshot holds JSON values only", cause=str(error)) from error
        self.size_bytes = len(body)
        return body, Published(messages=[each.identity for each in messages], state=dict(content.state))

    def _encoded(self) -> list[_Encoded]:
        """The shown messages. Those that the last snapshot showed are known."""
        before, self._known = self._known, dict[int, _Encoded]()
        for seq, message in self.fold.shown:
            known = before.get(seq)
            # By identity: a redaction or a shortening puts another object under the same number.
            self._known[seq] = known if known is not None and known.message is message else _encode(message)
        return list(self._known.values())


def _encode(message: Message) -> _Encoded:
    value = encoded(cast("dict[str, object]", for_others(message)))
    return _Encoded(message, _in_file(value).encode(), _in_digest(value).encode(), identity(message))


def _put_together(
    content: SnapshotContent, at: float, position: JournalPosition, messages: Sequence[_Encoded]
) -> bytes:
    document = snapshot_document(content, at, position, partial(_digest, messages))
    # Nothing that anybody has said stands before the messages.
    # The document is written with an empty list, which is then filled with bytes that exist: encoding it whole costs
    # the history at each save.
    head, _, tail = _in_file(document).encode().partition(_NO_MESSAGES)
    return b"".join((head, b'"messages": [', b", ".join([each.in_file for each in messages]), b"]", tail))


def _digest(messages: Sequence[_Encoded], content: Mapping[str, object]) -> str:
    """`content_digest` of this content with these messages."""
    data = cast("Mapping[str, object]", content["data"])
    # The digest is over sorted keys, so the messages' bytes belong between those before them and those behind.
    before = {name: value for name, value in data.items() if name < _MESSAGES}
    behind = {name: value for name, value in data.items() if name > _MESSAGES}
    digest = sha256(_in_digest({**content, "data": before})[:-2].encode())
    digest.update(b',"messages":[' + b",".join([each.in_digest for each in messages]) + b"],")
    digest.update(_in_digest(behind)[1:].encode() + b"}")
    return digest.hexdigest()


def last_time(rows: Sequence[Row]) -> float:
    """The time of the last of these rows that has one, in epoch seconds; 0.0 if none has."""
    times = (at_of(row.body) for row in reversed(rows) if not row.erased)
    return next((each for each in times if each is not None), 0.0)
