"""A source of tools in memory, whose server dies, hangs and changes when a test says so."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio

from repertory.backends.tool_ports import CallDetails, OfferedTool
from repertory.core.limits import RESULT_BYTES
from repertory.core.messages import ToolResult, ToolUse
from repertory.errors import Failed, Unavailable


def offer(name: str) -> OfferedTool:
    return OfferedTool(spec={"name": name, "description": name, "inputSchema": {"json": {"type": "object"}}})


class ToyConnection:
    """A `ToolConnection`: `echo` answers with its input, `hang` never does, any other name is refused."""

    def __init__(self, source: ToySource) -> None:
        self._source = source
        self._stale = False
        self._ended = False
        self._happened = anyio.Event()

    def end(self) -> None:
        self._ended = True
        self._happened.set()

    def change(self) -> None:
        self._stale = True
        self._happened.set()

    async def tools(self) -> Sequence[OfferedTool]:
        await anyio.lowlevel.checkpoint()
        return tuple(offer(name) for name in self._source.names)

    async def call(
        self, name: str, tool_use: ToolUse, result_bytes: int = RESULT_BYTES, details: CallDetails | None = None
    ) -> ToolResult:
        source = self._source
        source.calls.append(name)
        if name == "hang":
            source.hanging.set()
            try:
                await anyio.sleep_forever()
            finally:
                source.dropped.append(tool_use["toolUseId"])
        await anyio.lowlevel.checkpoint()
        status = "success" if name == "echo" else "error"
        return {"toolUseId": tool_use["toolUseId"], "status": status, "content": [{"text": str(tool_use["input"])}]}

    async def query(self, method: str, arguments: Mapping[str, object]) -> object:
        await anyio.lowlevel.checkpoint()
        if method == "burn":
            raise Failed("it does not burn", method=method)
        return method, dict(arguments)

    async def changed(self) -> None:
        while not self._ended and not self._stale:
            self._happened = anyio.Event()
            await self._happened.wait()
        self._stale = False
        if self._ended:
            raise Unavailable("the toy server ended")


class ToySource:
    """A `ToolSource`. While `down` is set, connecting fails with that reason."""

    def __init__(self, name: str = "toys") -> None:
        self.name = name
        self.names = ["echo", "hang"]
        self.down: str | None = None
        self.leave_s = 0.0
        """How long leaving a connection takes."""
        self.attempts: list[float] = []
        """When somebody connected, or tried to."""
        self.open = 0
        self.calls: list[str] = []
        self.dropped: list[str] = []
        """Ids of the calls that ended without an answer."""
        self.hanging = anyio.Event()
        self._connection: ToyConnection | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[ToyConnection]:
        self.attempts.append(anyio.current_time())
        await anyio.lowlevel.checkpoint()
        if self.down is not None:
            raise Unavailable(self.down, server=self.name)
        self._connection = ToyConnection(self)
        self.open += 1
        try:
            yield self._connection
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.leave_s)
            self.open -= 1

    def die(self) -> None:
        """End the connection that is open."""
        assert self._connection is not None
        self._connection.end()

    def change(self, *names: str) -> None:
        """Offer these tools, and say so."""
        assert self._connection is not None
        self.names = list(names)
        self._connection.change()
