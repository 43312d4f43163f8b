"""The options of a call beside its prompt, how they become an invocation, and the callback handler."""

from __future__ import annotations

import inspect
import logging
import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

import anyio

from repertory.actors.call import Busy, Invocation
from repertory.core.budget import Budget
from repertory.core.ids import check_id
from repertory.core.limits import Limits, read_limits
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.backends.ports import OutputSchema
    from repertory.core.messages import Prompt


class CallOptions(TypedDict, total=False):
    """The options of every form of a call beside the prompt. None means the same as leaving an option out."""

    invocation_state: dict[str, Any] | None
    """Values for the hooks and tools of this call, which share this very dictionary. Its `request_state` (created when
    missing) comes back as `result.state`. Not stored."""
    structured_output_model: type[Any] | None
    """A pydantic model class: the answer is an object of it, `result.structured_output`."""
    limits: Limits | None
    idempotency_token: str | None
    """Names the turn. A second call with the same token, also after a restart, gives the same answer and runs nothing
    twice; while its turn runs, the call shares it; a turn that failed or was cut short continues."""
    timeout_s: float | None
    """Seconds for the whole call. A turn that still runs then ends with stop reason `limit_time`; a call that still
    waits for other turns is refused with `AgentBusy`, and one whose store has not taken its turn 2 seconds later with
    `Unavailable`."""
    drop_interrupts: bool | None
    """Whether to continue without the answers of a person: tools that wait for them get an error result."""
    budget: Budget | None
    """What all work of this call may use together; see `Budget`."""
    busy: Busy | None
    """What to do while another turn runs; None for the agent's own setting."""


_BUSY = ("queue", "reject", "interrupt", "steer")


def read_call(prompt: Prompt, options: CallOptions, default_form: type[Any] | None) -> Invocation:
    """The invocation. Errors: `TypeError` for an unknown option, `Invalid` for a bad value."""
    if not options:
        return Invocation(
            prompt=prompt, invocation_state={"request_state": {}}, output_schema=output_form(default_form)
        )
    unknown = sorted(options.keys() - CallOptions.__annotations__.keys())
    if unknown:
        msg = f"a call takes {', '.join(CallOptions.__annotations__)}, not {', '.join(unknown)}"
        raise TypeError(msg)
    state = options.get("invocation_state")
    if state is None:
        state = {}
    elif not isinstance(cast("object", state), dict):
        raise Invalid("invocation_state is a dictionary", got=type(state).__name__)
    kept = state.setdefault("request_state", {})
    if not isinstance(kept, dict):
        raise Invalid("invocation_state['request_state'] is a dictionary", got=type(kept).__name__)
    busy, token, timeout_s = options.get("busy"), options.get("idempotency_token"), options.get("timeout_s")
    if busy is not None and busy not in _BUSY:
        raise Invalid(f"busy is one of {', '.join(_BUSY)}", got=busy)
    if timeout_s is None:
        timeout_s = math.inf
    elif (
        isinstance(cast("object", timeout_s), bool)
        or not isinstance(cast("object", timeout_s), int | float)
        or not 0 < timeout_s < math.inf
    ):
        raise Invalid("timeout_s is a positive number of seconds", got=timeout_s)
    return Invocation(
        prompt=prompt,
        busy=busy,
        invocation_state=state,
        limits=read_limits(options.get("limits")),
        deadline=anyio.current_time() + timeout_s,
        idempotency_token=None if token is None else check_id(token, "idempotency_token"),
        drop_interrupts=bool(options.get("drop_interrupts")),
        output_schema=output_form(options.get("structured_output_model") or default_form),
        budget=_budget(options.get("budget")),
    )


def _budget(budget: object) -> Budget | None:
    if budget is None or isinstance(budget, Budget):
        return budget
    raise Invalid("budget is a Budget", got=type(budget).__name__)


def output_form(kind: type[Any] | None) -> OutputSchema | None:
    """The output schema of a type. Loads pydantic, which the author of the type has loaded. Errors: `Invalid`."""
    if kind is None:
        return None
    from repertory.backends.tools.output_form import schema_for

    return schema_for(kind)


def request_state_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """The part of an invocation state that callback handlers get."""
    found = state.get("request_state")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


CallbackHandler: TypeAlias = "Callable[..., object]"
"""Called with each event's entries as keywords, and `request_state`. The turn waits for an asynchronous handler."""

_log = logging.getLogger("repertory.callbacks")


async def call_handler(handler: CallbackHandler, event: Mapping[str, object], request_state: dict[str, Any]) -> None:
    """Call the handler. Its exception is logged, and the turn goes on."""
    try:
        outcome = handler(**event, request_state=request_state)
        if outcome is not None and inspect.isawaitable(outcome):
            await outcome
    except Exception as error:  # noqa: BLE001 - a handler is the user's code, and only watches
        _log.error("callback handler failed", exc_info=error)


def print_events(**event: object) -> None:
    """Print the answer's text as it streams, and a line for each tool that starts."""
    match event:
        case {"data": str(text)}:
            sys.stdout.write(text)
            sys.stdout.flush()
        case {"tool_started": {"name": str(name)}}:
            sys.stdout.write(f"\n[{name}]\n")
        case {"result": _}:
            sys.stdout.write("\n")
        case _:
            pass
