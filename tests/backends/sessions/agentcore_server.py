"""A loopback service that speaks the protocol of AgentCore Memory, for clients of any kind: ours, and the package's.

Routes, status codes and error shapes are those of the service's model. `plan` says what goes wrong with a request.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.backends.sessions.agentcore_memory import MODEL, FakeMemory, ServiceError


@dataclass(frozen=True)
class Say:
    """Answer with this error instead of asking the memory."""

    code: str
    message: str = "injected"
    status: int | None = None


@dataclass(frozen=True)
class Drop:
    """End the connection without an answer; when `done`, after the memory has done what was asked."""

    done: bool = False


@dataclass(frozen=True)
class Hang:
    """Never answer, though the memory does what was asked when `done`."""

    done: bool = False


Plan = Say | Drop | Hang | None
"""None: nothing goes wrong."""


@dataclass
class MemoryServer:
    """A running one."""

    url: str
    memory: FakeMemory
    plan: Callable[[str, dict[str, Any]], Plan] = lambda operation, params: None
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Operation and parameters, in the order in which they came, repeated ones as often."""
    hung: threading.Event = field(default_factory=threading.Event)
    """Set when a request hangs."""
    closing: threading.Event = field(default_factory=threading.Event)
    """Set to end those that hang."""

    def next_plans(self, operation: str, *plans: Plan) -> None:
        """What happens to the next requests of this operation; nothing goes wrong with those after them."""
        rest = list(plans)
        self.plan = lambda asked, params: rest.pop(0) if rest and asked == operation else None

    def end_hanging(self) -> None:
        """End the connections of requests that hang."""
        self.closing.set()
        self.closing = threading.Event()
        self.hung.clear()

    def operations(self) -> list[str]:
        """What was asked so far, and forget it."""
        taken, self.requests[:] = [operation for operation, _ in self.requests], []
        return taken


def _routes() -> list[tuple[str, re.Pattern[str], str, int]]:
    routes: list[tuple[str, re.Pattern[str], str, int]] = []
    for name in ("CreateEvent", "ListEvents", "GetEvent", "DeleteEvent", "ListSessions", "RetrieveMemoryRecords"):
        http = MODEL.operation_model(name).http
        path = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", http["requestUri"])
        routes.append((http["method"], re.compile(path), name, http.get("responseCode", 200)))
    return routes


ROUTES = _routes()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # Head and body in one packet, or each answer takes 40 ms.
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        state: MemoryServer = self.server.state
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path.rstrip("/")  # aiobotocore puts the host into the request line
        routes = [route for route in ROUTES if route[0] == self.command and route[1].fullmatch(path)]
        if not routes:
            self._answer(404, {"message": f"no such route: {self.command} {path}"}, "UnknownOperationException")
            return
        _, pattern, operation, status = routes[0]
        found = pattern.fullmatch(path)
        assert found is not None
        params = {name: unquote(value) for name, value in found.groupdict().items()} | json.loads(body or b"{}")
        state.requests.append((operation, params))
        plan = state.plan(operation, params)
        if isinstance(plan, Say):
            error = ServiceError(plan.code, plan.message)
            self._answer(plan.status or error.status, {"message": plan.message}, plan.code)
            return
        if isinstance(plan, Drop | Hang):
            if plan.done:
                state.memory.call(operation, params)
            if isinstance(plan, Hang):
                state.hung.set()
                state.closing.wait(20)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        try:
            self._answer(status, state.memory.call(operation, params))
        except ServiceError as error:
            self._answer(error.status, {"message": error.message}, error.code)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    def _answer(self, status: int, value: dict[str, Any], error: str | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if error is not None:
            self.send_header("x-amzn-ErrorType", error)
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # A client has hung up, which is what some tests are about.


@contextmanager
def agentcore_server(memory: FakeMemory | None = None) -> Iterator[MemoryServer]:
    """A running server, ended with the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    state = MemoryServer(f"http://127.0.0.1:{server.server_port}", memory or FakeMemory())
    server.state = state  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.closing.set()
        server.shutdown()
        thread.join(5)
        server.server_close()
