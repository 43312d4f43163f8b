"""Why a call has not been answered where it was made: as errors, as lines between runtimes, as setbacks of its way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from repertory.app.host.doorman import NoRoom
from repertory.backends.peers.ports import JsonLine, PeerLost, PeerRefused, PeerUnreachable
from repertory.core.messages import Json
from repertory.core.peers import Setback
from repertory.core.wire import error_from_json, error_to_json
from repertory.errors import Failed, LeaseLost, RepertoryError, SessionBusy, StoreUnavailable, Unavailable

_WAIT_MAX_S = 3600.0
"""The longest wait that is believed of a peer without room."""


class TurnRaised(RepertoryError):
    """The turn has failed: that is the caller's answer."""

    def __init__(self, error: Exception) -> None:
        super().__init__("the turn has failed")
        self.error = error


class Moved(RepertoryError):
    """Another one owns the session."""

    def __init__(self, owner: object) -> None:
        super().__init__("another peer has the session")
        self.owner = owner if isinstance(owner, str) else None


class PeerDrains(RepertoryError):
    """The peer shuts down."""

    def __init__(self) -> None:
        super().__init__("the peer shuts down")


def raise_from(line: JsonLine) -> None:
    """Raise what `setback_line` has written, or the turn's own error as `TurnRaised`; nothing for another line."""
    if "error" in line:
        raise TurnRaised(error_from_json(cast("Mapping[str, object]", line["error"])))
    if "moved" in line:
        raise Moved(line["moved"])
    if "draining" in line:
        raise PeerDrains
    if "full" in line:
        raise PeerRefused(429, {"retry_after_s": line["full"]})
    if "unavailable" in line:
        raise PeerUnreachable("the peer does not reach the sessions", cause=str(line["unavailable"]))


def setback_line(error: RepertoryError) -> JsonLine:
    """The last line for a turn that was not begun here, or has moved."""
    match error:
        case SessionBusy() | LeaseLost():
            return {"moved": cast("Json", error.fields.get("owner"))}
        case PeerDrains():
            return {"draining": True}
        case NoRoom():
            return {"full": error.retry_after_s}
        case Unavailable():  # Of the doorman, or of the host, which refuse as they shut down; or of the store.
            return {"unavailable": error_to_json(error)}
        case _:
            return {"error": error_to_json(error)}


def setback_of(error: RepertoryError) -> tuple[Setback, str | None, float] | None:
    """The setback, the owner that it names, and how long the peer asks to wait; None for what is no setback."""
    match error:
        case PeerUnreachable() | StoreUnavailable():
            return "unreachable", None, 0.0
        case PeerLost():
            return "lost", None, 0.0
        case Moved():
            return "moved", error.owner, 0.0
        case SessionBusy() | LeaseLost():
            owner = error.fields.get("owner")
            return "moved", owner if isinstance(owner, str) else None, 0.0
        case PeerDrains():
            return "draining", None, 0.0
        case NoRoom():
            return "full", None, error.retry_after_s or 0.0
        case PeerRefused():
            return _refusal(error)
        case _:
            return None


def plainly(error: RepertoryError) -> Exception:
    """What the caller gets for an error that no other try helps with."""
    if not isinstance(error, PeerRefused):
        return error
    told = error.body.get("error")
    if error.status == 400 and isinstance(told, dict):
        return error_from_json(told)
    text = "a peer refuses the calls of this runtime: all have one release"
    return Failed(text, status=error.status, answer=dict(error.body))


def _refusal(error: PeerRefused) -> tuple[Setback, str | None, float] | None:
    owner, wait_s = error.body.get("owner"), error.body.get("retry_after_s")
    match error.status:
        case 307:
            return "moved", owner if isinstance(owner, str) else None, 0.0
        case 404:
            return "not served", None, 0.0
        case 429:
            return "full", None, float(min(max(wait_s, 0.0), _WAIT_MAX_S)) if isinstance(wait_s, int | float) else 0.0
        case 503:
            return "draining", None, 0.0
        case _:
            return None
