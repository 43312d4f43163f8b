"""A run of tests in which a few that failed beside others are tried once more, alone.

    python -m tests.second_try --alternate-loops tests/core

On a busy machine one test in some ten thousand fails now and then: a race, in the package or in the test. One of those
should be seen, and should not take 18,000 results with it. So up to `FORGIVEN` tests that failed run again, one after
the other. The run passes if they do, and its last lines name them, with what to do. More failures, a test that fails
again, and a run that broke off are failures.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FORGIVEN = 2
FAILED = 1
"""The exit code of pytest that says that tests failed. Others say that the run itself did."""
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def verdict(code: int, failed: Sequence[str], code_alone: int | None) -> tuple[int, str]:
    """The exit code of the whole, and what to print at its end.

    `code` and `failed` are of the first run, `code_alone` of the second one; None if there was none.
    """
    if code != FAILED or code_alone is None:
        return code, ""
    if code_alone:
        return code_alone, "second try: failed again, alone: " + ", ".join(failed)
    lines = [f"second try: PASSED ALONE, FAILED BESIDE OTHERS: {test}" for test in failed]
    return 0, "\n".join([*lines, "second try: that is a race: find it, its traceback stands above"])


def main(arguments: Sequence[str]) -> int:
    pytest = [sys.executable, "-m", "pytest"]
    code = subprocess.run([*pytest, "--cache-clear", *arguments], check=False).returncode
    failed: list[str] = list(json.loads(LAST_FAILED.read_text())) if code == FAILED and LAST_FAILED.exists() else []
    alone: int | None = None
    if 0 < len(failed) <= FORGIVEN and all("::" in each for each in failed):  # A file alone: it could not be read.
        kept = [each for each in arguments if each.startswith("--alternate")]
        alone = subprocess.run([*pytest, "-n", "0", *kept, *failed], check=False).returncode
    code, text = verdict(code, failed, alone)
    if text:
        print(text, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
