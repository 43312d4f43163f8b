"""What a test can do to the network of a `LoopbackWire`. That it is a wire says `test_wire_contract.py`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest

from repertory.backends.peer_ports import PeerLost, PeerUnreachable
from repertory.errors import Unavailable
from tests.cluster.loopback_wire import LoopbackNetwork, LoopbackWire
from tests.cluster.wire_contract import PeerHandler, answer, served

pytestmark = pytest.mark.anyio
ONE = [{"path": "one", "body": {}}]


@asynccontextmanager
async def network() -> AsyncGenerator[tuple[LoopbackNetwork, LoopbackWire, PeerHandler]]:
    joined, handler = LoopbackNetwork(alive_s=2.0), PeerHandler()
    with anyio.fail_after(1000):
        async with served(joined.wire("there"), handler):
            yield joined, joined.wire(), handler


@pytest.mark.parametrize("path", ["hang", "late", "enter/late"])
async def test_a_cut_ends_the_calls_under_way_on_both_sides_and_no_others(path: str) -> None:
    async def call() -> None:
        with pytest.raises(PeerLost):
            await answer(wire, "there", path)

    async with network() as (joined, wire, handler):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await handler.until(lambda: handler.entered == [path])
            assert joined.cut("elsewhere") == 0
            assert joined.cut("there") == 1
        await handler.until(lambda: handler.left == [path])
        assert joined.cut("there") == 0
        assert await answer(wire, "there", "one") == ONE


async def test_nobody_can_connect_to_what_is_unreachable_and_calls_under_way_go_on() -> None:
    async with network() as (joined, wire, handler):
        async with wire.call("there", "step", {}) as lines:
            await anext(lines)
            joined.unreachable("there")
            with pytest.raises(PeerUnreachable):
                await answer(wire, "there", "one")
            handler.go_on.set()
            assert [line async for line in lines] == [{"last": True}]
        joined.unreachable("there", False)
        assert await answer(wire, "there", "one") == ONE


async def test_a_silence_loses_the_caller_and_the_handler_hears_of_it_at_its_end() -> None:
    async with network() as (joined, wire, handler):
        with pytest.raises(PeerLost, match="nothing was heard"):
            async with wire.call("there", "hang", {}) as lines:
                await anext(lines)
                with anyio.move_on_after(100.0):  # A handler that takes its time is not lost.
                    await anext(lines)
                joined.silence("there")
                await anext(lines)
        with pytest.raises(PeerUnreachable):
            await answer(wire, "there", "one")
        await anyio.sleep(100.0)
        assert handler.left == []
        joined.hear("there")
        await handler.until(lambda: handler.left == ["hang"])
        assert await answer(wire, "there", "one") == ONE


async def test_a_short_silence_is_survived() -> None:
    async with network() as (joined, wire, handler), wire.call("there", "step", {}) as lines:
        await anext(lines)
        joined.silence("there")
        handler.go_on.set()
        with anyio.move_on_after(5.0) as scope:
            await anext(lines)
        assert scope.cancelled_caught
        joined.hear("there")
        assert await anext(lines) == {"last": True}


async def test_whatever_passes_is_delayed() -> None:
    async with network() as (joined, wire, handler):
        joined.delay_s = 10.0
        with anyio.move_on_after(9.0):
            await answer(wire, "there", "one")
        assert not handler.entered
        assert await answer(wire, "there", "one") == ONE


async def test_an_address_has_one_server() -> None:
    async with network() as (joined, _, handler):
        with pytest.raises(Unavailable):
            await joined.wire("there").serve(handler, _not_reached)


async def _not_reached(address: str) -> None:
    raise AssertionError(address)
