"""The part of a running tool's context by which it starts other agents and says how far it has got, and the port behind
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, Unpack, overload

from repertory.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from repertory.core.budget import Budget
    from repertory.core.limits import Limits
    from repertory.core.messages import Prompt
    from repertory.core.result import AgentResult

NO_SUBAGENTS = "subagents are for running tools: no agent has called this one, or it has ended"


class SpawnOptions(TypedDict, total=False):
    """The options of a subagent; see `CanSpawn.spawn`."""

    name: str | None
    budget: Budget | None
    limits: Limits | None


class SpawnPort(Protocol):
    """The subagents of one call, as the runtime starts them."""

    async def spawn(self, agent: Any, prompt: Prompt, options: SpawnOptions) -> AgentResult:
        """See `CanSpawn.spawn`."""
        ...

    async def run(self, call: Any) -> Any:
        """The answer of a subagent to this call of an agent that is a tool."""
        ...

    def detach(self, agent: Any, prompt: Prompt, options: SpawnOptions) -> str:
        """See `CanSpawn.spawn` with `detached=True`."""
        ...


class CanSpawn:
    """The part of a running tool's context by which it starts other agents."""

    __slots__ = ()
    find_spawner: Callable[[Any], SpawnPort] | None
    """Gives the subagents of this call; None where no agent has called the tool."""

    @overload
    async def spawn(
        self, agent: Any, prompt: Prompt, *, detached: Literal[False] = False, **options: Unpack[SpawnOptions]
    ) -> AgentResult: ...
    @overload
    async def spawn(
        self, agent: Any, prompt: Prompt, *, detached: Literal[True], **options: Unpack[SpawnOptions]
    ) -> str: ...
    async def spawn(
        self, agent: Any, prompt: Prompt, *, detached: bool = False, **options: Unpack[SpawnOptions]
    ) -> Any:
        """Have another agent do a task in a conversation of its own: `await tool_context.spawn(researcher, "Find it")`.

        The subagent begins as the agent was built. Where the conversation of this agent is stored in SQLite,
        PostgreSQL, a bucket or a log, the subagent's is stored in the same session, and is erased, moved and encrypted
        with it. If the process is killed and the tool runs again, as a durable tool does, the subagent goes on with its
        turn, or gives the answer that it had given. So it does nothing twice.

        If the subagent asks a person, this tool stops as with `interrupt`, and its next run passes the answer on.
        Cancellation cuts the subagent's turn short; its history stays valid.

        Args:
            agent: The agent. With `detached`, one that this agent has as a tool.
            prompt: The task. With `detached`, a text.
            detached: True to go on without it: it is a background task, whose result is told as a late result. The
                value is the task's id. It ends by itself, and goes on after a kill.
            options: `name`: the name of the subagent within this call, by which its next run finds it; without one, the
                agent's name and the prompt identify it, so a durable tool must say the same again. `budget`: its share,
                which also counts towards the budgets of the call; what it spent before a kill counts. `limits`: those
                of its turn; they are tighter than the agent's own, or do nothing.

        Returns:
            The result of the subagent's turn; with `detached` the id of the task.

        Raises:
            LimitReached: For more than 8 subagents one below another, more than 256 of one call, and without anything
                left of a budget. Do the task here.
            Invalid: Outside a running tool, and for bad arguments. With `detached`, also where no result can come later
                (`defer`), where the subagent would not be stored, while 256 tools of the session wait, and for an agent
                that is no tool of this one. Correct the call.
            TypeError: For an option that there is not. Correct the call.
            RepertoryError: The errors of the subagent's turn.
        """
        if self.find_spawner is None:
            raise Invalid(NO_SUBAGENTS)
        if unknown := options.keys() - SpawnOptions.__annotations__:
            msg = f"spawn() got an unexpected keyword argument {min(unknown)!r}"
            raise TypeError(msg)
        port = self.find_spawner(self)
        return port.detach(agent, prompt, options) if detached else await port.spawn(agent, prompt, options)
