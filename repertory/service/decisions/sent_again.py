"""The meaning of a request in a session: one decision, for every protocol whose clients send requests again.

    a turn of the session has the request's name      the same again: it gets that turn as it is now
    the session asks a person                         an answer; refused where the request cannot be one
    the session asks nobody                           a new prompt; refused where the request names a turn to answer

A name is the token of what the request began or answered. The session's journal has it, beside the prompt or the
answer, so an answer that is sent again is never taken for the answer to a later question, whichever process it reaches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from repertory.core.turns.turn_status import TurnStatus

AGAIN_S = 120.0
"""The seconds after its turn in which a request without a key may be sent again, to a process that does not know it.
The clients of OpenAI wait a minute at most before they try again.
"""
EARLIEST, NEVER = -math.inf, math.inf

AnswersWith = Literal["nothing", "text", "ids"]
"""The way in which a request may answer questions: not at all, by a text for all that are open, or by their ids."""
RequestMeans = Literal["begins", "answers", "again", "refused"]


class RequestName(Struct, frozen=True):
    """The names by which a session may know a request."""

    token: str
    """The token of the turn that it begins or answers."""
    family: str = ""
    """The beginning of the tokens of requests that cannot be told from this one; empty where its token says all."""
    again: bool = True
    """False if the client says that it sends it for the first time."""
    since: float = EARLIEST
    """The earliest end, in epoch seconds, of a turn that may be its own: an equal request may be another one."""

    def known_in(self, newest: TurnStatus | None) -> str | None:
        """The token by which the session knows it. `newest`: the session's newest turn."""
        if newest is None or not self.again:
            return None
        if self.token in newest.names:
            return self.token
        return next((name for name in reversed(newest.names) if self.family and name.startswith(self.family)), None)


def meaning_of(
    name: RequestName,
    known: TurnStatus | None,
    turn: TurnStatus | None,
    answers: AnswersWith,
    *,
    named: bool,
) -> RequestMeans:
    """The meaning of the request. `known`: the turn that the session knows by its name. `turn`: the turn that it wants
    to answer if `named`, else the newest one.
    """
    if known is not None and (known.state in ("asks", "runs") or known.at >= name.since):
        return "again"
    if turn is not None and turn.state == "asks":
        return "refused" if answers == "nothing" else "answers"
    if not named:
        return "begins"
    return "again" if turn is not None and answers == "ids" else "refused"  # An id is of one question for ever.
