"""A tool by which the model has one of several agents do a task, each in a conversation of its own: `Subagents`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from repertory.actors.spawning import SubagentCall
from repertory.app.agent.agent import Agent
from repertory.app.agent.subagents import bounded_call
from repertory.core.limits import read_limits
from repertory.core.messages import ToolResult, ToolSpec, ToolUse, error_result
from repertory.core.turns.subagents import SHARE
from repertory.errors import Invalid, RepertoryError

if TYPE_CHECKING:
    from repertory.backends.ports import ToolContext
    from repertory.core.limits import Limits
    from repertory.core.messages import Json

_ABOUT = (
    "Have another agent do a task that stands by itself, in a conversation of its own, and get its report. For work "
    "whose steps would fill this conversation, and of which you need the outcome alone. The agents:"
)


class Subagents:
    """The tool `subagent(agent, prompt)`: one of the agents does a task, and its answer is the result.

    The conversation of each call begins as the agent was built. It is stored in the session of the agent that asks, if
    that is in SQLite, PostgreSQL, a bucket or a log, and goes on after a kill where it was. When the subagent asks a
    person, so does this tool.

    Examples:
        >>> from repertory import Agent, ScriptedModel, Subagents
        >>> clerk = Agent(ScriptedModel("Paid."), name="clerk", description="Pays bills.")
        >>> asked = {"toolUse": {"name": "subagent", "input": {"agent": "clerk", "prompt": "Pay it."}}}
        >>> print(Agent(ScriptedModel([asked, "It is paid."]), tools=[Subagents(clerk)])("Pay the bill."))
        It is paid.
    """

    effects, idempotent, timeout_s, works_in_subagents = True, False, None, True

    def __init__(
        self,
        *agents: Agent,
        name: str = "subagent",
        description: str | None = None,
        background: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """
        Args:
            agents: The agents, each with a name of its own; the model is told their descriptions.
            name: The name of the tool.
            description: The text for the model in front of the list of agents; None for the usual one.
            background: True if they work beside the turn, and their results are told when they come.
            limits: The limits of each task, such as `{"total_tokens": 20_000}`. They are tighter than the agent's own,
                or do nothing.

        Raises:
            Invalid: Without agents, for what is none, for two of one name, and for bad limits. Correct the argument.
        """
        if wrong := [type(each).__name__ for each in agents if not isinstance(cast("object", each), Agent)]:
            raise Invalid("Subagents takes agents: Subagents(Agent(..., name='clerk'))", got=wrong)
        if not isinstance(cast("object", background), bool):
            raise Invalid("background is True or False", got=background)
        self._agents = {each.name: each for each in agents}
        if not agents or len(self._agents) < len(agents):
            raise Invalid("Subagents takes agents, each with a name of its own", got=[each.name for each in agents])
        read_limits(limits)
        self.name = name
        self.background = background
        """True if each task runs beside the turn."""
        self._limits = limits
        lines = [f"- {each.name}: {each.description or 'an agent for any task'}" for each in agents]
        self.spec: ToolSpec = {
            "name": name,
            "description": "\n".join([description or _ABOUT, *lines]),
            "inputSchema": {
                "json": {
                    "type": "object",
                    "properties": {
                        "agent": {"type": "string", "enum": [*self._agents], "description": "The agent."},
                        "prompt": {
                            "type": "string",
                            "description": "The task, with all that the agent needs to know. It cannot ask you.",
                        },
                    },
                    "required": ["agent", "prompt"],
                }
            },
        }

    def input_for(self, agent: object, prompt: str) -> dict[str, Json] | None:
        """The input that has this agent do this; None for an agent that is not here.

        Args:
            agent: The agent.
            prompt: The task.
        """
        name = next((name for name, each in self._agents.items() if each is agent), None)
        return None if name is None else {"agent": name, "prompt": prompt}

    async def run(self, tool_use: ToolUse, context: ToolContext) -> ToolResult:
        """Have the agent do the task. Its failures are results with status `error`; cancellation cancels its turn."""
        use_id, given = tool_use["toolUseId"], tool_use["input"]
        fields = cast("Mapping[str, object]", given if isinstance(given, dict) else {})
        agent, prompt = self._agents.get(str(fields.get("agent"))), fields.get("prompt")
        if agent is None:
            return error_result(use_id, f"There is no such agent. There are: {', '.join(self._agents)}")
        if not isinstance(prompt, str) or not prompt.strip():
            return error_result(use_id, "The prompt must be a text that says what to do.")
        if context.find_spawner is None:
            return error_result(use_id, "No agent has called this tool.")
        call = SubagentCall(agent=agent, prompt=prompt, label="", context=context, limits=self._limits)
        try:
            answer = await context.find_spawner(context).run(bounded_call(call, fields.get(SHARE)))
        except RepertoryError as error:
            if context.on_exception is not None:
                context.on_exception(error)
            return error_result(use_id, f"Error: {type(error).__name__} - {error}")
        return answer.as_tool_result(use_id)
