"""Telling whether the calling thread runs an event loop right now."""

from __future__ import annotations

import sys
from typing import Any

from repertory.forking import call_in_children

_parents_run: Any = None
"""The run of trio in which this process was forked, if it was. It goes on in the parent alone."""


def inside_event_loop() -> bool:
    """Whether this thread is inside asyncio (or uvloop) or trio. Safe while another thread imports them.

    A loop whose library was never imported does not run, so nothing is imported here. A library that another thread is
    still importing is in `sys.modules` already, without most of its names: no loop of it runs yet either.
    """
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio_run = getattr(lowlevel, "in_trio_run", None)
    if in_trio_run is not None and in_trio_run() and lowlevel.current_trio_token() is not _parents_run:
        return True
    asyncio: Any = sys.modules.get("asyncio")
    running_loop = getattr(asyncio, "_get_running_loop", None)
    return running_loop is not None and running_loop() is not None


def _forget_parent() -> None:
    """In a forked child: asyncio knows by itself that its loop does not run here."""
    global _parents_run
    lowlevel: Any = sys.modules.get("trio.lowlevel")
    in_trio_run = getattr(lowlevel, "in_trio_run", None)
    if in_trio_run is not None and in_trio_run():
        _parents_run = lowlevel.current_trio_token()


call_in_children(_forget_parent)
