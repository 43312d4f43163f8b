"""A server of the 2025 protocol that breaks it on request; a program that tests start.

    python mcp_rough_server.py [WAY]          over its pipes
    python mcp_rough_server.py [WAY] PORT     over HTTP on loopback; prints its port

It starts in no time. In the folder `NOTES`, a variable of its environment, it leaves files that tests wait for. It is
written by hand, line by line, since the server classes of `mcp` would not let it break anything. `WAY` is what it does
wrong from the beginning: `chatty` prints what is no JSON, `deaf` never answers, `endless` lists tools without end,
`twins` lists two tools that have one name for a model, `listless` refuses to list any, `dumb` never lists them,
`crowded` lists too many, `hostile` has schemas that take for ever, or name a document at the address in `ELSEWHERE`,
`flood` says too much at once, in one of the ways that the tool `flood` is asked for, `events` does so over HTTP in an
event, `torrent` prints without an end instead of shaking hands.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WAY = sys.argv[1] if len(sys.argv) > 1 else ""
NOTES = Path(os.environ["NOTES"]) if "NOTES" in os.environ else None
TOOLS = ["echo", "pid", "hang", "garbage", "wrong", "refuse", "grow"]
FLOODS = WAY in ("flood", "events")
if FLOODS:
    TOOLS = ["echo", "pid", "flood"]


def hostile() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Tools by name: what they say besides their name, and their structured answer."""
    elsewhere = {"type": "object", "properties": {"a": {"$ref": os.environ.get("ELSEWHERE", "http://nowhere/")}}}
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    steps: dict[str, Any] = {"0": {"type": "object"}}
    for level in range(40):
        steps[str(level + 1)] = {"allOf": [{"$ref": f"#/$defs/{level}"}] * 2}
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    return {
        "slow": ({"outputSchema": pattern}, {"a": "a" * 40 + "!"}),
        "quick": ({"outputSchema": pattern}, {"a": "aaa"}),
        "odd": ({"outputSchema": pattern}, {"a": "bbb"}),
        "doubling": ({"outputSchema": {"$defs": steps, "$ref": "#/$defs/40", "type": "object"}}, {}),
        "plain": ({"outputSchema": plain}, {"a": 1}),
        "unfit": ({"outputSchema": plain}, {"a": "one"}),
        "silent": ({"outputSchema": plain}, {}),
        "elsewhere": ({"outputSchema": elsewhere}, {"a": 1}),
        "elsewhere_in": ({"inputSchema": elsewhere}, {"a": 1}),
        "wordy": ({"description": "x" * 2_000_000}, {"a": 1}),
        "wide": ({"outputSchema": {"type": "object", "enum": [{}] * 10_000}}, {}),
        "many": ({}, {"rows": [0] * 50_000}),
    }


def answer(request: dict[str, Any]) -> Iterator[str]:
    """What the server says to a message: lines, usually of JSON."""
    identity, method, params = request.get("id"), request["method"], request.get("params", {})
    if method == "notifications/cancelled":
        note("stopped")
    if identity is None:
        return
    if WAY == "chatty":
        yield "Welcome to the rough server!"
    match method:
        case _ if WAY == "torrent":
            say("x" * 65_536, for_ever=True)
        case "initialize":
            info = {"name": "rough", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            yield result(identity, {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info})
        case "tools/list" if WAY == "dumb":
            return
        case "tools/list" if WAY == "listless":
            yield error(identity, -32603, "no list today")
        case "tools/list":
            yield result(identity, listing(params.get("cursor")))
        case "tools/call":
            yield from call(identity, params)
        case _:
            yield error(identity, -32601, f"no such method: {method}")


def listing(cursor: str | None) -> dict[str, Any]:
    if WAY == "hostile":
        tools = {
            name: {"name": name, "inputSchema": {"type": "object"}, **said} for name, (said, _) in hostile().items()
        }
        return {"tools": [*tools.values()]}
    if WAY == "crowded":
        tool = {"inputSchema": {"type": "object"}, "description": "x" * 100_000}
        return {"tools": [{"name": f"{cursor}-{number}", **tool} for number in range(100)], "nextCursor": f"{cursor}+"}
    names = [*TOOLS, "to.echo", "to/echo"] if WAY == "twins" else TOOLS
    half = len(names) // 2
    if WAY == "endless":
        return {"tools": [], "nextCursor": "more"}
    page = names[:half] if cursor is None else names[half:]
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in page]
    return {"tools": tools, "nextCursor": "half"} if cursor is None else {"tools": tools}


def call(identity: object, params: dict[str, Any]) -> Iterator[str]:
    if WAY == "hostile":
        note(params["name"])
        told = {} if params["name"] == "silent" else {"structuredContent": hostile()[params["name"]][1]}
        yield result(identity, {"content": [], **told})
        return
    match params["name"]:
        case "flood":
            yield from flood(identity, **params["arguments"])
        case "pid":
            yield result(identity, {"content": [{"type": "text", "text": str(os.getpid())}]})
        case "hang":
            note("hanging", str(os.getpid()))
        case "garbage":
            yield "{ this is no JSON"
        case "wrong":
            yield result(identity, {"content": "a string instead of a list"})
        case "refuse":
            yield error(identity, -32000, "not in the mood")
        case "grow":
            TOOLS.append("grown")
            yield json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            yield result(identity, {"content": [{"type": "text", "text": "ok"}]})
        case _:
            text = json.dumps(params.get("arguments"))
            yield result(identity, {"content": [{"type": "text", "text": text}]})


def flood(identity: object, way: str, size: int = 0) -> Iterator[str]:
    """An answer with so many characters or values, or no end of one."""
    text = {"content": [{"type": "text", "text": "x" * size}]}
    match way:
        case "text":
            yield result(identity, text)
        case "id last":
            yield json.dumps({"result": text, "jsonrpc": "2.0", "id": identity})
        case "values":
            yield result(identity, {"content": [], "structuredContent": {"a": [[]] * size}})
        case "escapes":
            yield result(identity, {"content": [{"type": "text", "text": "\u0416" * size}]})
        case "no answer":
            yield json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": text})
        case "no end":
            say("x" * 65_536, for_ever=True)
        case "half":
            say(result(identity, text)[:-10])
            note("hanging", str(os.getpid()))
        case "stderr":
            print("x" * size, file=sys.stderr, flush=True)
            yield result(identity, {"content": []})
        case _:
            yield error(identity, -32602, f"no such flood: {way}")


def say(text: str, *, for_ever: bool = False) -> None:
    """Over pipes, with no line's end."""
    while True:
        sys.stdout.write(text)
        sys.stdout.flush()
        if not for_ever:
            return


def note(name: str, text: str = "") -> None:
    """Leave a file, whole or not at all."""
    if NOTES is None:
        return
    (NOTES / f"{name}.new").write_text(text, encoding="utf-8")
    (NOTES / f"{name}.new").rename(NOTES / name)


def result(identity: object, value: dict[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "result": value})


def error(identity: object, code: int, message: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": identity, "error": {"code": code, "message": message}})


class Handler(BaseHTTPRequestHandler):
    """One session id per process, so a server that was started again does not know the old one."""

    protocol_version = "HTTP/1.1"
    session_id = uuid.uuid4().hex

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        begins = request["method"] in ("initialize", "server/discover")
        if not begins and self.headers["Mcp-Session-Id"] != self.session_id:
            self._send(404, "")
            return
        way = request.get("params", {}).get("arguments", {}).get("way") if FLOODS else None
        if way in ("no end", "half"):
            self._stream(way)
            return
        lines = list(answer(request))
        self._send(200 if lines else 202, lines[-1] if lines else "", way)

    def do_GET(self) -> None:
        self._send(405, "")

    def do_DELETE(self) -> None:
        self._send(204, "")

    def _stream(self, way: str) -> None:
        """A body without an end: one that goes on, or one that stops."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if WAY == "events" else "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"data: {" if WAY == "events" else b"{")
        try:
            while way == "no end":
                self.wfile.write(b"x" * 65_536)
            note("hanging")
            self.rfile.read(1)
        except OSError:
            pass
        note("stopped")
        self.close_connection = True

    def _send(self, status: int, text: str, way: str | None = None) -> None:
        body = text.encode()
        if WAY == "events" and status == 200:
            body = b": a comment\r\n\r\nevent: message\r\ndata: " + body + b"\r\n\r\n"
        if way == "packed":
            body = gzip.compress(body)
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if WAY == "events" and text else "application/json")
        if way == "packed":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", self.session_id)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


def serve_http(port: int) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


def serve_pipes() -> None:
    for line in sys.stdin:
        if WAY != "deaf":
            for said in answer(json.loads(line)):
                print(said, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        serve_http(int(sys.argv[2]))
    else:
        serve_pipes()
