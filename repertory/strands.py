"""The Strands Agents SDK's module paths and names, so that its programs run here.

`from repertory.strands import Agent` in the place of `from strands import Agent` is the whole migration of a program;
`python -m repertory.strands program.py` runs it as it is, and `import repertory.strands.install` as its first line
makes `import strands` mean this package. What the SDK has and is not here raises `ImportError`, which says what to use
instead.
"""

from __future__ import annotations

import sys

from repertory.compat.modules import mirror, run_program

__path__: list[str] = []  # Its modules lie in no folder: they are made when they are imported.

if __name__ == "__main__":
    run_program()
else:
    mirror(sys.modules[__name__])
