"""Any position of a long journal in a database is found, however the rows of others lie between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from repertory.backends.ports import Batch
from repertory.backends.sessions.sqlite.store import SQLiteSessionStore
from repertory.testing.session_contract import grow, windowed

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.parametrize("between", [0, 3, 3000], ids=["alone", "beside others", "far apart"])
async def test_any_position_is_found_among_the_rows_of_others(tmp_path: Path, rng: random.Random, between: int) -> None:
    rows, others = windowed(400), grow(max(1, between))
    store = SQLiteSessionStore(tmp_path / "a.db", owner="one")
    lease, _ = await store.acquire("s")
    for number, start in enumerate(range(0, len(rows), 60)):
        await store.append([Batch(lease=lease, rows=rows[start : start + 60])])
        if between and number in (2, 5):
            other, _ = await store.acquire(f"other {number}")
            await store.append([Batch(lease=other, rows=others)])
    for seq in (1, 2, len(rows), *rng.sample(range(1, len(rows) + 1), 60)):
        assert list(await store.load_at("s", "default", seq)) == rows[rows[seq - 1].low - 1 : seq]
    await store.aclose()
