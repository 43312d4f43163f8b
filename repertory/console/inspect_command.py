"""`repertory inspect`: pages over stored sessions, in a browser."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from collections.abc import Mapping
from pathlib import Path

import anyio
import msgspec

from repertory.console.places import add_location_option, check_installed, existing_location
from repertory.errors import Invalid
from repertory.service.process.terminal_text import harmless

TOKEN = "REPERTORY_INSPECT_TOKEN"
"""The variable of the environment with the secret that browsers give once."""


def add_inspect_command(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = "Serve pages over stored sessions until Ctrl-C. Nothing can be changed unless that is allowed."
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODULE:RUNTIME",
        help="a program, whose agents' prompts, tools and models are shown beside what they said, and whose sessions"
        " unless a place is named; it is imported, and not started",
    )
    add_location_option(parser)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8400",
        help=f"the address (default: 127.0.0.1:8400); one that other machines reach needs a token: ${TOKEN}, or one"
        " that is made and printed",
    )
    parser.add_argument(
        "--name",
        "--host",
        metavar="NAME",
        dest="name",
        action="append",
        default=[],
        help="a name by which other machines reach it; may be given again",
    )
    parser.add_argument(
        "--prices",
        metavar="FILE",
        help="prices of a million input and output tokens by model id, or * for any other, as JSON, to show what turns"
        ' cost: {"*": [3, 15]}',
    )
    parser.add_argument("--allow-changes", action="store_true", help="allow to answer, fork, label, redact, and retry")
    parser.add_argument(
        "--answers-as",
        metavar="NAME",
        action="append",
        default=[],
        help="a name or role of the people at these pages, for questions with may_answer; may be given again",
    )
    parser.add_argument("--no-content", action="store_true", help="hide all that conversations say")
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run_inspect(options: argparse.Namespace) -> int:
    """Serve until a signal. Returns the exit code."""
    check_installed("the inspector", "inspect", "starlette", "jinja2", "h11")
    from repertory.inspector.server import serve_location
    from repertory.service.process.targets import load_target  # loaded when used: they need an extra

    def say(line: str) -> None:
        url = line.startswith("http")
        sys.stderr.write(
            f"{'The inspector is at ' if url else ''}{harmless(line)}{' (Ctrl-C ends it)' if url else ''}\n"
        )
        sys.stderr.flush()
        if url and options.open:
            webbrowser.open(line)

    prices: Mapping[str, tuple[float, float]] = {}
    if options.prices is not None:
        prices = _price_list(Path(options.prices).read_bytes(), options.prices)
    program = None if options.target is None else load_target(options.target)
    named = options.at is not None or options.database is not None
    own = None if program is None or named else program.sessions
    of_inspector = {
        "allow_changes": options.allow_changes,
        "content": not options.no_content,
        "token": os.environ.get(TOKEN) or None,
        "hosts": options.name,
        "agents": {} if program is None else program.agents,
        "prices": prices,
        "answers_as": options.answers_as,
    }
    anyio.run(serve_location, own or existing_location(options), options.listen, of_inspector, say)
    return 0


def _price_list(content: bytes, name: str) -> Mapping[str, tuple[float, float]]:
    try:
        return msgspec.json.decode(content, type=dict[str, tuple[float, float]])
    except msgspec.DecodeError as error:
        raise Invalid('not a table of prices such as {"*": [3, 15]}', file=name, cause=str(error)) from error
