"""`repertory serve`: agents behind HTTP. `repertory check`: what would be served. `repertory config-schema`: what
editors need.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from repertory.app.cli.listing import harmless
from repertory.app.configuration.sources import FILE_NAME, Sources, find_modules_in, load_configuration
from repertory.app.serving.listening import listen_at, listen_at_path, url_of
from repertory.app.serving.settings import TOKEN, ServedReport, ServeSettings
from repertory.core.configuration.reading import WrongConfiguration
from repertory.core.configuration.tables import LogsTable, configuration_schema
from repertory.core.plural import counted
from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.app.host.hosted import HostedAgent
    from repertory.core.configuration.tables import AgentTable

WORKERS_MAX = 256
_DEFAULTS = ServeSettings()
_TOKEN_BYTES = 24


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """What is served, and where."""
    parser.add_argument(
        "target", metavar="MODULE:RUNTIME", nargs="?", help="a Runtime of a module, or a function that makes one"
    )
    parser.add_argument("--config", metavar="FILE", help=f"instead of a target: a configuration (default: {FILE_NAME})")
    parser.add_argument(
        "--host",
        metavar="ADDRESS",
        help=f"the address (default: {_DEFAULTS.host}); one that other machines reach needs tokens: [service.tokens],"
        f" ${TOKEN}, or one that is made and printed",
    )
    parser.add_argument("--port", metavar="PORT", type=int, help=f"the port (default: {_DEFAULTS.port}); 0 for any")
    parser.add_argument("--uds", metavar="PATH", help="a Unix socket instead")
    parser.add_argument(
        "--workers", metavar="N", type=int, help="processes that share the socket and, by peers, the sessions"
    )
    parser.add_argument("--trio", action="store_true", help="run on trio (default: asyncio, by uvloop if it is there)")
    parser.add_argument(
        "--name", metavar="NAME", action="append", default=[], help="a name by which it is reached without a secret"
    )
    parser.add_argument(
        "--cors", metavar="ORIGIN", action="append", default=[], help="web pages that may call: https://shop.example"
    )


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """The file."""
    parser.add_argument("file", metavar="FILE", nargs="?", default=FILE_NAME, help=f"(default: {FILE_NAME})")


def add_schema_options(parser: argparse.ArgumentParser) -> None:
    """There are none."""
    del parser


def run_serve(options: argparse.Namespace) -> int:
    """Serve until a signal. Returns the exit code: 0 after a drain that has stored all, 2 for what cannot be served."""
    try:
        settings = settings_from(options)
        environ, secret = _with_secret(settings, os.environ)
    except (Invalid, NotFound) as error:
        sys.stderr.write(told_error(error))
        return 2

    path = None if settings.uds is None else Path(settings.uds)
    listening = listen_at(settings.host, settings.port) if path is None else listen_at_path(path)
    url = url_of(listening)

    def say(report: ServedReport) -> None:
        token = f"The token: {secret}\n" if secret else ""
        sys.stderr.write(f"{harmless(report.line(url, settings.workers))}\n{token}")
        sys.stderr.flush()

    try:
        if settings.workers > 1:
            return _run_parent(settings, listening, environ, say)
        return _run_here(settings, listening, environ, say)
    finally:
        if path is not None:
            path.unlink(missing_ok=True)


def settings_from(options: argparse.Namespace) -> ServeSettings:
    """What is served: the options go before the configuration. Errors: `WrongConfiguration`; `Invalid` for options that
    are wrong, and without a configuration.
    """
    if options.target is not None and options.config is not None:
        raise Invalid("give a target or --config, not both")
    if options.target is None:
        settings = _configured(options.config or FILE_NAME, by_name=options.config is not None)
    else:
        settings = ServeSettings(target=options.target)
    given = {name: getattr(options, name) for name in ("host", "port", "workers", "uds")}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.uds is None and changed.keys() & {"host", "port"}:
        changed["uds"] = None
    if options.trio:
        changed["loop"] = "trio"
    settings = replace(settings, names=tuple(options.name), origins=tuple(options.cors), **changed)
    if not 0 <= settings.port < 2**16:
        raise Invalid("a port is a number from 0 to 65535", got=settings.port)
    if not 1 <= settings.workers <= WORKERS_MAX:
        raise Invalid(f"workers is a number of processes from 1 to {WORKERS_MAX}", got=settings.workers)
    if settings.configuration is not None:
        load_configuration(Path(settings.configuration)).with_workers(settings.workers)
    return settings


def _configured(name: str, *, by_name: bool) -> ServeSettings:
    path = Path(name)
    if not by_name and not path.exists():
        raise Invalid(f"name a runtime, as in `repertory serve shop:runtime`, or write {FILE_NAME}")
    service = load_configuration(path).values.service
    return ServeSettings(
        configuration=name,
        host=service.host,
        port=service.port,
        uds=None if service.uds is None else str(path.parent / Path(service.uds).expanduser()),
        workers=service.workers,
        loop=service.loop,
    )


def _with_secret(settings: ServeSettings, environ: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """The environment of processes that serve, and the secret that was made for it, where one is needed."""
    if not settings.is_reached_by_others or environ.get(TOKEN):
        return environ, None
    path = settings.configuration
    if path is not None and load_configuration(Path(path)).values.service.tokens:
        return environ, None
    made = secrets.token_urlsafe(_TOKEN_BYTES)
    return {**environ, TOKEN: made}, made


def _run_here(
    settings: ServeSettings, listening: socket, environ: Mapping[str, str], say: Callable[[ServedReport], object]
) -> int:
    from repertory.app.cli.targets import load_target  # loaded when used: they need an extra
    from repertory.app.serving.process import prepare_service, run_process

    try:
        prepared = prepare_service(settings, load_target, environ)
    except (Invalid, NotFound, ImportError) as error:
        sys.stderr.write(told_error(error))
        return 2
    return run_process(prepared, settings, listening, started=lambda: say(prepared.report()))


def _run_parent(
    settings: ServeSettings, listening: socket, environ: Mapping[str, str], say: Callable[[ServedReport], object]
) -> int:
    from repertory.app.serving.logging_setup import log_to_stderr
    from repertory.app.serving.parent import Parent

    path = settings.configuration
    log_to_stderr(LogsTable() if path is None else load_configuration(Path(path)).values.logs, many=True)
    return Parent(settings, listening, environ, say).run()


def run_check(options: argparse.Namespace) -> int:
    """Make everything that the configuration names, and say what would be served. Returns 0, or 2 with all faults."""
    from repertory.app.configuration.building import runtime_from, tokens_from  # loaded when used

    path = Path(options.file)
    try:
        file = load_configuration(path)
        find_modules_in(path.parent.absolute())
        sources = Sources(file, path.parent.absolute(), os.environ)
        tokens = tokens_from(sources)
        configured = runtime_from(sources, several=file.values.service.workers > 1)
    except (WrongConfiguration, NotFound) as error:
        sys.stderr.write(told_error(error))
        return 2
    service = file.values.service
    place = configured.runtime.sessions
    where = service.uds or f"{service.host}:{service.port}"
    told = {
        "address": f"{where} ({counted(service.workers, 'worker')}, {service.loop})",
        "callers": ", ".join(tokens)
        or ("one token" if _with_secret_for(service.host, service.uds) else "this machine"),
        "sessions": "in memory" if place is None else repr(place),
    }
    sys.stdout.write(f"{path} is right.\n")
    for name, text in told.items():
        sys.stdout.write(harmless(f"{name}: {text}\n"))
    for name, agent in configured.agents.items():
        sys.stdout.write(harmless(f"agent {name}: {_shown_agent(file.values.agents[name], agent)}\n"))
    return 0


def _with_secret_for(host: str, uds: str | None) -> bool:
    return ServeSettings(host=host, uds=uds).is_reached_by_others


def _shown_agent(table: AgentTable, agent: HostedAgent) -> str:
    """Its model, and the names of what it has."""
    from repertory.app.agent.shown_agents import model_named  # loaded when used

    had = {"tools": table.tools, "mcp": table.mcp, "memory": table.memory}
    parts = [f"{name} {', '.join(named)}" for name, named in had.items() if named]
    return "; ".join([str(model_named(agent.spec.model)), *parts])


def run_schema(options: argparse.Namespace) -> int:
    """Print the JSON schema of the configuration."""
    del options
    sys.stdout.write(f"{json.dumps(configuration_schema(), indent=2)}\n")
    return 0


def told_error(error: Exception) -> str:
    """What a command says of it: a line for each fault."""
    if isinstance(error, WrongConfiguration):
        lines = "".join(f"{fault}\n" for fault in error.faults)
        return harmless(f"{lines}repertory: {counted(len(error.faults), 'fault')} in the configuration\n")
    return harmless(f"repertory: {' '.join(str(error).split())}\n")
