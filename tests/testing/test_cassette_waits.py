"""A program that reads on where it stopped when it was recorded is told so, and does not wait for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from repertory.errors import CassetteMismatch
from repertory.testing.cassette import Cassette

pytestmark = pytest.mark.anyio
CUT = {"status": 200, "headers": {}, "chunks": ["one", "two"], "cut": True}


@pytest.fixture(params=[{}, {"response": CUT}], ids=["before it began", "within it"])
def cassette(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cassette]:
    asked: dict[str, Any] = {"request": {"method": "POST", "url": "http://a.example/x", "json": {}}}
    path = tmp_path / "one.json"
    path.write_text(json.dumps({"version": 1, "interactions": [{**asked, **request.param}]}))
    with Cassette(path) as opened:
        yield opened
        opened.discard()


async def test_a_program_that_reads_on_is_told_where_it_stopped(cassette: Cassette) -> None:
    async with httpx2.AsyncClient(timeout=None, trust_env=False, verify=False) as client:
        with pytest.raises(CassetteMismatch, match="waits for more than it has read") as caught:
            await client.post("http://other.example/x", json={})
    assert str(cassette.mismatch) == str(caught.value)
