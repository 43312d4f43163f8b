"""Sessions in anyone's repository, as users name them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from repertory.app.places import new_owner
from repertory.app.session_repository import SessionRepository
from repertory.core.ids import check_id
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore


@dataclass(frozen=True, slots=True, eq=False)
class RepositorySessions:
    """All sessions in a repository."""

    repository: SessionRepository

    @property
    def key(self) -> str:
        """The same for every object that names the same repository."""
        return f"repository:{id(self.repository):x}"

    def open_store(self) -> SessionStore:
        """A store on this repository. The caller closes it."""
        from repertory.app.repository_objects import RepositoryObjects  # loaded when used
        from repertory.backends.sessions.message_tree import MessageTreeStore
        from repertory.backends.sessions.message_tree_journal import TreeSettings
        from repertory.backends.sessions.proof_of_life import TimeToLive

        return MessageTreeStore(
            RepositoryObjects(self.repository),
            owner=new_owner(),
            life=TimeToLive(time.time, 0.0),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(prove_s=float("inf"), mark_batches=False, short_names=False),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RepositorySessionManager:
    """One session in a repository of your own: pass it to `Agent(session_manager=...)`.

    Nothing is read or written before the session opens. Errors: `Invalid` (a ValueError) for an id that cannot be a
    name; from calls `SessionException` for what the repository raises.
    """

    session_id: str
    session_repository: SessionRepository
    takeover: bool = False
    """Nothing changes with it: a repository knows no owners."""

    def __post_init__(self) -> None:
        check_id(self.session_id, "session_id")
        repository = cast("object", self.session_repository)
        if not isinstance(repository, SessionRepository):
            raise Invalid(
                "session_repository is an object of a class of yours that extends SessionRepository, as in "
                "RepositorySessionManager('chat', MyRepository())",
                got=type(repository).__name__,
            )

    @property
    def sessions(self) -> RepositorySessions:
        """The repository that the session lies in."""
        return RepositorySessions(self.session_repository)


AgentSessionManager = RepositorySessionManager
"""The same under the name that older documents use."""
