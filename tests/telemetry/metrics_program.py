"""A program whose runtime works, fails and drains, and whose metrics are scraped meanwhile. Prints the scrapes as JSON:
by an HTTP client from `serve_metrics`, from `metrics_app`, during the drain, and after the end.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
from prometheus_client import REGISTRY

from repertory import (
    AgentSpec,
    DeliveryEvent,
    ExtractionConfig,
    IntervalTrigger,
    MemoryManager,
    Peers,
    Runtime,
    ScriptedModel,
    SQLiteSessions,
    metrics_app,
    tool,
)
from tests.app.memory.toy_memories import Transcripts


class Fails:
    """A collector of the program's own."""

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Any:
        raise ConnectionError("away")


FAILS = Fails()


async def asgi_get(app: Any, method: str = "GET", accept: str = "text/plain") -> tuple[int, str, str]:
    sent: list[Mapping[str, Any]] = []

    async def receive() -> Mapping[str, Any]:
        return {"type": "http.request"}

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "headers": [(b"accept", accept.encode())]}, receive, send)
    headers = dict(sent[0]["headers"])
    return sent[0]["status"], headers.get(b"content-type", b"").decode(), sent[1]["body"].decode()


async def http_get(address: str, request: str = "GET /metrics HTTP/1.1", name: str = "127.0.0.1:1") -> str:
    host, _, port = address.rpartition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(f"{request}\r\nhost: {name}\r\n\r\n".encode())
        got = b""
        try:
            while True:
                got += await stream.receive()
        except anyio.EndOfStream:
            return got.decode()


async def main(folder: str) -> None:
    app = metrics_app()
    notes = Transcripts("notes", extraction=ExtractionConfig(trigger=IntervalTrigger(1)))
    entered, go = anyio.Event(), anyio.Event()

    @tool
    async def dig() -> str:
        """Dig."""
        entered.set()
        await go.wait()
        return "dug"

    found: dict[str, object] = {}
    sessions = SQLiteSessions(Path(folder) / "a.db")
    memory = MemoryManager(stores=[notes], injection=False)
    receivers = anyio.Event()

    async def down(event: DeliveryEvent) -> None:
        receivers.set()
        raise ConnectionError("down")

    async with Runtime(sessions=sessions, memory=memory, peers=Peers(room=7), idle_timeout_s=600) as runtime:
        runtime.deliver(lambda event: None, on=["answer"], name="up")
        runtime.deliver(down, on=[], name="down")
        runtime.deliver(down, on=[], name="gone", retry_s=[0.01], give_up_s=0.01)
        replies = [*["hi"] * 5, {"toolUse": {"name": "dig"}}, "done"]
        model = ScriptedModel(replies, delay_s=0.005, loop=True)
        agent = runtime.agent(AgentSpec(name="a", model=model, tools=[dig]))
        for number in range(3):
            await agent.session(f"s{number}").invoke("x", deliver_to=["down", "gone"] if number == 2 else None)
        await receivers.wait()
        async with anyio.create_task_group() as group:
            for text in ("one", "and one behind it"):
                group.start_soon(agent.session("s1").invoke, text)
        async with anyio.create_task_group() as group:
            address = await group.start(partial(runtime.serve_metrics, "127.0.0.1:0", hosts=["Scraped.example"]))
            group.start_soon(agent.session("s0").invoke, "dig")
            await entered.wait()
            group.start_soon(agent.session("s0").invoke, "more")
            await anyio.sleep(0.4)  # Values are read once in a while.
            found["served"] = await http_get(address)
            found["app"] = await asgi_get(app)
            found["openmetrics"] = (await asgi_get(app, accept="application/openmetrics-text; version=1.0.0"))[1]
            found["posted"] = (await asgi_get(app, "POST"))[0]
            names = ("scraped.example:9464", "localhost", "[::1]:80", "10.1.2.3", "rebound.example", "", "localhost@x")
            found["names"] = {name: (await http_get(address, name=name)).split()[1] for name in names}
            found["elsewhere"] = await http_get(address, "GET /secrets HTTP/1.1")
            odd = "GET /metrics HTTP/1.1\r\naccept: text/plain; version=x"
            REGISTRY.register(cast("Any", FAILS))
            found["failing"] = await http_get(address)
            REGISTRY.unregister(cast("Any", FAILS))
            found["odd"] = await http_get(address, odd)
            go.set()

            async def note() -> None:
                await anyio.sleep(0.4)
                found["draining"] = (await asgi_get(app))[2]

            runtime.on_shutdown("refuse", note)
            await runtime.drain()
    found["ended"] = (await asgi_get(app))[2]
    print(json.dumps(found))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], backend=sys.argv[2])
