"""An object that a model is asked for outside of any turn: by the model's own `structured_output`, once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from repertory.actors.hooks.calls import TurnHooks
from repertory.backends.model_members import SdkModelMembers
from repertory.core.messages import copy_message, system_text
from repertory.core.turns.turn_start import InterruptResponses, read_prompt
from repertory.errors import Invalid, StructuredOutputException

if TYPE_CHECKING:
    from repertory.actors.context import AgentParts
    from repertory.core.messages import Prompt


async def ask_model(agent: Any, kind: type[Any], prompt: Prompt) -> object:
    """The object, asked for behind the agent's conversation. Callbacks of the invocation's begin and end are called.

    Errors: what the model raises, and those of guards; `StructuredOutputException`; `Invalid` when nothing is said.
    """
    await agent.ready()
    parts: AgentParts = agent._parts
    hooks = TurnHooks(parts.hooks, parts.owner, {"request_state": {}}, None)
    outcome = await hooks.before_invocation(read_prompt(prompt))
    if isinstance(outcome, str):
        raise StructuredOutputException(outcome, stop_reason="end_turn")
    if isinstance(outcome, InterruptResponses):
        raise Invalid("structured output is asked for with a prompt, not with answers to interrupts")
    given = [copy_message(message) for message in (*agent.messages, *outcome.messages)]
    if not given:
        raise Invalid("No conversation history or prompt provided")
    usual: Any = SdkModelMembers
    own: Any = getattr(parts.model, "structured_output", None) or usual.structured_output.__get__(parts.model)
    output: object = None
    try:
        async for event in own(kind, given, system_prompt=system_text(parts.system_prompt)):
            output = event.get("output", output)
    finally:
        await hooks.after_invocation(None)
    if output is None:
        raise StructuredOutputException("the model did not give the structured output", stop_reason="end_turn")
    return output
