"""A supervisor: an ordinary actor whose only work is its children. `children.py` decides about those that end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias, assert_never

from msgspec import Struct

from repertory.errors import RepertoryError
from repertory.runtime.actor import Actor
from repertory.runtime.message import Ask, Next, ReplySlot, carry_on, refuse
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec, SupervisorSettings


class StartChild(Struct, Ask[ActorRef[object]], frozen=True, kw_only=True):
    """Start a child after the others; answers when it has started.

    Raises:
        StartFailed: If the child failed as it started. Read its `__cause__`.
        AlreadyExists: If there is a child of that name. Choose another name, or stop that child first.
        ActorDead: If the supervisor is stopping. Start nothing more there.
    """

    spec: ChildSpec


class StopChild(Struct, Ask[None], frozen=True, kw_only=True):
    """Stop a child in order and forget it; answers when it has ended.

    Raises:
        NotFound: If there is no child of that name. Check the name.
    """

    name: str


SupervisorMessage: TypeAlias = StartChild | StopChild


class Supervisor(Actor[SupervisorMessage]):
    """Starts its children in order, restarts them as the settings say, stops them in reverse order.

    If one of the first children does not start, neither does the supervisor, and those before it are stopped again.

    Args:
        children: The first children, in starting order.
        settings: The settings for its children; None for the defaults.
    """

    def __init__(self, children: Sequence[ChildSpec] = (), settings: SupervisorSettings | None = None) -> None:
        self._first = children
        self._settings = settings or SupervisorSettings()

    async def on_start(self) -> None:
        """Start the first children, in order."""
        self.context.supervise(self._settings)
        for spec in self._first:
            await self.context.start_child(spec)

    def handle_now(self, message: SupervisorMessage) -> Next:
        """Begin to start or stop a child; the answer comes when that is done."""
        match message:
            case StartChild(spec=spec):
                return self._start(spec)
            case StopChild(name=name):
                return self._stop(name)
            case _:
                assert_never(message)

    def _start(self, spec: ChildSpec) -> Next:
        """Start the child without waiting here, so that a slow start does not block the mailbox."""
        # Deferred before the child begins: a start that fails in this very step already needs the slot.
        slot: ReplySlot[ActorRef[object]] = self.context.defer()
        try:
            ref = self.context.supervision.begin(spec, lambda error: slot.fail(error) if error else slot.reply(ref))
        except RepertoryError as error:
            return refuse(error)
        return carry_on()

    def _stop(self, name: str) -> Next:
        slot: ReplySlot[None] = self.context.defer()
        try:
            self.context.supervision.end(name, partial(slot.reply, None))
        except RepertoryError as error:
            return refuse(error)
        return carry_on()
