"""A server of toy tools, written with the server classes of `mcp`; a program that tests start.

    python mcp_toy_server.py NOTES                 over its pipes
    python mcp_toy_server.py NOTES PORT            over streamable HTTP on loopback; prints its port
    python mcp_toy_server.py NOTES sse PORT        over the older transport of server-sent events

`NOTES` is a folder: tools leave files there that tests wait for.
"""

from __future__ import annotations

import os
import socket
import sys
from base64 import b64encode
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)

NOTES = Path(sys.argv[1])
server = MCPServer("toys", log_level="CRITICAL")


def note(name: str, text: str = "") -> None:
    """Leave a file, whole or not at all."""
    (NOTES / f"{name}.new").write_text(text, encoding="utf-8")
    (NOTES / f"{name}.new").rename(NOTES / name)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def pid() -> str:
    """The id of the server's process."""
    return str(os.getpid())


@server.tool()
async def hang() -> str:
    """Never answer, and take note of being called and of being told to stop."""
    note("hanging", str(os.getpid()))
    try:
        await anyio.sleep_forever()
    finally:
        note("stopped")
    return ""


@server.tool()
def fail() -> str:
    """Raise."""
    raise ToolError("out of paper")


@server.tool()
def die() -> str:
    """End the process in the middle of the call."""
    os._exit(3)


@server.tool()
def weather(city: str) -> dict[str, object]:
    """A structured value."""
    return {"city": city, "degrees": 21}


@server.tool()
def show() -> CallToolResult:
    """One of everything."""
    pdf = BlobResourceContents(
        uri="file:///a/q3%20report.pdf", mime_type="application/pdf", blob=b64encode(b"%PDF").decode()
    )
    text = TextResourceContents(uri="file:///a/notes.txt", text="from a resource")
    return CallToolResult(
        content=[
            TextContent(text="text"),
            ImageContent(data=b64encode(b"\x89PNG").decode(), mime_type="image/png"),
            AudioContent(data=b64encode(b"RIFF").decode(), mime_type="audio/wav"),
            EmbeddedResource(resource=text),
            EmbeddedResource(resource=pdf),
        ]
    )


@server.tool()
async def grow(context: Context) -> str:
    """Offer one more tool, and say so."""

    def grown() -> str:
        """Was not there before."""
        return "grown"

    server.add_tool(grown)
    await context.notify_tools_changed()
    return "ok"


@server.prompt()
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@server.resource("toys://motto")
def motto() -> str:
    """What the toys say."""
    return "play"


def serve_http(port: int) -> None:
    """Serve on loopback, on any free port for 0."""
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    app = server.sse_app() if "sse" in sys.argv else server.streamable_http_app()
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    anyio.run(lambda: uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_http(int(sys.argv[-1]))
    else:
        server.run()
