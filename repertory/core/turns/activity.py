"""The activity of an agent, graph or swarm in a session: one value, made by one function, and shown by every face.

Facts come from what is alive in a process, from the end of a journal, or from both. `runtime.look()`, metrics, the
inspector, `repertory top`, `session.pending()` and HTTP print the same words.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from msgspec import Struct

from repertory.core.journal.fold import is_answer
from repertory.core.journal.pending_tools import PendingTools, TurnState
from repertory.core.messages import is_stopped


class Activity(StrEnum):
    """The activities. If several hold, the first one counts."""

    STORE = "store"
    """It waits for its store, which opens it, commits, or takes nothing."""
    RUNS = "runs"
    """A turn or run is under way."""
    ASKS = "asks"
    """It waits for a person, whose responses go on with it."""
    CUT_SHORT = "cut short"
    """It has a turn without an answer, which failed or was stopped; a call without a prompt goes on with it."""
    TOOL = "waits for a tool"
    """It has tools whose results come later, and its turns are over."""
    IDLE = "idle"
    """It is alive, and nothing is to be done."""
    PAUSED = "paused"
    """It is released for others, and kept warm for its next call."""
    OWNED = "owned"
    """Another process has it, and nothing is to be done."""
    STORED = "stored"
    """No process has it, and nothing is to be done."""


AT_REST = frozenset((Activity.IDLE, Activity.PAUSED, Activity.OWNED, Activity.STORED))
ALIVE = tuple(each for each in Activity if each not in (Activity.OWNED, Activity.STORED))
"""The activities of what is alive in a process."""


class ActivityFacts(Struct, frozen=True, kw_only=True, gc=False):
    """The facts that decide an activity."""

    behind: bool = False
    """True if it waits for its store."""
    runs: bool = False
    asks: bool = False
    cut_short: bool = False
    """True if a turn or run has begun and is not over."""
    tools: bool = False
    """True if tools have results that come later."""
    alive: bool = False
    """True if its actors run in this process."""
    paused: bool = False
    owned: bool = False
    """True if a process owns it."""


def activity_of(facts: ActivityFacts) -> Activity:
    """The activity."""
    if facts.behind:
        return Activity.STORE
    if facts.runs:
        return Activity.RUNS
    if facts.asks:
        return Activity.ASKS
    if facts.cut_short:  # Its owner, elsewhere, may be in the middle of it.
        return Activity.RUNS if facts.owned and not facts.alive else Activity.CUT_SHORT
    if facts.tools:
        return Activity.TOOL
    if facts.alive:
        return Activity.PAUSED if facts.paused else Activity.IDLE
    return Activity.OWNED if facts.owned else Activity.STORED


def agent_facts(turn: PendingTools | TurnState, deferred: Collection[object], *, untold: bool = False) -> ActivityFacts:
    """The facts of an agent's conversation. `deferred`: the tools whose results come later. `untold`: some have come,
    and a turn is about to tell them.
    """
    last, responses = turn.last_message if isinstance(turn, TurnState) else turn.last, turn.responses
    return ActivityFacts(
        asks=bool(turn.questions) and any(one.id not in responses for one in turn.questions),
        cut_short=last is not None and (not is_answer(last) or is_stopped(last)),
        tools=bool(deferred) or untold,
    )
