"""The admission of calls to a runtime with peers: who runs, who waits, who is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.app.host.admission import AdmissionQueue, NoRoom, no_room
from repertory.core.admission import session_bounds
from repertory.errors import Throttled, Unavailable
from repertory.runtime.testing.virtual_time import virtual_asyncio

pytestmark = pytest.mark.anyio


def queue_of(room: int, queue: int | None, held: Callable[[], int] = int) -> AdmissionQueue:
    admission = AdmissionQueue(refused=no_room, held=held)
    admission.limit(session_bounds(room, queue))
    return admission


class Inside:
    """Who is inside, in the order in which they came in."""

    def __init__(self, admission: AdmissionQueue) -> None:
        self.admission = admission
        self.order: list[str] = []
        self.now: list[str] = []
        self.most = 0

    async def call(self, session: str, number: int, seconds: float) -> None:
        leave = await self.admission.enter(session)
        self.order.append(f"{session} {number}")
        self.now.append(session)
        self.most = max(self.most, len(set(self.now)))
        try:
            await anyio.sleep(seconds)
        finally:
            self.now.remove(session)
            leave(False)


async def test_calls_wait_in_order_and_no_more_sessions_run_than_there_is_room() -> None:
    inside = Inside(queue_of(2, 10))
    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(inside.call, f"s{number}", number, 1.0)
            await anyio.sleep(0.01)
    assert inside.order == [f"s{number} {number}" for number in range(8)]
    assert inside.most == 2
    assert inside.admission.busy == 0


async def test_calls_of_one_session_have_one_place_together() -> None:
    inside = Inside(queue_of(2, 10))
    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(inside.call, "one", number, 0.05)
        await anyio.sleep(0.01)
        assert inside.admission.busy == 1
        with anyio.fail_after(0.02):
            await inside.call("other", 0, 0.0)


async def test_a_call_beyond_the_queue_is_refused_at_once_and_told_when_to_come_again() -> None:
    admission = queue_of(1, 1)
    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(Inside(admission).call, f"s{number}", number, 60.0)
        await anyio.sleep(0.01)
        with pytest.raises(Throttled) as refused:
            admission.check("")
        assert refused.value.retry_after_s is not None
        with pytest.raises(NoRoom):
            await admission.enter("s9")
        group.cancel_scope.cancel()
    assert admission.busy == 0
    admission.check("")


async def test_a_quiet_tenant_waits_for_one_turn_of_a_busy_one_and_is_not_refused_because_of_it() -> None:
    inside = Inside(queue_of(1, 9))
    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(inside.call, f"busy~{number}", number, 1.0)
            await anyio.sleep(0.001)
        with pytest.raises(NoRoom):
            inside.admission.check("busy~10")
        inside.admission.check("quiet~1")
        for session in ("quiet~1", "quiet~2", "other~1"):
            group.start_soon(inside.call, session, 0, 1.0)
            await anyio.sleep(0.001)
    assert inside.order[:6] == ["busy~0 0", "busy~1 1", "quiet~1 0", "other~1 0", "busy~2 2", "quiet~2 0"]
    assert inside.admission.busy == 0


async def test_calls_inside_that_wait_for_the_limits_of_their_tenant_take_no_place() -> None:
    held = 0
    admission = queue_of(2, 4, lambda: held)
    inside = Inside(admission)
    async with anyio.create_task_group() as group:
        for number in range(2):
            group.start_soon(inside.call, f"limited~{number}", number, 60.0)
        await anyio.sleep(0.01)
        held = 2
        with anyio.fail_after(1.0):
            await inside.call("other~1", 0, 0.5)
        group.cancel_scope.cancel()
    assert admission.busy == 0


async def test_closing_sends_those_that_wait_away_and_lets_those_inside_finish() -> None:
    admission = queue_of(1, 5)
    inside, refused = Inside(admission), list[str]()

    async def waiting(session: str) -> None:
        try:
            await inside.call(session, 0, 0.0)
        except Unavailable:
            refused.append(session)

    async with anyio.create_task_group() as group:
        group.start_soon(inside.call, "running", 0, 0.05)
        await anyio.sleep(0.01)
        for session in ("a", "b"):
            group.start_soon(waiting, session)
        await anyio.sleep(0.01)
        admission.close()
    assert sorted(refused) == ["a", "b"]
    assert inside.order == ["running 0"]
    assert admission.busy == 0


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.floats(0, 3), st.floats(0, 2), st.none() | st.floats(0, 3)), max_size=20
    ),
)
def test_whatever_is_cancelled_every_place_comes_back(
    room: int, calls: list[tuple[str, float, float, float | None]]
) -> None:
    async def main() -> None:
        inside = Inside(queue_of(room, 100))

        async def one(session: str, at: float, seconds: float, cancel_at: float | None) -> None:
            await anyio.sleep(at)
            with anyio.move_on_after(float("inf") if cancel_at is None else cancel_at), suppress(NoRoom):
                await inside.call(session, 0, seconds)

        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(one, *call)
        assert inside.most <= room
        assert inside.admission.busy == 0

    backend, options = virtual_asyncio()
    anyio.run(main, backend=backend, backend_options=dict(options))


async def test_a_call_that_a_running_turn_waits_for_has_a_place_beyond_the_last_one() -> None:
    admission = queue_of(1, 0)
    outer = await admission.enter("outer")
    with pytest.raises(NoRoom):
        admission.check("other")
    inner = await admission.enter("inner", inner=True)
    assert admission.inside == 2
    inner(False)
    outer(False)
    assert admission.busy == 0
    with pytest.raises(NoRoom):
        await queue_of(0, 0).enter("inner", inner=True)
