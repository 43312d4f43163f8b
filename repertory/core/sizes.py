"""How large a value is, counted no further than its bound.

What a value costs is its bytes, and the number of values in it: an empty list is two bytes of JSON, and takes a hundred
times as much in memory. So one number bounds both: a value weighs the UTF-8 bytes of its texts and keys, the bytes of
its media, and `VALUE_BYTES` more for each text, number, list and object in it. A JSON text that is still arriving is
weighed by what it says so far, so that what is too large is never made into values.
"""

from __future__ import annotations

from typing import TypeAlias, cast

from repertory.core.depth import MESSAGE_DEPTH_MAX
from repertory.errors import TooLarge

VALUE_BYTES = 256
"""What each value weighs besides its bytes."""


_Container: TypeAlias = "dict[object, object] | list[object] | tuple[object, ...]"


_MEDIA = (bytes, bytearray, memoryview)


class Scale:
    """Weighs values one after the other, until they weigh more than `bytes_max` together.

    Counting ends there, so weighing a value costs no more than weighing one that is just small enough. What is neither
    JSON nor bytes weighs nothing but its `VALUE_BYTES`.
    """

    __slots__ = ("bytes", "bytes_max", "values", "whole")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Of texts, keys and media so far."""
        self.values = 0
        self.whole = True
        """Whether everything was counted; False when counting ended at the bound."""

    @property
    def weight(self) -> int:
        """Bytes and values together."""
        return self.bytes + VALUE_BYTES * self.values

    @property
    def too_large(self) -> bool:
        """Whether the bound is passed."""
        return self.weight > self.bytes_max

    def put(self, value: object) -> bool:
        """Weigh one more value; False when the bound is passed. Looks level by level, so no depth can hurt."""
        self.values += 1
        level = self._weighed([value])
        for _ in range(MESSAGE_DEPTH_MAX):
            if not level:
                break
            # Before anything is looked at: a container says how many values it holds.
            self.values += sum(map(len, level))
            if self.too_large:
                self.whole = False
                return False
            below: list[object] = []
            for container in level:
                below += container
                if isinstance(container, dict):
                    below += container.values()
            level = self._weighed(below)
        return not self.too_large

    def _weighed(self, values: list[object]) -> list[_Container]:
        """Add the bytes of these values. Gives those that hold more values."""
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            size = sum(map(len, texts))
            if size <= self.bytes_max and not (joined := "".join(texts)).isascii():
                size = len(joined.encode(errors="replace"))
            self.bytes += size
            values = [value for value in values if not isinstance(value, str)]
        self.bytes += sum(len(cast("bytes", value)) for value in values if isinstance(value, _MEDIA))
        return [cast("_Container", value) for value in values if isinstance(value, dict | list | tuple)]

    def refusal(self, message: str, bound: str) -> TooLarge:
        """The error that says how large the values are, and which bound of the caller's they pass."""
        least = "" if self.whole else "at least "
        return TooLarge(
            f"{message}: it takes {least}{self.weight:,} bytes, counting {VALUE_BYTES} for each of {self.values:,} "
            f"values, and {bound} is {self.bytes_max:,}"
        )


class JsonScale:
    """Weighs a JSON text piece by piece, as it arrives: its bytes, and `VALUE_BYTES` for each value in it.

    What is no JSON weighs its bytes at least.
    """

    __slots__ = ("_in_text", "_rest", "bytes", "values")

    def __init__(self) -> None:
        self.bytes = 0
        self.values = 0
        self._in_text = False
        self._rest = b""
        """A backslash whose next character has not arrived yet."""

    @property
    def weight(self) -> int:
        """Bytes and values together."""
        return self.bytes + VALUE_BYTES * self.values

    def put(self, piece: bytes) -> None:
        """Weigh what has arrived."""
        self.bytes += len(piece)
        said = self._rest + piece
        self._rest = b""
        if b"\\" in said:
            # What is escaped neither begins nor ends a text.
            said = said.replace(b"\\\\", b"")
            if said.endswith(b"\\"):
                said, self._rest = said[:-1], b"\\"
            said = said.replace(b'\\"', b"")
        parts = said.split(b'"')
        structure = b"".join(parts[1::2] if self._in_text else parts[::2])
        # One value before each comma, and each list and object besides.
        self.values += structure.count(b",") + structure.count(b"[") + structure.count(b"{")
        self._in_text ^= len(parts) % 2 == 0


def check_size(value: object, bytes_max: int, message: str, bound: str) -> None:
    """Raise `TooLarge` when the value weighs more than `bytes_max`, which callers know as `bound`."""
    scale = Scale(bytes_max)
    if not scale.put(value):
        raise scale.refusal(message, bound)
