"""Where objects are stored: a folder, a bucket, or memory; and sessions as journals in such a storage.

Nothing is opened before it is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from repertory.app.sessions.sessions import listed, new_owner, sessions_folder
from repertory.core.ids import check_id, check_key
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.objects.in_memory import ObjectShelf
    from repertory.backends.ports import ObjectStore, SessionInfo, SessionStore
    from repertory.backends.sessions.liveness import Liveness

_OWNERS = ".repertory-owners"
"""The folder of the owners' locks; no object can have its name."""


class Storage(Protocol):
    """A place for the objects of sessions and snapshots."""

    @property
    def key(self) -> str:
        """Equal for all objects that name the same place."""
        ...

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store there, which the caller closes. `writer` is unique to it.

        Errors: `ImportError` naming what to install.
        """
        ...

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """How to tell whether an owner of sessions there is alive. `lease_s`: after how long, if only time can tell."""
        ...


@dataclass(frozen=True, slots=True)
class FileStorage:
    """Objects as files below a folder of this machine. Any number of processes may share it."""

    path: str | os.PathLike[str] | None = None
    """`~/.repertory/sessions` (or `$REPERTORY_HOME/sessions`) when None. Created when missing, for its user alone."""

    @property
    def folder(self) -> Path:
        """The folder, as an absolute path."""
        return (Path(self.path).expanduser() if self.path is not None else sessions_folder()).absolute()

    @property
    def key(self) -> str:
        """Equal for all objects that name the same folder."""
        return f"files:{self.folder}"

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store on this folder. The caller closes it."""
        from repertory.backends.objects.files import FileObjectStore  # loaded when used

        del writer  # The file system keeps writers apart.
        return FileObjectStore(self.folder)

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """Alive as long as the process: another process can open a session at once when its owner was killed."""
        from repertory.backends.sessions.liveness import LockedFile  # loaded when used

        del lease_s
        return LockedFile(self.folder / _OWNERS, owner)


@dataclass(frozen=True, slots=True)
class S3Storage:
    """Objects in an S3 bucket, which must exist, or in any service that speaks S3's protocol with conditional writes.

    It needs s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket. A field that is None comes from the
    environment, as in every AWS tool. Errors: `Invalid` (a ValueError) for a bad bucket or prefix.
    """

    bucket: str
    prefix: str = ""
    """Stands before every key; slashes at its ends are ignored."""
    region_name: str | None = None
    boto_session: Any = field(default=None, kw_only=True)
    """A boto3 session, whose credentials and region are used."""
    client: Any = field(default=None, kw_only=True)
    """A boto3 client of S3, whose credentials, region and endpoint are used. Requests go through our own clients."""
    endpoint_url: str | None = field(default=None, kw_only=True)
    """The URL of a service that speaks S3's protocol, or of a VPC endpoint."""

    def __post_init__(self) -> None:
        if not self.bucket:
            raise Invalid("a bucket has a name", got=self.bucket)
        if self.prefix.strip("/"):
            check_key(self.prefix.strip("/"))
        if self.boto_session is not None and self.client is not None:
            raise Invalid("boto_session and client exclude each other: both have credentials")

    @property
    def key(self) -> str:
        """Equal for all objects that name the same bucket and prefix."""
        return f"s3:{self._endpoint or ''}/{self.bucket}/{self.prefix.strip('/')}"

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store on this bucket. The caller closes it. Errors: `ImportError` naming what to install."""
        from repertory.backends.aws_clients import AwsSettings, LendingClient  # loaded when used
        from repertory.backends.objects.s3 import S3ObjectStore

        aws = AwsSettings(
            region_name=self.region_name,
            boto_session=self.boto_session if self.client is None else LendingClient(self.client),
            endpoint_url=self._endpoint,
            connect_timeout_s=5.0,
            read_timeout_s=20.0,
        )
        return S3ObjectStore(self.bucket, self.prefix, writer=writer, aws=aws, content_type="application/octet-stream")

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """Alive for `lease_s` after the last write, by the service's clock."""
        del owner
        return _timed(lease_s)

    @property
    def _endpoint(self) -> str | None:
        if self.endpoint_url is None and self.client is not None:
            return cast("str", self.client.meta.endpoint_url)
        return self.endpoint_url


class InMemoryStorage:
    """Objects that live as long as this object: for tests, and for data that need not outlive the process."""

    def __init__(self) -> None:
        self._shelf: ObjectShelf | None = None

    @property
    def key(self) -> str:
        """Each object is its own place."""
        return f"memory:{id(self):x}"

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store on this storage. The caller closes it; the objects stay."""
        from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf  # loaded when used

        del writer
        if self._shelf is None:
            self._shelf = ObjectShelf(time.time)
        return MemoryObjectStore(self._shelf)

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """Alive for `lease_s` after the last write."""
        del owner
        return _timed(lease_s)


def _timed(lease_s: float) -> Liveness:
    from repertory.backends.sessions.liveness import TimeToLive  # loaded when used

    return TimeToLive(time.time, lease_s)


LEASE_S = 10.0
"""How long a session stays with an owner that shows no sign of life, where only time can tell."""


class JournalSessions:
    """All sessions in one storage: pass it to `Runtime(sessions=...)`. Nothing is created before it is needed.

    A plain turn is one put; a turn with tools that have effects needs another put for each step that starts such tools.
    `lease_s`: how long the sessions of a process that died on another machine stay with it. An owner renews every
    quarter of that time each session that is active and idle. In a folder neither is needed.
    """

    def __init__(self, storage: Storage | None = None, *, lease_s: float = LEASE_S) -> None:
        if not lease_s >= 1.0:
            raise Invalid("a lease lasts for a second at least", lease_s=lease_s)
        self.storage = storage if storage is not None else FileStorage()
        self._lease_s = lease_s

    @property
    def key(self) -> str:
        """Equal for all objects that name the same sessions."""
        return f"journals:{self.storage.key}"

    def open_store(self) -> SessionStore:
        """A store on this storage. The caller closes it. Errors: `ImportError` naming what to install."""
        from repertory.backends.sessions.journal.store import ObjectSessionStore  # loaded when used

        owner = new_owner()
        objects = self.storage.open_objects(owner)
        return ObjectSessionStore(objects, owner=owner, life=self.storage.owners(owner, self._lease_s))

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is nothing yet."""
        return await listed(self)


@dataclass(frozen=True, slots=True)
class JournalSessionManager:
    """One session in a storage: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next, on this machine or another. Errors:
    `Invalid` (a ValueError) for a bad id; `SessionBusy` from a call when another live process owns the session.
    """

    session_id: str
    storage: Storage | None = None
    """`FileStorage()` when None."""
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")

    @property
    def sessions(self) -> JournalSessions:
        """All sessions of the storage."""
        return JournalSessions(self.storage)
