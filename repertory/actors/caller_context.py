"""Running a turn with the context variables of whoever called.

A session's turns run in one long-lived task, so without this, tools, hooks and models would see the context variables
of whoever opened the session, not those of the call: a request id, a tenant, a span.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from anyio.lowlevel import current_token

from repertory.actors.spending import BUDGETS, PAYER
from repertory.runtime.origin import ORIGIN, Origin

if TYPE_CHECKING:
    from repertory.actors.call import Invocation
    from repertory.core.budget import Budget
    from repertory.runtime.ref import ActorRef

T = TypeVar("T")


class OpenTurn(NamedTuple):
    """A turn on whose behalf code runs."""

    agent: ActorRef[object]
    call: Invocation
    """The call; compared by identity."""
    budget: Budget | None = None
    """What its caller has given it."""


OPEN_TURNS: ContextVar[tuple[OpenTurn, ...]] = ContextVar("repertory_open_turns", default=())
"""The turns in which the code that runs here was called, the innermost last. None of them ends before it does."""


_DEADLINE: ContextVar[tuple[object, float]] = ContextVar("repertory_deadline", default=(None, math.inf))
"""An event loop, and when by its clock the first of those turns' calls that were made there has had its time."""


def deadline() -> float:
    """When the first of the calls for which code runs here has had its time, by the event loop's clock."""
    loop, at = _DEADLINE.get()
    return at if at < math.inf and loop is current_token().native_token else math.inf


@types.coroutine
def in_context(context: Context, turn: OpenTurn, work: Coroutine[object, object, T]) -> Generator[object, object, T]:
    """Do the `work` of a turn so that each step of it, and every task that it starts, runs in `context`, which nobody
    else may use meanwhile.

    What the runtime must know of the running task stays what it is; only the trace is the caller's, if it has one.
    """
    context.run(_speak_for, ORIGIN.get(), turn)
    step: Callable[[], object] = partial(work.send, None)
    while True:
        try:
            waits_for = context.run(step)
        except StopIteration as done:
            return done.value
        try:
            step = partial(work.send, (yield waits_for))
        except BaseException as error:  # noqa: BLE001 - Whatever is thrown in here is for the work.
            step = partial(work.throw, error)


def _speak_for(here: Origin, turn: OpenTurn) -> None:
    """In the context of a caller: speak on behalf of the job that runs here."""
    ORIGIN.set(Origin(here.owner, here.waits, ORIGIN.get().trace or here.trace))
    OPEN_TURNS.set((*OPEN_TURNS.get(), turn))
    PAYER.set(turn.call.payer)
    if turn.call.deadline < deadline():
        _DEADLINE.set((current_token().native_token, turn.call.deadline))
    if turn.budget is not None and turn.budget not in BUDGETS.get():
        BUDGETS.set((*BUDGETS.get(), turn.budget))
