"""Ids that protocols give to turns, and the tokens of turns that clients name in ways of their own.

An id says which turn of which session of which agent it is. It is no secret and gives no right: the session in it is
looked up among those of the caller's tenant, whoever made the id.
"""

from __future__ import annotations

import base64
import json
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from repertory.core.ids import check_id
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.messages import Json

ID_LENGTH_MAX = 1100
"""The characters of the longest id: three names of at most 255 bytes each, in base64."""
_BETWEEN = "\0"
"""The separator of the parts, which no name has."""


class TurnId(NamedTuple):
    """The turn that an id names."""

    agent: str
    session_id: str
    """The session's id as the caller knows it, without its tenant."""
    token: str

    def written(self, prefix: str) -> str:
        """The id, in letters, digits, `-` and `_`."""
        packed = base64.urlsafe_b64encode(_BETWEEN.join(self).encode())
        return f"{prefix}{packed.decode().rstrip('=')}"


def read_turn_id(prefix: str, given: object) -> TurnId | None:
    """The turn that `written` named; None for any other text."""
    if not isinstance(given, str) or not given.startswith(prefix) or len(given) > ID_LENGTH_MAX:
        return None
    packed = given[len(prefix) :]
    try:
        text = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True).decode()
        agent, session_id, token = (check_id(part, "part of an id") for part in text.split(_BETWEEN))
    except (ValueError, Invalid):
        return None
    found = TurnId(agent, session_id, token)
    return found if found.written(prefix) == given else None  # One id for a turn, and one turn for an id.


def digest(*parts: Json) -> str:
    """A text that is the same for the same values, and for no others: 40 hexadecimal digits."""
    return sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:40]
