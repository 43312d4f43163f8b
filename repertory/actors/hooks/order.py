"""The order in which the callbacks of one event are called."""

from __future__ import annotations


class HookOrder:
    """The rank of a callback among those of one event: lower first; within one rank, as registered.

    Attributes:
        SDK_FIRST: Before all others.
        INTERVENTION_OUTPUT: Interventions that look at results.
        DEFAULT: Callbacks that name no order.
        MODEL_ROUTING: The choice of a model.
        INTERVENTION_INPUT: Interventions that look at what is about to be done.
        SDK_LAST: After all others.
    """

    SDK_FIRST = -100
    INTERVENTION_OUTPUT = -90
    DEFAULT = 0
    MODEL_ROUTING = 50
    INTERVENTION_INPUT = 90
    SDK_LAST = 100
