"""Under which keys the objects of a session lie. Its folder is `journals/<session>`, or `<session>/journal` where
snapshots of it lie beside its journal:

<folder>/head                       who owns the session, what opening it needs, or where that lies
<folder>/s/<commit, 16 digits>      a segment: what one commit added
<folder>/c/<commit, 16 digits>      a chunk: the segments from this commit on, merged
<folder>/w/<generation>-<edition>   what opening needs, when it is too large for the head
<folder>/wanted                     tells the store's clock to whoever asks whether an owner is alive
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from repertory.backends.sessions.journal.format import unpack
from repertory.backends.sessions.journal.requests import Requests
from repertory.core.ids import RESERVED, check_id

ROOT = "journals"
QUARANTINE = "quarantine"
_DIGITS = 16
_TOO_HIGH = "1000000000000000"


class SessionKeys(NamedTuple):
    """The keys of one session."""

    folder: str
    aside: str
    """The folder for what is set aside of it."""

    @property
    def head(self) -> str:
        return f"{self.folder}/head"

    @property
    def wanted(self) -> str:
        return f"{self.folder}/wanted"

    @property
    def segments(self) -> str:
        return f"{self.folder}/s/"

    @property
    def chunks(self) -> str:
        return f"{self.folder}/c/"

    @property
    def windows(self) -> str:
        return f"{self.folder}/w/"

    def segment(self, commit: int) -> str:
        return f"{self.folder}/s/{commit:0{_DIGITS}}"

    def chunk(self, first: int) -> str:
        return f"{self.folder}/c/{first:0{_DIGITS}}"

    def window(self, name: str) -> str:
        return f"{self.folder}/w/{name}"


class Layout(NamedTuple):
    """How the journals of a storage lie there: a session's folder is its name between `before` and `behind`."""

    before: str
    behind: str
    aside_before: str
    aside_behind: str
    taken: str | None = None
    """A name that is no session's here."""

    def keys_of(self, session_id: str) -> SessionKeys:
        """The keys of a session, whose id is the name of its folder where that is possible. Errors: `Invalid`."""
        name = check_id(session_id, "session id")
        if name.startswith((RESERVED, "%")) or name == self.taken:
            name = f"%{sha256(name.encode()).hexdigest()}"  # the head has the id itself
        return self._keys(name)

    def keys_around(self, key: str) -> SessionKeys | None:
        """The keys of the session in whose folder a key lies; None for one that lies in none."""
        name = key.removeprefix(self.before).split("/", 1)[0]
        keys = self._keys(name)
        return keys if name and name != self.taken and key.startswith(f"{keys.folder}/") else None

    def name_in(self, keys: SessionKeys) -> str:
        """The name of a session's folder."""
        return keys.folder.removeprefix(self.before).removesuffix(self.behind)

    def _keys(self, name: str) -> SessionKeys:
        folder = f"{self.before}{name}{self.behind}"
        return SessionKeys(folder, f"{self.aside_before}{name}{self.aside_behind}")


JOURNALS = Layout(f"{ROOT}/", "", f"{QUARANTINE}/{ROOT}/", "")
"""Journals alone: `journals/<session>/...`."""
BESIDE_SNAPSHOTS = Layout("", "/journal", "", "/quarantine", ROOT)
"""Journals among the snapshots: `<session>/journal/...`, so that all of a session lies below `<session>/`."""


def number_in(key: str) -> int | None:
    """The commit that the key of a segment or chunk names; None for somebody else's object, such as one with a number
    that no session gets to.
    """
    name = key.rpartition("/")[2]
    return int(name) if len(name) == _DIGITS and name.isascii() and name.isdigit() and name < _TOO_HIGH else None


_FENCE_BYTES_MAX = 1024
"""A fence holds two ids and three numbers: it is never larger."""


async def remove_session(requests: Requests, keys: SessionKeys, up_to: int | None = None) -> bool:
    """Remove everything but the head, which says that the session is deleted, and fences, which keep former owners out.

    Commits after `up_to` stay. Whether anything was removed.
    """
    found = [info for info in await requests.list(f"{keys.folder}/") if info.key != keys.head]
    if up_to is not None:
        found = [info for info in found if (number_in(info.key) or 0) <= up_to]
    small = [info.key for info in found if info.key.startswith(keys.segments) and info.size_bytes <= _FENCE_BYTES_MAX]
    stored = await requests.find_all(small)
    fences = {key for key, item in zip(small, stored, strict=True) if item is not None and _is_fence(item.body)}
    gone = [info.key for info in found if info.key not in fences]
    if gone:
        await requests.delete_all(gone)
    return bool(gone)


def _is_fence(body: bytes) -> bool:
    try:
        header, rows = unpack(body)
    except ValueError:
        return False
    return header.get("kind") == "segment" and not rows and not header.get("erasing")
