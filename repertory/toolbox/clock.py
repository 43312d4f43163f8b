"""The time for the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo

from repertory.backends.tools.decorator import tool
from repertory.backends.tools.function_tool import FunctionTool
from repertory.errors import Invalid


def clock_tool(now: Callable[[], float]) -> FunctionTool[Callable[..., str]]:
    """The tool `current_time` on a clock of your own. `now` returns epoch seconds."""

    @tool(effects=False, idempotent=True)
    def current_time(timezone: str = "UTC") -> str:
        """Tell the current date and time, in ISO 8601.

        Args:
            timezone: An IANA name such as "Europe/Berlin".
        """
        return datetime.fromtimestamp(now(), _zone(timezone)).isoformat(timespec="seconds")

    return current_time


def _zone(name: str) -> tzinfo:
    if name.upper() in ("UTC", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:
        raise Invalid('no such timezone; use an IANA name such as "Europe/Berlin"', timezone=name) from error


current_time = clock_tool(time.time)
"""The tool on the machine's clock."""
