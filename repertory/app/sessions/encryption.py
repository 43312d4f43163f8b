"""The keys that encrypt sessions: the protocol of their location, and its use by a location of sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.encryption_ports import KeyProvider
    from repertory.backends.ports import SessionStore


class SessionKeysLocation(Protocol):
    """The location of keys: a place of sessions takes it as `encryption`."""

    @property
    def key(self) -> str:
        """The key of the location, equal for all objects that name the same one."""
        ...

    def open_keys(self) -> KeyProvider:
        """The keys there. The caller closes them. Errors: `ImportError` naming what to install."""
        ...


def check_encryption(encryption: SessionKeysLocation, remember: object = False) -> SessionKeysLocation:
    """Return the same object. Errors: `Invalid` for anything but keys, and together with `remember`."""
    given: object = encryption
    if isinstance(given, type) or not callable(getattr(given, "open_keys", None)):
        text = "encryption says where the keys are: write encryption=LocalKeys('keys')"
        raise Invalid(text, got=type(given).__name__)
    if remember is not False:
        text = (
            "the memory beside the sessions would keep in plain text what is encrypted in them: leave out remember, and"
            " give the agent a MemoryManager with a store of its own"
        )
        raise Invalid(text)
    return encryption


def encrypted_key(key: str, encryption: SessionKeysLocation) -> str:
    """The `key` of a place, with its encryption."""
    return f"{key}, encrypted by {encryption.key}"


def encrypted_store(store: SessionStore, encryption: SessionKeysLocation) -> SessionStore:
    """The store, with its contents sealed."""
    from repertory.backends.encryption.store import SealedSessionStore  # loaded when used: an extra

    return SealedSessionStore(store, encryption.open_keys())
