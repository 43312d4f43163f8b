"""Telling whether the calling thread runs an event loop right now."""

from __future__ import annotations

import asyncio
import sys


def inside_event_loop() -> bool:
    """Whether this thread is inside asyncio (or uvloop) or trio."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_run():
        return True
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
