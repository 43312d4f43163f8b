"""Calling a callback handler, which is anybody's code and only looks on; the default one prints."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

CallbackHandler: TypeAlias = "Callable[..., object]"
"""Called with each event's entries as keywords, and `request_state`. The turn waits for an asynchronous one."""

_log = logging.getLogger("repertory.callbacks")


async def call_handler(handler: CallbackHandler, event: Mapping[str, object], request_state: dict[str, Any]) -> None:
    """Tell the handler. What it raises is logged: the turn goes on."""
    try:
        outcome = handler(**event, request_state=request_state)
        if outcome is not None and inspect.isawaitable(outcome):
            await outcome
    except Exception as error:  # noqa: BLE001 - a handler is anybody's code, and only looks on
        _log.error("callback handler failed", exc_info=error)


def print_events(**event: object) -> None:
    """Print the answer's text as it streams, and a line for each tool that starts."""
    match event:
        case {"data": str(text)}:
            sys.stdout.write(text)
            sys.stdout.flush()
        case {"tool_started": {"name": str(name)}}:
            sys.stdout.write(f"\n[{name}]\n")
        case {"result": _}:
            sys.stdout.write("\n")
        case _:
            pass
