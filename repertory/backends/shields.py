"""Requests that a cancellation waits for, within bounds: a drain must end even when a server gives no answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from repertory.errors import RepertoryError


@asynccontextmanager
async def waited_for(within_s: float, *, if_cancelled_s: float) -> AsyncGenerator[anyio.CancelScope]:
    """A block that a cancellation waits for. It is cut `within_s` after it began, and `if_cancelled_s` after it began
    if its caller is cancelled by then: `cancelled_caught` of the scope says so. What it asked for may have been done.
    """
    began, failed = anyio.current_time(), None
    scope = anyio.CancelScope(shield=True, deadline=began + within_s)

    async def look_for_cancellation() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            scope.deadline = min(scope.deadline, began + if_cancelled_s)

    async with anyio.create_task_group() as group:
        group.start_soon(look_for_cancellation)
        try:
            with scope:
                yield scope
        except RepertoryError as error:  # It is raised below, since the task group would wrap it.
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
