"""Runs one turn: carries out the commands of the turn machine, and reports back what happened.

The machine (`core/turn.py`) decides; this file only acts. A driver lives for one turn, inside a job of the agent actor.
Stopping a turn cancels the running command, never the driver, so that the outcome is always recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, assert_never

from repertory.actors.call import request_state
from repertory.actors.context import (
    TurnContext,
    TurnRecord,
)
from repertory.actors.conversation import Tidy
from repertory.actors.hooks.events import BeforeInvocationEvent
from repertory.actors.model_call import ModelCalls
from repertory.actors.tools import run_tools
from repertory.core.answer import Answer
from repertory.core.journal.records import Interrupted, ToolFinished
from repertory.core.messages import ContentBlock, Message, copy_message
from repertory.core.result import AgentResult
from repertory.core.turn import (
    CANCELLED,
    AppendMessage,
    Began,
    CallModel,
    Continued,
    FailTurn,
    FinishTurn,
    MachineEvent,
    Park,
    Reduce,
    RunTools,
    Steered,
    StopAsked,
    StopReason,
    Turn,
    TurnPhase,
    step,
)
from repertory.core.turn_start import spoken_answer

if TYPE_CHECKING:
    from repertory.core.answer import Answer
    from repertory.core.interrupts import Interrupt
    from repertory.core.turn_start import InterruptResponses, UserMessages


class TurnDriver:
    """One turn from its start to its answer."""

    def __init__(
        self, turn: TurnContext, record: TurnRecord, chance: Callable[[], float], before: TurnDriver | None = None
    ) -> None:
        """`chance` gives random numbers from 0 up to 1; `before` is the call's previous turn, with which it shares the
        limits.
        """
        self._turn = turn
        self._parts = turn.parts
        self._invocation = turn.invocation
        self._journal = record.journal
        self._model = ModelCalls(turn, record, chance)
        self._machine = Turn(limits=turn.limits, wants_output=turn.invocation.output_schema is not None)
        if before is not None:
            self._machine = before.spent_by(self._machine)
        turn.stop.after_tools = self._stop_after_tools
        self._direct = turn.invocation.direct is not None
        self._over = True
        """True unless hooks have been told that the call began, and not yet that it ended."""
        self.record = record
        self.resume: UserMessages | InterruptResponses | None = None
        """After the end: the prompt of a further turn that a hook wants."""

    async def begin(self, prompt: UserMessages | InterruptResponses) -> UserMessages | InterruptResponses | AgentResult:
        """The prompt after hooks. A result if a hook answers the call itself, or the call was stopped meanwhile."""
        if self._direct:
            return prompt
        self._over = False
        self._parts.read_model.take_draft()
        hooks, stop = self._turn.hooks, self._turn.stop
        said: UserMessages | InterruptResponses | str | None = prompt
        if hooks.hear(BeforeInvocationEvent):
            said = await stop.run_unless_stopped(lambda: hooks.before_invocation(prompt))
        if isinstance(said, str):
            return await self.conclude("end_turn", message=spoken_answer(said).message)
        if said is None or stop.heard() is not None:
            return await self.conclude(self._model.stopped().stop.reason)
        return said

    def answer_with(self, answers: list[Answer]) -> None:
        """Use these answers instead of asking the model. Hooks are not told of the call."""
        self._model.prepared = answers

    async def conclude(
        self, reason: str, *, message: Message | None = None, interrupts: tuple[Interrupt, ...] = ()
    ) -> AgentResult:
        """End a call before its turn has begun, with nothing recorded of the turn."""
        state = request_state(self._invocation)
        return await self.end(AgentResult(stop_reason=reason, message=message, state=state, interrupts=interrupts))

    async def end(self, result: AgentResult) -> AgentResult:
        """End a call with this result and no turn."""
        await self._tell_end(result)
        self._journal.add_changes(self._parts.state)
        await self._journal.commit()
        return result

    async def settle(self) -> None:
        """The call failed: keep its records so far, and store them."""
        await self._tell_end(None)
        self._journal.add_changes(self._parts.state)
        if self.record.wrote:
            await self.record.mark()
        self._journal.hand_over(soon=True)

    async def run(self, opening: Began | Continued) -> AgentResult | None:
        """The turn's result, durable as the settings say. Errors: those of model, view, guards and store.

        None if another process has gone on with the conversation; nothing of the turn is recorded then.
        """
        event: MachineEvent = opening
        while True:
            self._machine, commands = step(self._machine, event)
            for command in commands:
                match command:
                    case AppendMessage(message=message):
                        await self.record.append(message)
                    case CallModel():
                        await self.record.name_manager()
                        if not await self.record.begin():
                            return None
                        event = await self._model.call(command)
                    case Reduce():
                        event = await self._model.reduce(command)
                    case RunTools():
                        event = await run_tools(self._turn, self.record, command)
                    case Park():
                        return await self._park(command)
                    case FinishTurn(stop_reason=reason, message=message):
                        return await self._finish(reason, message)
                    case FailTurn(error=error):
                        raise error
                    case _:
                        assert_never(command)

    def begin_again(self) -> None:
        """Begin the next `run` at the journal's new position, since the conversation has gone on meanwhile."""
        self.record.begin_again()
        self._machine = self._machine._replace(phase=TurnPhase.READY)

    async def after_answer(self) -> None:
        """After the answer is given: make a relaxed turn durable."""
        if self._turn.settings.durability == "relaxed":
            await self._journal.commit(closing=True, patient=False)

    def stop(self, stop: StopReason, *, after_tools: bool = False) -> None:
        """End the turn early, with a valid history: at once, or when the running tools have ended. If no tools run,
        `after_tools` waits for those of the next answer. The first reason counts, but an end at once replaces a
        later one.
        """
        if after_tools:
            self._stop_after_tools(stop)
        else:
            self._turn.stop.ask(stop)

    def _stop_after_tools(self, stop: StopReason) -> None:
        if self._machine.phase is not TurnPhase.OVER:
            self._machine, _ = step(self._machine, StopAsked(stop))

    def steer(self, content: tuple[ContentBlock, ...]) -> bool:
        """Show the model this content at its next step. False if the turn is over."""
        if self._machine.phase in (TurnPhase.READY, TurnPhase.OVER) or self._direct:
            return False
        self._machine, _ = step(self._machine, Steered(content))
        return True

    @property
    def undelivered(self) -> tuple[ContentBlock, ...]:
        """Steering that came too late for any step of the turn."""
        return self._machine.steering

    def spent_by(self, turn: Turn) -> Turn:
        """`turn`, with what this turn has spent of their common limits."""
        spent = self._machine
        return turn._replace(steps=spent.steps, total_tokens=spent.total_tokens, output_tokens=spent.output_tokens)

    @property
    def may_resume(self) -> bool:
        """True if a hook may add another turn to the call: nothing has cut it short, and it has reached no limit."""
        return self._turn.stop.heard() is None and self._machine.stop is None and self._machine.limit_reached is None

    # Ending.

    async def _finish(self, reason: str, message: Message | None) -> AgentResult:
        """Tidy up first, so that the answer and the next turn's view are one commit and one record."""
        last = None if message is None else self._journal.fold.last_message  # With the edits of hooks.
        result = AgentResult(
            stop_reason=reason,
            message=None if last is None else copy_message(last),
            metrics=self._turn.meter.metrics(),
            state=request_state(self._invocation),
            structured_output=None if message is None or reason == CANCELLED.reason else self._turn.filled,
        )
        await self._tell_end(result)
        await self.record.show_edits()
        added, budgets = self._journal.take_unshown(), self._model.budgets
        await self.record.decided(Tidy(added=added, budgets=budgets), Tidy(added=(), budgets=budgets, again=True))
        return await self._stored(result)

    async def _park(self, command: Park) -> AgentResult:
        """Record the ended tools and the interrupts in one commit. The view stays as it is: the step is not over."""
        at = self._journal.wall()
        for ended in command.results:
            self._journal.add(ToolFinished(at=at, tool_use_id=ended["toolUseId"], result=ended))
        self._journal.add(Interrupted(at=at, interrupts=command.interrupts, parked=command.parked))
        result = AgentResult(
            stop_reason="interrupt",
            message=None,
            metrics=self._turn.meter.metrics(),
            state=request_state(self._invocation),
            interrupts=command.interrupts,
        )
        await self._tell_end(result)
        return await self._stored(result)

    async def _stored(self, result: AgentResult) -> AgentResult:
        """The result, once it is as durable as the settings say."""
        self._journal.add_changes(self._parts.state)
        await self.record.mark()
        if self._turn.settings.durability == "relaxed":
            self._journal.promise()
            self._journal.hand_over()
        else:
            await self._journal.commit(closing=True)
        return result

    async def _tell_end(self, result: AgentResult | None) -> None:
        if not self._over:
            self._over = True
            self.resume = await self._turn.hooks.after_invocation(result)
