"""Calls between runtimes: what is sent and answered, what a caller has of it, why a call was not answered."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace as replace_fields

from repertory.actors.call import Following, Invocation
from repertory.app.host.admission import NoRoom
from repertory.app.host.call_forms import SessionQuestion
from repertory.backends.peer_ports import JsonLine, PeerLost, PeerRefused, PeerUnreachable
from repertory.core.deferral import DeferredTool
from repertory.core.ids import check_id
from repertory.core.interrupts import Interrupt
from repertory.core.journal.image import Image
from repertory.core.journal.rows import Row
from repertory.core.json_bytes import decoded, encoded
from repertory.core.json_fields import as_text, json_list, json_object
from repertory.core.memory.progress import messages_in_rows
from repertory.core.messages import Json
from repertory.core.peers import RoutingFailure
from repertory.core.result import MALFORMED, AgentResult, TurnEvent, interrupts_in
from repertory.core.timers import Timer
from repertory.core.turn_log import Offset, begun_at, read_offset
from repertory.core.turns.turn_status import AskTurn, PendingTurn, TurnStatus, read_turn_status, turn_status_json
from repertory.core.wire import error_from_json, error_to_json, event_from_json
from repertory.errors import (
    Failed,
    Invalid,
    LeaseLost,
    RepertoryError,
    SessionBusy,
    StoreUnavailable,
    StructuredOutputException,
    Unavailable,
)


class PeerCancel(Struct, frozen=True, kw_only=True):
    """The request to cancel a turn: in order, or at once, when nobody wants its result."""

    agent: str
    session: str
    token: str
    at_once: bool = True


class PeerQuestion(Struct, frozen=True, kw_only=True):
    """The request to answer a question about a session."""

    agent: str
    session: str
    call: dict[str, Any]


class PeerCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request to run a turn, or to go on with the answer of one."""

    agent: str
    session: str
    token: str
    call: dict[str, Any]
    """The call, as `call_fields` writes it."""
    deadline_s: float | None = None
    """The seconds that the caller has left; None: any time."""
    events: bool = False
    """True if the caller wants the events of the turn, not the result alone."""
    offset: str | None = None
    """The offset of the last event that the caller has; None for the events of the turn's log. See `Following`."""
    follows: bool = False
    """True if the caller follows the turn, which does not wait for it then."""
    begins: bool = True
    detach: bool = False
    reader: str = ""
    """Names the caller among those of the same token: leaving ends the turn for no other."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Names what is answered, so that a caller who comes back finds it."""
        return self.agent, self.session, f"{self.token} {self.reader}" if self.reader else self.token

    @property
    def after(self) -> Offset | None:
        """Errors: `Invalid` for what is no offset."""
        return None if self.offset is None or not self.events else read_offset(self.offset)


Request = TypeVar("Request", PeerCall, PeerCancel, PeerQuestion)


def read_peer_request(body: JsonLine, kind: type[Request]) -> Request:
    """The request of a peer. Errors: `Invalid` for what is none."""
    try:
        request = msgspec.convert(body, kind)
    except (ValueError, RecursionError) as error:
        raise Invalid("this is no request of a peer", cause=as_text(error, str)) from None
    check_id(request.agent, "agent")
    check_id(request.session, "session")
    return request


def received(result: AgentResult, invocation: Invocation) -> AgentResult:
    """The result as the caller gets it: its structured output as the type that the caller gave, its state in the
    caller's dictionary. Errors: `StructuredOutputException` when the peer's output is none of that type here.
    """
    if invocation.output_schema is not None and result.structured_output is not None:
        try:
            output, _ = invocation.output_schema.read(json.dumps(result.structured_output))
        except Invalid as error:
            raise StructuredOutputException(error.message, stop_reason=result.stop_reason) from error
        result = replace(result, structured_output=output)
    request_state = invocation.invocation_state.get("request_state")
    if isinstance(request_state, dict):
        state = cast("dict[str, Any]", request_state)
        state.update(result.state)
        result = replace(result, state=state)
    return result


@contextmanager
def reading_answer() -> Generator[None]:
    """A block that takes the answer of a peer apart. Errors: `Failed` for what is none: no argument of the caller is to
    blame.
    """
    try:
        yield
    except (Invalid, msgspec.ValidationError, *MALFORMED) as error:
        text = "a peer answers what this runtime does not understand: all have one release"
        raise Failed(text, cause=as_text(error)) from error


def event_of_line(line: JsonLine) -> TurnEvent | None:
    """The event in a line of an answer; the last one has the result of the turn. None for another line.

    Errors: as within `reading_answer`.
    """
    if "event" in line:
        event = event_from_json(json_object(line["event"]))
        if "result" in event:
            raise TypeError(event)
        return event
    if "result" not in line:
        return None
    event = event_from_json({"result": line["result"]})
    if not isinstance(event["result"], AgentResult):
        raise TypeError(event)
    return {**event, "offset": line["offset"]} if "offset" in line else event


class SentEvents:
    """The events that the caller of one call has, from all peers that have worked on it."""

    def __init__(self, following: Following | None = None) -> None:
        """`following`: of a caller that gets the offsets of its events."""
        self._shows_offsets = following is not None
        self.following = following
        """The way in which the next try follows the turn, from the caller's last event on; None for a plain stream that
        has no event with an offset yet.
        """
        self._bare = False
        """True if the last event had no offset."""
        self._error: RepertoryError | None = None
        """The error at which a try broke off behind such an event, until the next one."""

    def broken(self, error: RepertoryError) -> None:
        """Note that a try broke off: the next events come from another one."""
        self._error = error if self._bare else None

    def next(self, event: TurnEvent) -> list[TurnEvent]:
        """The event, after one that says that a message begins anew, where it has pieces without offsets."""
        offset = event.get("offset")
        if isinstance(offset, str):
            self.following = replace_fields(self.following or Following(), after=read_offset(offset))
            if not self._shows_offsets:
                event = {name: value for name, value in event.items() if name != "offset"}
        events: list[TurnEvent] = [event]
        if self._error is not None and "result" not in event:
            events.insert(0, {"model_retry": {"attempt": 1, "delay_s": 0.0, "error": self._error}})
            self._error = None
        self._bare = offset is None
        return events


def events_from_rows(
    rows: Sequence[Row],
    image: Image,
    token: str,
    following: Following | None,
    result: AgentResult,
    *,
    session_id: str,
) -> list[TurnEvent]:
    """The events of a turn that is over, made from its rows: for a caller that follows it, the messages after its
    offset; then the result.
    """
    turn = image.finished_turns.get(token)
    if following is None or turn is None:
        return [{"result": result}]
    if following.after.over:
        return []
    found = messages_in_rows(rows, rows[0].seq - 1 if rows else 0, turn.answer_seq, session_id=session_id)
    first = max(begun_at([(one.seq, one.message) for one in found], turn.seq), following.after.seq + 1)
    events: list[TurnEvent] = [
        {"message": one.message, "offset": str(Offset(one.seq))} for one in found if first <= one.seq <= turn.answer_seq
    ]
    return [*events, {"result": result, "offset": str(Offset(turn.answer_seq, over=True))}]


def answer_json(found: object) -> Json:
    """The answer as JSON."""
    return cast("Json", encoded({"all": _answer_fields(found)}))


def _answer_fields(one: object) -> object:
    match one:
        case list():
            return [_answer_fields(each) for each in cast("list[object]", one)]
        case PendingTurn():
            asked, tools = ([*map(_answer_fields, each)] for each in (one.interrupts, one.tools))
            return {"why": one.why, "interrupts": asked, "tools": tools}
        case TurnStatus():
            return turn_status_json(one)
        case Interrupt():
            return one.to_dict()
        case Timer() | DeferredTool():
            return msgspec.to_builtins(one)
        case _:
            return one


def read_answer(question: SessionQuestion, answer: Json) -> object:
    """The answer that `answer_json` gave to this question. Errors: as within `reading_answer`."""
    found = decoded(json_object(answer)).get("all")
    match question:
        case "messages" | "history":
            return [json_object(one) for one in json_list(found)]
        case "timers":
            return msgspec.convert(found, list[Timer])
        case "deferred":
            return msgspec.convert(found, list[DeferredTool])
        case "interrupts":
            return interrupts_in({"interrupts": cast("Json", found)})
        case "pending" if found is not None:
            fields = json_object(found)
            why = cast("Any", fields["why"])
            tools = msgspec.convert(fields.get("tools", ()), tuple[DeferredTool, ...])
            return PendingTurn(why=why, interrupts=interrupts_in(fields), tools=tools)
        case AskTurn() if found is not None:
            return read_turn_status(cast("Json", found))
        case _:
            return found


@asynccontextmanager
async def answering(
    call: AbstractAsyncContextManager[AsyncIterator[JsonLine]], within_s: float
) -> AsyncGenerator[AsyncIterator[JsonLine]]:
    """The lines of the call, the first of which comes within so many seconds. Errors: `PeerLost`."""
    async with AsyncExitStack() as stack:
        found: tuple[JsonLine | None, AsyncIterator[JsonLine]] | None = None
        with anyio.move_on_after(within_s):
            lines = await stack.enter_async_context(call)
            found = await anext(lines, None), lines
        if found is None:
            raise PeerLost("the peer is still silent", within_s=within_s)
        yield await stack.enter_async_context(aclosing(_behind(*found)))


async def _behind(first: JsonLine | None, lines: AsyncIterator[JsonLine]) -> AsyncGenerator[JsonLine]:
    if first is not None:
        yield first
        async for line in lines:
            yield line


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


def routing_failure_of(error: RepertoryError) -> tuple[RoutingFailure, str | None, float] | None:
    """The routing failure of an error, the owner that it names, and the seconds to wait; None for any other error."""
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
    """The error that the caller gets where no other try helps."""
    if not isinstance(error, PeerRefused):
        return error
    error_class = error.body.get("error")
    if error.status == 400 and isinstance(error_class, dict):
        return error_from_json(error_class)
    text = "a peer refuses the calls of this runtime: all have one release"
    return Failed(text, status=error.status, answer=dict(error.body))


def _refusal(error: PeerRefused) -> tuple[RoutingFailure, str | None, float] | None:
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
