"""Sessions in the documented layout, one document per message: in a folder, or in a bucket."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from repertory.app.sessions.sessions import aws_settings, named_path, new_owner, sessions_folder
from repertory.core.ids import check_kms_key
from repertory.core.notebook import without_login

if TYPE_CHECKING:
    from repertory.backends.aws_clients import ThreadedClient
    from repertory.backends.ports import ObjectStore, SessionStore
    from repertory.backends.sessions.documents.reading import OpenedDocuments

LEASE_S = 10.0
"""Seconds that a lease on a bucket lives after its last renewal, which its owner repeats four times as often."""
OWNERS = "repertory-owners"
"""The folder beside the sessions for the owners' signs of life."""


class FileSessions:
    """All sessions below one folder, as `session_<id>/...`. Nothing is created before it is needed.

    Args:
        storage_dir: The folder; None for `sessions` in `$REPERTORY_HOME`, which is `~/.repertory` unless set.

    Attributes:
        path: The folder as an absolute path.
    """

    is_local = True
    """True: the sessions are on this machine."""

    def __init__(self, storage_dir: str | os.PathLike[str] | None = None) -> None:
        self.path = named_path(storage_dir) if storage_dir is not None else sessions_folder().absolute()

    def __repr__(self) -> str:
        """The place, on one line."""
        return f"{type(self).__name__}({without_login(self.key)!r})"

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same folder."""
        return f"files:{self.path}"

    def open_documents(self) -> OpenedDocuments:
        """The documents below the folder, for readers."""
        from repertory.backends.objects.files import FileObjectStore  # loaded when used
        from repertory.backends.sessions.documents.folder_store import live_owner_of
        from repertory.backends.sessions.documents.reading import OpenedDocuments
        from repertory.backends.sessions.liveness import LockedFile

        life = LockedFile(self.path / OWNERS, new_owner())
        return OpenedDocuments(FileObjectStore(self.path), partial(live_owner_of, self.path, life), short=True)

    def open_store(self) -> SessionStore:
        """A store on this folder. The caller closes it."""
        from repertory.backends.objects.files import FileObjectStore, FileTree  # loaded when used
        from repertory.backends.sessions.documents.folder_store import FolderSessionStore
        from repertory.backends.sessions.documents.reading import BESIDE_TREE
        from repertory.backends.sessions.liveness import LockedFile
        from repertory.backends.sessions.log.store import LogSessionStore

        owner, objects = new_owner(), FileObjectStore(self.path)
        logs = LogSessionStore(
            self.path,
            objects,
            owner=owner,
            life=LockedFile(self.path / OWNERS, owner),
            wall=time.time,
            layout=BESIDE_TREE,
        )
        return FolderSessionStore(logs, objects, FileTree(self.path), wall=time.time, entropy=os.urandom)


@dataclass(frozen=True, slots=True)
class S3Sessions:
    """All sessions in a bucket below a prefix. See `S3SessionManager` for the fields.

    Args:
        bucket: The name of the bucket.
        prefix: The beginning of all keys.
        boto_session: A boto3 session, whose credentials count; None for those of the environment.
        boto_client_config: A botocore `Config` for the client.
        region_name: The AWS region; None for the one of the environment.
        endpoint_url: Another address of the service, such as one of a test.
        kms_key_id: The KMS key that encrypts the objects; None for the bucket's own.
    """

    bucket: str
    prefix: str = ""
    boto_session: Any = field(default=None, repr=False)
    boto_client_config: Any = field(default=None, repr=False)
    region_name: str | None = None
    endpoint_url: str | None = field(default=None, repr=False)
    kms_key_id: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_kms_key(self.kms_key_id)

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same bucket and prefix."""
        return f"s3:{self.endpoint_url or ''}/{self.bucket}/{self.prefix.strip('/')}"

    def open_documents(self, client: ThreadedClient | None = None) -> OpenedDocuments:
        """The documents.

        Args:
            client: A client that is shared; None opens one.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        from repertory.backends.sessions.documents.bucket_store import live_owner_in
        from repertory.backends.sessions.documents.reading import OpenedDocuments
        from repertory.backends.sessions.liveness import TimeToLive

        objects = self._open_objects(new_owner(), client)
        return OpenedDocuments(objects, partial(live_owner_in, objects, TimeToLive(time.time, LEASE_S)), short=True)

    def _open_objects(self, owner: str, client: ThreadedClient | None = None) -> ObjectStore:
        from repertory.backends.objects.s3 import S3ObjectStore

        return S3ObjectStore(
            self.bucket,
            self.prefix,
            writer=owner,
            aws=aws_settings(self),
            kms_key_id=self.kms_key_id,
            client=client,
        )

    def open_store(self) -> SessionStore:
        """A store on this bucket. The caller closes it.

        Raises:
            ImportError: If the extra is missing. Install what the message names.
        """
        from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
        from repertory.backends.sessions.documents.reading import BESIDE_TREE
        from repertory.backends.sessions.journal.store import ObjectSessionStore
        from repertory.backends.sessions.liveness import TimeToLive

        owner = new_owner()
        objects = self._open_objects(owner)
        life = TimeToLive(time.time, LEASE_S)
        journals = ObjectSessionStore(objects, owner=owner, life=life, layout=BESIDE_TREE)
        return BucketSessionStore(journals, objects, wall=time.time, entropy=os.urandom)
