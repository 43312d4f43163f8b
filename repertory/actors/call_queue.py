"""The call queue of agents and orchestrators: one job serves one call at a time, and the rest wait."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from repertory.actors.call import OPEN_TURNS, Call, Invocation, ReplyChannel, StreamChannel, TimeUp
from repertory.runtime.actor import Actor
from repertory.runtime.message import Next, carry_on, refuse

if TYPE_CHECKING:
    from repertory.core.turn_start import InterruptResponses, UserMessages
    from repertory.errors import Unavailable
    from repertory.runtime.context import Context
    from repertory.runtime.envelope import ReplySlot

M = TypeVar("M")
"""The messages of the actor."""
L = TypeVar("L")
"""What the actor can load, such as a snapshot."""


class CallQueueActor(Actor[M], Generic[M, L]):
    """Serves one call at a time. Something to load is loaded before the next call."""

    def __init__(self, jobs: str) -> None:
        """`jobs`: the name of the job that serves calls."""
        self._waiting: deque[Call] = deque()
        self._loads: deque[tuple[L, ReplySlot[None]]] = deque()
        self._running: Call | None = None
        self._queue = SerialQueue(jobs, self._next)
        self._refusing = False

    @abstractmethod
    async def _serve(self, call: Call) -> None:
        """Serve a call and give its result or error to the caller. Errors meant for the caller are not raised."""

    @abstractmethod
    async def _load(self, wanted: L, slot: ReplySlot[None]) -> None:
        """Load this, and answer when it is durable."""

    @abstractmethod
    def _abandon(self, invocation: Invocation) -> None:
        """The caller has gone."""

    @abstractmethod
    def _closed(self) -> Unavailable:
        """The error for callers when no more calls are accepted."""

    def _next(self) -> Awaitable[None] | None:
        if self._loads:
            return self._load(*self._loads.popleft())
        return self._serve(self._waiting.popleft()) if self._waiting else None

    def _take_load(self, wanted: L) -> Next:
        if self._refusing:
            return refuse(self._closed())
        self._loads.append((wanted, self.context.defer()))
        self._queue.wake(self.context)
        return carry_on()

    def _new_call(
        self,
        invocation: Invocation,
        prompt: UserMessages | InterruptResponses,
        channel: type[ReplyChannel] | type[StreamChannel],
    ) -> Call:
        call = Call(invocation=invocation, prompt=prompt, channel=channel(self.context))
        call.channel.on_left(lambda: self._abandon(invocation))
        return call

    def _comes_from_running(self, invocation: Invocation) -> bool:
        """True if the call was made inside the running call."""
        running, turns = self._running, invocation.context.get(OPEN_TURNS, ())
        return running is not None and any(turn.call is running.invocation for turn in turns)

    def _watch_time(self, invocation: Invocation) -> None:
        if invocation.deadline < math.inf:
            left_s = max(invocation.deadline - anyio.current_time(), 0.0)
            self.context.after(left_s, TimeUp(invocation=invocation), key=invocation)

    def _withdraw(self, invocation: Invocation) -> Call | None:
        """Remove a call that is queued or shares another call's turn. If other calls share a queued call, the first of
        them takes its place.
        """
        for place, call in enumerate(self._waiting):
            if call.invocation is invocation:
                heirs = call.shared
                if heirs:
                    self._waiting[place] = heirs[0]
                    heirs[0].shared.extend(heirs[1:])
                else:
                    del self._waiting[place]
                return call
        for call in (*([] if self._running is None else [self._running]), *self._waiting):
            for sharer in call.shared:
                if sharer.invocation is invocation:
                    call.shared.remove(sharer)
                    return sharer
        return None

    def _refuse_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft().fail(self._closed())


# One job serves everything: starting a job costs more than the messages of a plain turn.


class SerialQueue:
    """An actor's work items, run one after the other in one job, which sleeps while there are none."""

    def __init__(self, name: str, take: Callable[[], Awaitable[None] | None]) -> None:
        """`name`: the job's. `take` gives the next work item, or None if there is none."""
        self._name = name
        self._take = take
        self.busy = False
        """True while an item runs or after `wake`, until `take` gives None."""
        self._beside = 0
        self._called: anyio.Event | None = None
        self._waiting: list[Callable[[], None]] = []

    def wake(self, context: Context) -> None:
        """Run the job: there is a work item."""
        self.busy = True
        if self._called is None:
            self._called = anyio.Event()
            context.job(self._work, name=self._name)
        self._called.set()

    def begin_beside(self) -> None:
        """Work has begun elsewhere; the queue is not idle before it ends. Needs one `end_beside`."""
        self._beside += 1

    def end_beside(self) -> None:
        self._beside -= 1
        self._tell()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the queue is idle, at once if it is idle now."""
        self._waiting.append(callback)
        self._tell()

    def _tell(self) -> None:
        while self._waiting and not (self.busy or self._beside):
            self._waiting.pop()()

    async def _work(self) -> None:
        while True:
            while (one := self._take()) is not None:
                await one
            self.busy = False
            self._tell()
            self._called = anyio.Event()
            await self._called.wait()
