"""Runs an async context manager in a task of its own, so that its block may be left in another task than it was entered
in.

A task group and a cancel scope must end in the task that began them. Users cannot promise that: yield fixtures,
start-up callbacks and exit stacks enter a block in one task and leave it in another. So the block's content lives in a
host task, and the block only talks to it:

    entering task           host task                       leaving task
    enter() --------------> enters the hosted block
            <-------------- its value, or its error
                            waits                <--------- leave(error)
                            leaves the hosted block
                            ended                ---------> returns, or raises what leaving raised

The host task belongs to the event loop, and ends before it: on asyncio it is an ordinary task, which `asyncio.run`
cancels at its end; on trio it is a system task, which is cancelled when the main task has ended. When cancelled, it
leaves the hosted block as any cancelled task would.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar, cast

import anyio

from repertory.errors import Unavailable
from repertory.runtime.waker import runs_on_asyncio

if TYPE_CHECKING:
    import asyncio

    import trio

T = TypeVar("T")
HostWork: TypeAlias = Callable[[], Coroutine[object, object, None]]


class HostTask(Generic[T]):
    """Enters `block` in a task of its own, keeps it open, and leaves it there. Used once.

    The hosted block sees the context variables of the entering task. If it ends by itself with an error, the entering
    task is cancelled, as a task group cancels its body, and `leave` raises that error.
    """

    def __init__(self, block: AbstractAsyncContextManager[T], *, name: str, detached: bool = False) -> None:
        """`name`: the task's name in listings. `detached`: the block belongs to the event loop and to no task: it sees
        no context variables, and its errors are raised by `leave` alone.
        """
        self._block = block
        self._name = name
        self._detached = detached
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._begun = False
        self._leave_called = False
        self._let_go = False

    @property
    def begun(self) -> bool:
        """True if the block was entered, or is being entered."""
        return self._begun

    @property
    def over(self) -> bool:
        """True if the block was entered and has ended since."""
        return self._begun and self._ended.is_set()

    @property
    def left(self) -> bool:
        """True if `leave` was called."""
        return self._leave_called

    async def enter(self) -> T:
        """Enter the block; returns its value.

        If cancelled, it waits until the block is left again, and nothing runs any more. Errors: what entering raised;
        `Unavailable` in an event loop that is ending.
        """
        self._begun = True
        self._entered = anyio.Event()
        self._leaving = anyio.Event()
        self._ended = anyio.Event()
        asyncio_runs = runs_on_asyncio()
        self._owner: _Owner = _NoOwner() if self._detached else _AsyncioOwner() if asyncio_runs else _TrioOwner()
        self._task: _Task = _AsyncioTask() if asyncio_runs else _TrioTask()
        context = contextvars.Context() if self._detached else contextvars.copy_context()
        self._task.start(self._host, self._name, context, self._end)
        try:
            await self._entered.wait()
        except anyio.get_cancelled_exc_class() as cancelled:
            await self.leave(cancelled)
            raise
        if not self._value:
            await self.leave()
            raise Unavailable("the event loop is ending, and has cancelled the new task", task=self._name)
        return self._value[0]

    def leave_soon(self) -> None:
        """Begin to leave the block; `leave` waits for that, and raises what it raised."""
        self._let_go = True
        self._leaving.set()

    async def leave(self, error: BaseException | None = None) -> None:
        """Leave the block, from any task of the event loop, and wait until it has been left. A second call does
        nothing.

        `error`: what the caller's own block ended with. A cancellation is passed on to the hosted block; so is one that
        arrives during this wait, unless it is shielded, and it is raised at the end. Errors: what leaving raised, or
        what the hosted block ended with before.
        """
        if not self._leave_called:
            self._leave_called = True
            if isinstance(error, anyio.get_cancelled_exc_class()):
                self._task.cancel()
            else:
                self._leaving.set()
        interrupted: BaseException | None = None
        # In a loop: asyncio's own cancellation passes the shield, any number of times, and the block must be left all
        # the same.
        while not self._ended.is_set():
            try:
                with anyio.CancelScope(shield=True):
                    await self._ended.wait()
            except anyio.get_cancelled_exc_class() as cancelled:
                interrupted = cancelled
                self._task.cancel()
        # Before anything is raised: a cancellation that `interrupt` has sent would else hit code behind the block.
        await self._owner.let_go(error)
        failed, self._error = self._error, None
        if failed is not None:
            raise failed
        if interrupted is not None:
            raise interrupted

    async def _host(self) -> None:
        try:
            with self._task.scope:
                async with self._block as value:
                    self._value.append(value)
                    self._entered.set()
                    await self._leaving.wait()
        except BaseExceptionGroup as group:
            # Cancellations must reach the loop in this task, errors the task that leaves.
            cancelled, self._error = group.split(anyio.get_cancelled_exc_class())
            if cancelled is not None:
                raise cancelled from None
        except Exception as error:  # noqa: BLE001 - relayed: the leaving task raises it
            self._error = error
        finally:
            # In any case, also for an interrupt of the program: otherwise `leave` would wait for ever.
            self._end()
            if self._error is not None and self._value and not (self._leave_called or self._let_go):
                self._owner.interrupt()

    def _end(self) -> None:
        self._ended.set()
        self._entered.set()


class Apart(AbstractAsyncContextManager[T]):
    """A block in a task of its own: for generators that one task begins and another one closes."""

    def __init__(self, block: AbstractAsyncContextManager[T], *, name: str) -> None:
        self._task = HostTask(block, name=name)

    async def __aenter__(self) -> T:
        return await self._task.enter()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._task.leave(error)

    def end_soon(self) -> None:
        """Have the block left, though the code around it goes on; its errors are raised at the end of that code."""
        self._task.leave_soon()


class _Task(Protocol):
    """The host task, on one kind of loop."""

    @property
    def scope(self) -> AbstractContextManager[object]: ...

    def start(self, work: HostWork, name: str, context: contextvars.Context, ended: Callable[[], None]) -> None:
        """`ended` is called when the task has ended, if it may have done so before its first step."""
        ...

    def cancel(self) -> None: ...


class _Owner(Protocol):
    """The task that entered the block, on one kind of loop."""

    def interrupt(self) -> None:
        """Cancel the code inside the block, unless the task has ended."""
        ...

    async def let_go(self, error: BaseException | None) -> None:
        """Take the cancellation back, if there was one. `error`: what the task ended with."""
        ...


class _NoOwner:
    def interrupt(self) -> None: ...

    async def let_go(self, error: BaseException | None) -> None: ...


# ------------------------------------------------------------------------------------------------------------- asyncio

_running: set[object] = set()
"""A loop holds its tasks weakly; these must run until their loop ends, even if the entering task is gone."""


class _AsyncioTask:
    def __init__(self) -> None:
        self.scope: AbstractContextManager[object] = nullcontext()
        self._task: asyncio.Task[None] | None = None

    def start(self, work: HostWork, name: str, context: contextvars.Context, ended: Callable[[], None]) -> None:
        import asyncio

        self._task = asyncio.get_running_loop().create_task(work(), name=name, context=context)
        _running.add(self._task)
        self._task.add_done_callback(_running.discard)
        # For a task that is cancelled before its first step: asyncio runs none of its code, not even `finally`.
        self._task.add_done_callback(lambda _: ended())

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _AsyncioOwner:
    def __init__(self) -> None:
        import asyncio

        self._current = asyncio.current_task
        self._pause = asyncio.sleep
        self._task = asyncio.current_task()
        self._interrupted = False

    def interrupt(self) -> None:
        if self._task is not None and not self._task.done():
            # False if the task had ended meanwhile; then there is nothing to take back.
            self._interrupted = self._task.cancel()

    async def let_go(self, error: BaseException | None) -> None:
        if self._task is None or not self._interrupted or self._current() is not self._task:
            return
        self._interrupted = False
        cancelled = anyio.get_cancelled_exc_class()
        if not isinstance(error, cancelled):
            with suppress(cancelled):
                await self._pause(0)  # The cancellation may not have arrived yet.
        # Else `asyncio.timeout` and `TaskGroup` around the block take our cancellation for one of their own users.
        self._task.uncancel()


# ---------------------------------------------------------------------------------------------------------------- trio


class _TrioTask:
    def __init__(self) -> None:
        import trio

        self._scope = trio.CancelScope()
        self._spawn = trio.lowlevel.spawn_system_task

    @property
    def scope(self) -> AbstractContextManager[object]:
        return self._scope

    def start(self, work: HostWork, name: str, context: contextvars.Context, ended: Callable[[], None]) -> None:
        self._spawn(work, name=name, context=context)

    def cancel(self) -> None:
        self._scope.cancel()


class _Status(Protocol):
    """Trio's internal state of one cancel scope: that of the code between two `with CancelScope()`."""

    parent: _Status | None


_STATUS, _ACTIVATE = "_cancel_status", "_activate_cancel_status"


class _TrioOwner:
    """Trio has no public way to cancel the code inside a block, except by a scope that the same task must close. So
    such a scope is inserted, through trio's internals, only when there is something to cancel.
    """

    def __init__(self) -> None:
        import trio

        self._current = trio.lowlevel.current_task
        self._new_scope = trio.CancelScope
        self._task = trio.lowlevel.current_task()
        self._around: _Status = getattr(self._task, _STATUS)
        self._scope: trio.CancelScope | None = None

    def interrupt(self) -> None:
        inner: _Status | None = getattr(self._task, _STATUS)
        # The outermost scope inside of the block: the new one goes around it, so that everything in the block is
        # cancelled, and nothing else.
        while inner is not None and inner is not self._around and inner.parent is not self._around:
            inner = inner.parent
        if inner is None:
            return  # The task, or the scope around the block, has ended.
        scope = self._scope = self._new_scope()
        make = cast("Callable[..., _Status]", type(inner))
        status = make(scope=scope, parent=self._around)
        setattr(scope, _STATUS, status)
        if inner is self._around:
            getattr(self._task, _ACTIVATE)(status)
        else:
            inner.parent = status
        scope.cancel()

    async def let_go(self, error: BaseException | None) -> None:
        scope, self._scope = self._scope, None
        if scope is not None and self._current() is self._task:
            # Only in the task that it was put around: trio checks that scopes are closed in the order and the task of
            # their opening.
            scope.__exit__(None, None, None)
