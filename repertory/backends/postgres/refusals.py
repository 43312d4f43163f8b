"""The errors of PostgreSQL as ours.

    try again        no connection, restart, shutdown, timeouts, deadlocks, no resources    StoreUnavailable
    change something password, database, rights, TLS, a replica, no PostgreSQL, too old     StoreFailed
    a human          the server found its own data damaged                                  Corrupt

A query's error has a code. A refused login has none in libpq, only a text, which is in the server's language: one that
is not known here counts as something that may pass, and the text is in the message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from repertory.errors import Corrupt, RepertoryError, StoreFailed, StoreUnavailable, Unwritable

_PASSING: Final = ("08", "40", "53", "57", "58")
"""Classes of codes: connection, transaction rolled back, resources, operator intervention, system error."""
LOCK_NOT_AVAILABLE: Final = "55P03"
READ_ONLY: Final = "25006"
UNDEFINED: Final = ("3F000", "42P01")
FORBIDDEN: Final = "42501"
_UNPREPARED: Final = ("26000", "42P05")
_DAMAGED: Final = "XX00"
_UNWRITABLE: Final = ("22", "54")

_LOGINS: Final = (
    (r"password authentication failed|no password supplied|SASL|password.*does not match", "the password is wrong"),
    (r"role .* does not exist|no such user", "there is no such user"),
    (r"database .* does not exist|no such database", "there is no such database: create it, or name another"),
    (r"pg_hba|authentication failed|not permitted to log in|permission denied", "the server does not let this user in"),
    (r"certificate|does not support SSL|SSL error|root.crt|sslrootcert|private key", "TLS could not be agreed on"),
    (r"invalid response to SSL|expected authentication request|unsupported frontend", "this is no PostgreSQL server"),
    (r"session is read-only|hot standby", "the server is a read-only replica"),
    (
        r"invalid .*(option|value)|definition of service|unrecognized configuration|unsupported startup",
        "a connection setting is refused",
    ),
)
_PASSES: Final = re.compile(
    r"starting up|shutting down|recovery mode|too many|remaining connection|time(d )?out|connection refused|unreachable"
    r"|no route to host|closed the connection",
    re.IGNORECASE,
)
"""Also where another of several hosts is a replica: it may be about to take over."""
_ADVICE: Final = {
    "the server is a read-only replica": "name the primary, or several hosts in the connection string",
    "TLS could not be agreed on": "check sslmode, sslrootcert, sslcert and sslkey",
}


def refused_login(text: str, where: Mapping[str, object]) -> RepertoryError:
    """The error for a connection that was not made, from what libpq says."""
    cause = " ".join(text.split())
    # Looked at first, since libpq joins what all hosts have said: one that is starting up decides, whatever the others
    # say.
    if not _PASSES.search(cause):
        for pattern, reason in _LOGINS:
            if re.search(pattern, cause, re.IGNORECASE):
                advice = _ADVICE.get(reason)
                return StoreFailed(f"{reason}: {advice}" if advice else reason, **where, cause=cause)
    return StoreUnavailable("the database could not be reached", **where, cause=cause)


def refused_query(code: str, text: str, where: Mapping[str, object]) -> RepertoryError:
    """The error for a statement that the server refused."""
    fields = {**where, "code": code, "cause": " ".join(text.split())}
    if code == READ_ONLY:
        return StoreFailed("the server is a read-only replica: name the primary", **fields)
    if code in UNDEFINED:
        return StoreFailed("the tables are gone: restore them, or open the store anew", **fields)
    if code == FORBIDDEN:
        return StoreFailed("the user lacks a right: grant it (docs/guides/sessions/postgres.md)", **fields)
    if code in _UNPREPARED:
        text = "another client's statements are met, as behind a pooler that shares connections out: say pooled=True"
        return StoreFailed(text, **fields)
    # XX000 is "internal error", which extensions raise for anything; the others of its class name damage.
    if code.startswith(_DAMAGED) and code != "XX000":
        return Corrupt("the server found its data damaged", **fields)
    if code.startswith(_PASSING) or code == LOCK_NOT_AVAILABLE:
        return StoreUnavailable("the database did not carry this out", **fields)
    if code.startswith(_UNWRITABLE):
        return Unwritable("the database cannot hold this", **fields)
    return StoreFailed("the database refused this", **fields)


def lost_connection(text: str, where: Mapping[str, object]) -> StoreUnavailable:
    """The error for a connection that broke: unknown whether the statement under way was carried out."""
    return StoreUnavailable("the connection to the database broke", **where, cause=" ".join(text.split()))
