"""A bucket on loopback, which the tests of stores share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.objects.moto_s3 import moto_s3


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of moto's S3, which has a bucket named `bucket`."""
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url
