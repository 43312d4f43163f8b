"""Writes docs/reference/commands.md: the help of every command, as the program prints it.

    .venv/bin/python scripts/command_reference.py

`tests/docs/test_commands.py` compares the page with what this would write.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/commands.md"
HEAD = """# Every command and its options

This page has the help of each command. [The command line](command-line.md) explains what they are for, with examples of
their output.
"""


def main() -> None:
    sys.path.insert(0, str(ROOT))
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """The whole page."""
    os.environ.update(COLUMNS="88", NO_COLOR="1")
    from repertory.console.main import build_parser

    sections = [f"## `{name}`\n\n```text\n{text.strip()}\n```\n" for name, text in helps(build_parser())]
    return "\n".join([HEAD, *sections])


def helps(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Each command with its help, a command before those below it."""
    yield parser.prog, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from helps(below)


if __name__ == "__main__":
    main()
