"""Calls on their way to other processes (`PortableCall`), made of a caller's invocation and made into one.

Only JSON crosses: a dictionary with an object in it, a budget or a signal stays with its process, so a call with one is
refused wherever it would run.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from secrets import token_hex
from typing import Any, Literal, TypeAlias, cast

import anyio
import msgspec
from msgspec.structs import asdict, replace

from repertory.actors.call import (
    OUTER_TURNS,
    WORK,
    ChangeTimers,
    CompleteTool,
    Invocation,
    Work,
    names_of_turns,
    work_here,
)
from repertory.app.tracebacks import context_of, trace_headers
from repertory.backends.peer_ports import QueuedCall
from repertory.backends.ports import OutputSchema
from repertory.core.limits import limits_given, read_limits
from repertory.core.messages import Prompt, ToolSpec, check_result
from repertory.core.turns.portable_call import PortableCall, call_fields, read_portable
from repertory.core.turns.turn_start import call_token
from repertory.core.turns.turn_status import AskTurn
from repertory.errors import Invalid


def portable_call(invocation: Invocation, default: OutputSchema | None) -> PortableCall:
    """The call for another process. `default`: the agent's own output schema, which its peers have too.

    Errors: `Invalid` for a budget.
    """
    if invocation.budget is not None:
        raise Invalid(
            "a budget counts in one process: in a runtime with peers, a call takes limits instead of a budget"
        )
    schema, state = invocation.output_schema, invocation.invocation_state
    own = schema is None or (default is not None and schema.kind is default.kind)
    return PortableCall(
        prompt=invocation.prompt,
        busy=invocation.busy,
        limits=limits_given(invocation.limits),
        caller=invocation.caller,
        drop_interrupts=invocation.drop_interrupts,
        resume=invocation.resume,
        output=None if schema is None or own else schema.spec,
        output_prompt=invocation.output_prompt,
        deliver_to=invocation.deliver_to,
        invocation_state={name: value for name, value in state.items() if name != "request_state" or value},
        trace=dict(invocation.context.run(trace_headers)),
        inside=tuple(names_of_turns(invocation.context)),
        again=invocation.context.run(work_here).again,
    )


def invocation_for(
    call: PortableCall,
    token: str,
    default: OutputSchema | None,
    *,
    deadline_s: float | None = None,
) -> Invocation:
    """The call as this process makes it. `deadline_s`: the seconds that the caller has left; None: any time. Errors:
    `Invalid` for limits that are none.
    """
    context = context_of(call.trace)
    context.run(OUTER_TURNS.set, call.inside)
    if call.again:
        context.run(WORK.set, Work(again=True))
    return Invocation(
        prompt=cast("Prompt", call.prompt),
        busy=call.busy,
        invocation_state={"request_state": {}, **call.invocation_state},
        limits=read_limits(call.limits or None),
        caller=call.caller,
        deadline=anyio.current_time() + (math.inf if deadline_s is None else deadline_s),
        idempotency_token=token,
        drop_interrupts=call.drop_interrupts,
        resume=call.resume,
        output_schema=default if call.output is None else SchemaOnly(call.output),
        output_prompt=call.output_prompt,
        deliver_to=call.deliver_to,
        cancel_signal=threading.Event(),
        context=context,
    )


def queued_call(invocation: Invocation, default: OutputSchema | None, session_id: str, agent_id: str) -> QueuedCall:
    """The call for a call queue, with a token; the turns around it do not wait for it. `agent_id`: also that of a graph
    or swarm. Errors: `Invalid` for what cannot leave this process.
    """
    call = replace(portable_call(invocation, default), inside=())
    token = invocation.idempotency_token or call_token(token_hex(16))
    return QueuedCall(session_id=session_id, agent_id=agent_id, token=token, call=call_fields(call))


def queued_question(question: SessionQuestion, now: float, session_id: str, agent_id: str) -> QueuedCall:
    """The question for a call queue, whose answer nobody reads. `now`: epoch seconds."""
    call = call_fields(asking(question, now))
    return QueuedCall(session_id=session_id, agent_id=agent_id, token=call_token(token_hex(16)), call=call)


def read_queued_call(posted: QueuedCall, default: OutputSchema | None) -> Invocation | SessionQuestion:
    """The posted call as this process makes it, or the question that was posted. Errors: `Invalid` for one that is
    malformed.
    """
    if not posted.call:
        raise Invalid("the posted call is malformed: post it again", token=posted.token)
    call = read_portable(posted.call)
    return invocation_for(call, posted.token, default) if call.question is None else read_question(call.question)


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


# What is asked of a session besides a turn.

_Name: TypeAlias = Literal["messages", "interrupts", "history", "timers", "deferred", "pending", "cancel"]
SessionQuestion: TypeAlias = "_Name | ChangeTimers | CompleteTool | AskTurn"


def asking(question: SessionQuestion, now: float) -> PortableCall:
    """The question on its way. `now`: epoch seconds. Errors: `Invalid` for due times that are none."""
    asked: object = question
    if isinstance(question, ChangeTimers) and question.due is not None:
        asked = replace(question, due=question.due.checked(now))
    if isinstance(question, CompleteTool):
        asked = {"what": "complete tool", **asdict(question)}
    return PortableCall(question=msgspec.to_builtins(asked, builtin_types=(bytes, bytearray)))


def read_question(asked: object) -> SessionQuestion:
    """The question of such a call. Errors: `Invalid` for what is none."""
    fields = cast("dict[str, object]", asked) if isinstance(asked, dict) else {}
    if fields.get("what") == "complete tool":
        result = check_result(fields.get("result"))
        starts, cancels = fields.get("starts") is not False, fields.get("cancels") is True
        return CompleteTool(id=str(fields.get("id")), result=result, starts=starts, cancels=cancels)
    try:
        return msgspec.convert(asked, _Name | ChangeTimers | AskTurn)
    except ValueError as error:
        raise Invalid("this is no question", cause=str(error)) from None
