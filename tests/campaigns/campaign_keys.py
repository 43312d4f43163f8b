"""Random edits of everything that is stored of encrypted sessions, and of the documents of their keys."""

from __future__ import annotations

import random
import time
from pathlib import Path

import anyio

from repertory import InMemoryStorage, LocalKeys
from tests.campaigns.campaigns import Report
from tests.simulation.hostile_keys import MASTER, fill_files, walk_file, walk_keys


def hostile_keys(rng: random.Random, folder: Path, seconds: float) -> Report:
    """One database and one place of keys, edited again and again. Nothing but what was said there comes out."""
    report, end = Report(), time.monotonic() + seconds

    async def edit() -> None:
        await fill_files(folder)
        while not report.acknowledged or time.monotonic() < end:
            await walk_file(folder, rng, report, share=0.2)
            await walk_keys(LocalKeys(InMemoryStorage(), master_key=MASTER), rng, 40, report)

    anyio.run(edit, backend=rng.choice(("asyncio", "trio")))
    return report
