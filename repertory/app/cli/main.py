"""The command line: `repertory chat`, `repertory sessions ...`, `repertory memory ...` and `repertory migrate`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from repertory.app.cli.listing import harmless
from repertory.app.cli.memory_commands import add_memory_commands, run_memory_command
from repertory.app.cli.session_commands import add_commands, add_place, chosen_place, run_command
from repertory.errors import RepertoryError


def build_parser() -> argparse.ArgumentParser:
    """Every command and option, with its help."""
    parser = argparse.ArgumentParser(
        prog="repertory", description="Talk to agents, and manage their stored sessions and memories."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    chat = commands.add_parser("chat", help="talk to an agent in a conversation that is stored and resumed")
    chat.add_argument("--session", metavar="ID", help="the session id (default: chat; with --from, a new one)")
    chat.add_argument(
        "--from",
        dest="source",
        metavar="SESSION[@POSITION]",
        help="begin a new session with the messages of another one, up to a label or number (default: its end)",
    )
    chat.add_argument(
        "--model",
        metavar="MODEL",
        help="a provider, or provider:id, such as openai:gpt-5.4 (default: $REPERTORY_MODEL, or one whose key is set)",
    )
    chat.add_argument(
        "--offline", action="store_true", help="use a small rule-based model that needs no network and no key"
    )
    chat.add_argument(
        "--files", metavar="FOLDER", help="the folder that the file tools may use (default: ~/.repertory/files)"
    )
    add_place(chat)
    add_commands(commands.add_parser("sessions", help="list, search, fork, redact, repair and delete stored sessions"))
    migrate = commands.add_parser("migrate", help="change programs of the Strands Agents SDK into programs of this one")
    migrate.add_argument("paths", metavar="PATH", nargs="+", help="a program, or a folder of them")
    migrate.add_argument("--check", action="store_true", help="change nothing, and say what would be changed")
    add_memory_commands(commands.add_parser("memory", help="search, add and erase what agents remember"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0 done, 1 it failed, 2 wrong usage or no model."""
    options = build_parser().parse_args(arguments)
    logging.getLogger("repertory").addHandler(logging.NullHandler())  # commands report their failures themselves
    _take_any_text()
    try:
        return _run(options)
    except BrokenPipeError:
        # The reader has closed the pipe. The flush at exit must not fail as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (RepertoryError, ImportError, OSError) as error:
        print(harmless(f"repertory: {error}"), file=sys.stderr)
        return 1


def _take_any_text() -> None:
    """Neither characters that the terminal's encoding lacks nor undecodable input raise an error."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def _run(options: argparse.Namespace) -> int:
    if options.command == "chat":
        from repertory.app.cli.chat import ChatSettings, run_chat  # loaded when used

        settings = ChatSettings(
            session_id=options.session,
            source=options.source,
            model=options.model,
            offline=options.offline,
            folder=Path(options.files).expanduser() if options.files else None,
            place=chosen_place(options),
        )
        return run_chat(settings, os.environ)
    if options.command == "migrate":
        # Its package stands above this one.
        return int(import_module("repertory.app.strands.migration").migrate(options.paths, check=options.check))
    if options.command == "memory":
        return run_memory_command(options)
    return run_command(options)


if __name__ == "__main__":
    sys.exit(main())
