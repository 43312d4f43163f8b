"""The pieces that a reader of an answer holds back until it can pass them on: bounded as the answer is, joined once."""

from __future__ import annotations

import sys

from repertory.core.answer import EVENT_BYTES
from repertory.core.limits import ANSWER_BYTES, VALUE_BYTES, Scale
from repertory.errors import TooLarge


class HeldBack:
    """The weight of what one reader holds back. The `Assembler` weighs only what it is fed."""

    __slots__ = ("_weight",)

    def __init__(self) -> None:
        self._weight = 0

    def add(self, *values: object) -> None:
        """Weigh these as well. Errors: `TooLarge` beyond `ANSWER_BYTES` in all."""
        scale = Scale(sys.maxsize)
        for value in values:
            scale.put(value)
        self._add(scale.weight)

    def add_text(self, text: str) -> None:
        """Weigh a piece of a text as the stream of an answer is weighed. Errors: as `add`."""
        self._add(EVENT_BYTES + len(text))

    def add_values(self, count: int) -> None:
        """Weigh so many values without contents. Errors: as `add`."""
        self._add(count * VALUE_BYTES)

    def _add(self, weight: int) -> None:
        self._weight += weight
        if self._weight > ANSWER_BYTES:
            raise TooLarge(
                f"the model's answer is too large: more than {ANSWER_BYTES:,} bytes of it wait for its end, counting "
                f"{VALUE_BYTES} for each value"
            )
