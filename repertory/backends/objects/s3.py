"""Objects in an S3 bucket, or in any service with S3's protocol and its conditional writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from repertory.backends.aws_clients import AwsService, AwsSettings, ThreadedClient, aws_clients
from repertory.backends.aws_errors import (
    EXPIRED,
    OF_SESSIONS,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    AwsErrors,
    PageTokens,
    Refusal,
    RetryPolicy,
    aws_client_errors,
    with_retries,
)
from repertory.backends.loop_clients import LoopClients
from repertory.backends.ports import Condition, Create, ObjectInfo, Overwrite, StoredObject, Update
from repertory.core.ids import KEY_BYTES_MAX, check_id, check_key, check_kms_key, check_prefix, is_key
from repertory.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    StoreLimitReached,
    StoreUnavailable,
)

PAGE_KEYS_MAX = 1000
"""Keys that one list request asks for: S3's maximum."""

_SERVICE = AwsService(
    name="s3",
    wanted_by="S3 storage",
    extra="s3",
    answer_bytes_max=None,  # What was put can be read.
    # Bodies are then signed, which protects them too, even where a service does not know the newer checksums.
    options={"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"},
)
_WRITE = "repertory-write"
"""The metadata key that says which put made an object."""
_NO_VERSIONS = ("", "*")
"""These are no versions, and would match any object."""

T = TypeVar("T")


class S3ObjectStore:
    """An `ObjectStore` in a bucket. Building one connects to nothing; the bucket must exist.

    One request per call, one per 1,000 keys of a listing. It needs s3:GetObject, s3:PutObject and s3:DeleteObject on
    the objects and s3:ListBucket on the bucket, and with a KMS key kms:GenerateDataKey and kms:Decrypt on that; nothing
    else. Credentials and region are looked up at the first call.
    One store may be used from several event loops; each has its own connections, released by `aclose` in that loop.

    Throttling, 5xx and broken connections are retried with backoff, for `patience.timeout_s` in all; botocore's own
    retries are off. When the response to a conditional put was lost, the next attempt meets our own object and
    recognises it by its metadata.

    Errors of every call: `Throttled` and `Unavailable` (the retries' time is over), `Failed` (no such bucket, wrong
    region, not allowed, wrong clock), `Invalid` (no credentials, no such profile). Cancellation ends the request at
    once; a put that was already sent is done whole or not at all, and may be done shortly after.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        writer: str,
        aws: AwsSettings | None = None,
        retry_policy: RetryPolicy | None = None,
        content_type: str = "application/json",
        kms_key_id: str | None = None,
        client: ThreadedClient | None = None,
    ) -> None:
        """`prefix` precedes every key, with a slash between; slashes at its ends are ignored.

        `writer` must be unique to this object, such as a random id: the store recognises its own puts by it, and it
        makes the retry delays of different stores differ. `content_type` is the content type of the objects.
        `kms_key_id`: the KMS key with which S3 encrypts them; the bucket's default encryption when None. `client`: asks
        S3 instead of clients of its own.
        """
        if not bucket:
            raise Invalid("a bucket has a name", got=bucket)
        check_kms_key(kms_key_id)
        self._bucket = bucket
        below = prefix.strip("/")
        self._prefix = f"{check_key(below)}/" if below else ""
        self._writer = blake2b(check_id(writer, "writer").encode(), digest_size=16)
        # botocore's own 60 s are longer than a lease lives.
        self._aws = aws or AwsSettings(connect_timeout_s=5.0, read_timeout_s=20.0)
        self._retry_policy = replace(retry_policy or RetryPolicy(), unavailable=StoreUnavailable)
        self._put_fields: dict[str, Any] = {"ContentType": content_type}
        if kms_key_id is not None:
            self._put_fields |= {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": kms_key_id}
        self._clients: LoopClients | ThreadedClient = client or aws_clients(_SERVICE, self._aws)
        self._numbers = count(1)
        self._closed = False

    @property
    def name(self) -> str:
        """Stores with equal names hold the same objects."""
        return f"s3:{self._aws.endpoint_url or ''}/{self._bucket}/{self._prefix}"

    async def get(self, key: str) -> StoredObject:
        """Read an object. Errors: `NotFound`, and see the class."""
        full = self._full(key)

        async def attempt() -> StoredObject:
            answer = await self._ask("get_object", {"Key": full})
            with self._mapped(full):
                async with answer["Body"] as stream:
                    return StoredObject(body=bytes(await stream.read()), version=_version(answer))

        return await self._patiently(attempt)

    async def put(self, key: str, body: bytes, condition: Condition) -> str:
        """Write an object; it is durable in S3 on return. Errors: `AlreadyExists`, `PreconditionFailed`, and see the
        class.
        """
        request: dict[str, Any] = {"Key": self._full(key), "Body": body, **self._put_fields}
        if isinstance(condition, Overwrite):
            return _version(await self._patiently(lambda: self._ask("put_object", request)))
        # `If-Match: *` would match whatever is there.
        if isinstance(condition, Update) and condition.version in _NO_VERSIONS:
            raise _refused(key, condition)
        write = f"{self._writer.hexdigest()}-{next(self._numbers)}"
        wanted = {"IfNoneMatch": "*"} if isinstance(condition, Create) else {"IfMatch": condition.version}
        request |= {"Metadata": {_WRITE: write}, **wanted}
        sent_count = 0

        async def attempt() -> str:
            nonlocal sent_count
            sent_count += 1
            try:
                return _version(await self._ask("put_object", request))
            except (Conflict, NotFound) as error:
                # Only from the second attempt on: the first one cannot have met its own object, and this costs a
                # request.
                ours = await self._own_version(request["Key"], write) if sent_count > 1 else None
                if ours is None:
                    raise _refused(key, condition) from error
                return ours

        return await self._patiently(attempt)

    async def list(self, prefix: str, start_after: str | None = None) -> Sequence[ObjectInfo]:
        """All objects whose key begins with `prefix` and follows `start_after`, in the byte order of their keys."""
        request: dict[str, Any] = {"Prefix": self._prefix + check_prefix(prefix), "MaxKeys": PAGE_KEYS_MAX}
        if start_after is not None:
            request["StartAfter"] = self._full(start_after)
        found: list[ObjectInfo] = []
        tokens = PageTokens()

        async def attempt() -> str | None:
            page = await self._ask("list_objects_v2", request)
            found.extend(info for item in page.get("Contents", ()) if (info := self._info(item)) is not None)
            return page.get("NextContinuationToken")

        # `PageTokens` refuses a token that comes again: a faulty service would otherwise be listed for ever.
        while (token := tokens.next(await self._patiently(attempt))) is not None:
            request["ContinuationToken"] = token
        return found

    async def delete(self, key: str) -> None:
        """Remove an object. A missing object is no error. A bucket with versioning keeps the old versions."""
        request = {"Key": self._full(key)}
        await self._patiently(lambda: self._ask("delete_object", request))

    async def aclose(self) -> None:
        """Close, and release the connections of the running event loop."""
        self._closed = True
        await self._clients.aclose()

    def _full(self, key: str) -> str:
        full = self._prefix + check_key(key)
        if len(full.encode()) > KEY_BYTES_MAX:
            raise Invalid("the key is too long together with the prefix", key=full, bytes_max=KEY_BYTES_MAX)
        return full

    def _info(self, item: Mapping[str, Any]) -> ObjectInfo | None:
        """A line of a listing; None for an invalid key, such as the folder markers that consoles create."""
        key = str(item["Key"])[len(self._prefix) :]
        if not is_key(key):
            return None
        size_bytes, modified_at = int(item["Size"]), float(item["LastModified"].timestamp())
        return ObjectInfo(key=key, size_bytes=size_bytes, version=_version(item), modified_at=modified_at)

    async def _own_version(self, key: str, write: str) -> str | None:
        """The version of the stored object, if this same put made it."""
        try:
            found = await self._ask("head_object", {"Key": key})
        except NotFound:
            return None
        return _version(found) if found.get("Metadata", {}).get(_WRITE) == write else None

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        if self._closed:
            raise Invalid("this was closed before", name=self.name)
        return await with_retries(attempt, self._retry_policy, self._jitter)

    def _jitter(self) -> float:
        """The next number of this writer's own sequence."""
        digest = self._writer.copy()
        digest.update(str(next(self._numbers)).encode())
        return int.from_bytes(digest.digest()[:4]) / 2**32

    async def _ask(self, operation: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._mapped(str(request.get("Key", request.get("Prefix")))):
            client = await self._clients.get()
            return await getattr(client, operation)(Bucket=self._bucket, **request)

    @contextmanager
    def _mapped(self, key: str) -> Generator[None]:
        """Map botocore's errors to ours."""
        try:
            yield
        except aws_client_errors() as error:
            raise S3_ERRORS.from_foreign(error, {"bucket": self._bucket, "key": key}) from error


def _version(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", ""))


def _refused(key: str, condition: Create | Update) -> Conflict:
    if isinstance(condition, Create):
        return AlreadyExists("the object is there already", key=key)
    return PreconditionFailed("the object is not the one to update", key=key, wanted=condition.version)


# Maps S3's own errors to ours; the common AWS errors are in `aws_errors.py`.
#
#     try again        two writes at once                                                   Unavailable
#     not there        the object; never the bucket                                         NotFound
#     conflict         status 412                                                           PreconditionFailed
#     fix the call     a bad bucket name, a key that is too long                            Invalid
#     over a bound     the object is too large                                              LimitReached
#     give up          no such bucket, wrong region, not allowed, wrong clock, all else     Failed
#
# Source: Amazon S3 API reference, "Error responses".

_ACCESS = (
    "the identity may not do this: allow s3:GetObject, s3:PutObject and s3:DeleteObject on the bucket's objects, and"
    " s3:ListBucket on the bucket, without which S3 answers the same for an object that is not there"
)
_KMS = (
    "S3 cannot use this KMS key: allow kms:GenerateDataKey and kms:Decrypt on it, and check its id, its region and that"
    " it is enabled"
)
_REGION = "the bucket is in another region: pass its region_name, or set AWS_REGION"
_CLOCK = "this machine's clock is too far from that of S3: set it, for example by NTP"
_HINTS = {
    "nosuchbucket": "there is no such bucket: create it, or name another",
    "accessdenied": _ACCESS,
    "allaccessdisabled": _ACCESS,
    "forbidden": _ACCESS,
    "403": _ACCESS,
    "permanentredirect": _REGION,
    "temporaryredirect": _REGION,
    "authorizationheadermalformed": _REGION,
    "illegallocationconstraintexception": _REGION,
    "301": _REGION,
    "requesttimetooskewed": _CLOCK,
    "requestexpired": _CLOCK,
    "invalidaccesskeyid": UNKNOWN_KEY,
    "signaturedoesnotmatch": WRONG_SIGNATURE,
    "expiredtoken": EXPIRED,
    "tokenrefreshrequired": EXPIRED,
    "invalidtoken": EXPIRED,
    "notimplemented": "this service does not know conditional writes, which keep two writers apart",
}


def _particular(refusal: Refusal) -> RepertoryError | None:
    if refusal.name in ("nosuchkey", "404"):
        return NotFound("no such object", **refusal.where)
    if refusal.status == 412:
        return PreconditionFailed("the object is not the one that the condition wants", **refusal.where)
    if refusal.name == "keytoolongerror":
        return Invalid("the key is too long together with the prefix", **refusal.fields)
    if refusal.name == "entitytoolarge":
        return StoreLimitReached("the object is too large", **refusal.fields)
    # S3 says in some refusals where the bucket is; without that, a wrong region reads like a missing permission.
    headers = refusal.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = refusal.response.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region")
    hint = _HINTS.get(refusal.name) or (_REGION if refusal.status in (301, 307) else None)
    if refusal.name.startswith("kms.") or "kms:" in refusal.message:
        hint = _KMS
    return refusal.failed(hint, {"region": region} if region else None)


S3_ERRORS = AwsErrors(service="S3", hints=_HINTS, particular=_particular, kinds=OF_SESSIONS)
