"""The memory of one session: brings its messages to the memory stores, each at its own pace, after the answers.

State: each store's `Progress`, which the journal has too, and the work in hand. Fails: by a bug alone; it then starts
again from the journal. Pace: each store's own; no other store and no turn waits for it. Supervised by the session,
after the agent, so its failure restarts no other actor.

Each step is recorded before the next: a range of the conversation is reserved for a store; memories are extracted from
it; the memories are written. After a crash the next process continues with the same keys.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, assert_never

import anyio
from anyio.lowlevel import current_token
from msgspec import Struct, field
from msgspec.structs import replace

from repertory.actors.between_turns import KeepProgress, ManualMessages, SkipTo, TurnEnded
from repertory.actors.call import BUDGETS, refusals
from repertory.actors.memory.store import AddBatch, AddMemory, MemoryStoreClient, PrepareStore, ask_store
from repertory.actors.persister import ReadImage, ReadMessages, VerifyLease
from repertory.core.journal.fold import is_answer
from repertory.core.memory.breaker import Breaker
from repertory.core.memory.options import AddMessagesContext, Filtered, MemoryMessageFilter, filtered
from repertory.core.memory.progress import (
    JournaledMessage,
    MemoryWrite,
    Progress,
    SeqRange,
    StoreFlush,
    StoreLag,
    progress_json,
    read_progress,
    turns_in,
    whole_turns,
)
from repertory.core.messages import Json, is_stopped
from repertory.errors import Invalid, LimitReached, MailboxFull, RepertoryError, Retryable, Unavailable
from repertory.forking import forget_in_children
from repertory.logs import DEBUG, ERROR, WARNING, note
from repertory.runtime.actor import Actor
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Ask, Next, carry_on, refuse, reply

if TYPE_CHECKING:
    from repertory.actors.memory.store import MemoryStoreMessage
    from repertory.core.budget import Budget
    from repertory.core.memory.extracting import ExtractionResult
    from repertory.core.messages import Message
    from repertory.runtime.message import ReplySlot
    from repertory.runtime.ref import ActorRef

_EARLY_S = 0.001
"""Added to a timer's delay: the failure and the timer read the clock one after the other, and the timer must not fire
before the breaker's `retry_at`.
"""
_PAUSE_S = 0.5
"""The wait before a failed store is tried again, and before a second attempt at an extraction; between further attempts
it doubles.
"""


class Fire(Struct, frozen=True, kw_only=True):
    """A trigger of this store asks for an extraction."""

    store: str
    budgets: tuple[Budget, ...] = ()
    """The budgets of the call that fired the trigger."""


class AcceptMemories(Struct, Ask[int], frozen=True, kw_only=True):
    """Store these memories after the turn; answers how many were accepted, when the record is on its way to the
    journal.

    Errors: `LimitReached` if too many writes to one of the stores are pending; then none is accepted.
    """

    stores: tuple[str, ...]
    contents: tuple[str, ...]
    metadata: Mapping[str, Json] = {}
    key: str
    """Identifies the call: the same call is accepted once."""


class FlushMemory(Struct, Ask[Mapping[str, StoreFlush]], frozen=True, kw_only=True):
    """Try all messages and accepted memories so far; answers, by store, when each has been tried."""


class FinishMemory(Struct, Ask[None], frozen=True, kw_only=True):
    """Answered when all work that was begun has ended, with or without success."""


class PauseMemory(Struct, Ask[None], frozen=True, kw_only=True):
    """Answered when all work that was begun has ended; no other begins until `ResumeMemory`. What triggers ask for
    meanwhile is kept.
    """


class ResumeMemory(Struct, Ask[None], frozen=True, kw_only=True):
    """The session is in use again: go on as if it had just been opened."""


class TryStoreAgain(Struct, frozen=True, kw_only=True):
    """The pause after a store's failure is over."""

    store: str


MemoryMessage: TypeAlias = (
    TurnEnded | Fire | AcceptMemories | FlushMemory | FinishMemory | PauseMemory | ResumeMemory
) | (SkipTo | ManualMessages | TryStoreAgain)


Extract: TypeAlias = "Callable[[str, Sequence[Message], Sequence[float]], Awaitable[Sequence[ExtractionResult]]]"
"""Extracts memories from the conversation of the agent with this id: its messages, and their times in epoch seconds."""


class MemorySource(Struct, frozen=True, kw_only=True):
    """One agent's settings for one store."""

    client: MemoryStoreClient
    extracts: bool = False
    """True if memories are extracted from the conversation for it."""
    every: int | None = None
    """Extract after this many turns; None for explicit triggers only."""
    extract: Extract | None = None
    """The extraction of memories; None for a store that is handed the messages."""
    leaves_out: MemoryMessageFilter = field(default_factory=MemoryMessageFilter)
    holds: tuple[object, ...] = ()
    """The store, and other objects that hold something open for it."""


def _never() -> bool:
    return False


class MemoryLink:
    """The access of others to a session's memory. The session's memory actor writes it; any thread may read it."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ref: ActorRef[MemoryMessage] | None = None
        self._fired: set[str] = set()
        self._loop: object = None
        self._stores: Mapping[str, ActorRef[MemoryStoreMessage]] = {}
        self.claims_soon: Callable[[], bool] = _never
        """Tells if an extraction begins after the next answer; for the session's event loop."""
        self.lag: Callable[[], Mapping[str, StoreLag]] = dict
        """Gives the lag of each store, by name; empty while the memory is not alive."""
        self.budgets: dict[str, tuple[Budget, ...]] = {}
        """The budgets of the last call that wanted an extraction, by store."""
        self.watch: Callable[[bool], None] | None = None
        """Called when the session's memory ends; True if stores still lack something."""
        forget_in_children(self)

    def forget_parent(self) -> None:
        """Forget the parent's memory in a forked child: it is not alive here."""
        # A new lock: the parent's may be held at the fork, by a thread that the child does not have.
        self._guard, self._ref, self._stores = threading.Lock(), None, {}

    @property
    def ref(self) -> ActorRef[MemoryMessage] | None:
        """The session's memory; None while it is not alive."""
        return self._ref

    def use(self, stores: Mapping[str, ActorRef[MemoryStoreMessage]]) -> None:
        """Set the actors of the session's memory stores, by name, in the running event loop."""
        self._loop, self._stores = current_token().native_token, stores

    def stores(self) -> Mapping[str, ActorRef[MemoryStoreMessage]]:
        """The store actors, if they run in the current event loop; otherwise empty."""
        alive = all(ref.ended is None for ref in self._stores.values())
        # Actors of another event loop cannot be asked from here, and those of a host that has ended do not answer.
        return self._stores if alive and self._is_here() else {}

    def join(self, ref: ActorRef[MemoryMessage]) -> set[str]:
        """Set the live memory. Returns the stores whose triggers have fired meanwhile."""
        with self._guard:
            self._ref = ref
            fired, self._fired = self._fired, set()
        return fired

    def part(self, *, unread: bool) -> None:
        """The memory has ended. `unread`: True if stores lack some messages."""
        with self._guard:
            self._ref = None
        # They would keep the memory that has ended reachable, and with it the agent.
        self.claims_soon, self.lag = _never, dict  # They belong to the memory that has ended.
        if self.watch is not None:
            self.watch(unread)

    def fire(self, store: str) -> None:
        """Extract for a store: now, or when the session is alive again."""
        budgets = BUDGETS.get()
        with self._guard:
            # Kept for the next time the session is alive: what a trigger asked for must not be lost with a rest.
            if self._ref is None:
                self._fired.add(store)
                self.budgets[store] = budgets
            elif self._is_here():
                with suppress(MailboxFull):
                    self._ref.tell(Fire(store=store, budgets=budgets))
            else:
                self._ref.tell_threadsafe(Fire(store=store, budgets=budgets))

    def _is_here(self) -> bool:
        """True if the caller runs in the session's event loop, where a message keeps its place in the order."""
        try:
            return current_token().native_token is self._loop
        except RuntimeError:  # No loop runs in this thread.
            return False


class MemoryParts(Struct, frozen=True, kw_only=True):
    """The memory components of an agent."""

    sources: tuple[MemorySource, ...]
    link: MemoryLink


class MemoryConsumer(Actor[MemoryMessage]):
    """Consumes the journal, once for each store."""

    def __init__(
        self,
        of: tuple[str, str],
        parts: MemoryParts,
        refs: Mapping[str, ActorRef[MemoryStoreMessage]],
        wall: Callable[[], float],
        trace: Callable[[str, Mapping[str, object]], AbstractContextManager[object]],
    ) -> None:
        """`of`: session and agent. `refs`: actors of stores. `wall`: epoch seconds. `trace` makes a span of a block."""
        self._of = of
        self._ids = {"session": of[0], "agent": of[1]}
        self._parts = parts
        self._refs = refs
        self._wall = wall
        self._trace = trace
        self._stores: dict[str, StoreProgress] = {}
        self._paused = False
        """True if the session may belong to others: no work begins, and nothing is recorded."""
        self._looks = anyio.Event()
        """Set when the work for a store has ended, and then replaced."""
        self._messages = 0
        """Messages of the conversation, as far as is known here."""
        self._turns: int = 0
        """The journal's number of turns, as far as `TurnEnded` has told it."""
        self._counts = False
        """True if the numbers that `TurnEnded` has brought count all answers of the journal."""
        self._pausing = 0
        """The number of the last `PauseMemory` or `ResumeMemory`; an earlier one that still waits has no effect."""

    def summary(self) -> object:
        return {
            store.name: {"position": store.progress.position, "pending": len(store.progress.pending)}
            for store in self._stores.values()
        }

    async def on_start(self) -> None:
        self._persister = self.context.sibling("persister")
        self._agent = self.context.sibling("agent")
        await self._begin()

    async def _begin(self) -> None:
        """Read how far each store has got; what is only known of an earlier use of the session does not count."""
        self._parts.link.use(self._refs)
        self._parts.link.claims_soon = lambda: any(store.claims_soon for store in self._stores.values())
        self._parts.link.lag = lambda: {store.name: store.lag for store in list(self._stores.values())}
        image = await self._persister.ask(ReadImage(), timeout_s=math.inf)
        before, self._stores = self._stores, {}
        # Warm between calls: nothing was said elsewhere meanwhile, so the messages need not be read to be counted.
        counted = self._counts and image.turns == self._turns
        self._turns, self._messages = image.turns, image.message_count
        self._counts = image.last_message is None or is_answer(image.last_message)
        for source in self._parts.sources:
            name = source.client.name
            progress = read_progress(image.cursors.get(name, 0), image.kept.get(name))
            self._stores[name] = StoreProgress(source, self._parts.link, self._refs[name], progress, progress, progress)
        extracting = [store for store in self._stores.values() if store.source.extracts]
        lowest = min((store.progress.position for store in extracting), default=math.inf)
        # Nothing new for any store, as in most openings: no message is read.
        if image.last_message_seq <= lowest:
            return
        if counted and all(before[store.name].last == image.last_message_seq for store in extracting):
            for store in extracting:
                store.last, store.turns = before[store.name].last, before[store.name].turns
                store.messages = before[store.name].messages
            return
        # Whole turns: a prompt without its answer is no ground for a memory, and the turn may still be continued.
        messages = whole_turns(await self._read_messages(int(lowest)))
        for store in extracting:
            store.last = messages[-1].seq if messages else 0
            new = [each for each in messages if each.seq > store.progress.position]
            store.turns, store.messages = turns_in(new), len(new)

    async def on_ready(self) -> None:
        self._join(())

    def _join(self, fired: Iterable[str]) -> None:
        """Others find the session's memory from now on; stores that lack something get it."""
        for name in {*self._parts.link.join(self.context.self_ref), *fired}:
            self._stores[name].fired = True
        self._work_on(self._stores.values())
        for store in self._stores.values():
            if not store.source.client.prepared:
                store.ref.tell(PrepareStore())

    async def on_stop(self, reason: ExitReason) -> None:
        del reason
        if not self._paused:
            self._part()

    def _part(self) -> None:
        self._parts.link.part(unread=any(store.unread for store in self._stores.values()))

    async def handle(self, message: MemoryMessage) -> Next:
        match message:
            case TurnEnded(turns=turns, last=last, messages=messages, budgets=budgets):
                self._turns += turns
                # Never below zero: a snapshot that was loaded may have fewer messages.
                new, self._messages = max(messages - self._messages, 0), messages
                for store in self._stores.values():
                    store.turns, store.last, store.messages = store.turns + turns, last, store.messages + new
                    # The budgets of the call that makes it due; or a new call's, where those of an earlier one were
                    # used up.
                    if store.due or not store.may_extract:
                        store.wanted(budgets)
                self._work_on(self._stores.values())
            case Fire(store=name, budgets=budgets):
                self._stores[name].fired, self._stores[name].fired_late = True, self._paused
                self._stores[name].wanted(budgets)
                self._work_on([self._stores[name]])
            case AcceptMemories():
                return await self._accept(message)
            case FlushMemory():
                self.context.job(self._flush, self.context.defer(), name="flush")
            case FinishMemory():
                self.context.job(self._finish, self.context.defer(), name="finish")
            case PauseMemory():
                self._pausing += 1
                self.context.job(self._pause, self._pausing, self.context.defer(), name="pause")
            case ResumeMemory():
                await self._resume()
                return reply(None)
            case ManualMessages():
                self._counts = False
            case SkipTo(seq=seq):
                self._counts = False
                await self._skip(seq)
            case TryStoreAgain(store=name):
                self._work_on([self._stores[name]])
            case _:
                assert_never(message)
        return carry_on()

    async def _accept(self, message: AcceptMemories) -> Next:
        session_id, agent_id = self._of
        if self._paused:
            return refuse(Unavailable("the session is at rest: call the tool again", session=session_id))
        stores = [self._stores[name] for name in message.stores]
        full = [store.name for store in stores if store.progress.room < len(message.contents)]
        if full:
            return refuse(LimitReached("too many memories are on their way to a store already", stores=full))
        for store in stores:
            writes = [
                MemoryWrite(
                    # From the call's own key: a repeated call, or a repeated write, replaces the memory instead of
                    # adding one.
                    key=f"{session_id}/{agent_id}/{store.name}/{message.key}/{index}",
                    content=content,
                    metadata=message.metadata,
                    said_at=self._wall(),
                )
                for index, content in enumerate(message.contents)
            ]
            store.progress = store.progress.accepted(writes)
            await self._keep(store)
        self._work_on(stores)
        return reply(len(message.contents))

    async def _flush(self, slot: ReplySlot[Mapping[str, StoreFlush]]) -> None:
        stores = list(self._stores.values())
        if self._paused:
            slot.reply({})
            return
        before = {store.name: store.landed for store in stores}
        async with anyio.create_task_group() as group:
            for store in stores:
                group.start_soon(self._flush_to, store)
        slot.reply({store.name: await self._flushed(store, before[store.name]) for store in stores})

    async def _flush_to(self, store: StoreProgress) -> None:
        async with self._worked_on(store):
            await self._work(store, forced=True)

    async def _flushed(self, store: StoreProgress, before: int) -> StoreFlush:
        progress = store.progress
        parked = len(progress.pending) + len(progress.dead_letters)
        ranges = [*progress.again]
        if store.lacks_messages:
            ranges.append((progress.position + 1, store.last))
        for seq_range in ranges:
            parked += len(_filtered(await self._read_range(seq_range), store).messages)
        why = store.error or (progress.dead_letters[-1].why if progress.dead_letters else None)
        return StoreFlush(store.landed - before, parked, why if parked else None)

    async def _skip(self, seq: int) -> None:
        for store in self._stores.values():
            # What a trigger has asked for is claimed before the position passes it.
            if store.due:
                store.claim()
            if store.source.extracts and store.progress.position < seq:
                store.progress, store.turns, store.messages = replace(store.progress, position=seq), 0, 0
                await self._keep(store)
        self._work_on(self._stores.values())

    async def _pause(self, number: int, slot: ReplySlot[None]) -> None:
        # By number: the next call may come while this pause still waits for a write, and ends it.
        while number == self._pausing and not all(store.free.value for store in self._stores.values()):
            await self._looks.wait()
        if number == self._pausing and not self._paused:  # Otherwise the session is in use again.
            self._paused = True
            self._part()
        slot.reply(None)

    async def _resume(self) -> None:
        self._pausing += 1
        self._look_again()
        if self._paused:
            # Triggers that fired before the pause are part of what `_begin` reads; only later ones would be lost.
            fired = [store.name for store in self._stores.values() if store.fired_late]
            await self._begin()
            self._paused = False
            self._join(fired)

    async def _finish(self, slot: ReplySlot[None]) -> None:
        for store in self._stores.values():
            async with self._worked_on(store):
                pass
        slot.reply(None)

    @asynccontextmanager
    async def _worked_on(self, store: StoreProgress) -> AsyncGenerator[None]:
        await store.free.acquire()
        try:
            yield
        finally:
            self._free(store)

    def _free(self, store: StoreProgress) -> None:
        store.free.release()
        self._look_again()

    def _look_again(self) -> None:
        # A new event before the old one is set: whoever looks and finds nothing waits for the next.
        looks, self._looks = self._looks, anyio.Event()
        looks.set()

    # Working for a store.

    def _work_on(self, stores: Iterable[StoreProgress]) -> None:
        """Start a job for each store that has work, unless one runs already or the store has just failed."""
        for store in () if self._paused else stores:
            # The breaker's timer begins the work later (`_note_failure`).
            rests = not store.breaker.allows(anyio.current_time())
            if store.has_work(forced=False) and not rests and store.free.value:
                store.free.acquire_nowait()  # Here, so that `FinishMemory` waits for a job that has not run yet.
                self.context.job(self._work_and_free, store, name=f"memory {store.name}")

    async def _work_and_free(self, store: StoreProgress) -> None:
        try:
            await self._work(store)
        finally:
            self._free(store)

    async def _work(self, store: StoreProgress, *, forced: bool = False) -> None:
        """Do all work of a store, step by step, until a step fails. After each step the journal tells how to go on."""
        before = store.landed
        error: RepertoryError | None = None
        try:
            while store.has_work(forced=forced):
                await self._step(store, forced=forced)
        except RepertoryError as raised:
            error = raised
        try:
            # Also after an error, since the writes that were refused before it are known.
            error = await self._count_refusals(store, others_landed=store.landed > before) or error
        except RepertoryError as raised:
            error = raised
        if error is not None:
            self._note_failure(store, error)
        else:
            store.breaker, store.error = store.breaker.succeeded(), None

    async def _step(self, store: StoreProgress, *, forced: bool) -> None:
        if store.pending:
            await self._write(store, forced=forced)
        else:
            if not store.progress.again:
                store.claim()
            await self._extract(store, store.progress.again[0], forced=forced)

    async def _count_refusals(self, store: StoreProgress, *, others_landed: bool) -> RepertoryError | None:
        """Count refused writes, and drop those that were refused too often while the store accepted others. Returns why
        a write is still refused, if one is.
        """
        held, store.held = store.held, {}
        for key, error in list(held.items()):
            # A store that refuses everything is at fault itself; only one that takes others meanwhile says that this
            # write is.
            store.attempts[key] = store.attempts.get(key, 0) + others_landed
            if store.attempts[key] >= ATTEMPTS_MAX:
                del held[key]
                self._refuse(store, key, error)
        await self._keep(store)
        return next(reversed(held.values()), None)

    def _note_failure(self, store: StoreProgress, error: RepertoryError) -> None:
        """Try again later. If the session is at rest by then, this happens when it is opened again."""
        now = anyio.current_time()
        store.error = str(error)
        store.breaker = store.breaker.failed(now)
        level = DEBUG if store.breaker.failures > 1 else WARNING  # Once for each outage.
        text = "a memory store was not brought up to date"
        note(self.context.logger, level, text, error, store=store.name, **self._ids)
        rest_s = store.breaker.retry_at - now if store.breaker.is_open else _PAUSE_S
        self.context.after(rest_s + _EARLY_S, TryStoreAgain(store=store.name), key=store.name)

    async def _extract(self, store: StoreProgress, seq_range: SeqRange, *, forced: bool) -> None:
        """Extract memories from a range, or hand its messages over, after the range is recorded, so that a retry uses
        the same range. A range that cannot be extracted is dropped. One that the budget did not allow waits.
        """
        # Durable before a model is asked: after a kill the same range gives the same key, so its memories replace each
        # other.
        await self._keep(store, sure=True)
        messages = await self._read_range(seq_range)
        chosen = _filtered(messages, store)
        taken = [messages[position] for position in chosen.positions]
        redactions = sum(each.redacted for each in messages)
        # Another name after a redaction: what was extracted from the original must not be taken for the same.
        name = f"{seq_range[0]}-{seq_range[1]}" + (f"!{redactions}" if redactions else "")
        try:
            attributes = {"gen_ai.data_source.id": store.name, "repertory.memory.messages": len(taken)}
            with self._trace("repertory.memory.extract", attributes) if taken else nullcontext():
                writes = await self._made_of(store, name, chosen.messages, taken, forced=forced) if taken else []
        except Retryable:
            raise
        except Invalid as error:
            self._note_given_up(store, error)
            store.progress = store.progress.given_up(seq_range, str(error), self._wall())
            store.claimed.pop(seq_range, None)
            await self._keep(store)
            return
        # The budget ends in the middle: half of the memories would look like all of them.
        if writes is None:
            store.put_off = True
            return
        store.landed += len(taken)
        store.progress = store.progress.extracted(seq_range, writes)
        store.claimed.pop(seq_range, None)
        await self._keep(store, sure=bool(writes))

    async def _made_of(
        self,
        store: StoreProgress,
        range_name: str,
        messages: Sequence[Message],
        taken: Sequence[JournaledMessage],
        *,
        forced: bool,
    ) -> list[MemoryWrite] | None:
        """The writes for a range; None if a budget did not allow all of it. A flush has no budget. `range_name` gets
        another name after a redaction, because the remaining messages give other memories.
        """
        session_id, agent_id = self._of
        numbers, times = tuple(each.seq for each in taken), tuple(each.at for each in taken)
        # The time tells this session from a deleted one with the same name and the same numbers.
        key = f"{session_id}/{agent_id}/{store.name}/{range_name}@{times[-1]}"
        if store.source.extract is None:
            context = self._context(key, numbers, times, times[-1])
            batch = AddBatch(messages=tuple(messages), context=context, forced=forced)
            await ask_store(store.ref, batch)
            return []
        budgets = () if forced else store.budgets
        results = await self._extracted(store.source.extract, messages, times, budgets)
        if results is None:
            return None
        return [
            MemoryWrite(
                key=f"{key}/{index}",
                content=result.content,
                metadata=dict(result.metadata or {}),
                sequence_numbers=numbers,
                message_times=times,
                said_at=times[-1],
            )
            for index, result in enumerate(results)
        ]

    async def _extracted(
        self, extract: Extract, messages: Sequence[Message], said_at: Sequence[float], budgets: tuple[Budget, ...]
    ) -> Sequence[ExtractionResult] | None:
        """Errors: `Invalid` if every attempt failed for a lasting reason."""
        attempt, before = 1, refusals(budgets)
        # The call that wanted the extraction pays for it, though its turn is over.
        BUDGETS.set(budgets)  # In this job's context.
        while True:
            try:
                results = await extract(self._of[1], messages, said_at)
                # An extractor may catch the refusal and return what it had by then.
                return results if refusals(budgets) == before else None
            except Retryable:
                raise
            except RepertoryError as error:
                if refusals(budgets) > before:
                    return None
                if attempt == ATTEMPTS_MAX:
                    raise Invalid("it could not be extracted", attempts=attempt, error=str(error)) from error
            await anyio.sleep(_PAUSE_S * 2 ** (attempt - 1))
            attempt += 1

    async def _write(self, store: StoreProgress, *, forced: bool) -> None:
        """Write the pending memories, one after the other. Errors: those that a retry may cure."""
        try:
            for write in store.pending:
                context = self._context(write.key, write.sequence_numbers, write.message_times, write.said_at)
                add = AddMemory(content=write.content, metadata=write.metadata, context=context, forced=forced)
                try:
                    await ask_store(store.ref, add)
                except Retryable:
                    raise
                except Invalid as error:
                    self._refuse(store, write.key, error)
                except RepertoryError as error:
                    store.held[write.key] = error
                    # So many in a row: the store is at fault and not the writes, so it rests.
                    if len(store.held) >= ATTEMPTS_MAX:
                        raise
                else:
                    store.progress = store.progress.landed(write.key)
                    store.landed += 1
        finally:
            await self._keep(store)

    def _refuse(self, store: StoreProgress, key: str, error: RepertoryError) -> None:
        self._note_given_up(store, error)
        store.attempts.pop(key, None)
        store.progress = store.progress.refused(key, str(error), self._wall())

    def _note_given_up(self, store: StoreProgress, error: RepertoryError) -> None:
        note(self.context.logger, ERROR, "given up: now a dead letter", error, store=store.name, **self._ids)

    # The journal.

    async def _keep(self, store: StoreProgress, *, sure: bool = False) -> None:
        """Record the progress; with `sure`, return when it is durable."""
        progress = store.progress
        if store.recorded != progress:
            store.recorded = progress
            keep = KeepProgress(store=store.name, position=progress.position, state=progress_json(progress))
            # By the agent, the only author of the journal: two parties once numbered one journal, and records were
            # lost.
            await self._agent.ask(keep, timeout_s=math.inf)
        if sure and store.durable != progress:
            await self._persister.ask(VerifyLease(), timeout_s=math.inf)
            store.durable = progress

    async def _read_messages(self, after: int, until: int | None = None) -> Sequence[JournaledMessage]:
        return await self._persister.ask(ReadMessages(after=after, until=until), timeout_s=math.inf)

    async def _read_range(self, seq_range: SeqRange) -> Sequence[JournaledMessage]:
        """The messages of the range, including those that were rewound later."""
        first, last = seq_range
        # A range was claimed when it was said; a rewind since does not take it back.
        return [each for each in await self._read_messages(first - 1, last) if each.seq <= last]

    def _context(
        self, key: str, numbers: Sequence[int], times: Sequence[float], said_at: float | None
    ) -> AddMessagesContext:
        session_id, agent_id = self._of
        return AddMessagesContext(
            sequence_numbers=list(numbers),
            session_id=session_id,
            agent_id=agent_id,
            idempotency_key=key,
            said_at=said_at,
            message_times=list(times) or None,
        )


def _filtered(entries: Sequence[JournaledMessage], store: StoreProgress) -> Filtered:
    """The entries without the placeholders of redacted messages, and without answers that were stopped: half of a
    sentence may say the opposite of the whole.
    """
    messages: list[Message] = [
        {**each.message, "content": []} if each.redacted or is_stopped(each.message) else each.message
        for each in entries
    ]
    return filtered(messages, store.source.leaves_out)


ATTEMPTS_MAX = 3
"""Attempts at work that fails for a lasting reason, before it is dropped."""


class StoreProgress(Struct):
    """The state of one store."""

    source: MemorySource
    link: MemoryLink
    ref: ActorRef[MemoryStoreMessage]
    progress: Progress
    recorded: Progress
    """The progress as recorded in the journal."""
    durable: Progress
    """The progress that is known to be on stable storage."""
    last: int = 0
    """Sequence number of the last message of the last turn that is over."""
    turns: int = 0
    """Turns that have ended since `progress.position`."""
    messages: int = 0
    """The messages of these turns."""
    claimed: dict[SeqRange, int] = {}
    """Messages by the range that holds them, of those in `progress.again`; not of ranges from before a restart."""
    fired: bool = False
    fired_late: bool = False
    """True if the trigger fired after the session's pause."""
    put_off: bool = False
    """True if a budget of the last call that wanted an extraction refused the extractor its model."""
    free: anyio.Semaphore = field(default_factory=partial(anyio.Semaphore, 1, max_value=1))
    """The semaphore that a job holds while it works for the store, or is about to."""
    breaker: Breaker = field(default_factory=Breaker)
    held: dict[str, RepertoryError] = {}
    """The error with which the store has just refused a write, by the write's key; the write may be its reason."""
    attempts: dict[str, int] = {}
    """Refusals of a write while other writes were not refused, by the write's key."""
    landed: int = 0
    error: str | None = None

    @property
    def name(self) -> str:
        return self.source.client.name

    @property
    def lacks_messages(self) -> bool:
        """True if messages are to be extracted for the store that no range holds yet."""
        return self.source.extracts and self.last > self.progress.position

    @property
    def due(self) -> bool:
        """True if a trigger has asked for an extraction and the store lacks messages."""
        every = self.source.every
        asked = self.fired or (every is not None and self.turns >= every)
        return asked and self.lacks_messages

    @property
    def claims_soon(self) -> bool:
        """True if the next answer makes an extraction due."""
        every = self.source.every
        return self.source.extracts and (self.fired or (every is not None and self.turns + 1 >= every))

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets that an extraction counts towards, unless it is flushed."""
        return self.link.budgets.get(self.name, ())

    @property
    def may_extract(self) -> bool:
        """True if there is budget left for an extraction; otherwise the messages wait for another call."""
        used_up = self.put_off or any(budget.used_up for budget in self.budgets)
        return self.source.extract is None or not used_up

    @property
    def unread(self) -> bool:
        """True if the store lacks some messages or memories."""
        return bool(self.lacks_messages or self.progress.pending or self.progress.again)

    @property
    def pending(self) -> list[MemoryWrite]:
        """The pending writes that were not just refused."""
        return [write for write in self.progress.pending if write.key not in self.held]

    def has_work(self, *, forced: bool) -> bool:
        """True if there is work. `forced`: regardless of triggers."""
        if self.pending:
            return True
        wanted = self.progress.again or (self.lacks_messages if forced else self.due)
        room = self.progress.room > 0 and len(self.held) < ATTEMPTS_MAX
        return bool(wanted) and room and (forced or self.may_extract)

    def claim(self) -> None:
        """Reserve the turns that are over and not reserved yet, as one range; they are extracted next."""
        self.claimed[self.progress.position + 1, self.last] = self.messages
        self.progress = self.progress.claimed(self.last)
        self.fired, self.turns, self.messages = False, 0, 0

    @property
    def lag(self) -> StoreLag:
        return self.progress.lag(self.messages if self.source.extracts else 0, self.claimed)

    def wanted(self, budgets: tuple[Budget, ...]) -> None:
        """Note that a call wants an extraction on its budgets."""
        self.link.budgets[self.name] = budgets
        self.put_off = False
