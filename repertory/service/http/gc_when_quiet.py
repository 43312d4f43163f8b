"""Full garbage collections of a process that serves, put off until it is quiet.

Python looks through all objects whenever their number has grown by a quarter. With a thousand live sessions that stops
every turn of the process for a third of a second. References are counted as ever, and young objects are looked through
as ever: what waits is only what refers to itself in a circle and has lived for a while.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

LOOK_S = 2.0
PUT_OFF_S = 300.0
"""The longest delay of a full collection, in seconds."""
WORTH = 10
"""The number of collections of younger objects after which a full one is worth while: Python's own threshold."""
_NEVER = 2**30


@asynccontextmanager
async def gc_when_quiet(in_progress: Callable[[], int]) -> AsyncGenerator[None]:
    """Put off full collections, while the block runs, until nothing is in progress, or for `PUT_OFF_S` at most. Objects
    that exist at its start are never traversed. A process that has frozen objects itself, as before a fork, is left so.
    """
    before, frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    if not frozen:
        gc.collect()
        # What the program has loaded by now stays for ever, and is looked through no more.
        gc.freeze()
    # The last one alone: the two younger generations are collected as ever.
    gc.set_threshold(before[0], before[1], _NEVER)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_collect, in_progress, name="garbage")
            yield
            group.cancel_scope.cancel()
    finally:
        gc.set_threshold(*before)
        if not frozen:
            gc.unfreeze()


async def _collect(in_progress: Callable[[], int]) -> None:
    last = anyio.current_time()
    while True:
        await anyio.sleep(LOOK_S)
        late = anyio.current_time() - last >= PUT_OFF_S
        if gc.get_count()[2] >= WORTH and (late or not in_progress()):
            gc.collect()
            last = anyio.current_time()
