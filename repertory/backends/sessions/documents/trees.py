"""The trees of owned sessions, which follow their journals, and the common part of those in folders and in buckets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Generic, TypeVar

from repertory.backends.ports import NotPublished
from repertory.backends.sessions.documents.reading import AgentNames
from repertory.core.json_bytes import parsed
from repertory.core.message_tree.projection import TreeMark
from repertory.errors import Invalid, RepertoryError


class DocumentTree(ABC):
    """The documents of one agent or orchestrator, as they stand and as its journal wants them."""

    def __init__(self, names: AgentNames, of: tuple[str, str], wall: Callable[[], float]) -> None:
        """`of`: the ids of the session and of the journal."""
        self._names = names
        self._wall = wall
        self.of = of
        self._unreadable = False
        """True if the agent's or orchestrator's document must be set aside."""

    @property
    def name(self) -> str:
        """The key of the folder."""
        return self._names.folder

    @property
    @abstractmethod
    def mark(self) -> TreeMark:
        """The state of the tree, as far as it is known."""

    @property
    @abstractmethod
    def is_behind(self) -> bool:
        """True if something is still to be written."""


T = TypeVar("T", bound=DocumentTree)


class OpenTrees(Generic[T]):
    """The trees of owned sessions, and those that could not be written."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, T]] = {}
        self._not_written: dict[tuple[str, str], NotPublished] = {}

    def of(self, session_id: str) -> dict[str, T]:
        """The open trees of an owned session, by journal."""
        return self._open.get(session_id, {})

    def put(self, session_id: str, trees: dict[str, T]) -> None:
        """Follow the journals of a session from now on."""
        self._open[session_id] = trees

    def drop(self, session_id: str) -> dict[str, T]:
        """Follow the journals of a session no more. Returns its trees."""
        return self._open.pop(session_id, {})

    def behind(self, session_id: str | None = None) -> list[T]:
        """The open trees that are not up to date; those of one session, if named."""
        trees = self._open.values() if session_id is None else [self.of(session_id)]
        return [tree for of in trees for tree in of.values() if tree.is_behind]

    @property
    def not_written(self) -> list[NotPublished]:
        """The trees whose last try to write has failed, also those that are followed no more."""
        return [*self._not_written.values()]

    def note_failure(self, tree: T, error: RepertoryError) -> bool:
        """Note that a tree could not be written. True if that is news."""
        session_id, journal = tree.of
        news = tree.of not in self._not_written
        self._not_written[tree.of] = NotPublished(session_id=session_id, agent_id=journal, error=str(error))
        return news

    def note_success(self, tree: T) -> None:
        """Note that a tree was written."""
        self._not_written.pop(tree.of, None)


def check_name(names: AgentNames, wanted: str, body: bytes | None, key: str) -> None:
    """Raise `Invalid` when the folder belongs to another journal: shortened names may collide, and the document has the
    id.
    """
    if body is None or names.journal is not None:
        return
    found: object = None
    with suppress(ValueError):
        found = parsed(body).get(key)
    if isinstance(found, str) and found != wanted:
        msg = "another agent has the folder that this one would have; choose another agent id"
        raise Invalid(msg, agent=wanted, folder=names.folder, belongs_to=found)


def digest_in_mark(body: bytes) -> str:
    """The digest of an agent's or orchestrator's document in a mark."""
    return blake2b(body, digest_size=16).hexdigest()
