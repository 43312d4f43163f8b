"""The actor that keeps a runtime among its peers, and has the turns of others as its jobs.

State: none of its own. Fails: by a bug of its own; its turns are cut then, and their callers ask again. Pace: a look a
second. Supervised by the root.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol, assert_never

import anyio
from msgspec import Struct

from repertory.actors.background import Background
from repertory.actors.call import Invocation
from repertory.app.host.call_router import PeerSession
from repertory.cluster.peer_calls import PeerCall
from repertory.cluster.running_calls import RunningCall
from repertory.core.peers import Peer
from repertory.runtime.actor import Actor
from repertory.runtime.message import Next, carry_on

LOOK_S = 1.0
"""Seconds between two looks at the directory, in which a runtime reports its load and reads who is there."""


class LookAround(Struct, frozen=True, kw_only=True):
    """A tick, at which the directory is read."""


class WatchSignal(Struct, frozen=True, kw_only=True):
    """Cancel a turn at a peer when this signal is set before the call is over."""

    signal: threading.Event
    peer: Peer
    call: PeerCall
    over: anyio.Event


class RunTurn(Struct, frozen=True, kw_only=True):
    """Run a turn for another process."""

    call: RunningCall
    session: PeerSession
    invocation: Invocation
    events: bool


class PeerWork(Protocol):
    """The work of the actor: see `Cluster`. `start` begins a turn, from the job that answers the others."""

    name: str

    async def serve(self, start: Callable[[RunTurn], object]) -> None: ...
    async def look(self) -> None: ...
    async def notice(self) -> None: ...
    async def run_call(self, start: RunTurn) -> None: ...
    async def watch(self, watch: WatchSignal) -> None: ...


class PeerActor(Actor["LookAround | WatchSignal"]):
    """See above."""

    def __init__(self, work: PeerWork) -> None:
        self._work = work
        self._looking: Background

    def summary(self) -> object:
        return {"name": self._work.name}

    async def on_start(self) -> None:
        self._looking = Background(self.context, "the peers cannot be seen")

    async def on_ready(self) -> None:
        serving = Background(self.context, "peers cannot be answered")
        self.context.job(serving.keep, partial(self._work.serve, self._start), name="serve peers")
        # A job of its own, since a look that hangs is what it has to notice.
        self.context.job(self._work.notice, name="notice being alone")
        # With chance in it, or processes that were started together would all ask the store in the same moment.
        self.context.every(LOOK_S * self.context.rng.uniform(0.8, 1.2), LookAround())

    def _start(self, turn: RunTurn) -> None:
        """Start a peer's turn from a job, not through the mailbox, since a call waits for it."""
        self.context.job(self._work.run_call, turn, name="turn of a peer")

    async def handle(self, message: LookAround | WatchSignal) -> Next:
        match message:
            case LookAround():
                await self._looking.attempt(self._work.look, None)
            case WatchSignal():
                self.context.job(self._work.watch, message, name="cancel signal")
            case _:
                assert_never(message)
        return carry_on()
