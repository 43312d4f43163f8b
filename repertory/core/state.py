"""Agent state: small JSON values that outlive a turn and are never shown to the model.

Values are copied in and out, so callers never hold the stored objects. Changes are collected until `take_patch` takes
them for the journal. Single operations are safe from any thread (dictionary assignment and list append are atomic in
the interpreter); a read followed by a write is not one operation.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from typing import cast

from msgspec import Struct

from repertory.core.limits import DEPTH_MAX, check_size, is_too_deep
from repertory.core.messages import Json, copy_json
from repertory.errors import Invalid

VALUE_BYTES_MAX = 10 * 1024 * 1024
"""The default for the largest weight of one value."""


class StatePatch(Struct, frozen=True, kw_only=True):
    """Keys to set and keys to delete, unordered: a key is in at most one of the two."""

    set: Mapping[str, Json]
    delete: tuple[str, ...]


class AgentState:
    """The state of one agent: `get`, `set`, `delete` by key.

    Examples:
        >>> from repertory import AgentState
        >>> state = AgentState({"cart": ["loaf"]})
        >>> state.set("paid", False)
        >>> state.get()
        {'cart': ['loaf'], 'paid': False}
        >>> state.delete("cart")
        >>> state.get("cart") is None
        True
    """

    def __init__(
        self, initial_state: Mapping[str, object] | None = None, *, value_bytes: int = VALUE_BYTES_MAX
    ) -> None:
        """Start from `initial_state`, which is no change: a stored state replaces it.

        Args:
            initial_state: The values to begin with; None for none.
            value_bytes: The largest weight of one value, its bytes plus 256 for each text, number, list and object in
                it.

        Raises:
            Invalid: When they are not JSON. Correct the argument.
            TooLarge: For a value above the bound. Give a smaller value, or raise the bound.
        """
        self._value_bytes = value_bytes
        self._values = {
            _checked_key(key): json_copy(value, value_bytes) for key, value in _given(initial_state).items()
        }
        self._changes: list[tuple[str, Json, bool]] = []
        self.watch: Callable[[bool], None] | None = None
        """A callback, called from any thread: with True after a change, with False when the patch was taken."""

    def get(self, key: str | None = None) -> Json:
        """A copy of one value (None when the key is missing), or of all values without a key.

        Args:
            key: The name of the value; None for all values.
        """
        if key is None:
            # Of a copy that Python makes in one step: tools in threads add keys while this walks through the values.
            return copy_json(self._values.copy())
        return copy_json(self._values.get(key))

    def set(self, key: str, value: object) -> None:
        """Store a copy of `value`; tuples become lists at once, as after a restart.

        Args:
            key: The name of the value.
            value: A value that JSON can hold.

        Raises:
            Invalid: When the key is not a non-empty string or the value is not JSON (NaN and infinities are not).
                Correct the argument.
            TooLarge: For a value above the bound. Give a smaller value, or raise the bound.
        """
        # Before anything changes; and a copy, or the caller's next edit would be in the state without a record.
        checked = json_copy(value, self._value_bytes)
        key = _checked_key(key)
        self._values[key] = checked
        self._note((key, checked, True))

    def delete(self, key: str) -> None:
        """Delete a key. A missing key is no error and no change.

        Args:
            key: The name of the value.
        """
        key = _checked_key(key)
        if key in self._values:
            self._values.pop(key, None)
            self._note((key, None, False))

    def _note(self, change: tuple[str, Json, bool]) -> None:
        self._changes.append(change)
        if self.watch is not None:
            self.watch(True)

    @property
    def changed(self) -> bool:
        """True if there is a patch to take."""
        return bool(self._changes)

    def take_patch(self) -> StatePatch | None:
        """The changes since the last call, or None. The caller must store them."""
        if not self._changes:
            return None
        latest: dict[str, tuple[Json, bool]] = {}
        while self._changes:
            taken = self._changes[:]
            del self._changes[: len(taken)]  # Other threads may add to the end meanwhile.
            latest |= {key: (value, present) for key, value, present in taken}
        if self.watch is not None:
            self.watch(False)
            if self._changes:  # A change from another thread, just now.
                self.watch(True)
        changed = {key: value for key, (value, present) in latest.items() if present}
        return StatePatch(set=changed, delete=tuple(key for key, (_, present) in latest.items() if not present))

    def apply(self, patch: StatePatch) -> None:
        """Apply another state's changes, as changes of this one.

        Args:
            patch: The changes of another state.
        """
        for key, value in patch.set.items():
            checked = json_copy(value, sys.maxsize)
            self._values[key] = checked
            self._note((key, checked, True))
        for key in patch.delete:
            self.delete(key)

    def replace(self, values: Mapping[str, Json]) -> None:
        """Replace all values. Changes not yet taken are dropped: the caller stores the new values.

        Args:
            values: All values by key.
        """
        self.take_patch()
        self._values = {key: copy_json(value) for key, value in values.items()}

    def restore(self, values: Mapping[str, Json]) -> None:
        """Replace all values with those of a journal; changes not yet taken stay on top, as they are newer.

        Args:
            values: All values by key.
        """
        self._values = {key: copy_json(value) for key, value in values.items()}
        for key, value, present in list(self._changes):
            if present:
                self._values[key] = value
            else:
                self._values.pop(key, None)


def _given(values: object) -> Mapping[str, object]:
    if values is not None and not isinstance(values, Mapping):
        json_copy(values)
        raise Invalid("a state is a mapping", got=type(values).__name__)
    return cast("Mapping[str, object]", values or {})


def agent_state(given: object) -> AgentState:
    """An agent's initial state from its caller's argument. Errors: `Invalid`."""
    if isinstance(given, AgentState):
        return given
    if given is not None and not isinstance(given, Mapping):
        raise Invalid("state must be an AgentState object or a dict", got=type(given).__name__)
    return AgentState(cast("Mapping[str, object] | None", given))


def json_copy(value: object, bytes_max: int = VALUE_BYTES_MAX) -> Json:
    """A deep copy of `value` as JSON.

    Errors: `Invalid` with the type that is not JSON, and for nesting deeper than `DEPTH_MAX`; `TooLarge` above
    `bytes_max` (`core/limits.py`).
    """
    check_size(value, bytes_max, "the value is too large to be kept; keep less, or keep it elsewhere", "the bound")
    try:
        copied = cast("Json", json.loads(json.dumps(value, allow_nan=False)))
    except RecursionError as error:  # before Python 3.14, which goes on to where the machine's stack ends
        raise Invalid("Value is nested too deeply", depth_max=DEPTH_MAX) from error
    except (TypeError, ValueError) as error:
        raise Invalid(
            f"Value is not JSON serializable: {type(value).__name__}. "
            "Only JSON-compatible types (str, int, float, bool, list, dict, None) are allowed."
        ) from error
    if is_too_deep(copied):
        raise Invalid("Value is nested too deeply", depth_max=DEPTH_MAX)
    return copied


def _checked_key(key: object) -> str:
    if key is None:
        raise Invalid("Key cannot be None")
    if not isinstance(key, str):
        raise Invalid("Key must be a string")
    if not key.strip():
        raise Invalid("Key cannot be empty")
    return key


# JSON for other values that programs return: dates, decimals, dataclasses, models.
#
# Values are recognised by their attributes, not their class, so that no library needs to be imported.
#
# Source: the spellings are those of pydantic's JSON mode.


def plain_value(value: object, items_max: int = sys.maxsize) -> object:
    """The value one layer closer to JSON; its parts may need the same. Dates and times become ISO 8601, a duration
    seconds, a decimal text with all its digits, a set a list. `items_max`: of a larger collection, no more items are
    taken; a range of any length takes no memory, and a list of it does.

    Errors: `TypeError` for bytes and for everything else without one obvious spelling.
    """
    match value:
        case Enum():
            return value.value
        case date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return str(value)
        case bytes() | bytearray() | memoryview():
            raise _not_json(cast("object", value))
        case Mapping():
            return dict(islice(cast("Mapping[object, object]", value).items(), items_max))
        case Set() | Sequence():
            return list(islice(cast("Sequence[object]", value), items_max))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: getattr(value, field.name) for field in fields(value)}
        case _:
            return _by_its_own_word(value)


def _by_its_own_word(value: object) -> object:
    """The value by its own method: pydantic models, arrays and numbers of numerical libraries, paths, UUIDs."""
    if isinstance(value, type):
        raise _not_json(value)
    dump: Callable[..., object] | None = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    for name in ("tolist", "__fspath__"):
        method: Callable[[], object] | None = getattr(value, name, None)
        if callable(method):
            return method()
    if isinstance(getattr(value, "urn", None), str):
        return str(value)
    raise _not_json(value)


def _not_json(value: object) -> TypeError:
    return TypeError(f"{type(value).__name__} is not JSON")
