"""The routing of calls to runtimes: the peer that gets a call, and the next step when it does not answer.

The lease in the session's store is the truth about who owns a session. What is known here may be old: a peer that does
not own the session says so, and the caller goes on from there. `docs/design/services.md` says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

from repertory.errors import Failed, RepertoryError, Throttled, Unavailable

POISON_OWNERS = 5
"""The number of processes that may end with a call or turn before no other one tries it."""
_LEAN = 0.25
"""The share of its room by which a peer must be emptier to get what this runtime could run itself."""
_CUT_OFF = 2
_PAUSE_S = 0.02
_PAUSE_MAX_S = 0.5
_DRAIN_PAUSE_S, _DRAIN_SHARE = 0.05, 0.1
"""A peer that shuts down gives a session up as soon as its turn is over. A call asks again after this share of the time
that it has waited, at least so many seconds.
"""


class Peer(Struct, frozen=True, kw_only=True):
    """One runtime that answers calls of others."""

    name: str
    """The name under which its store owns sessions. Another start has another name."""
    address: str
    """The address at which it answers: `host:port`, or `unix:` and a path."""
    room: int
    """The number of turns that it runs at the same time; 0: it takes none, because it is a gateway or drains."""
    busy: int = 0
    """The number of turns that it runs, and has waiting, by its latest report."""
    agents: frozenset[str] = frozenset()
    """The names of the agents that it has."""
    version: str = ""
    """The version of the program. New sessions go to the highest one, compared as text."""
    zone: str = ""

    @property
    def load(self) -> float:
        """The share of its room that is taken; more than 1 when calls wait."""
        return self.busy / self.room if self.room else float("inf")


def chosen_peer(peers: Sequence[Peer], agent: str, here: str, draws: tuple[float, float]) -> Peer | None:
    """The peer that gets a session which nobody owns; None when nobody takes it.

    It has the agent, and the highest version of those that do and have room. This runtime (`here`) is chosen unless
    another one is much emptier; else the emptier one of two drawn by chance, the same zone first. `draws`: two numbers
    from 0 to below 1. When nobody has room, the one with the shortest queue for its room.
    """
    able = [peer for peer in peers if peer.room > 0 and agent in peer.agents]
    free = [peer for peer in able if peer.load < 1]
    if not free:
        return min(able, key=lambda peer: (peer.load, peer.name != here), default=None)
    newest = max(peer.version for peer in free)
    free = [peer for peer in free if peer.version == newest]
    mine = next((peer for peer in free if peer.name == here), None)
    zone = next((peer.zone for peer in peers if peer.name == here), "")
    near = [peer for peer in free if peer.zone == zone] or free
    drawn = [near[int(draw * len(near))] for draw in draws]
    best = min(drawn, key=lambda peer: peer.load)
    return mine if mine is not None and mine.load <= best.load + _LEAN else best


RoutingFailure: TypeAlias = Literal["moved", "full", "draining", "not served", "unreachable", "lost"]
"""The reason why a peer has not answered: it is not the owner; it has no room; it shuts down; it does not have the
agent; no connection could be made; the connection broke off, or nothing came over it.
"""


class Route:
    """The way of one call from peer to peer until one answers. All times are seconds by one clock."""

    def __init__(self, token: str, began: float, patience_s: float) -> None:
        """`patience_s`: the seconds to go on without an answer after the first failure."""
        self._token = token
        self._patience_s = patience_s
        self._began = began
        self._since: float | None = None
        """The start of the failures in a row; None without one."""
        self._pauses = 0
        self._taken_at: float | None = None
        """The time at which the peer of this try said that it has the call."""
        self._suspect: str | None = None
        """The peer with which the call was lost."""
        self._ended: set[str] = set()
        """The owners that have ended while they had the call."""
        self._failing = ""
        """The peer to which the last tries did not come through, and how many these were."""
        self._fails = 0
        self._avoided: dict[str, float] = {}
        """The time, by peer, until which it gets nothing that another peer may have."""

    def taken(self, now: float) -> None:
        """A peer has the call, which uses no patience up. It begins the patience anew only with an answer: peers that
        take the call and give it back do not keep it for ever.
        """
        self._taken_at = now if self._taken_at is None else self._taken_at
        self._suspect, self._fails = None, 0

    def succeeded(self) -> None:
        """A peer is at work: failures from now on are counted anew."""
        self._since, self._pauses, self._suspect, self._fails = None, 0, None, 0

    def suspects(self, peer: str) -> bool:
        """True if this peer was lost at the last try: it has to answer soon."""
        return self._suspect == peer

    def is_cut_off(self, owner: str) -> bool:
        """True if no connection reaches this owner, which is alive: then the call goes through the session store."""
        return self._failing == owner and self._fails >= _CUT_OFF

    def may_get(self, peer: Peer, now: float) -> bool:
        """True if a session that nobody owns may go to this peer."""
        return self._avoided.get(peer.name, 0.0) <= now

    def owner_is(self, owner: str | None) -> None:
        """The store says who owns the session now. Errors: `Failed` when its owners have ended one after the other."""
        if self._suspect is not None and owner != self._suspect:
            self._ended.add(self._suspect)
            self._suspect = None
        if len(self._ended) >= POISON_OWNERS:
            text = "every process that ran this turn has ended: it is not given to another one. Look at what they did"
            raise Failed(text, owners=len(self._ended), token=self._token)

    def after(
        self,
        failure: RoutingFailure,
        peer: str,
        now: float,
        draw: float,
        wait_s: float = 0.0,
        error: RepertoryError | None = None,
    ) -> float:
        """The seconds to wait before the next try. `draw`: a number from 0 to below 1, so that many callers do not come
        at the same moment; `wait_s`: the seconds that the peer asked for.

        Errors: when the patience would be over by then, `Throttled` if there was no room, else `Unavailable`.
        """
        taken_s, self._taken_at = 0.0 if self._taken_at is None else now - self._taken_at, None
        self._since = now if self._since is None else self._since + taken_s
        if failure == "lost":
            self._suspect = peer
        if failure in ("lost", "unreachable"):
            self._fails = self._fails + 1 if peer == self._failing else 1
            self._failing = peer
        pause = 0.0
        if self._pauses or failure not in ("moved", "lost"):
            pause = min(_PAUSE_S * 2 ** min(self._pauses, 10), _PAUSE_MAX_S)
            if failure == "draining":
                pause = min(pause, max(_DRAIN_PAUSE_S, _DRAIN_SHARE * (now - self._since)))
            pause *= 0.5 + draw
            pause = max(pause, wait_s * (0.75 + draw / 2))
        self._pauses += 1
        if now + pause - self._since >= self._patience_s:
            if failure == "full":
                raise Throttled("no peer has room for this call", retry_after_s=wait_s or 1.0, peer=peer)
            fields = {"peer": peer, "why": failure, "cause": None if error is None else str(error)}
            raise Unavailable("no peer has answered in time", waited_s=round(now - self._since, 1), **fields)
        if not pause:
            return 0.0
        self._avoided[peer] = now + (self._patience_s if failure == "not served" else max(pause, 1.0))
        return pause


_INSISTS_S, _INSISTS_MAX_S = 0.2, 10.0
_ASKED_MAX = 10_000


class RepeatedRequests:
    """Tells a request for a session that is meant from the others. Peers that meet while they open a session ask for it
    once, and then call its owner; a process that is no peer asks again and again.
    """

    def __init__(self) -> None:
        self._first: dict[str, float] = {}

    def insists(self, session_id: str, now: float) -> bool:
        """Note a request. True if it comes a while after another one for the same session."""
        first = self._first.setdefault(session_id, now)
        if now - first > _INSISTS_MAX_S:
            first = self._first[session_id] = now
        if len(self._first) > _ASKED_MAX:
            self._first = {session_id: first}
        return now - first > _INSISTS_S
