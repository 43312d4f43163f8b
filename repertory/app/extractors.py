"""Extractors of any kind: what they are given, and how they are asked."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from repertory.backends.worker_threads import run_foreign
from repertory.core.memory.extracting import ExtractionResult, read_results
from repertory.errors import ExtractionFailed, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import Model
    from repertory.core.messages import Message

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
