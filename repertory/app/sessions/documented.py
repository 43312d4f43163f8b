"""Sessions in the documented layout, one document per message: in a folder, or in a bucket."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repertory.app.sessions.sessions import aws_settings, new_owner, sessions_folder
from repertory.core.ids import check_id, check_key
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore

LEASE_S = 10.0
"""How long a lease on a bucket lives after its last renewal, which its owner repeats about every three seconds."""
RENEW_S = 3.0
"""How often an owner renews its leases there, whether it writes or not."""
PROVE_S = 5.0
"""How long a verified lease counts there. An owner that could not renew its lease verifies it before it commits."""
OWNERS = "repertory-owners"
"""The folder beside the sessions for the owners' signs of life."""


class FileSessions:
    """All sessions below one folder, as `session_<id>/...`. Nothing is created before it is needed."""

    def __init__(self, storage_dir: str | os.PathLike[str] | None = None) -> None:
        chosen = Path(storage_dir).expanduser() if storage_dir is not None else sessions_folder()
        self.path = chosen.absolute()

    @property
    def key(self) -> str:
        """Equal for all objects that name the same folder."""
        return f"files:{self.path}"

    def open_store(self) -> SessionStore:
        """A store on this folder. The caller closes it."""
        from repertory.backends.objects.files import FileObjectStore  # loaded when used
        from repertory.backends.sessions.documents.journal import TreeSettings
        from repertory.backends.sessions.documents.store import MessageTreeStore
        from repertory.backends.sessions.liveness import LockedFile

        owner = new_owner()
        return MessageTreeStore(
            FileObjectStore(self.path),
            owner=owner,
            life=LockedFile(self.path / OWNERS, owner),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(keep_folders=True),
        )


@dataclass(frozen=True, slots=True)
class S3Sessions:
    """All sessions in a bucket below a prefix. See `S3SessionManager` for the fields."""

    bucket: str
    prefix: str = ""
    boto_session: Any = None
    boto_client_config: Any = None
    region_name: str | None = None
    endpoint_url: str | None = None

    @property
    def key(self) -> str:
        """Equal for all objects that name the same bucket and prefix."""
        return f"s3:{self.endpoint_url or ''}/{self.bucket}/{self.prefix.strip('/')}"

    def open_store(self) -> SessionStore:
        """A store on this bucket. The caller closes it. Errors: `ImportError` naming what to install."""
        from repertory.backends.objects.s3 import S3ObjectStore
        from repertory.backends.sessions.documents.journal import TreeSettings
        from repertory.backends.sessions.documents.store import MessageTreeStore
        from repertory.backends.sessions.liveness import TimeToLive

        owner = new_owner()
        objects = S3ObjectStore(self.bucket, self.prefix, writer=owner, aws=aws_settings(self))
        return MessageTreeStore(
            objects,
            owner=owner,
            life=TimeToLive(time.time, LEASE_S),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(prove_s=PROVE_S, renew_every_s=RENEW_S, keep_heads=True),
        )


@dataclass(frozen=True, slots=True)
class FileSessionManager:
    """One session in a folder of JSON documents: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next, also after other tools of this layout
    have continued it. Errors: `Invalid` (a ValueError) for a bad id; `SessionBusy` from a call when another live
    process owns the session.
    """

    session_id: str
    storage_dir: str | os.PathLike[str] | None = None
    """`~/.repertory/sessions` (or `$REPERTORY_HOME/sessions`) when None. Created when missing, for its user alone."""
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")

    @property
    def sessions(self) -> FileSessions:
        """The sessions of the folder."""
        return FileSessions(self.storage_dir)


@dataclass(frozen=True, slots=True)
class S3SessionManager:
    """One session in an S3 bucket, which must exist: pass it to `Agent(session_manager=...)`.

    It needs s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket. A field that is None comes from the
    environment, as in every AWS tool. Errors: as `FileSessionManager`.
    """

    session_id: str
    bucket: str
    prefix: str = ""
    """Stands before every key; slashes at its ends are ignored."""
    boto_session: Any = None
    """A boto3 session, whose credentials and region are used."""
    boto_client_config: Any = None
    """A botocore `Config`, which overrides ours."""
    region_name: str | None = None
    endpoint_url: str | None = None
    """The URL of a service that speaks S3's protocol, or of a VPC endpoint."""
    takeover: bool = False
    """Fence a live owner in another process instead of being refused."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        if not self.bucket:
            raise Invalid("a bucket has a name", got=self.bucket)
        if self.prefix.strip("/"):
            check_key(self.prefix.strip("/"))

    @property
    def sessions(self) -> S3Sessions:
        """The sessions of the bucket."""
        return S3Sessions(
            bucket=self.bucket,
            prefix=self.prefix,
            boto_session=self.boto_session,
            boto_client_config=self.boto_client_config,
            region_name=self.region_name,
            endpoint_url=self.endpoint_url,
        )
