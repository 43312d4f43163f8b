"""What the tests of stores share: a bucket on loopback, and credentials that lead nowhere else."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.backends.objects.moto_s3 import moto_s3


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of moto's S3, which has a bucket named `bucket`."""
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.fixture
def aws_keys(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> pytest.MonkeyPatch:
    """An AWS environment of the test's own: made-up keys and a region, no files, no metadata service, no proxies."""
    for name in os.environ:
        if name.startswith("AWS_") or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    folder = tmp_path_factory.mktemp("aws")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "no-credentials"))
    return monkeypatch
