"""How long callers wait for a store that cannot be written, and how much may wait with them."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from repertory.errors import Invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePatience:
    """What a session does while its store is down, slow or full. What was said waits in memory, and is stored in order
    when the store is back.

    Errors: `Invalid` for what is not positive, or not finite.
    """

    wait_s: float = 30.0
    """Seconds that a call waits for what it said to be stored, or for room. Then it fails with `Unavailable`. One with
    `timeout_s` waits until 2 seconds after its deadline at most."""
    records_max: int = 1000
    """Records of one agent in one session that may wait. With more, its turns wait before they go on."""
    bytes_max: int = 16 * 1024 * 1024
    """The same in bytes. What one step of a turn adds may go beyond both: it is never dropped."""
    busy_s: float = 30.0
    """Seconds that opening a session waits at most for another process to give it up, which it does at once when no
    turn of it runs, else with the end of the turn. Then it fails with `SessionBusy`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "busy_s" else 1e-9
            if isinstance(value, bool | str) or not least <= value < math.inf:
                raise Invalid(f"{field.name} is a positive number", got=value)


DEFAULT_PATIENCE = StorePatience()
