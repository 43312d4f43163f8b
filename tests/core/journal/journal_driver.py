"""A driver that grows a journal by random but reachable commands, the way that a session does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from repertory.core.deferral import SETTLED_MAX, Deferral, deferred_id
from repertory.core.deliveries import (
    EventDelivery,
    Happened,
    RetryPlan,
    TryFailed,
    after_failure,
    first_of_lanes,
    new_delivery,
    sent_again,
)
from repertory.core.interrupts import Interrupt
from repertory.core.journal import deferrals
from repertory.core.journal.fold import Fold, is_answer
from repertory.core.journal.image import Image
from repertory.core.journal.records import (
    Branched,
    CursorMoved,
    DeliveriesChanged,
    Interrupted,
    MessageAdded,
    NodeChanged,
    OwnerChanged,
    Record,
    Resumed,
    SnapshotTaken,
    StateChanged,
    StepFinished,
    StepStarted,
    TimersChanged,
    ToolFinished,
    ToolStarted,
)
from repertory.core.journal.redact import redact
from repertory.core.journal.restore import Appender, messages_of, records_of, restore
from repertory.core.journal.rows import RecordKind, Row
from repertory.core.journal.view import SUMMARY_SEQ, VisibleMessages, message_with_view
from repertory.core.messages import STOPPED, Json, Message, ToolResult, ToolUse, tool_results, tool_uses
from repertory.core.timers import Timer, after_firing, next_timer
from repertory.core.turn import is_whole
from repertory.core.window.decision import WindowPlan
from repertory.core.window.editing import view_change
from repertory.errors import Gone

COMMANDS = (
    "prompt", "answer", "answer", "ask", "start", "step", "step", "finish", "results", "results", "drop", "drop",
    "truncate", "summarise", "state", "state_full", "interrupt", "resume", "cursor", "node", "snapshot",
    "owner", "redact", "rewind", "idle", "last_word", "last_word", "again", "reopen", "timer", "fire",
    "defer", "defer", "come", "come", "expire", "tell", "hold", "withdraw",
    "dispatch", "dispatch", "run_begin", "run_step", "run_step", "run_step", "run_end", "run_ask", "run_in_front",
    "late_stated", "deliver", "settle", "settle",
)  # fmt: skip


@dataclass
class Late:
    """What waits for results, and which have come, as plain dictionaries know it."""

    waits: dict[str, float | None] = field(default_factory=dict[str, "float | None"])
    """Id to when it expires."""
    came: dict[str, bool] = field(default_factory=dict[str, bool])
    """Id of what is not told yet, and whether a turn begins for it."""
    had: list[str] = field(default_factory=list[str])
    expired: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, fold: Fold) -> Late:
        return cls(
            {each.id: each.expires_at for each in fold.deferred.values()},
            {each.id: each.starts for each in fold.came.values()},
            list(fold.settled),
            {each.id for each in fold.came.values() if each.expired},
        )


SECRET = b"secret of a test"


class Driver:
    """Keeps the rows as a store would, erased ones included."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.appender = Appender("agent", Fold(), None, lambda count: bytes([len(self.rows) % 256]) * count)
        self._ids = 0
        self.token: str | None = None
        """Of the turn that runs, or ran last."""
        self._at_rest = False
        """See `rest`."""
        self.timers: dict[str, Timer] = {}
        """Those that are set, as a plain dictionary knows them."""
        self.outbox: dict[str, EventDelivery] = {}
        """What is to be delivered, as a plain dictionary knows it."""
        self.late = Late()
        self._late_at: dict[int, Late] = {}
        """What it was behind each command."""

    @classmethod
    def on(cls, rows: Sequence[Row]) -> Driver:
        """One that goes on where these rows end."""
        driver = cls()
        driver.rows = list(rows)
        restored = restore(rows)
        driver.appender = Appender("agent", restored.fold, restored.link, driver.appender._entropy)
        driver._ids = 1000
        return driver

    @property
    def fold(self) -> Fold:
        return self.appender.fold

    def image(self) -> Image:
        return self.fold.image()

    def run(self, commands: Sequence[tuple[str, int]]) -> None:
        for name, number in commands:
            getattr(self, f"do_{name}")(number)
            self.rows.extend(self.appender.restate(self.at()))
            self._late_at[len(self.rows)] = copy.deepcopy(self.late)

    def at(self) -> float:
        return 1_700_000_000.5 + len(self.rows)

    def append(self, *records: Record) -> None:
        self.rows.extend(self.appender.append_all(records))

    def say(
        self, message: Message, *, new_turn: bool = False, token: str | None = None, joined: tuple[str, ...] = ()
    ) -> None:
        if new_turn or self._at_rest or not self.fold.turns:
            turn, self.token, self._at_rest = self.fold.turns + 1, token, False
        else:
            turn = self.fold.turns
        self.append(
            MessageAdded(
                at=self.at(),
                message=message,
                turn=turn,
                index=self.fold.message_count,
                idempotency_token=token,
                joined=joined,
            )
        )

    def waiting(self) -> list[str]:
        last = self.fold.last_message
        return [use["toolUseId"] for use in tool_uses(last)] if last is not None else []

    def do_prompt(self, number: int) -> None:
        if not self.waiting():
            token = f"token-{number % 7}" if number % 2 else None
            last = self.fold.last_message
            # Then a call with the token would get the answer.
            over = last is not None and is_answer(last) and is_whole(last)
            others = () if token is None or over else self.fold.turn_tokens.named_with(token)
            joined = tuple(sorted({*others, *steered(number)} - {token}))
            prompt: Message = {"role": "user", "content": [{"text": f"prompt {number}"}]}
            self.say(prompt, new_turn=True, token=token, joined=joined)

    def do_reopen(self, number: int) -> None:
        """The process is gone, and another one goes on, from as few rows as opening needs."""
        if self.rows:
            restored = restore(self.rows[self.rows[-1].low - 1 :])
            self.appender = Appender("agent", restored.fold, restored.link, self.appender._entropy)
            self.rest()

    def rest(self) -> None:
        """Another process has found what stands: behind an answer, what follows is a turn of its own."""
        last = self.fold.last_message
        self._at_rest = last is not None and last["role"] == "assistant" and not self.waiting()

    def do_again(self, number: int) -> None:
        """Something more within the same turn, as when a form is asked for behind an answer."""
        if self.fold.turns and not self.waiting():
            said: Message = {"role": "user", "content": [{"text": f"fill in the form {number}"}]}
            self.say(said, joined=steered(number))

    def do_answer(self, number: int) -> None:
        if not self.waiting():
            answer: Message = {"role": "assistant", "content": [{"text": f"answer {number}"}]}
            if number % 5 == 4:
                answer["metadata"] = {"custom": {"stop_reason": STOPPED}}
            self.say(answer)

    def do_ask(self, number: int) -> None:
        if self.waiting():
            return
        self._ids += 1
        ids = [f"use-{self._ids}-{n}" for n in range(1 + number % 3)]
        content = [{"toolUse": {"toolUseId": each, "name": "tool", "input": {"n": number}}} for each in ids]
        self.say({"role": "assistant", "content": content})  # type: ignore[typeddict-item]

    def do_start(self, number: int) -> None:
        for use_id in self.waiting()[: 1 + number % 2]:
            self.append(ToolStarted(at=self.at(), tool_use_id=use_id, name="tool", idempotency_key=f"key-{use_id}"))

    def do_step(self, number: int) -> None:
        """A step of a running tool begins, or one that has begun ends."""
        for use_id in list(self.fold.open_tools)[:1]:
            steps = self.fold.steps.get(use_id, {})
            begun = [key for key, step in steps.items() if step.finished is None]
            if begun and number % 2:
                error = None if number % 3 else f"failed {number}"
                self.append(
                    StepFinished(at=self.at(), tool_use_id=use_id, step=begun[0], result={"n": number}, error=error)
                )
                continue
            key, lane = f"step {number % 4}", ("", "side", "undo")[number % 3]
            attempt = steps[key].started.attempt + 1 if key in steps else 1
            self.append(
                StepStarted(
                    at=self.at(),
                    tool_use_id=use_id,
                    step=key,
                    attempt=attempt,
                    idempotent=number % 5 == 0,
                    lane=lane,  # type: ignore[arg-type] - one of the three
                    failure=f"failure {number}" if lane == "undo" else "",
                    tool=f"tool {number}" if lane == "side" else "",
                    input={"number": number} if lane == "side" else None,
                )
            )

    def do_finish(self, number: int) -> None:
        for use_id in list(self.fold.open_tools)[:1]:
            self.append(ToolFinished(at=self.at(), tool_use_id=use_id, result=result_of(use_id, number)))

    def do_results(self, number: int) -> None:
        ids = self.waiting()
        if ids:
            content = [{"toolResult": self.fold.finished_tools.get(each, result_of(each, number))} for each in ids]
            self.say({"role": "user", "content": content}, joined=steered(number))  # type: ignore[typeddict-item]

    def plan(self, plan: WindowPlan, summary: Message | None = None) -> None:
        state = {"removed": plan.drop}
        shown = list(self.fold.shown)
        stays = [*plan.pinned, *range(plan.drop, len(shown))]
        expected = [
            plan.replaced.get(each, shown[each][1])
            for each in stays
            if summary is None or shown[each][0] != SUMMARY_SEQ
        ]
        plan = replace(plan, summary=summary)
        shown_now, last = self.fold.shown, self.fold.last_seq
        self.append(view_change(shown_now, last, plan, manager="Sliding", manager_state=state, at=self.at()))
        assert self.fold.shown.messages() == ([] if summary is None else [summary]) + expected

    def plan_drop(self, drop: int) -> None:
        self.plan(WindowPlan(drop=drop, reason="drop"))

    def pin(self, position: int, *, drop: int) -> None:
        self.plan(WindowPlan(drop=drop, pinned=(position,), reason="drop"))

    def do_drop(self, number: int) -> None:
        shown = len(self.fold.shown)
        drop = number % (shown + 1)
        pinned = tuple(position for position in (0, 1) if position < drop and number & (1 << position))
        self.plan(WindowPlan(drop=drop, pinned=pinned, reason="drop"))

    def do_last_word(self, number: int) -> None:
        """An answer, and what is shown from it on: in one record whenever that can be."""
        if self.waiting():
            return
        seq, turn = self.fold.last_seq + 1, max(1, self.fold.turns + self._at_rest)
        if self._at_rest:
            self.token, self._at_rest = None, False
        answer: Message = {"role": "assistant", "content": [{"text": f"last word {number}"}]}
        added = MessageAdded(at=self.at(), message=answer, turn=turn, index=self.fold.message_count)
        ahead = VisibleMessages(self.fold.shown.view, self.fold.shown.recent)
        ahead.add(seq, answer)
        drop = number % (len(ahead) + 1)
        plan = WindowPlan(drop=drop, pinned=(0,) if drop and number % 3 == 0 else (), reason="drop")
        change = view_change(ahead, seq, plan, manager="Sliding", manager_state={"removed": drop}, at=self.at())
        whole = message_with_view(added, change)
        self.append(*((added, change) if whole is None else (whole,)))
        ahead.change(change.view, patch=change.patch)
        assert list(self.fold.shown) == list(ahead)

    def do_truncate(self, number: int) -> None:
        shown = self.fold.shown.messages()
        if shown:
            position = number % len(shown)
            self.plan(WindowPlan(replaced={position: shortened(shown[position], number)}, reason="truncate"))

    def do_summarise(self, number: int) -> None:
        shown = len(self.fold.shown)
        summary: Message = {"role": "user", "content": [{"text": f"summary {number}"}]}
        self.plan(WindowPlan(drop=number % (shown + 1), reason="summary"), summary)

    def do_state(self, number: int) -> None:
        key = f"key-{number % 5}"
        if number % 3:
            self.append(StateChanged(at=self.at(), set={key: number}))
        else:
            self.append(StateChanged(at=self.at(), delete=(key,)))

    def do_state_full(self, number: int) -> None:
        self.append(StateChanged(at=self.at(), full={} if number % 4 == 0 else {"key": number}))

    def do_interrupt(self, number: int) -> None:
        expires_at = None if number % 3 else float(number)
        one = Interrupt(id=f"interrupt-{number % 4}", name="ask", reason={"n": number}, expires_at=expires_at)
        parked = tuple(self.fold.open_tools)[: number % 2]
        self.append(Interrupted(at=self.at(), interrupts=(one,), parked=parked))

    def do_resume(self, number: int) -> None:
        for interrupt in self.fold.interrupts[:1]:
            joined = (f"answer-{number % 5}",) if self.fold.open_tokens else ()
            self.append(Resumed(at=self.at(), responses={interrupt.id: number}, joined=joined))

    def do_cursor(self, number: int) -> None:
        positions = {**self.fold.cursors, f"store-{number % 2}": self.fold.last_seq}
        kept: dict[str, Json] = {"store-0": {"pending": [number]}} if number % 7 == 1 else {}
        self.append(CursorMoved(at=self.at(), positions=positions if number % 5 else {}, kept=kept))

    def do_timer(self, number: int) -> None:
        timer_id = f"timer-{number % 5}"
        if number % 4:
            every_s = None if number % 3 else 60.0
            self.timers[timer_id] = Timer(
                id=timer_id,
                at=float(number),
                prompt=f"prompt {number}",
                every_s=every_s,
                deliver_to=("crm",) * (number % 2),
            )
        else:
            self.timers.pop(timer_id, None)
        self.append(TimersChanged(at=self.at(), timers=tuple(self.timers.values())))

    def do_fire(self, number: int) -> None:
        """The first timer begins its turn, so many seconds late."""
        timer = next_timer(self.fold.timers)
        if timer is None or self.waiting():
            return
        del self.timers[timer.id]
        if timer.every_s is not None:
            at = timer.at + timer.every_s * (number // int(timer.every_s) + 1)
            self.timers[timer.id] = replace(timer, at=at)
        self.say({"role": "user", "content": [{"text": timer.prompt}]}, new_turn=True, token=timer.token)
        left = after_firing(self.fold.timers, timer, timer.at + number)
        self.append(TimersChanged(at=self.at(), timers=tuple(left.values())))

    def do_deliver(self, number: int) -> None:
        """An event is to be delivered to one or two; a caller may have named further ones."""
        names = ("a", "b")[: 1 + number % 2]
        source, at = ("session", "agent"), self.at()
        number, seq = self.fold.last_seq + 1, self.fold.last_message_seq
        happened = Happened(event="answer", at=at, number=number, seq=seq)
        made = [new_delivery(source, happened, to) for to in names]
        self.outbox |= {one.id: one for one in made}
        to, turn = (("c",), self.fold.turns) if number % 3 == 0 else ((), 0)
        self.append(DeliveriesChanged(at=at, deliveries=tuple(made), to=to, turn=turn))

    def do_settle(self, number: int) -> None:
        """The first delivery of a lane has succeeded, or failed, or a dead letter is sent again."""
        dead = sent_again(self.outbox, None, self.at())
        if dead and number % 4 == 0:
            self.outbox |= {one.id: one for one in dead}
            self.append(DeliveriesChanged(at=self.at(), deliveries=tuple(dead)))
            return
        for first in [*first_of_lanes(self.outbox).values()][:1]:
            if number % 2:
                del self.outbox[first.id]
                self.append(DeliveriesChanged(at=self.at(), ended=(first.id,)))
            else:
                failed = TryFailed(error="down", final=number % 6 == 0)
                self.outbox[first.id] = after_failure(first, failed, RetryPlan(), self.at(), 0.5)
                self.append(DeliveriesChanged(at=self.at(), deliveries=(self.outbox[first.id],)))

    def do_defer(self, number: int) -> None:
        """A tool that runs says that its result comes later; it may have come already."""
        for use_id, started in list(self.fold.open_tools.items())[:1]:
            late_id = deferred_id(started.idempotency_key, SECRET)
            expires_s = None if number % 3 == 0 else float(number)
            on_expiry = "drop" if number % 2 else "tell"
            deferral = Deferral(id=late_id, expires_s=expires_s, on_expiry=on_expiry)  # type: ignore[arg-type]
            use = {"toolUseId": use_id, "name": "tool", "input": None}
            at = self.at()
            made = deferrals.defer(self.fold, deferral, use, at)  # type: ignore[arg-type]
            assert (made is None) == (late_id in self.late.came or late_id in self.late.had)
            if made is not None:
                self.late.waits[late_id] = None if expires_s is None else at + expires_s
                self.append(made)

    def do_come(self, number: int) -> None:
        """Results come: for a tool that waits, for one that still runs, twice, and for none."""
        running = [deferred_id(each.idempotency_key, SECRET) for each in self.fold.open_tools.values()]
        known = [*self.late.waits, *running, *self.late.came, *self.late.had, "later-none"]
        late_id, late = known[number % len(known)], self.late
        taken = (late_id in late.came and late_id not in late.expired) or late_id in late.had
        until = late.waits.get(late_id)
        waits = late_id in late.waits and (until is None or self.at() < until)
        may = waits or (late_id in running and late_id not in late.waits)
        may = may and late_id not in late.expired
        try:
            made = deferrals.take(
                self.fold, late_id, result_of("", number), self.at(), starts=bool(number % 3), secret=SECRET
            )
        except Gone:
            assert not taken
            assert not may
            return
        assert taken == (made is None)
        if made is not None:
            assert may
            late.waits.pop(late_id, None)
            late.came[late_id] = bool(number % 3)
            self.append(made)

    def do_expire(self, number: int) -> None:
        now = self.at() + number
        over = [each for each in self.fold.deferred.values() if each.is_over(now)]
        assert {each.id for each in over} == {
            each for each, until in self.late.waits.items() if until is not None and until <= now
        }
        self.append(*deferrals.expired(self.fold, now))
        for each in over:
            del self.late.waits[each.id]
            if each.on_expiry == "tell":
                self.late.came[each.id] = True
                self.late.expired.add(each.id)

    def do_tell(self, number: int) -> None:
        """A turn tells results that have come; it may be one of a person, whose prompt tells none."""
        ids = deferrals.next_reported(self.fold) if self.fold.came else ()
        if self.waiting() or not ids:
            return
        messages = deferrals.with_results((), [self.fold.came[each] for each in ids], alone=True)
        assert messages is not None
        self.say(messages[0], new_turn=True)
        made = deferrals.tell(self.fold, ids, self.at())
        assert made is not None
        late = self.late
        late.had = [*late.had, *(each for each in ids if each not in late.expired)][-SETTLED_MAX:]
        for each in ids:
            del late.came[each]
            late.expired.discard(each)
        self.append(made)
        assert deferrals.tell(self.fold, ids, self.at()) is None

    def do_hold(self, number: int) -> None:
        self.append(*deferrals.hold(self.fold, list(self.fold.came)[: 1 + number % 2], self.at()))
        for each in list(self.late.came)[: 1 + number % 2]:
            self.late.came[each] = False

    def do_withdraw(self, number: int) -> None:
        for late_id in list(self.late.waits)[:1]:
            made = deferrals.withdraw(self.fold, late_id, self.at())
            assert made is not None
            del self.late.waits[late_id]
            self.append(made)

    def do_dispatch(self, number: int) -> None:
        """A tool of the last message is put in the background; twice, as after a crash, it stays what it was."""
        for use_id in self.waiting()[:1]:
            key = f"key-{use_id}"
            run_id = deferred_id(key, SECRET)
            use: ToolUse = {"toolUseId": use_id, "name": "tool", "input": {"n": number}}
            made = deferrals.run(self.fold, run_id, use, key, self.at(), begins=number % 2 == 0)
            known = run_id in self.late.waits or run_id in self.late.came or run_id in self.late.had
            assert (made is None) == known
            if made is not None:
                self.late.waits[run_id] = None
                self.append(made)
            self.append(ToolFinished(at=self.at(), tool_use_id=use_id, result=result_of(use_id, number)))

    def running(self) -> list[str]:
        return [each.id for each in self.fold.deferred.values() if each.run is not None]

    def do_run_begin(self, number: int) -> None:
        for run_id in self.running()[-1:]:
            run = self.fold.deferred[run_id].run
            assert run is not None
            self.append(deferrals.change_run(self.fold, run_id, self.at(), attempt=run.attempt + 1))

    def do_run_step(self, number: int) -> None:
        """A step of a tool in the background begins, or one that has begun ends."""
        for run_id in self.running()[number % 2 :][:1]:
            steps = self.fold.steps_of(run_id)
            begun = [key for key, step in steps.items() if step.finished is None]
            if begun and number % 3:
                self.append(StepFinished(at=self.at(), tool_use_id=run_id, step=begun[0], result={"n": number}))
            else:
                self.append(StepStarted(at=self.at(), tool_use_id=run_id, step=f"step {number % 4}"))

    def do_run_end(self, number: int) -> None:
        for run_id in self.running()[:1]:
            made = deferrals.run_ended(self.fold, run_id, result_of("", number), self.at(), starts=bool(number % 3))
            assert made is not None
            del self.late.waits[run_id]
            self.late.came[run_id] = bool(number % 3)
            self.append(made)
            assert run_id not in self.fold.run_steps
            assert deferrals.run_ended(self.fold, run_id, result_of("", number), self.at()) is None

    def do_run_ask(self, number: int) -> None:
        for run_id in self.running()[:1]:
            asks = "question" if number % 2 else "outcome"
            self.append(deferrals.change_run(self.fold, run_id, self.at(), asks=asks))  # type: ignore[arg-type]

    def do_late_stated(self, number: int) -> None:
        """All that waits is stated anew: nothing of it changes."""

        def late() -> object:
            fold = self.fold
            return list(fold.deferred.values()), fold.run_steps, fold.came, fold.settled

        before = late()
        self.append(*deferrals.waiting_tools(self.fold, self.at()))
        assert late() == before

    def do_run_in_front(self, number: int) -> None:
        """A turn takes over a tool that needs a person."""
        tool = deferrals.asking_behind_answer(self.fold)
        if tool is None:
            return
        steps = self.fold.steps_of(tool.id)
        self.say({"role": "user", "content": [{"text": "it asks"}]}, new_turn=True)
        message = deferrals.in_foreground(tool)
        self.say(message)
        self.append(*deferrals.foreground_records(self.fold, tool, self.at()))
        (use,) = tool_uses(message)
        assert [step.started.step for step in self.fold.steps_of(use["toolUseId"]).values()] == [*steps]
        assert tool.id not in self.fold.deferred
        assert tool.id not in self.fold.run_steps
        del self.late.waits[tool.id]

    def do_node(self, number: int) -> None:
        run = self.fold.run + (number % 4 == 0 or not self.fold.run)
        node = f"node-{number % 3}"
        self.append(NodeChanged(at=self.at(), run=run, node=node, status="completed", frontier=(node,), result=number))

    def do_snapshot(self, number: int) -> None:
        self.append(SnapshotTaken(at=self.at(), label=f"label {number}"))

    def do_owner(self, number: int) -> None:
        self.append(OwnerChanged(at=self.at(), owner="owner", generation=number))

    def do_redact(self, number: int) -> None:
        said = messages_of(records_of(self.rows))
        targets = [seq for seq in said if seq != self.fold.last_message_seq or not any(tool_uses(said[seq]))]
        if not targets:
            return
        target = targets[number % len(targets)]
        redaction = redact(self.appender, self.rows, target, shortened(said[target], -1), self.at())
        for seq in redaction.erase:
            self.rows[seq - 1] = self.rows[seq - 1].without_content()
        self.rows.extend(redaction.rows)
        if any(
            row.kind == RecordKind.BRANCH for row in self.rows
        ):  # It is restated, and tokens before it are forgotten.
            self.token = None

    def do_rewind(self, number: int) -> None:
        if self.waiting() or not self.rows:
            return
        position = 1 + number % len(self.rows)
        earlier = restore(self.rows[:position]).fold if not self.erased_branch(position) else self.fold
        if earlier.last_message is not None and any(tool_uses(earlier.last_message)):
            return
        record = Branched(
            at=self.at(),
            position=earlier.last_seq,
            last=earlier.last_message_seq,
            message_count=self.fold.message_count,
            turns=self.fold.turns,
            run=self.fold.run,
            view=earlier.shown.view,
            state=dict(earlier.state),
        )
        before = list(earlier.shown)
        standing = list(deferrals.waiting_records(earlier, self.at()))
        self.rows.append(self.appender.rewind(record, messages_of(records_of(self.rows))))
        self.append(*standing)
        self.late = copy.deepcopy(self._late_at.get(record.position) or Late.of(self.fold))
        self.token = None
        assert list(self.fold.shown) == before

    def erased_branch(self, position: int) -> bool:
        return any(row.erased for row in self.rows[:position])

    def do_idle(self, number: int) -> None:
        for _ in range(number % 70):
            self.append(SnapshotTaken(at=self.at(), label="idle"))


def steered(number: int) -> tuple[str, ...]:
    """The tokens of calls that a message takes in."""
    return tuple(f"token-{each}" for each in range(7) if number % 5 == 1 and number & (1 << each))


def result_of(use_id: str, number: int) -> ToolResult:
    return {"toolUseId": use_id, "status": "success", "content": [{"text": f"result {number}"}]}


def shortened(message: Message, number: int) -> Message:
    """The same tools with other contents."""
    content: list[object] = []
    content.extend({"toolUse": {**use, "input": number}} for use in tool_uses(message))
    content.extend({"toolResult": result_of(each["toolUseId"], number)} for each in tool_results(message))
    return {"role": message["role"], "content": content or [{"text": f"short {number}"}]}  # type: ignore[typeddict-item]


Command = Callable[[int], None]
