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
from repertory.backends.ports import Create, Expect, ObjectStep, ObjectStore, Overwrite, Put, StepsDone, Update
from repertory.backends.sessions.requests import carry_out
from repertory.errors import AlreadyExists, Invalid, PreconditionFailed, RepertoryError
from repertory.testing.cuts import Cuts
from repertory.testing.cutting_objects import CuttingObjectStore
from repertory.testing.faulty_objects import FaultyObjectStore, ObjectFaults
from repertory.testing.object_contract import ObjectStoreContract
from tests.backends.objects.moto_s3 import BUCKET

_writers = count()


class _NoChance:
    def random(self) -> float:
        return 0.5


class ObjectsAndSteps(ObjectStoreContract):
    """The contract, and steps: in one call where the store can do that, one by one elsewhere."""

    async def test_steps_are_carried_out_in_order_up_to_the_first_that_fails(self, tmp_path: Path) -> None:
        async with self.stores(tmp_path, tmp_path) as (one, two):
            old = await one.put("a/old", b"first", Create())
            done = await carry_out(
                two,
                [
                    Expect("a/new", None),
                    Expect("a/old", old),
                    Put("a/new", b"new", Create()),
                    Put("a/old", b"second", Update(old), lasting=False),
                    Put("b/c/other", b"other", Overwrite()),
                ],
            )
            assert done.error is None
            found = [await one.get(key) for key in ("a/new", "a/old", "b/c/other")]
            assert [each.body for each in found] == [b"new", b"second", b"other"]
            assert list(done.versions) == [None, old, *(each.version for each in found)]
            failing: list[tuple[ObjectStep, type[RepertoryError]]] = [
                (Expect("a/new", None), PreconditionFailed),
                (Expect("a/old", old), PreconditionFailed),
                (Expect("missing", old), PreconditionFailed),
                (Put("a/new", b"", Create()), AlreadyExists),
                (Put("a/old", b"", Update(old)), PreconditionFailed),
                (Put("a//b", b"", Overwrite()), Invalid),
            ]
            for number, (step, error) in enumerate(failing):
                before, after = Put(f"before-{number}", b"", Create()), Put(f"after-{number}", b"", Create())
                done = await carry_out(two, [before, step, after])
                assert isinstance(done.error, error)
                assert len(done.versions) == 1
                assert [info.key for info in await one.list(f"before-{number}")] == [before.key]
                assert list(await one.list(after.key)) == []
            assert [(await one.get(each)).body for each in ("a/new", "a/old")] == [b"new", b"second"]
            assert await carry_out(two, []) == StepsDone(versions=[])
            await two.aclose()
            assert isinstance((await carry_out(two, [Expect("a/new", None)])).error, Invalid)


class TestMemoryObjectStore(ObjectsAndSteps):
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
class TestFileObjectStore(ObjectsAndSteps):
    def open_store(self, place: Path) -> ObjectStore:
        return FileObjectStore(place / "home" / "objects")


@pytest.mark.real_time
class TestS3ObjectStore(ObjectsAndSteps):
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
