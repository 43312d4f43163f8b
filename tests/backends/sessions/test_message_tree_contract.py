"""The documented layout keeps the contract of session stores: in memory, in files and on S3."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import SessionStore
from repertory.backends.sessions.documents.folder_store import FolderSessionStore
from repertory.backends.sessions.documents.journal import TreeSettings
from repertory.backends.sessions.documents.store import MessageTreeStore
from repertory.backends.sessions.liveness import LockedFile, TimeToLive
from repertory.testing.counting_objects import CountingObjectStore
from repertory.testing.session_contract import SessionStoreContract
from tests.backends.objects.moto_s3 import BUCKET, moto_s3
from tests.backends.sessions.log_places import folder_store


class TestTreeInMemory(SessionStoreContract):
    settings = TreeSettings()

    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, ObjectShelf] = {}

    def open_store(self, place: Path, owner: str) -> SessionStore:
        self._counting = CountingObjectStore(MemoryObjectStore(self._shelves.setdefault(place, ObjectShelf())))
        life = TimeToLive(time.time, 10.0)
        return MessageTreeStore(
            self._counting, owner=owner, life=life, wall=time.time, entropy=os.urandom, settings=self.settings
        )

    async def work_done(self, store: SessionStore) -> int:
        return self._counting.listed + self._counting.requests.total()


class TestTreeWithHeads(TestTreeInMemory):
    """What a bucket is given: opening from one object, as long as it says what the documents say."""

    settings = TreeSettings(keep_heads=True)


@pytest.mark.real_time
class TestDocumentsInAFolder(SessionStoreContract):
    """With a log beside them."""

    def open_store(self, place: Path, owner: str) -> FolderSessionStore:
        return folder_store(place / "home" / "sessions", owner)


@pytest.mark.real_time
class TestTreeInFiles(SessionStoreContract):
    def open_store(self, place: Path, owner: str) -> SessionStore:
        root = place / "home" / "sessions"
        return MessageTreeStore(
            FileObjectStore(root),
            owner=owner,
            life=LockedFile(root / "repertory-owners", owner),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(),
        )


@pytest.fixture(scope="module")
def tree_s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto_s3(tmp_path_factory.mktemp("moto") / "log") as url:
        yield url


@pytest.mark.real_time
class TestTreeOnS3(SessionStoreContract):
    @pytest.fixture(autouse=True)
    def bucket(self, tree_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._aws = AwsSettings(region_name="us-east-1", endpoint_url=tree_s3_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")

    def open_store(self, place: Path, owner: str) -> SessionStore:
        return MessageTreeStore(
            S3ObjectStore(BUCKET, f"trees{place}".replace("[", "-").replace("]", "-"), writer=owner, aws=self._aws),
            owner=owner,
            life=TimeToLive(time.time, 30.0),
            wall=time.time,
            entropy=os.urandom,
            settings=TreeSettings(keep_heads=True),
        )
