"""How a store takes in what is said: the setting, when extraction runs, and how an extractor is asked."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from repertory.app.memory.model_extractor import ModelExtractor
from repertory.backends.worker_threads import run_foreign
from repertory.core.memory.extracting import ExtractionResult, read_results
from repertory.core.memory.message_filter import MemoryMessageFilter
from repertory.core.memory.options import Options, read_options
from repertory.errors import ExtractionFailed, Invalid, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.messages import Message

__all__ = [
    "Extraction",
    "ExtractionConfig",
    "ExtractionContext",
    "ExtractionResult",
    "ExtractionTrigger",
    "ExtractionTriggerContext",
    "Extractor",
    "IntervalTrigger",
    "InvocationTrigger",
    "MemoryMessageFilter",
    "ModelExtractor",
    "ask_extractor",
    "read_extraction",
]

DEFAULT_TURNS = 5
"""How many turns there are between two extractions of a store that does not say."""

Triggers: TypeAlias = "ExtractionTrigger | Sequence[ExtractionTrigger]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractionConfig(Options):
    """How a store takes in what is said. Works as attributes and as a mapping; what is None takes what is usual.

    `trigger`: one trigger or several, of which any may fire; usually every five turns. `extractor`: makes memories of
    messages, for the store's `add`; usually a `ModelExtractor` for a store that has only `add`, and none for one with
    `add_messages`, which is given the messages. `filter`: what is left out before; usually tool uses and their results.
    """

    trigger: Triggers | None = None
    extractor: Extractor | None = None
    filter: MemoryMessageFilter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The same with nothing left out."""

    triggers: tuple[ExtractionTrigger, ...]
    """Empty when that is what was given."""
    extractor: Extractor | None
    """None for a store that is given messages."""
    filter: MemoryMessageFilter


def read_extraction(given: object, *, has_add: bool, has_add_messages: bool) -> Extraction | None:
    """A store's `extraction`: None and False are none, True is the usual, else an `ExtractionConfig` or a mapping.

    Whether the store can work so is for the caller to check. Errors: `Invalid` for settings, triggers, extractors and
    filters that are none.
    """
    if given is None or given is False:
        return None
    config = ExtractionConfig() if given is True else read_options(ExtractionConfig, given, "extraction")
    extractor = config.extractor
    if extractor is None and has_add and not has_add_messages:
        extractor = ModelExtractor()
    if extractor is not None and not callable(getattr(extractor, "extract", None)):
        raise Invalid("an extractor has a method extract(messages, context)", got=type(extractor).__name__)
    return Extraction(
        triggers=_triggers(config.trigger),
        extractor=extractor,
        filter=read_options(MemoryMessageFilter, config.filter, "filter"),
    )


def _triggers(given: object) -> tuple[ExtractionTrigger, ...]:
    if given is None:
        return (IntervalTrigger(DEFAULT_TURNS),)
    triggers = cast("Sequence[object]", given) if isinstance(given, list | tuple) else (given,)
    for trigger in triggers:
        if not isinstance(trigger, ExtractionTrigger):
            raise Invalid("a trigger is an ExtractionTrigger: subclass it", got=type(trigger).__name__)
    return tuple(cast("Sequence[ExtractionTrigger]", triggers))


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


GRACE_S = 5.0
"""How long a synchronous extractor may still take once nobody wants its answer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractionContext:
    """Where the messages come from that an extractor is given."""

    agent: Any = None
    """The `Agent` that said them; None for a conversation that was left behind by a process that has ended."""
    agent_id: str | None = None
    """What their session calls it: for a node whose conversation is kept, `graph.node`."""
    model: Model | None = None
    """For extractors that were given none: the agent's `aux_model`, or else its model."""
    store_name: str | None = None
    """The store that the results go to."""
    said_at: Sequence[float | None] = ()
    """Epoch seconds: when each message was said, where that is known."""

    @property
    def default_model(self) -> Model | None:
        """The same as `model`."""
        return self.model


class Extractor(Protocol):
    """Says what of a conversation is worth remembering. A method that is not asynchronous runs in a worker thread."""

    def extract(
        self, messages: list[Message], context: ExtractionContext
    ) -> Awaitable[Sequence[ExtractionResult]] | Sequence[ExtractionResult]:
        """What is worth remembering, each as one memory; nothing when nothing is.

        It may be asked for the same messages again. What it raises keeps them for the next time.
        """
        ...


async def ask_extractor(
    extractor: Extractor, messages: Sequence[Message], context: ExtractionContext
) -> list[ExtractionResult]:
    """What an extractor gives, each once and none blank; nothing without asking when there are no messages.

    Errors: the extractor's own from `repertory.errors`; `ExtractionFailed` for anything else that it raises, which is
    the `__cause__`, and for results that are none. Cancellation waits for the thread of a synchronous extractor,
    for `GRACE_S` at most.
    """
    if not messages:
        return []
    extract: Any = extractor.extract
    try:
        if inspect.iscoroutinefunction(extract):
            given = await extract(list(messages), context)
        else:
            # In a tuple, since trio refuses threads that give something to be awaited.
            (given,) = await run_foreign(lambda: (extract(list(messages), context),), grace_s=GRACE_S)
            given = await given if inspect.isawaitable(given) else given
        return read_results(given)
    except RepertoryError:
        raise
    except Exception as error:
        name = type(extractor).__name__
        raise ExtractionFailed("the extractor raised an error", extractor=name, error=repr(error)) from error
