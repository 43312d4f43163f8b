"""Telling whether the calling thread runs an event loop right now."""

from __future__ import annotations

import sys
from typing import Any


def inside_event_loop() -> bool:
    """Whether this thread is inside asyncio (or uvloop) or trio. Safe while another thread imports them.

    A loop whose library was never imported does not run, so nothing is imported here. A library that another thread is
    still importing is in `sys.modules` already, without most of its names: no loop of it runs yet either.
    """
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio_run = getattr(lowlevel, "in_trio_run", None)
    if in_trio_run is not None and in_trio_run():
        return True
    asyncio: Any = sys.modules.get("asyncio")
    running_loop = getattr(asyncio, "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None
