"""The call queue at a runtime's location of sessions: posted calls of agents, graphs and swarms."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from repertory.app.host.dispatcher import LookForDue
from repertory.backends.peer_ports import no_call_queue
from repertory.backends.ports import call_queue_of
from repertory.core.turns.turn_start import way_of_call
from repertory.errors import Failed, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from repertory.actors.call import Invocation
    from repertory.app.host.host import Host
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.backends.peer_ports import CallQueue, QueuedCall
    from repertory.core.result import TurnEvent
    from repertory.core.turns.turn_start import CallAsks, KnownTurn, TurnWay


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedCallInfo:
    """A call that nobody waits for (`session.post(...)`), and that is not done yet."""

    session_id: str
    agent_id: str
    token: str
    at: float
    """Time of the posting, in epoch seconds."""
    tries: int
    """Number of the times that it was taken before."""
    error: str
    """Reason for which it is parked, or was not done at the last try; empty at first."""
    parked: bool
    """True if nobody tries it until it is posted again, or `retry` does."""


def call_info(call: QueuedCall) -> QueuedCallInfo:
    return QueuedCallInfo(
        session_id=call.session_id,
        agent_id=call.agent_id,
        token=call.token,
        at=call.created_at,
        tries=call.tries,
        error=call.error,
        parked=call.parked,
    )


async def queue_at(host: Host, location: SessionLocation | None) -> CallQueue | None:
    """The box of the sessions there; None for sessions that keep no calls. Errors: those of the store."""
    return None if location is None else call_queue_of(await host.store_of(location))


async def queue_call(host: Host, location: SessionLocation | None, call: QueuedCall) -> str:
    """Keep the call until it is made, and return its token. Errors: `Invalid` without a box, and those of the store."""
    box = await queue_at(host, location)
    if box is None:
        raise no_call_queue()
    await box.put(call)
    if host.dispatcher is not None:
        host.dispatcher.tell(LookForDue())
    return call.token


async def find_posted(
    host: Host, location: SessionLocation | None, session_id: str, agent_id: str, token: str
) -> QueuedCallInfo | None:
    """The posted call of this token, while it is not done. Errors: those of the store."""
    box = await queue_at(host, location)
    calls = () if box is None else await box.calls(session_id)
    found = [call for call in calls if (call.agent_id, call.token) == (agent_id, token)]
    return call_info(found[0]) if found else None


class PostedTurn:
    """The turn or run of a call without a prompt, which may be posted and not be made yet."""

    def __init__(self, posted: Callable[[str], Awaitable[QueuedCallInfo | None]], call: Invocation) -> None:
        """`posted`: the posted call of a token."""
        self._posted = posted
        self._call = call
        self._tries = 0
        self._unknown = False

    async def events(
        self, begin: Callable[[], AsyncGenerator[TurnEvent]], *, tells_wait: bool = False
    ) -> AsyncGenerator[TurnEvent]:
        """The events of the turn, which `begin` begins to read again while the call is posted. `tells_wait`: then
        `accepted` is told once. Errors: those of the turn, and as `pause`.
        """
        while True:
            try:
                async with aclosing(begin()) as events:
                    async for event in events:
                        yield event
                return
            except NotFound as error:
                if await self.pause(error) and tells_wait:
                    yield {"accepted": {"token": self._call.idempotency_token}}

    async def pause(self, error: NotFound) -> bool:
        """Wait before the call is tried again, since its turn has not begun. True the first time that it is posted.

        Errors: the same error, when no such call is posted; `Failed` for one that was given up; `Unavailable` when the
        call's time is over.
        """
        token, now = self._call.idempotency_token, anyio.current_time()
        if token is None or error.fields.get("token") != token:
            raise error
        way, posted = way_of_posted(token, await self._posted(token), "nothing")
        if way == "fail" and posted is not None:
            raise given_up(posted) from error
        if posted is None and self._unknown:
            raise error
        if now >= self._call.deadline:
            raise Unavailable("the posted call was not made in the time of this call", token=token) from error
        self._unknown = posted is None  # It may have been done in between: then it is known by now.
        if not self._unknown:
            self._tries += 1
            await anyio.sleep(min(0.05 * 2 ** min(self._tries - 1, 4), self._call.deadline - now))
        return self._tries == 1


def way_of_posted(token: str, posted: QueuedCallInfo | None, asks: CallAsks) -> tuple[TurnWay, QueuedCallInfo | None]:
    known: KnownTurn = "unknown" if posted is None else "given up" if posted.parked else "posted"
    return way_of_call(token, known, asks)[0], posted


def given_up(posted: QueuedCallInfo) -> Failed:
    return Failed("this turn was tried and given up: begin it again by its token", cause=posted.error)
