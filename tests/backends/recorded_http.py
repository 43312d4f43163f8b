"""Servers over loopback that answer as a test says, and remember every request: the honest and the hostile ones of
tests about credentials.
"""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Heard:
    """A request that arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By names in small letters."""
    body: bytes

    def carries(self, secret: str) -> bool:
        """True if the secret is anywhere in it, also as the password of basic authentication."""
        kind, _, given = self.headers.get("authorization", "").partition(" ")
        basic = b64decode(given + "===").decode(errors="replace") if kind == "Basic" else ""
        return secret in f"{self.path} {dict(self.headers)} {self.body!r} {basic}"


Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


@dataclass
class RecordedServer:
    """A server that is running."""

    url: str
    """Its origin."""
    answer: Callable[[Heard], Answer] = lambda _: (404, {}, b"")
    """Called in a thread of the connection; may be assigned."""
    heard: list[Heard] = field(default_factory=list[Heard])

    def carried(self, secret: str) -> list[str]:
        """The paths of the requests that carried the secret."""
        return [each.path for each in self.heard if each.carries(secret)]


@contextmanager
def recorded_server(answer: Callable[[Heard], Answer] | None = None) -> Iterator[RecordedServer]:
    """A server on a free port of loopback, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            heard = Heard(self.command, self.path, headers, body)
            made.heard.append(heard)
            status, sent, content = made.answer(heard)
            self.send_response(status)
            for name, value in {**sent, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - What the base class looks for.

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients may go when they like."""

    server = Server(("127.0.0.1", 0), Handler)
    made = RecordedServer(f"http://127.0.0.1:{server.server_address[1]}")
    if answer is not None:
        made.answer = answer
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
