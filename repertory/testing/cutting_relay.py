"""A relay between a client and a server, which ends a connection before or after a chosen message of the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from anyio.abc import SocketAttribute, SocketStream

from repertory.testing.cuts import LostWhen

CHUNK = 1 << 20


@dataclass
class CuttingRelay:
    """A running one.

    Args:
        port: The port where clients connect.
        cut: The loss of the request `before` it arrives, or `after` it was done.
    """

    port: int = 0
    left: int = 0
    """The number of messages until the cut, which the last of them suffers; 0: none is planned."""
    cut: LostWhen = "before"
    stays: bool = False
    """True if nothing passes from the cut on, and new connections end at once."""
    down: bool = False
    """True after such a cut."""
    connections: int = 0
    """The number of connections that clients have made."""
    _flowing: anyio.Event | None = None
    """The event that is set while messages pass, and not while they are held."""

    def plan(self, cut: LostWhen, number: int, *, stays: bool = False) -> None:
        """End the connection of the client's next message but so many.

        Args:
            cut: The loss of the request `before` it arrives, or `after` it was done.
            number: The number of the request that is lost, from 1 for the next one.
            stays: True also ends all other connections, until `mend`.
        """
        self.cut, self.left, self.stays = cut, number, stays

    @property
    def planned(self) -> bool:
        """True if the cut was not made yet."""
        return self.left > 0

    def mend(self) -> bool:
        """Let everything pass again. True if the cut was made."""
        made = not self.planned
        self.left, self.down = 0, False
        return made

    def hold(self) -> None:
        """Hold back all that clients send from now on; their connections stay open."""
        self._flowing = anyio.Event()

    def let_flow(self) -> None:
        """Hand on what is held, and what follows."""
        if self._flowing is not None:
            self._flowing.set()

    async def carry(self, client: SocketStream, server_port: int) -> None:
        """Carry the messages of one connection, until it ends.

        Args:
            client: The client's end.
            server_port: The port of the server.
        """
        self.connections += 1
        cutting = False

        async def answers(server: SocketStream) -> None:
            while not cutting:
                data = await server.receive(CHUNK)
                if cutting:
                    self.down = self.stays
                    break
                await client.send(data)
            tasks.cancel_scope.cancel()

        with anyio.CancelScope():
            try:
                async with (
                    client,
                    await anyio.connect_tcp("127.0.0.1", server_port) as server,
                    anyio.create_task_group() as tasks,
                ):
                    tasks.start_soon(answers, server)
                    while not self.down:
                        data = await client.receive(CHUNK)
                        if self._flowing is not None:
                            await self._flowing.wait()
                        cutting = self._cuts()
                        if self.down or (cutting and self.cut == "before"):
                            self.down = self.down or self.stays
                            break
                        await server.send(data)
                    tasks.cancel_scope.cancel()
            except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass

    def _cuts(self) -> bool:
        """True if the cut is made with this message."""
        if not self.left:
            return False
        self.left -= 1
        return not self.left


@asynccontextmanager
async def cutting_relay(server_port: int) -> AsyncGenerator[CuttingRelay]:
    """A relay to this port of this machine, ended with the block.

    Args:
        server_port: The port of the server.
    """
    relay = CuttingRelay()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

    async def carry(client: SocketStream) -> None:
        await relay.carry(client, server_port)

    async with listener, anyio.create_task_group() as tasks:
        relay.port = listener.extra(SocketAttribute.local_port)
        tasks.start_soon(listener.serve, carry)
        yield relay
        tasks.cancel_scope.cancel()
