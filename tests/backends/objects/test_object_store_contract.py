"""Every object store keeps the contract, the fake ones included."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from pathlib import Path

import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.objects.files import FileObjectStore
from repertory.backends.objects.in_memory import MemoryObjectStore, ObjectShelf
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import Create, ObjectStore, Overwrite, Update
from repertory.errors import Invalid
from repertory.testing.cuts import Cuts
from repertory.testing.cutting_objects import CuttingObjectStore
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.object_contract import ObjectStoreContract
from tests.backends.objects.moto_s3 import BUCKET

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


class TestCuttingObjectStore(TestMemoryObjectStore):
    """While nothing is lost, the wrapper changes nothing."""

    def open_store(self, place: Path) -> ObjectStore:
        return CuttingObjectStore(super().open_store(place), Cuts())


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


KMS_KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


@pytest.mark.real_time
class TestS3ObjectStoreWithAKey(TestS3ObjectStore):
    """Versions are opaque, so a bucket whose ETags are no digests of the content changes nothing."""

    def open_store(self, place: Path) -> ObjectStore:
        return self.store(f"/{sha256(str(place).encode()).hexdigest()}/encrypted/", KMS_KEY)

    def store(self, prefix: str, kms_key_id: str | None) -> S3ObjectStore:
        aws = AwsSettings(endpoint_url=self._url)
        return S3ObjectStore(BUCKET, prefix, writer=f"writer-{next(_writers)}", aws=aws, kms_key_id=kms_key_id)

    @pytest.mark.anyio
    @pytest.mark.parametrize("kms_key_id", [KMS_KEY, "alias/sessions", None])
    async def test_every_put_names_the_key(self, kms_key_id: str | None) -> None:
        prefix = f"every-put-{next(_writers)}"
        store = self.store(prefix, kms_key_id)
        version = await store.put("created", b"one", Create())
        await store.put("updated", b"one", Create())
        await store.put("created", b"two", Update(version))
        await store.put("overwritten", b"three", Overwrite())
        await store.aclose()
        boto3 = pytest.importorskip("boto3")
        client = boto3.client("s3", endpoint_url=self._url)
        for key in ("created", "updated", "overwritten"):
            head = client.head_object(Bucket=BUCKET, Key=f"{prefix}/{key}")
            assert head.get("SSEKMSKeyId") == kms_key_id
            assert (head.get("ServerSideEncryption") == "aws:kms") == (kms_key_id is not None)

    def test_a_blank_key_is_invalid(self) -> None:
        with pytest.raises(Invalid, match="kms_key_id"):
            self.store("blank", " ")
