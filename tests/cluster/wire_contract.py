"""What every `PeerWire` must do, as tests. Subclass it next to your wire's own tests:

    class TestMyWire(PeerWireContract):
        @asynccontextmanager
        async def wires(self, place: Path, alive_s: float) -> AsyncGenerator[tuple[PeerWire, PeerWire]]:
            yield MyWire("there", alive_s=alive_s), MyWire(None, alive_s=alive_s)

Each test runs on the event loops that the project's `anyio_backend` fixture offers. Needs pytest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import cast

import anyio
import pytest
from anyio.abc import TaskStatus

from repertory.backends.peer_ports import Handler, JsonLine, Lines, PeerLost, PeerRefused, PeerUnreachable, PeerWire
from repertory.errors import Invalid, Unavailable

WAIT_S = 30.0
"""Time limit of every test."""
MANY = 200
ALIVE_S = 2.0
QUICKLY_ALIVE_S = 0.2


class PeerHandler:
    """A handler that does what its path says, and remembers who has come and left.

    Attributes:
        entered: The paths of requests that came.
        left: The paths of requests that it has left.
        told: How many lines it has told.
        go_on: Set it to let waiting requests go on.
    """

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []
        self.told = 0
        self.go_on = anyio.Event()
        self.changed = anyio.Event()

    def __call__(self, path: str, body: JsonLine) -> AbstractAsyncContextManager[AsyncIterator[JsonLine | Lines]]:
        """Answer a request as its path says.

        Args:
            path: What to do.
            body: The request, as JSON.
        """
        return self._handle(path, body)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this holds of the handler.

        Args:
            condition: Called until it returns True.
        """
        while not condition():
            self.changed = anyio.Event()
            await self.changed.wait()

    @asynccontextmanager
    async def _handle(self, path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine | Lines]]:
        self.entered.append(path)
        self.changed.set()
        try:
            if path == "refuse":
                raise PeerRefused(409, {"owner": "another", **body})
            if path == "fail":
                raise KeyError("on entering")
            if path == "enter/late":
                await self.go_on.wait()
            async with aclosing(self._lines(path, body)) as lines:
                yield lines
        finally:
            self.left.append(path)
            self.changed.set()

    async def _lines(self, path: str, body: JsonLine) -> AsyncGenerator[JsonLine | Lines]:
        if path == "fail/at/once":
            raise KeyError("before the first line")
        if path == "nothing":
            return
        if path == "together":
            yield Lines(lines=[{"number": 0}, {"number": 1}])
            yield Lines(lines=[{"number": 2}, {"number": 3}], end=True)
        if path == "late":
            await self.go_on.wait()
        self.told += 1
        yield {"path": path, "body": dict(body)}
        if path in {"wait", "step"}:
            await self.go_on.wait()
            yield {"last": True}
        if path == "hang":
            await anyio.sleep_forever()
        if path == "fail/later":
            raise KeyError("after the first line")
        for number in range(MANY if path == "many" else 0):
            self.told += 1
            yield {"number": number}


@asynccontextmanager
async def served(wire: PeerWire, handle: Handler) -> AsyncGenerator[str]:
    """The address of a wire that answers until the block is left."""

    async def serve(*, task_status: TaskStatus[str]) -> None:
        async def listening(address: str) -> None:
            task_status.started(address)

        await wire.serve(handle, listening)

    async with anyio.create_task_group() as tasks:
        yield await tasks.start(serve)
        tasks.cancel_scope.cancel()


async def answer(wire: PeerWire, address: str, path: str, body: JsonLine | None = None) -> list[JsonLine]:
    """Every line of the answer to one call."""
    async with wire.call(address, path, body or {}) as lines:
        return [line async for line in lines]


class PeerWireContract(ABC):
    """The contract, for a wire that answers and another one that calls."""

    pytestmark = pytest.mark.anyio

    @abstractmethod
    def wires(self, place: Path, alive_s: float) -> AbstractAsyncContextManager[tuple[PeerWire, PeerWire]]:
        """One that can answer, and one that only calls. One that says nothing for 3 times `alive_s` is lost.

        Args:
            place: A folder of the test's own.
            alive_s: Seconds after which a silent side shows that it lives.
        """

    @asynccontextmanager
    async def joined(self, place: Path, alive_s: float = ALIVE_S) -> AsyncGenerator[tuple[PeerWire, str, PeerHandler]]:
        """A wire that calls, an address that answers, and who does.

        Args:
            place: A folder of the test's own.
            alive_s: Seconds after which a silent side shows that it lives.
        """
        with anyio.fail_after(WAIT_S):
            async with self.wires(place, alive_s) as (server, client):
                handler = PeerHandler()
                async with served(server, handler) as address:
                    yield client, address, handler
                    await client.aclose()
                await server.aclose()

    async def test_a_request_is_answered_by_lines_in_their_order(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            body: JsonLine = {"text": "é\n\u2028", "list": [1, None, {"deep": 1.5}], "big": 2**63}
            assert await answer(wire, address, "one", body) == [{"path": "one", "body": body}]
            assert await answer(wire, address, "nothing") == []
            numbers = [line.get("number") for line in await answer(wire, address, "many")]
            assert numbers == [None, *range(MANY)]
            assert handler.left == ["one", "nothing", "many"]

    async def test_lines_that_are_sent_together_are_read_one_by_one(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            assert await answer(wire, address, "together") == [{"number": number} for number in range(4)]
            await handler.until(lambda: handler.left == ["together"])
            assert handler.told == 0

    async def test_a_path_may_be_any_text(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, _):
            for path in ("a/b", "with space", "ünïcode/…", "?query#part", "%41", ""):
                ((told),) = await answer(wire, address, path)
                assert told["path"] == path

    async def test_a_line_arrives_before_the_next_one_is_made(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler), wire.call(address, "step", {}) as lines:
            assert await anext(lines) == {"path": "step", "body": {}}
            handler.go_on.set()
            assert [line async for line in lines] == [{"last": True}]

    async def test_many_calls_at_once_do_not_mix(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            told: dict[int, list[JsonLine]] = {}

            async def ask(number: int) -> None:
                told[number] = await answer(wire, address, "one", {"number": number})

            async with anyio.create_task_group() as tasks:
                for number in range(MANY):
                    tasks.start_soon(ask, number)
            assert told == {number: [{"path": "one", "body": {"number": number}}] for number in range(MANY)}
            assert len(handler.left) == MANY

    async def test_a_refusal_is_raised_with_its_status_and_body(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            for _ in range(3):
                with pytest.raises(PeerRefused) as refused:
                    await answer(wire, address, "refuse", {"asked": 1})
                assert (refused.value.status, refused.value.body) == (409, {"owner": "another", "asked": 1})
            assert handler.left == ["refuse"] * 3

    @pytest.mark.parametrize("path", ["fail", "fail/at/once"])
    async def test_a_handler_that_fails_before_its_first_line_refuses_with_500(self, tmp_path: Path, path: str) -> None:
        async with self.joined(tmp_path) as (wire, address, _):
            with pytest.raises(PeerRefused) as refused:
                await answer(wire, address, path)
            assert refused.value.status == 500
            assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]

    async def test_a_handler_that_fails_later_breaks_the_answer_off(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, _):
            told: list[JsonLine] = []
            with pytest.raises(PeerLost):
                async with wire.call(address, "fail/later", {}) as lines:
                    async for line in lines:
                        told.append(line)
            assert told == [{"path": "fail/later", "body": {}}]
            assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]

    @pytest.mark.parametrize("path", ["late", "enter/late", "wait"])
    async def test_a_handler_that_is_silent_for_long_is_not_lost(self, tmp_path: Path, path: str) -> None:
        async with self.joined(tmp_path, QUICKLY_ALIVE_S) as (wire, address, handler):
            told: list[JsonLine] = []

            async def ask() -> None:
                told.extend(await answer(wire, address, path))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                await handler.until(lambda: bool(handler.entered))
                await anyio.sleep(5 * QUICKLY_ALIVE_S)
                handler.go_on.set()
            assert told[0] == {"path": path, "body": {}}

    async def test_a_caller_enters_although_nothing_is_said_yet(self, tmp_path: Path) -> None:
        async with (
            self.joined(tmp_path, QUICKLY_ALIVE_S) as (wire, address, handler),
            wire.call(address, "late", {}) as lines,
        ):
            handler.go_on.set()
            assert [line async for line in lines] == [{"path": "late", "body": {}}]

    async def test_leaving_early_leaves_the_handler(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            async with wire.call(address, "hang", {}) as lines:
                await anext(lines)
            await handler.until(lambda: handler.left == ["hang"])
            assert await answer(wire, address, "one") == [{"path": "one", "body": {}}]

    @pytest.mark.parametrize("path", ["late", "enter/late", "hang"])
    async def test_a_cancelled_call_leaves_the_handler(self, tmp_path: Path, path: str) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(answer, wire, address, path))
                await handler.until(lambda: bool(handler.entered))
                tasks.cancel_scope.cancel()
            await handler.until(lambda: handler.left == [path])

    async def test_the_end_of_serving_loses_calls_under_way_and_leaves_their_handlers(self, tmp_path: Path) -> None:
        with anyio.fail_after(WAIT_S):
            async with self.wires(tmp_path, ALIVE_S) as (server, client):
                handler, lost, addresses = PeerHandler(), list[str](), list[str]()

                async def ask(path: str) -> None:
                    with pytest.raises(PeerLost):
                        await answer(client, addresses[0], path)
                    lost.append(path)

                async with anyio.create_task_group() as tasks, served(server, handler) as address:
                    addresses.append(address)
                    for path in ("hang", "late", "enter/late"):
                        tasks.start_soon(ask, path)
                    await handler.until(lambda: len(handler.entered) == 3)
                assert sorted(lost) == sorted(handler.left) == ["enter/late", "hang", "late"]
                with pytest.raises(PeerUnreachable):
                    await answer(client, addresses[0], "one")
                await client.aclose()

    async def test_a_wire_can_serve_again(self, tmp_path: Path) -> None:
        with anyio.fail_after(WAIT_S):
            async with self.wires(tmp_path, ALIVE_S) as (server, client):
                for _ in range(2):
                    async with served(server, PeerHandler()) as address:
                        assert await answer(client, address, "one") == [{"path": "one", "body": {}}]
                await client.aclose()

    async def test_a_wire_that_only_calls_cannot_serve(self, tmp_path: Path) -> None:
        async with self.wires(tmp_path, ALIVE_S) as (_, client):
            with pytest.raises(Invalid):
                await client.serve(PeerHandler(), _nobody)

    async def test_what_listening_raises_ends_serving(self, tmp_path: Path) -> None:
        async def full(address: str) -> None:
            raise Unavailable("the directory is away", address=address)

        with anyio.fail_after(WAIT_S):
            async with self.wires(tmp_path, ALIVE_S) as (server, client):
                with pytest.raises(Unavailable, match="directory"):
                    await server.serve(PeerHandler(), full)
                async with served(server, PeerHandler()) as address:
                    assert await answer(client, address, "one") == [{"path": "one", "body": {}}]
                    await client.aclose()

    async def test_what_is_no_json_is_refused_before_it_is_sent(self, tmp_path: Path) -> None:
        async with self.joined(tmp_path) as (wire, address, handler):
            with pytest.raises(Invalid):
                await answer(wire, address, "one", cast("JsonLine", {"what": object()}))
            assert not handler.entered


async def _nobody(address: str) -> None:
    raise AssertionError(address)
