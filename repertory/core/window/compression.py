"""When to shorten what the model is shown before it refuses (proactive compression, as users ask for it), and by how
much when it has refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias, cast

from repertory.errors import Invalid

DEFAULT_THRESHOLD = 0.7
"""Source: the documentation of the SDK whose users we serve."""
UNKNOWN_WINDOW = 200_000
"""What a model's window is taken for when nobody knows it. Source: the same SDK."""

Compression: TypeAlias = "bool | Mapping[str, float] | None"
"""`True` compresses at 0.7 of the window, `{"compression_threshold": r}` at r of it, False or None never."""


def read_threshold(wanted: Compression) -> float | None:
    """The share of the window from which on to compress; None for never.

    Errors: `Invalid` (a ValueError) for a threshold that is not above 0 and at most 1, and for anything else.
    """
    if wanted is None or isinstance(wanted, bool):
        return DEFAULT_THRESHOLD if wanted else None
    fields = dict(wanted) if isinstance(cast("object", wanted), Mapping) else {"": wanted}
    threshold: object = fields.pop("compression_threshold", DEFAULT_THRESHOLD)
    if fields:
        raise Invalid("proactive_compression is a bool or {'compression_threshold': share}", got=repr(wanted)[:100])
    if isinstance(threshold, bool) or not isinstance(threshold, int | float) or not 0 < threshold <= 1:
        raise Invalid("compression_threshold must be between 0 (exclusive) and 1 (inclusive)", got=repr(threshold))
    return float(threshold)


def least_reduction(tokens: int, window: int | None, before: int) -> int:
    """How many tokens to take off at least, before a model that has refused a request for its length is asked again.

    Half of what the request takes beyond the window, by estimate. The estimate may be wrong and the window unknown, so
    each earlier reduction that did not help (`before` of them) adds a sixteenth of the request, up to half of it: a
    request that is ten times too long fits after ten refusals, whatever the estimate says.
    """
    beyond = tokens - window if window is not None else 0
    return max(math.ceil(beyond / 2), tokens * min(before, 8) // 16)


def is_full(tokens: int, window: int | None, threshold: float) -> bool:
    """Whether a request of that many tokens reaches the threshold of a window (None: nobody knows its size)."""
    return tokens >= threshold * (window or UNKNOWN_WINDOW)


def tokens_above(tokens: int, window: int | None, threshold: float) -> int:
    """How many tokens a request of that many is above the threshold of a window."""
    return max(0, math.ceil(tokens - threshold * (window or UNKNOWN_WINDOW)))
