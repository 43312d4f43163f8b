"""The leases that a process holds on one store, shared by the agents of a session.

Not an actor: whoever shares a lease lives in one event loop. A session belongs to a process, not to an agent: two
agents in one session write under one lease, which is given up with the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from repertory.backends.ports import Lease, SessionStore


@dataclass(slots=True)
class _Held:
    lease: Lease
    users: int


class Leases:
    """Acquires each session once, however many agents ask."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._held: dict[str, _Held] = {}
        self._lock = anyio.Lock()

    async def acquire(self, session_id: str, *, takeover: bool) -> Lease:
        """The session's lease, one more user of it. Errors: as `SessionStore.acquire`."""
        async with self._lock:
            held = self._held.get(session_id)
            if held is None:
                lease = await self._store.acquire(session_id, takeover=takeover)
                held = self._held[session_id] = _Held(lease, 0)
            held.users += 1
            return held.lease

    async def release(self, lease: Lease) -> None:
        """One user less; the last one gives the session up."""
        async with self._lock:
            held = self._held.get(lease.session_id)
            if held is None or held.lease != lease:
                return
            held.users -= 1
            if not held.users:
                del self._held[lease.session_id]
                await self._store.release(lease)

    def forget(self, lease: Lease) -> None:
        """Nobody knows whether the lease is still good: the next to ask acquires anew, which fences this one."""
        held = self._held.get(lease.session_id)
        if held is not None and held.lease == lease:
            del self._held[lease.session_id]
