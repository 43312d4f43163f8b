"""Calls as JSON, for boxes that keep them and for other runtimes, and the turn that a process makes of one.

Only JSON crosses: a dictionary with an object in it, a budget or a signal stays with its process, so a call with one is
refused wherever it would run. The forms are written down in `docs/reference/formats/wire.md`.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any, Literal, TypeAlias, cast, get_args

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from repertory.actors.call import OUTER_TURNS, ChangeTimers, CompleteTool, Following, Invocation
from repertory.app.tracebacks import context_of, trace_headers
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import OutputSchema
from repertory.core.callers import CallerRules
from repertory.core.ids import check_id
from repertory.core.json_bytes import decoded, encoded
from repertory.core.json_fields import json_object, shown
from repertory.core.limits import NO_LIMITS, TurnLimits
from repertory.core.messages import Json, Prompt, ToolSpec, check_result
from repertory.core.timers import DueTimes
from repertory.core.turn_log import START, read_offset
from repertory.core.turns.turn_start import call_token
from repertory.core.turns.turn_status import AskTurn
from repertory.errors import Invalid

_BUSY = ("queue", "reject", "interrupt", "steer")


class PeerCall(Struct, frozen=True, kw_only=True):
    """A call on its way to another runtime."""

    agent: str
    session: str
    token: str
    prompt: Any
    """The prompt as JSON, like the options."""
    options: Mapping[str, Any] = {}
    deadline_s: float | None = None
    """The seconds that the caller has left; None: any time."""
    events: bool = False
    """True if the caller wants the events of the turn, not the result alone."""
    run: str | None = None
    """The run that it has read of before, and the number of the last line that it has got."""
    after: int = 0
    trace: Mapping[str, str] = {}
    """The caller's trace as W3C headers, if it has one."""
    follow: Mapping[str, Any] = {}
    """The offset `after`, `begins` and `detach` of a caller that follows the turn; empty for others."""
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
    if invocation.resume is not None:
        options["resume"] = invocation.resume
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
        resume = msgspec.convert(options.get("resume"), bool | None)
        following = _following(call)
    except msgspec.ValidationError as error:
        raise Invalid("these are no options of a call", cause=str(error)) from None
    if busy is not None and busy not in _BUSY:
        raise Invalid(f"busy is one of {', '.join(_BUSY)}", got=busy)
    state.setdefault("request_state", {})
    remaining_s = math.inf if call.deadline_s is None else call.deadline_s
    context = context_of(call.trace)
    context.run(OUTER_TURNS.set, tuple(call.inside))
    return Invocation(
        prompt=cast("Prompt", _read(call.prompt)),
        busy=cast("Any", busy),
        invocation_state=state,
        limits=limits,
        caller=caller,
        deadline=anyio.current_time() + remaining_s,
        idempotency_token=call.token,
        drop_interrupts=bool(options.get("drop_interrupts")),
        resume=resume,
        output_schema=schema,
        output_prompt=output_prompt,
        cancel_signal=threading.Event(),
        following=following,
        context=context,
    )


def _following(call: PeerCall) -> Following | None:
    """The request to follow the turn; None for a call without events. Errors: `Invalid` for what is no offset."""
    if not call.follow or not call.events:
        return None
    after = call.follow.get("after")
    begins, detach = call.follow.get("begins") is not False, call.follow.get("detach") is True
    return Following(after=START if after is None else read_offset(after), begins=begins, detach=detach)


def queued_call(invocation: Invocation, default: OutputSchema | None, session_id: str, agent_id: str) -> QueuedCall:
    """The call for a call box, with a token. `agent_id`: also that of a graph or swarm. Errors: as `portable`."""
    prompt, options = portable(invocation, default)
    fields: dict[str, Json] = {"prompt": prompt, "options": options}
    trace = invocation.context.run(trace_headers)
    if trace:
        fields["trace"] = {**trace}
    token = invocation.idempotency_token or call_token(token_hex(16))
    return QueuedCall(session_id=session_id, agent_id=agent_id, token=token, call=fields)


def queued_question(question: SessionQuestion, now: float, session_id: str, agent_id: str) -> QueuedCall:
    """The question for a call box, whose answer nobody reads. `now`: epoch seconds."""
    asked = {"asks": question_json(question, now)}
    return QueuedCall(session_id=session_id, agent_id=agent_id, token=call_token(token_hex(16)), call=asked)


def read_queued_question(posted: QueuedCall) -> SessionQuestion | None:
    """The question that was posted; None for a call. Errors: `Invalid` for what is none."""
    return read_question(posted.call["asks"]) if "asks" in posted.call else None


def read_queued_call(posted: QueuedCall, default: OutputSchema | None) -> Invocation:
    """The posted call as this process makes it. Errors: `Invalid` for one that is malformed."""
    if not posted.call:
        raise Invalid("the posted call is malformed: post it again", token=posted.token)
    named: dict[str, Json] = {"agent": posted.agent_id, "session": posted.session_id, "token": posted.token}
    return invocation_for(read_peer_call({**posted.call, **named, "events": False}), default)


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
