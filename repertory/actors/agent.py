"""The agent of one session: takes calls, runs one turn at a time, and lets the rest wait.

State: the call that runs, the calls that wait, where the conversation stands. Fails: when the store refuses (with the
persister, which restarts everything behind it) or by a bug; the caller then gets the error and the agent starts again
from the journal. Pace: the model's and the tools'; turns run in a job, so that a cancellation is heard at once.
Supervised by the session, as its last child.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import anyio

from repertory.actors.call import Busy, Call, Invocation, SinkOutlet, SlotOutlet
from repertory.actors.conversation import Entry, LoadView
from repertory.actors.ledger import Ledger
from repertory.actors.persister import ReadImage
from repertory.actors.turn_driver import AgentParts, AgentSettings, Footing, TurnDriver
from repertory.core.events import TurnEvent
from repertory.core.journal.records import Interrupted, MessageAdded, Resumed, StateChanged
from repertory.core.messages import ToolUse
from repertory.core.opening import Ask as AskPerson
from repertory.core.opening import Standing, UnknownOutcome, open_turn
from repertory.core.prompt import Answers, read_prompt
from repertory.core.result import AgentResult
from repertory.errors import AgentBusy, Invalid, RepertoryError
from repertory.runtime.actor import Actor
from repertory.runtime.exit import ExitReason
from repertory.runtime.message import Ask, Stream
from repertory.runtime.next import Next, carry_on, refuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoke(Ask[AgentResult]):
    """Run a turn and answer with its result."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokeStreaming(Stream[TurnEvent]):
    """Run a turn and send what happens on the way; leaving the stream cancels the turn."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelTurn:
    """Cut the running turn short, if one runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """The caller of this very invocation has gone: cut its turn short, or do not begin it."""

    invocation: Invocation


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishTurns(Ask[None]):
    """Take no more turns, and answer when the running one and those that wait are over."""

    at_once: bool = False
    """Cut the running turn short, and refuse the calls that wait."""


AgentMessage: TypeAlias = "Invoke | InvokeStreaming | CancelTurn | Abandon | FinishTurns"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettings:
    """How calls meet."""

    busy: Busy = "queue"
    unknown_outcome: UnknownOutcome = "ask"
    waiting_max: int = 1000
    """Calls that may wait for the running one; one more is refused with `AgentBusy`."""


class AgentActor(Actor[AgentMessage]):
    """One turn at a time. Everything a turn needs to know of the last one lies in `_standing`."""

    def __init__(
        self, settings: AgentSettings, calls: CallSettings, parts: AgentParts, wall: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._parts = parts
        self._wall = wall
        self._waiting: deque[Call] = deque()
        self._running: Call | None = None
        self._driver: TurnDriver | None = None
        self._busy = False
        self._called: anyio.Event | None = None
        """Set when somebody calls while the turns' job is idle."""
        self._closing: list[Callable[[], None]] = []
        self._refusing = False
        self._standing = Standing(last=None)
        self._footing = Footing()

    def summary(self) -> object:
        return {"turns": self._footing.turns, "waiting": len(self._waiting), "running": self._running is not None}

    async def on_start(self) -> None:
        persister = self.context.sibling("persister")
        image = await persister.ask(ReadImage(), timeout_s=math.inf)
        self._ledger = Ledger(persister, image.last_seq, self._wall, durable=self._settings.durable)
        self._conversation = self.context.sibling("conversation")
        if image.last_seq:
            self._parts.state.restore(image.state)
        self._footing = Footing(
            last=image.last_message,
            last_seq=image.last_message_seq,
            message_count=image.message_count,
            turns=image.turns,
            attempts={use_id: started.attempt for use_id, started in image.open_tools.items()},
        )
        started = frozenset(image.open_tools)
        self._standing = Standing(last=image.last_message, started=started, finished=image.finished_tools)
        shown = await self._conversation.ask(LoadView(image=image), timeout_s=math.inf)
        self._parts.mirror.show(shown.messages)
        if image.last_seq == 0:
            self._write_first_records()

    async def on_stop(self, reason: ExitReason) -> None:
        """A turn that was cut short leaves records: the persister stops after this actor and takes them."""
        del reason
        self._ledger.hand_over(soon=True)

    def _write_first_records(self) -> None:
        """A new journal begins with the state and the messages that the agent was built with."""
        state = self._parts.state.get()
        if isinstance(state, dict) and state:
            self._ledger.add(StateChanged(at=self._wall(), full=state))
        footing = self._footing
        for message in self._settings.initial:
            added = MessageAdded(at=self._wall(), message=message, turn=1, index=footing.message_count)
            footing.last, footing.last_seq = message, self._ledger.add(added)
            footing.message_count += 1
            footing.unshown.append(Entry(footing.last_seq, message))
            self._parts.mirror.add(message)
        self._standing = Standing(last=footing.last)
        self._ledger.hand_over()

    async def handle(self, message: AgentMessage) -> Next:
        match message:
            case Invoke(invocation=invocation):
                return self._take(invocation, SlotOutlet)
            case InvokeStreaming(invocation=invocation):
                return self._take(invocation, SinkOutlet)
            case CancelTurn():
                self._cancel_running()
                return carry_on()
            case Abandon(invocation=invocation):
                self._abandon(invocation)
                return carry_on()
            case FinishTurns(at_once=at_once):
                return self._finish_turns(at_once)
            case _:
                assert_never(message)

    def _take(self, invocation: Invocation, outlet: type[SlotOutlet] | type[SinkOutlet]) -> Next:
        """Begin the turn, or do what the busy policy says."""
        if self._refusing:
            return refuse(self._closed())
        try:
            prompt = read_prompt(invocation.prompt)
        except Invalid as error:
            return refuse(error)
        busy = invocation.busy or self._calls.busy
        if self._busy and (busy == "reject" or len(self._waiting) >= self._calls.waiting_max):
            waiting = len(self._waiting)
            return refuse(AgentBusy("a turn is running", agent=self._settings.agent_id, busy=busy, waiting=waiting))
        call = Call(invocation=invocation, prompt=prompt, outlet=outlet(self.context))
        call.outlet.on_left(lambda: self._abandon(invocation))
        self._place(call, busy)
        return carry_on()

    def _place(self, call: Call, busy: Busy) -> None:
        if busy == "steer" and self._steer(call):
            return
        if busy == "interrupt":
            self._waiting.appendleft(call)
            self._cancel_running()
        else:
            self._waiting.append(call)
        self._busy = True
        if self._called is None:
            self._called = anyio.Event()
            self.context.job(self._run_turns, name="turns")
        self._called.set()

    def _steer(self, call: Call) -> bool:
        """Add the call's words to the running turn, whose result it then shares."""
        if self._driver is None or self._running is None or isinstance(call.prompt, Answers):
            return False
        messages = call.prompt.messages
        if any(message["role"] != "user" for message in messages):
            return False
        if not messages or not self._driver.steer(tuple(block for message in messages for block in message["content"])):
            return False
        self._running.shared.append(call)
        return True

    def _cancel_running(self) -> None:
        if self._driver is not None:
            self._driver.cancel()

    def _abandon(self, invocation: Invocation) -> None:
        """A caller has gone: its turn ends, or does not begin. A turn that others share goes on."""
        running = self._running
        if running is not None and running.invocation is invocation:
            if not running.shared:
                self._cancel_running()
            return
        for call in self._waiting:
            if call.invocation is invocation:
                self._waiting.remove(call)
                return

    def _closed(self) -> AgentBusy:
        return AgentBusy("the agent is shutting down and takes no more turns", agent=self._settings.agent_id)

    def _finish_turns(self, at_once: bool) -> Next:
        self._refusing = True
        if at_once:
            self._cancel_running()
            while self._waiting:
                self._waiting.popleft().outlet.fail(self._closed())
        slot = self.context.defer()
        if self._busy:
            self._closing.append(lambda: slot.reply(None))
        else:
            slot.reply(None)
        return carry_on()

    async def _run_turns(self) -> None:
        """Turn after turn. One job for all of them: starting one costs more than a plain turn's messages."""
        while True:
            while self._waiting:
                await self._run_turn(self._waiting.popleft())
            self._busy = False
            while self._closing:
                self._closing.pop()()
            self._called = anyio.Event()
            await self._called.wait()

    async def _run_turn(self, call: Call) -> None:
        driver = TurnDriver(self._settings, self._parts, self._ledger, self._conversation, self._footing)
        driver.invocation_state, driver.publish = call.invocation.invocation_state, call.outlet.publish
        self._running, self._driver = call, driver
        outcome: AgentResult | RepertoryError
        try:
            outcome = await self._drive(driver, call)
        except RepertoryError as error:
            outcome = error
        self._running = self._driver = None
        self._waiting.extendleft(reversed(call.set_back(driver.undelivered)))
        await call.end(outcome)
        await driver.after_answer()

    async def _drive(self, driver: TurnDriver, call: Call) -> AgentResult:
        opening = open_turn(self._standing, call.prompt, self._policy)
        if isinstance(opening, AskPerson):
            interrupts = opening.interrupts
            self._ledger.add(Interrupted(at=self._wall(), interrupts=interrupts))
            await self._ledger.commit()
            return AgentResult(stop_reason="interrupt", message=None, interrupts=interrupts)
        if isinstance(call.prompt, Answers):
            self._ledger.add(Resumed(at=self._wall(), responses=dict(call.prompt.responses)))
        self._footing.turns += 1
        try:
            return await driver.run(opening)
        finally:
            self._standing = Standing(last=self._footing.last)

    def _policy(self, use: ToolUse) -> UnknownOutcome:
        tool = self._parts.tools.get(use["name"])
        if tool is not None and (tool.idempotent or not tool.effects):
            return "retry"
        return self._calls.unknown_outcome
