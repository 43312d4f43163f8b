"""Limits: those of one call, and of the nesting, the texts and the weight of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias, TypeVar, cast

from msgspec import Struct
from msgspec.json import Encoder
from msgspec.structs import asdict, replace
from typing_extensions import TypedDict  # pydantic wants this one on Python 3.11.

from repertory.errors import Invalid, TooLarge

RESULT_BYTES = 10 * 1024 * 1024
ANSWER_BYTES = 16 * 1024 * 1024
PROMPT_BYTES = 32 * 1024 * 1024


class Limits(TypedDict, total=False):
    """Limits of one call, each a positive number.

    The first three are checked between steps, so a step may exceed them. The others bound one value each: its bytes
    plus 256 for each text, number, list and object in it. They have defaults and are never exceeded.

    Examples:
        >>> from repertory import Agent, OfflineModel, calculator
        >>> agent = Agent(OfflineModel(), tools=[calculator])
        >>> agent("What is 6 * 7?", limits={"turns": 1}).stop_reason
        'limit_turns'
    """

    turns: int
    """Model calls. Stop reason `limit_turns`."""
    total_tokens: int
    """Input and output tokens of all model calls. Stop reason `limit_total_tokens`."""
    output_tokens: int
    """Output tokens of all model calls. Stop reason `limit_output_tokens`."""
    result_bytes: int
    """The bytes of one tool result. A larger one becomes an error result that states its size. Default: 10 MiB."""
    answer_bytes: int
    """One model answer, while it streams; each event weighs 32. The call fails with `TooLarge`. Default: 16 MiB."""
    prompt_bytes: int
    """The bytes of the prompt. Above them the call fails with `TooLarge`, and nothing is stored. Default: 32 MiB."""


class Sizes(NamedTuple):
    """The largest weights of single values; see `Limits`, and `Scale` for weights."""

    result_bytes: int = RESULT_BYTES
    answer_bytes: int = ANSWER_BYTES
    prompt_bytes: int = PROMPT_BYTES


class TurnLimits(Struct, frozen=True, kw_only=True):
    """Limits of one turn. None stands for the agent's own limit, else for no limit or the default."""

    vain_reductions_max: int = 3
    """The number of times in a row that a model call is repeated after a reduction that made nothing smaller."""
    invalid_outputs_max: int = 3
    """The number of times that the model may fail to give the structured output."""
    steps: int | None = None
    total_tokens: int | None = None
    output_tokens: int | None = None
    result_bytes: int | None = None
    answer_bytes: int | None = None
    prompt_bytes: int | None = None

    def over(self, others: TurnLimits) -> TurnLimits:
        """These limits; the others where these are None."""
        return replace(others, **{name: value for name, value in asdict(self).items() if value is not None})

    def within(self, others: TurnLimits) -> TurnLimits:
        """The tighter of both for each limit, defaults included: for limits of somebody who may lift none."""
        bounds = {**asdict(others), **others.sizes._asdict()}
        given = {name: value for name, value in asdict(self).items() if value is not None}
        tighter = {name: value for name, value in given.items() if bounds[name] is None or value < bounds[name]}
        return replace(others, **tighter)

    @property
    def sizes(self) -> Sizes:
        """The bounds of single values, with defaults where unset."""
        return Sizes(
            result_bytes=self.result_bytes or RESULT_BYTES,
            answer_bytes=self.answer_bytes or ANSWER_BYTES,
            prompt_bytes=self.prompt_bytes or PROMPT_BYTES,
        )

    def reached(self, steps: int, total_tokens: int, output_tokens: int) -> str | None:
        """The stop reason of the first limit that is reached; None if none is."""
        if self.steps is not None and steps >= self.steps:
            return "limit_turns"
        if self.total_tokens is not None and total_tokens >= self.total_tokens:
            return "limit_total_tokens"
        if self.output_tokens is not None and output_tokens >= self.output_tokens:
            return "limit_output_tokens"
        return None


NO_LIMITS = TurnLimits()


class WrongLimit(Invalid, TypeError):
    """A limit that does not exist, or is no positive integer. The message names those that do."""


def read_limits(limits: object) -> TurnLimits:
    """The caller's limits. Errors: `Invalid` with the key that is unknown or not a positive integer."""
    if limits is None:
        return NO_LIMITS
    if isinstance(limits, TurnLimits):  # of an agent that a program makes another one from
        return limits
    if not isinstance(limits, Mapping):
        raise WrongLimit("limits is a dictionary", got=type(limits).__name__)
    given = dict(cast("Mapping[str, object]", limits))
    unknown = sorted(given.keys() - Limits.__annotations__.keys(), key=str)
    if unknown:
        raise WrongLimit(f"not recognized: limits has {', '.join(Limits.__annotations__)}", unknown=unknown)
    for name, value in given.items():
        # True is an int, and `{"turns": True}` is no limit of one turn.
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise WrongLimit(f"limits[{name!r}] is a positive integer", got=value)
    return TurnLimits(**{"steps" if name == "turns" else name: cast("int", value) for name, value in given.items()})


def limits_given(limits: TurnLimits) -> dict[str, int]:
    """The limits as `read_limits` takes them."""
    values: dict[str, int | None] = {**asdict(limits), "turns": limits.steps}
    return {name: value for name in Limits.__annotations__ if (value := values[name]) is not None}


# Nesting: far deeper than people write, and far from where copying fails.

DEPTH_MAX = 100
"""The levels of a value in agent state, tool inputs and tool results."""
MESSAGE_DEPTH_MAX = DEPTH_MAX + 10
"""The levels of a message, which holds such values a few levels down."""
RECORD_DEPTH_MAX = 250
"""The levels of a record that is read from a journal or snapshot: deeper than anything ever accepted."""


def is_too_deep(value: object, depth_max: int = DEPTH_MAX) -> bool:
    """True if dictionaries and lists are nested deeper than `depth_max`. Works level by level, so any depth is safe."""
    level = _containers([value])
    for _ in range(depth_max):
        inside: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inside += cast("dict[object, object]", each).values()
            else:
                inside += cast("list[object]", each)
        level = _containers(inside)
        if not level:
            return False
    return True


def _containers(values: list[object]) -> list[object]:
    return [value for value in values if isinstance(value, dict | list)]


# Text that can be sent. JSON can spell half of a surrogate pair and Python can hold it, but UTF-8 cannot, and so no
# provider can be sent it.
#
# What people and programs give as a prompt is refused with its place, as at every door: they can correct it. What a
# model, a tool or a stored session gives is repaired, since nobody is there who could.

_Value = TypeVar("_Value")
_encode = Encoder().encode


def well_formed_text(text: str) -> str:
    """The text with surrogate pairs joined, which pieces of it may have split, and lone halves replaced; the same
    object when it has none.
    """
    # Through UTF-16, which joins two halves that a stream has cut apart.
    return text if is_well_formed(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_well_formed(text: str) -> bool:
    """True if UTF-8 can hold the text."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def well_formed(value: _Value) -> _Value:
    """The value with every text and key in it well formed; the same object when they are so already. What is nested too
    deeply to be stored stays as it is.
    """
    try:
        _encode(value)  # Does not know every value that may stand here, and is many times faster than a walk.
    except (TypeError, ValueError, OverflowError, RecursionError):
        return value if is_too_deep(value, RECORD_DEPTH_MAX) else cast("_Value", _texts_mended(value))
    return value


def _texts_mended(value: object) -> object:
    if isinstance(value, str):
        return well_formed_text(value)
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return {_texts_mended(key): _texts_mended(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_texts_mended(item) for item in cast("list[object]", value)]
    return value


# The weight of a value, counted no further than its bound.
#
# A value costs memory by its bytes and by the number of values in it: an empty list is two bytes of JSON and takes a
# hundred times as much memory. So one number bounds both: a value weighs the UTF-8 bytes of its texts and keys, the
# bytes of its media, and `VALUE_BYTES` for each text, number, list and object in it. JSON text that is still arriving
# is weighed as it comes, so that oversized input is never parsed.

VALUE_BYTES = 256
"""The bytes that each value weighs besides its own."""


_Container: TypeAlias = "dict[object, object] | list[object] | tuple[object, ...]"


_MEDIA = (bytes, bytearray, memoryview)


class Scale:
    """Weighs values one after the other, up to `bytes_max` in all.

    Counting stops at the bound, so a huge value costs no more to weigh than one that just fits. A value that is neither
    JSON nor bytes weighs `VALUE_BYTES`.
    """

    __slots__ = ("bytes", "bytes_max", "values", "whole")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        """Bytes of texts, keys and media so far."""
        self.values = 0
        self.whole = True
        """False when counting stopped at the bound."""

    @property
    def weight(self) -> int:
        return self.bytes + VALUE_BYTES * self.values

    def put(self, value: object) -> bool:
        """Add one value; False when the bound is exceeded. Works level by level, so any depth is safe."""
        self.values += 1
        level = self._weighed([value])
        for _ in range(MESSAGE_DEPTH_MAX):
            if not level:
                break
            # Checked before the contents: a container knows its length.
            self.values += sum(map(len, level))
            if self.weight > self.bytes_max:
                self.whole = False
                return False
            below: list[object] = []
            for container in level:
                below += container
                if isinstance(container, dict):
                    below += container.values()
            level = self._weighed(below)
        return self.weight <= self.bytes_max

    def _weighed(self, values: list[object]) -> list[_Container]:
        """Add the bytes of these values. Returns the containers among them."""
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            size = sum(map(len, texts))
            # Encoded only if it may fit: characters are a lower bound, and a text beyond it is too large anyway.
            if size <= self.bytes_max and not (joined := "".join(texts)).isascii():
                size = len(joined.encode(errors="replace"))
            self.bytes += size
            values = [value for value in values if not isinstance(value, str)]
        self.bytes += sum(len(cast("bytes", value)) for value in values if isinstance(value, _MEDIA))
        return [cast("_Container", value) for value in values if isinstance(value, dict | list | tuple)]

    def refusal(self, message: str, bound: str) -> TooLarge:
        """The error with the weight, and the caller's bound that it exceeds."""
        least = "" if self.whole else "at least "
        return TooLarge(
            f"{message}: it takes {least}{self.weight:,} bytes, counting {VALUE_BYTES} for each of {self.values:,} "
            f"values, and {bound} is {self.bytes_max:,}"
        )


class JsonScale:
    """Weighs a JSON text as it arrives: its bytes, and `VALUE_BYTES` for each value in it.

    A text that is not JSON weighs its bytes at least.
    """

    __slots__ = ("_in_text", "_rest", "bytes", "values", "weight")

    def __init__(self) -> None:
        self.bytes = 0
        self.values = 0
        self.weight = 0
        self._in_text = False
        self._rest = b""
        """A backslash whose next character has not arrived yet."""

    def put(self, piece: bytes) -> None:
        """Weigh the next piece."""
        self.bytes += len(piece)
        text = self._rest + piece
        self._rest = b""
        if b"\\" in text:
            # An escaped quote neither begins nor ends a text.
            # Pairs first: behind an escaped backslash, a quotation mark does end the text.
            text = text.replace(b"\\\\", b"")
            if text.endswith(b"\\"):
                text, self._rest = text[:-1], b"\\"
            text = text.replace(b'\\"', b"")
        parts = text.split(b'"')
        structure = b"".join(parts[1::2] if self._in_text else parts[::2])
        # One value per comma, list and object.
        self.values += structure.count(b",") + structure.count(b"[") + structure.count(b"{")
        self.weight = self.bytes + VALUE_BYTES * self.values
        # An odd number of quotation marks.
        self._in_text ^= len(parts) % 2 == 0


def check_size(value: object, bytes_max: int, message: str, bound: str) -> None:
    """Errors: `TooLarge` when the value weighs more than `bytes_max`, which callers know as `bound`."""
    scale = Scale(bytes_max)
    if not scale.put(value):
        raise scale.refusal(message, bound)


_OMITTED = " ... [{} characters left out] ... "


def clip(text: str, chars_max: int) -> str:
    """The beginning and end of a text that is too long; else the same object."""
    omitted = len(text) - chars_max
    if omitted <= len(_OMITTED):
        return text
    half = chars_max // 2
    return f"{text[:half]}{_OMITTED.format(len(text) - 2 * half)}{text[-half:]}"
