"""The callback handler of an agent that was given none."""

from __future__ import annotations

import sys


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
