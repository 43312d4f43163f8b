"""Services on the servers that people run, in a thread of this process, for clients over loopback."""

from __future__ import annotations

import math
import queue
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import anyio
import trio
import uvicorn
from hypercorn.config import Config
from hypercorn.trio import serve

from repertory import AgentSpec, Runtime, ScriptedModel, SQLiteSessions, ToolContext, tool
from repertory.asgi import ServiceLimits, asgi_app

SERVERS = ("uvicorn", "hypercorn on trio")
LIMITS = ServiceLimits(rate_per_s=math.inf)
TEXT = "one two three four five six seven eight nine ten"


@contextmanager
def served(app: Any, server: str = "uvicorn") -> Iterator[str]:
    """The address of an application that is served meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        run, stop = _on_uvicorn(app, bound) if server == "uvicorn" else _on_hypercorn(app, bound)
        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            stop()
            thread.join(30)
            assert not thread.is_alive()


def _on_uvicorn(app: Any, bound: socket.socket) -> tuple[Callable[[], None], Callable[[], None]]:
    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=5, lifespan="on")
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    return lambda: server.run(sockets=[bound]), stop


def _on_hypercorn(app: Any, bound: socket.socket) -> tuple[Callable[[], None], Callable[[], None]]:
    config = Config()
    config.bind = [f"fd://{bound.dup().detach()}"]
    config.graceful_timeout = 5
    begun: queue.SimpleQueue[tuple[trio.lowlevel.TrioToken, trio.Event]] = queue.SimpleQueue()

    async def main() -> None:
        ending = trio.Event()
        begun.put((trio.lowlevel.current_trio_token(), ending))
        await serve(app, config, shutdown_trigger=ending.wait)  # type: ignore[arg-type]

    def stop() -> None:
        token, ending = begun.get(timeout=30)
        token.run_sync_soon(ending.set)

    return lambda: trio.run(main), stop


class Typing(ScriptedModel):
    """Takes a moment for each piece of its answers, until told to go on at once."""

    def __init__(self, *replies: Any, pause_s: float = 0.05) -> None:
        super().__init__([*(replies or (TEXT,))], loop=True, chunk=4)
        self.pause_s = pause_s

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with aclosing(super().stream(*args, **options)) as events:
            async for event in events:
                await anyio.sleep(self.pause_s)
                yield event


@tool
def order(item: str, context: ToolContext) -> str:
    """Order an item."""
    return f"{item}: {context.interrupt('approve', reason=item)}"


@tool(effects=False)
def price(item: str) -> str:
    """Look up a price."""
    return f"{item} costs 3"


ASKS = {"toolUse": {"name": "order", "input": {"item": "tea"}}}
LOOKS = [{"text": "Let me see."}, {"toolUse": {"name": "price", "input": {"item": "tea"}}}]


class Shop:
    """A runtime with one agent, and its application."""

    def __init__(
        self, tmp_path: Path | None, *replies: Any, model: Any = None, tools: Any = (), **options: Any
    ) -> None:
        self.model = model or ScriptedModel([*replies], loop=True)
        self.runtime = Runtime(sessions=None if tmp_path is None else SQLiteSessions(tmp_path / "agents.db"))
        spec = AgentSpec(
            name="helper", description="Helps.", model=self.model, tools=[order, price, *tools], retry_strategy=None
        )
        self.agent = self.runtime.agent(spec)
        self.app = asgi_app(self.runtime, **{"limits": LIMITS, **options})

    @property
    def asked(self) -> int:
        """How often the model was asked."""
        return len(self.model.calls)
