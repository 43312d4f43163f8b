"""Callback handlers that print."""

from __future__ import annotations

import sys
from collections.abc import Callable


class PrintingCallbackHandler:
    """Prints answers as they stream, reasoning included, and a numbered line for each tool that the model asks for."""

    def __init__(self, verbose_tool_use: bool = True) -> None:
        """`verbose_tool_use`: whether tools are printed."""
        self.tool_count = 0
        self._verbose_tool_use = verbose_tool_use

    def __call__(self, **event: object) -> None:
        end = "\n" if event.get("complete") else ""
        for piece, after in ((event.get("reasoningText"), ""), (event.get("data"), end)):
            if isinstance(piece, str) and piece:
                print(piece, end=after)
                sys.stdout.flush()
        match event.get("event"):
            case {"contentBlockStart": {"start": {"toolUse": {"name": str(name)}}}}:
                self.tool_count += 1
                if self._verbose_tool_use:
                    print(f"\nTool #{self.tool_count}: {name}")
            case _:
                pass
        if end and event.get("data"):
            print("\n")
        if "result" in event:
            print()


class CompositeCallbackHandler:
    """Calls several callback handlers, in order. None of them may be asynchronous."""

    def __init__(self, *handlers: Callable[..., object]) -> None:
        self.handlers = handlers

    def __call__(self, **event: object) -> None:
        for handler in self.handlers:
            handler(**event)


def null_callback_handler(**event: object) -> None:
    """Prints nothing; the same as `callback_handler=None`."""
