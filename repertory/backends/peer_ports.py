"""The ports of runtimes that share sessions: a directory of them, a queue of calls that nobody waits for, and a wire.

Start with `Directory`. Who owns a session is the truth of its store alone; everything here may be out of date, and a
caller that finds it wrong asks again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

from repertory.core.messages import Json
from repertory.core.peers import Peer
from repertory.errors import Invalid, RepertoryError, Unavailable


class Directory(Protocol):
    """The runtimes that share the sessions of one store, and the owner of a session. For one event loop.

    Errors of every method: `Unavailable` and its subclasses when the place cannot be reached: try again.
    """

    @property
    def name(self) -> str:
        """The name under which this store owns sessions."""
        ...

    def socket(self) -> str | None:
        """An address of this machine for the peer of that name; None where peers are on several machines."""
        ...

    async def join(self, peer: Peer) -> None:
        """Be listed with these words until `leave`, or until the store's owner counts as dead. Again: the new words
        replace the old ones, such as another `busy`.

        Args:
            peer: The words about this runtime.

        Raises:
            Invalid: When `peer.name` is not the name of the store's owner. Correct the argument.
        """
        ...

    async def peers(self) -> Sequence[Peer]:
        """The peers that are listed and alive, in the order of their names."""
        ...

    async def owner_of(self, session_id: str) -> str | None:
        """The name of the live owner of a session; None when it is free, unknown, or its owner is dead.

        Args:
            session_id: The id of the session.
        """
        ...

    async def leave(self) -> None:
        """Be listed no longer. Twice is allowed."""
        ...


def no_call_queue() -> Invalid:
    """The error for sessions that keep no calls."""
    return Invalid("only sessions in SQLite or in PostgreSQL keep calls until they are made")


class QueuedCall(Struct, frozen=True, kw_only=True):
    """A call that nobody waits for.

    Attributes:
        session_id: The session that is called.
        agent_id: The agent that is called.
    """

    session_id: str
    agent_id: str
    token: str
    """Names the turn: one with the same token is not put twice, and does not run twice."""
    call: Mapping[str, Json]
    """The prompt and the options, as JSON."""
    created_at: float = 0.0
    """The time of its creation, in epoch seconds by the queue's clock; given by the queue."""
    tries: int = 0
    """The number of times that owners took it before, and gave it back or died; given by the queue."""
    error: str = ""
    """The reason why it is parked, or was not done at the last try; empty at first; given by the queue."""
    parked: bool = False
    """True: nobody is given it until it is put again; given by the queue."""


class CallQueue(Protocol):
    """Keeps calls until they are done, beside the sessions. A call survives the end of every process. Deleting a
    session forgets its calls.

    Errors of every method: `Unavailable` and its subclasses: try again. A call that was answered is on disk.
    """

    async def put(self, call: QueuedCall) -> bool:
        """Keep a call. False if one with its session, agent and token is there already: nothing has changed. One that
        is parked is replaced, as if it had not been there.

        Args:
            call: The call.

        Raises:
            Invalid: For bad ids, also as a token, and for what is not JSON. Correct the argument.
            TooLarge: For more than 64 MiB of JSON. Send less.
        """
        ...

    async def take(self, limit: int, agents: Collection[str], passing: Collection[str] = ()) -> Sequence[QueuedCall]:
        """Take calls of these agents, the longest kept first, which are this owner's from now on: nobody else is given
        them while it is alive. Those of dead owners too, with `tries` counted; a call that has ended `POISON_OWNERS`
        owners is parked instead.

        Of each session one at a time: none while a live owner has one, and else the oldest of these agents, which keeps
        the others waiting until it is done or parked. Cancelled: nothing is taken.

        Args:
            limit: The most calls.
            agents: The ids of the agents; others are left out.
            passing: Tenants whose calls are passed over, each as `tenant_part` of their sessions' ids.
        """
        ...

    async def done(self, calls: Sequence[QueuedCall]) -> None:
        """Forget these calls, of which those change nothing that are not this owner's (any more).

        Args:
            calls: The calls.
        """
        ...

    async def again(self, call: QueuedCall, after_s: float, error: str, *, park: bool = False) -> None:
        """Give a call back that could not be done: it can be taken in so many seconds, before the later ones of its
        session. Nothing changes if it is not this owner's (any more).

        Args:
            call: The call.
            after_s: Seconds until it can be taken again.
            error: The reason why it was not done.
            park: True: nobody is given it before it is put again.
        """
        ...

    async def calls(self, session_id: str | None = None) -> Sequence[QueuedCall]:
        """Every call that is kept, or those of one session, oldest first, also taken and parked ones.

        Args:
            session_id: The session; None for all.
        """
        ...


JsonLine = Mapping[str, Json]
"""A JSON object, one line of an answer."""


class Lines(Struct, frozen=True, kw_only=True):
    """Lines of an answer that are sent together, which saves both sides a wake-up for each.

    Attributes:
        lines: The lines, in order.
    """

    lines: Sequence[JsonLine]
    end: bool = False
    """The answer has no others: its end is sent with them."""

    @staticmethod
    def of(given: JsonLine | Lines) -> Lines:
        """The lines of a handler's result.

        Args:
            given: One line, or several.
        """
        return given if isinstance(given, Lines) else Lines(lines=(given,))


class PeerRefused(RepertoryError):
    """A peer has answered, and refused the call. The caller decides by `status` and `body`.

    Args:
        status: The HTTP status.
        body: The answer's first line.
    """

    def __init__(self, status: int, body: JsonLine) -> None:
        super().__init__("the peer refuses the call", status=status)
        self.status = status
        self.body = body


class PeerUnreachable(Unavailable):
    """The peer could not be connected: nothing of the call has reached it."""


class PeerLost(Unavailable):
    """The connection broke off, or nothing was heard for too long: the call may have been begun, or done."""


Handler = Callable[[str, JsonLine], AbstractAsyncContextManager[AsyncIterator[JsonLine | Lines]]]
"""A function from a request's path and body to the lines of its answer, one by one or several together. It raises
`PeerRefused` when it is entered, before the first line, to answer with another status (400 to 599) than 200. It is left
behind the last line (before that is sent, if they are `Lines` with the end), before the caller is told that there are
no more, or as soon as the caller has gone. It closes its iterator then. What else it raises is logged: before the first
line the caller gets `PeerRefused` with 500, later `PeerLost`. A line `{"alive": 1}` is the wire's own, and is not given
to callers.
"""


class PeerWire(Protocol):
    """Runtimes call each other over a wire. For one event loop."""

    async def serve(self, handle: Handler, listening: Callable[[str], Awaitable[None]]) -> None:
        """Answer requests until cancelled. `listening` is awaited once with the address that others reach it under.

        Args:
            handle: Answers a request, line by line.
            listening: Awaited once with the address.

        Raises:
            Invalid: For an address that cannot be used. Correct the argument.
            Unavailable: If the address is taken. Choose another one.
        """
        ...

    def call(self, address: str, path: str, body: JsonLine) -> AbstractAsyncContextManager[AsyncIterator[JsonLine]]:
        """Send a request and read its answer: `async with wire.call(...) as lines: async for line in lines`. The block
        is entered with the first line, or when the peer says that it is at work. When the end of the answer has come by
        the time it is left, the connection is kept for the next call; else it is closed.

        Args:
            address: The address of the peer.
            path: The path of the request.
            body: The request, as JSON.

        Raises:
            PeerRefused: When the block is entered, if the peer refused. Read its reason.
            PeerUnreachable: When the block is entered, if the peer cannot be reached. Nothing was done there.
            PeerLost: Then, or later, if the connection broke off. Ask whether it was done.
            Invalid: For an address or a body that cannot be written; nothing was sent. Correct the argument.
            TooLarge: For a body that is too large; nothing was sent. Send less.
        """
        ...

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        ...
