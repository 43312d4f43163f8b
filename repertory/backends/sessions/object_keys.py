"""Under which keys the objects of a session lie.

journals/<session>/head                       who owns the session, what opening it needs, or where that lies
journals/<session>/s/<commit, 16 digits>      a segment: what one commit added
journals/<session>/c/<commit, 16 digits>      a chunk: the segments from this commit on, merged
journals/<session>/w/<generation>-<edition>   what opening needs, when it is too large for the head
journals/<session>/wanted                     tells the store's clock to whoever asks whether an owner is alive
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from repertory.core.ids import RESERVED, check_id

ROOT = "journals"
_DIGITS = 16
_TOO_HIGH = "1000000000000000"


class SessionKeys(NamedTuple):
    """The keys of one session."""

    folder: str

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


def keys_of(session_id: str) -> SessionKeys:
    """The keys of a session, whose id is the name of its folder where that is possible. Errors: `Invalid`."""
    name = check_id(session_id, "session id")
    if name.startswith((RESERVED, "%")):
        name = f"%{sha256(name.encode()).hexdigest()}"  # the head has the id itself
    return SessionKeys(f"{ROOT}/{name}")


def number_in(key: str) -> int | None:
    """The commit that the key of a segment or chunk names; None for somebody else's object, such as one with a number
    that no session gets to.
    """
    name = key.rpartition("/")[2]
    return int(name) if len(name) == _DIGITS and name.isascii() and name.isdigit() and name < _TOO_HIGH else None
