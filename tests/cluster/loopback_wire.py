"""A wire between runtimes of one event loop, without sockets. It works on virtual time, and fails on command."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import anyio
import msgspec.json
from anyio.abc import TaskGroup
from msgspec import Struct

from repertory.backends.peer_ports import Handler, JsonLine, Lines, PeerLost, PeerRefused, PeerUnreachable
from repertory.errors import Invalid, Unavailable

_SILENT_PERIODS = 3
_BEGUN, _LINE, _END = 200, 0, -1


class _Told(Struct, frozen=True):
    """What a server says: that the answer begins, a line, that it has ended, or the status of a refusal."""

    status: int
    text: bytes = b"{}"


class LoopbackNetwork:
    """What joins the wires of a test, and where the test breaks them. Addresses are any texts."""

    def __init__(self, *, alive_s: float = 2.0) -> None:
        self.alive_s = alive_s
        """A caller whose peer's network has been silent for 3 times so long (seconds) has lost it."""
        self.delay_s = 0.0
        """Every request, and every line of an answer, takes so long (seconds); their order is kept."""
        self.calls: list[tuple[str, str]] = []
        """Address and path of each request that has reached its peer."""
        self._breaks: dict[str, int] = {}
        self._servers: dict[str, _Server] = {}
        self._calls: dict[_Call, None] = {}
        self._unreachable: set[str] = set()
        self._silent: dict[str, _Silence] = {}

    def wire(self, address: str | None = None) -> LoopbackWire:
        """A wire that answers at this address; None: it only calls.

        Args:
            address: The address.
        """
        return LoopbackWire(self, address)

    def cut(self, address: str) -> int:
        """Break every call of this address that is under way: callers get `PeerLost`, and handlers are left. Returns
        how many those were. New calls get through.

        Args:
            address: The address.
        """
        cut = [call for call in self._calls if call.address == address]
        for call in cut:
            call.cut()
        return len(cut)

    def cut_after(self, address: str, lines: int) -> None:
        """Break the next answer of this address that is longer, behind so many lines.

        Args:
            address: The address.
            lines: How many lines pass.
        """
        self._breaks[address] = lines

    def unreachable(self, address: str, yes: bool = True) -> None:
        """From now on nobody can connect to this address; or everybody again. Calls under way go on.

        Args:
            address: The address.
            yes: False makes it reachable again.
        """
        (self._unreachable.add if yes else self._unreachable.discard)(address)

    def silence(self, address: str, *, takes: bool = False) -> None:
        """From now on nothing passes to or from this address until `hear`, and neither side is told. Handlers go on.

        Args:
            address: The address.
            takes: It still takes connections, as the system of a frozen process does for it.
        """
        self._silent.setdefault(address, _Silence(anyio.current_time(), takes=takes))

    def hear(self, address: str) -> None:
        """End a silence: what was said meanwhile arrives. Handlers whose callers have gone are left now.

        Args:
            address: The address.
        """
        if (silence := self._silent.pop(address, None)) is not None:
            silence.over.set()
            for call in [call for call in self._calls if call.address == address and call.left]:
                call.cut()

    # ------------------------------------------------------------------------------------------------ for the wires

    async def passes(self, address: str) -> None:
        """Wait until what is said now would reach the other side.

        Args:
            address: The address.
        """
        if self.delay_s:
            await anyio.sleep(self.delay_s)
        while (silence := self._silent.get(address)) is not None:
            await silence.over.wait()

    def lost_at(self, call: _Call) -> float:
        """When a caller that hears nothing more gives up, as far as that is known now; in the loop's time.

        Args:
            call: The call.
        """
        silence = self._silent.get(call.address)
        since = anyio.current_time() if silence is None else max(silence.since, call.began)
        return since + _SILENT_PERIODS * self.alive_s

    def enter(self, address: str, server: _Server) -> None:
        """Listen at an address.

        Args:
            address: The address.
            server: Answers there.

        Raises:
            Unavailable: If the address is taken. Choose another one.
        """
        if address in self._servers:
            raise Unavailable("somebody else listens at this address", address=address)
        self._servers[address] = server

    def leave(self, address: str) -> None:
        """Nobody answers there any more."""
        del self._servers[address]

    def begin(self, call: _Call) -> None:
        """Hand a call to its server.

        Raises:
            PeerUnreachable: If the peer cannot be reached. Nothing was done there.
        """
        server = None if call.address in self._unreachable else self._servers.get(call.address)
        silence = self._silent.get(call.address)
        if server is None or (silence is not None and not silence.takes):
            raise PeerUnreachable("the peer cannot be reached", address=call.address)
        self._calls[call] = None
        self.calls.append((call.address, call.path))
        server.take(call)

    def breaks(self, call: _Call, lines: int) -> bool:
        """True if the answer breaks off behind so many lines. It does so once.

        Args:
            call: The call.
            lines: How many lines pass.
        """
        if self._breaks.get(call.address) != lines:
            return False
        del self._breaks[call.address]
        return True

    def end(self, call: _Call) -> None:
        """The caller has left. A silent network does not tell the server.

        Args:
            call: The call.
        """
        if call in self._calls and call.address in self._silent:
            call.left = True
        else:
            call.cut()

    def forget(self, call: _Call) -> None:
        """End a call: nothing of it is under way any more.

        Args:
            call: The call.
        """
        self._calls.pop(call, None)


class LoopbackWire:
    """A `PeerWire` of a `LoopbackNetwork`. What passes is written as JSON and read again, so nothing is shared.

    Args:
        network: What joins the wires.
        address: Where it answers; None for a wire that only calls.
    """

    def __init__(self, network: LoopbackNetwork, address: str | None) -> None:
        self._network = network
        self._address = address

    async def serve(self, handle: Handler, listening: Callable[[str], Awaitable[None]]) -> None:
        """As every wire.

        Raises:
            Invalid: For a wire without an address. Make it with one.
        """
        if self._address is None:
            raise Invalid("this wire only calls")
        server = _Server(self._network, handle)
        self._network.enter(self._address, server)
        try:
            await listening(self._address)
            async with anyio.create_task_group() as tasks:
                server.begin(tasks)
                await anyio.sleep_forever()
        finally:
            self._network.leave(self._address)
            server.end()

    @asynccontextmanager
    async def call(self, address: str, path: str, body: JsonLine) -> AsyncGenerator[AsyncIterator[JsonLine]]:
        """As every wire."""
        call = _Call(self._network, address, path, _written(body))
        try:
            self._network.begin(call)
            await call.begins()
            yield call
        finally:
            self._network.end(call)

    async def aclose(self) -> None:
        """Nothing is kept."""


class _Silence:
    def __init__(self, since: float, *, takes: bool) -> None:
        self.since = since
        self.takes = takes
        self.over = anyio.Event()


class _Call(AsyncIterator[JsonLine]):
    """One call, as both sides see it."""

    def __init__(self, network: LoopbackNetwork, address: str, path: str, body: bytes) -> None:
        self.address = address
        self.path = path
        self.body = body
        self.began = anyio.current_time()
        self.left = False
        """The caller has gone, and a silent network has not told the server."""
        self.handler = anyio.CancelScope()
        """What the server does for it."""
        self._network = network
        self._to_caller, self._heard = anyio.create_memory_object_stream[_Told](0)
        self._over = False

    def cut(self) -> None:
        """End it for both sides. Twice is allowed."""
        self.handler.cancel()
        self._to_caller.close()
        self._heard.close()
        self._network.forget(self)

    async def tell(self, told: _Told) -> None:
        """From the server to the caller, who takes one thing after the other."""
        await self._network.passes(self.address)
        await self._to_caller.send(told)

    async def begins(self) -> None:
        """Wait for the status. Errors: `PeerRefused`, `PeerLost`."""
        told = await self._next()
        if told.status != _BEGUN:
            raise PeerRefused(told.status, _read(told.text))

    async def __anext__(self) -> JsonLine:
        if not self._over:
            told = await self._next()
            if told.status == _LINE:
                return _read(told.text)
            self._over = True
        raise StopAsyncIteration

    async def _next(self) -> _Told:
        # A handler that takes its time is waited for: its side says that it is alive, unless the network is silent.
        while (wait_s := self._network.lost_at(self) - anyio.current_time()) > 0:
            with anyio.move_on_after(wait_s):
                try:
                    return await self._heard.receive()
                except (anyio.EndOfStream, anyio.ClosedResourceError) as error:
                    raise PeerLost("the connection broke off", address=self.address) from error
        raise PeerLost("nothing was heard of the peer for too long", address=self.address)


class _Server:
    """Whoever answers at one address. Calls that come before it has begun wait."""

    def __init__(self, network: LoopbackNetwork, handle: Handler) -> None:
        self._network = network
        self._handle = handle
        self._tasks: TaskGroup | None = None
        self._waiting: list[_Call] = []

    def begin(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        for call in self._waiting:
            tasks.start_soon(self._answer, call)
        self._waiting.clear()

    def take(self, call: _Call) -> None:
        if self._tasks is None:
            self._waiting.append(call)
        else:
            self._tasks.start_soon(self._answer, call)

    def end(self) -> None:
        for call in self._waiting:
            call.cut()

    async def _answer(self, call: _Call) -> None:
        try:
            with call.handler:
                await self._network.passes(call.address)
                async with anyio.create_task_group() as tasks:
                    answer = _Answer(self._network, call)
                    await answer.carry_out(self._handle, tasks, self._network.alive_s)
                    tasks.cancel_scope.cancel()
        finally:
            call.cut()


class _Answer:
    """It begins with the first line, or when the handler has been silent for a while; until then it can be refused."""

    def __init__(self, network: LoopbackNetwork, call: _Call) -> None:
        self._network = network
        self._call = call
        self._lines = 0
        self._begun = False
        self._lock = anyio.Lock()

    async def carry_out(self, handle: Handler, tasks: TaskGroup, alive_s: float) -> None:
        try:
            async with handle(self._call.path, _read(self._call.body)) as answer:
                tasks.start_soon(self._begin_after, alive_s)
                async for each in answer:
                    found = Lines.of(each)
                    for line in found.lines:
                        await self._tell_line(line)
                    if found.end:
                        break
            await self._tell(_Told(_END))
        except anyio.BrokenResourceError:
            return
        except PeerRefused as refusal:
            await self._refuse(refusal.status, refusal.body)
        except Exception as error:
            _logger.exception("the handler of peers raised path=%r", self._call.path)
            await self._refuse(500, {"error": "the peer failed", "type": type(error).__name__})

    async def _refuse(self, status: int, body: JsonLine) -> None:
        if not self._begun:
            await self._call.tell(_Told(status, _written(body)))

    async def _begin_after(self, alive_s: float) -> None:
        await anyio.sleep(alive_s)
        await self._begin()

    async def _begin(self) -> None:
        async with self._lock:
            if not self._begun:
                self._begun = True
                await self._call.tell(_Told(_BEGUN))

    async def _tell_line(self, line: JsonLine) -> None:
        if self._network.breaks(self._call, self._lines):
            self._call.cut()
        self._lines += 1
        await self._tell(_Told(_LINE, _written(line)))

    async def _tell(self, told: _Told) -> None:
        await self._begin()
        await self._call.tell(told)


def _written(line: JsonLine) -> bytes:
    try:
        return msgspec.json.encode(line)
    except (TypeError, ValueError) as error:
        raise Invalid(f"peers are told JSON objects: {error}") from error


def _read(text: bytes) -> JsonLine:
    return cast("JsonLine", msgspec.json.decode(text))


_logger = logging.getLogger("repertory.testing")

__all__ = ["LoopbackNetwork", "LoopbackWire"]
