"""What the memory of a session is asked to do: by the agent, tools and triggers, by whoever flushes it, by timers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from repertory.core.memory.flushed import StoreFlush
from repertory.core.messages import Json
from repertory.runtime.message import Ask

if TYPE_CHECKING:
    from repertory.actors.memory.recall import Recall
    from repertory.core.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded:
    """Turns are over, and what was said in them is on record."""

    turns: int
    last: int
    """Sequence number of the last message."""
    budgets: tuple[Budget, ...] = ()
    """Those of the call: what is extracted because of it counts towards them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fire:
    """A trigger of this store wants what was said taken in."""

    store: str
    budgets: tuple[Budget, ...] = ()
    """Those of the call from which it has fired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptMemories(Ask[int]):
    """Have these stored behind the turn; answers with how many were accepted when they are on their way to the journal.

    Errors: `LimitReached` when too many are on their way to one of the stores already; then none is accepted.
    """

    stores: tuple[str, ...]
    contents: tuple[str, ...]
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    key: str
    """What the call is known by: the same call is accepted once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushMemory(Ask[Mapping[str, StoreFlush]]):
    """Try everything that was said and accepted until now; answers, by store, when each has had its try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishMemory(Ask[None]):
    """Answered when everything that was begun is over, whichever way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipTo:
    """What stands in the journal up to there was said elsewhere, and is not taken in: it came with a snapshot."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecall:
    """Search, for a turn that will look at what is there in time."""

    recall: Recall


@dataclass(frozen=True, slots=True, kw_only=True)
class TryStoreAgain:
    """A store that has failed has rested long enough."""

    store: str


MemoryMessage: TypeAlias = (
    TurnEnded | Fire | AcceptMemories | FlushMemory | FinishMemory | SkipTo | RunRecall | TryStoreAgain
)
