"""The example worker with a model that does what it is told.

`python -m tests.app.embedding.embedding_worker FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from examples.worker_trio import work
from tests.worker.obedient_model import ObedientModel

if __name__ == "__main__":
    trio.run(work, Path(sys.argv[1]), ObedientModel())
