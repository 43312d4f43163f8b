"""One process of a service: a runtime, its application, and a socket.

A signal begins the drain: the process says that it is not ready, takes no connection any more, refuses new turns, ends
those that run, and answers them. Retiring comes before that for a worker that is replaced: it takes no connection any
more, and drains when what it has been asked is answered.
"""

from __future__ import annotations

import gc
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from msgspec.structs import asdict

from repertory.app.tracebacks import shortened_error
from repertory.core.admission import ServiceLimits
from repertory.core.tenants import StoredRange
from repertory.errors import Invalid
from repertory.logs import INFO, note
from repertory.service.configuration.building import answer_links_from, caller_rules_from, runtime_from, tokens_from
from repertory.service.configuration.decisions.tables import LogsTable
from repertory.service.configuration.sources import Sources, find_modules_in, load_configuration
from repertory.service.http.app import asgi_app
from repertory.service.http.gc_when_quiet import gc_when_quiet
from repertory.service.http.service import Authenticate, Caller, bearer_tokens
from repertory.service.process.listening import raise_descriptors
from repertory.service.process.logging_setup import log_to_stderr, set_telemetry_up
from repertory.service.process.settings import TOKEN, ServedReport, ServeSettings
from repertory.service.process.web_server import serve_web

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from repertory.app.embedding.reports import DrainReport
    from repertory.app.embedding.runtime import Runtime
    from repertory.app.memory.memory_manager import MemoryManager

_LOG = logging.getLogger("repertory.app")
_MANY_DESCRIPTORS = 1024
LAST_ANSWERS_S = 2.0
"""Seconds that requests may take after the drain, which has ended their turns."""


class PreparedService(NamedTuple):
    """The runtime and the application that a process serves. Nothing is opened yet."""

    runtime: Runtime
    app: Starlette

    def report(self) -> ServedReport:
        runtime = self.runtime
        return ServedReport(
            agents=tuple(self.app.state.service.agents),
            sessions="in memory" if runtime.sessions is None else repr(runtime.sessions),
            drain_timeout_s=runtime.drain_timeout_s,
        )


def prepare_service(
    settings: ServeSettings, load_target: Callable[[str], Runtime], environ: Mapping[str, str]
) -> PreparedService:
    """Make what is served. Errors: `WrongConfiguration`; `Invalid` for a target that is none, and for workers that do
    not share sessions; `ImportError` naming what to install.
    """
    if settings.configuration is not None:
        prepared = _of_configuration(settings, Path(settings.configuration), environ)
    else:
        prepared = _of_target(settings, load_target(settings.target or ""), environ)
    if settings.workers > 1 and not prepared.runtime.shares_sessions:
        raise Invalid("several workers share sessions by peers: write Runtime(sessions=..., peers=Peers())")
    return prepared


def _of_target(settings: ServeSettings, runtime: Runtime, environ: Mapping[str, str]) -> PreparedService:
    log_to_stderr(LogsTable(), many=settings.workers > 1)
    app = asgi_app(
        runtime,
        authenticate=_one_secret(settings, environ),
        hosts=settings.names,
        cors=list(settings.origins),
        index=settings.index,
    )
    return PreparedService(runtime, app)


def _of_configuration(settings: ServeSettings, path: Path, environ: Mapping[str, str]) -> PreparedService:
    file = load_configuration(path).with_workers(settings.workers)
    values = file.values
    log_to_stderr(values.logs, many=settings.workers > 1)
    find_modules_in(path.parent.absolute())
    sources = Sources(file, path.parent.absolute(), environ)
    tokens = tokens_from(sources)
    rules = caller_rules_from(sources, values.service.callers, ("service", "callers"))
    links = answer_links_from(sources)
    configured = runtime_from(sources, several=settings.workers > 1)
    set_telemetry_up(values.telemetry)
    chosen: dict[str, Any] = {}
    if values.service.agents:
        chosen["agents"] = {name: configured.agents[name] for name in values.service.agents}
    if values.service.protocols is not None:
        chosen["protocols"] = values.service.protocols
    callers = {secret: Caller(tenant, tenant) for tenant, secret in tokens.items()}
    if (memory_of := configured.memory) is not None:

        def of_caller(caller: Caller) -> MemoryManager:
            return memory_of(StoredRange(caller.tenant).prefix)

        chosen["memory"] = of_caller
    app = asgi_app(
        configured.runtime,
        authenticate=bearer_tokens(callers) if callers else _one_secret(settings, environ),
        limits=ServiceLimits(**asdict(values.service.limits)),
        hosts=(*values.service.hosts, *settings.names),
        cors=[*values.service.cors, *settings.origins],
        callers=rules,
        index=settings.index and values.service.index,
        answer_links=links,
        **chosen,
    )
    return PreparedService(configured.runtime, app)


def _one_secret(settings: ServeSettings, environ: Mapping[str, str]) -> Authenticate | None:
    """The check of callers by the one secret, if there is one. Errors: `Invalid` where it is needed and missing."""
    secret = environ.get(TOKEN)
    if secret:
        return bearer_tokens({secret: Caller()})
    if settings.is_reached_by_others:
        raise Invalid(f"other machines reach this address: give the service tokens, or set {TOKEN}")
    return None


def run_process(
    prepared: PreparedService,
    settings: ServeSettings,
    listening: socket.socket,
    *,
    started: Callable[[], object],
    orders: Callable[[Callable[[], object]], object] = lambda retire: None,
) -> int:
    """Serve until a signal, on an event loop of its own, in a process that ends then. Returns the exit code: 0, or 1
    when something was not stored.

    `started` is called when requests are taken. `orders` is given a function, to be called from any thread, that has
    this process retire.
    """

    async def main() -> DrainReport:
        return await serve_prepared(prepared, listening, started=started, orders=orders)

    # Without a free descriptor uvloop resets each new connection; the others leave it waiting.
    many = raise_descriptors() >= _MANY_DESCRIPTORS
    options = {"use_uvloop": True} if settings.loop == "asyncio" and many and _has_uvloop() else {}
    try:
        report = anyio.run(main, backend=settings.loop, backend_options=options)
    except ExceptionGroup as error:
        raise shortened_error(error) from None
    gc.freeze()  # The interpreter would look through every object once more at its exit: 70 ms of 80.
    return 1 if report.not_stored else 0


def _has_uvloop() -> bool:
    try:
        import uvloop as uvloop
    except ImportError:
        return False
    return True


async def serve_prepared(
    prepared: PreparedService,
    listening: socket.socket,
    *,
    started: Callable[[], object],
    orders: Callable[[Callable[[], object]], object],
) -> DrainReport:
    """Serve until the runtime drains, by a signal or because it was told to retire, and report."""
    runtime, service = prepared.runtime, prepared.app.state.service
    retired = anyio.Event()
    token = anyio.lowlevel.current_token()
    orders(lambda: anyio.from_thread.run_sync(retired.set, token=token))

    def end() -> None:
        note(_LOG, INFO, "no more requests are taken, and those in flight are answered", in_flight=service.in_progress)
        service.leave()

    async def until_it_ends() -> None:
        async with anyio.create_task_group() as either:

            async def first(wait: Callable[[], Awaitable[object]]) -> None:
                await wait()
                either.cancel_scope.cancel()

            either.start_soon(first, runtime.draining.wait)
            either.start_soon(first, retired.wait)

    quiet = gc_when_quiet(lambda: service.in_progress)
    async with runtime, quiet, anyio.create_task_group() as group:
        # Before requests are taken, so that no signal finds Python's own handler, which ends the process at once.
        await group.start(runtime.serve_signals)
        await serve_web(
            prepared.app,
            listening,
            until=until_it_ends,
            started=started,
            ending=end,
            grace_s=runtime.drain_timeout_s + LAST_ANSWERS_S,
        )
        # For one that retires, where nothing else has begun the drain.
        await runtime.drain()
    return await runtime.drain()  # which is over: this gives its report
