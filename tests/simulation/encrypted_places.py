"""Places of encrypted sessions, and the same places as somebody without the keys sees them."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import cast

from repertory import (
    FileStorage,
    JournalSessions,
    LocalKeys,
    PostgresSessions,
    S3Storage,
    SQLiteSessions,
)
from repertory.app.sessions.encryption import SessionKeysLocation
from repertory.app.sessions.sessions import PlacedSession, SessionLocation
from repertory.core.journal.rows import Row
from tests.backends.objects.moto_s3 import BUCKET
from tests.backends.sessions.postgres_places import schema_of
from tests.operations.operated_places import Memory, bytes_in
from tests.postgres_server import shared_server

NATIVE = ("sqlite", "journal in memory", "journal in files", "postgres")
"""Every kind of place that can be encrypted and needs no server of buckets."""
EncryptedPlace = SQLiteSessions | JournalSessions | PostgresSessions


def place_with(keys: SessionKeysLocation | None, kind: str, folder: Path, url: str = "") -> EncryptedPlace:
    """A new place of this kind below the folder."""
    match kind:
        case "sqlite":
            return SQLiteSessions(folder / "sessions" / "sessions.db", encryption=keys)
        case "journal in memory":
            return JournalSessions(Memory(), encryption=keys)
        case "journal in files":
            return JournalSessions(FileStorage(folder / "sessions"), encryption=keys)
        case "postgres":
            return PostgresSessions(shared_server().url, schema=schema_of(folder), encryption=keys)
        case "journal on s3":
            storage = S3Storage(BUCKET, f"sealed/{folder.name}", endpoint_url=url)
            return JournalSessions(storage, encryption=keys)
        case _:
            raise AssertionError(kind)


def encrypted(kind: str, folder: Path, url: str = "") -> EncryptedPlace:
    """A new place whose keys lie beside it."""
    return place_with(LocalKeys(folder / "keys"), kind, folder, url)


def seen_with(place: EncryptedPlace, keys: SessionKeysLocation | None) -> EncryptedPlace:
    """The same sessions, with other keys or none."""
    other = copy(place)
    other.encryption = keys
    return other


def session_in(place: SessionLocation, session_id: str = "s") -> PlacedSession:
    return PlacedSession(session_id, place)


def stored_bytes(place: EncryptedPlace, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every byte that is stored of the sessions, by name; keys are not among them."""
    yield from ((name, body) for name, body in bytes_in(place, folder) if not name.startswith("keys"))


async def rows_in(place: SessionLocation, agent_id: str = "default", session_id: str = "s") -> list[Row]:
    store = place.open_store()
    try:
        return list(await store.load(session_id, agent_id, whole=True))
    finally:
        await store.aclose()


def plain_texts(rows: list[Row]) -> bytes:
    """What the rows say, opened."""
    bodies = [cast("bytes", getattr(row.body, "plain", row.body)) for row in rows if not row.erased]
    return b"\n".join(bodies)
