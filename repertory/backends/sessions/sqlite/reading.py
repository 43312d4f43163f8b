"""Reading journals of a session database within a transaction, and detecting damage.

The database has no checksums, so a damaged page may look like another valid page. Every value read here is compared
with another stored value about the same thing: the last row with the heads, each row with the one before it, a
journal's line with its index entry and with its first row. The chain proves the contents of the rows to their reader
(`core/journal/rows.py`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from repertory.core.ids import prefix_end
from repertory.core.journal.codec import at_of
from repertory.core.journal.packing import RAW, deflated, inflated
from repertory.core.journal.rows import Row, first_link, link_of
from repertory.core.journal.sealing import SEALED
from repertory.errors import CorruptJournal

CHAIN = (
    "WITH RECURSIVE chain (position, previous, journal, seq) AS ("
    " SELECT position, previous, journal, seq FROM rows WHERE position = ?"
    " UNION ALL SELECT rows.position, rows.previous, rows.journal, rows.seq FROM chain CROSS JOIN rows"
    " ON rows.position = chain.previous WHERE rows.seq >= ? AND rows.seq = chain.seq - 1"
    " AND rows.journal = chain.journal) "
)
"""`(position, seq)`: the positions of a journal's rows from that one back to that number. It stops at a row that is not
the expected one, so it returns at most as many rows as the first one's number says, whatever `previous` says.
"""

_COLUMNS = (
    "CAST(coalesce(rows.seq, 0) AS INTEGER), CAST(coalesce(kind, 0) AS INTEGER), CAST(coalesce(version, 0) AS INTEGER),"
    " CAST(coalesce(low, 0) AS INTEGER), CAST(coalesce(link, x'') AS BLOB), CAST(coalesce(salt, x'') AS BLOB),"
    " CAST(coalesce(body, x'') AS BLOB)"
)
"""A row's columns with the types that we write. Damage, or an edit, may have left values of other types."""

LOAD = f"{CHAIN}SELECT ?, {_COLUMNS} FROM chain CROSS JOIN rows ON rows.position = chain.position"
"""`(position, seq, agent)`: the rows of that chain, each behind the agent."""

ROW_AT = f"SELECT ?, {_COLUMNS} FROM rows WHERE position = ?"
"""`(agent, position)`."""

OWN_ROW_AT = f"{ROW_AT} AND journal = ?"
# The unary plus keeps SQLite from using the key, which leads nowhere if pages are out of order.
OWN_ROW_ANYWHERE = f"SELECT ?, {_COLUMNS} FROM rows WHERE +position = ? AND journal = ? LIMIT 1"
"""The same, with a scan of every row."""

_SCAN = f"SELECT ?, {_COLUMNS} FROM rows WHERE position BETWEEN ? AND ? AND journal = ? ORDER BY position"
"""The rows of a whole journal, by scanning past those of others."""

_LABELS = (
    f"SELECT previous, ?, {_COLUMNS} FROM rows WHERE journal = ? AND kind = 10 AND salt != x'' AND position <= ?"
    " ORDER BY position"
)
"""The snapshots of a journal, by the index of snapshots."""

_INDEX = "sqlite_autoindex_journals_1"
_LINES = "SELECT CAST(session AS TEXT), CAST(agent AS TEXT), id, created_at FROM journals"
_ENTRIES = f"SELECT CAST(session AS TEXT), CAST(agent AS TEXT), id FROM journals INDEXED BY {_INDEX}"
_UNPROVED = "the row does not match its checksum"
GENERATION_MAX = 2**40
"""No database gets there; a generation beyond it is damage."""
SANE_GENERATION = (
    f"CASE WHEN typeof(generation) = 'integer' AND generation BETWEEN 0 AND {GENERATION_MAX} THEN generation ELSE 0 END"
)
"""A damaged generation counts as 0, which nobody holds: owner names are unique, so leases still differ."""
_COUNT = "CASE WHEN typeof(journals) = 'integer' THEN journals ELSE 1 << 62 END"
"""A damaged count becomes one that no session has."""
_ASKING = (
    # A message settles every question before it. Of most journals one of the last three rows is a message, with no
    # question behind it; the others may ask. The questions before a node stand in the journal of the graph.
    "SELECT CAST(j.session AS TEXT) AS name FROM (SELECT DISTINCT journal FROM rows WHERE kind = 7) AS asked"
    " CROSS JOIN journals AS j ON j.id = asked.journal"
    " LEFT JOIN (SELECT journal, max(position) AS position FROM recent GROUP BY journal) AS e ON e.journal = j.id"
    " LEFT JOIN rows AS x ON x.position = max(coalesce(e.position, 0), j.head)"
    " LEFT JOIN rows AS y ON y.position = x.previous LEFT JOIN rows AS z ON z.position = y.previous"
    " WHERE j.session {above} ? AND j.session < ?"
    " AND NOT coalesce(x.kind = 1 OR x.kind <> 7 AND (y.kind = 1 OR y.kind <> 7 AND z.kind = 1), 0)"
    " UNION SELECT CAST(session AS TEXT) FROM journals"
    " WHERE session {above} ? AND session < ? AND agent >= 'multi_agent.' AND agent < 'multi_agent/'"
    " UNION SELECT CAST(session AS TEXT) FROM quarantine WHERE session {above} ? AND session < ?"
    " ORDER BY name LIMIT ?"
)
_SESSIONS = f"SELECT CAST(name AS TEXT), {SANE_GENERATION}, coalesce(CAST(owner AS TEXT), ''), {_COUNT} FROM sessions"

_LINE = f"{_LINES} NOT INDEXED WHERE id = ?"
LINES_OF_ALL = f"{_LINES} NOT INDEXED ORDER BY id"
ENTRIES_OF_ALL = _ENTRIES
"""The same from the index, which lies on other pages."""
_AROUND = (
    f"SELECT * FROM ({_ENTRIES} WHERE session >= ? ORDER BY session LIMIT 1)"
    f" UNION ALL SELECT * FROM ({_ENTRIES} WHERE session < ? ORDER BY session DESC LIMIT 1)"
)
"""The entries of the index on both sides of the place where those of a session begin."""


class Listed(Struct):
    agents: dict[str, int] = {}
    """Agent id to its last sequence number."""
    created_at: float = 0.0
    updated_at: float = 0.0
    generation: int = 0
    owner: str = ""
    """The owner of its last lease, which has that generation."""
    damaged: bool = False


class _Known(NamedTuple):
    generation: int
    owner: str
    journals: int
    """The least number of its journals."""


class JournalReader:
    """Reads within the caller's transaction, after `Heads.catch_up`. Errors of every method: `CorruptJournal`, those of
    SQLite.
    """

    def __init__(self, connection: sqlite3.Connection, heads: Heads, path: str) -> None:
        self._connection = connection
        self._heads = heads
        self._path = path

    def journal(self, session_id: str, agent_id: str, known: int = 0) -> int | None:
        """The key of an agent's journal; None when there is none.

        If the index has none, the session's other journals and the lines of all are checked: damage must not make an
        agent start empty. `known`: the number of other journals that the session has beyond doubt.
        """
        key = self._key(session_id, agent_id)
        line = None if key is not None else self._known(session_id).get(session_id)
        # An answer of "no such agent" lets a new journal begin over a lost one, so it is given only if the counts
        # agree. New agents of sound sessions pay nothing for this: their count is `known`.
        if key is None and (not self.is_unknown(session_id) if line is None else line.journals > known):
            found = self.listed(session_id).get(session_id)
            if found is not None and (found.damaged or agent_id in found.agents):
                text = "the session is damaged, so it is unknown whether it has such an agent; `doctor` says more"
                raise self._corrupt(text, session=session_id, agent=agent_id)
        return key

    def load(self, session_id: str, agent_id: str, *, whole: bool, known: int = 0) -> list[Row]:
        """Rows in order, from the last row's `low` on, or all of them."""
        journal = self.journal(session_id, agent_id, known)
        if journal is None:
            return []
        head = self._heads.of(journal)
        low = self._low(journal, head, session_id, agent_id)
        # A range scan reads pages once; the chain looks each row up from the root of the tree.
        if whole and is_dense(journal, head):
            found = self._connection.execute(_SCAN, (agent_id, journal, head.position, journal))
            return self._complete(unpack_rows(list(map(Row._make, found))), 1, head.seq, session_id, agent_id)
        return self._stretch(session_id, agent_id, head, 1 if whole else low)

    def rows_at(self, session_id: str, agent_id: str, seq: int) -> list[Row]:
        """Rows in order, from the `low` of the row at `seq` up to that row; none when there is no such row."""
        journal = self.journal(session_id, agent_id)
        if journal is None or not 0 < seq <= (head := self._heads.of(journal)).seq:
            return []
        self._low(journal, head, session_id, agent_id)
        head = self._at(journal, head, seq)
        return self._stretch(session_id, agent_id, head, self._low(journal, head, session_id, agent_id))

    def rows_between(self, session_id: str, agent_id: str, first: int, last: int) -> list[Row]:
        """The rows with these numbers and those between them, as far as there are such rows."""
        journal = self.journal(session_id, agent_id)
        if journal is None:
            return []
        head = self._heads.of(journal)
        self._low(journal, head, session_id, agent_id)
        first, last = max(first, 1), min(last, head.seq)
        return self._stretch(session_id, agent_id, self._at(journal, head, last), first) if first <= last else []

    def _at(self, journal: int, head: LastRow, seq: int) -> LastRow:
        near = nearest(self._connection, journal, head, seq)
        statement = f"{CHAIN}SELECT min(position) FROM chain"
        (position,) = self._connection.execute(statement, (near.position, seq)).fetchone()
        return LastRow(position or 0, seq)

    def label_rows(self, session_id: str, agent_id: str) -> list[Row]:
        """The rows of kind `snapshot` that still have their content, each proved by the row before it."""
        journal = self.journal(session_id, agent_id)
        if journal is None:
            return []
        head = self._heads.of(journal)
        rows: list[Row] = []
        for previous, *values in self._connection.execute(_LABELS, (agent_id, journal, head.position)).fetchall():
            row = unpacked(Row._make(values))
            if not self._is_proved(journal, row, previous):
                raise self._corrupt(_UNPROVED, session=session_id, agent=agent_id, seq=row.seq)
            rows.append(row)
        return rows

    def is_unknown(self, session_id: str) -> bool:
        """True if the session, which has no lease, has no journal either. It costs the same however many sessions there
        are, so it asks the index alone: False as well if the page where the session's entries would lie is damaged.
        """
        around = self._connection.execute(_AROUND, (session_id, session_id)).fetchall()
        if not around:
            return self._connection.execute(f"{_LINES} NOT INDEXED LIMIT 1").fetchone() is None
        # The neighbors are compared with their lines: a damaged page of the index would be taken for the absence of an
        # entry.
        return all(name != session_id and self._names(key, name, agent) for name, agent, key in around)

    def least(self, session_id: str) -> int:
        """The least number of journals of a session: as counted, or, where the count was lost, by all lines."""
        known = self._known(session_id).get(session_id)
        if known is not None:
            return known.journals
        statement = "SELECT count(*) FROM journals NOT INDEXED WHERE session = ?"
        return int(self._connection.execute(statement, (session_id,)).fetchone()[0])

    def names_after(self, prefix: str, after: str, limit: int) -> list[str]:
        """The first ids with this prefix that follow `after`, by a range of each index: of sessions that may have a
        journal.
        """
        low, end = max(after, prefix), prefix_end(prefix)
        where, values = f"{{0}} {'>' if after >= prefix else '>='} ? AND {{0}} < ?", (low, end, limit)
        leases = f"SELECT CAST(name AS TEXT) FROM sessions WHERE {where.format('name')} AND {_COUNT} IS NOT 0"
        entries = f"SELECT DISTINCT CAST(session AS TEXT) FROM journals INDEXED BY {_INDEX} WHERE"
        # Two indexes, since either may have lost a session; a name that is in one of them is looked at.
        found = self._connection.execute(f"{leases} ORDER BY name LIMIT ?", values).fetchall()
        found += self._connection.execute(f"{entries} {where.format('session')} ORDER BY session LIMIT ?", values)
        return sorted({name for (name,) in found})[:limit]

    def asking_after(self, prefix: str, after: str, limit: int) -> list[str]:
        """The same, without sessions that surely ask no person anything."""
        low = max(after, prefix)
        statement = _ASKING.format(above=">" if after >= prefix else ">=")
        values = (*(low, prefix_end(prefix)) * 3, limit)
        return [name for (name,) in self._connection.execute(statement, values)]

    def listed(self, session_id: str | None) -> dict[str, Listed]:
        """Every session that has a journal, or that one alone; in the order in which they began."""
        found: dict[str, Listed] = {}
        known = self._known(session_id)
        if session_id is None:
            lines = self._connection.execute(LINES_OF_ALL).fetchall()
            entries = set(self._connection.execute(ENTRIES_OF_ALL))
        else:
            # If a session's journals are counted, the index finds them; else all lines are searched.
            entries = set(self._connection.execute(f"{_ENTRIES} WHERE session = ?", (session_id,)))
            if any(each.journals for each in known.values()):
                keys = sorted(key for _, _, key in entries)
                lines = [line for key in keys for line in self._connection.execute(_LINE, (key,))]
            else:
                scan = f"{_LINES} NOT INDEXED WHERE session = ? ORDER BY id"
                lines = self._connection.execute(scan, (session_id,)).fetchall()
        for name, agent, journal, created_at in lines:
            sound = name in known and (name, agent, journal) in entries
            entries.discard((name, agent, journal))
            if not name:
                raise self._corrupt("a journal does not say of which session it is", position=journal)
            about = found.setdefault(name, Listed())
            if not agent:
                about.damaged = True
                continue
            try:
                created_at, updated_at, seq = self._about(journal, agent, created_at)
            except (sqlite3.DatabaseError, UnicodeDecodeError, CorruptJournal):
                # Damage of one journal must not keep the others from being listed.
                about.damaged = True
                continue
            about.damaged = about.damaged or not sound
            about.agents[agent] = seq
            about.created_at = about.created_at or created_at
            about.updated_at = max(about.updated_at, updated_at)
        for name, *_ in entries:  # The lines of these sessions are gone.
            if not name:
                raise self._corrupt("an entry of the index does not say of which session it is")
            found.setdefault(name, Listed()).damaged = True
        for name, (generation, owner, journals) in known.items():
            if name in found or journals:
                about = found.setdefault(name, Listed())
                about.generation, about.owner = generation, owner
                # Fewer journals than were counted: a line and its entry in the index are gone, both.
                about.damaged = about.damaged or len(about.agents) < journals
        return found

    def _known(self, session_id: str | None) -> dict[str, _Known]:
        where, values = ("", ()) if session_id is None else (" WHERE name = ?", (session_id,))
        found = self._connection.execute(f"{_SESSIONS}{where}", values).fetchall()
        if not all(name for name, *_ in found):
            raise self._corrupt("a lease does not say of which session it is")
        return {name: _Known(*about) for name, *about in found}

    def _about(self, journal: int, agent_id: str, created_at: object) -> tuple[float, float, int]:
        """Epoch seconds of a journal's beginning and of its last change, and its last sequence number."""
        head = self._heads.of(journal)
        self._low(journal, head, "", agent_id)
        first = self._row(journal, journal, agent_id)
        if first.seq != 1 or link_of(first_link(agent_id), first) != first.link:
            raise self._corrupt(_UNPROVED, agent=agent_id, seq=first.seq)
        began = at_of(first.body) if not first.erased else created_at
        began = float(began) if isinstance(began, int | float) else 0.0
        return began, self._last_at(journal, agent_id, head), head.seq

    def _last_at(self, journal: int, agent_id: str, head: LastRow) -> float:
        """Epoch seconds of the last row that still has its content; 0.0 when unknown."""
        # A loop over the chain, which ends at the first row that has its content: nearly always the last one.
        for seq, position in self._connection.execute(f"{CHAIN}SELECT seq, position FROM chain", (head.position, 1)):
            row = self._row(journal, position, agent_id)
            statement = "SELECT previous FROM rows WHERE position = ?"
            if not self._is_proved(journal, row, *self._connection.execute(statement, (position,)).fetchone()):
                raise self._corrupt(_UNPROVED, agent=agent_id, seq=seq)
            if not row.erased:
                return at_of(row.body) or 0.0
        return 0.0

    def _is_proved(self, journal: int, row: Row, previous: object) -> bool:
        """True if a row's link follows from the row before it; for the first row, from its agent's name."""
        if row.seq == 1:
            return link_of(first_link(row.agent_id), row) == row.link
        statement = "SELECT CAST(link AS BLOB) FROM rows WHERE position = ? AND journal = ? AND seq = ?"
        found = self._connection.execute(statement, (previous, journal, row.seq - 1)).fetchone()
        return found is not None and link_of(found[0] or b"", row) == row.link

    def _row(self, journal: int, position: int, agent_id: str) -> Row:
        found = self._connection.execute(OWN_ROW_AT, (agent_id, position, journal)).fetchone()
        if found is None:
            raise self._corrupt("a row is missing", agent=agent_id, position=position)
        return unpacked(Row._make(found))

    def _stretch(self, session_id: str, agent_id: str, head: LastRow, low: int) -> list[Row]:
        rows = list(map(Row._make, self._connection.execute(LOAD, (head.position, low, agent_id))))
        rows.reverse()
        return self._complete(unpack_rows(rows), low, head.seq, session_id, agent_id)

    def _complete(self, rows: list[Row], first: int, last: int, session_id: str, agent_id: str) -> list[Row]:
        """The rows, if they have exactly these numbers."""
        for expected, row in zip(range(first, last + 1), rows, strict=False):
            if row.seq != expected:
                break
        else:
            if len(rows) == last + 1 - first:
                return rows
        there = {row.seq for row in rows}
        seq = next((number for number in range(last, first - 1, -1) if number not in there), last)
        raise self._corrupt(
            "a row is missing, or is not linked to the one before it", session=session_id, agent=agent_id, seq=seq
        )

    def _low(self, journal: int, head: LastRow, session_id: str, agent_id: str) -> int:
        found = self._connection.execute(
            "SELECT CAST(journal AS INTEGER), CAST(seq AS INTEGER), CAST(low AS INTEGER) FROM rows WHERE position = ?",
            (head.position,),
        ).fetchone()
        corrupt = partial(self._corrupt, session=session_id, agent=agent_id, seq=head.seq, position=head.position)
        if found is None:
            raise corrupt("a row is missing")
        key, seq, low = found
        # A page that is valid and is another one: only the second record of the end can tell.
        if (key, seq) != (journal, head.seq):
            raise corrupt("another row stands where this one should be")
        if not isinstance(low, int) or not 1 <= low <= seq:
            raise corrupt("the row is malformed")
        return low

    def _key(self, session_id: str, agent_id: str) -> int | None:
        statement = f"SELECT id FROM journals INDEXED BY {_INDEX} WHERE session = ? AND agent = ?"
        found = self._connection.execute(statement, (session_id, agent_id)).fetchone()
        if found is None:
            return None
        # Only the index says whose journal it is: if damaged, it could lead to another session's.
        if not self._names(found[0], session_id, agent_id):
            what = "the line of the journal is not what the index says"
            raise self._corrupt(what, session=session_id, agent=agent_id, position=found[0])
        return found[0]

    def _names(self, journal: int, session_id: str, agent_id: str) -> bool:
        """True if the line of the journal names that session and agent."""
        line = self._connection.execute(_LINE, (journal,)).fetchone()
        return line is not None and line[:2] == (session_id, agent_id)

    def _corrupt(
        self, what: str, *, session: str = "", agent: str = "", seq: int | None = None, position: int | None = None
    ) -> CorruptJournal:
        where = {"path": self._path, "session": session, "agent": agent, "seq": seq, "position": position}
        return CorruptJournal(what, **{name: value for name, value in where.items() if value not in ("", None)})


def is_dense(journal: int, head: LastRow) -> bool:
    """True if at least every fourth row between a journal's first and last is its own: scanning past the others is
    faster then.
    """
    return head.seq * 4 > head.position - journal


# Finding the position of a row in a long journal without walking back through all rows after it.
#
# Rows of all journals lie in the order in which they came. So within one journal positions rise with sequence numbers,
# and a row is found by guessing where it should lie. From the nearest row that was met, the chain leads to it.

_NEAR = 48
"""The chain walks back this many rows in about the time of one more guess."""
_PASSED_MAX = 2048
"""The most rows of other journals that a guess may pass. Where a journal's rows lie further apart,
the chain is faster.
"""
_BEFORE = (
    "SELECT position, CAST(seq AS INTEGER) FROM rows WHERE position > ? AND position <= ? AND journal = ?"
    " ORDER BY position DESC"
)


def nearest(connection: sqlite3.Connection, journal: int, head: LastRow, seq: int) -> LastRow:
    """A row of the journal at or after sequence number `seq`, and near it where the journal's rows lie close enough.

    `journal` is its key, which is the position of its first row; `head` its last row.
    """
    low, high = LastRow(journal, 1), head
    halve = False
    while high.seq - seq > _NEAR and high.position - low.position > 1:
        # Every other guess halves: an agent that was silent for months makes the share wrong each time.
        share = 0.5 if halve else (seq + _NEAR // 2 - low.seq) / (high.seq - low.seq)
        guess = low.position + int(share * (high.position - low.position))
        guess = min(max(guess, low.position + 1), high.position - 1)
        first = max(low.position, guess - _PASSED_MAX)
        found = connection.execute(f"{_BEFORE} LIMIT 1", (first, guess, journal)).fetchone()
        # No row of this journal within 2,048: the chain from the nearest known one is cheaper than more guesses.
        if found is None and first > low.position:
            break
        met = LastRow(*found) if found is not None else LastRow(guess, low.seq)
        if met.seq >= seq:
            high = met
        else:
            # The journal has no row between the row that was met and the guess.
            low = LastRow(guess, met.seq)
        halve = not halve
    return high


# Bodies in a session database: long ones are packed, which makes the file smaller and its pages fuller.
#
# A packed body is a byte 1 and a raw deflate stream with a preset dictionary of what most records say. No body begins
# with that byte otherwise: it is a JSON object, or the digest of an erased content, which is told by the missing salt.
# Short bodies stay as they are: unpacking one takes longer than reading the bytes that it saves.

PACKED_FROM_BYTES = 600
_MARK = b"\x01"
_LEVEL = 3
"""A higher level takes twice the time and makes a body one percent smaller."""
_WORTH = 0.9
_DICTIONARY = (
    b'"name":"","description":"","error":"","path":"","url":"","type":"","value":"","data":"","code":"","items":[{"id":"'
    b'"view":{"first_shown":1,"pinned":[[1,{"role":"user","content":[{"text":""}]}]],"replaced":[],"summary":{"role":"user"'
    b',"hidden":[[1,2]],"manager":"NullConversationManager"}"manager":"SummarizingConversationManager","manager_state":{'
    b'{"at":1800000000.1,"tool_use_id":"tooluse_","name":"","idempotency_key":"/default/1/tooluse_","attempt":2}'
    b'{"at":1700000000.1,"tool_use_id":"tooluse_","result":{"toolUseId":"tooluse_","status":"error","content":[{"text":"'
    b'"content":[{"toolResult":{"toolUseId":"tooluse_","status":"success","content":[{"text":"","content":[{"json":{"'
    b'"content":[{"reasoningContent":{"reasoningText":{"text":""}}},{"toolUse":{"toolUseId":"tooluse_","name":"","input":{"'
    b'"}],"metadata":{"usage":{"inputTokens":1,"outputTokens":1,"totalTokens":1},"custom":{"stop_reason":"max_tokens"}}},'
    b'"turn":1,"index":1,"view":{"first_shown":1,"manager":"SlidingWindowConversationManager","manager_state":{'
    b'"removed_message_count":1,"model_call_count":1}}}"turn":1,"index":1,"idempotency_token":"'
    b'{"at":1800000000.1,"message":{"role":"user","content":[{"text":"'
    b'{"at":1700000000.1,"message":{"role":"assistant","content":[{"text":"'
)
"""Part of the format: data written with it can only be read with it."""


def pack_rows(rows: Sequence[Row]) -> Sequence[Row]:
    # Most batches have no long body, and are returned as they came, without a copy.
    for row in rows:
        if len(row[7]) >= PACKED_FROM_BYTES:
            return [_packed(each) for each in rows]
    return rows


def unpacked(row: Row) -> Row:
    """The row with its body unpacked. A damaged body stays as it is; its link shows the damage."""
    if row[7][:1] != _MARK or not row.salt:
        return row
    try:
        # Raw, since links prove the contents better than zlib's own checksum.
        return row._replace(body=inflated(memoryview(row.body)[1:], _DICTIONARY, RAW))
    except ValueError:
        return row


def unpack_rows(rows: list[Row]) -> list[Row]:
    """The same for many, in place."""
    for index, row in enumerate(rows):
        if row[7][:1] == _MARK:
            rows[index] = unpacked(row)
    return rows


def _packed(row: Row) -> Row:
    if len(row.body) < PACKED_FROM_BYTES or row.erased or row.version >= SEALED:  # Ciphertext packs to nothing less.
        return row
    body = _MARK + deflated(row.body, _DICTIONARY, _LEVEL, RAW)
    return row._replace(body=body) if len(body) < len(row.body) * _WORTH else row


# Where each journal ends, without an index that every commit would have to write.
#
# Rows lie in the order in which they came, whosever they are, so that a commit of fifty sessions fills a page or two
# instead of touching fifty. Each row names the position of its journal's row before, so a journal is read backwards
# from its last row. The last rows are kept in the table `journals`, but that is brought up to date only every
# `SETTLE_AFTER` rows: up to `settled.position` it is exact. What came later is found by reading the rows behind that
# position, once per process: this class remembers them and afterwards reads only what other processes add.
#
# The table `recent` says the same of those later rows on pages of its own: each commit notes which row is the last one
# of each journal that it has added to. So when the end of `rows` is lost, the journals that ended there are known to be
# damaged, instead of ending earlier. The farther of the two ends counts.

SETTLE_AFTER = 1024
"""The most rows after `settled.position`. It bounds what a process reads before it can open its first session."""

POSITION_MAX = 2**62
"""No database gets there; a position beyond it is damage."""

RECENT = "CREATE TABLE recent (position INTEGER PRIMARY KEY, journal INTEGER NOT NULL, seq INTEGER NOT NULL)"

_ROWS = (
    "SELECT found.journal, found.position, found.seq FROM (SELECT CAST(journal AS INTEGER) AS journal, position,"
    " max(CAST(seq AS INTEGER)) AS seq FROM rows WHERE position > ? GROUP BY journal) AS found"
    " LEFT JOIN journals ON journals.id = found.journal WHERE found.seq > coalesce(CAST(journals.seq AS INTEGER), 0)"
)
"""The rows with the highest numbers, of those after a position. A row that is there twice is no end."""
_NOTED = "SELECT CAST(journal AS INTEGER), position, CAST(seq AS INTEGER) FROM recent WHERE position > ?"
_END = "SELECT coalesce(max(position), 0) FROM rows UNION ALL SELECT coalesce(max(position), 0) FROM recent"
_HEAD = "SELECT CAST(head AS INTEGER), CAST(seq AS INTEGER) FROM journals WHERE id = ?"


class LastRow(NamedTuple):
    position: int
    seq: int


NO_HEAD = LastRow(0, 0)


class Heads:
    """The end of every journal as of the running transaction. Call `catch_up` first in each.

    Errors: `CorruptJournal` naming the database.
    """

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._others: int | None = None
        self._settled = 0
        self._recent: dict[int, LastRow] = {}
        self._moved: dict[int, LastRow] = {}
        """The ends that the running transaction has moved."""
        self.end = 0
        """The last position in use, or ever used."""
        self.epoch = 0
        """Rises whenever another connection may have changed the database: values read before may be wrong then."""

    def catch_up(self) -> None:
        """Read what other connections have committed since the last call, if anything."""
        # Changes only if another connection has committed. Our own commits are remembered by `moved`.
        (others,) = self._connection.execute("PRAGMA data_version").fetchone()
        if others == self._others:
            return
        settled = self._settled_position()
        found = self._connection.execute(_ROWS, (max(settled, self.end),)).fetchall()
        end = max(self.end, settled, *(last for (last,) in self._connection.execute(_END)))
        found += self._connection.execute(_NOTED, (self.end,)).fetchall()
        if end > POSITION_MAX:
            raise CorruptJournal("a position in the database is beyond every bound", path=self._path, position=end)
        self._drop_settled(settled)
        for journal, position, seq in found:
            if seq > self._recent.get(journal, NO_HEAD).seq:
                self._recent[journal] = LastRow(position, seq)
        self.end = end
        self._others = others
        self.epoch += 1

    def of(self, journal: int) -> LastRow:
        head = self._recent.get(journal)
        if head is not None:
            return head
        found = self._connection.execute(_HEAD, (journal,)).fetchone()
        if found is None or found[0] is None or found[1] is None:
            raise CorruptJournal("the line of a journal is missing or damaged", path=self._path, journal=journal)
        return LastRow(*found)

    def moved(self, journal: int, head: LastRow) -> None:
        """Record that the running transaction has put this row at the end of the journal."""
        self._recent[journal] = self._moved[journal] = head
        self.end = head.position

    def note(self) -> None:
        """Store the ends recorded by `moved`, within the running transaction; settle if it is time."""
        if self.end - self._settled >= SETTLE_AFTER:
            self.settle()
            return
        noted = [(head.position, journal, head.seq) for journal, head in self._moved.items()]
        self._connection.executemany("INSERT OR REPLACE INTO recent (position, journal, seq) VALUES (?, ?, ?)", noted)
        self._moved.clear()

    def settle(self) -> None:
        """Bring the table `journals` up to date within the running transaction."""
        self._moved.clear()
        recent = [(head.position, head.seq, journal) for journal, head in self._recent.items()]
        self._connection.executemany("UPDATE journals SET head = ?, seq = ? WHERE id = ?", recent)
        self._connection.execute("UPDATE settled SET position = ?", (self.end,))
        self._connection.execute("DELETE FROM recent")
        self._drop_settled(self.end)

    def forget(self) -> None:
        """Read everything again: the running transaction was rolled back, or rows were deleted."""
        self._others = None
        self._settled = 0
        self._recent.clear()
        self._moved.clear()
        self.end = 0
        self.epoch += 1

    def _settled_position(self) -> int:
        found = self._connection.execute("SELECT CAST(position AS INTEGER) FROM settled").fetchall()
        if len(found) != 1 or found[0][0] is None:
            raise CorruptJournal("the line of the table settled is missing or damaged", path=self._path)
        return found[0][0]

    def _drop_settled(self, position: int) -> None:
        if position > self._settled:
            self._settled = position
            # Bounded by SETTLE_AFTER rows, however many journals there are.
            self._recent = {journal: head for journal, head in self._recent.items() if head.position > position}
