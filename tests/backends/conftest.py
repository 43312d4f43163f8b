"""A bucket on loopback and tables of PostgreSQL, which the tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.objects.moto_s3 import moto_s3
from tests.backends.sessions.postgres_places import left_tables
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of moto's S3, which has a bucket named `bucket`."""
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture
def postgres_tables(postgres: PostgresServer, tmp_path: Path) -> Iterator[None]:
    """The tables of sessions in PostgreSQL for the test's folder, which were there before it."""
    del postgres
    with left_tables(tmp_path):
        yield
