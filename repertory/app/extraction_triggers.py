"""When a store's extraction runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from repertory.errors import Invalid


@dataclass(frozen=True, slots=True)
class ExtractionTriggerContext:
    """What a trigger works with."""

    agent: Any
    """The `Agent` whose conversation is extracted. A trigger may add hooks to it."""
    fire: Callable[[], None]
    """Has the store take in what it has not got yet. It returns at once; `MemoryManager.flush` waits for the end."""


class ExtractionTrigger(ABC):
    """When a store takes in what was said since the last time. Subclass it for a moment of your own.

    A trigger that never fires never extracts; what it has left is taken in by `MemoryManager.flush`.
    """

    name: str = "custom"
    """In the log."""
    every: int | None = None
    """How many turns there are between two extractions; None when only `fire` says so. Turns are counted in the
    journal, so the count goes on after a restart."""

    @abstractmethod
    def attach(self, context: ExtractionTriggerContext) -> None:
        """Have the agent's hooks call `context.fire()`. Called once for each store and agent that use this trigger."""


class InvocationTrigger(ExtractionTrigger):
    """After every turn. With a `ModelExtractor`, that is a model call a turn, behind the answer."""

    name = "invocation"
    every = 1

    def attach(self, context: ExtractionTriggerContext) -> None:
        """Nothing to do: the turns are counted."""
        del context


class IntervalTrigger(ExtractionTrigger):
    """After every `turns` turns; what was said between is taken in with them. Errors: `Invalid` for no such number."""

    name = "interval"

    def __init__(self, turns: int) -> None:
        given = cast("object", turns)
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise Invalid(f"IntervalTrigger: turns must be a positive integer, got {given}")
        self.every = given

    def attach(self, context: ExtractionTriggerContext) -> None:
        """Nothing to do: the turns are counted."""
        del context
