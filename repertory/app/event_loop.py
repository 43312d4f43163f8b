"""Telling whether the calling thread runs an event loop right now."""

from __future__ import annotations

import sys


def inside_event_loop() -> bool:
    """Whether this thread is inside asyncio (or uvloop) or trio."""
    trio = sys.modules.get("trio")  # A loop that was never imported does not run.
    if trio is not None and trio.lowlevel.in_trio_run():
        return True
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
