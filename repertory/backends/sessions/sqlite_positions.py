"""Where a row of a long journal lies, found without walking back through all that follow it.

Rows of all journals lie in the order in which they came. So within one journal positions rise with sequence numbers,
and a row is found by guessing where it should lie. From the nearest row that was met, the chain leads to it.
"""

from __future__ import annotations

import sqlite3

from repertory.backends.sessions.sqlite_heads import Head

_NEAR = 48
"""Rows that the chain walks back about as quickly as one more guess is made."""
_PASSED_MAX = 2048
"""Rows of other journals that a guess may pass by. Where a journal's own lie further apart, the chain is quicker."""
_BEFORE = (
    "SELECT position, CAST(seq AS INTEGER) FROM rows WHERE position > ? AND position <= ? AND journal = ?"
    " ORDER BY position DESC"
)


def nearest(connection: sqlite3.Connection, journal: int, head: Head, seq: int) -> Head:
    """A row of the journal at or behind sequence number `seq`, near to it where the journal's rows lie close enough.

    `journal` is its key, which is the position of its first row; `head` its last row.
    """
    low, high = Head(journal, 1), head
    halve = False
    while high.seq - seq > _NEAR and high.position - low.position > 1:
        share = 0.5 if halve else (seq + _NEAR // 2 - low.seq) / (high.seq - low.seq)
        guess = low.position + int(share * (high.position - low.position))
        guess = min(max(guess, low.position + 1), high.position - 1)
        first = max(low.position, guess - _PASSED_MAX)
        found = connection.execute(f"{_BEFORE} LIMIT 1", (first, guess, journal)).fetchone()
        if found is None and first > low.position:
            break
        met = Head(*found) if found is not None else Head(guess, low.seq)
        if met.seq >= seq:
            high = met
        else:
            # Nothing of the journal lies between the row that was met and the guess.
            low = Head(guess, met.seq)
        halve = not halve
    return high
