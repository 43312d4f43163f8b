"""The documented layout keeps the contract of session stores: in memory, in files and on S3."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
from repertory.backends.sessions.documents.folder_store import FolderSessionStore
from repertory.backends.sessions.liveness import TimeToLive
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.backends.sessions.bucket_places import bucket_store
from tests.backends.sessions.log_places import folder_store


class TestDocumentsInMemory(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, ObjectShelf] = {}

    def open_store(self, place: Path, owner: str) -> BucketSessionStore:
        self._counting = CountingObjectStore(MemoryObjectStore(self._shelves.setdefault(place, ObjectShelf(time.time))))
        return bucket_store(self._counting, owner)

    async def work_done(self, store: SessionStore) -> int:
        return self._counting.listed + self._counting.requests.total()


@pytest.mark.real_time
class TestDocumentsInAFolder(SessionStoreContract):
    """With a log beside them."""

    def open_store(self, place: Path, owner: str) -> FolderSessionStore:
        return folder_store(place / "home" / "sessions", owner)


@pytest.fixture(scope="module")
def tree_s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.mark.real_time
class TestDocumentsOnS3(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def bucket(self, tree_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._aws = AwsSettings(region_name="us-east-1", endpoint_url=tree_s3_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")

    def open_store(self, place: Path, owner: str) -> SessionStore:
        prefix = f"trees{place}".replace("[", "-").replace("]", "-")
        objects = S3ObjectStore(BUCKET, prefix, writer=owner, aws=self._aws)
        return bucket_store(objects, owner, life=TimeToLive(time.time, 30.0))
