"""How long a service asks its callers to wait.

Source: RFC 9110, section 10.2.3; `retry-after-ms` is what Azure and OpenAI add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, None when the answer does not say. The names of `headers` are in lower case.

    A date is counted from the answer's own `Date`, so clocks that differ do no harm.
    """
    milliseconds = _seconds(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    asked = headers.get("retry-after")
    seconds = _seconds(asked)
    if seconds is not None:
        return seconds
    until, now = _date(asked), _date(headers.get("date"))
    return max(0.0, (until - now).total_seconds()) if until and now else None


def _seconds(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _date(text: str | None) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(text or "")
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None
