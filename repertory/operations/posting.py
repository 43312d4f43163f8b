"""Calls and timers for sessions, put down without their agents: a runtime that has them does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repertory.app.agent.session import read_call
from repertory.app.host.call_forms import queued_call, queued_question
from repertory.backends.peer_ports import no_call_queue
from repertory.backends.ports import call_queue_of
from repertory.core.ids import check_id
from repertory.core.limits import NO_LIMITS
from repertory.core.timers import DueTimes, new_timer
from repertory.core.turns.turn_start import read_prompt

if TYPE_CHECKING:
    from repertory.actors.call import ChangeTimers
    from repertory.app.agent.session import CallOptions
    from repertory.backends.peer_ports import QueuedCall
    from repertory.backends.ports import SessionStore
    from repertory.core.messages import Prompt


def call_to_post(agent: str, session_id: str, prompt: Prompt, options: CallOptions) -> QueuedCall:
    """The call of a turn or run. Errors: `Invalid`, `TooLarge`."""
    check_id(agent, "agent name")
    invocation = read_call(prompt, options, None)
    read_prompt(invocation.prompt, NO_LIMITS.sizes.prompt_bytes)
    return queued_call(invocation, None, check_id(session_id, "session id"), agent)


def timer_to_post(agent: str, session_id: str, change: ChangeTimers, now: float) -> QueuedCall:
    """The call that sets a timer. `now`: epoch seconds. Errors: `Invalid`, `TooLarge`."""
    check_id(agent, "agent name")
    due = change.due or DueTimes()
    new_timer(change.timer_id, change.prompt, due, now=now, prompt_bytes=NO_LIMITS.sizes.prompt_bytes)
    return queued_question(change, now, check_id(session_id, "session id"), agent)


async def post(store: SessionStore, call: QueuedCall) -> None:
    """Have the call made by whoever has its agent. Errors: `Invalid` for a store without a box, and those of it."""
    box = call_queue_of(store)
    if box is None:
        raise no_call_queue()
    await box.put(call)
