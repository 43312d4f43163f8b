"""The runtimes that share the sessions of a place, and what nobody waits for there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.app.embedding.call_queue import QueuedCallInfo, call_info
from repertory.backends.ports import call_queue_of, pending_work_of
from repertory.core.ids import check_id
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.backends.ports import SessionStore
    from repertory.core.pending_work import PendingWork


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPeer:
    """A runtime that takes the calls of others, as it has last said. One that is a mere gateway is not listed."""

    name: str
    """The owner of its sessions, as `sessions list` shows it."""
    address: str
    room: int
    """The most sessions that run turns there at the same time; 0: it shuts down."""
    busy: int
    """The number of turns that run there, or wait for room, as the peer has last said."""
    agents: Sequence[str]
    version: str
    zone: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    """The runtimes that share the sessions of a place, and the work that waits there without a caller."""

    peers: Sequence[ClusterPeer]
    """The peers in the order of their names."""
    pending_work: Sequence[PendingWork]
    """The pending work of sessions, the first due first, parked work included."""
    calls: Sequence[QueuedCallInfo]
    """The oldest first, also those that a peer makes now."""


async def cluster(store: SessionStore) -> ClusterReport:
    """Look at the peers of a store. Errors: `Invalid` for a store that cannot be shared."""
    sharing, box = store.capabilities.sharing, call_queue_of(store)
    if sharing is None or sharing.directory is None:
        raise _not_shared(store)
    peers = [
        ClusterPeer(
            name=peer.name,
            address=peer.address,
            room=peer.room,
            busy=peer.busy,
            agents=sorted(peer.agents),
            version=peer.version,
            zone=peer.zone,
        )
        for peer in await sharing.directory().peers()
    ]
    calls = [] if box is None else [call_info(call) for call in await box.calls()]
    return ClusterReport(peers=peers, pending_work=await pending_work_of(store), calls=calls)


async def retry(store: SessionStore, session_id: str, token: str | None) -> Sequence[QueuedCallInfo]:
    """Have the parked calls of a session, or the one of a token, made once more. Errors: as `Sessions.retry`."""
    check_id(session_id, "session id")
    box = call_queue_of(store)
    if box is None:
        raise _not_shared(store)
    parked = [call for call in await box.calls(session_id) if call.parked and token in (None, call.token)]
    if not parked:
        raise NotFound("the session has no parked call of this name", session=session_id, token=token)
    for call in parked:
        await box.put(call)
    return [call_info(call) for call in parked]


def _not_shared(store: SessionStore) -> Invalid:
    text = "runtimes share sessions in PostgreSQL, or in SQLite on one machine; these cannot be shared"
    return Invalid(text, place=store.name)
