"""Session managers of the documented layout, which programs may also drive by hand."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from repertory.app.sessions.documented import FileSessions, S3Sessions
from repertory.app.sessions.sessions import aws_settings
from repertory.compat.managers_by_hand import RecordsInDocuments, SessionByHand
from repertory.compat.records import SessionRepository
from repertory.core.ids import check_id, check_key, check_kms_key
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.sessions.documents.reading import OpenedDocuments


@dataclass(frozen=True)
class FileSessionManager(RecordsInDocuments, SessionByHand):
    """One session in a folder of JSON documents: pass it to `Agent(session_manager=...)`.

    The same id opens the same conversation again, in this process or the next, also after other tools of this layout
    have continued it.

    Args:
        session_id: The id of the session.

    Raises:
        Invalid: For a bad id. Correct the argument.
        SessionBusy: From a call when another live process owns the session. Call again later, or let the other process
            release it.
    """

    session_id: str
    storage_dir: str | os.PathLike[str] | None = None
    """`~/.repertory/sessions` (or `$REPERTORY_HOME/sessions`) when None. Created when missing, for its user alone."""
    takeover: bool = False
    """True fences a live owner in another process; False is refused then."""
    _by_hand: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)
    _named: FileSessions | None = field(init=False, repr=False, compare=False, default=None)
    """The sessions of `storage_dir`; None without one, as the default folder may be another one with each use."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        if self.storage_dir is not None:
            named = FileSessions(self.storage_dir)
            object.__setattr__(self, "storage_dir", named.path)
            object.__setattr__(self, "_named", named)

    @property
    def sessions(self) -> FileSessions:
        """The sessions of the folder."""
        return self._named or FileSessions()

    @property
    def records(self) -> SessionRepository:
        """The repository of records, which is this object."""
        return self

    def open_documents(self) -> OpenedDocuments:
        """The documents."""
        return self.sessions.open_documents()

    def _seen(self) -> dict[str, Any]:
        return self._by_hand


@dataclass(frozen=True)
class S3SessionManager(RecordsInDocuments, SessionByHand):
    """One session in an S3 bucket, which must exist: pass it to `Agent(session_manager=...)`.

    It needs s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket: see
    `docs/reference/aws-permissions.md`. A field that is None comes from the environment, as in every AWS tool.
    Errors: as `FileSessionManager`.

    Args:
        session_id: The id of the session.
        bucket: The name of the bucket.
        region_name: The AWS region; None for the one of the environment.
    """

    session_id: str
    bucket: str
    prefix: str = ""
    """Stands before every key; slashes at its ends are ignored."""
    boto_session: Any = field(default=None, repr=False)
    """A boto3 session, whose credentials and region are used."""
    boto_client_config: Any = field(default=None, repr=False)
    """A botocore `Config`, which overrides ours."""
    region_name: str | None = None
    endpoint_url: str | None = field(default=None, repr=False)
    """The URL of a service that speaks S3's protocol, or of a VPC endpoint."""
    takeover: bool = False
    """True fences a live owner in another process; False is refused then."""
    kms_key_id: str | None = field(default=None, kw_only=True)
    """The id, ARN or alias of the KMS key with which S3 encrypts what is put; None: the bucket's default encryption."""
    _by_hand: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        check_kms_key(self.kms_key_id)
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
            kms_key_id=self.kms_key_id,
        )

    @property
    def records(self) -> SessionRepository:
        """The repository of records, which is this object."""
        return self

    def open_documents(self) -> OpenedDocuments:
        """The documents."""
        from repertory.backends.aws_clients import ThreadedClient  # loaded when used

        client = self._boto3_client()
        return self.sessions.open_documents(None if client is None else ThreadedClient(client))

    @property
    def client(self) -> Any:
        """A boto3 client, through which records are read and written by hand. Errors: `ImportError` without boto3."""
        found = self._boto3_client()
        if found is None:
            raise ImportError("S3SessionManager.client is a client of boto3: pip install boto3")
        return found

    def _boto3_client(self) -> Any:
        from repertory.backends.aws_clients import boto3_client  # loaded when used

        if "" not in self._by_hand:  # No agent's id.
            self._by_hand[""] = boto3_client("s3", aws_settings(self))
        return self._by_hand[""]

    def _seen(self) -> dict[str, Any]:
        return self._by_hand
