"""Triggers of numbered snapshots: their arguments, and a ready-made trigger."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from repertory.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from repertory.core.messages import Json, Message
    from repertory.core.state import AgentState

SaveLatestOn = Literal["message", "invocation", "never", "trigger"]
SAVE_LATEST_ON: tuple[SaveLatestOn, ...] = ("message", "invocation", "never", "trigger")
"""The times to save the latest snapshot: after each message, each turn, or only when a trigger fires (two names)."""

MultiAgentSaveLatestOn = Literal["node", "invocation"]
MULTI_AGENT_SAVE_LATEST_ON: tuple[MultiAgentSaveLatestOn, ...] = ("node", "invocation")
"""The times at which the snapshot of a graph or swarm is saved: after each node, or when a run ends."""


class EndedTurn(Struct, frozen=True, kw_only=True):
    """A turn that has just ended. Read-only."""

    turns: int
    """All turns begun, this one included."""
    messages: Sequence[Message]
    """The messages shown to the model from now on."""
    state: AgentState


class AgentData(Mapping[str, object]):
    """The agent as a trigger sees it: copies of `messages` and `state`, as attributes and as keys."""

    def __init__(self, messages: list[Message], state: Json) -> None:
        self.messages = messages
        self.state = state

    def __getitem__(self, key: str) -> object:
        if key not in ("messages", "state"):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(("messages", "state"))

    def __len__(self) -> int:
        return 2


@dataclass(frozen=True, slots=True)
class SnapshotEvery:
    """A trigger: fires after every `turns` turns, or `seconds` seconds after the last snapshot, whichever comes first.

    `turns` counts the session's turns; without a snapshot, `seconds` count from the session's start.

    Args:
        turns: A snapshot after every so many turns of the session; None does not count turns.
        seconds: A snapshot so many seconds after the last one; None does not look at the time.

    Raises:
        Invalid: If neither is given, or one is not positive. Correct the argument.
    """

    turns: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.turns is None and self.seconds is None:
            raise Invalid("say after how many turns or seconds")
        if self.turns is not None and self.turns < 1:
            raise Invalid("turns is at least 1", got=self.turns)
        if self.seconds is not None and not self.seconds > 0:
            raise Invalid("seconds is more than 0", got=self.seconds)

    def due(self, turn_count: int, passed_s: float) -> bool:
        """True if a snapshot is due.

        Args:
            turn_count: How many turns the session has had.
            passed_s: Seconds since the last one, or since the session's start.
        """
        by_turns = self.turns is not None and turn_count % self.turns == 0
        return by_turns or (self.seconds is not None and passed_s >= self.seconds)


Trigger: TypeAlias = "Callable[..., bool | Awaitable[bool]] | SnapshotEvery"
"""Decides whether a snapshot is due. Called with those of `PARAMETERS` that its signature names, as keywords."""

PARAMETERS = ("turn_count", "last_snapshot_at", "agent_data")


def wanted_by(trigger: Callable[..., object]) -> frozenset[str]:
    """The `PARAMETERS` that a trigger accepts, by name or by `**kwargs`. Errors: `Invalid` when it needs others."""
    try:
        parameters = inspect.signature(trigger).parameters.values()
    # Builtins and C code have no signature that can be read; they get everything.
    except (TypeError, ValueError):
        return frozenset(PARAMETERS)
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return frozenset(PARAMETERS)
    positional = inspect.Parameter.POSITIONAL_ONLY
    named = {each.name for each in parameters if each.kind is not positional}
    needed = [
        each.name
        for each in parameters
        if each.default is inspect.Parameter.empty
        and each.kind is not inspect.Parameter.VAR_POSITIONAL
        and (each.name not in PARAMETERS or each.kind is positional)
    ]
    if needed:
        raise Invalid(f"a snapshot trigger takes no more than {', '.join(PARAMETERS)} as keywords", needs=needed)
    return frozenset(named & set(PARAMETERS))
