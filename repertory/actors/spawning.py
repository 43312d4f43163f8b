"""Starts the subagents of one tool call: beside the tool, which waits for them, or as runs in the background.

Not an actor: it belongs to the step that runs the tool. Where a subagent lives is decided behind `SubagentsPort`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

import anyio
from anyio.lowlevel import checkpoint
from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.call import BUDGETS, OPEN_TURNS
from repertory.backends.spawn_ports import NO_SUBAGENTS
from repertory.core.deferral import WHERE_NOT
from repertory.core.interrupts import InterruptException
from repertory.core.journal.codec import dump
from repertory.core.limits import limits_given, read_limits
from repertory.core.messages import STOPPED, error_result
from repertory.core.turn import CANCELLED
from repertory.core.turns.background_tasks import CUT_TEXT
from repertory.core.turns.subagents import SHARE, Labels, bounding, share_of
from repertory.errors import Failed, Invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from repertory.backends.ports import Tool, ToolContext
    from repertory.backends.spawn_ports import SpawnOptions
    from repertory.core.budget import Budget
    from repertory.core.journal.fold import Fold
    from repertory.core.limits import Limits, TurnLimits
    from repertory.core.messages import Json, Prompt, ToolResult
    from repertory.core.result import AgentResult
    from repertory.core.turn import StopReason

NOT_STORED = (
    "a detached subagent goes on after a kill, and here it would not be stored: keep the session in SQLite, "
    "PostgreSQL, a bucket or a log, or leave detached out"
)


def turn_name() -> str:
    """The name of the turn that the running code works for; empty outside of turns."""
    turns = OPEN_TURNS.get()
    return turns[-1].name if turns else ""


class SubagentCall(Struct, frozen=True, kw_only=True):
    """A tool call's wish for the turn of another agent."""

    agent: object
    prompt: Prompt
    label: str
    """The name of the subagent within the call, the same in each attempt."""
    context: ToolContext
    budget: Budget | None = None
    limits: Limits | TurnLimits | None = None
    pool: tuple[str, Budget] | None = None
    """The name and the bounds of a budget that it shares with others in a process that does not know the caller's."""
    invocation_state: dict[str, object] | None = None
    ended: Callable[[], bool] = lambda: False
    """True if the tool call was ended for good, and not by a shutdown, after which it would go on."""


class SubagentAnswer(Struct, frozen=True):
    """The result of a subagent, and the agent that gave it; without a result the reason."""

    result: AgentResult | None
    agent: object
    failure: str = ""

    def as_tool_result(self, use_id: str) -> ToolResult:
        """The answer for the model that has called the agent: an error, if there is none or its turn was ended."""
        if self.result is None or self.result.stop_reason == STOPPED:
            return error_result(use_id, self.failure or CUT_TEXT)
        return {"toolUseId": use_id, "status": "success", "content": [{"text": self.result.in_words()}]}


@runtime_checkable
class RunsAgents(Protocol):
    """A tool that has agents do something, and can be told to in the background."""

    def input_for(self, agent: object, prompt: str) -> dict[str, Json] | None:
        """The input that has this agent do this; None for an agent that it does not know."""
        ...


class RetentionPort(Protocol):
    """Forgets subagents that have ended."""

    due: bool
    """True if there may be some to forget."""

    def work(self, fold: Fold) -> Awaitable[None] | None:
        """Forget some between two turns; None if there is nothing to do. `fold`: of the agent that has started them."""
        ...


class SubagentsPort(Protocol):
    """Starts the subagents of one session; `app/agent/subagents.py` does."""

    @property
    def retention(self) -> RetentionPort | None:
        """The bound on those that have ended; None before the first one."""
        ...

    def keeps(self, tool: Tool) -> bool:
        """True if this tool does all of its work in subagents that are stored: it may run again after a kill."""
        ...

    async def run(self, call: SubagentCall) -> SubagentAnswer:
        """The answer of the subagent. Raises `InterruptException` when it asks a person."""
        ...

    async def cancel(self, child: str) -> bool:
        """End the turn of a subagent, or of one below it, and wait for that. False if none of this id works here."""
        ...


class Detaches(Protocol):
    """Runs tools in the background for tools that run."""

    def detach(self, tool: Tool, given: dict[str, Json], key: str, context: ToolContext) -> str:
        """Record that this tool runs in the background with this input, for a running tool. Returns the task's id.
        Errors: `Invalid` while too many tools wait.
        """
        ...


class Spawner:
    """The subagents of one attempt at a tool call."""

    def __init__(
        self,
        context: ToolContext,
        subagents: SubagentsPort | None,
        tools: Iterable[Tool],
        runs: Callable[[], Detaches | None] | None,
        stop: Callable[[], StopReason | None],
    ) -> None:
        """`tools`: all of the agent. `runs` gives its runs in the background; None where there can be none. `stop`
        gives the reason for which the call is to end.
        """
        self._stop = stop
        self.attempt = context.attempt
        self._context = context
        self._subagents = subagents
        self._tools = tools
        self._runs = runs
        self._labels = Labels()
        self._running = 0
        """The number of subagents that the tool waits for."""
        self._asking = 0
        """The number of those that have asked a person."""
        self._changed = anyio.Event()

    def _ended(self) -> bool:
        why = self._stop()
        return why is not None and why is not CANCELLED

    async def spawn(self, agent: object, prompt: Prompt, options: SpawnOptions) -> AgentResult:
        """See `CanSpawn.spawn`."""
        budget, limits = options.get("budget"), options.get("limits")
        label = self._labels.next(options.get("name"), str(getattr(agent, "name", "")), dump(prompt).decode())
        call = SubagentCall(
            agent=agent, prompt=prompt, label=label, context=self._context, budget=budget, limits=limits
        )
        answer = await self.run(call)
        if answer.result is None:
            raise Failed(answer.failure)
        return answer.result

    async def run(self, call: SubagentCall) -> SubagentAnswer:
        """The answer of a subagent. Raises `InterruptException` when it asks a person. Errors: as `CanSpawn.spawn`."""
        if self._subagents is None:
            raise Invalid(NO_SUBAGENTS)
        self._running += 1
        asks = False
        try:
            return await self._subagents.run(replace(call, ended=self._ended))
        except InterruptException:
            # As tools of one step: those beside it come to rest first. The exception ends the task group of the tool,
            # and a subagent that is cut in the middle of a tool loses what that did, although its turn goes on.
            asks = True
            self._asking += 1
            self._note_change()
            while self._running > self._asking:
                await self._changed.wait()
                await checkpoint()  # The tool may start another one with the answer of the one that has ended.
            raise
        finally:
            self._running -= 1
            self._asking -= asks
            self._note_change()

    def _note_change(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def detach(self, agent: object, prompt: Prompt, options: SpawnOptions) -> str:
        """See `CanSpawn.spawn` with `detached=True`."""
        context = self._context
        if not isinstance(prompt, str) or not prompt.strip():
            raise Invalid("the prompt of a detached subagent is a text", got=type(prompt).__name__)
        inputs = ((tool, tool.input_for(agent, prompt)) for tool in self._tools if isinstance(tool, RunsAgents))
        found = next(((cast("Tool", tool), given) for tool, given in inputs if given is not None), None)
        if found is None:
            text = "nobody could find a detached subagent after a restart: give its agent to this one, as a tool"
            raise Invalid(text, agent=getattr(agent, "name", None))
        runs = None if context.new_deferred_id is None or self._runs is None else self._runs()
        if runs is None:
            raise Invalid(WHERE_NOT)
        tool, given = found
        if self._subagents is None or not self._subagents.keeps(tool):
            raise Invalid(NOT_STORED)
        budgets = bounding(BUDGETS.get())
        around, share = share_of(None, budgets), share_of(options.get("budget"), budgets)
        bounds = limits_given(read_limits(options.get("limits")))
        if share or bounds:
            given[SHARE] = cast("Json", {"budget": share, "limits": bounds})
        if around:  # After a kill those of one turn share what was left of its budget, as they did before.
            name = turn_name() or context.idempotency_key
            given[SHARE] = cast("Json", {"budget": share, "limits": bounds, "pool": {"name": name, "budget": around}})
        label = self._labels.next(options.get("name"), tool.name, prompt)
        return runs.detach(tool, given, f"{context.idempotency_key}/{label}", context)
