"""A relay between a client and a server, which ends a connection before or after a chosen message of the client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio
from anyio.abc import SocketStream

CHUNK = 1 << 20
Cut = Literal["before", "after"]
"""Before the message reaches the server; or after the server has answered, and before the client knows."""


@dataclass
class CuttingRelay:
    """A running one."""

    port: int = 0
    left: int = 0
    """How many messages pass until the cut; 0: none is planned."""
    cut: Cut = "before"
    holds: bool = False
    """True: what the client sends goes nowhere, and its connection stays open."""

    def plan(self, cut: Cut, number: int) -> None:
        """End the connection of the client's next message but so many."""
        self.cut, self.left = cut, number

    @property
    def planned(self) -> bool:
        """True if the cut was not made yet."""
        return self.left > 0

    async def carry(self, client: SocketStream, server_port: int) -> None:
        cutting = False

        async def answers(server: SocketStream) -> None:
            while not cutting:
                data = await server.receive(CHUNK)
                if cutting:
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
                    while True:
                        data = await client.receive(CHUNK)
                        while self.holds:  # noqa: ASYNC110 - a test says when
                            await anyio.sleep(0.01)
                        if self.left:
                            self.left -= 1
                            if not self.left:
                                cutting = True
                                if self.cut == "before":
                                    tasks.cancel_scope.cancel()
                                    break
                        await server.send(data)
            except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
                pass


@asynccontextmanager
async def cutting_relay(server_port: int) -> AsyncGenerator[CuttingRelay]:
    """A relay to this port, ended with the block."""
    relay = CuttingRelay()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        relay.port = listener.extra(anyio.abc.SocketAttribute.local_port)
        tasks.start_soon(listener.serve, lambda client: relay.carry(client, server_port))
        yield relay
        tasks.cancel_scope.cancel()
