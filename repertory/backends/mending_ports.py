"""The ports of stores in which damage can be looked at and set aside. The others are in `ports.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from repertory.core.journal.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Something that is wrong with what is stored."""

    where: str
    """The key of an object, the path of a file, or a row."""
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """What can be had of a session, whatever is wrong with it."""

    rows: Sequence[Row] = ()
    """Every row that can be read, of all agents, in any order and not proved; the same one may be there twice."""
    damages: Sequence[Damage] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What was found where sessions lie, rather than in one of them."""

    damages: Sequence[Damage] = ()
    sick: Mapping[str, str] = field(default_factory=dict[str, str])
    """Session to what is wrong with it that reading it need not meet."""
    strays: Sequence[str] = ()
    """What lies among the sessions and is no part of any: left over, or somebody else's. It does no harm."""


@runtime_checkable
class QuarantiningStore(Protocol):
    """What a `SessionStore` has besides when it can read around damage, and move what is damaged aside."""

    async def inspect(self) -> Inspection:
        """Look at the place as a whole. Changes nothing."""
        ...

    async def salvage(self, session_id: str) -> Salvage:
        """Everything of a session that can be read. Changes nothing."""
        ...

    async def set_aside(self, session_id: str, keep: Sequence[Row]) -> str:
        """Move all that is stored of a session to where nobody reads it, as it is, and store these rows in its place:
        whole journals, from their first rows on. Gives the name of what was moved.

        Errors: `NotFound`, `SessionBusy` (a live owner other than this object has it).
        """
        ...

    async def quarantined(self, session_id: str) -> Sequence[str]:
        """What was set aside of a session, by name, the oldest first. Deleting the session removes it as well."""
        ...


@runtime_checkable
class ExaminingStore(Protocol):
    """What a `SessionStore` has besides when a session may be damaged where nobody who opens it would meet that."""

    async def examine(self, session_id: str) -> Sequence[Damage]:
        """Everything that is damaged of a session. Changes nothing."""
        ...


@runtime_checkable
class ForgettingStore(Protocol):
    """What a `SessionStore` has besides when its oldest records go by themselves some day, which is no damage."""

    @property
    def forgets_the_oldest(self) -> bool:
        """Whether a journal may begin later than it did."""
        ...


@runtime_checkable
class RebuildingStore(Protocol):
    """What a `SessionStore` has besides when all of its sessions lie in one thing that may be damaged as a whole."""

    async def rebuild(self, keep: Callable[[Salvage], Sequence[Row]]) -> str:
        """Make the place anew of the rows that `keep` gives for each session (none: it is left out), and move aside
        what was there. Gives the name of what was moved. `keep` is called in another thread.

        Errors: `SessionBusy` when a live owner other than this object has a session there.
        """
        ...

    async def wrecks(self) -> Sequence[str]:
        """What was moved aside so, by name, the oldest first. Any session may be in there; nothing removes it."""
        ...
