"""The metrics that Prometheus scrapes, as text: behind a web framework or a small server of its own.

OpenTelemetry's Prometheus reader, which the extra `telemetry` brings, is a collector of prometheus_client's registry.
A scrape is rendered in a worker thread, so that thousands of sessions do not hold the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from msgspec import Struct

from repertory.app.host.session import meter_provider
from repertory.backends.worker_threads import run_in_thread
from repertory.core.origins import LOOPBACK_NAMES, host_name, is_address
from repertory.errors import Failed, Invalid
from repertory.logs import WARNING, note
from repertory.telemetry.metrics import use_provider

if TYPE_CHECKING:
    from anyio.abc import Listener, SocketListener, SocketStream, TaskStatus
    from prometheus_client import CollectorRegistry

_LOG = logging.getLogger("repertory.app")
_NEEDS = "metrics for Prometheus need OpenTelemetry's reader ({error}): pip install 'repertory[telemetry]'"
_READER = "opentelemetry.exporter.prometheus"
_NO_READER = (
    "the program's meter provider has no Prometheus reader: write MeterProvider(metric_readers=["
    "PrometheusMetricReader(), ...]), or set none"
)
_HEAD_MAX = 8192
_REQUEST_S = 5.0
"""Seconds of a scrape, from its connection to its answer."""
_ACCEPT_AGAIN_S = 0.1
_AT_ONCE = 8
"""Scrapes that are answered at the same time; more wait."""
_OPEN_MAX = 64
"""Connections that are open at once; more wait to be taken."""

Send: TypeAlias = "Callable[[dict[str, Any]], Awaitable[None]]"
AsgiApp: TypeAlias = "Callable[[Mapping[str, Any], Callable[[], Awaitable[Mapping[str, Any]]], Send], Awaitable[None]]"


def metrics_app() -> AsgiApp:
    """An ASGI app that answers each GET with the program's metrics, as Prometheus reads them: `app.mount("/metrics",
    metrics_app())` in FastAPI or Starlette. Make it before the runtimes start.

    If the program has no OpenTelemetry meter provider yet, this sets one, with a Prometheus reader. One that it has set
    before needs that reader: `MeterProvider(metric_readers=[PrometheusMetricReader(), ...])`. The app asks nobody who
    reads: leave it to what stands before the service.

    Raises:
        ImportError: Without the extra `telemetry`. Install the extra that the message names.
        Invalid: When the provider has no such reader. Correct the argument.
    """
    registry = _registry()

    async def app(scope: Mapping[str, Any], receive: Callable[[], Awaitable[Mapping[str, Any]]], send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http":
            accepts = dict(cast("list[tuple[bytes, bytes]]", scope["headers"])).get(b"accept", b"").decode("latin-1")
            answer = await _answer(registry, scope["method"], accepts)
            headers = [(name.encode(), value.encode()) for name, value in answer.headers.items()]
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            body = b"" if scope["method"] == "HEAD" else answer.body
            await send({"type": "http.response.body", "body": body})

    return app


async def _live(receive: Callable[[], Awaitable[Mapping[str, Any]]], send: Send) -> None:
    """The lifespan of an app that a server runs by itself."""
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})


def _registry() -> CollectorRegistry:
    """The registry that has the program's metrics. Sets a meter provider if there is none."""
    try:
        reader = import_module(_READER)
        registry = cast("CollectorRegistry", import_module("prometheus_client").REGISTRY)
        if meter_provider() is None:
            readers = [reader.PrometheusMetricReader()]
            provider = import_module("opentelemetry.sdk.metrics").MeterProvider(metric_readers=readers)
            import_module("opentelemetry.metrics").set_meter_provider(provider)
    except ImportError as error:
        raise ImportError(_NEEDS.format(error=error)) from error
    known = cast("Mapping[object, object] | None", vars(registry).get("_collector_to_names"))
    if known is not None and not any(type(each).__module__.startswith(_READER) for each in known):
        raise Invalid(_NO_READER)
    use_provider()
    return registry


class _Response(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes = b""


async def _answer(registry: CollectorRegistry, method: str, accepts: str) -> _Response:
    if method not in ("GET", "HEAD"):
        return _Response(405, {"allow": "GET, HEAD", "content-length": "0"})
    choose = import_module("prometheus_client.exposition").choose_encoder
    encode, content_type = choose("")
    with suppress(Exception):  # Raised for an `Accept` that it cannot read, which counts as none.
        encode, content_type = choose(accepts)
    try:
        body = await run_in_thread(lambda: _collected(registry, encode))
    except Failed as error:
        note(_LOG, WARNING, "a scrape failed", error.__cause__)
        return _Response(500, {"content-length": "0"})
    return _Response(200, {"content-type": content_type, "content-length": str(len(body))}, body)


def _collected(registry: CollectorRegistry, encode: Callable[[CollectorRegistry], bytes]) -> bytes:
    try:
        return encode(registry)
    except Exception as error:  # A collector may be the program's own.
        raise Failed("the metrics could not be collected") from error


async def serve_metrics(address: str, hosts: Collection[str], until: anyio.Event, task_status: TaskStatus[str]) -> None:
    """See `Runtime.serve_metrics`."""
    registry = _registry()
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise Invalid("an address is host:port, such as 127.0.0.1:9464", got=address)
    try:
        listener = await anyio.create_tcp_listener(local_host=host.strip("[]"), local_port=int(port))
    except (OSError, OverflowError) as error:
        raise Invalid("metrics cannot be served there", address=address, error=str(error)) from error
    limiter, names = anyio.CapacityLimiter(_AT_ONCE), frozenset(name.lower().rstrip(".") for name in hosts)

    room = anyio.Semaphore(_OPEN_MAX)

    async def handle(stream: SocketStream) -> None:
        try:
            async with stream:
                with (
                    suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream),
                    anyio.move_on_after(_REQUEST_S),
                ):
                    await _serve_one(stream, registry, names, limiter)
        finally:
            room.release()

    async def accept(one: Listener[SocketStream]) -> None:
        while True:
            await room.acquire()
            try:
                stream = await cast("SocketListener", one).accept()
            except (OSError, anyio.BrokenResourceError) as error:  # Out of descriptors, or it has gone already.
                room.release()
                note(_LOG, WARNING, "a scrape could not be taken", error)
                await anyio.sleep(_ACCEPT_AGAIN_S)
            else:
                group.start_soon(handle, stream)

    async with listener, anyio.create_task_group() as group:
        bound = cast("tuple[Any, ...]", listener.extra(anyio.abc.SocketAttribute.local_address))
        task_status.started(f"{host}:{bound[1]}")
        for one in listener.listeners:
            group.start_soon(accept, one)
        await until.wait()
        group.cancel_scope.cancel()


async def _serve_one(
    stream: SocketStream, registry: CollectorRegistry, names: frozenset[str], limiter: anyio.CapacityLimiter
) -> None:
    """Answer one request, and let the connection go."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > _HEAD_MAX:
            return
        head += await stream.receive(_HEAD_MAX)
    first, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = host_name(headers.get("host", ""))
    if not ("*" in names or name in LOOPBACK_NAMES or name in names or is_address(name)):  # Against DNS rebinding.
        answer = _Response(421, {"content-length": "0"})
    elif path not in ("/", "/metrics"):
        answer = _Response(404, {"content-length": "0"})
    else:
        async with limiter:
            answer = await _answer(registry, method, headers.get("accept", ""))
    words = HTTPStatus(answer.status).phrase
    told = "".join(f"{name}: {value}\r\n" for name, value in {**answer.headers, "connection": "close"}.items())
    body = b"" if method == "HEAD" else answer.body
    await stream.send(f"HTTP/1.1 {answer.status} {words}\r\n{told}\r\n".encode("latin-1") + body)
