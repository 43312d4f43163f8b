"""In which order the callbacks of one event are called."""

from __future__ import annotations


class HookOrder:
    """Where a callback stands among those of one event: lower first; within one order, as registered."""

    SDK_FIRST = -100
    INTERVENTION_OUTPUT = -90
    DEFAULT = 0
    MODEL_ROUTING = 50
    INTERVENTION_INPUT = 90
    SDK_LAST = 100
