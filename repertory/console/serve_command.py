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

from repertory.console.places import check_installed, checked_argument
from repertory.core.plural import counted
from repertory.errors import Invalid
from repertory.service.configuration.decisions.tables import LogsTable, configuration_schema
from repertory.service.configuration.sources import FILE_NAME, Sources, find_modules_in, load_configuration
from repertory.service.process.listening import listen_at, listen_at_path, split_address, url_of
from repertory.service.process.settings import TOKEN, ServedReport, ServeSettings
from repertory.service.process.terminal_text import harmless

if TYPE_CHECKING:
    from repertory.app.embedding.hosted import HostedAgent
    from repertory.service.configuration.decisions.tables import AgentTable

WORKERS_MAX = 256
_DEFAULTS = ServeSettings()
_TOKEN_BYTES = 24


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the target and the address."""
    parser.add_argument(
        "target", metavar="MODULE:RUNTIME", nargs="?", help="a Runtime of a module, or a function that makes one"
    )
    parser.add_argument("--config", metavar="FILE", help=f"instead of a target: a configuration (default: {FILE_NAME})")
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=checked_argument(split_address),
        help=f"the address (default: {_DEFAULTS.host}:{_DEFAULTS.port}, port 0: any); one that other machines reach"
        f" needs tokens: [service.tokens], ${TOKEN}, or one that is made and printed",
    )
    parser.add_argument("--host", metavar="ADDRESS", help="the address of --listen alone")
    parser.add_argument("--port", metavar="PORT", type=int, help="the port of --listen alone")
    parser.add_argument("--uds", metavar="PATH", help="a Unix socket instead")
    parser.add_argument(
        "--workers", metavar="N", type=int, help="processes that share the socket and, by peers, the sessions"
    )
    parser.add_argument("--trio", action="store_true", help="run on trio (default: asyncio, by uvloop if it is there)")
    parser.add_argument(
        "--name", metavar="NAME", action="append", default=[], help="a name by which it is reached without a secret"
    )
    parser.add_argument("--no-index", dest="index", action="store_false", help="no page at / to talk to agents")
    parser.add_argument(
        "--cors", metavar="ORIGIN", action="append", default=[], help="web pages that may call: https://shop.example"
    )


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the file."""
    parser.add_argument("file", metavar="FILE", nargs="?", default=FILE_NAME, help=f"(default: {FILE_NAME})")
    parser.add_argument("--config", metavar="FILE", help="the same")


def add_schema_options(parser: argparse.ArgumentParser) -> None:
    """Add no options, since there are none."""
    del parser


def run_serve(options: argparse.Namespace) -> int:
    """Serve until a signal. Returns the exit code: 0 after a drain that has stored all, 2 for what cannot be served."""
    settings = settings_from(options)
    environ, secret = _with_secret(settings, os.environ)
    check_installed("repertory serve", "serve", "starlette", "h11")
    if settings.loop == "trio":
        check_installed("--trio", "trio", "trio")

    from repertory.cluster.wire.addresses import file_at, remove_file  # loaded when used

    path = None if settings.uds is None else Path(settings.uds)
    listening = listen_at(settings.host, settings.port) if path is None else listen_at_path(path)
    url, made = url_of(listening), None if path is None else file_at(path)

    def say(report: ServedReport) -> None:
        token = f"The token: {secret}\n" if secret else ""
        sys.stderr.write(f"{harmless(report.line(url, settings.workers))}\n{token}")
        sys.stderr.flush()

    try:
        if settings.workers > 1:
            return _run_parent(settings, listening, environ, say)
        return _run_here(settings, listening, environ, say)
    finally:
        if path is not None and made is not None:
            remove_file(path, made)  # Unless the next process listens there already.


def settings_from(options: argparse.Namespace) -> ServeSettings:
    """The settings: the options go before the configuration. Errors: `WrongConfiguration`; `Invalid` for options that
    are wrong, and without a configuration.
    """
    if options.target is not None and options.config is not None:
        raise Invalid("give a target or --config, not both")
    if options.target is None:
        settings = _configured(options.config or FILE_NAME, by_name=options.config is not None)
    else:
        settings = ServeSettings(target=options.target)
    if options.listen is not None:
        if (options.host, options.port) != (None, None):
            raise Invalid("--listen has both the address and the port", host=options.host, port=options.port)
        options.host, options.port = options.listen
    given = {name: getattr(options, name) for name in ("host", "port", "workers", "uds")}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.uds is None and changed.keys() & {"host", "port"}:
        changed["uds"] = None
    if options.trio:
        changed["loop"] = "trio"
    settings = replace(settings, names=tuple(options.name), origins=tuple(options.cors), index=options.index, **changed)
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
    from repertory.service.process.process import prepare_service, run_process
    from repertory.service.process.targets import load_target  # loaded when used: they need an extra

    prepared = prepare_service(settings, load_target, environ)
    return run_process(prepared, settings, listening, started=lambda: say(prepared.report()))


def _run_parent(
    settings: ServeSettings, listening: socket, environ: Mapping[str, str], say: Callable[[ServedReport], object]
) -> int:
    from repertory.service.process.logging_setup import log_to_stderr
    from repertory.service.process.parent import Parent

    path = settings.configuration
    log_to_stderr(LogsTable() if path is None else load_configuration(Path(path)).values.logs, many=True)
    return Parent(settings, listening, environ, say).run()


def run_check(options: argparse.Namespace) -> int:
    """Make everything that the configuration names, and say what would be served. Returns 0, or 2 with all faults."""
    from repertory.service.configuration.building import (  # loaded when used
        answer_links_from,
        runtime_from,
        tokens_from,
    )

    path = Path(options.config or options.file)
    file = load_configuration(path)
    find_modules_in(path.parent.absolute())
    sources = Sources(file, path.parent.absolute(), os.environ)
    tokens, _ = tokens_from(sources), answer_links_from(sources)
    service = file.values.service
    configured = runtime_from(sources, several=service.workers > 1)
    if file.values.queue is None:
        check_installed("repertory serve", "serve", "starlette", "h11")
    if service.loop == "trio":
        check_installed('loop = "trio"', "trio", "trio")
    sessions = configured.runtime.sessions
    where = service.uds or f"{service.host}:{service.port}"
    lines = {
        "address": f"{where} ({counted(service.workers, 'worker')}, {service.loop})",
        "callers": ", ".join(tokens)
        or ("one token" if ServeSettings(host=service.host, uds=service.uds).is_reached_by_others else "this machine"),
        "sessions": "in memory" if sessions is None else repr(sessions),
    }
    sys.stdout.write(f"{path} is right.\n")
    for name, text in lines.items():
        sys.stdout.write(harmless(f"{name}: {text}\n"))
    for name, agent in configured.agents.items():
        sys.stdout.write(harmless(f"agent {name}: {_agent_line(file.values.agents[name], agent)}\n"))
    return 0


def _agent_line(table: AgentTable, agent: HostedAgent) -> str:
    """The agent's model, and the names of what it has."""
    from repertory.app.agent.shown_agents import model_named  # loaded when used

    had = {"tools": table.tools, "mcp": table.mcp, "memory": table.memory}
    parts = [f"{name} {', '.join(named)}" for name, named in had.items() if named]
    return "; ".join([str(model_named(agent.spec.model)), *parts])


def run_schema(options: argparse.Namespace) -> int:
    """Print the JSON schema of the configuration."""
    del options
    sys.stdout.write(f"{json.dumps(configuration_schema(), indent=2)}\n")
    return 0
