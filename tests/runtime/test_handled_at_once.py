"""Handlers that never wait: an ask to an idle actor is handled in the asker's step, and means what it means queued."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import anyio
import anyio.lowlevel
import pytest

from repertory.errors import ActorDead, ActorFailed, AskTimeout, Deadlock, Invalid, NotFound
from repertory.runtime.actor import Actor
from repertory.runtime.lifecycle import ExitReason
from repertory.runtime.message import Ask, Next, Reject, carry_on, fail, refuse, reply, stop, traced
from repertory.runtime.ref import ActorRef
from repertory.runtime.spec import ChildSpec, Restart, Strategy, SupervisorSettings
from repertory.runtime.supervisor import Supervisor
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import settle

pytestmark = pytest.mark.anyio

FLAVOUR: ContextVar[str] = ContextVar("flavour", default="plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Do(Ask[object]):
    """Run `work` in the actor, at once if it is idle."""

    work: Callable[[Quick], Next]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Ask[str]):
    """Wait in the handler until the event is set."""

    until: anyio.Event


class Quick(Actor[Do | Wait | str]):
    """Does what it is asked without waiting, and notes what it was told."""

    def __init__(self, seen: list[object]) -> None:
        self.seen = seen

    def handle_now(self, message: Do | Wait | str) -> Next | None:
        if isinstance(message, Do):
            return message.work(self)
        if isinstance(message, str):
            self.seen.append(message)
            return carry_on()
        return None

    async def handle(self, message: Do | Wait | str) -> Next:
        assert isinstance(message, Wait), "the rest never comes here"
        await message.until.wait()
        return reply("waited")

    async def on_stop(self, reason: ExitReason) -> None:
        self.seen.append(type(reason).__name__)

    def summary(self) -> object:
        return {"seen": len(self.seen)}


def quick(seen: list[object] | None = None, restart: Restart = Restart.PERMANENT) -> ChildSpec:
    notes: list[object] = [] if seen is None else seen
    return ChildSpec(name="quick", factory=lambda: Quick(notes), restart=restart)


async def others_ran(ref: ActorRef[object], message: Ask[object]) -> bool:
    """True if another task ran while the ask was answered."""
    ran: list[None] = []

    async def other() -> None:
        ran.append(None)

    during: list[None] = []
    async with anyio.create_task_group() as group:
        group.start_soon(other)
        await ref.ask(message, timeout_s=5)
        during += ran
    return bool(during)


async def ask(ref: ActorRef[object], work: Callable[[Quick], Next], *, timeout_s: float = 5) -> object:
    return await ref.ask(Do(work=work), timeout_s=timeout_s)


async def test_an_ask_to_an_idle_actor_takes_no_round_of_the_loop() -> None:
    async with ActorSystem() as system:
        ref = await system.start(quick())
        await settle()
        assert not await others_ran(ref, Do(work=lambda actor: reply(1)))
        event = anyio.Event()
        event.set()
        assert await others_ran(ref, Wait(until=event)), "this handler waits"


async def test_what_was_sent_before_is_handled_before() -> None:
    seen: list[object] = []
    async with ActorSystem() as system:
        ref = await system.start(quick(seen))
        await settle()
        ref.tell("first")
        await ask(ref, lambda actor: reply(actor.seen.append("second")))
        assert seen == ["first", "second"]


async def test_an_actor_in_a_turn_is_not_disturbed() -> None:
    event = anyio.Event()
    order: list[object] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(quick())

        async def wait() -> None:
            order.append(await ref.ask(Wait(until=event), timeout_s=5))

        group.start_soon(wait)
        await settle()
        group.start_soon(ask, ref, lambda actor: reply(order.append("quick")))
        await settle()
        assert order == []
        event.set()
    assert sorted(map(str, order)) == ["quick", "waited"]


async def test_a_question_from_within_is_queued_and_what_it_tells_itself_comes_after() -> None:
    seen: list[object] = []

    def work(actor: Quick) -> Next:
        actor.context.self_ref.tell("later")
        coroutine = actor.context.self_ref.ask(Do(work=lambda actor: reply(None)), timeout_s=5)
        with pytest.raises(Deadlock):
            coroutine.send(None)
        actor.seen.append("now")
        return reply(len(actor.context.self_ref.mailbox.queue))

    async with ActorSystem() as system:
        ref = await system.start(quick(seen))
        await settle()
        assert await ask(ref, work) == 1
        await settle()
        assert seen == ["now", "later"]


@pytest.mark.parametrize("queued", [False, True], ids=["idle", "queued"])
async def test_every_outcome_is_the_one_of_a_queued_ask(queued: bool) -> None:
    def crash(actor: Quick) -> Next:
        raise ValueError("crashed")

    def reject(actor: Quick) -> Next:
        raise Reject(NotFound("rejected"))

    async with ActorSystem() as system:
        ref = await system.start(quick(restart=Restart.TRANSIENT))

        async def asked(work: Callable[[Quick], Next]) -> object:
            await settle()
            if queued:
                ref.tell("busy")
            return await ask(ref, work)

        assert await asked(lambda actor: reply(7)) == 7
        with pytest.raises(NotFound, match="rejected"):
            await asked(reject)
        with pytest.raises(NotFound, match="refused"):
            await asked(lambda actor: refuse(NotFound("refused")))
        with pytest.raises(ActorFailed, match="gave no answer"):
            await asked(lambda actor: carry_on())
        with pytest.raises(ActorFailed) as failed:
            await asked(crash)
        assert isinstance(failed.value.__cause__, ValueError)
        with pytest.raises(ActorFailed):
            await asked(lambda actor: fail(ValueError("failed")))
        await settle()
        info = system.tree().children[0]
        assert (info.failed, info.processed) == (2, 6 + 6 * queued)
        assert await asked(lambda actor: stop(reply="bye")) == "bye"
        with pytest.raises(ActorDead):
            await asked(lambda actor: reply(None))


async def test_a_failure_ends_the_incarnation_before_anything_else_is_handled() -> None:
    seen: list[object] = []

    def crash(actor: Quick) -> Next:
        actor.context.self_ref.tell("kept")
        raise ValueError("crashed")

    async with ActorSystem() as system:
        ref = await system.start(quick(seen))
        await settle()
        with pytest.raises(ActorFailed):
            await ask(ref, crash)
        assert await ask(ref, lambda actor: reply(list(actor.seen))) == ["ExitFailed", "kept"]


async def test_an_answer_may_come_later_and_has_its_deadline() -> None:
    async with ActorSystem() as system:
        ref = await system.start(quick())
        await settle()

        def later(actor: Quick) -> Next:
            slot = actor.context.defer()

            async def answer() -> None:
                await anyio.lowlevel.checkpoint()
                slot.reply("later")

            actor.context.job(answer)
            return carry_on()

        def never(actor: Quick) -> Next:
            actor.context.defer()
            return carry_on()

        assert await ask(ref, later) == "later"
        with pytest.raises(AskTimeout):
            await ask(ref, never, timeout_s=0.01)
        with pytest.raises(AskTimeout):
            await ask(ref, lambda actor: reply("in the past"), timeout_s=-1)
        with pytest.raises(Invalid):
            await ask(ref, lambda actor: reply(None), timeout_s=float("nan"))


async def test_it_runs_as_the_actor_and_not_as_the_asker() -> None:
    def look(actor: Quick) -> Next:
        return reply((FLAVOUR.get(), actor.context.trace, actor.context.asked, system.tree().children[0].current))

    async with ActorSystem() as system:
        ref = await system.start(quick())
        await settle()
        FLAVOUR.set("the asker's")
        with traced("token"):
            assert await ask(ref, look) == ("plain", "token", True, "Do")
        assert FLAVOUR.get() == "the asker's"
        assert system.tree().children[0].current is None
        with pytest.raises(Invalid, match="only the turn of an ask"):
            quick_one = cast("Quick", await ask(ref, reply))
            quick_one.context.defer()


async def test_a_tell_may_be_handled_in_the_tellers_step_and_is_a_tell_in_every_other_way() -> None:
    seen: list[object] = []
    async with ActorSystem() as system:
        ref = await system.start(quick(seen))
        await settle()
        ref.tell_now("at once")
        assert seen == ["at once"]
        ref.tell("queued")
        ref.tell_now("behind it")
        assert seen == ["at once"]
        await settle()
        assert seen == ["at once", "queued", "behind it"]
        assert system.tree().children[0].processed == 3


async def test_a_tell_that_is_handled_at_once_fails_the_actor_and_not_the_teller() -> None:
    seen: list[object] = []

    class Fragile(Quick):
        def handle_now(self, message: Do | Wait | str) -> Next | None:
            if message == "crash":
                raise ValueError("crashed")
            if message == "reject":
                raise Reject(NotFound("rejected"))
            return super().handle_now(message)

    async with ActorSystem() as system:
        ref = await system.start(ChildSpec(name="fragile", factory=lambda: Fragile(seen)))
        await settle()
        ref.tell_now("reject")
        ref.tell_now("crash")
        ref.tell_now("for the next one")
        assert seen == []
        await ask(ref, lambda actor: reply(None))
        assert seen == ["ExitFailed", "for the next one"]
        info = system.tree().children[0]
        assert (info.failed, info.processed) == (1, 3)
        assert [letter.message for letter in system.dead_letters.recent()] == ["reject"]


async def test_many_tells_in_a_row_let_other_tasks_run() -> None:
    seen: list[object] = []
    async with ActorSystem() as system:
        ref = await system.start(quick(seen))
        await settle()
        for number in range(100):
            ref.tell_now(str(number))
        assert len(seen) == 64
        await settle()
        assert seen == [str(number) for number in range(100)]


async def test_many_in_a_row_let_other_tasks_run() -> None:
    ran: list[int] = []
    async with ActorSystem() as system, anyio.create_task_group() as group:
        ref = await system.start(quick())
        await settle()
        asked = 0

        async def other() -> None:
            ran.append(asked)

        group.start_soon(other)
        for _ in range(200):
            asked += 1
            await ask(ref, lambda actor: reply(None))
    assert ran
    assert ran[0] <= 65


async def test_a_stopped_actor_takes_nothing() -> None:
    seen: list[object] = []
    async with ActorSystem() as system:
        ref = await system.start(quick(seen, Restart.TEMPORARY))
        await settle()
        await system.stop(ref)
        with pytest.raises(ActorDead):
            await ask(ref, lambda actor: reply(None))
    assert seen == ["Shutdown"]


async def test_a_sibling_that_restarts_too_handles_nothing_more_as_it_was() -> None:
    """Its supervisor has decided, and not stopped it yet: the next incarnation answers."""
    ended = anyio.Event()
    made: list[Quick] = []

    class Crashing(Quick):
        async def on_stop(self, reason: ExitReason) -> None:
            ended.set()

    def make() -> Quick:
        made.append(Quick([]))
        return made[-1]

    async with ActorSystem() as system:
        settings = SupervisorSettings(strategy=Strategy.ONE_FOR_ALL)
        group = await system.start(ChildSpec(name="group", factory=lambda: Supervisor((), settings)))
        crashing = await system.start(ChildSpec(name="crashing", factory=lambda: Crashing([])), under=group)
        ref = await system.start(ChildSpec(name="quick", factory=make), under=group)
        await settle()
        with pytest.raises(ActorFailed):
            await ask(crashing, lambda actor: fail(ValueError("crashed")))
        await ended.wait()
        await settle(1)  # The supervisor has decided; it has not stopped the sibling yet.
        assert await ask(ref, reply) is made[1]


async def test_actors_that_tell_each_other_at_once_let_others_run() -> None:
    """An actor that is told something while it handles a message is not idle, so the chain is cut at its first ring."""

    class Echo(Actor[int]):
        def __init__(self, other: list[ActorRef[int]]) -> None:
            self.other = other
            self.handled = 0

        def handle_now(self, message: int) -> Next:
            self.handled += 1
            if message:
                self.other[0].tell_now(message - 1)
            return carry_on()

    one_s: list[ActorRef[int]] = []
    two_s: list[ActorRef[int]] = []
    one, two = Echo(two_s), Echo(one_s)
    async with ActorSystem() as system:
        one_s.append(await system.start(ChildSpec(name="one", factory=lambda: one)))
        two_s.append(await system.start(ChildSpec(name="two", factory=lambda: two)))
        await settle()
        one_s[0].tell_now(5000)
        assert one.handled + two.handled < 10
        with anyio.fail_after(5):
            while one.handled + two.handled < 5001:
                await anyio.lowlevel.checkpoint()
