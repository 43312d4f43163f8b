"""The storages of objects: a folder, a bucket, or memory; and sessions as journals in such a storage.

Nothing is opened before it is needed.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Awaitable, Sequence
from dataclasses import InitVar, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast, runtime_checkable

from repertory.app.sessions.encryption import check_encryption, encrypted_key, encrypted_store
from repertory.app.sessions.sessions import listed, named_path, new_owner, sessions_folder
from repertory.app.sessions.stored_bytes import KeywordSearchStrategy, SearchStrategy, StoredBytes, below, scoped
from repertory.backends.worker_threads import run_in_thread
from repertory.core.ids import check_id, check_key, check_kms_key
from repertory.core.notebook import without_login
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.app.sessions.encryption import SessionKeysLocation
    from repertory.backends.aws_clients import AwsSettings, ThreadedClient
    from repertory.backends.objects.in_memory import ObjectShelf
    from repertory.backends.ports import ObjectStore, SessionInfo, SessionStore
    from repertory.backends.sessions.journal.format import Layout
    from repertory.backends.sessions.journal.store import ObjectSessionStore
    from repertory.backends.sessions.liveness import Liveness
    from repertory.backends.sessions.log.store import LogSessionStore

_OWNERS = ".repertory-owners"
"""The folder of the owners' locks; no object can have its name."""


class Storage(Protocol):
    """A place for the objects of sessions and snapshots."""

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same one."""
        ...

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store there, which the caller closes. `writer` is unique to it.

        Errors: `ImportError` naming what to install.
        """
        ...

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """The liveness of owners of sessions: for `lease_s` seconds after their last write, if only time can tell."""
        ...


@runtime_checkable
class ContentStorage(Protocol):
    """A storage of the user's own. Its methods are coroutine functions, or functions, which run in a worker thread.
    Their exceptions reach the log, or the model as an error.

    It may also have `delete(key)`; without it nothing is ever deleted.
    """

    def save(self, key: str, data: bytes) -> Awaitable[None] | None:
        """Store the data, replacing what is there."""
        ...

    def load(self, key: str) -> Awaitable[bytes | None] | bytes | None:
        """The data; None when there is none."""
        ...


async def ask_storage(method: partial[Any]) -> object:
    """Call a method of a user's own storage: a coroutine function here, a function in a worker thread."""
    if inspect.iscoroutinefunction(method.func):
        return await method()
    answer = await run_in_thread(method)
    return await answer if inspect.isawaitable(answer) else answer


@dataclass(frozen=True, slots=True)
class FileStorage(StoredBytes):
    """Objects as files below a folder of this machine. Any number of processes may share it."""

    path: str | os.PathLike[str] | None = None
    """`~/.repertory/sessions` (or `$REPERTORY_HOME/sessions`) when None. Created when missing, for its user alone."""
    search_strategy: SearchStrategy | None = field(default=None, kw_only=True)
    """The strategy by which `search` finds entries; None finds them by the words in all of them."""
    is_local: ClassVar[bool] = True
    """True: the sessions are on this machine."""
    is_namespace: bool = field(default=False, init=False, repr=False, compare=False)
    """True if `namespace` has made this storage."""

    def __post_init__(self) -> None:
        if self.path is not None:
            object.__setattr__(self, "path", named_path(self.path))

    @property
    def strategy(self) -> SearchStrategy:
        """The strategy by which `search` finds entries."""
        return self.search_strategy or KeywordSearchStrategy()

    def namespace(self, prefix: str) -> Self:
        """The storage of a folder below."""
        return scoped(self, {"path": self.folder / below("", prefix), "is_namespace": True})

    @property
    def folder(self) -> Path:
        """The folder, as an absolute path."""
        return cast("Path", self.path) if self.path is not None else sessions_folder().absolute()

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same folder."""
        return f"files:{self.folder}"

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store on this folder. The caller closes it."""
        from repertory.backends.objects.files import FileObjectStore  # loaded when used

        del writer  # The file system keeps writers apart.
        return FileObjectStore(self.folder)

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """The liveness of processes: another one can open a session at once when the process that owned it was killed.

        Args:
            owner: The id of the process that owns.
            lease_s: Seconds that a lease lasts without renewal.
        """
        from repertory.backends.sessions.liveness import LockedFile  # loaded when used

        del lease_s
        return LockedFile(self.folder / _OWNERS, owner)


@dataclass(frozen=True)
class S3Storage(StoredBytes):
    """Objects in an S3 bucket, which must exist, or in any service that speaks S3's protocol with conditional writes.

    It needs s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket: see
    `docs/reference/aws-permissions.md`. A field that is None comes from the environment, as in every AWS tool.

    Args:
        bucket: The name of the bucket.
        region_name: The AWS region; None for the one of the environment.
        region: Another word for `region_name`.
        s3_client: Another word for `client`.

    Raises:
        Invalid: For a bad bucket, prefix or key. Correct the argument.
    """

    bucket: str
    prefix: str = ""
    """Stands before every key; slashes at its ends are ignored."""
    region_name: str | None = None
    boto_session: Any = field(default=None, kw_only=True, repr=False)
    """A boto3 session, whose credentials and region are used."""
    client: Any = field(default=None, kw_only=True, repr=False)
    """A boto3 client of S3, whose credentials, region and endpoint are used. Requests go through Repertory's own
    clients.
    """
    endpoint_url: str | None = field(default=None, kw_only=True, repr=False)
    """The URL of a service that speaks S3's protocol, or of a VPC endpoint."""
    kms_key_id: str | None = field(default=None, kw_only=True)
    """The id, ARN or alias of the KMS key with which S3 encrypts what is put; None: the bucket's default encryption."""
    is_namespace: bool = field(default=False, init=False, repr=False, compare=False)
    """True if `namespace` has made this storage."""
    boto_client_config: Any = field(default=None, kw_only=True, repr=False)
    """A botocore `Config`, which overrides ours."""
    search_strategy: SearchStrategy | None = field(default=None, kw_only=True)
    """The strategy by which `search` finds entries; None finds them by the words in all of them."""
    _by_hand: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)
    """The client for reading and writing by hand, which namespaces share."""
    region: InitVar[str | None] = field(default=None, kw_only=True)
    """Another name of `region_name`."""
    s3_client: InitVar[Any] = field(default=None, kw_only=True)
    """Another name of `client`."""

    def __post_init__(self, region: str | None, s3_client: Any) -> None:
        if not self.bucket:
            raise Invalid("a bucket has a name", got=self.bucket)
        if self.prefix.strip("/"):
            check_key(self.prefix.strip("/"))
        check_kms_key(self.kms_key_id)
        for name, alias, given in (("region_name", "region", region), ("client", "s3_client", s3_client)):
            if given is not None and getattr(self, name) is not None:
                raise Invalid(f"{alias} is another name of {name}: give one of them")
            if given is not None:
                object.__setattr__(self, name, given)
        if self.boto_session is not None and self.client is not None:
            raise Invalid("boto_session and client exclude each other: both have credentials")

    @property
    def strategy(self) -> SearchStrategy:
        """The strategy by which `search` finds entries."""
        return self.search_strategy or KeywordSearchStrategy()

    def namespace(self, prefix: str) -> Self:
        """The storage of a longer prefix in the same bucket."""
        return scoped(self, {"prefix": below(below("", self.prefix), prefix).rstrip("/"), "is_namespace": True})

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same bucket and prefix."""
        return f"s3:{self._endpoint or ''}/{self.bucket}/{self.prefix.strip('/')}"

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store on this bucket. The caller closes it.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        return self._objects(writer, None)

    def open_bytes(self, writer: str) -> ObjectStore:
        """The objects for manual use, through the program's own client or session, or boto3 where that is there. The
        caller closes it.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        from repertory.backends.aws_clients import ThreadedClient, boto3_client  # loaded when used

        if "client" not in self._by_hand:
            self._by_hand["client"] = self.client or boto3_client("s3", self._settings())
        client = self._by_hand["client"]
        return self._objects(writer, None if client is None else ThreadedClient(client))

    def _objects(self, writer: str, client: ThreadedClient | None) -> ObjectStore:
        from repertory.backends.objects.s3 import S3ObjectStore  # loaded when used

        return S3ObjectStore(
            self.bucket,
            self.prefix,
            writer=writer,
            aws=self._settings(),
            content_type="application/octet-stream",
            kms_key_id=self.kms_key_id,
            client=client,
        )

    def _settings(self) -> AwsSettings:
        from repertory.backends.aws_clients import AwsSettings, LendingClient  # loaded when used

        return AwsSettings(
            region_name=self.region_name,
            boto_session=self.boto_session if self.client is None else LendingClient(self.client),
            endpoint_url=self._endpoint,
            boto_client_config=self.boto_client_config,
            # An owner's lease is over after ten seconds, and botocore waits for sixty by default.
            connect_timeout_s=5.0,
            read_timeout_s=20.0,
        )

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """The liveness of owners: for `lease_s` seconds after their last write, by the service's clock.

        Args:
            owner: The id of the process that owns.
            lease_s: Seconds that a lease lasts without renewal.
        """
        del owner
        return _timed(lease_s)

    @property
    def _endpoint(self) -> str | None:
        if self.endpoint_url is None and self.client is not None:
            return cast("str", self.client.meta.endpoint_url)
        return self.endpoint_url


class InMemoryStorage(StoredBytes):
    """Objects that live as long as this object: for tests, and for data that need not outlive the process."""

    is_local = True
    """True: the sessions are on this machine."""

    def __init__(self, *, search_strategy: SearchStrategy | None = None) -> None:
        """
        Args:
            search_strategy: The way in which `search` finds entries; None: by the words in all of them.
        """
        self._shelf: ObjectShelf | None = None
        self._within = ""
        self.is_namespace = False
        self.search_strategy = search_strategy

    @property
    def key(self) -> str:
        """The key of the location: each object is one of its own."""
        return f"memory:{id(self._shared()):x}"

    @property
    def within(self) -> str:
        """The prefix of every key, with a slash at its end; empty for the whole storage."""
        return self._within

    @property
    def strategy(self) -> SearchStrategy:
        """The strategy by which `search` finds entries."""
        return self.search_strategy or KeywordSearchStrategy()

    def namespace(self, prefix: str) -> Self:
        """The objects below a prefix. For the methods that read and write bytes: sessions are kept in the whole
        storage.
        """
        self._shared()
        return scoped(self, {"_within": below(self._within, prefix), "is_namespace": True})

    def clear(self) -> None:
        """Remove everything, in this namespace."""
        self._shared().clear(self._within)

    def open_objects(self, writer: str) -> ObjectStore:
        """An object store on this storage. The caller closes it; the objects stay."""
        from repertory.backends.objects.in_memory import MemoryObjectStore  # loaded when used

        del writer
        return MemoryObjectStore(self._shared())

    def _shared(self) -> ObjectShelf:
        from repertory.backends.objects.in_memory import ObjectShelf  # loaded when used

        if self._shelf is None:
            self._shelf = ObjectShelf(time.time)
        return self._shelf

    def owners(self, owner: str, lease_s: float) -> Liveness:
        """The liveness of owners: for `lease_s` seconds after their last write.

        Args:
            owner: The id of the process that owns.
            lease_s: Seconds that a lease lasts without renewal.
        """
        del owner
        return _timed(lease_s)


def _timed(lease_s: float) -> Liveness:
    from repertory.backends.sessions.liveness import TimeToLive  # loaded when used

    return TimeToLive(time.time, lease_s)


def open_journal(
    storage: Storage, objects: ObjectStore, owner: str, lease_s: float, layout: Layout
) -> LogSessionStore | ObjectSessionStore:
    """The journals in a storage, over these objects of it, which are closed with the store."""
    life = storage.owners(owner, lease_s)
    if isinstance(storage, FileStorage):
        from repertory.backends.sessions.log.store import LogSessionStore  # loaded when used

        return LogSessionStore(storage.folder, objects, owner=owner, life=life, wall=time.time, layout=layout)
    from repertory.backends.sessions.journal.store import ObjectSessionStore

    return ObjectSessionStore(objects, owner=owner, life=life, wall=time.time, layout=layout)


LEASE_S = 10.0
"""Seconds that a session stays with an owner that shows no sign of life, where only time can tell."""


class JournalSessions:
    """All sessions in one storage: pass it to `Runtime(sessions=...)`. Nothing is created before it is needed.

    A plain turn is two puts: the prompt, beside the model that is being asked, and the answer. A turn with tools needs
    another put for each step that is waited for. An owner renews every quarter of that time each session that is active
    and idle. A `Runtime` looks once a second for pending work, which is one list request; `wakes_max=0` leaves it.

    Args:
        storage: The storage of the objects; None for `FileStorage()`.
        lease_s: Seconds that the sessions of a process that died on another machine stay with it.
        encryption: The location of the keys that encrypt the contents, such as `LocalKeys("keys")`
            (`docs/guides/sessions/encryption.md`).

    Attributes:
        wakes: True: sessions here are woken for work that they owe.

    Raises:
        Invalid: For `lease_s` below 1. Correct the argument.
    """

    wakes = True

    def __init__(
        self,
        storage: Storage | None = None,
        *,
        lease_s: float = LEASE_S,
        encryption: SessionKeysLocation | None = None,
    ) -> None:
        self.encryption = None if encryption is None else check_encryption(encryption)
        if not lease_s >= 1.0:
            raise Invalid("a lease lasts for a second at least", lease_s=lease_s)
        self.storage = storage if storage is not None else FileStorage()
        self._lease_s = lease_s

    def __repr__(self) -> str:
        """The place, on one line."""
        return f"{type(self).__name__}({without_login(self.key)!r})"

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same sessions."""
        key = f"journals:{self.storage.key}"
        return key if self.encryption is None else encrypted_key(key, self.encryption)

    def open_store(self) -> SessionStore:
        """A store on this storage. The caller closes it.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        from repertory.backends.sessions.journal.format import JOURNALS  # loaded when used

        owner = new_owner()
        store = open_journal(self.storage, self.storage.open_objects(owner), owner, self._lease_s, JOURNALS)
        return store if self.encryption is None else encrypted_store(store, self.encryption)

    async def list(self) -> Sequence[SessionInfo]:
        """Every session, the most recently changed first; empty when there is nothing yet."""
        return await listed(self)


@dataclass(frozen=True, slots=True)
class JournalSessionManager:
    """One session in a storage: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next, on this machine or another.

    Args:
        session_id: The id of the session.

    Raises:
        Invalid: For a bad id. Correct the argument.
        SessionBusy: From a call when another live process owns the session. Call again later, or let the other process
            release it.
    """

    session_id: str
    storage: Storage | None = None
    """`FileStorage()` when None."""
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""
    encryption: SessionKeysLocation | None = None
    """The location of the keys with which the contents are encrypted."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        if self.encryption is not None:
            check_encryption(self.encryption)

    @property
    def sessions(self) -> JournalSessions:
        """All sessions of the storage."""
        return JournalSessions(self.storage, encryption=self.encryption)
