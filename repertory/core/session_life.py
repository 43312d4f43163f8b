"""The life of a session in a process, as a table, and the one function that says what to do with it next.

                              .---- stop (it ended, nobody needs it) ----------.
                              |                                                v
    absent --start--> starting --started--> active --stop------------------> stopping --stopped--> absent
                              |             |    ^                             ^
                              |           pause  resumed                       |
                              |             v    |                             |
                              '-- stop    pausing ----------- stop ------------+
                                          |    ^                               |
                                    released  resume                           |
                                          v    |                               |
                                          paused ------------ stop ------------'

An active session is owned by this process. A paused one is not: its actors live, and others may have it meanwhile.
While it is `pausing` it is being released, or acquired again: only its persister knows whether it is owned. A session
that nobody uses is idle while it is active.

What is done for a session may be cut off at any time: a caller is cancelled, its event loop ends, a store refuses.
Nothing notes that. `next_step` looks at what is there, after each change and at each tick of the host, and so the next
one to look finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from repertory.errors import Invalid


class SessionState(StrEnum):
    """The states of a session in a process."""

    ABSENT = "absent"
    STARTING = "starting"
    ACTIVE = "active"
    PAUSING = "pausing"
    PAUSED = "paused"
    STOPPING = "stopping"


class SessionEvent(StrEnum):
    """The events that move a session from one state to the next."""

    START = "start"
    STARTED = "started"
    PAUSE = "pause"
    RELEASED = "released"
    RESUME = "resume"
    RESUMED = "resumed"
    STOP = "stop"
    STOPPED = "stopped"


TRANSITIONS: Final[Mapping[tuple[SessionState, SessionEvent], SessionState]] = MappingProxyType(
    {
        (SessionState.ABSENT, SessionEvent.START): SessionState.STARTING,
        (SessionState.STARTING, SessionEvent.STARTED): SessionState.ACTIVE,
        (SessionState.STARTING, SessionEvent.STOP): SessionState.STOPPING,
        (SessionState.ACTIVE, SessionEvent.PAUSE): SessionState.PAUSING,
        (SessionState.ACTIVE, SessionEvent.STOP): SessionState.STOPPING,
        (SessionState.PAUSING, SessionEvent.PAUSE): SessionState.PAUSING,
        (SessionState.PAUSING, SessionEvent.RELEASED): SessionState.PAUSED,
        (SessionState.PAUSING, SessionEvent.RESUME): SessionState.PAUSING,
        (SessionState.PAUSING, SessionEvent.RESUMED): SessionState.ACTIVE,
        (SessionState.PAUSING, SessionEvent.STOP): SessionState.STOPPING,
        (SessionState.PAUSED, SessionEvent.RESUME): SessionState.PAUSING,
        (SessionState.PAUSED, SessionEvent.STOP): SessionState.STOPPING,
        (SessionState.STOPPING, SessionEvent.STOP): SessionState.STOPPING,
        (SessionState.STOPPING, SessionEvent.STOPPED): SessionState.ABSENT,
    }
)


class SessionMachine(Struct, eq=False, kw_only=True):
    """The state machine of one session: `step` alone changes the state. Other threads may read it."""

    state: SessionState = SessionState.ABSENT

    def step(self, event: SessionEvent) -> None:
        """Move on as the table says. Errors: `Invalid` when it has no such step: an error of this package."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise Invalid("no such step in a session's life", state=self.state.value, happening=event.value)
        self.state = after


class Unused(Enum):
    """The treatment of a session after its last user has left."""

    KEEP = "keep"
    """It stays active until its time is over, or another process asks for it."""
    PAUSE = "pause"
    """It is released, and its actors stay until their time is over."""
    STOP = "stop"


class SessionFacts(Struct, frozen=True, gc=False):
    """The facts that decide the next step for a session."""

    state: SessionState
    used: bool
    """True if somebody uses it, or waits to use it."""
    alive: bool = True
    """True if its actors run, or are being restarted."""
    fits: bool = True
    """True if its actors, which nobody uses now, can serve whoever waits."""
    unused: Unused = Unused.KEEP
    over: bool = False
    """True if it shall end once nobody uses it: its time is over, or another process asks for it."""
    closing: bool = False
    """True if it shall end although it is used: its host shuts down."""


class SessionStep(Enum):
    """The things that a host does with a session."""

    NOTHING = "nothing"
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"


def next_step(facts: SessionFacts) -> SessionStep:
    """The next step for a session that nobody else works on."""
    match facts.state:
        case SessionState.STARTING | SessionState.STOPPING:  # Whoever began it was cut off.
            return SessionStep.STOP
        case SessionState.ABSENT:
            return SessionStep.START if facts.used and not facts.closing else SessionStep.NOTHING
        # Before everything else that lives: a host that shuts down waits for no user.
        case _ if facts.closing:
            return SessionStep.STOP
        # Before `over`: a session in use is not given up, whoever asks.
        case SessionState.ACTIVE if facts.used:
            return SessionStep.NOTHING if facts.alive and facts.fits else SessionStep.STOP
        case SessionState.ACTIVE if facts.unused is Unused.PAUSE and not facts.over:
            return SessionStep.PAUSE
        case SessionState.ACTIVE:
            return SessionStep.STOP if facts.over or facts.unused is Unused.STOP else SessionStep.NOTHING
        case SessionState.PAUSING | SessionState.PAUSED if facts.used:
            return SessionStep.RESUME if facts.fits else SessionStep.STOP
        case _ if facts.over:
            return SessionStep.STOP
        # Begun and cut off: only the persister knows how far it came, so it is asked once more.
        case SessionState.PAUSING:
            return SessionStep.PAUSE
        case SessionState.PAUSED:
            return SessionStep.NOTHING
