"""Exceptions that are no `Exception`: which end the running task or the program, and which are failures of its code.

A cancellation belongs to a task that is being cancelled. One that comes out of somebody's code while nobody cancels the
running task, as from an asyncio task that several share, is a failure of that code like any other. So is a library's
own `BaseException`, such as a panic of an extension module.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import cast

import anyio

from repertory.runtime.waker import cancelled_natively


class ForeignFailure(Exception):
    """A failure that is no `Exception`, as one. Its `__cause__` is what was raised."""

    def __init__(self, raised: BaseException) -> None:
        name = type(raised).__name__  # What a cancellation says names tasks of the event loop.
        cancelled = _loop_runs() and isinstance(raised, anyio.get_cancelled_exc_class())
        text = f"{name}, which nobody asked for" if cancelled else name
        with suppress(Exception):  # A stranger's `__str__` may raise.
            text = text if cancelled else f"{name}: {raised}"
        super().__init__(text)
        self.__cause__ = raised

    def __repr__(self) -> str:
        return str(self) if self.__cause__ is None else repr_of(self.__cause__)


def repr_of(error: BaseException) -> str:
    """The `repr` of a user's error; of one whose own raises, the name of its class."""
    with suppress(Exception):
        return repr(error)
    return type(error).__name__


def failure_of(error: BaseException) -> Exception:
    """The failure that code raised which may be a user's: an `Exception` itself, anything else as `ForeignFailure`.

    Raises:
        BaseException: The same error, if it is no failure: an interrupt or exit of the program, a cancellation of the
            running task, or the end of a coroutine whose event loop is gone.
    """
    if isinstance(error, Exception):
        return error
    if ends_program(error) or (_has(error, anyio.get_cancelled_exc_class()) and being_cancelled()):
        raise error
    return ForeignFailure(error)


def being_cancelled() -> bool:
    """True if a scope around the running code is cancelled, or its task natively."""
    # anyio has no function for "is this scope cancelled"; its documentation names this deadline as the sign.
    return anyio.current_effective_deadline() == -math.inf or cancelled_natively()


def ends_program(error: BaseException) -> bool:
    """True for an interrupt or exit, alone or in a group, and for everything where no event loop runs."""
    # Without a loop a coroutine is being closed by the garbage collector, and its `GeneratorExit` must go on.
    return _has(error, (KeyboardInterrupt, SystemExit)) or not _loop_runs()


def _loop_runs() -> bool:
    try:
        return bool(anyio.get_cancelled_exc_class())
    except anyio.NoEventLoopError:
        return False


def _has(error: BaseException, kind: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_has(one, kind) for one in cast("BaseExceptionGroup[BaseException]", error).exceptions)
    return isinstance(error, kind)
