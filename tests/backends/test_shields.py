"""Blocks that a cancellation waits for: within bounds."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from repertory.backends.shields import Shields, Uncut, waited_for
from repertory.errors import StoreUnavailable, Unavailable

pytestmark = pytest.mark.anyio


async def test_a_cancellation_waits_for_the_block() -> None:
    done = False
    with anyio.move_on_after(1) as caller:
        async with waited_for(40, if_cancelled_s=7) as scope:
            await anyio.sleep(5)
            done = True
        assert not scope.cancelled_caught
        await anyio.sleep(1)
    assert done
    assert caller.cancelled_caught


@pytest.mark.parametrize(("cancelled_at", "ends_at"), [(1, 7), (20, 20), (100, 40)])
async def test_a_block_that_never_ends_is_cut(cancelled_at: float, ends_at: float) -> None:
    """Clocks are virtual here: each is exact."""
    began = anyio.current_time()
    with anyio.move_on_after(cancelled_at):
        async with waited_for(40, if_cancelled_s=7) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert round(anyio.current_time() - began) == ends_at


async def test_the_error_of_a_block_is_raised_as_it_is() -> None:
    with pytest.raises(Unavailable, match="no answer"):
        async with waited_for(40, if_cancelled_s=7):
            raise Unavailable("no answer")


async def test_an_uncut_block_is_done_though_its_caller_is_cancelled() -> None:
    done = False
    with anyio.move_on_after(1) as caller:
        with Uncut():
            await anyio.sleep(5)
            done = True
        await anyio.sleep(1)
    assert done
    assert caller.cancelled_caught


async def test_an_uncut_block_ends_when_its_time_is_over_and_says_so() -> None:
    began = anyio.current_time()
    with pytest.raises(StoreUnavailable, match="no answer in time"), Uncut(3):
        await anyio.sleep_forever()
    assert round(anyio.current_time() - began) == 3


async def test_shields_cut_what_was_begun_in_their_tasks_and_nothing_else() -> None:
    mine, ended = Shields(), list[str]()

    async def wait(name: str) -> None:
        try:
            with Uncut():
                await anyio.sleep(10)
        except StoreUnavailable:
            ended.append(f"{name} cut")
        else:
            ended.append(f"{name} done")

    async with anyio.create_task_group() as group:
        with mine.entered():
            group.start_soon(wait, "inner")
        group.start_soon(wait, "outer")
        await anyio.sleep(1)
        mine.cut()
        await anyio.sleep(1)
        assert ended == ["inner cut"]
    assert ended == ["inner cut", "outer done"]


async def test_cut_shields_hold_nothing_until_they_are_mended() -> None:
    mine = Shields()
    with mine.entered():
        mine.cut()
        with pytest.raises(StoreUnavailable), Uncut():
            await anyio.sleep(10)
        mine.mend()
        with Uncut():
            await anyio.sleep(10)


async def test_shields_around_work_are_cut_when_it_is_cancelled_and_only_then() -> None:
    mine = Shields()

    async def wait_for(seconds: float) -> None:
        with Uncut():
            await anyio.sleep(seconds)

    with mine.entered():
        async with anyio.create_task_group() as group:
            group.start_soon(wait_for, 20)
            await mine.around(partial(wait_for, 10))()
        began = anyio.current_time()
        with anyio.move_on_after(2), pytest.raises(StoreUnavailable):
            await mine.around(partial(wait_for, 1000))()
        assert round(anyio.current_time() - began) == 2
