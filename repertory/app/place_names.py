"""Places of sessions as text, for command lines: `sqlite:a.db`, `journal:s3://bucket/prefix`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from repertory.app.agentcore_sessions import AgentCoreMemorySessions
from repertory.app.documented_sessions import FileSessions, S3Sessions
from repertory.app.journal_sessions import JournalSessions
from repertory.app.sessions import SQLiteSessions
from repertory.app.snapshot_sessions import SnapshotSessions
from repertory.app.storages import FileStorage, S3Storage
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.sessions import SessionPlace
    from repertory.app.storages import Storage

FORMS = (
    "a database file, sqlite:FILE, journal:FOLDER, journal:s3://BUCKET/PREFIX, files:FOLDER, s3://BUCKET/PREFIX,"
    " snapshots:FOLDER, snapshots:s3://BUCKET/PREFIX or agentcore:MEMORY/ACTOR"
)
"""For help texts."""
_MEMORY = re.compile(r"((?:arn:.*:memory/)?[^/]+)/(.+)")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.DOTALL)


def place_named(text: str) -> SessionPlace:
    """The place. A name without a scheme is a database file. Errors: `Invalid` listing the forms."""
    if text.startswith("s3://"):
        return S3Sessions(*_bucket(text))
    match _SCHEME.fullmatch(text):
        case None if text:
            return SQLiteSessions(text)
        case re.Match() as found if found[2]:
            return _of_scheme(found[1], found[2], text)
        case _:
            raise Invalid(f"a place of sessions is {FORMS}", got=text)


def _of_scheme(scheme: str, rest: str, text: str) -> SessionPlace:
    match scheme:
        case "sqlite":
            return SQLiteSessions(rest)
        case "journal":
            return JournalSessions(_storage(rest))
        case "snapshots":
            return SnapshotSessions(_storage(rest))
        case "files":
            return FileSessions(rest)
        case "agentcore" if found := _MEMORY.fullmatch(rest):
            return AgentCoreMemorySessions(found[1], found[2])
        case _:
            raise Invalid(f"a place of sessions is {FORMS}", got=text)


def _storage(rest: str) -> Storage:
    return S3Storage(*_bucket(rest)) if rest.startswith("s3://") else FileStorage(rest)


def _bucket(url: str) -> tuple[str, str]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket:
        raise Invalid("a bucket has a name: s3://BUCKET/PREFIX", got=url)
    return bucket, prefix.strip("/")
