"""How a store takes in what is said: the setting, with what it leaves out filled in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from repertory.app.extraction_triggers import (
    ExtractionTrigger,
    ExtractionTriggerContext,
    IntervalTrigger,
    InvocationTrigger,
)
from repertory.app.extractors import ExtractionContext, Extractor, ask_extractor
from repertory.app.model_extractor import ModelExtractor
from repertory.core.memory.extracting import ExtractionResult
from repertory.core.memory.message_filter import MemoryMessageFilter
from repertory.core.memory.options import Options, read_options
from repertory.errors import Invalid

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
