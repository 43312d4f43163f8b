"""Blocks that a cancellation waits for: within bounds."""

from __future__ import annotations

import anyio
import pytest

from repertory.backends.shields import waited_for
from repertory.errors import Unavailable

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
