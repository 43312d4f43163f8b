"""Reading a turn that does not belong to its caller: a log keeps its events, and any number of readers follow it.

Not an actor: it belongs to the agent actor, whose jobs bring the events to readers. A reader that is slow, or gone,
does not hold the turn up. What it has missed comes from the log, and from the journal where the log does not reach.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from repertory.actors.call import Call, Following
from repertory.actors.journal import read_in_time
from repertory.actors.persister import Commit, ReadMessages
from repertory.core.messages import copy_message
from repertory.core.turn_log import BEFORE_MAX, START, Entry, Offset, TurnLog, begun_at, is_piece, read_offset
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from repertory.actors.call import CallResult, Invocation, ResponseChannel
    from repertory.actors.journal import ActorJournal
    from repertory.actors.persister import PersisterMessage
    from repertory.core.result import AgentResult, TurnEvent
    from repertory.core.turns.turn_start import InterruptResponses, UserMessages
    from repertory.runtime.actor import Context
    from repertory.runtime.channel import Sink
    from repertory.runtime.ref import ActorRef

_RUNS = 16**10
_TOGETHER_MAX = 64
"""The units of events that a reader is given together, at most, or one event; see `Entry`."""
_UNREAD_MAX = 256
"""The units of events that a turn is ahead of a reader that it waits for."""


def followed_call(
    invocation: Invocation, *, after: str | None = None, begins: bool = True, detach: bool = False
) -> Invocation:
    """The call as one that reads its turn from the offset `after` on; see `Following`. Errors: `Invalid` for what is no
    offset.
    """
    start = START if after is None else read_offset(after)
    return replace(invocation, following=Following(after=start, begins=begins, detach=detach))


class LogChannel:
    """The channel by which a followed call's events and result reach its readers."""

    def __init__(
        self, name: str, position: Callable[[], int], first: int | None, within: ResponseChannel | None = None
    ) -> None:
        """`name`: the log's. `position` gives the last message in the journal. `first`: the message that carries the
        turn's token, if the journal has one. `within`: where they go besides, for a call that was begun by somebody who
        does not follow it.
        """
        self._name = name
        self.first = first
        self._position = position
        self._within = within
        self.log: TurnLog | None = None
        """The log; None until the turn begins, or its first event is told."""
        self.error: RepertoryError | None = None
        self.readers = 0
        self.detached = False
        """True if the turn goes on without readers."""
        self.stored = 0
        """Messages up to this one are known to be stored."""
        self.ended = anyio.Event()
        """Set when the turn is over."""
        self.read_outside = False
        """True if somebody reads the log outside of the actor."""
        self.held_by = 0
        """The number of readers for which the turn waits."""
        self.read = 0
        """The number of the last entry that one of them has, or that the turn waits for."""
        self._changed: anyio.Event | None = None
        self._caller_gone = False
        """True if the caller has gone that began the call, and did not follow it."""
        self._from_here = within is None
        """True if pieces are told; False in the middle of a message whose first pieces somebody else has read."""

    @property
    def wanted(self) -> bool:
        """True if the turn has a reader, its own caller, or needs neither."""
        return self.detached or self.readers > 0 or (self._within is not None and not self._caller_gone)

    def goes_on_alone(self) -> bool:
        self._caller_gone = True
        return self.wanted

    def wait_no_more(self) -> None:
        self.read = sys.maxsize
        self.change()
        if self._within is not None:
            self._within.wait_no_more()

    def begin(self, base: int) -> TurnLog:
        """The turn is told from here on; `base`: the last message in the journal before."""
        log = self.log = TurnLog(self._name, base)
        self.change()
        return log

    async def publish(self, event: TurnEvent) -> None:
        """Keep the event. It waits for the call's first reader, if that one does not follow it, and for the fastest of
        the readers that hold the turn up.
        """
        self._from_here = self._from_here or "message" in event or "type" in event  # Events of runs are whole.
        if self.log is None and self.read_outside:
            await checkpoint()  # The reader that waits for the log comes first, and may hold the turn up.
        if self._from_here:
            log = self._add(event)
            # Of several readers the fastest counts: one that stands still must not stop the turn.
            while self.held_by and log.units_after(self.read) >= _UNREAD_MAX:
                await self.changed()
        if self._within is not None and self._within.publish is not None:
            await self._within.publish(event)

    async def succeed(self, result: CallResult) -> None:
        self._add({"result": result})
        self.end()
        if self._within is not None:
            await self._within.succeed(result)

    def fail(self, error: RepertoryError) -> None:
        self.error = error
        self.end()
        if self._within is not None:
            self._within.fail(error)

    def end(self) -> None:
        """Mark the log as complete."""
        # Readers wait for a log: also for a turn that failed before it had one.
        (self.log or self.begin(self._position())).end()
        self.ended.set()
        self.change()

    async def changed(self) -> None:
        """Return when there is something new."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _add(self, event: TurnEvent) -> TurnLog:
        position = self._position()
        log = self.log or self.begin(position - 1 if "message" in event else position)
        log.add(event, position)
        self.change()
        return log

    def change(self) -> None:
        """Wake those that wait for something new."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def reader_gone(self) -> None:
        """Note that a reader has gone."""
        self.readers -= 1
        self.change()


class TurnReader:
    """A reader of a turn from an offset on: of its log, and of the journal where the log does not reach."""

    def __init__(self, followers: TurnFollowers, channel: LogChannel, after: Offset | None, holds: bool) -> None:
        """`after`: None for the log alone, from its beginning. `holds`: the turn waits for the reader."""
        self._followers = followers
        self._channel = channel
        self._after = after
        self._void = False
        """True if the pieces that it has are of an earlier process, which is not told yet."""
        self._log: TurnLog | None = None
        """The log; None until its events are read."""
        self._number = 0
        """The number of the last entry that it has."""
        self._holds = holds
        channel.held_by += holds

    def close(self) -> None:
        """Have the turn wait for the reader no more."""
        self._channel.held_by -= self._holds
        self._channel.change()

    @property
    def over(self) -> bool:
        """True if nothing comes any more behind what the log has."""
        return self._channel.ended.is_set()

    async def next(self) -> list[TurnEvent]:
        """The next events, as soon as there are some; none at the end. Cancelled, it has read nothing. Errors: those
        for which the journal cannot be read.
        """
        channel = self._channel
        if (log := self._log) is None:
            while (log := channel.log) is None:
                await channel.changed()
            if before := await self._begin(log):
                return before
        while not (entries := log.after(self._number)) or not self._followers.may_send(channel, entries[0]):
            if entries:
                await self._followers.stored(channel, log, entries[0])
            elif log.over:
                return []
            else:
                await channel.changed()
        events: list[TurnEvent] = []
        if self._void and is_piece(entries[0]):
            events.append(_void(self._after or START))
        self._void, units = False, 0
        for entry in entries:
            units += entry.units
            if events and (units > _TOGETHER_MAX or not self._followers.may_send(channel, entry)):
                break
            events.append(entry.event)
            self._number = entry.number
        if self._holds:
            channel.read = max(channel.read, self._number)
            channel.change()
        return events

    async def _begin(self, log: TurnLog) -> list[TurnEvent]:
        """Begin to read; the events before the log."""
        channel = self._channel
        before: list[TurnEvent] = []
        if (after := self._after) is not None:
            # The offset is from another conversation, or from one that was rewound since.
            if channel.first is None and after.seq > max(log.seq, log.base + 1):
                after = START  # It names nothing that is known here.
            if not after.over and not log.has(after):
                before = await self._followers.earlier_events(channel.first, after, log.base)
            # The reader has pieces of an answer whose process has gone; the model will word it differently.
            self._void = after.piece > 0 and not log.has(after) and not before
            self._after, self._number = after, log.number_after(after)
        self._log = log
        return before


class TurnFollowers:
    """The readers of one agent's turns."""

    __slots__ = ("_abandon", "_context", "_journal", "_persister", "_waits")

    def __init__(
        self, context: Context, journal: ActorJournal, abandon: Callable[[Invocation], None], *, waits: bool
    ) -> None:
        """`abandon` is told of a call whose last reader has gone. `waits`: a message is told when it is stored."""
        self._waits = waits
        self._context = context
        self._journal = journal
        self._persister: ActorRef[PersisterMessage] = context.sibling("persister")
        self._abandon = abandon

    def new_call(
        self, invocation: Invocation, prompt: UserMessages | InterruptResponses, time_up: RepertoryError
    ) -> Call:
        """The call of the stream that is being handled, which follows it. `time_up`: see `follow`."""
        channel = self._new_channel(invocation.idempotency_token)
        call = Call(invocation=invocation, prompt=prompt, channel=channel, at=self._context.sent_at)
        self.follow(call, invocation, time_up)
        return call

    def follow(self, call: Call, invocation: Invocation, time_up: RepertoryError) -> LogChannel:
        """Bring the call's events to the caller of the stream that is being handled. `invocation` is that caller's;
        `time_up`: the error that it gets when its deadline passes.
        """
        following, begun = invocation.following or Following(), call.invocation is invocation
        channel = call.channel
        if not isinstance(channel, LogChannel):
            channel = call.channel = self._new_channel(invocation.idempotency_token, channel)
            if call.token is not None:  # It runs: a reader gets what was said until now from the journal.
                channel.begin(self._journal.fold.last_message_seq)
        channel.detached = channel.detached or (following.detach and (begun or following.begins))
        channel.readers += 1
        scope = anyio.CancelScope(deadline=math.inf if begun else invocation.deadline)

        def leave() -> None:
            scope.cancel()
            channel.reader_gone()
            if not channel.wanted:
                self._abandon(call.invocation)

        sink = self._context.sink()
        sink.on_closed = leave
        self._context.job(self._serve, sink, channel, following, scope, leave, time_up, name="reader")
        if following.opened is not None:
            channel.read_outside = True
            following.opened(partial(TurnReader, self, channel))
        return channel

    def tell_ended(
        self, invocation: Invocation, answer: Callable[[Invocation], Awaitable[AgentResult]], time_up: RepertoryError
    ) -> None:
        """Tell the caller of the stream that is being handled of its turn, which is over. `answer` reads its result;
        `time_up`: the caller's error when its deadline passes before that.
        """
        fold, channel = self._journal.fold, self._new_channel(invocation.idempotency_token)
        turn = fold.finished_turns.get(invocation.idempotency_token or "")
        at = fold.last_message_seq if turn is None else turn.answer_seq
        sink, following = self._context.sink(), invocation.following or Following()

        async def serve() -> None:
            result = await read_in_time(answer, invocation, time_up)
            if isinstance(result, RepertoryError):
                sink.fail(result)
                return
            channel.begin(at).add({"result": result}, at)
            channel.end()
            await self._serve(sink, channel, following, anyio.CancelScope())

        self._context.job(serve, name="reader")
        if following.opened is not None:
            following.opened(partial(TurnReader, self, channel))

    def _new_channel(self, token: str | None, within: ResponseChannel | None = None) -> LogChannel:
        name, fold = f"{int(self._context.rng.uniform(0, _RUNS)):x}", self._journal.fold
        first = None if token is None else fold.turn_tokens.first_of(token)
        return LogChannel(name, lambda: self._journal.fold.last_message_seq, first, within)

    async def _serve(
        self,
        sink: Sink[object],
        channel: LogChannel,
        following: Following,
        scope: anyio.CancelScope,
        leave: Callable[[], None] | None = None,
        failed: RepertoryError | None = None,
    ) -> None:
        """Send a caller everything after its offset, until the end, until it has gone, or until `scope` ends at its
        deadline, with the error `failed`. `leave` is called when it is told of nothing more, though the turn goes on.
        """
        with scope:
            try:
                if following.opened is not None:
                    await channel.ended.wait()
                else:
                    reader = TurnReader(self, channel, following.after, False)
                    while events := await reader.next():
                        for event in events:
                            # Without a checkpoint as long as there is room.
                            if not sink.send_nowait(event):
                                await sink.send(event)
                if channel.error is None:
                    sink.end()
                else:
                    sink.fail(channel.error)
            except RepertoryError as error:
                failed = error
        if failed is not None and not sink.closed:
            sink.fail(failed)
            if leave is not None:
                leave()

    def may_send(self, channel: LogChannel, entry: Entry) -> bool:
        """True if readers may have the entry now, without waiting until its message is stored."""
        return not self._waits or entry.offset.seq <= channel.stored

    async def stored(self, channel: LogChannel, log: TurnLog, entry: Entry) -> None:
        """Return when the entry's message is stored: after a kill it must mean the same to a reader that has it. That
        is not asked of the prompt, which the reader has given. The last message is stored when the result is there.
        """
        seq = entry.offset.seq
        if seq > log.base + 1 and not entry.offset.over:
            while not (following := log.after(entry.number)) and not log.over:
                await channel.changed()
            if following and not following[0].offset.over:
                self._journal.hand_over()
                with suppress(RepertoryError):  # The turn waits for its store, and tells its readers why it failed.
                    await self._persister.ask(Commit(seq=seq), timeout_s=math.inf)
        channel.stored = max(channel.stored, seq)

    async def earlier_events(self, first: int | None, after: Offset, until: int) -> list[TurnEvent]:
        """The turn's messages after that offset and up to that record, from the journal."""
        if first is None or after.seq >= until:
            return []
        self._journal.hand_over()
        # The token may stand on a later message of the turn; how far it reaches back is bounded, so the read is too.
        since = max(after.seq, first - BEFORE_MAX)
        messages = await self._persister.ask(ReadMessages(after=since, until=until), timeout_s=math.inf)
        begun = begun_at([(one.seq, one.message) for one in messages], first)
        found = [one for one in messages if one.seq >= begun]
        return [{"message": copy_message(one.message), "offset": str(Offset(one.seq))} for one in found]


def _void(after: Offset) -> TurnEvent:
    """The event that takes back a part of an answer: its process has ended before the answer was stored."""
    return {"model_retry": {"attempt": 1, "delay_s": 0.0, "error": None}, "offset": str(Offset(after.seq))}
