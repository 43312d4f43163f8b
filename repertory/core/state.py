"""Agent state: small JSON values that outlive a turn and are never shown to the model.

Values are copied in and out, so what a caller holds is never what is stored. Every change is also kept as a step of a
patch until `take_patch` collects it for the journal. Single operations are safe from any thread (the interpreter
makes a dictionary assignment and a deque append atomic); a read followed by a write is not one operation.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from repertory.core.messages import Json
from repertory.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePatch:
    """Keys to set and keys to delete, in no order: a key stands in at most one of the two."""

    set: Mapping[str, Json]
    delete: tuple[str, ...]


class AgentState:
    """The state of one agent: `get`, `set`, `delete` by key."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        """Start from `values`, which count as no change: a stored state takes their place.

        Errors: `Invalid` (a ValueError) when they are not JSON.
        """
        self._values = {_checked_key(key): as_json(value) for key, value in (values or {}).items()}
        self._changes: deque[tuple[str, Json, bool]] = deque()

    def get(self, key: str | None = None) -> Json:
        """A copy of one value, None when the key is not there, or a copy of everything without a key."""
        if key is None:
            return copy.deepcopy(self._values)
        return copy.deepcopy(self._values.get(key))

    def set(self, key: str, value: object) -> None:
        """Store a copy of `value`; tuples become lists at once, so that a restart changes nothing.

        Errors: `Invalid` when the key is not a non-empty string or the value is not JSON (NaN and infinities are not).
        """
        checked = as_json(value)
        key = _checked_key(key)
        self._values[key] = checked
        self._changes.append((key, checked, True))

    def delete(self, key: str) -> None:
        """Forget a key. A key that is not there is no error and no change."""
        key = _checked_key(key)
        if key in self._values:
            self._values.pop(key, None)
            self._changes.append((key, None, False))

    def take_patch(self) -> StatePatch | None:
        """What changed since the last call, or None. The caller must store it."""
        if not self._changes:
            return None
        latest: dict[str, tuple[Json, bool]] = {}
        while self._changes:
            key, value, present = self._changes.popleft()
            latest[key] = (value, present)
        kept = {key: value for key, (value, present) in latest.items() if present}
        return StatePatch(set=kept, delete=tuple(key for key, (_, present) in latest.items() if not present))

    def restore(self, values: Mapping[str, Json]) -> None:
        """Replace everything with what a journal said; changes not yet taken are applied on top, as they came later."""
        changes = list(self._changes)
        self._values = {key: copy.deepcopy(value) for key, value in values.items()}
        for key, value, present in changes:
            if present:
                self._values[key] = value
            else:
                self._values.pop(key, None)


def as_json(value: object) -> Json:
    """A deep copy of `value` as JSON can say it. Errors: `Invalid`, naming the type that cannot be said."""
    try:
        return cast("Json", json.loads(json.dumps(value, allow_nan=False)))
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(
            f"Value is not JSON serializable: {type(value).__name__}. "
            "Only JSON-compatible types (str, int, float, bool, list, dict, None) are allowed."
        ) from error


def _checked_key(key: object) -> str:
    if key is None:
        raise Invalid("Key cannot be None")
    if not isinstance(key, str):
        raise Invalid("Key must be a string")
    if not key.strip():
        raise Invalid("Key cannot be empty")
    return key
