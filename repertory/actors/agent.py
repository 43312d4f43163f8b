"""The agent of one session: accepts calls, runs one turn at a time, and queues the rest.

State: the running call, the queued calls, the position in the conversation. Fails: when the store refuses for good (the
persister fails too, which restarts every actor behind it) or by a bug; the caller then gets the error, and the agent
starts again from the journal. Pace: the model's and the tools'; turns run in a job, so a cancellation is handled at
once. Supervised by the session, as its last child but the memory.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, assert_never

from msgspec import Struct
from msgspec.structs import replace

from repertory.actors.between_turns import (
    KeepProgress,
    ManualMessages,
    RecordSummary,
    ReportPendingWork,
    SkipTo,
    SummarySettled,
    TurnEnded,
)
from repertory.actors.call import (
    BUDGETS,
    AgentMessage,
    Busy,
    Call,
    CallMessage,
    CancelTurn,
    ChangeTimers,
    CompleteTool,
    DeliveriesDue,
    Invocation,
    LookAtSignal,
    LookAtWaits,
    ReplyChannel,
    ServeDeliveries,
    ServeTimers,
    ShowSnapshot,
    TimerMessage,
    TimersDue,
    limits_of,
    note_turn,
)
from repertory.actors.context import ActiveAgent, AgentParts, AgentSettings, TurnContext, TurnRecord
from repertory.actors.conversation import LoadView
from repertory.actors.journal import ActorJournal, NamedTurns, TurnProgress, answer_again, is_answered
from repertory.actors.stream_channel import StreamChannel
from repertory.actors.timers import NoCaller, TimerAlarm, invocation_of
from repertory.actors.turn import TurnDriver, TurnStarter
from repertory.actors.waits import WatchedCallQueue
from repertory.actors.writer import CommitBuffer
from repertory.core.budget import Budget
from repertory.core.deferral import Telling
from repertory.core.journal.fold import is_answer
from repertory.core.journal.image import Image
from repertory.core.journal.records import CursorMoved, MessageAdded, StateChanged
from repertory.core.messages import tool_uses, traceparent_of
from repertory.core.result import AgentResult
from repertory.core.snapshots.fields import SnapshotFields, restoring
from repertory.core.timers import NOBODY_WAKES
from repertory.core.turn import CANCELLED, STOPPED_BY_CALLER, StopReason
from repertory.core.turns.turn_start import (
    DIRECT_WHILE_BUSY,
    NO_SUCH_TURN,
    AskPerson,
    CallAsks,
    InterruptResponses,
    UserMessages,
    asks_with,
    direct_answers,
    read_prompt,
    recorded,
    steered_content,
    way_of_call,
)
from repertory.core.window.editing import MessagesEdit, editing
from repertory.errors import AgentBusy, Failed, Invalid, NotFound, RepertoryError, TooLarge, Unavailable
from repertory.logs import DEBUG, IDS, note
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Next, ReplySlot, carry_on, refuse, reply, traced

if TYPE_CHECKING:
    from repertory.actors.background_runs import BackgroundRuns
    from repertory.actors.call import DueTurn
    from repertory.actors.conversation import ConversationMessage
    from repertory.actors.deliveries import Courier
    from repertory.actors.late_results import LateResults
    from repertory.actors.summaries import SummaryRecorder
    from repertory.actors.turn_log import TurnFollowers
    from repertory.backends.telemetry_ports import CallTelemetry, CallTrace
    from repertory.core.journal.records import DeferredResult
    from repertory.core.messages import Message
    from repertory.core.turns.due_times import DueTimeTracker
    from repertory.runtime.ref import ActorRef

_log = logging.getLogger("repertory.turns")

LOOK_S = 0.05
"""Seconds between two looks at a caller's `cancel_signal`: it belongs to threads, which cannot wake an event loop."""
_WAITS_FOR_ITSELF = (
    "the call comes from a tool or hook of the turn that runs, so it would wait for itself; ask another agent, or a"
    " fresh one: agent.as_tool()"
)


class CallSettings(Struct, frozen=True, kw_only=True):
    """The rules for calls that arrive while another turn runs."""

    busy: Busy = "queue"
    waiting_max: int = 1000
    """Calls that may wait for the running one; one more is refused with `AgentBusy`."""


class AgentActor(WatchedCallQueue[AgentMessage, "SnapshotFields | MessagesEdit"]):
    """Runs one turn at a time. Everything that a turn needs to know of earlier ones is in the journal."""

    def __init__(
        self,
        settings: AgentSettings,
        calls: CallSettings,
        parts: AgentParts,
        buffer: CommitBuffer,
        wall: Callable[[], float],
        pending_work: DueTimeTracker | None = None,
    ) -> None:
        """`buffer` holds the rows that this agent's persister could not store. `pending_work`: None where nobody can
        wake the session.
        """
        super().__init__("turns")
        self._settings = settings
        self._buffer = buffer
        self._calls = calls
        self._parts = parts
        self._gate, self._gated_session = parts.gate, settings.session_id
        self._wall = wall
        self._pending_work = pending_work
        self._timers: TimerAlarm | None = None
        self._driver: TurnDriver | None = None
        self._late: LateResults | None = None
        self._runs: BackgroundRuns | None = None
        """The tools that run beside turns; None where none does."""
        self._courier: Courier | None = None
        """The deliveries of the session's events; None until there are any."""
        self._summaries: SummaryRecorder | None = None
        self._leaves_pending = False
        """True if the running turn is cut short to be finished elsewhere."""
        self._trace: CallTrace | None = None
        """The trace of the running call."""
        self._interrupted_trace: str | None = None
        """The trace of the last call here as a W3C header, if that call ended its turn without an answer."""
        self._named = NamedTurns(Image())
        self._followed: TurnFollowers | None = None
        self._ids = {"session": settings.session_id, "agent": settings.agent_id}

    def summary(self) -> object:
        return {
            "turns": self._parts.read_model.now.turns,
            "waiting": len(self._waiting),
            "running": self._running is not None,
        }

    async def on_start(self) -> None:
        # Readers in other threads go by it, and no other line would reset it.
        self._parts.read_model.turn = None  # A killed one ended with its turn.
        self._parts.read_model.tasks = self._parts.read_model.tries = 0
        settings, persister = self._settings, self.context.sibling("persister")
        self._journal = await ActorJournal.open(
            persister, self._wall, buffer=self._buffer, pending_work=self._pending_work, timers=self._parts.timers
        )
        self._conversation: ActorRef[ConversationMessage] = self.context.sibling("conversation")
        self._opening = TurnStarter(self._journal, self._parts, settings.unknown_outcome, len(settings.initial))
        had_turns = self._parts.lives > 1 and self._parts.read_model.now.turns > 0
        await self._stand_on_journal()
        if had_turns and not self._journal.fold.last_seq:
            # Erased by another process, in the middle of a turn. Nothing of the session may come back, neither what it
            # had set nor an empty one: only a call begins it anew.
            self._parts.state.replace(settings.initial_state)
        # By records and not by messages: an agent that was built with state alone has no message, and must state it
        # once.
        elif not self._journal.fold.last_seq:
            self._write_first_records()
        if self._pending_work is not None or self._waits_for_results:
            self._alarm().begin()
        if self._journal.fold.deferred or self._parts.background is not None:
            self._runs = self._late_results().open_runs(self._queue)
        self._journal.on_late_result = self._deliver_late_result
        if self._journal.fold.outbox:
            self._deliver()

    @property
    def _waits_for_results(self) -> bool:
        """True if results of tools may come later, or have come, and turns begin for them here."""
        fold = self._journal.fold
        return self._settings.hosted and bool(fold.deferred or fold.came)

    def _active(self) -> ActiveAgent:
        return ActiveAgent(self.context, self._settings, self._parts, self._journal, self._conversation)

    def _late_results(self) -> LateResults:
        """The part that takes results which come later."""
        if self._late is None:
            from repertory.actors.late_results import LateResults  # loaded when used

            steers = self._calls.busy == "steer"
            agent = self._active()
            self._late = LateResults(agent, lambda: self._driver, lambda: self._alarm().go_on(), steers=steers)
        return self._late

    def _recorder(self) -> SummaryRecorder:
        """The part that records summaries between turns."""
        if self._summaries is None:
            from repertory.actors.summaries import SummaryRecorder  # loaded when used

            self._summaries = SummaryRecorder(self._active(), self._pending_work, self._go_on)
        return self._summaries

    def _find_courier(self) -> Courier | None:
        """The part that delivers events; None while this process has no destination."""
        destinations = self._parts.destinations
        if self._courier is None and destinations is not None:
            from repertory.actors.deliveries import Courier  # loaded when used

            self._courier = Courier(self._active(), destinations, lambda: self._refusing)
        return self._courier

    def _deliver(self) -> None:
        """Make the deliveries that are due, if this process has any destination."""
        courier = self._find_courier()
        if courier is not None:
            courier.go_on()

    def _deliver_late_result(self, seq: int, came: DeferredResult) -> None:
        courier = self._find_courier()
        if courier is not None:
            courier.note_late_result(seq, came.deliver_to)

    def open_runs(self) -> BackgroundRuns | None:
        """The tools that run beside turns, from the first one on; None where none can."""
        self._runs = self._runs or self._late_results().open_runs(self._queue, wanted=True)
        return self._runs

    def _alarm(self) -> TimerAlarm:
        """The alarm that begins turns which nobody calls for."""
        if self._timers is None:
            self._timers = TimerAlarm(self.context, self._journal, self._pending_work, self._begin_due)
        return self._timers

    async def _stand_on_journal(self) -> None:
        """Load the journal's state into this actor, the read model and the conversation manager. Call it only when no
        record of this agent waits to be handed over.
        """
        image, read_model = self._journal.fold.image(), self._parts.read_model
        if image.last_seq:
            # Not for an empty journal: then the state that the program has given the agent is the truth.
            self._parts.state.restore(image.state)
        self._named = NamedTurns(image)
        self._journal.publish_to(read_model)
        if self._runs is not None:
            self._runs.look()  # Those that another program, or a rewind, has taken back end.
        # The manager is given the whole image, so messages that were added before it are not to be shown to it twice.
        self._journal.show_from_here()
        view = await self._conversation.ask(LoadView(image=image), timeout_s=math.inf)
        read_model.manager_changed = view.manager_changed

    def stop_now(self, reason: ExitReason) -> bool:
        """Hand the records of a turn that was cut short to the persister, which stops after this actor. If the
        persister has failed, running and queued calls get its error, such as `LeaseLost`.
        """
        del reason
        if self._running is not None:
            self._parts.read_model.turn = None
        self._journal.hand_over(soon=True)
        failed = self._buffer.failed
        if failed is not None:
            for call in (*([] if self._running is None else [self._running]), *self._waiting):
                call.fail(failed)
        return True

    def _write_first_records(self) -> None:
        """Begin a new journal with the state and messages that the agent was built with."""
        self._parts.state.take_patch()  # The record below holds the whole state.
        if isinstance(state := self._parts.state.get(), dict) and state:
            self._journal.add(StateChanged(at=self._wall(), full=state))
        for index, message in enumerate(self._settings.initial):
            self._journal.add(MessageAdded(at=self._wall(), message=message, turn=1, index=index))
        self._journal.hand_over()

    def handle_now(self, message: AgentMessage) -> Next:
        if isinstance(message, CallMessage):
            return self._handle_call(message)
        match message:
            case ShowSnapshot(wanted=wanted):
                return self._take_load(wanted)
            case KeepProgress():
                return self._keep_progress(message)
            case ReportPendingWork(again_at=again_at):
                # While a call runs, its own commits say what is pending.
                if self._running is None:
                    self._journal.report_pending_work(again_at, rests=self._timers is not None and self._timers.rests)
                return reply(None)
            case RecordSummary() if self._refusing:
                return reply(None)
            case RecordSummary():
                self._recorder().take(message)
                return carry_on()
            case SummarySettled():
                self._recorder().settled()
                return carry_on()
            case TimersDue() | ServeTimers() | ChangeTimers():
                return self._handle_timers(message)
            case CompleteTool():
                return self._late_results().complete(message)
            case DeliveriesDue() | ServeDeliveries():
                courier = self._find_courier()
                if courier is not None:
                    return courier.handle(message)
                return reply(None) if self.context.asked else carry_on()
            case CancelTurn():
                beginning = self._running is not None and self._driver is None  # The turn takes the request itself.
                if not beginning and (request := self._parts.stop_request.take()) is not None:
                    self._cancel(request[0], after_tools=request[1])
                return carry_on()
            case LookAtSignal(invocation=invocation):
                self._look_at_signal(invocation)
                return carry_on()
            case LookAtWaits(outside=outside):
                return self._look_at_waits(outside)
            case _:
                assert_never(message)

    def _take(self, invocation: Invocation, channel: type[ReplyChannel] | type[StreamChannel]) -> Next:
        """Start a turn, or do what the busy policy says."""
        try:
            sizes = limits_of(invocation, self._settings.limits).sizes
            prompt = read_prompt(invocation.prompt, sizes.prompt_bytes, invocation.caller)
        except (Invalid, TooLarge) as error:
            return refuse(error)
        token, busy = invocation.idempotency_token, invocation.busy or self._calls.busy
        # While rows wait for the store, the answer may be among them: then the call waits like the one that made it.
        if token is not None and self._named.has(token) and self._buffer.error is None:
            return self._answer_again(invocation, channel)
        # The other policies never wait behind the running turn, so such a call cannot wait for itself.
        if self._turn is not None and invocation.direct is None and busy in ("queue", "steer"):
            inside = self._runs is not None and self._runs.wait_for(invocation.context)
            if inside or self._comes_from_running(invocation):
                return refuse(self._waits_for_itself())
            if (circle := self._circle(invocation)) is not None:
                return refuse(circle)
        if token is not None and self._join_same(token, invocation, prompt, channel):
            return carry_on()
        try:
            # Looked at twice: here so that a hopeless call fails at once, and in `_drive`, since turns before it may
            # change the answer.
            if not self._buffer.takes:  # Otherwise that is known when the session is owned.
                self._turn_of(token, asks_with(prompt))
        except NotFound as error:
            return refuse(error)
        # As in the SDK, which refuses direct tool calls while an invocation runs.
        if invocation.direct is not None and self._queue.busy:
            return refuse(AgentBusy(DIRECT_WHILE_BUSY, agent=self._settings.agent_id))
        if self._queue.busy and (busy == "reject" or len(self._waiting) >= self._calls.waiting_max):
            waiting = len(self._waiting)
            return refuse(AgentBusy("a turn is running", agent=self._settings.agent_id, busy=busy, waiting=waiting))
        if invocation.following is not None:
            call = self._followers.new_call(invocation, prompt, self._no_time())
        else:
            call = self._new_call(invocation, prompt, channel)
        self._watch_time(invocation)
        if self._running is not None:
            self._watch_waits()
        self._queue_call(call, busy)
        return carry_on()

    def _turn_of(self, token: str | None, asks: CallAsks) -> tuple[str | None, bool]:
        """The token of the turn that a call with this one is for, and whether the turn stands in the journal already,
        so that its prompt is not said again. Errors: `NotFound` for a call that begins no turn and goes on with none.
        """
        fold = self._journal.fold
        open_token = None if asks == "prompt" else fold.open_token
        way, turn = way_of_call(token, self._named.state_of(token, fold), asks, open_token=open_token)
        if way == "refuse":
            raise NotFound(NO_SUCH_TURN, agent=self._settings.agent_id, token=token)
        return turn, way == "go on"

    def _answer_again(self, invocation: Invocation, channel: type[ReplyChannel] | type[StreamChannel]) -> Next:
        """Give the answer of the turn with the same token to one more caller, as a reply or as a stream."""
        known, time_up = self._named.answered_before(invocation), self._no_time()
        answer = partial(self._named.answer_of, journal=self._journal)
        if invocation.following is not None:
            self._followers.tell_ended(invocation, answer, time_up)
        elif known is not None and channel is ReplyChannel:
            return reply(known)
        else:
            self.context.job(answer_again, channel(self.context), answer, invocation, time_up, name="replay")
        return carry_on()

    @property
    def _followers(self) -> TurnFollowers:
        if self._followed is None:
            from repertory.actors.turn_log import TurnFollowers  # loaded when used

            waits = self._settings.durable and self._settings.durability != "relaxed"
            self._followed = TurnFollowers(self.context, self._journal, self._abandon, waits=waits)
        return self._followed

    def _join_same(
        self,
        token: str,
        invocation: Invocation,
        prompt: UserMessages | InterruptResponses,
        channel: type[ReplyChannel] | type[StreamChannel],
    ) -> bool:
        """Let the call share a running or queued turn of the same idempotency token. True if there is one."""
        others = [*self._waiting] if self._running is None else [self._running, *self._waiting]
        calls = [one for call in others for one in call.sharing()]  # Also those that were steered into one.
        # Not one that its caller has left: its turn is about to be cancelled, and the new caller would be cancelled
        # with it.
        same = [one for one in calls if token in (one.invocation.idempotency_token, one.token) and not one.left]
        if not same:
            return False
        # A queued call without a prompt would be refused; this one may bring it.
        if same[0] is not self._running:
            same[0].take_prompt(prompt)
        if invocation.following is not None:
            followed = self._followers.follow(same[0], invocation, self._no_time())
            if self._driver is not None and same[0] is self._running:
                self._driver.publish_to(followed.publish)
            return True
        call = Call(invocation=invocation, prompt=prompt, channel=channel(self.context))
        same[0].shared.append(call)
        self._watch_time(invocation)
        self._watch_waits()
        return True

    def _queue_call(self, call: Call, busy: Busy) -> None:
        if busy == "steer" and self._steer(call):
            return
        if busy == "interrupt":
            # In front: who interrupts wants to be next, not behind those who have waited patiently.
            self._waiting.insert(0, call)
            self._cancel()
        else:
            self._waiting.append(call)
        self._queue.wake(self.context)
        if self._at_gate is not None and call.is_inner:
            self._look_again()

    def _steer(self, call: Call) -> bool:
        """Add the call's messages to the running turn, whose result it then shares. False if that is not possible."""
        token, content = call.invocation.idempotency_token, steered_content(call.prompt)
        if self._driver is None or self._running is None or not content:
            return False
        if self._named.state_of(token, self._journal.fold) != "unknown":
            return False  # Its words stand in the journal, and its tools may have run: that turn goes on by itself.
        # A running turn has passed the hooks that decide about a call's words, and has invocation state of its own.
        if self._driver.hooks.look_at_words(call.invocation.invocation_state) or not self._driver.steer(content):
            return False
        if token is not None:
            # Its token stands with the message that holds its words, so that a repeat after a kill finds this turn.
            self._driver.record.joins(token, content)
        self._running.shared.append(call)
        return True

    def _cancel(self, stop: StopReason | None = None, *, after_tools: bool = False) -> None:
        """End the running turn early. `stop`: None where its caller has left, or another call has interrupted it."""
        if self._driver is not None and self._running is not None:
            self._running.channel.wait_no_more()
            # Such a turn is answered from its beginning later on: half an answer would only be in the way.
            unread = self._refusing or self._running.runs_for_another
            self._driver.stop(stop or (CANCELLED if unread else STOPPED_BY_CALLER), after_tools=after_tools)

    def _time_up(self, invocation: Invocation) -> None:
        if self._running is not None and self._running.invocation is invocation:
            self._cancel(StopReason(reason="limit_time"))
        else:
            super()._time_up(invocation)

    def _look_at_signal(self, invocation: Invocation) -> None:
        """End the call's running turn if its caller has set the signal; else look again soon."""
        running = self._running
        if invocation.cancel_signal is None or running is None or running.invocation is not invocation:
            return
        if self._driver is not None and self._driver.hears_stop():
            self._cancel()
        else:
            self.context.after(LOOK_S, LookAtSignal(invocation=invocation))

    def _waits_for_itself(self) -> AgentBusy:
        return AgentBusy(_WAITS_FOR_ITSELF, agent=self._settings.agent_id)

    def _no_time(self) -> AgentBusy:
        return AgentBusy("other turns took all the time of this call", agent=self._settings.agent_id)

    def _closed(self) -> Unavailable:
        return Unavailable("the agent is shutting down and takes no more turns", agent=self._settings.agent_id)

    def _handle_timers(self, message: TimerMessage) -> Next:
        timers = self._timers
        match message:
            case ChangeTimers():
                return refuse(Invalid(NOBODY_WAKES)) if timers is None else timers.change(message)
            case ServeTimers():
                return reply(None) if timers is None else timers.serve()
            case TimersDue():
                if timers is not None:
                    timers.go_on()
                return carry_on()

    def _begin_due(self, due: DueTurn) -> None:
        """Queue a turn that is due, whatever the agent does with calls while it is busy."""
        messages: tuple[Message, ...] = ()
        if not isinstance(due, Telling):
            messages = ({"role": "user", "content": [{"text": due.prompt}]},)
        prompt = UserMessages(messages=messages)
        self._queue_call(Call(invocation=invocation_of(due), prompt=prompt, channel=NoCaller()), "queue")

    def _finish(self, at_once: bool) -> Next:
        if at_once:
            self._leaves_pending = self._running is not None
            # Without the part so far, in contrast to a stop by the caller.
            self._cancel(CANCELLED)  # Somebody goes on with it, and answers from the beginning.
            self._refuse_waiting()
        if self._runs is not None and self._refusing:
            self._runs.close(at_once=at_once)
        if self._timers is not None and self._refusing:
            self._timers.close(at_once=at_once)
            self._give_back_due()
        if self._refusing and self._summaries is not None:
            self._summaries.answer()
        slot = self.context.defer() if self.context.asked else None

        def end() -> None:
            self._keep_state()
            # A result has more than the journal (its metrics): a node that was asked again would count its tokens twice
            # in its run.
            if self._named.known:  # Later calls know of them what the journal tells, as after a restart.
                self._named = NamedTurns(self._journal.fold.image())
            if slot is not None:
                slot.reply(None)

        self._queue.when_idle(end)
        return carry_on()

    def _give_back_due(self) -> None:
        """A turn that is due and waits at the gate is left to the next owner of the session."""
        for call in [call for call in self._waiting if self._at_gate is not None and call.invocation.due is not None]:
            self._waiting.remove(call)
            self._refuse(call, self._closed())
        if not self._waiting:
            self._look_again()

    def _refuse(self, call: Call, error: RepertoryError) -> None:
        if call.invocation.due is not None:
            self._note_call_ended(call.invocation.due, error)
        super()._refuse(call, error)

    def _next(self) -> Awaitable[None] | None:
        summary = None if self._summaries is None else self._summaries.next()
        work = summary or super()._next()
        # When no call waits, subagents that have ended leave.
        retention = None if self._parts.subagents is None else self._parts.subagents.retention
        return work if work or retention is None or not retention.due else retention.work(self._journal.fold)

    def _go_on(self) -> None:
        """Do what goes before the next call."""
        self._queue.wake(self.context)
        self._look_again()

    def _keep_progress(self, message: KeepProgress) -> Next:
        fold = self._journal.fold
        positions = {**fold.cursors, message.store: message.position}
        states = {key: state for key, state in {**fold.kept, message.store: message.state}.items() if state is not None}
        self._journal.add(CursorMoved(at=self._wall(), positions=positions, kept=states))
        if self._pending_work is not None:
            self._pending_work.memory_progressed(fold, self._wall())
        self._journal.hand_over(soon=True)
        return reply(None)

    def _keep_state(self) -> None:
        """Record the agent state that was set since the last turn."""
        self._journal.add_changes(self._parts.state)
        self._journal.hand_over(soon=True)

    async def _load(self, wanted: SnapshotFields | MessagesEdit, slot: ReplySlot[None]) -> None:
        """Apply a snapshot or an edit, after everything recorded so far is stored."""
        try:
            await self._journal.catch_up()
            edits = isinstance(wanted, MessagesEdit)
            state = None if edits else wanted.state
            if state is None:
                self._keep_state()
            # Behind `_keep_state`: a snapshot that brings no state leaves the one that was set until now.
            image = self._journal.fold.image()
            try:
                records = editing(image, wanted, self._wall()) if edits else restoring(image, wanted, self._wall())
                if edits and wanted.instead is not None:
                    self._journal.redact({image.last_message_seq: wanted.instead})
            except RepertoryError:
                # The program saw its edit at once, from the read model; now it has been refused.
                await self._stand_on_journal()  # Readers see again what the journal shows.
                raise
            for record in records:
                self._journal.add(record)
            if state is not None:
                self._parts.state.restore(state)
                self._keep_state()  # State that was set since the snapshot was loaded.
            self._journal.hand_over(soon=True)
            await self._stand_on_journal()
            if self._parts.remembers:
                message = ManualMessages() if edits else SkipTo(seq=self._journal.fold.last_message_seq)
                # What a snapshot brings was said elsewhere, and memories are not extracted from it.
                self.context.sibling("memory").tell(message)
            await self._journal.commit()
        except RepertoryError as error:
            slot.fail(error)
        else:
            slot.reply(None)

    async def _serve(self, call: Call) -> None:
        due = call.invocation.due
        # Cancelled or done while it waited in the queue. With callers that share it, it is a turn of theirs as well.
        if due is not None and self._timers is not None and not call.shared and self._timers.skips(due):
            return
        read_model, clock = self._parts.read_model, self.context.clock
        # Not at its end: a request of another thread may come between the last look and the end.
        self._parts.stop_request.take()  # Any request was for an earlier turn.
        self._running, read_model.turn = call, TurnProgress(began_at := clock(), self._waiting)
        read_model.stored.clear()
        if call.at > -math.inf:
            self.context.note_wait(began_at - call.at)
        debugs = _log.isEnabledFor(DEBUG)
        if debugs:
            note(_log, DEBUG, "a turn begins", token=call.invocation.idempotency_token, **self._ids)
        turns_before = self._journal.fold.turns
        if self._runs is not None:
            self._runs.look()
        if self._pending_work is not None:
            # Only noted here; the store is told with the turn's first rows.
            self._pending_work.call_began(self._wall())
        if call.invocation.cancel_signal is not None:
            self._look_at_signal(call.invocation)
        find = self._parts.find_telemetry
        telemetry = None if find is None else find()
        work = self._drive(call) if telemetry is None else self._drive_traced(call, telemetry)
        # Never raises: the queue's job serves the next call whatever became of this one.
        outcome = await self._outcome(call, work)
        # At once, before anything is awaited: a call that comes from here on must not join or steer a turn that is
        # over.
        driver, self._running, self._driver = self._driver, None, None
        read_model.ended_at = clock()
        self._parts.counts.turns += 1
        if debugs:
            note_turn(_log, outcome, read_model.turn.step, read_model.ended_at - began_at, self._ids)
        read_model.turn = read_model.draft = None
        trace, self._trace = self._trace, None
        if self._parts.signal is not None:
            # Cleared and not replaced: a program may hold this event for the life of the agent.
            self._parts.signal.clear()
        if call.invocation.deadline < math.inf:
            self.context.cancel_timer(call.invocation)
        if driver is not None:
            if driver.undelivered:
                # Steering that no step took becomes a call again, in front, with its own callers.
                self._waiting[:0] = call.set_back(driver.undelivered)
            # A turn that wrote nothing (a hook's answer, a question that is still open) is nothing that a token may
            # repeat.
            if driver.record.wrote and isinstance(outcome, AgentResult):
                for one in call.sharing():
                    self._named.remember(one.invocation.idempotency_token, outcome, self._journal.fold.last_message)
        if self._parts.destinations is not None and isinstance(outcome, RepertoryError) and not self._leaves_pending:
            courier = self._find_courier()
            if courier is not None:
                courier.note_failure(call.invocation, outcome)
        if due is not None or self._pending_work is not None:
            self._note_call_ended(due, outcome)
        await call.end(outcome)
        if driver is not None and self._settings.durability == "relaxed":
            # Its caller has the answer already, and cannot be told any more.
            with suppress(Unavailable, Failed):  # The rows stay in the buffer; the next turn waits for them.
                await self._journal.commit(closing=True, patient=False)
        if self._parts.remembers:
            with nullcontext() if trace is None else traced(trace):
                self._tell_memory(turns_before, call.invocation.context.get(BUDGETS, ()))
        if self._pending_work is not None and self._pending_work.summary_at is not None:
            self._recorder().look()
        if self._timers is not None or self._waits_for_results:
            self._alarm().note_call_ended()
        if self._journal.fold.outbox:
            self._deliver()

    def _note_call_ended(self, due: DueTurn | None, outcome: AgentResult | RepertoryError) -> None:
        """Note that the caller has learnt the outcome, so nothing is pending, unless a shutdown cut the call short.
        `due`: the cause of the turn, if nobody called.
        """
        if self._leaves_pending:
            return
        if due is None or self._timers is None:
            self._journal.call_ended()
        else:
            self._timers.note_outcome(due, outcome)
            self._journal.state_due()

    def _tell_memory(self, turns_before: int, budgets: tuple[Budget, ...]) -> None:
        """Tell the memory of answered turns only: a turn without its answer may be continued."""
        fold = self._journal.fold
        if fold.last_message is not None and is_answer(fold.last_message) and fold.turns > turns_before:
            turns, last = fold.turns - turns_before, fold.last_message_seq
            ended = TurnEnded(turns=turns, last=last, messages=fold.message_count, budgets=budgets)
            self.context.sibling("memory").tell(ended)

    async def _drive_traced(self, call: Call, telemetry: CallTelemetry) -> AgentResult:
        """`_drive`, as one traced call. It runs in the caller's context, so the caller's span is the parent."""
        from repertory.backends.telemetry_ports import TracedCall  # loaded when used

        last, parts, invocation = self._journal.fold.last_message, self._parts, call.invocation
        begun = TracedCall(
            owner=parts.owner,
            session_id=self._settings.session_id,
            agent_id=self._settings.agent_id,
            prompt=invocation.prompt,
            model=parts.model,
            interrupted=self._interrupted_trace or (None if last is None else traceparent_of(last)),
            direct=invocation.direct is not None,
            wants_output=invocation.output_schema is not None,
        )
        with telemetry.begin(begun) as trace, traced(trace):
            self._trace, self._interrupted_trace = trace, trace.traceparent
            result = await self._drive(call)
            if is_answered(self._journal.fold.last_message):
                self._interrupted_trace = None
            trace.ended(result)
            return result

    async def _drive(self, call: Call) -> AgentResult:
        """Run the call's turn and the turns that hooks add to it."""
        IDS.set(self._ids)
        # Before the prompt is recorded: while a store is down, each attempt of a client would add one more unanswered
        # prompt.
        await self._journal.catch_up()
        if self._buffer.takes:  # A prompt alone may go out while its model is asked.
            fold, last = self._journal.fold, self._journal.fold.last_message
            # Anything else depends on what is stored (answers to questions, half a turn), so the session is taken
            # first.
            plain = call.asks == "prompt" and call.invocation.direct is None and not fold.came
            if not (plain and (last is None or is_answer(last))) and await self._journal.begin(stored=False):
                await self._stand_on_journal()
        if not self._journal.fold.last_seq:  # It was erased while this agent was active.
            self._write_first_records()
        known, named = None, call.invocation.idempotency_token
        if named is not None and self._named.has(named):
            # Asked again here: turns ran between the call's arrival and now, one of them perhaps in another process.
            known = await self._named.answered(call.invocation, self._journal)
        if known is not None:
            return known
        token, stands = self._turn_of(named, call.asks)
        # The turn's token, which need not be the call's: a call without a prompt goes on under the token of the turn.
        invocation = replace(call.invocation, idempotency_token=token)
        call.token = token
        if self._parts.read_model.turn is not None:
            self._parts.read_model.turn.token = token
        prompt = _still_to_say(call.prompt, stands)
        before: TurnDriver | None = None
        while True:
            turn = TurnContext(
                self._settings, self._parts, invocation, self.context.clock, publish=call.channel.publish
            )
            record = TurnRecord(turn, self._journal, self._conversation)
            driver = TurnDriver(turn, record, partial(self.context.rng.uniform, 0.0, 1.0), before)
            self._driver = driver
            driver.record.called_by, record.runs, record.open_runs = named, self._runs, self.open_runs
            try:
                result = await self._drive_one(driver, call, invocation, prompt)
            except RepertoryError:
                # What the turn has recorded so far stays: a tool that ran is in the history, whatever failed behind it.
                await driver.settle()
                raise
            finally:
                if driver.record.wrote:
                    fold = self._journal.fold
                    if tokens := {*fold.turn_tokens.current, *([] if token is None else [token])}:
                        self._named.note_end(tokens, fold.last_message)
            resume, driver.waits = driver.resume, True
            if resume is None and self._runs is not None and await self._runs.gave_more(turn, result):
                resume = UserMessages(messages=())  # The results that have come begin it.
            # A hook must not go on with a call that somebody has stopped, or that has no budget left.
            if resume is None or not driver.may_resume:
                return result
            if driver.record.wrote:
                self._named.remember(token, result, self._journal.fold.last_message)
            if self._settings.durability == "relaxed":
                await self._journal.commit(closing=True, patient=False)
            # The limits of the call hold for all its turns together.
            before, prompt = driver, resume

    async def _drive_one(
        self, driver: TurnDriver, call: Call, invocation: Invocation, given: UserMessages | InterruptResponses
    ) -> AgentResult:
        prompt = await driver.begin(given)
        if isinstance(prompt, AgentResult):
            return prompt
        form = invocation.output_schema
        if form is not None and self._parts.tools.has_given(form.name):
            raise Invalid("structured output and a tool have the same name; rename one of them", name=form.name)
        outcome = await self._open(driver, invocation, prompt)
        # Another process has written in the meantime. Each round means that one more has, so it ends in practice.
        while outcome is None:
            await self._stand_on_journal()
            driver.begin_again()
            known = await self._named.answered(invocation, self._journal)
            if known is not None:
                return await driver.end(known)
            # The prompt was dropped because it stood in the journal; in the journal that is there now it may be
            # missing.
            again = call.prompt if asks_with(prompt) == "nothing" else prompt
            asks = call.asks if again is call.prompt else asks_with(again)
            _, stands = self._turn_of(invocation.idempotency_token, asks)
            outcome = await self._open(driver, invocation, _still_to_say(again, stands))
        return outcome

    async def _open(
        self, driver: TurnDriver, invocation: Invocation, prompt: UserMessages | InterruptResponses
    ) -> AgentResult | None:
        """The turn's result. None if another process has added messages: the caller must begin the turn again."""
        last = self._journal.fold.last_message
        if invocation.direct is not None:
            if last is not None and any(tool_uses(last)):
                raise Invalid("cannot directly call tool during interrupt: finish the turn first")
            driver.answer_with(direct_answers(recorded(invocation.direct)))
        opening = await self._opening.open(prompt, invocation, driver.record)
        if isinstance(opening, AskPerson):
            return await driver.conclude("interrupt", interrupts=opening.interrupts)
        # Answers of a person are stored before anything that waited for them runs.
        if isinstance(prompt, InterruptResponses) and await self._journal.begin(stored=True):
            return None
        return await driver.run(opening)


def _still_to_say(prompt: UserMessages | InterruptResponses, stands: bool) -> UserMessages | InterruptResponses:
    """The prompt to run with: none if it `stands` in the journal already."""
    return UserMessages(messages=()) if stands and isinstance(prompt, UserMessages) else prompt
