"""Threads of this package: how one is started, and the error when the system has none left."""

from __future__ import annotations

import threading
from collections.abc import Callable

from repertory.errors import StoreUnavailable


def start_thread(target: Callable[..., object], *args: object, name: str) -> threading.Thread:
    """A daemon thread that has started. Remember it only once it is returned: one that could not start never ends.

    Errors: `StoreUnavailable` when the system starts no more threads; try again later.
    """
    thread = threading.Thread(target=target, args=args, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread_left(error) from error
    return thread


def no_thread_left(error: RuntimeError) -> StoreUnavailable:
    """The error for what Python raises when the system starts no more threads.

    It is a store's error as well, since stores need threads, and whoever catches a store's errors must not miss it.
    """
    text = "no thread could be started; raise the limit of processes (`ulimit -u`, `pids.max`), or try again"
    return StoreUnavailable(text, cause=str(error))
