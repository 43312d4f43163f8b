"""Making a session database anew of what can be read of a damaged one, which is moved aside as it is.

The new file is made under another name, and takes the old one's place when it is complete: killed before that, nothing
has changed. Processes that have the old file open are told so by their next call.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from shutil import rmtree
from urllib.parse import quote

from repertory.backends.mending_ports import Salvage
from repertory.backends.ports import Batch
from repertory.backends.sessions.alongside import Alongside
from repertory.backends.sessions.owner_lock import OwnerLock, noted_in
from repertory.backends.sessions.sqlite_file import mapped_errors, owners_folder, refuse_links, text_of
from repertory.backends.sessions.sqlite_journals import Journals
from repertory.backends.sessions.sqlite_wreck import Wreck
from repertory.core.journal.rows import Row
from repertory.errors import Corrupt, LeaseLost, SessionBusy, StoreFailed

_BESIDE = ("", "-wal", "-shm")
"""A database, and what SQLite keeps beside it."""


def rebuild(
    path: Path,
    owner: str,
    keep: Callable[[Salvage], Sequence[Row]],
    *,
    busy_timeout_s: float,
    alongside: Alongside | None = None,
) -> str:
    """Rebuild the database at `path`, which this process has not open. Gives the path of the old one. What lies
    `alongside` begins anew, and is shown every row.

    Errors: `SessionBusy` when a live owner has a session there; `Corrupt` when no session can be read; those of the new
    database.
    """
    new = path.with_name(f"{path.name}.rebuilt")
    with mapped_errors(path):
        refuse_links(path)
        if not os.path.lexists(path) and os.path.lexists(new):  # The one before was killed on its last steps.
            return _exchanged(path, new)
        _remove(new)
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None)) as old:
            # Without this SQLite reads nothing of a file that was cut. Nothing is written to it.
            old.execute("PRAGMA writable_schema = ON")
            old.text_factory = text_of
            with suppress(sqlite3.DatabaseError):  # Nobody writes meanwhile, if that can be had.
                old.execute("BEGIN IMMEDIATE")
            wreck = Wreck(old, str(path))
            _refuse_owners(path, wreck)
            if not wreck.sessions() and wreck.unread is not None:
                text = "no session can be read in this file, so it was left as it is: restore a copy, or move it away"
                raise Corrupt(text, path=str(path), cause=wreck.unread)
            journals = Journals(new, owner, busy_timeout_s=busy_timeout_s, alongside=alongside)
            try:
                _fill(journals, wreck, keep, noted_in(owners_folder(path)))
            finally:
                journals.close()
        return _exchanged(path, new)


def wrecks_of(path: Path) -> list[str]:
    """The databases that were moved aside, the oldest first."""
    prefix = f"{path.name}.damaged-"
    numbers: list[int] = []
    with suppress(OSError):
        found = (name.removeprefix(prefix) for name in os.listdir(path.parent) if name.startswith(prefix))
        numbers = sorted(int(number) for number in found if number.isdecimal())
    return [str(path.with_name(f"{prefix}{number}")) for number in numbers]


def _refuse_owners(path: Path, wreck: Wreck) -> None:
    looking = OwnerLock(owners_folder(path), "nobody")
    for session_id, _, owner in wreck.owners():
        if owner is not None and looking.alive(owner):
            raise SessionBusy("another live owner has the session", session=session_id, owner=owner)


def _fill(journals: Journals, wreck: Wreck, keep: Callable[[Salvage], Sequence[Row]], noted: int) -> None:
    generations = {session_id: generation for session_id, generation, _ in wreck.owners()}
    journals.begin_behind(max([wreck.last_generation(), *generations.values()]), max(noted, wreck.last_position()))
    for session_id in wreck.sessions():
        rows = keep(wreck.salvage(session_id))
        if not rows:
            continue
        lease = journals.acquire(session_id, takeover=False)
        (outcome,) = journals.append([Batch(lease=lease, rows=rows)])
        if isinstance(outcome, LeaseLost):
            raise StoreFailed("rows do not follow each other", session=session_id) from outcome
        journals.release(lease)


def _exchanged(path: Path, new: Path) -> str:
    before = wrecks_of(path)
    number = int(before[-1].rpartition("-")[2]) + 1 if before else 1
    if not os.path.lexists(path):
        number = max(1, number - 1)
    aside = path.with_name(f"{path.name}.damaged-{number}")
    # The database first: as long as it is missing, everybody refuses to begin anew.
    for ending in _BESIDE:
        with suppress(FileNotFoundError):
            os.rename(f"{path}{ending}", f"{aside}{ending}")
    os.rename(new, path)
    _remove(new)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return str(aside)


def _remove(path: Path) -> None:
    """Remove a database that is being made, and what lies beside it."""
    for ending in _BESIDE:
        Path(f"{path}{ending}").unlink(missing_ok=True)
    rmtree(owners_folder(path), ignore_errors=True)
