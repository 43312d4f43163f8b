"""Parts that commands have in common: places of sessions (`--at PLACE`), the forms of their names, and help texts."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict, TypeVar, cast

from repertory.errors import Invalid, NotFound

if TYPE_CHECKING:
    from repertory.app.sessions.encryption import SessionKeysLocation
    from repertory.app.sessions.sessions import SessionLocation
    from repertory.app.sessions.storages import Storage

T = TypeVar("T")


_OWN = "~/.repertory/sessions.db"
_CONFIGURED = f"$REPERTORY_AT, the sessions of repertory.toml in this folder, or {_OWN}"


def add_location_option(parser: argparse.ArgumentParser, default: str = _CONFIGURED) -> None:
    """Adds `--at`, and `--database` for a database alone."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--at",
        metavar="PLACE",
        type=checked_argument(location_named),
        help=f"where sessions are kept: {FORMS} (default: {default})",
    )
    where.add_argument("--database", metavar="FILE", help="short for --at FILE")
    parser.add_argument(
        "--keys",
        metavar="KEYS",
        type=checked_argument(keys_named),
        help=f"where the keys of encrypted sessions are: {KEY_FORMS} (default: $REPERTORY_KEYS, if it is set)",
    )


def existing_location(options: argparse.Namespace, *, new: bool = False) -> SessionLocation:
    """The place that is named, or that of `$REPERTORY_AT`, of the configuration in this folder, or the default.

    Errors: `NotFound` for a file or folder that was named and is not there, unless it may be `new`; those of the
    configuration.
    """
    location = None
    if options.at is None and options.database is None:
        location = _location_around()
        if location is None:
            return chosen_location(options)
        options.at = location
    location = chosen_location(options)
    path = (
        location.key.partition(", encrypted by ")[0]
        .removeprefix("journals:")
        .removeprefix("snapshots:")
        .removeprefix("files:")
    )
    if not new and os.path.isabs(path) and not os.path.exists(path):
        raise NotFound("there are no sessions: look at the name of the place", place=path)
    return location


def _location_around() -> SessionLocation | None:
    if named := os.environ.get("REPERTORY_AT"):
        return location_named(named)
    path = Path("repertory.toml")
    if not path.is_file():
        return None
    from repertory.service.configuration.building import location_from  # loaded when used
    from repertory.service.configuration.sources import Sources, load_configuration

    return location_from(Sources(load_configuration(path), path.parent.absolute(), os.environ))


def chosen_location(options: argparse.Namespace) -> SessionLocation:
    """The place that `--at` or `--database` names, or the default one, with the keys that `--keys` names, or else the
    environment for a place that can be encrypted.
    """
    if options.at is not None:
        location = cast("SessionLocation", options.at)
    else:
        from repertory.app.sessions.sessions import SQLiteSessions  # each place is loaded when it is named

        location = SQLiteSessions(options.database)
    named = os.environ.get("REPERTORY_KEYS")
    if options.keys is None and named and hasattr(location, "encryption"):
        return with_keys(location, keys_named(named))
    return with_keys(location, options.keys)


KEY_FORMS = "a folder, or kms:KEY,FOLDER"
"""The forms of a place of keys, for help texts."""


def with_keys(location: SessionLocation, keys: SessionKeysLocation | None) -> SessionLocation:
    """The same place, with its encryption. Errors: `Invalid` for one that cannot be encrypted."""
    if keys is None:
        return location
    if hasattr(location, "encryption"):
        cast("_Encrypted", location).encryption = keys
    else:
        text = "only SQLite, PostgreSQL and journals are encrypted: other programs read these sessions as plain text"
        raise Invalid(text, place=location.key)
    return location


class _Encrypted(Protocol):
    encryption: SessionKeysLocation | None


def keys_named(text: str) -> SessionKeysLocation:
    """The place of keys of this name. Errors: `Invalid` listing the forms."""
    from repertory.app.sessions.keys import KmsKeys, LocalKeys  # loaded when used

    if text.startswith("kms:"):
        key_id, _, folder = text.removeprefix("kms:").rpartition(",")
        if not key_id or not folder:
            raise Invalid(f"a place of keys is {KEY_FORMS}", got=text)
        return KmsKeys(key_id, folder)
    master = os.environ.get("REPERTORY_MASTER_KEY")
    try:
        return LocalKeys(text, master_key=bytes.fromhex(master) if master else None)
    except ValueError as error:
        if isinstance(error, Invalid):
            raise
        raise Invalid("REPERTORY_MASTER_KEY is 32 bytes in hexadecimal") from error


class ParserTexts(TypedDict):
    """The texts of a command's parser."""

    help: str
    description: str
    epilog: str
    formatter_class: type[argparse.HelpFormatter]


def with_examples(about: str, examples: str, command: str = "sessions") -> ParserTexts:
    """The texts of one command of `repertory sessions` or another group. `examples`: one a line, without the group."""
    lines = "\n".join(f"  repertory {command} {line}" for line in examples.splitlines())
    return {
        "help": about,
        "description": f"{about[0].upper()}{about[1:]}.",
        "epilog": f"examples:\n{lines}",
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }


def checked_argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """The reader of an argument, with `Invalid` raised as the error that argparse expects."""

    def convert(text: str) -> T:
        try:
            return read(text)
        except Invalid as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def check_installed(what: str, extra: str, *modules: str) -> None:
    """Errors: `ImportError` with the command that installs the extra, unless these modules are there."""
    if missing := [name for name in modules if find_spec(name) is None]:
        raise ImportError(f"{what} needs {' and '.join(missing)}: pip install 'repertory[{extra}]'")


FORMS = (
    "a database file, sqlite:FILE, journal:FOLDER, journal:s3://BUCKET/PREFIX, files:FOLDER, s3://BUCKET/PREFIX,"
    " snapshots:FOLDER, snapshots:s3://BUCKET/PREFIX, agentcore:MEMORY/ACTOR or postgresql://USER@HOST/DATABASE#SCHEMA"
)
"""The forms of a place, for help texts."""
_MEMORY = re.compile(r"((?:arn:.*:memory/)?[^/]+)/(.+)")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):(.*)", re.DOTALL)


def location_named(text: str) -> SessionLocation:
    """The place of this name. A name without a scheme is a database file. Errors: `Invalid` listing the forms."""
    if text.startswith("s3://"):
        from repertory.app.sessions.documented import S3Sessions

        return S3Sessions(*_bucket(text))
    if text.startswith(("postgresql://", "postgres://")):
        from repertory.app.sessions.postgres import PostgresSessions

        dsn, _, schema = text.partition("#")
        return PostgresSessions(dsn, schema=schema) if schema else PostgresSessions(dsn)
    match _SCHEME.fullmatch(text):
        case None if text:
            from repertory.app.sessions.sessions import SQLiteSessions

            return SQLiteSessions(text)
        case re.Match() as found if found[2]:
            return _of_scheme(found[1], found[2], text)
        case _:
            raise Invalid(f"a place of sessions is {FORMS}", got=text)


def _of_scheme(scheme: str, rest: str, text: str) -> SessionLocation:
    match scheme:
        case "sqlite":
            from repertory.app.sessions.sessions import SQLiteSessions

            return SQLiteSessions(rest)
        case "journal":
            from repertory.app.sessions.storages import JournalSessions

            return JournalSessions(_storage(rest))
        case "snapshots":
            from repertory.app.sessions.snapshots import SnapshotSessions

            return SnapshotSessions(_storage(rest))
        case "files":
            from repertory.app.sessions.documented import FileSessions

            return FileSessions(rest)
        case "agentcore" if found := _MEMORY.fullmatch(rest):
            from repertory.bedrock.agentcore import AgentCoreMemorySessions

            return AgentCoreMemorySessions(found[1], found[2])
        case _:
            raise Invalid(f"a place of sessions is {FORMS}", got=text)


def _storage(rest: str) -> Storage:
    from repertory.app.sessions.storages import FileStorage, S3Storage

    return S3Storage(*_bucket(rest)) if rest.startswith("s3://") else FileStorage(rest)


def _bucket(url: str) -> tuple[str, str]:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket:
        raise Invalid("a bucket has a name: s3://BUCKET/PREFIX", got=url)
    return bucket, prefix.strip("/")
