"""The graph of what running work waits for, made by looking at stacks of threads and at coroutines.

Nothing is noted while work runs. A look reads local variables of functions that are known to wait, such as
`Thread.join` and `asyncio.wait`. They are private to their libraries: where one is not as expected, there is no edge,
and so nothing is found. A blocking call with a timeout ends by itself, and is no edge either. Threads run on during a
look, so trust only what two looks one after the other have found.

Start with `look`.
"""

from __future__ import annotations

import concurrent.futures
import gc
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TypeAlias, cast

import anyio

from repertory.backends.worker_threads import call_in_thread
from repertory.core.waits import Waiting

_Found: TypeAlias = tuple[Iterable[Any], bool]
"""The things that are waited for, and True if the first of them is enough."""
WaitReader: TypeAlias = Callable[[Mapping[str, Any]], Sequence[object]]
"""A function that returns what a known function waits for, from its local variables."""
_NOTHING: _Found = ((), False)
_WRAPPERS = ("FutureIter", "coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
"""Types of `await` that have no attribute for what they await. The garbage collector knows it."""


class _KnownWait(NamedTuple):
    read: WaitReader
    outermost: bool


_KNOWN: dict[CodeType, _KnownWait] = {}


def know_wait(function: Callable[..., object], read: WaitReader, *, outermost: bool = False) -> None:
    """Have looks see the things that a function of ours waits for. Whoever has such a function calls this at import.

    `outermost`: in a thread's stack it counts in place of what it waits in.
    """
    _KNOWN[cast("FunctionType", function).__code__] = _KnownWait(read, outermost)


def look(start: object, others: Callable[[object], Sequence[object]]) -> dict[int, Waiting]:
    """The graph of all that `start` waits for, by `id()`. `others` gives what nodes wait for that are the caller's own.

    Empty in a Python without a global lock, where frames of other threads cannot be read safely.
    """
    graph: dict[int, Waiting] = {}
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return graph
    seen, ahead = _Look(others), [start]
    while ahead:
        node = ahead.pop()
        if id(node) in graph:
            continue
        try:
            found, first = seen.waits_of(node)
            on = [each for each in found if each is not None]
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):  # Another version; a set that changes.
            on, first = [], False
        graph[id(node)] = Waiting(of=node, on=tuple(map(id, on)), first=first)
        ahead += on
    return graph


class _Look:
    """A look at the graph, whose nodes are threads, their frames, futures, tasks, coroutines, and the caller's own."""

    def __init__(self, others: Callable[[object], Sequence[object]]) -> None:
        self._others = others
        self._frames: dict[int, FrameType] = getattr(sys, "_current_frames", dict)()  # CPython alone has it.
        self._frames.pop(threading.get_ident(), None)  # It does not wait, and would hold itself.

    def waits_of(self, node: Any) -> _Found:
        if isinstance(node, threading.Thread):
            return (self._of_thread(node),), False
        if isinstance(node, FrameType):
            return self._stack(node)
        if isinstance(node, concurrent.futures.Future):
            future = cast("concurrent.futures.Future[Any]", node)
            return _NOTHING if future.done() else self._future(future)
        if _is_future(node):
            return _NOTHING if node.done() else self._asyncio_future(node)
        if hasattr(node, "child_nurseries"):  # a task of trio
            return (node.coro,), False
        if hasattr(node, "unprotected_afn"):  # what a thread has asked trio to run
            return (self._in_tasks(node, "trio._threads", ("run", "run_system"), "self"),), False
        if _awaits(node):
            return self._coroutine(node)
        return self._others(node), False

    def _of_thread(self, thread: threading.Thread) -> FrameType | None:
        """The innermost frame of a thread that runs. The outermost one says whose it is: a new thread may have the
        number of one that ended before who joined that is awake.
        """
        frames = [*_outwards(self._frames.get(thread.ident or 0))]
        own = frames and frames[-1].f_code.co_name == "_bootstrap" and frames[-1].f_locals["self"] is thread
        return frames[0] if own or (frames and thread is threading.main_thread()) else None

    def _stack(self, innermost: FrameType) -> _Found:
        """The thing that a thread is blocked in. A sync call of ours is more than the future that it waits for."""
        found: _Found | None = None
        for frame in _outwards(innermost):
            here = self._frame(frame)
            if here is not None and frame.f_code in _KNOWN and _KNOWN[frame.f_code].outermost:
                return here
            found = here if found is None else found
        return found or _NOTHING

    def _coroutine(self, awaiting: Any) -> _Found:
        """The thing that the innermost `await` waits for, or a known one around it."""
        while awaiting is not None:
            kind = next((kind for kind in ("cr", "gi", "ag") if hasattr(awaiting, f"{kind}_frame")), None)
            if kind is None:
                return _NOTHING
            frame = getattr(awaiting, f"{kind}_frame")
            if frame is not None and (found := self._frame(frame)) is not None:
                return found
            awaiting = getattr(awaiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
            if type(awaiting).__name__ in _WRAPPERS:
                within = gc.get_referents(awaiting)
                awaiting = next((each for each in within if _is_future(each) or _awaits(each)), None)
            if _is_future(awaiting):
                return (awaiting,), False
        return _NOTHING

    def _frame(self, frame: FrameType) -> _Found | None:
        """The thing that a frame waits for; None if it is not a known one. Variables are read of known ones alone: up
        to Python 3.12, reading them keeps them alive as long as their frame.
        """

        def value(name: str) -> Any:
            return frame.f_locals[name]

        if (known := _KNOWN.get(frame.f_code)) is not None:
            return known.read(frame.f_locals), False
        if frame.f_code is call_in_thread.__code__:
            return (self._in_threads(value("work"), call_in_thread.__module__, "do", "work"),), False
        match _module(frame), frame.f_code.co_name:
            # Threads of the standard library: the arguments of the methods that block.
            case ("threading", "join") | ("concurrent.futures._base", "result" | "exception"):
                return _NOTHING if value("timeout") is not None else ((value("self"),), False)
            case ("concurrent.futures._base", "wait"):
                return _of_many(value("fs"), value("timeout"), first=value("return_when") != "ALL_COMPLETED")
            case ("concurrent.futures._base", "as_completed"):  # `pending`: those that it has not given yet
                return _of_many(value("pending"), value("timeout"), first=True)
            case ("asyncio.base_events", "run_until_complete"):  # a loop of the thread's own
                return (value("future"),), False
            case ("trio._threads", "_send_message_to_trio"):  # `trio.from_thread`; the task that it has there
                return (value("message_to_trio"),), False
            # Tasks of asyncio, anyio and trio: what their groups and gatherings hold.
            case ("asyncio.tasks", "_wait"):
                return _of_many(value("fs"), value("timeout"), first=value("return_when") != "ALL_COMPLETED")
            case ("asyncio.tasks", "wait_for"):  # Python 3.11 awaits a future of its own besides
                return (value("fut"),), False
            case ("asyncio.taskgroups", "__aexit__" | "_aexit") | ("anyio._backends._asyncio", "__aexit__"):
                return tuple(value("self")._tasks), False
            case ("trio._core._run", "_nested_child_finished"):
                return tuple(value("self").child_tasks), False
            # Their threads, each known by an object that the task and the thread share.
            case ("anyio._backends._asyncio", "run_sync_in_worker_thread"):
                return (self._in_threads(value("future"), "anyio._backends._asyncio", "run", "future"),), False
            case ("trio._threads", "to_thread_run_sync"):
                job = value("deliver_worker_fn_result")
                return (self._in_threads(job, "trio._core._thread_cache", "_handle_job", "deliver"),), False
            case _:
                return None

    def _future(self, future: concurrent.futures.Future[Any]) -> _Found:
        """A future of threads: copied from a task's, run by an executor's thread, or ended by a portal's task."""
        source = _copied_from(getattr(future, "_done_callbacks", ()))
        if source is not None:
            return (source,), False
        thread = self._in_threads(future, "concurrent.futures.thread", "run", "self", "future")
        return (thread or self._in_tasks(future, "anyio.from_thread", ("_call_func",), "future"),), False

    def _asyncio_future(self, future: Any) -> _Found:
        """A task waits for its coroutine, `asyncio.gather` for its children, a copy for what it copies."""
        if hasattr(future, "get_coro"):
            return (future.get_coro(),), False
        children = getattr(future, "_children", None)
        if children is not None:
            return tuple(children), False
        return (_copied_from(callback for callback, _ in future._callbacks or ()),), False

    def _in_threads(self, job: object, module: str, function: str, variable: str, attribute: str = "") -> object:
        """The innermost frame of the thread in which a call of this function has the job; None if there is none."""
        for innermost in self._frames.values():
            for frame in _outwards(innermost):
                if frame.f_code.co_name == function and _module(frame) == module:
                    own = frame.f_locals.get(variable)
                    if (getattr(own, attribute, None) if attribute else own) is job:
                        return innermost
        return None

    def _in_tasks(self, job: object, module: str, functions: Sequence[str], variable: str) -> object:
        """The coroutine in which a task of this loop has the job; None if there is none."""
        for task in anyio.get_running_tasks():
            awaiting: Any = task.coro
            while hasattr(awaiting, "cr_frame"):
                frame: FrameType | None = awaiting.cr_frame
                known = frame is not None and frame.f_code.co_name in functions and _module(frame) == module
                if frame is not None and known and frame.f_locals.get(variable) is job:
                    return awaiting
                awaiting = awaiting.cr_await
        return None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _of_many(all_of_them: Iterable[Any], timeout: object, *, first: bool) -> _Found:
    """The ones that have not ended. Ended ones are not waited for."""
    return _NOTHING if timeout is not None else (tuple(each for each in all_of_them if not each.done()), first)


def _is_future(node: object) -> bool:
    """True if it is one of asyncio, by the attribute that asyncio goes by: under trio it may not be loaded."""
    return hasattr(type(node), "_asyncio_future_blocking")


def _awaits(node: object) -> bool:
    return hasattr(node, "cr_await") or hasattr(node, "gi_yieldfrom") or hasattr(node, "ag_await")


def _copied_from(callbacks: Iterable[Any]) -> Any:
    """The future that another is copied from (`wrap_future`, `run_coroutine_threadsafe`, `shield`): the callback that
    passes a cancellation on has it.
    """
    for callback in callbacks:
        code, cells = getattr(callback, "__code__", None), getattr(callback, "__closure__", None) or ()
        if code is not None and code.co_name in ("_call_check_cancel", "_outer_done_callback"):
            own = dict(zip(code.co_freevars, cells, strict=True))
            return own[("source" if "source" in own else "inner")].cell_contents
    return None
