"""A directory and a call box in memory, for the runtimes of one event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

import anyio
from msgspec import Struct
from msgspec.structs import replace

from repertory.backends.peer_ports import CallQueue, Directory, Peer, QueuedCall
from repertory.core.ids import check_id
from repertory.core.peers import POISON_OWNERS
from repertory.core.queued_calls import ENDED_TEXT, UnclaimedCall, call_of, call_text, next_calls
from repertory.errors import Invalid


class StoredCall(Struct):
    """A call in the box.

    Attributes:
        owner: The owner that has taken it; None while it waits.
        not_before: The time of the event loop from which it can be taken.
    """

    call: QueuedCall
    owner: str | None = None
    ended: int = 0
    not_before: float = 0.0


class PeerShelf:
    """The peers and calls that several stores share."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        """Owners whose store is open. Remove one to simulate its kill."""
        self.peers: dict[str, Peer] = {}
        self.calls: list[StoredCall] = []
        """The accepted calls, in the order in which they were put."""


class MemoryDirectory(Directory):
    """A directory in memory, for one event loop."""

    def __init__(
        self, shelf: PeerShelf, owner: str, enter: Callable[[], Awaitable[None]], owner_of: Callable[[str], str | None]
    ) -> None:
        """
        Args:
            shelf: The state that several stores share; None for one of its own.
            owner: The name of the store's owner.
            enter: Awaited by each call.
            owner_of: Returns the owner of a session, alive or not.
        """
        self._shelf = shelf
        self._owner = owner
        self._enter = enter
        self._owner_of = owner_of

    @property
    def name(self) -> str:
        return self._owner

    def socket(self) -> str | None:
        return f"unix:/{self._owner}"

    async def join(self, peer: Peer) -> None:
        await self._enter()
        if peer.name != self._owner:
            raise Invalid("a peer has the name of its store's owner", got=peer.name, owner=self._owner)
        self._shelf.alive.add(self._owner)
        self._shelf.peers[peer.name] = peer

    async def peers(self) -> Sequence[Peer]:
        await self._enter()
        return [self._shelf.peers[name] for name in sorted(self._shelf.alive & self._shelf.peers.keys())]

    async def owner_of(self, session_id: str) -> str | None:
        await self._enter()
        owner = self._owner_of(check_id(session_id, "session id"))
        return owner if owner in self._shelf.alive else None

    async def leave(self) -> None:
        await self._enter()
        self._shelf.peers.pop(self._owner, None)


class MemoryCallQueue(CallQueue):
    """A call queue in memory, for one event loop, whose times are those of the loop's clock.

    Args:
        shelf: The state that several stores share; None for one of its own.
        owner: The name of the store's owner.
        enter: Awaited by each call.
    """

    def __init__(self, shelf: PeerShelf, owner: str, enter: Callable[[], Awaitable[None]]) -> None:
        """`enter` is awaited by each call."""
        self._calls = shelf.calls
        self._alive = shelf.alive
        self._owner = owner
        self._enter = enter

    async def put(self, call: QueuedCall) -> bool:
        for value, what in ((call.session_id, "session id"), (call.agent_id, "agent id"), (call.token, "token")):
            check_id(value, what)
        body = call_of(call_text(call.call))
        await self._enter()
        found = self._of(call)
        if found is not None and not found.call.parked:
            return False
        if found is not None:
            self._calls.remove(found)
        now = anyio.current_time()
        self._calls.append(StoredCall(replace(call, call=body, created_at=now, tries=0, error="", parked=False)))
        return True

    async def take(self, limit: int, agents: Collection[str], passing: Collection[str] = ()) -> Sequence[QueuedCall]:
        await self._enter()
        self._alive.add(self._owner)
        for each in self._calls:
            if each.owner is not None and each.owner not in self._alive:
                self._free(each)
        now = anyio.current_time()
        waiting = [
            UnclaimedCall(index, each.call.session_id, each.call.agent_id, each.not_before <= now)
            for index, each in enumerate(self._calls)
            if each.owner is None and not each.call.parked
        ]
        taken = {each.call.session_id for each in self._calls if each.owner is not None}
        chosen = [self._calls[each.key] for each in next_calls(waiting, taken, agents, limit, passing)]
        for each in chosen:
            each.owner = self._owner
        return [each.call for each in chosen]

    async def done(self, calls: Sequence[QueuedCall]) -> None:
        await self._enter()
        for call in calls:
            if (mine := self._mine(call)) is not None:
                self._calls.remove(mine)

    async def again(self, call: QueuedCall, after_s: float, error: str, *, park: bool = False) -> None:
        await self._enter()
        if (mine := self._mine(call)) is not None:
            mine.owner, mine.not_before = None, anyio.current_time() + after_s
            mine.call = replace(mine.call, tries=mine.call.tries + 1, error=error, parked=park)

    async def calls(self, session_id: str | None = None) -> Sequence[QueuedCall]:
        await self._enter()
        return [each.call for each in self._calls if session_id in (None, each.call.session_id)]

    def forget(self, session_id: str) -> bool:
        """Forget the calls of a session. True if there were any.

        Args:
            session_id: The id of the session.
        """
        others = [each for each in self._calls if each.call.session_id != session_id]
        there = len(others) < len(self._calls)
        self._calls[:] = others
        return there

    def _free(self, each: StoredCall) -> None:
        """Take a call from its dead owner."""
        each.owner = None
        each.ended += 1
        each.call = replace(each.call, tries=each.call.tries + 1)
        if each.ended >= POISON_OWNERS:
            each.call = replace(each.call, parked=True, error=ENDED_TEXT)

    def _of(self, call: QueuedCall) -> StoredCall | None:
        key = call.session_id, call.agent_id, call.token
        same = (each for each in self._calls if (each.call.session_id, each.call.agent_id, each.call.token) == key)
        return next(same, None)

    def _mine(self, call: QueuedCall) -> StoredCall | None:
        found = self._of(call)
        return found if found is not None and found.owner == self._owner else None
