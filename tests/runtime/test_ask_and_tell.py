"""Telling and asking: order, answers, deadlines, and every way in which an ask can end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from repertory.errors import ActorDead, ActorFailed, AskTimeout, Invalid, NotFound
from repertory.runtime.message import Ask, Next, Reason, Reject, carry_on, fail, refuse, reply, stop
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import Restart
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Add, Bump, CrashAsked, Gate, Nap, Run, Scripted, Total, counter, scripted, settle

pytestmark = pytest.mark.anyio


async def test_ask_is_answered() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        assert await ref.ask(Add(amount=2), timeout_s=1) == 2


async def test_messages_of_one_sender_arrive_in_order() -> None:
    seen: list[object] = []

    async def note(actor: Scripted, message: object) -> Next:
        seen.append(message)
        await anyio.lowlevel.checkpoint()
        return carry_on() if isinstance(message, int) else reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(note))
        for number in range(200):
            ref.tell(number)
        await ref.ask(Run(), timeout_s=1)
    assert seen[:-1] == list(range(200))


async def test_handlers_are_serial_across_an_await() -> None:
    """One message at a time, awaits included: our decision, and what Python's other agent runtimes lack."""
    running = most = 0

    async def count(actor: Scripted, message: object) -> Next:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.01)
        running -= 1
        return reply(None)

    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(scripted(count))
        for _ in range(10):
            group.start_soon(lambda: ref.ask(Run(), timeout_s=5))
    assert most == 1


async def test_ask_times_out_within_50_ms_of_its_deadline() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        began = anyio.current_time()
        with pytest.raises(AskTimeout, match="no answer in time"):
            await ref.ask(Nap(seconds=60), timeout_s=1)
        assert 1.0 <= anyio.current_time() - began <= 1.06


async def test_ask_without_a_deadline_waits_as_long_as_it_takes() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        assert await ref.ask(Nap(seconds=3600), timeout_s=math.inf) == "awake"


async def test_timeout_that_is_no_number_is_refused_and_one_in_the_past_expires() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        with pytest.raises(Invalid, match="number of seconds"):
            await ref.ask(Add(), timeout_s=math.nan)
        for timeout_s in (0.0, -5.0):
            with pytest.raises(AskTimeout):
                await ref.ask(Add(), timeout_s=timeout_s)
        assert await ref.ask(Total(), timeout_s=1) == 0


async def test_nested_asks_inherit_the_earlier_deadline() -> None:
    """Otherwise the outer ask fires first and the inner work is wasted."""
    errors: list[Exception] = []
    asked: list[float] = []

    async with ActorSystem() as system:
        slow = await system.start(counter("slow"))

        async def forward(actor: Scripted, message: object) -> Next:
            began = anyio.current_time()
            try:
                await slow.ask(Nap(seconds=100), timeout_s=50)
            except AskTimeout as error:
                errors.append(error)
                asked.append(anyio.current_time() - began)
            return reply(None)

        ref = await system.start(scripted(forward))
        with pytest.raises(AskTimeout):
            await ref.ask(Run(), timeout_s=1)
        await anyio.sleep(1)
    assert len(errors) == 1
    assert asked[0] <= 1.1


async def test_message_whose_deadline_passed_in_the_mailbox_is_not_run() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ref.ask(Nap(seconds=10), timeout_s=20))
            await settle()
            with pytest.raises(AskTimeout):
                await ref.ask(Add(amount=5), timeout_s=1)
        assert await ref.ask(Total(), timeout_s=1) == 0
        assert system.dead_letters.counts == {("Counter", Reason.EXPIRED): 1}


async def test_cancelled_asker_leaves_a_dead_letter_and_no_work() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: ref.ask(Nap(seconds=10), timeout_s=20))
            await settle()
            with anyio.move_on_after(1):
                await ref.ask(Add(amount=5), timeout_s=60)
        assert await ref.ask(Total(), timeout_s=1) == 0
        assert system.dead_letters.counts == {("Counter", Reason.ABANDONED): 1}


async def test_turn_of_an_asker_that_has_gone_is_finished_and_its_late_reply_counted() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        with anyio.move_on_after(1):
            await ref.ask(Nap(seconds=10), timeout_s=60)
        assert await ref.ask(Add(), timeout_s=60) == 1
        assert system.stats().late_replies == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate(Ask[str]):
    """Long work that nobody wants once the asker has gone."""

    on_abandon = "cancel"


@pytest.mark.parametrize("leave", ["cancelled", "timed out"])
async def test_turn_marked_so_is_cancelled_when_its_asker_has_gone(leave: str) -> None:
    outcome: list[str] = []

    async def generate(actor: Scripted, message: object) -> Next:
        if isinstance(message, Run):
            return reply(None)
        try:
            await anyio.sleep(100)
        except anyio.get_cancelled_exc_class():
            outcome.append("cancelled")
            raise
        return reply("never")

    async with ActorSystem() as system:
        ref = await system.start(scripted(generate))
        began = anyio.current_time()
        if leave == "cancelled":
            with anyio.move_on_after(1):
                await ref.ask(Generate(), timeout_s=200)
        else:
            with pytest.raises(AskTimeout):
                await ref.ask(Generate(), timeout_s=1)
        await ref.ask(Run(), timeout_s=5)
        assert anyio.current_time() - began < 2
    assert outcome == ["cancelled"]


async def test_failed_handler_fails_its_asker_with_the_cause() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        with pytest.raises(ActorFailed, match="/counter") as caught:
            await ref.ask(CrashAsked(), timeout_s=1)
        assert isinstance(caught.value.__cause__, ValueError)


async def test_cause_inside_task_groups_is_unwrapped() -> None:
    """Two groups give a doubly nested group of one; callers want the error itself."""

    async def crash(actor: Scripted, message: object) -> Next:
        async with anyio.create_task_group(), anyio.create_task_group():
            raise ValueError("deep")

    async with ActorSystem() as system:
        ref = await system.start(scripted(crash))
        with pytest.raises(ActorFailed) as caught:
            await ref.ask(Run(), timeout_s=1)
        assert repr(caught.value.__cause__) == "ValueError('deep')"


@pytest.mark.parametrize("how", ["refuse", "reject", "reject in a task group"])
async def test_refused_ask_gets_the_error_and_the_actor_lives(how: str) -> None:
    async def refuse_it(actor: Scripted, message: object) -> Next:
        match how:
            case "refuse":
                return refuse(NotFound("not here"))
            case "reject":
                raise Reject(NotFound("not here"))
            case _:
                async with anyio.create_task_group():
                    raise Reject(NotFound("not here"))

    async with ActorSystem() as system:
        ref = await system.start(scripted(refuse_it))
        for _ in range(2):
            with pytest.raises(NotFound, match="not here"):
                await ref.ask(Run(), timeout_s=1)
        assert system.stats().restarts == 0


async def test_refused_tell_becomes_a_dead_letter() -> None:
    async def refuse_it(actor: Scripted, message: object) -> Next:
        return refuse(NotFound("not here"))

    async with ActorSystem() as system:
        ref = await system.start(scripted(refuse_it))
        ref.tell("anything")
        await settle()
        letter = system.dead_letters.recent()[0]
        assert (letter.message, letter.reason, letter.path) == ("anything", Reason.REJECTED, "/scripted")
        assert system.stats().processed == 0


async def test_handler_that_forgets_to_answer_fails_its_asker_at_once() -> None:
    """Every ask ends: an answer that cannot come any more is not waited for."""

    async def forget(actor: Scripted, message: object) -> Next:
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(forget))
        with pytest.raises(ActorFailed, match="no answer"):
            await ref.ask(Run(), timeout_s=math.inf)


async def test_deferred_answer_comes_after_the_turn() -> None:
    async def answer_later(actor: Scripted, message: object) -> Next:
        slot = actor.context.defer()

        async def later() -> None:
            await anyio.sleep(1)
            slot.reply("late")

        actor.context.job(later)
        return carry_on()

    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(scripted(answer_later))
        answers: list[object] = []

        async def ask() -> None:
            answers.append(await ref.ask(Run(), timeout_s=5))

        for _ in range(3):
            group.start_soon(ask)
        await anyio.sleep(1.5)
        assert answers == ["late"] * 3


async def test_open_slots_fail_when_the_incarnation_ends() -> None:
    async def defer_and_fail(actor: Scripted, message: object) -> Next:
        if isinstance(message, Run):
            actor.context.defer()
            return carry_on()
        return fail(ValueError("over"))

    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(scripted(defer_and_fail))

        async def ask() -> None:
            with pytest.raises(ActorDead):
                await ref.ask(Run(), timeout_s=math.inf)

        group.start_soon(ask)
        await settle()
        ref.tell("fail")


async def test_deferred_ask_whose_asker_has_gone_is_not_kept() -> None:
    """Else an actor that lives long would keep every call that was ever given up on."""
    kept: list[int] = []

    async def defer(actor: Scripted, message: object) -> Next:
        kept.append(len(actor.context.deferred or ()))
        actor.context.defer()
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(defer))
        with anyio.move_on_after(1):
            await ref.ask(Run(), timeout_s=math.inf)
        for _ in range(2):
            with pytest.raises(AskTimeout):
                await ref.ask(Run(), timeout_s=1)
        assert kept == [0, 0, 0]


async def test_answer_after_fail_or_twice_is_dropped_and_counted() -> None:
    async def answer_twice(actor: Scripted, message: object) -> Next:
        slot = actor.context.defer()
        slot.reply(1)
        slot.reply(2)
        slot.fail(ValueError("no"))
        return reply(3)

    async with ActorSystem() as system:
        ref = await system.start(scripted(answer_twice))
        assert await ref.ask(Run(), timeout_s=1) == 1
        assert system.stats().late_replies == 2


async def test_stop_with_a_reply_answers_and_ends_normally() -> None:
    async def last_word(actor: Scripted, message: object) -> Next:
        return stop(reply="bye")

    async with ActorSystem() as system:
        ref = await system.start(scripted(last_word, restart=Restart.TRANSIENT))
        assert await ref.ask(Run(), timeout_s=1) == "bye"
        await settle()
        assert repr(ref.ended) == "Normal()"


async def test_asking_or_telling_the_dead_is_answered_at_once() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        await system.stop(ref)
        with pytest.raises(ActorDead):
            await ref.ask(Add(), timeout_s=math.inf)
        ref.tell(Bump())
        await ref.send(Bump())
        assert system.dead_letters.counts == {("Counter", Reason.STOPPED): 3}
        assert system.dead_letters.tells == 2


async def test_refs_work_from_other_actors_and_after_a_restart() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())
        with pytest.raises(ActorFailed):
            await ref.ask(CrashAsked(), timeout_s=1)
        assert await ref.ask(Add(), timeout_s=5) == 1


@pytest.mark.real_time
async def test_messages_can_be_told_from_other_threads() -> None:
    async with ActorSystem() as system:
        ref = await system.start(counter())

        def tell_many() -> None:
            for _ in range(100):
                ref.tell_threadsafe(Bump())

        await anyio.to_thread.run_sync(tell_many)
        await settle()
        assert await ref.ask(Total(), timeout_s=5) == 100


@pytest.mark.real_time
async def test_telling_from_a_thread_after_the_loop_has_ended_is_answered() -> None:
    async def open_and_leave() -> ActorRef[object]:
        async with ActorSystem() as system:
            return await system.start(counter())

    for backend in ("asyncio", "trio"):
        ref = await anyio.to_thread.run_sync(partial(anyio.run, open_and_leave, backend=backend))
        with pytest.raises(ActorDead, match="loop has ended"):
            ref.tell_threadsafe(Bump())


async def test_gate_keeps_a_turn_in_flight_while_tells_queue_up() -> None:
    gate = Gate()

    async def wait(actor: Scripted, message: object) -> Next:
        await gate.passed()
        return reply(None) if isinstance(message, Run) else carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(wait))
        ref.tell("first")
        await gate.reached.wait()
        for number in range(5):
            ref.tell(number)
        assert system.tree().children[0].queued == 5
        gate.open()
        await ref.ask(Run(), timeout_s=1)
        assert system.stats().processed == 7
