"""Calls between runtimes as JSON: what a caller sends, and the turn that a peer makes of it.

Only JSON crosses: a dictionary with an object in it, a budget or a signal stays with its process, so a call with one is
refused wherever it would run. The forms are written down in `docs/reference/formats/wire.md`.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from secrets import token_hex
from typing import Any, Literal, TypeAlias, cast, get_args

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from msgspec.structs import replace as replace_fields

from repertory.actors.call import OUTER_TURNS, ChangeTimers, CompleteTool, Following, Invocation, names_of_turns
from repertory.actors.context import AgentSettings
from repertory.app.host.edge import context_of, trace_headers
from repertory.backends.peers.ports import BoxedCall, JsonLine, PeerLost
from repertory.backends.ports import OutputSchema
from repertory.core.callers import CallerRules
from repertory.core.deferral import DeferredTool
from repertory.core.ids import check_id
from repertory.core.interrupts import Interrupt
from repertory.core.journal.image import Image
from repertory.core.journal.rows import Row
from repertory.core.json_fields import json_list, json_object, shown
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.memory.progress import messages_in_rows
from repertory.core.message_tree.json_files import decoded, encoded
from repertory.core.messages import Json, Prompt, ToolSpec, check_result
from repertory.core.result import MALFORMED, AgentResult, TurnEvent, interrupts_in
from repertory.core.timers import DueTimes, Timer
from repertory.core.told_turn import AskTurn, ToldTurn, read_told, told_json
from repertory.core.turn_log import START, Offset, begun_at, read_offset
from repertory.core.turn_start import call_token
from repertory.core.unfinished import PendingTurn
from repertory.core.wire import event_from_json
from repertory.errors import Failed, Invalid, RepertoryError, StructuredOutputException

_BUSY = ("queue", "reject", "interrupt", "steer")


class PeerCall(Struct, frozen=True, kw_only=True):
    """A call on its way to another runtime."""

    agent: str
    session: str
    token: str
    prompt: Any
    """JSON, as the options."""
    options: Mapping[str, Any] = {}
    deadline_s: float | None = None
    """The seconds that the caller has left; None: any time."""
    events: bool = False
    """Whether it wants the events of the turn, or the result alone."""
    run: str | None = None
    """The run that it has read of before, and the number of the last line that it has got."""
    after: int = 0
    trace: Mapping[str, str] = {}
    """The caller's trace as W3C headers, if it has one."""
    follow: Mapping[str, Any] = {}
    """How it follows the turn, if it does: the offset `after`, `begins` and `detach`."""
    reader: str = ""
    """Names the caller among those of the same token."""
    inside: Sequence[str] = ()
    """The names of the turns in which the call was made."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Names what is answered, so that a caller who comes back finds it."""
        return self.agent, self.session, f"{self.token} {self.reader}" if self.reader else self.token

    def as_json(self) -> dict[str, Json]:
        """The body of the request."""
        body = cast("dict[str, Json]", msgspec.to_builtins(self))
        for name in ("trace", "follow", "reader", "inside"):  # Said only by who has it.
            if not body[name]:
                del body[name]
        return body


def new_peer_call(
    invocation: Invocation, default: OutputSchema | None, agent: AgentSettings, *, events: bool
) -> PeerCall:
    """The call, which has a token, for another process. Errors: as `portable`."""
    prompt, options = portable(invocation, default)
    return PeerCall(
        agent=agent.agent_id,
        session=agent.session_id,
        token=str(invocation.idempotency_token),
        prompt=prompt,
        options=options,
        events=events,
        inside=names_of_turns(invocation.context),
    )


def read_peer_call(body: Mapping[str, Json]) -> PeerCall:
    """The call from a request. Errors: `Invalid` for what is none."""
    try:
        call = msgspec.convert(body, PeerCall)
    except msgspec.ValidationError as error:
        raise Invalid("this is no call", cause=str(error)) from None
    check_id(call.agent, "agent")
    check_id(call.session, "session")
    check_id(call.token, "token")
    return call


def portable(invocation: Invocation, default: OutputSchema | None) -> tuple[Json, dict[str, Json]]:
    """Prompt and options of the call as JSON. `default`: the agent's own output schema, which its peers have too.

    Errors: `Invalid` for what cannot leave this process, by name.
    """
    if invocation.budget is not None:
        raise Invalid(
            "a budget counts in one process: in a runtime with peers, a call takes limits instead of a budget"
        )
    options: dict[str, Json] = {}
    if invocation.busy is not None:
        options["busy"] = invocation.busy
    if invocation.limits is not NO_LIMITS:
        options["limits"] = {name: value for name, value in asdict(invocation.limits).items() if value is not None}
    if invocation.caller is not None:
        options["caller"] = cast("Json", msgspec.to_builtins(invocation.caller))
    if invocation.drop_interrupts:
        options["drop_interrupts"] = True
    schema = invocation.output_schema
    if schema is not None and (default is None or schema.kind is not default.kind):
        options["output"] = cast("Json", dict(schema.spec))
    if invocation.output_prompt is not None:
        options["output_prompt"] = invocation.output_prompt
    state = {name: value for name, value in invocation.invocation_state.items() if name != "request_state" or value}
    if state:
        options["invocation_state"] = _plain(state, "invocation_state")
    return _plain(invocation.prompt, "the prompt"), options


def invocation_for(call: PeerCall, default: OutputSchema | None) -> Invocation:
    """The call as this process makes it. Errors: `Invalid` for options that are malformed."""
    options = dict(call.options)
    try:
        given = options.get("limits")
        limits = NO_LIMITS if given is None else msgspec.convert(given, TurnLimits)
        caller = msgspec.convert(options.get("caller"), CallerRules | None)
        output = options.get("output")
        schema = default if output is None else SchemaOnly(msgspec.convert(output, ToolSpec))
        state = msgspec.convert(_read(options.get("invocation_state", {})), dict[str, Any])
        busy = msgspec.convert(options.get("busy"), str | None)
        output_prompt = msgspec.convert(options.get("output_prompt"), str | None)
        following = _following(call)
    except msgspec.ValidationError as error:
        raise Invalid("these are no options of a call", cause=str(error)) from None
    if busy is not None and busy not in _BUSY:
        raise Invalid(f"busy is one of {', '.join(_BUSY)}", got=busy)
    state.setdefault("request_state", {})
    left_s = math.inf if call.deadline_s is None else call.deadline_s
    context = context_of(call.trace)
    context.run(OUTER_TURNS.set, tuple(call.inside))
    return Invocation(
        prompt=cast("Prompt", _read(call.prompt)),
        busy=cast("Any", busy),
        invocation_state=state,
        limits=limits,
        caller=caller,
        deadline=anyio.current_time() + left_s,
        idempotency_token=call.token,
        drop_interrupts=bool(options.get("drop_interrupts")),
        output_schema=schema,
        output_prompt=output_prompt,
        cancel_signal=threading.Event(),
        following=following,
        context=context,
    )


def _following(call: PeerCall) -> Following | None:
    """None for a call without events, which has no offsets. Errors: `Invalid` for what is no offset."""
    if not call.follow or not call.events:
        return None
    after = call.follow.get("after")
    begins, detach = call.follow.get("begins") is not False, call.follow.get("detach") is True
    return Following(after=START if after is None else read_offset(after), begins=begins, detach=detach)


def follow_json(following: Following | None) -> dict[str, Json]:
    """How a call follows its turn, for `PeerCall.follow`."""
    if following is None:
        return {}
    return {"after": str(following.after), "begins": following.begins, "detach": following.detach}


def boxed_call(invocation: Invocation, default: OutputSchema | None, agent: AgentSettings) -> BoxedCall:
    """The call for a call box, with a token. Errors: as `portable`."""
    prompt, options = portable(invocation, default)
    said: dict[str, Json] = {"prompt": prompt, "options": options}
    trace = invocation.context.run(trace_headers)
    if trace:
        said["trace"] = {**trace}
    return BoxedCall(
        session_id=agent.session_id,
        agent_id=agent.agent_id,
        token=invocation.idempotency_token or call_token(token_hex(16)),
        call=said,
    )


def unboxed_call(posted: BoxedCall, default: OutputSchema | None) -> Invocation:
    """The posted call as this process makes it. Errors: `Invalid` for one that is malformed."""
    if not posted.call:
        raise Invalid("the posted call is malformed: post it again", token=posted.token)
    named: dict[str, Json] = {"agent": posted.agent_id, "session": posted.session_id, "token": posted.token}
    return invocation_for(read_peer_call({**posted.call, **named, "events": False}), default)


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
    kept = invocation.invocation_state.get("request_state")
    if isinstance(kept, dict):
        state = cast("dict[str, Any]", kept)
        state.update(result.state)
        result = replace(result, state=state)
    return result


@contextmanager
def reading_answer() -> Generator[None]:
    """Around what takes the answer of a peer apart. Errors: `Failed` for what is none: no argument of the caller is to
    blame.
    """
    try:
        yield
    except (Invalid, msgspec.ValidationError, *MALFORMED) as error:
        text = "a peer answers what this runtime does not understand: all have one release"
        raise Failed(text, cause=shown(error)) from error


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


class SchemaOnly:
    """An output schema whose type is in the caller's process: its answer stays JSON, and the caller checks the rest."""

    kind: type[Any] = dict

    def __init__(self, spec: ToolSpec) -> None:
        self.name = spec["name"]
        self.spec = spec

    def read(self, value: object) -> tuple[object, str]:
        """The JSON object. Errors: `Invalid` for what is none, and for fields that are missing."""
        given = value
        if isinstance(value, str):
            try:
                given = json.loads(value)
            except ValueError as error:
                raise Invalid(f"Validation failed for {self.name}: {error}") from None
        if not isinstance(given, dict):
            raise Invalid(f"Validation failed for {self.name}: the value is a JSON object")
        found = cast("dict[str, object]", given)
        schema = cast("Mapping[str, Any]", self.spec["inputSchema"].get("json", {}))
        missing = [name for name in schema.get("required", ()) if name not in found]
        if missing:
            raise Invalid(f"Validation failed for {self.name}. Fields are missing: {', '.join(missing)}")
        return found, json.dumps(found)


def _plain(value: object, what: str) -> Json:
    try:
        found = encoded({"value": value})["value"]
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        text = f"{what} goes to other processes in a runtime with peers, and has what JSON cannot hold"
        raise Invalid(text, cause=str(error)) from None
    return cast("Json", found)


def _read(value: Json) -> object:
    """Errors: `Invalid` for what is nested too deeply."""
    try:
        return decoded({"value": value})["value"]
    except ValueError as error:
        raise Invalid("a value of the call cannot be read", cause=str(error)) from None


class Told:
    """What the caller of one call has been told, over all peers that have worked on it."""

    def __init__(self, following: Following | None = None) -> None:
        """`following`: of a call whose events have offsets."""
        self._following = following
        self.reader = ""
        """Names it at the peer among those that call under the same token, so that leaving ends the turn for nobody
        else. One that comes back from another peer is a new one: what it was told before has lines that it would be
        given again.
        """
        self._peer = ""
        self._run: str | None = None
        self._after = 0
        self._pieces = False
        """Whether pieces were told of a message that is not whole yet."""
        self._error: RepertoryError | None = None
        """What broke off, until the next event."""
        self._goes_on = False
        """Whether the events are those of the same run."""
        self._breaks = 0

    def read(self, peer: str) -> dict[str, object]:
        """Where the reading goes on, if it is the same peer."""
        self._goes_on = False
        if peer == self._peer:
            return {"run": self._run, "after": self._after}
        self.reader = token_hex(8)
        return {"run": None, "after": 0}

    def line(self, peer: str, line: JsonLine) -> None:
        """A line has come."""
        run, number = line.get("run"), line.get("n")
        if isinstance(run, str):
            self._goes_on = run == self._run
            self._peer, self._run = peer, run
            self._after = self._after if self._goes_on else 0
        if isinstance(number, int):
            self._after = number

    def broken(self, error: RepertoryError) -> None:
        """What follows comes from another try."""
        self._error, self._goes_on = error, False

    @property
    def following(self) -> Following | None:
        """How the next try follows the turn: from the last event on that was told."""
        return self._following

    def next(self, event: TurnEvent) -> list[TurnEvent]:
        """The event, after one that says that the message begins anew, where pieces of it were told already. A turn
        that is followed says so itself.
        """
        if self._following is not None:
            if isinstance(event.get("offset"), str):
                self._following = replace_fields(self._following, after=read_offset(event["offset"]))
            return [event]
        told: list[TurnEvent] = [event]
        if self._error is not None and self._pieces and not self._goes_on and "result" not in event:
            self._breaks += 1
            told.insert(0, {"model_retry": {"attempt": self._breaks, "delay_s": 0.0, "error": self._error}})
        self._error = None
        if "message" in event:
            self._pieces = False
        elif "event" in event or "data" in event:
            self._pieces = True
        return told


def told_by_rows(
    rows: Sequence[Row],
    image: Image,
    token: str,
    following: Following | None,
    result: AgentResult,
    *,
    session_id: str,
) -> list[TurnEvent]:
    """What a caller gets of a turn that is over from its rows: for one that follows it, the messages after its offset;
    then the result.
    """
    turn = image.finished_turns.get(token)
    if following is None or turn is None:
        return [{"result": result}]
    if following.after.over:
        return []
    said = messages_in_rows(rows, rows[0].seq - 1 if rows else 0, turn.answer_seq, session_id=session_id)
    first = max(begun_at([(one.seq, one.message) for one in said], turn.seq), following.after.seq + 1)
    events: list[TurnEvent] = [
        {"message": one.message, "offset": str(Offset(one.seq))} for one in said if first <= one.seq <= turn.answer_seq
    ]
    return [*events, {"result": result, "offset": str(Offset(turn.answer_seq, over=True))}]


# What is asked of a session besides a turn.

_Name: TypeAlias = Literal["messages", "interrupts", "history", "timers", "deferred", "pending", "cancel"]
SessionQuestion: TypeAlias = "_Name | ChangeTimers | CompleteTool | AskTurn"


def question_json(question: SessionQuestion, now: float) -> Json:
    """The question as JSON; `now`: epoch seconds. Errors: `Invalid` for due times that are none."""
    if isinstance(question, str):
        return {"what": question}
    if isinstance(question, CompleteTool):
        result = _plain(question.result, "a result")
        return {"what": "complete tool", "id": question.id, "result": result, "starts": question.starts}
    if isinstance(question, AskTurn):
        return {"what": "turn", **asdict(question)}
    due: Json = None
    if question.due is not None:
        at, every_s = question.due.read(now)
        due = {"at": at, "every": every_s}
    return {"what": "change timers", "id": question.timer_id, "prompt": question.prompt, "due": due}


def read_question(body: Json) -> SessionQuestion:
    """The question from JSON. Errors: `Invalid` for what is none."""
    try:
        return _question_in(json_object(body))
    except TypeError as error:
        raise Invalid("this is no question", cause=shown(error)) from None


def _question_in(fields: Mapping[str, Json]) -> SessionQuestion:
    what = fields.get("what")
    if what in get_args(_Name):
        return cast("_Name", what)
    if what == "complete tool":
        result = check_result(_read(fields.get("result")))
        return CompleteTool(id=str(fields.get("id")), result=result, starts=fields.get("starts") is not False)
    if what == "turn":
        token = fields.get("token")
        cancel, stored = fields.get("cancel") is True, fields.get("stored") is True
        return AskTurn(None if token is None else str(token), cancel, stored)
    if what != "change timers":
        raise Invalid("nobody asks that of a session", what=str(what))
    due = fields.get("due")
    times = None if due is None else DueTimes(at=json_object(due).get("at"), every=json_object(due).get("every"))
    return ChangeTimers(timer_id=str(fields.get("id")), prompt=str(fields.get("prompt")), due=times)


def answer_json(found: object) -> Json:
    """The answer as JSON."""
    if isinstance(found, list):
        found = [_answer_fields(one) for one in cast("list[object]", found)]
    elif isinstance(found, PendingTurn):
        tools = [msgspec.to_builtins(one) for one in found.tools]
        found = {"why": found.why, "interrupts": [one.to_dict() for one in found.interrupts], "tools": tools}
    elif isinstance(found, ToldTurn):
        found = told_json(found)
    return cast("Json", encoded({"all": found}))


def _answer_fields(one: object) -> object:
    match one:
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
            return read_told(cast("Json", found))
        case _:
            return found


@asynccontextmanager
async def answering(
    call: AbstractAsyncContextManager[AsyncIterator[JsonLine]], within_s: float
) -> AsyncGenerator[AsyncIterator[JsonLine]]:
    """The call, of which the first line comes in time. Errors: `PeerLost`."""
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
