"""Streams: many answers at the reader's pace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import anyio
import pytest

from repertory.errors import ActorDead, ActorFailed, AskTimeout, Deadlock, Invalid, StreamClosed
from repertory.runtime.channel import Sink
from repertory.runtime.message import Next, Reason, Stream, carry_on, refuse, reply
from repertory.runtime.system import ActorSystem
from tests.runtime.toys import Gate, Run, Scripted, scripted, settle

pytestmark = pytest.mark.anyio


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Stream[int]):
    """Stream the numbers below `to`."""

    to: int = 10


class Producer:
    """Streams numbers from a job; `log` says how it went."""

    def __init__(self) -> None:
        self.log: list[object] = []
        self.sent = 0

    async def handle(self, actor: Scripted, message: object) -> Next:
        if isinstance(message, Run):
            return reply("alive")
        assert isinstance(message, Count)
        sink = actor.context.sink()
        job = actor.context.job(self.produce, sink, message.to)
        sink.on_closed = job.cancel
        return carry_on()

    async def produce(self, sink: Sink[object], to: int) -> None:
        try:
            for number in range(to):
                if not sink.send_nowait(number):
                    await sink.send(number)
                self.sent += 1
                await anyio.sleep(0.01)
            sink.end()
        except (StreamClosed, anyio.get_cancelled_exc_class()):
            self.log.append("cancelled")
            raise


async def test_stream_delivers_everything_in_order_and_ends() -> None:
    async with ActorSystem() as system:
        ref = await system.start(scripted(Producer().handle))
        async with ref.stream(Count(to=50), timeout_s=5) as events:
            assert [event async for event in events] == list(range(50))
            assert [event async for event in events] == []


async def test_mailbox_goes_on_while_a_stream_runs() -> None:
    async with ActorSystem() as system:
        ref = await system.start(scripted(Producer().handle))
        async with ref.stream(Count(to=10), timeout_s=5) as events:
            async for _ in events:
                assert await ref.ask(Run(), timeout_s=1) == "alive"


async def test_slow_reader_slows_the_producer_down() -> None:
    producer = Producer()
    async with ActorSystem() as system:
        ref = await system.start(scripted(producer.handle))
        async with ref.stream(Count(to=100), timeout_s=math.inf, buffer=4) as events:
            await anyio.sleep(10)
            assert producer.sent == 4
            assert await anext(events) == 0
            await anyio.sleep(10)
            assert producer.sent == 5


async def test_leaving_the_block_cancels_the_producer() -> None:
    producer = Producer()
    async with ActorSystem() as system:
        ref = await system.start(scripted(producer.handle))
        async with ref.stream(Count(to=1000), timeout_s=5) as events:
            async for number in events:
                if number == 3:
                    break
        await settle()
        assert producer.log == ["cancelled"]
        assert await ref.ask(Run(), timeout_s=1) == "alive"
        assert system.tree().children[0].jobs == ()


async def test_cancelled_reader_cancels_the_producer() -> None:
    producer = Producer()
    async with ActorSystem() as system:
        ref = await system.start(scripted(producer.handle))
        with anyio.move_on_after(0.1):
            async with ref.stream(Count(to=1000), timeout_s=5) as events:
                async for _ in events:
                    pass
        await settle()
        assert producer.log == ["cancelled"]


async def test_stream_that_was_left_before_its_turn_is_a_dead_letter() -> None:
    gate = Gate()

    async def hold(actor: Scripted, message: object) -> Next:
        await gate.passed()
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(hold))
        ref.tell("hold")
        await gate.reached.wait()
        async with ref.stream(Count(), timeout_s=5):
            pass
        gate.open()
        await settle()
        assert system.dead_letters.counts == {("Scripted", Reason.ABANDONED): 1}


async def test_deadline_bounds_the_whole_stream() -> None:
    producer = Producer()
    async with ActorSystem() as system:
        ref = await system.start(scripted(producer.handle))
        began = anyio.current_time()
        with pytest.raises(AskTimeout):
            async with ref.stream(Count(to=10_000), timeout_s=2) as events:
                async for _ in events:
                    pass
        assert anyio.current_time() - began == pytest.approx(2, abs=0.06)
        await settle()
        assert producer.log == ["cancelled"]


async def test_producers_error_comes_after_the_events_before_it() -> None:
    async def fail_late(actor: Scripted, message: object) -> Next:
        sink = actor.context.sink()
        sink.send_nowait(1)
        sink.send_nowait(2)
        sink.fail(ValueError("no more"))
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(fail_late))
        seen: list[object] = []
        with pytest.raises(ValueError, match="no more"):
            async with ref.stream(Count(), timeout_s=5) as events:
                async for event in events:
                    seen.append(event)
        assert seen == [1, 2]


@pytest.mark.parametrize("how", ["crash", "kill", "stop"])
async def test_reader_is_told_when_the_actor_ends(how: str) -> None:
    producer = Producer()

    async def handle(actor: Scripted, message: object) -> Next:
        if message == "crash":
            raise ValueError("as ordered")
        return await producer.handle(actor, message)

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        with pytest.raises(ActorDead):
            async with ref.stream(Count(to=10_000), timeout_s=math.inf) as events:
                assert await anext(events) == 0
                match how:
                    case "crash":
                        ref.tell("crash")
                    case "kill":
                        system.kill(ref)
                    case _:
                        await system.stop(ref)
                async for _ in events:
                    pass


async def test_stream_whose_handler_raises_or_refuses_fails() -> None:
    async def handle(actor: Scripted, message: object) -> Next:
        assert isinstance(message, Count)
        match message.to:
            case 0:
                return refuse(Invalid("count what"))
            case 1:
                raise ValueError("as ordered")
            case 2:
                return reply("one value")
            case _:
                return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        for to, error in enumerate([Invalid, ActorFailed, StreamClosed, ActorFailed]):
            with pytest.raises(error):
                async with ref.stream(Count(to=to), timeout_s=5) as events:
                    await anext(events)


async def test_job_that_writes_on_for_nobody_ends_quietly() -> None:
    """A reader may leave in the very instant of a send; that is nobody's failure."""

    async def write_on(actor: Scripted, message: object) -> Next:
        sink = actor.context.sink()

        async def write() -> None:
            while True:
                await sink.send("more")
                await anyio.sleep(1)

        actor.context.job(write)
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(write_on))
        async with ref.stream(Count(), timeout_s=5) as events:
            assert await anext(events) == "more"
        await anyio.sleep(5)
        assert system.tree().children[0].jobs == ()
        assert system.stats().restarts == 0


async def test_writer_learns_that_the_reader_has_left() -> None:
    outcomes: list[object] = []
    left = anyio.Event()

    async def write_on(actor: Scripted, message: object) -> Next:
        sink = actor.context.sink()

        async def write() -> None:
            sink.send_nowait(1)
            await left.wait()
            outcomes.append(sink.closed)
            with pytest.raises(StreamClosed):
                sink.send_nowait(2)
            with pytest.raises(StreamClosed):
                await sink.send(3)
            sink.on_closed = lambda: outcomes.append("called at once")
            sink.end()

        actor.context.job(write)
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(write_on))
        async with ref.stream(Count(), timeout_s=5) as events:
            assert await anext(events) == 1
        left.set()
        await settle()
    assert outcomes == [True, "called at once"]


async def test_several_writers_share_a_sink_and_none_is_lost_or_doubled() -> None:
    async def fan_out(actor: Scripted, message: object) -> Next:
        sink = actor.context.sink()

        async def write(base: int) -> None:
            for number in range(20):
                await sink.send(base + number)

        async def write_all() -> None:
            async with anyio.create_task_group() as group:
                for base in (0, 100, 200):
                    group.start_soon(write, base)
            sink.end()

        actor.context.job(write_all)
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(fan_out))
        async with ref.stream(Count(), timeout_s=5, buffer=2) as events:
            seen = [event async for event in events]
    for base in (0, 100, 200):
        assert [event for event in seen if base <= event < base + 100] == list(range(base, base + 20))


async def test_cancelled_send_passes_its_place_on() -> None:
    async def write(actor: Scripted, message: object) -> Next:
        sink = actor.context.sink()

        async def job() -> None:
            sink.send_nowait("first")
            async with anyio.create_task_group() as group:
                with anyio.move_on_after(1):
                    group.start_soon(sink.send, "second")
                    await settle()
                    await sink.send("never")
            sink.end()

        actor.context.job(job)
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(write))
        async with ref.stream(Count(), timeout_s=50, buffer=1) as events:
            await anyio.sleep(2)
            assert [event async for event in events] == ["first", "second"]


async def test_stream_to_oneself_is_a_deadlock() -> None:
    async def read_self(actor: Scripted, message: object) -> Next:
        with pytest.raises(Deadlock):
            async with actor.context.self_ref.stream(Count(), timeout_s=math.inf):
                pass
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(read_self))
        await ref.ask(Run(), timeout_s=1)


async def test_buffer_holds_at_least_one_event() -> None:
    async with ActorSystem() as system:
        ref = await system.start(scripted(Producer().handle))
        with pytest.raises(Invalid, match="buffer=0"):
            ref.stream(Count(), timeout_s=1, buffer=0)


async def test_sinks_and_slots_belong_to_their_kind_of_turn() -> None:
    async def mix_up(actor: Scripted, message: object) -> Next:
        if isinstance(message, Run):
            with pytest.raises(Invalid):
                actor.context.sink()
            return reply(None)
        with pytest.raises(Invalid):
            actor.context.defer()
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(mix_up))
        ref.tell("told")
        await ref.ask(Run(), timeout_s=1)
        with pytest.raises(ActorFailed, match="no answer"):
            async with ref.stream(Count(), timeout_s=1) as events:
                await anext(events)
        assert system.stats().failed == 0
