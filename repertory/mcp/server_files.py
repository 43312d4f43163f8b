"""Files of MCP servers as desktop programs keep them, `{"mcpServers": {"name": {"command": ...}}}`, as settings of
clients.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec import Struct, ValidationError, convert

from repertory.errors import Invalid, RepertoryError
from repertory.logs import WARNING, note
from repertory.mcp.source import HTTPServer, StdioServer

if TYPE_CHECKING:
    from repertory.mcp.source import TransportFactory

_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")
_NOT_IN_A_PREFIX = re.compile(r"[^A-Za-z0-9_-]")
_log = logging.getLogger("repertory.tools")


class _Server(Struct, frozen=True, kw_only=True):
    """The keys of a server, and the types of their values."""

    command: str | None = None
    args: list[str] = []
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] | None = None
    transport: str | None = None
    auth: object = None
    disabled: bool | None = None
    continue_on_error: bool | None = None
    prefix: str | None = None
    tool_filters: dict[str, list[object] | None] | None = None
    startup_timeout: float = 30
    application_name: str | None = None
    application_version: str | None = None


_KEYS = frozenset(_Server.__struct_fields__)
T = TypeVar("T")


def clients_of(
    config: str | Path | Mapping[str, Any],
    make: Callable[[dict[str, Any]], T],
    continue_on_error: bool,
    prefix_with_server_name: bool,
) -> list[T]:
    """The objects that `make` returns for the arguments of `MCPClient`, one for each server that is not disabled; see
    `MCPClient.load_servers`.
    """
    clients: list[T] = []
    for name, server in _servers(config).items():
        if not isinstance(server, Mapping):
            raise Invalid(f"server '{name}' configuration must be a dictionary", got=type(server).__name__)
        given = cast("Mapping[str, Any]", server)
        unknown = sorted(given.keys() - _KEYS)
        if unknown:
            note(_log, WARNING, "unknown keys of an MCP server are ignored", server=name, keys=unknown)
        if given.get("disabled", False):
            continue
        go_on = bool(given.get("continue_on_error", continue_on_error))
        try:
            settings = _settings(name, cast("dict[str, Any]", _filled(given)), prefix_with_server_name)
            clients.append(make({**settings, "continue_on_error": go_on}))
        except RepertoryError as error:
            if not go_on:
                raise
            note(_log, WARNING, "an MCP server is left out", error, server=name)
    return clients


def _servers(config: str | Path | Mapping[str, Any]) -> Mapping[str, object]:
    read: object = config
    if isinstance(config, str | Path):
        path = Path(str(config).removeprefix("file://")).expanduser()
        if not path.exists():
            msg = f"MCP configuration file not found: {path}"
            raise FileNotFoundError(msg)
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise Invalid("an MCP config is a file of JSON", path=str(path), cause=str(error)) from error
    elif not isinstance(cast("object", config), Mapping):
        raise Invalid("config must be a file path string or a dictionary", got=type(config).__name__)
    named = cast("Mapping[str, object]", read) if isinstance(read, Mapping) else {"mcpServers": None}
    servers = named.get("mcpServers", named)
    if not isinstance(servers, Mapping):
        raise Invalid("an MCP config must be a JSON object mapping server names to configs")
    return cast("Mapping[str, object]", servers)


def _settings(name: str, server: dict[str, Any], prefixed: bool) -> dict[str, Any]:
    try:
        convert(server, _Server)
    except (ValidationError, UnicodeEncodeError) as error:
        raise Invalid("a server has a value of the wrong type", server=name, cause=str(error)) from error
    settings: dict[str, Any] = {
        "transport": _transport(name, server),
        "name": name,
        "startup_timeout_s": server.get("startup_timeout", 30),
        "tool_filters": _filters(name, server.get("tool_filters")),
        "prefix": server.get("prefix", _NOT_IN_A_PREFIX.sub("_", name) if prefixed else None),
        "application_name": server.get("application_name", name),
        "application_version": server.get("application_version"),
    }
    if isinstance(settings["transport"], HTTPServer):
        del settings["transport"]
        settings |= {key: server[key] for key in ("url", "headers", "auth") if server.get(key) is not None}
    return settings


def _transport(name: str, server: Mapping[str, Any]) -> StdioServer | HTTPServer | TransportFactory:
    command, url, kind = server.get("command"), server.get("url"), server.get("transport")
    if kind is None and command and url:
        raise Invalid("a server has both 'command' and 'url': set 'transport', or remove one", server=name)
    if kind is None and not command and not url:
        raise Invalid("a server must include either 'command' (stdio) or 'url' (http)", server=name)
    kind = kind or ("stdio" if command else "streamable-http")
    if kind not in ("stdio", "streamable-http", "sse"):
        raise Invalid(f"unsupported transport type '{kind}'", server=name)
    needed = "command" if kind == "stdio" else "url"
    if not server.get(needed):
        raise Invalid(f"{kind} transport requires '{needed}'", server=name)
    if kind != "streamable-http" and server.get("auth"):
        raise Invalid("there is 'auth' for streamable-http transport only", server=name)
    if server.get("auth") is not None and not isinstance(server["auth"], Mapping):
        raise Invalid("'auth' must be an object with 'client_id' and 'client_secret'", server=name)
    if kind == "sse":
        return lambda: _sse(cast("str", url), server.get("headers"))
    if kind == "streamable-http":
        return HTTPServer(url=cast("str", url))
    cwd = server.get("cwd")
    return StdioServer(
        command=os.path.expanduser(cast("str", command)),
        args=tuple(server.get("args", ())),
        env=server.get("env"),
        cwd=os.path.expanduser(cwd) if cwd else None,
    )


def _sse(url: str, headers: dict[str, Any] | None) -> Any:
    from mcp.client.sse import sse_client  # with the connection

    return sse_client(url, headers=headers)


def _filters(name: str, given: Mapping[str, Any] | None) -> dict[str, list[re.Pattern[str]]] | None:
    """The filters, whose texts are regular expressions that match the start of the server's names."""
    filters: dict[str, list[re.Pattern[str]]] = {}
    for key in ("allowed", "rejected"):
        if given and given.get(key) is not None:
            filters[key] = [_pattern(name, key, each) for each in given[key]]
    return filters or None


def _pattern(name: str, key: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise Invalid(f"invalid regex in tool_filters.{key}: '{text}': {error}", server=name) from error


def _filled(value: object) -> object:
    """The value with `${VAR}` and `${env:VAR}` filled in from the environment, in all of its texts."""
    if isinstance(value, str):
        return _VARIABLE.sub(_variable, value)
    if isinstance(value, list):
        return [_filled(each) for each in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {key: _filled(each) for key, each in cast("Mapping[str, object]", value).items()}
    return value


def _variable(match: re.Match[str]) -> str:
    name = match.group(1)
    if name not in os.environ:
        raise Invalid(f"environment variable '{name}' is not set")
    return os.environ[name]
