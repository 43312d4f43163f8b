"""Takes the results of one agent's tools that come later: from outside, and from its tools in the background.

Not an actor: it belongs to the agent actor. A result is stored in the journal, shown to the turn that runs if that can
still take it, and otherwise told by a turn of its own where a `Runtime` has the session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from repertory.actors.hooks.events import AfterToolCallEvent
from repertory.core.journal import deferrals
from repertory.core.messages import copy_use
from repertory.core.turns.subagents import is_subagent
from repertory.errors import Gone, RepertoryError, Unavailable
from repertory.runtime.message import Next, carry_on, refuse

if TYPE_CHECKING:
    from repertory.actors.background_runs import BackgroundRuns
    from repertory.actors.call import CompleteTool
    from repertory.actors.context import ActiveAgent
    from repertory.actors.turn import TurnDriver
    from repertory.core.messages import ToolUse
    from repertory.runtime.actor import SerialQueue
    from repertory.runtime.message import ReplySlot


class LateResults:
    """The late results of one active agent, and the runs that give some of them."""

    __slots__ = ("_agent", "_find_turn", "_go_on", "_steers", "runs")

    def __init__(
        self,
        agent: ActiveAgent,
        find_turn: Callable[[], TurnDriver | None],
        go_on: Callable[[], None],
        *,
        steers: bool,
    ) -> None:
        """`find_turn` gives the turn that runs, and `go_on` begins one that is due. `steers`: what comes from outside
        while a turn runs is added to it.
        """
        self._agent = agent
        self._find_turn = find_turn
        self._go_on = go_on
        self._steers = steers
        self.runs: BackgroundRuns | None = None
        """The tools that run beside turns; None where none does."""

    def open_runs(self, queue: SerialQueue, *, wanted: bool = False) -> BackgroundRuns | None:
        """Have tools run in the background, also those that an earlier life has begun. `queue`: of the turns. `wanted`:
        a tool is about to be. None where no tool can.
        """
        agent, fold = self._agent, self._agent.journal.fold
        background = agent.parts.background
        if background is None and not wanted and not any(tool.run is not None for tool in fold.deferred.values()):
            return None
        if not agent.settings.defers:
            return None
        from repertory.actors.background_runs import BackgroundRuns, BackgroundTools  # loaded when used

        # An agent without rules of its own begins none, and what was begun goes on.
        tools = background if isinstance(background, BackgroundTools) else BackgroundTools()
        agent.parts.background = tools
        tools.runs = self.runs = BackgroundRuns(agent, tools, queue, self._settled, self._show_piece)
        # Outside of a `Runtime` a program may open a session only to read it: its runs go on with the next call.
        if agent.settings.hosted:
            self.runs.look()
        return self.runs

    def complete(self, message: CompleteTool) -> Next:
        """A result has come from outside; answered when it is stored."""
        journal, context = self._agent.journal, self._agent.context
        waits = journal.fold.deferred.get(message.id) if message.cancels else None
        if waits is not None and waits.run is not None and self.runs is not None:
            context.job(self._cancel, self.runs, context.defer(), message.id, name="cancel")
            return carry_on()
        if message.cancels and is_subagent(message.id):
            context.job(self._cancel_subagent, context.defer(), message.id, name="cancel")
            return carry_on()
        try:
            new = journal.take_result(message.id, message.result, starts=message.starts)
        except Gone as error:
            return refuse(error)
        journal.hand_over(soon=True)
        context.job(self._store, context.defer(), message.id, new, name="late result")
        if self.runs is not None:
            self.runs.look()  # It may be the result of a tool that runs in the background.
        if new and message.starts:
            turn = self._find_turn()
            # A hook about tool results sees this one where a turn begins with it.
            if self._steers and turn is not None and AfterToolCallEvent not in turn.hooks.listened:
                self._show(message.id, turn)
            if self._agent.settings.hosted:
                self._go_on()
        return carry_on()

    async def _cancel(self, runs: BackgroundRuns, slot: ReplySlot[bool], task_id: str) -> None:
        """Cut a run short, whose compensations run before it ends."""
        runs.cancel(task_id)
        await runs.wait(task_id)
        await self._store(slot, task_id, new=True)

    async def _cancel_subagent(self, slot: ReplySlot[bool], child: str) -> None:
        """End the turn of a subagent for which a tool waits: that has its result, and records it."""
        subagents = self._agent.parts.subagents
        if subagents is not None and await subagents.cancel(child):
            slot.reply(True)
            return
        slot.fail(Gone("no subagent of this id works here", id=child))

    def _settled(self, task_id: str) -> None:
        """A tool in the background has its result, or waits for a person."""
        came, turn = self._agent.journal.fold.came.get(task_id), self._find_turn()
        if came is not None and turn is not None:
            self._show(task_id, turn)
        if self._agent.settings.hosted and (came is None or came.starts):
            self._go_on()

    async def _show_piece(self, use: ToolUse, data: object) -> None:
        """A tool in the background gives a piece before its result: the turn that runs shows it."""
        turn = self._find_turn()
        publish = None if turn is None else turn.record.publish
        if publish is not None:
            await publish({"tool_stream_event": {"tool_use": copy_use(use), "data": data}})

    def _show(self, deferred: str, turn: TurnDriver) -> None:
        """Add the result to the turn that runs, unless that is over."""
        content = deferrals.content_of(self._agent.journal.fold.came[deferred])
        if turn.steer(tuple(content)):
            turn.record.steered(deferred, content)

    async def _store(self, slot: ReplySlot[bool], deferred: str, new: bool) -> None:
        try:
            await self._agent.journal.commit()
        except RepertoryError as error:
            slot.fail(error)
            return
        fold = self._agent.journal.fold
        if deferred in fold.came or deferred in fold.settled:
            slot.reply(new)
        else:  # Another program has written meanwhile, and the session was opened again.
            slot.fail(Unavailable("the conversation has gone on elsewhere: give the result again", id=deferred))
