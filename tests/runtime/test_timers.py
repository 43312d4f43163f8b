"""Timers of actors, and the alarms below them."""

from __future__ import annotations

import random

import anyio
import pytest

from repertory.errors import Invalid, NotFound
from repertory.runtime.message import Next, Reject, carry_on, reply
from repertory.runtime.system import ActorSystem
from repertory.runtime.timers import SLOT_S, Alarms
from tests.runtime.toys import Run, Script, Scripted, scripted

pytestmark = pytest.mark.anyio


def timed(log: list[tuple[float, object]], first: Script) -> Script:
    """Notes when each message came; `first` runs on `Run`."""

    async def handle(actor: Scripted, message: object) -> Next:
        if isinstance(message, Run):
            return await first(actor, message)
        log.append((round(anyio.current_time(), 3), message))
        if message == "crash":
            raise ValueError("as ordered")
        return carry_on()

    return handle


async def run(first: Script, for_s: float) -> list[tuple[float, object]]:
    """What timers set by `first` delivered, in seconds since then."""
    log: list[tuple[float, object]] = []
    async with ActorSystem() as system:
        ref = await system.start(scripted(timed(log, first)))
        began = anyio.current_time()
        await ref.ask(Run(), timeout_s=1)
        await anyio.sleep(for_s)
        assert [actor.timers for actor in system.tree().children] == [0]
    return [(round(at - began, 3), message) for at, message in log]


async def test_timer_fires_once_and_exactly() -> None:
    async def set_it(actor: Scripted, message: object) -> Next:
        actor.context.after(0.005, "short")
        actor.context.after(90.007, "long")
        return reply(None)

    assert await run(set_it, 100) == [(0.005, "short"), (90.007, "long")]


async def test_timer_of_the_same_key_is_replaced() -> None:
    async def set_twice(actor: Scripted, message: object) -> Next:
        actor.context.after(1, "old", key="k")
        actor.context.after(2, "new", key="k")
        actor.context.after(1, "other", key="l")
        return reply(None)

    assert await run(set_twice, 5) == [(1.0, "other"), (2.0, "new")]


async def test_cancelled_timer_never_fires_even_when_it_has_run_out_already() -> None:
    async def set_and_cancel(actor: Scripted, message: object) -> Next:
        actor.context.after(1, "cancelled", key="a")
        actor.context.cancel_timer("a")
        actor.context.after(1, "run out", key="b")
        await anyio.sleep(2)
        actor.context.cancel_timer("b")
        actor.context.cancel_timer("unknown")
        return reply(None)

    log: list[tuple[float, object]] = []
    async with ActorSystem() as system:
        ref = await system.start(scripted(timed(log, set_and_cancel)))
        await ref.ask(Run(), timeout_s=5)
        await anyio.sleep(5)
    assert log == []


async def test_periodic_timer_does_not_drift_and_skips_what_it_missed() -> None:
    log: list[float] = []

    async def handle(actor: Scripted, message: object) -> Next:
        if isinstance(message, Run):
            actor.context.every(1, "tick", key="tick")
            return reply(None)
        log.append(round(anyio.current_time() - began, 3))
        await anyio.sleep(2.5 if len(log) == 2 else 0.1)
        if len(log) == 5:
            actor.context.cancel_timer("tick")
        return carry_on()

    async with ActorSystem() as system:
        ref = await system.start(scripted(handle))
        began = anyio.current_time()
        await ref.ask(Run(), timeout_s=1)
        await anyio.sleep(20)
        with pytest.raises(Invalid):
            system._root._child.cell._context.every(0, "never")
    assert log == [1.0, 2.0, 4.5, 5.0, 6.0]


async def test_restart_voids_timers_even_those_that_have_run_out() -> None:
    async def set_and_crash(actor: Scripted, message: object) -> Next:
        actor.context.after(1, "crash")
        actor.context.after(2, "void")
        actor.context.after(1, "void too")
        return reply(None)

    assert await run(set_and_crash, 10) == [(1.0, "crash")]


async def test_alarms_fire_in_order_and_cancelled_ones_are_not_retained() -> None:
    fired: list[int] = []
    alarms = Alarms(anyio.current_time)
    async with anyio.create_task_group() as group:
        group.start_soon(alarms.run)
        now = anyio.current_time()
        for number in range(1000):
            alarms.cancel(alarms.at(now + 500, lambda: fired.append(-1)))
            alarms.at(now + number % 10, lambda number=number: fired.append(number % 10))
        assert len(alarms._heap) < 2 * 1000 + 64
        await anyio.sleep(11)
        group.cancel_scope.cancel()
    assert fired == sorted(fired)
    assert len(fired) == 1000


class Entry:
    def __init__(self, deadline: float, fired: list[tuple[float, float]]) -> None:
        self.deadline = deadline
        self._fired = fired

    def expire(self) -> None:
        self._fired.append((self.deadline, anyio.current_time()))


async def test_wheel_expires_everything_within_50_ms_and_never_early(rng: random.Random) -> None:
    fired: list[tuple[float, float]] = []
    alarms = Alarms(anyio.current_time)
    async with anyio.create_task_group() as group:
        group.start_soon(alarms.run)
        now = anyio.current_time()
        entries = [Entry(now + rng.uniform(0, 10), fired) for _ in range(500)]
        buckets = [alarms.expire_at(entry.deadline, entry) for entry in entries]
        for entry, bucket in list(zip(entries, buckets, strict=True))[::2]:
            bucket.discard(entry)
        await anyio.sleep(11)
        group.cancel_scope.cancel()
    assert len(fired) == 250
    assert all(0 <= at - deadline <= SLOT_S + 1e-9 for deadline, at in fired)


async def test_an_entry_that_expires_may_take_another_one_out_of_its_slot() -> None:
    fired: list[tuple[float, float]] = []
    alarms = Alarms(anyio.current_time)

    class Taker(Entry):
        def expire(self) -> None:
            super().expire()
            bucket.clear()

    async with anyio.create_task_group() as group:
        group.start_soon(alarms.run)
        deadline = anyio.current_time() + 1
        for _ in range(3):
            bucket = alarms.expire_at(deadline, Taker(deadline, fired))
        await anyio.sleep(2)
        group.cancel_scope.cancel()
    assert len(fired) == 1


async def test_a_timers_message_that_is_rejected_in_a_task_group_leaves_the_actor_alive() -> None:
    async def set_one(actor: Scripted, message: object) -> Next:
        if not isinstance(message, Run):
            async with anyio.create_task_group():
                raise Reject(NotFound("not here"))
        actor.context.after(1, "tick")
        return reply(None)

    async with ActorSystem() as system:
        ref = await system.start(scripted(set_one))
        await ref.ask(Run(), timeout_s=1)
        await anyio.sleep(2)
        assert system.stats().restarts == 0
