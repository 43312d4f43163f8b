"""The locations of the keys of encrypted sessions: a folder of this machine, or AWS KMS, which wraps them."""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repertory.app.sessions.sessions import aws_settings, new_owner
from repertory.app.sessions.storages import FileStorage
from repertory.core.ids import check_kms_key
from repertory.core.notebook import without_login
from repertory.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from repertory.app.sessions.storages import Storage
    from repertory.backends.encryption.keys import StoredKeys
    from repertory.backends.encryption.wrapping import KeyWrap
    from repertory.backends.encryption_ports import KeyProvider

MASTER_KEY_BYTES = 32


class LocalKeys:
    """One key per session, in a folder of its own (0700, files 0600), away from the sessions and from their backups.

    Erasing a key is removing it here: no copy of the sessions can be read afterwards. So the folder must not be part of
    the backups of the sessions; losing it loses every session.

    With a master key, a writer to the folder alone can read, change or swap no key. Such a writer can remove keys,
    or put older ones of the same session back. Keys that nothing has wrapped are refused then; see `rewrap`.

    Args:
        path: The folder, or any storage (`S3Storage`, `InMemoryStorage`), whose bucket must keep no old versions.
        master_key: 32 bytes that wrap every key in it; without one, the rights on the folder protect the keys.
        former_master_keys: Those that have wrapped keys before; see `rewrap`.

    Attributes:
        storage: The storage of the keys.

    Raises:
        Invalid: For a master key of another length. Correct the argument.
        ImportError: Without the extra `encryption`. Install the extra that the message names.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Storage,
        *,
        master_key: bytes | None = None,
        former_master_keys: Sequence[bytes] = (),
    ) -> None:
        _check_library("LocalKeys", "cryptography", "encryption")
        self.storage = _storage(path)
        for each in former_master_keys if master_key is None else (master_key, *former_master_keys):
            _check_master_key(each)
        if former_master_keys and master_key is None:
            raise Invalid("former_master_keys come with the master_key that wraps from now on")
        self._master, self._former = master_key, tuple(former_master_keys)

    def __repr__(self) -> str:
        """The place, without any key."""
        return f"{type(self).__name__}({without_login(self.storage.key)!r})"

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same folder."""
        return self.storage.key

    def open_keys(self) -> KeyProvider:
        """The keys there. The caller closes them."""
        return self._open()

    def _open(self) -> StoredKeys:
        from repertory.backends.encryption.wrapping import MasterKeys, NoWrap  # loaded when used: an extra

        wrap = NoWrap() if self._master is None else MasterKeys(self._master, self._former, os.urandom)
        return _stored(self.storage, wrap)

    async def rewrap(self, *, unwrapped: bool = False) -> int:
        """Wrap every key that another master key has wrapped with `master_key`. Returns the number of sessions that
        this has changed. No session is touched, and sessions may be in use. Cut off, call it again.

        Args:
            unwrapped: Also wrap keys that nothing has wrapped: once, when the folder gets its first master key. Anybody
                who can write to the folder can have put such a key there.

        Raises:
            Invalid: Without a master key. Correct the argument.
            KeyMissing: For a key that none of the master keys unwraps, after all others are wrapped. Give the key.
            Corrupt: For a document that was changed, after all others are wrapped. Bring the one back that was stored.
        """
        if self._master is None:
            raise Invalid("rewrap needs a master_key to wrap with")
        return await _rewrapped(self._open(), unwrapped=unwrapped)


class KmsKeys:
    """One key per session, each wrapped by one key of AWS KMS with the session's id as encryption context.

    KMS holds the wrapping key alone, so a session costs one request when it is first opened, and none per turn.

    Args:
        key_id: The id, ARN or alias of a symmetric key; it needs kms:Encrypt and kms:Decrypt.
        path: The folder or the storage of the wrapped keys, as in `LocalKeys`: erasing a session's key is removing it
            there.
        former_key_ids: Those that have wrapped keys before; see `rewrap`. Nothing that another key has wrapped is read.
        region_name: The AWS region; None for the one of the environment.
        endpoint_url: Another address of the service, such as one of a test.
        boto_session: A boto3 session, whose credentials count; None for those of the environment.
        boto_client_config: A botocore `Config` for the client.

    Attributes:
        storage: The storage of the sealed keys.

    Raises:
        Invalid: For a bad key id. Correct the argument.
        ImportError: Without the extra `kms`. Install the extra that the message names.
    """

    def __init__(
        self,
        key_id: str,
        path: str | os.PathLike[str] | Storage,
        *,
        former_key_ids: Sequence[str] = (),
        region_name: str | None = None,
        endpoint_url: str | None = None,
        boto_session: Any = None,
        boto_client_config: Any = None,
    ) -> None:
        for module in ("cryptography", "aiobotocore", "httpx2"):
            _check_library("KmsKeys", module, "kms")
        for each in (key_id, *former_key_ids):
            check_kms_key(each)
        self.key_id = key_id
        self.former_key_ids = tuple(former_key_ids)
        self.storage = _storage(path)
        self.region_name = region_name
        self.endpoint_url = endpoint_url
        self.boto_session = boto_session
        self.boto_client_config = boto_client_config

    def __repr__(self) -> str:
        """The place, on one line."""
        return f"{type(self).__name__}({self.key_id!r}, {without_login(self.storage.key)!r})"

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same place of wrapped keys."""
        return self.storage.key

    def open_keys(self) -> KeyProvider:
        """The keys there. The caller closes them."""
        return self._open()

    def _open(self) -> StoredKeys:
        from repertory.backends.aws_clients import AwsService, aws_clients  # loaded when used
        from repertory.backends.encryption.wrapping import KmsWrap

        clients = aws_clients(AwsService(name="kms", wanted_by="KmsKeys", extra="kms"), aws_settings(self))
        return _stored(self.storage, KmsWrap(self.key_id, clients, self.former_key_ids))

    async def rewrap(self, *, unwrapped: bool = False) -> int:
        """Wrap every key that one of `former_key_ids` has wrapped with this one. Returns the number of sessions that
        this has changed; the identity needs kms:Decrypt on the other key. No session is touched. Cut off, call again.

        Args:
            unwrapped: As in `LocalKeys.rewrap`.

        Raises:
            KeyMissing: For a key that none of them has wrapped, after all others are wrapped. Give the key.
            Corrupt: For a document that was changed, after all others are wrapped. Bring the one back that was stored.
        """
        return await _rewrapped(self._open(), unwrapped=unwrapped)


def _storage(path: str | os.PathLike[str] | Storage) -> Storage:
    if isinstance(path, str | os.PathLike):
        return FileStorage(Path(path).expanduser().absolute())
    if not hasattr(path, "open_objects"):
        raise Invalid("keys are kept in a folder, or in a storage such as S3Storage(...)", got=type(path).__name__)
    return path


def _check_master_key(key: object) -> None:
    if not isinstance(key, bytes) or len(key) != MASTER_KEY_BYTES:
        raise Invalid("a master key is 32 random bytes: os.urandom(32)", got=type(key).__name__)


def _check_library(wanted_by: str, module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise ImportError(f"{wanted_by} needs {module}: pip install 'repertory[{extra}]'")


def _stored(storage: Storage, wrap: KeyWrap) -> StoredKeys:
    from repertory.backends.encryption.keys import StoredKeys  # loaded when used: an extra

    return StoredKeys(storage.open_objects(new_owner()), wrap, wall=time.time, entropy=os.urandom)


async def _rewrapped(keys: StoredKeys, *, unwrapped: bool) -> int:
    try:
        return await keys.rewrap(unwrapped=unwrapped)
    finally:
        await keys.aclose()
