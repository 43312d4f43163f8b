"""The address of a PostgreSQL database: a connection string of libpq with the login, and its name without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from socket import SOCK_STREAM
from typing import Final

import anyio

from repertory.core.origins import is_address
from repertory.errors import Invalid

_OPTION: Final = re.compile(r'invalid connection option "(\w+)"')
_DEFAULTS: Final = {
    "target_session_attrs": "read-write",
    "fallback_application_name": "repertory",
    "client_encoding": "UTF8",
}


@dataclass(frozen=True, slots=True, repr=False)
class PostgresAddress:
    """A parsed connection string. Its `repr` and `where` never show a password."""

    settings: Mapping[str, str]
    """The parameters of libpq, by name."""

    def __repr__(self) -> str:
        return f"PostgresAddress({self.name!r})"

    @property
    def where(self) -> dict[str, object]:
        """Host, port, database and user, for the fields of errors."""
        settings = self.settings
        host = settings.get("host") or settings.get("hostaddr") or os.environ.get("PGHOST") or "local socket"
        user = settings.get("user") or os.environ.get("PGUSER")
        database = settings.get("dbname") or os.environ.get("PGDATABASE") or user
        port = settings.get("port") or os.environ.get("PGPORT") or "5432"
        return {"host": host, "port": port, "database": database, "user": user}

    @property
    def name(self) -> str:
        """The address in one line, the same for every way to write it."""
        where = self.where
        user = "" if where["user"] is None else f"{where['user']}@"
        service = f"?service={self.settings['service']}" if "service" in self.settings else ""
        return f"postgresql://{user}{where['host']}:{where['port']}/{where['database'] or ''}{service}"


def postgres_address(dsn: object) -> PostgresAddress:
    """The address in a URL (`postgresql://...`) or in a string of keywords (`host=... dbname=...`).

    Errors: `Invalid`, which does not repeat the string, since it may hold a password; `ImportError` naming the extra.
    """
    try:
        from psycopg import Error  # Loaded when used: it is an extra.
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise ImportError(f"PostgreSQL needs psycopg ({error}): pip install 'repertory[postgres]'") from error
    if not isinstance(dsn, str):
        raise Invalid("dsn is a string: postgresql://USER@HOST:PORT/DATABASE", got=type(dsn).__name__)
    try:
        found = {key: str(value) for key, value in conninfo_to_dict(dsn).items() if value is not None}
    except Error as error:
        # What libpq says may repeat a part of the string, so only what names a keyword is shown.
        text = "dsn is no connection string: write postgresql://USER@HOST:PORT/DATABASE, or host=... dbname=..."
        known = _OPTION.search(str(error))
        raise Invalid(text, **({"option": known[1]} if known else {})) from None
    return PostgresAddress(found)


async def conninfo_of(address: PostgresAddress) -> str:
    """The string to connect with, with every host name resolved, since libpq would block the event loop for that.

    Errors: `OSError` when no name can be resolved.
    """
    from psycopg.conninfo import make_conninfo  # Loaded when used: it is an extra.

    settings = {**_DEFAULTS, **address.settings}
    hosts = settings.get("host") or os.environ.get("PGHOST") or ""
    if hosts and "hostaddr" not in settings:
        settings |= await _resolved(
            hosts.split(","), (settings.get("port") or os.environ.get("PGPORT") or "").split(",")
        )
    return make_conninfo("", **settings)


async def _resolved(hosts: list[str], ports: list[str]) -> dict[str, str]:
    found: list[tuple[str, str, str]] = []
    failed: OSError | None = None
    for index, host in enumerate(hosts):
        port = ports[index] if len(ports) == len(hosts) else ports[0]
        if not host or host.startswith(("/", "@")) or is_address(host):
            found.append((host, host if is_address(host) else "", port))
            continue
        try:
            # Both the name and its addresses are given to libpq: it connects by address, and checks certificates by
            # name.
            infos = await anyio.getaddrinfo(host, None, type=SOCK_STREAM)
        except OSError as error:
            failed = error
            continue
        except UnicodeError as error:
            failed = OSError(f"no name of a host: {error}")
            continue
        found += [(host, str(address), port) for address in dict.fromkeys(info[4][0] for info in infos)]
    if not found and failed is not None:
        raise failed
    host, hostaddr, port = (",".join(column) for column in zip(*found, strict=True))
    return {"host": host, "hostaddr": hostaddr, **({"port": port} if port.strip(",") else {})}
