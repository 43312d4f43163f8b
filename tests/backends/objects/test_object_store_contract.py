"""Every object store keeps the contract, the fake ones included."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest
from moto_s3 import BUCKET

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import ObjectStore
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.object_contract import ObjectStoreContract

_writers = count()


class _NoChance:
    def random(self) -> float:
        return 0.5


class TestMemoryObjectStore(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def shelves(self) -> None:
        self._shelves: dict[Path, ObjectShelf] = {}

    def open_store(self, place: Path) -> ObjectStore:
        return MemoryObjectStore(self._shelves.setdefault(place, ObjectShelf()))


class TestFaultyObjectStore(TestMemoryObjectStore):
    """Without faults, the wrapper changes nothing."""

    def open_store(self, place: Path) -> ObjectStore:
        return FaultyObjectStore(super().open_store(place), _NoChance(), ObjectFaults())


@pytest.mark.real_time
class TestFileObjectStore(ObjectStoreContract):
    def open_store(self, place: Path) -> ObjectStore:
        return FileObjectStore(place / "home" / "objects")


@pytest.mark.real_time
class TestS3ObjectStore(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def service(self, s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
        self._url = s3_url

    def open_store(self, place: Path) -> ObjectStore:
        """A place is a prefix in the bucket, which every test shares."""
        prefix = f"/{sha256(str(place).encode()).hexdigest()}/objects/"
        return S3ObjectStore(BUCKET, prefix, writer=f"writer-{next(_writers)}", aws=AwsSettings(endpoint_url=self._url))
