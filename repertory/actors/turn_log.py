"""Reading a turn that does not belong to its caller: a log keeps its events, and any number of readers follow it.

Not an actor: it belongs to the agent actor, whose jobs bring the events to readers. A reader that is slow, or gone,
does not hold the turn up. What it has missed comes from the log, and from the journal where the log does not reach.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import anyio
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
        if self._within is not None:
            self._within.wait_no_more()

    def begin(self, base: int) -> TurnLog:
        """The turn is told from here on; `base`: the last message in the journal before."""
        log = self.log = TurnLog(self._name, base)
        self._change()
        return log

    async def publish(self, event: TurnEvent) -> None:
        """Keep the event. It waits for the call's first reader alone, if that one does not follow it."""
        self._from_here = self._from_here or "message" in event or "type" in event  # Events of runs are whole.
        if self._from_here:
            self._add(event)
        if self._within is not None and self._within.publish is not None:
            await self._within.publish(event)

    async def succeed(self, result: CallResult) -> None:
        self._add({"result": result}).end()
        self._change()
        if self._within is not None:
            await self._within.succeed(result)

    def fail(self, error: RepertoryError) -> None:
        self.error = error
        # Readers wait for a log: also for a turn that failed before it had one.
        (self.log or self.begin(self._position())).end()
        self._change()
        if self._within is not None:
            self._within.fail(error)

    async def changed(self) -> None:
        """Return when there is something new."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    def _add(self, event: TurnEvent) -> TurnLog:
        position = self._position()
        log = self.log or self.begin(position - 1 if "message" in event else position)
        log.add(event, position)
        self._change()
        return log

    def _change(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    def reader_gone(self) -> None:
        """Note that a reader has gone."""
        self.readers -= 1
        self._change()


class _Reader(NamedTuple):
    sink: Sink[object]
    channel: LogChannel
    invocation: Invocation
    """The reader's own call."""
    leave: Callable[[], None] = lambda: None
    """Called when it is told of nothing more, though the turn goes on."""
    deadline: float = math.inf
    time_up: RepertoryError | None = None
    """The error for the reader when its deadline passes."""


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

        def leave() -> None:
            channel.reader_gone()
            if not channel.wanted:
                self._abandon(call.invocation)

        sink = self._context.sink()
        sink.on_closed = leave
        deadline = math.inf if begun else invocation.deadline
        reader = _Reader(sink, channel, invocation, leave, deadline, time_up)
        self._context.job(self._serve, reader, name="reader")
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
        reader = _Reader(self._context.sink(), channel, invocation)

        async def serve() -> None:
            result = await read_in_time(answer, invocation, time_up)
            if isinstance(result, RepertoryError):
                reader.sink.fail(result)
                return
            log = channel.begin(at)
            log.add({"result": result}, log.base)
            log.end()
            await self._serve(reader)

        self._context.job(serve, name="reader")

    def _new_channel(self, token: str | None, within: ResponseChannel | None = None) -> LogChannel:
        name, fold = f"{int(self._context.rng.uniform(0, _RUNS)):x}", self._journal.fold
        first = None if token is None else fold.turn_tokens.first_of(token)
        return LogChannel(name, lambda: self._journal.fold.last_message_seq, first, within)

    async def _serve(self, reader: _Reader) -> None:
        failed = reader.time_up
        with anyio.CancelScope(deadline=reader.deadline):
            failed = await self._bring(reader.sink, reader.channel, reader.invocation)
        if failed is not None:  # The turn goes on, though this reader is not told of it any more.
            reader.sink.fail(failed)
            reader.leave()

    async def _bring(self, sink: Sink[object], channel: LogChannel, invocation: Invocation) -> RepertoryError | None:
        """Send the caller everything after its offset, until the end or until it has gone. Returns why it cannot be
        told of what was said before.
        """
        following = invocation.following or Following()
        while (log := channel.log) is None:
            if sink.closed:
                return None
            await channel.changed()
        after = following.after
        # The offset is from another conversation, or from one that was rewound since.
        if channel.first is None and after.seq > max(log.seq, log.base + 1):
            after = START  # It names nothing that is known here.
        # The reader has pieces of an answer whose process has gone; the model will word it differently.
        void = after.piece > 0 and not log.has(after)
        if not after.over and not log.has(after):
            try:
                before = await self._earlier_events(channel.first, after, log.base)
            except RepertoryError as error:
                return error
            for event in before:
                void = False
                await sink.send(event)
        number = log.number_after(after)
        while not sink.closed:
            entries = log.after(number)
            if void and entries:
                void = False
                if is_piece(entries[0]):
                    await sink.send(_void(after))
            for entry in entries:
                if self._waits and entry.offset.seq > channel.stored:
                    await self._stored(channel, log, entry)
                # Without a checkpoint as long as there is room: a reader that has missed a thousand pieces gets them in
                # one go.
                if not sink.send_nowait(entry.event):
                    await sink.send(entry.event)
            if entries:
                number = entries[-1].number
            elif log.over:
                break
            else:
                await channel.changed()
        if channel.error is None:
            sink.end()
        else:
            sink.fail(channel.error)
        return None

    async def _stored(self, channel: LogChannel, log: TurnLog, entry: Entry) -> None:
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

    async def _earlier_events(self, first: int | None, after: Offset, until: int) -> list[TurnEvent]:
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
