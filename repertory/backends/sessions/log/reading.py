"""Reading a session's log while others may own it, and its folder.

Every function blocks and runs in a worker thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from repertory.backends.ports import Corruption, SalvagedRows
from repertory.backends.sessions.log.log_file import LogEnd, LogReader, log_names
from repertory.backends.sessions.log.owner_record import COPIED, OwnerFile, OwnerRecord, read_owner
from repertory.core.journal.log_frames import AgentEnd, LogStop
from repertory.core.journal.rows import Row
from repertory.errors import CorruptJournal

_TRIES = 5

T = TypeVar("T")


def log_of(record: OwnerRecord, folder: Path) -> str:
    """The name of the log, or an empty one if there is none yet. A crash may have left a record without it."""
    return record.log.removeprefix(COPIED) or next(reversed(log_names(folder)), "")


def where_of(folder: Path) -> tuple[OwnerRecord, Path | None]:
    """A session's record, and its log if there is one."""
    record = read_owner(folder) or OwnerRecord()
    name = log_of(record, folder)
    return record, folder / name if name else None


def salvage(folder: Path, session_id: str) -> SalvagedRows:
    rows: list[Row] = []
    damages: list[Corruption] = []
    record, log_at = where_of(folder)
    if log_at is not None and not log_at.exists():
        damages.append(Corruption(where=str(log_at), what="the log is lost"))
    # Without the log that the record names, all that are there are searched, the latest first.
    names = [log_at.name] if log_at is not None and log_at.exists() else [*reversed(log_names(folder))]
    for name in names:
        try:
            with LogReader(folder / name, session_id) as log:
                found = _salvaged(log)
                rows += found.rows
                damages += found.damages
                if not found.damages:
                    # A log without damage may still be too short: an older copy, or one that was cut between two
                    # frames.
                    log.read_end(record.tail)
        except CorruptJournal as error:
            damages.append(Corruption(where=str(folder / name), what=str(error)))
    return SalvagedRows(rows=rows, damages=damages)


def _salvaged(log: LogReader) -> SalvagedRows:
    """The rows and the damage of a log, unless it is another session's."""
    rows: list[Row] = []
    damages: list[Corruption] = []
    for found in log.salvaged():
        try:
            if isinstance(found, LogStop):
                raise ValueError(found.why)
            frame = found.read()
            if frame.session_id not in ("", log.session_id):
                what = f"the log of another session: {frame.session_id}"
                return SalvagedRows(damages=[Corruption(where=str(log.path), what=what)])
            rows += frame.rows
        except ValueError as error:
            damages.append(Corruption(where=f"{log.path}:{found.offset}", what=str(error)))
    return SalvagedRows(rows=rows, damages=damages)


def read_log(
    where: Callable[[], tuple[OwnerRecord, Path | None]], read: Callable[[LogReader, LogEnd], T], session_id: str
) -> tuple[T, OwnerRecord] | None:
    """The result of reading a log, and the record of its owner; None if there is no log. Blocking.

    An owner may be writing just now, so what looks like damage, or is gone, is looked at again.
    """
    path: Path | None = None
    damage: CorruptJournal | None = None
    for _ in range(_TRIES):
        # Asked anew each time: a takeover has the session go on in another file.
        record, path = where()
        if path is None:
            return None
        try:
            with LogReader(path, session_id) as log:
                return read(log, log.read_end(record.tail).end), record
        except FileNotFoundError:  # It is in a new file by now.
            damage = CorruptJournal("the log of the session is lost", session=session_id, file=str(path))
        except CorruptJournal as error:
            damage = error
    assert damage is not None
    raise damage


def rows_at(log: LogReader, agent: AgentEnd, seq: int) -> list[Row]:
    rows = log.rows_between(agent, seq, seq)
    # Two looks: only the row itself says how far back it reads.
    return [*log.rows_between(agent, rows[0].low, seq - 1), *rows] if rows else []


def remove_others(owner: OwnerFile, folder: Path) -> None:
    """Remove earlier logs of a session, and those that a killed process was writing."""
    for name in os.listdir(folder):
        is_log = name.removeprefix(".").startswith("journal") and name.endswith(".log")
        # Asked for each: a fenced owner must not remove the log of the next one.
        if is_log and name != owner.record.log and owner.is_mine():
            with suppress(FileNotFoundError):
                (folder / name).unlink()
