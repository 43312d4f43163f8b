"""Searches lines for a regular expression, in its own process with a time limit.

A pattern may run for ever (`(a+)+$`), and Python's matcher neither stops nor lets other threads run meanwhile: so it
runs where it can be killed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import partial

from repertory.backends.this_machine import python_command
from repertory.backends.worker_threads import run_in_thread
from repertory.errors import Failed, Invalid, LimitReached, Unavailable

SEARCH_TIMEOUT_S = 2.0
PATTERN_CHARS_MAX = 1_000
_SPECIAL = frozenset(".^$*+?{}[]\\|()")
_SCRIPT = """
import json, re, sys
asked = json.load(sys.stdin.buffer)
try:
    pattern = re.compile(asked["pattern"])
except (re.error, OverflowError, RecursionError) as error:
    print(json.dumps({"wrong": str(error)}))
else:
    print(json.dumps({"found": [at for at, line in enumerate(asked["lines"]) if pattern.search(line)]}))
"""


def is_plain(pattern: str) -> bool:
    """True if the pattern has no special characters, so that a text search is enough."""
    return _SPECIAL.isdisjoint(pattern)


async def search_lines(pattern: str, lines: Sequence[str], timeout_s: float = SEARCH_TIMEOUT_S) -> list[int]:
    """The numbers of the lines that match, by `re.search`. Cancellation waits for the time limit at most.

    Errors: `Invalid` for a malformed or too long pattern, `LimitReached` when the time is up, `Unavailable` when the
    system starts no more processes, `Failed` where this program cannot start Python.
    """
    if len(pattern) > PATTERN_CHARS_MAX:
        raise Invalid("the pattern is too long", characters=len(pattern), most=PATTERN_CHARS_MAX)
    python = python_command()
    if python is None:
        raise Failed("regular expressions cannot be searched for here; give a plain text")
    return await run_in_thread(partial(_search, python, pattern, lines, timeout_s))


def _search(python: str, pattern: str, lines: Sequence[str], timeout_s: float) -> list[int]:
    asked = json.dumps({"pattern": pattern, "lines": list(lines)}).encode()
    command = [python, "-I", "-S", "-c", _SCRIPT]
    try:
        ended = subprocess.run(command, input=asked, capture_output=True, timeout=timeout_s, check=True)
    except subprocess.TimeoutExpired as error:
        raise LimitReached(
            "the pattern takes too long; use a simpler one, or a plain text", seconds=timeout_s
        ) from error
    except OSError as error:
        raise Unavailable("no process could be started to search with; try again", cause=str(error)) from error
    except subprocess.CalledProcessError as error:
        raise Failed("regular expressions cannot be searched for here; give a plain text") from error
    answer = json.loads(ended.stdout)
    if "wrong" in answer:
        raise Invalid("this is no regular expression", pattern=pattern[:200], why=answer["wrong"])
    return answer["found"]
