"""An actor that records its messages and answers as the test says."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

import anyio

from repertory.runtime.actor import Actor, Context
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Next, carry_on, reply
from repertory.runtime.ref import ActorRef, Down
from repertory.runtime.spec import ChildSpec, Restart

T = TypeVar("T")

_NOBODY_ASKED = object()


class Probe:
    """`probe = Probe(); ref = await system.start(probe.spec("writer"))`, then `await probe.expect(Write)`.

    `answer` gives the reply to each message; without it asks stay open until their deadline.

    Args:
        answer: Gives the reply to each message; None leaves asks open until their deadline.
    """

    def __init__(self, answer: Callable[[object], object] | None = None) -> None:
        self._answer = answer
        self._unseen: deque[object] = deque()
        self._arrival = anyio.Event()
        self.context: Context | None = None
        """The context of the running incarnation."""
        self.received: list[object] = []
        """The messages so far, `Down`s included, oldest first."""
        self.stopped: list[ExitReason] = []
        """The exit reasons of its incarnations, where `on_stop` was run."""

    def spec(self, name: str = "probe", mailbox: MailboxSettings | None = None) -> ChildSpec:
        """A child spec whose actor reports here."""
        settings = mailbox or MailboxSettings()
        return ChildSpec(name=name, factory=lambda: _ProbeActor(self), mailbox=settings, restart=Restart.PERMANENT)

    def watch(self, ref: ActorRef[object]) -> None:
        """Record the `Down` of that actor too. Call it after the probe was started.

        Args:
            ref: The actor.
        """
        assert self.context is not None, "the probe has not been started"
        self.context.watch(ref)

    async def expect(self, kind: type[T], *, timeout_s: float = 5.0) -> T:
        """The next message that no `expect` has returned yet.

        Args:
            kind: The class of the message.
            timeout_s: Seconds to wait for it.

        Raises:
            AssertionError: If it is not a `kind`.
            TimeoutError: If none comes.
        """
        with anyio.fail_after(timeout_s):
            while not self._unseen:
                await self._arrival.wait()
        message = self._unseen.popleft()
        assert isinstance(message, kind), f"expected {kind.__name__}, received {message!r}"
        return message

    async def expect_nothing(self, for_s: float) -> None:
        """Wait, and check that no message arrives that no `expect` has returned.

        Args:
            for_s: Seconds to wait.

        Raises:
            AssertionError: If one arrives. The test fails.
        """
        with anyio.move_on_after(for_s):
            while not self._unseen:
                await self._arrival.wait()
        assert not self._unseen, f"expected nothing, received {list(self._unseen)!r}"

    def record(self, message: object) -> object:
        """Record a message; returns the answer to it.

        Args:
            message: The message.
        """
        self.received.append(message)
        self._unseen.append(message)
        arrival, self._arrival = self._arrival, anyio.Event()
        arrival.set()
        return _NOBODY_ASKED if self._answer is None else self._answer(message)


class _ProbeActor(Actor[object]):
    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def on_start(self) -> None:
        self._probe.context = self.context

    async def handle(self, message: object) -> Next:
        answer = self._probe.record(message)
        if answer is not _NOBODY_ASKED:
            return reply(answer)
        if self.context.asked:
            self.context.defer()
        return carry_on()

    async def on_down(self, down: Down) -> Next:
        self._probe.record(down)
        return carry_on()

    async def on_stop(self, reason: ExitReason) -> None:
        self._probe.stopped.append(reason)
