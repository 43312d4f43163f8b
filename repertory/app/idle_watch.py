"""Looking now and then for sessions that nobody uses any more.

State: none. Fails: with the host, whose look it takes; it is then started again. Pace: its own clock.
Supervised by the root.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from repertory.runtime.actor import Actor
from repertory.runtime.next import Next, carry_on
from repertory.runtime.spec import ChildSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LookForIdle:
    """Time to look."""


class IdleWatch(Actor[LookForIdle]):
    """Calls `look` every `period_s`."""

    def __init__(self, period_s: float, look: Callable[[], Awaitable[None]]) -> None:
        self._period_s = period_s
        self._look = look

    async def on_start(self) -> None:
        self.context.every(self._period_s, LookForIdle())

    async def handle(self, message: LookForIdle) -> Next:
        await self._look()
        return carry_on()


def idle_watch_spec(period_s: float, look: Callable[[], Awaitable[None]]) -> ChildSpec:
    """The child spec of a watch."""
    return ChildSpec(name="idle watch", factory=lambda: IdleWatch(period_s, look))
