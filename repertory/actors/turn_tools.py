"""The tools of one turn, step by step: past hooks, through their run, to the event that the turn machine is told.

Not an actor: it belongs to the turn's driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repertory.actors.call import request_state
from repertory.actors.hooks.events import AfterToolsEvent, BeforeToolsEvent
from repertory.actors.tools import CUT_TEXT, Outcome, ToolStep, ToolStepParts
from repertory.backends.ports import ToolContext
from repertory.core.interrupts import Questions
from repertory.core.messages import error_result
from repertory.core.standing import Standing, Start
from repertory.core.turn import CANCELLED, Park, RunTools, Stop, ToolsEnded, ToolsParked
from repertory.errors import HookFailed, Invalid, RepertoryError

if TYPE_CHECKING:
    from repertory.actors.agent_parts import AgentParts, AgentSettings
    from repertory.actors.call import Invocation
    from repertory.actors.hooks.calls import TurnHooks
    from repertory.actors.ledger import Ledger
    from repertory.actors.tools import Hearing
    from repertory.actors.turn_meter import TurnMeter
    from repertory.actors.turn_record import TurnRecord
    from repertory.actors.turn_stop import TurnStop
    from repertory.core.interrupts import Interrupt
    from repertory.core.limits import Sizes
    from repertory.core.messages import ContentBlock, ToolResult, ToolUse


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWork:
    """What the tools of a turn work with."""

    settings: AgentSettings
    parts: AgentParts
    ledger: Ledger
    invocation: Invocation
    hooks: TurnHooks
    record: TurnRecord
    meter: TurnMeter
    stop: TurnStop
    sizes: Sizes


class TurnTools:
    """Runs the tools that a turn asks for."""

    def __init__(self, work: TurnWork) -> None:
        self._work = work
        self._form = work.invocation.form
        self._direct = work.invocation.direct
        self._questions = Questions(work.ledger.wall)
        self.filled: object = None
        """The form that the caller wants, filled in."""
        self.standing: Standing | None = None
        """Where the conversation stands when the step has to wait for a person."""

    async def run(self, command: RunTools) -> ToolsEnded | ToolsParked:
        """How the step ended, or what a person is to answer first. Its tools go on from what is on record of them."""
        work = self._work
        work.record.begun()
        if self._direct is not None:  # The message may only name what JSON cannot say.
            command = replace(command, uses=(self._direct,))
        begun, work.record.footing.begun = work.record.footing.begun, Standing(last=None)
        work.parts.mirror.standing = replace(begun, last=work.record.footing.last)
        self._questions = Questions(work.ledger.wall, begun.responses)
        ran, outcome, refusal = False, Outcome(results=dict(command.known)), None
        try:
            refused = await self._refused()
            if refused is None:
                ran, outcome = True, await self._step(command, begun)
            elif isinstance(refused, str):
                refusal = refused
            else:
                outcome.asked = {interrupt.id: interrupt for interrupt in refused}
        except RepertoryError as error:
            why = "a hook failed" if isinstance(error, HookFailed) else "the turn could not be stored"
            refusal, outcome.failed = f"Not run: {why}.", error
        if outcome.asked and self._direct is not None:
            refusal = "cannot raise interrupt in direct tool call"
            outcome.failed = outcome.failed or Invalid(refusal, tool=self._direct["name"])
        work.ledger.add_changes(work.parts.state)
        parks = bool(outcome.asked) and outcome.failed is None and not outcome.cut
        known = dict(outcome.results)
        for use in command.uses:
            outcome.results.setdefault(use["toolUseId"], error_result(use["toolUseId"], refusal or CUT_TEXT))
        ended = await self._ended(command, outcome, known if parks else outcome.results, tell=ran or not parks)
        if not parks or ended.failed is not None:
            return ended
        return ToolsParked(park=self._park(command, outcome, known, begun), instead=ended)

    async def _refused(self) -> str | tuple[Interrupt, ...] | None:
        """Why none of the tools is to run (now); None runs them."""
        work, asking = self._work, self._work.record.footing.last
        if self._direct is not None or asking is None or not work.hooks.hear(BeforeToolsEvent):
            return None
        return await work.stop.unless(lambda: work.hooks.before_tools(asking, self._questions))

    async def _step(self, command: RunTools, begun: Standing) -> Outcome:
        work = self._work
        parts = ToolStepParts(
            tools=work.parts.tools if self._direct is None else work.parts.tools.whole,
            ledger=work.ledger,
            context_for=self._context,
            hooks=work.hooks,
            meter=work.meter,
            questions=self._questions,
            form=self._form,
            publish=work.record.publish,
            mirror=work.parts.mirror,
        )
        return await ToolStep(parts, work.settings.tools).run(command, begun.starts, work.stop.scope())

    async def _ended(
        self, command: RunTools, outcome: Outcome, told: dict[str, ToolResult], *, tell: bool
    ) -> ToolsEnded:
        """The end of the step, with what hooks make of it; they are told of the results in `told`, or of nothing."""
        work = self._work
        closing: tuple[ContentBlock, ...] = ()
        results = tuple(told[use["toolUseId"]] for use in command.uses if use["toolUseId"] in told)
        try:
            if tell and self._direct is None and work.hooks.hear(AfterToolsEvent):
                closing = await work.stop.even_so(lambda: work.hooks.after_tools(results)) or ()
        except RepertoryError as error:
            outcome.failed = outcome.failed or error
        text = None
        if outcome.filled is not None:
            self.filled, text = outcome.filled
        return ToolsEnded(
            results=tuple(outcome.results[use["toolUseId"]] for use in command.uses),
            stopped=self._stop_after(outcome),
            closing=closing,
            filled=text,
            misfilled=outcome.misfilled,
            failed=outcome.failed,
        )

    def _park(self, command: RunTools, outcome: Outcome, known: dict[str, ToolResult], begun: Standing) -> Park:
        """What is to be recorded so that the step can go on. A form is read again then."""
        form = None if self._form is None else self._form.name
        kept = [use["toolUseId"] for use in command.uses if use["toolUseId"] in known and use["name"] != form]
        interrupts = tuple(outcome.asked.values())
        standing = replace(begun, last=self._work.record.footing.last)
        self.standing = standing.parked([known[use_id] for use_id in kept], interrupts, outcome.parked)
        new = tuple(known[use_id] for use_id in kept if use_id not in {*begun.finished, *outcome.recorded})
        return Park(interrupts=interrupts, results=new, parked=tuple(outcome.parked))

    def _stop_after(self, outcome: Outcome) -> Stop | None:
        work = self._work
        stop = work.stop.heard()
        if stop is not None or outcome.cut:
            return stop or CANCELLED
        ends = not outcome.asked and request_state(work.invocation).get("stop_event_loop")
        return Stop(reason="tool_use") if ends else None

    def _context(self, use: ToolUse, last: Start | None, hearing: Hearing) -> ToolContext:
        work, settings = self._work, self._work.settings
        work.stop.heard()
        place = f"{settings.session_id}/{settings.agent_id}/{work.record.footing.last_seq}"
        attempt, key = (0, "") if last is None else last
        return ToolContext(
            tool_use=use,
            agent_id=settings.agent_id,
            state=work.parts.state,
            idempotency_key=key or f"{place}/{use['toolUseId']}",
            attempt=attempt + 1,
            invocation_state=work.invocation.invocation_state,
            agent=work.parts.owner,
            on_partial=hearing.on_partial,
            on_exception=hearing.on_exception,
            questions=hearing.questions,
            result_bytes=work.sizes.result_bytes,
        )
