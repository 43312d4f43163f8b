"""Stores the messages of sessions as memories in the same database, by the same commits.

The session store calls this within its transactions: so a stored message is found, and an erased one is forgotten, at
the same moment.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from repertory.backends.memory.sqlite.entries import (
    create_tables,
    forget_turns,
    has_tables,
    insert_turns,
    refuse_from_now_on,
)
from repertory.core.journal.codec import decode
from repertory.core.journal.records import MessageAdded
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.memory.options import AddMessagesContext
from repertory.core.memory.progress import SaidMessage
from repertory.core.recall.entries import sayings_of
from repertory.errors import CorruptJournal


class _Conversation(NamedTuple):
    scope: int
    id: int
    agent: str


class SessionMemory:
    """The memory tables in a session database, for its store. It belongs to the store's thread.

    Nothing is stored without a rule. Erased or deleted messages are still forgotten, in every scope, if the file has
    memory tables.
    """

    def __init__(self, path: Path, rule: Callable[[str], str | None] | None) -> None:
        """`rule` returns the scope in which a session is remembered, or None."""
        self._name = str(path)
        self._rule = rule

    def is_ready(self, connection: sqlite3.Connection) -> bool:
        """True if no tables must be made. Errors: `Corrupt` for tables of another version."""
        return has_tables(connection, self._name) or self._rule is None

    def prepare(self, connection: sqlite3.Connection) -> None:
        create_tables(connection)

    def scope_of(self, session_id: str) -> str | None:
        return None if self._rule is None else self._rule(session_id)

    def stored(self, connection: sqlite3.Connection, scope: str, session_id: str, rows: Sequence[Row]) -> None:
        """Remember the messages among these rows. Rows that this release cannot read are left out."""
        for agent_id, of_agent in groupby(rows, key=lambda row: row.agent_id):
            said = list(_said(of_agent))
            context = AddMessagesContext(
                session_id=session_id,
                agent_id=agent_id,
                sequence_numbers=[each.seq for each in said],
                message_times=[each.at for each in said],
            )
            turns = sayings_of([each.message for each in said], context)
            if turns:
                insert_turns(connection, scope, turns, now=said[-1].at)

    def erased(self, connection: sqlite3.Connection, session_id: str, rows: Sequence[tuple[str, int]]) -> None:
        """Forget these turns and what was extracted from them. Their replacements are not remembered either."""
        if not has_tables(connection, self._name):
            return
        for conversation in _conversations(connection, session_id):
            numbers = [seq for agent_id, seq in rows if agent_id == conversation.agent]
            if numbers:
                forget_turns(connection, [conversation.id], conversation.scope, numbers)
                for seq in numbers:
                    refuse_from_now_on(connection, conversation.id, seq, None)

    def deleted(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Forget the session's turns, what was extracted only from them, and the session itself."""
        if not has_tables(connection, self._name):
            return
        for scope, of_scope in groupby(_conversations(connection, session_id), key=lambda each: each.scope):
            keys = [conversation.id for conversation in of_scope]
            forget_turns(connection, keys, scope)
            for key in keys:
                connection.execute("DELETE FROM memory_forgotten WHERE conversation = ?", (key,))
                connection.execute("DELETE FROM memory_conversations WHERE id = ?", (key,))


def _said(rows: Iterator[Row]) -> Iterator[SaidMessage]:
    for row in rows:
        if row.kind != RecordKind.MESSAGE or row.erased:
            continue
        try:
            record = decode(row.kind, row.version, row.body)
        except CorruptJournal:
            continue
        if isinstance(record, MessageAdded):
            yield SaidMessage(row.seq, record.at, record.message)


def _conversations(connection: sqlite3.Connection, session_id: str) -> list[_Conversation]:
    """The conversations of a session, scope by scope."""
    found = connection.execute(
        "SELECT scope, memory_conversations.id, agent FROM memory_scopes CROSS JOIN memory_conversations"
        " ON scope = memory_scopes.id AND session = ? ORDER BY scope",
        (session_id,),
    )
    return [_Conversation(*row) for row in found.fetchall()]
