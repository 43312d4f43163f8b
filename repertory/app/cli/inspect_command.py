"""`repertory inspect`: pages over stored sessions, in a browser."""

from __future__ import annotations

import argparse
import os
import sys
import webbrowser
from functools import partial

import anyio

from repertory.app.cli.listing import harmless
from repertory.app.cli.places import add_place, chosen_place

TOKEN = "REPERTORY_INSPECT_TOKEN"
"""The variable of the environment with the secret that browsers give once."""


def add_inspect_command(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.description = "Serve pages over stored sessions until Ctrl-C. Nothing can be changed unless that is allowed."
    add_place(parser)
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:8400",
        help=f"the address (default: 127.0.0.1:8400); one that other machines reach needs a token: ${TOKEN}, or one"
        " that is made and printed",
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="a name by which other machines reach it; may be given again",
    )
    parser.add_argument("--allow-changes", action="store_true", help="allow to fork, label, redact, and retry")
    parser.add_argument("--no-content", action="store_true", help="hide all that conversations say")
    parser.add_argument("--open", action="store_true", help="open it in the browser")


def run_inspect(options: argparse.Namespace) -> int:
    """Serve until a signal. Returns the exit code."""
    from repertory.app.inspector.server import serve_place  # loaded when used: it needs an extra

    def say(line: str) -> None:
        url = line.startswith("http")
        sys.stderr.write(
            f"{'The inspector is at ' if url else ''}{harmless(line)}{' (Ctrl-C ends it)' if url else ''}\n"
        )
        sys.stderr.flush()
        if url and options.open:
            webbrowser.open(line)

    serve = partial(
        serve_place,
        chosen_place(options),
        options.listen,
        say,
        allow_changes=options.allow_changes,
        content=not options.no_content,
        token=os.environ.get(TOKEN) or None,
        hosts=options.host,
    )
    anyio.run(serve)
    return 0
