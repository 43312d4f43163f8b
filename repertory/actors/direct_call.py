"""One tool call of the program itself that leaves no trace in the conversation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from repertory.actors.hooks.calls import TurnHooks
from repertory.actors.tools import Hearing, ToolStep, ToolStepParts, ToolStepSettings
from repertory.actors.turn_meter import TurnMeter
from repertory.backends.ports import ToolContext
from repertory.core.interrupts import Questions
from repertory.core.turn import RunTools
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.actors.agent_parts import AgentParts, AgentSettings
    from repertory.core.messages import ToolResult, ToolUse
    from repertory.core.standing import Start


async def call_unrecorded(settings: AgentSettings, parts: AgentParts, use: ToolUse) -> ToolResult:
    """The tool's result. Hooks are told as of any tool call. Cancellation cancels the tool.

    Errors: those of a guard; `Invalid` when the tool, or a hook, asks a person.
    """
    state: dict[str, Any] = {}

    def context_for(use: ToolUse, last: Start | None, hearing: Hearing) -> ToolContext:
        return ToolContext(
            tool_use=use,
            agent_id=settings.agent_id,
            state=parts.state,
            idempotency_key=f"{settings.session_id}/{settings.agent_id}/{use['toolUseId']}",
            invocation_state=state,
            agent=parts.owner,
            on_partial=hearing.on_partial,
            on_exception=hearing.on_exception,
            questions=hearing.questions,
            result_bytes=settings.limits.sizes.result_bytes,
        )

    step = ToolStep(
        ToolStepParts(
            tools=parts.tools.whole,
            ledger=None,
            context_for=context_for,
            hooks=TurnHooks(parts.hooks, parts.owner, state),
            meter=TurnMeter(anyio.current_time),
            questions=Questions(lambda: 0.0),
        ),
        ToolStepSettings(),
    )
    outcome = await step.run(RunTools(uses=(use,), known={}, invalid={}), {}, anyio.CancelScope())
    if outcome.failed is not None:
        raise outcome.failed
    if outcome.asked:
        raise Invalid("cannot raise interrupt in direct tool call", tool=use["name"])
    return outcome.results[use["toolUseId"]]
