"""The directory and the call box of a session database, on its store's thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from repertory.backends.peer_ports import CallQueue, Directory, Peer, QueuedCall
from repertory.backends.sessions.sqlite.file import mapped_errors
from repertory.backends.sessions.sqlite.journals import Journals
from repertory.backends.sessions.sqlite.peers import PeerFiles, socket_path
from repertory.core.ids import check_id
from repertory.core.queued_calls import call_text, plain_text
from repertory.errors import Invalid

T = TypeVar("T")


class JournalsThread(Protocol):
    """The thread of a store, which works on its database; `make` makes that if there is none. Errors: of the store."""

    async def read(
        self, work: Callable[[Journals], T], nothing: T, *, undo: Callable[[Journals, T], None] | None = None
    ) -> T:
        """The result of work; `nothing` where there is no database, and none is made. `undo` receives a result that the
        caller will not see, because it was cancelled.
        """
        ...

    async def make(self, work: Callable[[Journals], T]) -> T: ...


class SQLiteDirectory(Directory):
    """Errors: those of the store."""

    def __init__(self, store: JournalsThread, path: Path, owner: str) -> None:
        self._store = store
        self._path = path
        self._owner = owner
        self._files = PeerFiles(path, owner)

    @property
    def name(self) -> str:
        return self._owner

    def socket(self) -> str | None:
        with mapped_errors(self._path):
            return f"unix:{socket_path(self._path, self._owner)}"

    async def join(self, peer: Peer) -> None:
        if peer.name != self._owner:
            raise Invalid("a peer has the name of its store's owner", got=peer.name, owner=self._owner)
        await self._store.make(lambda journals: journals.on_peers(lambda lock: self._files.join(peer, lock)))

    async def peers(self) -> Sequence[Peer]:
        return await self._store.read(lambda journals: journals.on_peers(self._files.living), [])

    async def owner_of(self, session_id: str) -> str | None:
        check_id(session_id, "session id")
        return await self._store.read(lambda journals: journals.owner_of(session_id), None)

    async def leave(self) -> None:
        await self._store.read(lambda journals: journals.on_peers(lambda _: self._files.leave()), None)


class SQLiteCallQueue(CallQueue):
    """Errors: those of the store."""

    def __init__(self, store: JournalsThread, owner: str) -> None:
        self._store = store
        self._owner = owner

    async def put(self, call: QueuedCall) -> bool:
        session_id, agent_id = check_id(call.session_id, "session id"), check_id(call.agent_id, "agent id")
        token, text = check_id(call.token, "token"), call_text(call.call)
        return await self._store.make(
            lambda journals: journals.on_calls(
                lambda calls: calls.put(session_id, agent_id, token, text), size_bytes=len(text)
            )
        )

    async def take(self, limit: int, agents: Collection[str], passing: Collection[str] = ()) -> Sequence[QueuedCall]:
        if (
            limit < 1
            or not agents
            or not await self._store.read(lambda journals: journals.may_take(agents, passing), False)
        ):
            return []
        return await self._store.read(lambda journals: journals.take(limit, agents, passing), [], undo=self._untake)

    async def done(self, calls: Sequence[QueuedCall]) -> None:
        if calls:
            await self._store.read(
                lambda journals: journals.on_calls(lambda table: table.done(self._owner, calls)), None
            )

    async def again(self, call: QueuedCall, after_s: float, error: str, *, park: bool = False) -> None:
        why = plain_text(error)
        await self._store.read(
            lambda journals: journals.on_calls(
                lambda table: table.again(self._owner, call, after_s, why, park=park), size_bytes=len(why)
            ),
            None,
        )

    async def calls(self, session_id: str | None = None) -> Sequence[QueuedCall]:
        return await self._store.read(lambda journals: journals.look(lambda there: there.calls.all(session_id)), [])

    def _untake(self, journals: Journals, taken: Sequence[QueuedCall]) -> None:
        if taken:
            journals.on_calls(lambda table: table.untake(self._owner, taken))
