"""What the conversation of a session is asked by the agent, before each model call and at the end of a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from repertory.core.window.gauge import Beside
from repertory.runtime.message import Ask

if TYPE_CHECKING:
    from repertory.actors.mirror import Draft
    from repertory.core.budget import Budget
    from repertory.core.journal.image import Image
    from repertory.core.journal.records import ViewChanged
    from repertory.core.messages import Message
    from repertory.core.window.plan import WindowPlan
    from repertory.errors import ContextWindowOverflowException


@dataclass(frozen=True, slots=True)
class Entry:
    """One message with the sequence number of its record."""

    seq: int
    message: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the model is shown now, and the records that say so when it changed. Nobody edits the list."""

    messages: list[Message]
    views: tuple[ViewChanged, ...] = ()
    undecided: bool = False
    """Something is being decided: ask `Settle`, then the same again."""
    tokens: int | None = None
    """What a request with these messages takes, where that is measured."""
    count: bool = False
    """It may be too much: have the model count it, and say `Counted`."""
    misnamed: bool = False
    """The journal names another manager than the one that decides: say `NameManager` with what is stored next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadView(Ask[Shown]):
    """Start from this image; answers with what the model is shown."""

    image: Image


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCall(Ask[Shown]):
    """Take in what was added since the last question; answers with what to send to the model."""

    added: tuple[Entry, ...]
    beside: Beside = field(default_factory=Beside)
    budgets: tuple[Budget, ...] = ()
    """What is decided from now on counts towards them."""
    again: bool = False
    """It was asked before, and something was undecided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Ask[Shown]):
    """The model has counted what the last answer showed."""

    tokens: int | None
    """None when it could not: the estimate stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceView(Ask[Shown]):
    """The model refused for length: shorten by at least half of what is missing by estimate, as far as that goes.
    Errors: `ContextWindowOverflowException` when nothing more can be hidden.
    """

    error: ContextWindowOverflowException
    before: int = 0
    """How often that was done for this call of the model already."""
    again: bool = False
    """It was asked before, and something was undecided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidy(Ask[Shown]):
    """The turn is ending: take in what was added and tidy up. What is begun ahead of need goes on behind its answer."""

    added: tuple[Entry, ...]
    budgets: tuple[Budget, ...] = ()
    """What is decided from now on counts towards them."""
    again: bool = False
    """It was asked before, and something was undecided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameManager(Ask[Shown]):
    """Something is about to be stored: have the journal name the manager that decides from this commit on."""

    added: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EditShown(Ask[Shown]):
    """Callbacks of hooks have edited what is shown: show that. An edit that makes no conversation is logged."""

    added: tuple[Entry, ...]
    draft: Draft
    """What was added since it was begun stays behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle(Ask[None]):
    """Answered when nothing is undecided any more. Whoever stops waiting changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceShown(Ask[Shown]):
    """These messages say something else now, and always have."""

    instead: Mapping[int, Message]
    """By sequence number. They keep the tool uses and tool results of the originals."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decided:
    """The conversation's own: a decision was made, or could not be."""

    shown: Sequence[Message]
    """What was shown when it was begun."""
    plan: WindowPlan | None = None
    error: Exception | None = None

    def stands(self, shown: Sequence[Message]) -> bool:
        """Whether what is shown still begins with what the plan was made for."""
        return len(shown) >= len(self.shown) and all(
            now is then or now == then for now, then in zip(shown, self.shown, strict=False)
        )


ConversationMessage: TypeAlias = (
    "LoadView | PrepareCall | Counted | ReduceView | Tidy | NameManager | EditShown | Settle | ReplaceShown | Decided"
)
