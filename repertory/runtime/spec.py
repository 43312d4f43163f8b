"""Child specs and supervisor settings: which children, and what to do when one ends. Frozen data, in OTP's words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Never, Protocol

from msgspec import Struct

from repertory.errors import Invalid
from repertory.runtime.mailbox import MailboxSettings
from repertory.runtime.message import Next


class Behaviour(Protocol):
    """The result of a factory: an `Actor` of any messages."""

    def handle(self, message: Never, /) -> Awaitable[Next]: ...

    async def on_start(self) -> None: ...


class Restart(Enum):
    """The ends after which a child is started again."""

    PERMANENT = "permanent"
    """The child is started again after every end."""
    TRANSIENT = "transient"
    """The child is started again unless it ended for the reason `Normal` or `Shutdown`."""
    TEMPORARY = "temporary"
    """The child is never started again, not even when a sibling's end took it down."""


class Strategy(Enum):
    """The siblings that are restarted with a child."""

    ONE_FOR_ONE = "one_for_one"
    """No sibling is restarted."""
    ONE_FOR_ALL = "one_for_all"
    """All siblings are restarted."""
    REST_FOR_ONE = "rest_for_one"
    """The siblings that were started after the child are restarted."""


_MAILBOX = MailboxSettings()


class ChildSpec(Struct, frozen=True, kw_only=True):
    """One child of a supervisor.

    Attributes:
        restart: The ends after which it is started again.
        mailbox: The settings of its mailbox.
    """

    name: str
    """The child's name, unique among the supervisor's children, without `/`."""
    factory: Callable[[], Behaviour]
    """Makes a new actor for each incarnation. It must neither fail nor take long: such work belongs in `on_start`."""
    restart: Restart = Restart.PERMANENT
    mailbox: MailboxSettings = _MAILBOX
    start_timeout_s: float = 10.0
    """The most seconds of `on_start`."""
    stop_timeout_s: float = 5.0
    """The most seconds in which a stopping actor handles queued messages; `on_stop` then has as many again."""

    def __post_init__(self) -> None:
        if not self.name or "/" in self.name:
            raise Invalid("a child's name is not empty and has no slash", name=self.name)


class Backoff(Struct, frozen=True, kw_only=True):
    """The delay before a restart: full jitter, a random time up to `min(limit_s, base_s * 2 ** failures)`.

    Attributes:
        base_s: Seconds after the first failure, at most.
        limit_s: The most seconds.
    """

    base_s: float = 0.1
    limit_s: float = 30.0
    healthy_s: float = 60.0
    """After running this long, a child's earlier failures no longer count."""


class SupervisorSettings(Struct, frozen=True, kw_only=True):
    """The treatment of children by their supervisor.

    Attributes:
        strategy: The siblings that are restarted with a child.
        period_s: Seconds in which restarts are counted.
        backoff: The delay before a restart.
    """

    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int = 5
    """Restarts, of all children together, that are allowed within `period_s`; one more and the supervisor gives up."""
    period_s: float = 30.0
    failures_max: int = 8
    """Failures of one child without a healthy run after which the supervisor gives up, at any distance in time."""
    backoff: Backoff = Backoff()
    stop_together: bool = False
    """True stops all children at once, not one after the other in reverse order: for many alike that need no order."""
