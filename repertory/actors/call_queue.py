"""What agents and orchestrators do with calls: one is served at a time, in one job, and the rest wait."""

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
"""What the actor is asked."""
L = TypeVar("L")
"""What it may have to go on from."""


class CallQueueActor(Actor[M], Generic[M, L]):
    """Serves one call at a time. What it has to go on from comes before the next call."""

    def __init__(self, jobs: str) -> None:
        """`jobs`: what it serves, where jobs are listed."""
        self._waiting: deque[Call] = deque()
        self._loads: deque[tuple[L, ReplySlot[None]]] = deque()
        self._running: Call | None = None
        self._queue = SerialQueue(jobs, self._next)
        self._refusing = False

    @abstractmethod
    async def _serve(self, call: Call) -> None:
        """Serve a call and tell its caller what came of it. Raises nothing that is the caller's to know."""

    @abstractmethod
    async def _load(self, wanted: L, slot: ReplySlot[None]) -> None:
        """Go on from this, and answer when that is durable."""

    @abstractmethod
    def _abandon(self, invocation: Invocation) -> None:
        """The caller has gone."""

    @abstractmethod
    def _closed(self) -> Unavailable:
        """What callers are told when no more calls are taken."""

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
        """Whether the call comes from the one that is served, and would wait for its end."""
        running, turns = self._running, invocation.context.get(OPEN_TURNS, ())
        return running is not None and any(turn.call is running.invocation for turn in turns)

    def _watch_time(self, invocation: Invocation) -> None:
        if invocation.deadline < math.inf:
            left_s = max(invocation.deadline - anyio.current_time(), 0.0)
            self.context.after(left_s, TimeUp(invocation=invocation), key=invocation)

    def _withdraw(self, invocation: Invocation) -> Call | None:
        """Take back a call that waits, or shares another's. Who shares the call of one that waits takes its place."""
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


# One job for everything that is served: starting a job costs more than the messages of a plain turn.


class SerialQueue:
    """What an actor has to do, in a job that waits while that is nothing."""

    def __init__(self, name: str, take: Callable[[], Awaitable[None] | None]) -> None:
        """`name`: of the job. `take` gives the next thing to do, None when there is none."""
        self._name = name
        self._take = take
        self.busy = False
        """Whether something is done, or is about to be."""
        self._beside = 0
        self._called: anyio.Event | None = None
        self._waiting: list[Callable[[], None]] = []

    def wake(self, context: Context) -> None:
        """There is something to do."""
        self.busy = True
        if self._called is None:
            self._called = anyio.Event()
            context.job(self._work, name=self._name)
        self._called.set()

    def begin_beside(self) -> None:
        """Something else begins that is to be over before there is nothing left to do. Needs one `end_beside`."""
        self._beside += 1

    def end_beside(self) -> None:
        """It is over."""
        self._beside -= 1
        self._tell()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Call it once when there is nothing left to do, perhaps at once."""
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
