"""Objects in S3 behind a network that is rough. The contract is in `test_object_store_contract.py`."""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import anyio
import pytest

from repertory.backends.aws_clients import AwsSettings
from repertory.backends.aws_errors import PageTokens, RetryPolicy
from repertory.backends.objects import s3
from repertory.backends.objects.s3 import S3ObjectStore
from repertory.backends.ports import Condition, Create, Overwrite, Update
from repertory.errors import (
    AlreadyExists,
    Conflict,
    Failed,
    Invalid,
    NotFound,
    PreconditionFailed,
    RepertoryError,
    StoreThrottled,
    StoreUnavailable,
    Unavailable,
)
from tests.backends.objects.moto_s3 import BUCKET
from tests.backends.objects.rough_s3 import Drop, Halve, Hang, Lose, Plan, RoughS3, Say, rough_s3

pytestmark = [pytest.mark.anyio, pytest.mark.real_time, pytest.mark.usefixtures("aws_keys")]

WAIT_S = 20.0
SLOW_DOWN = Say(503, "SlowDown", "Please reduce your request rate.")
BROKEN = Say(500, "InternalError", "We encountered an internal error.")
BUSY = Say(503, "ServiceUnavailable")
TWO_AT_ONCE = Say(409, "ConditionalRequestConflict")
QUICK = RetryPolicy(timeout_s=10.0, first_delay_s=0.001)
SHORT = RetryPolicy(timeout_s=0.05, first_delay_s=0.001, unavailable=StoreUnavailable)

_prefixes = count()
_writers = count()


@pytest.fixture
async def rough(s3_url: str) -> AsyncIterator[RoughS3]:
    with anyio.fail_after(WAIT_S):
        async with rough_s3(s3_url) as running:
            yield running


@pytest.fixture
def prefix() -> str:
    """A part of the bucket for this test alone."""
    return f"rough-{next(_prefixes)}"


def open_store(url: str, prefix: str, patience: RetryPolicy = QUICK) -> S3ObjectStore:
    aws = AwsSettings(endpoint_url=url)
    return S3ObjectStore(BUCKET, prefix, writer=f"writer-{next(_writers)}", aws=aws, retry_policy=patience)


@pytest.fixture
async def store(rough: RoughS3, prefix: str) -> AsyncIterator[S3ObjectStore]:
    opened = open_store(rough.url, prefix)
    yield opened
    await opened.aclose()


# ------------------------------------------------------------------------------------------------------- what is asked


async def test_each_call_is_one_request(store: S3ObjectStore, rough: RoughS3) -> None:
    """Put, Get, Delete and List are all that an identity needs."""
    version = await store.put("key", b"one", Create())
    await store.put("key", b"two", Update(version))
    await store.put("key", b"three", Overwrite())
    await store.get("key")
    await store.list("")
    await store.delete("key")
    with pytest.raises(NotFound):
        await store.get("key")
    assert rough.methods == ["PUT", "PUT", "PUT", "GET", "GET", "DELETE", "GET"]
    assert {request.path.split("/")[1] for request in rough.requests} == {BUCKET}


@pytest.mark.parametrize("spelled", ["/{}/", "{}", "{}/", "//{}"])
async def test_slashes_around_a_prefix_mean_nothing(rough: RoughS3, prefix: str, spelled: str) -> None:
    store = open_store(rough.url, spelled.format(prefix))
    await store.put("a/key", b"", Create())
    assert rough.requests[0].path == f"/{BUCKET}/{prefix}/a/key"
    assert store.name == open_store(rough.url, prefix).name
    await store.aclose()


@pytest.mark.parametrize("prefix", ["a//b", "../a", "a\\b"])
async def test_a_prefix_that_is_no_key_is_invalid(s3_url: str, prefix: str) -> None:
    with pytest.raises(Invalid):
        open_store(s3_url, prefix)


async def test_a_key_that_is_too_long_with_its_prefix_is_invalid(store: S3ObjectStore, rough: RoughS3) -> None:
    with pytest.raises(Invalid, match="too long together with the prefix"):
        await store.put("/".join(["x" * 255] * 4), b"", Create())
    assert rough.requests == []


async def test_the_content_type_is_json_unless_said_otherwise(rough: RoughS3, prefix: str) -> None:
    for content_type in ("application/json", "application/octet-stream"):
        options = {} if content_type == "application/json" else {"content_type": content_type}
        aws = AwsSettings(endpoint_url=rough.url)
        store = S3ObjectStore(BUCKET, prefix, writer="writer", aws=aws, **options)
        await store.put("key", b"{}", Overwrite())
        assert rough.requests[-1].headers["content-type"] == content_type
        await store.aclose()


async def test_a_listing_takes_as_many_pages_as_it_needs(
    store: S3ObjectStore, rough: RoughS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "PAGE_KEYS_MAX", 3)
    keys = [f"a/{n}" for n in range(10)]
    for key in keys:
        await store.put(key, b"", Create())
    rough.requests.clear()
    rough.next_plans(SLOW_DOWN, BROKEN, Lose(), Halve())
    assert [info.key for info in await store.list("a/")] == keys
    assert len(rough.requests) == 4 + 4
    assert [info.key for info in await store.list("a/", start_after="a/6")] == keys[7:]


def test_a_listing_whose_pages_repeat_has_an_end() -> None:
    """A service that gives the same token again would be asked for ever."""
    tokens = PageTokens()
    assert [tokens.next(token) for token in ("a", "b", "", None)] == ["a", "b", None, None]
    with pytest.raises(Failed, match="no end"):
        tokens.next("a")


async def test_what_consoles_put_for_folders_is_not_listed(store: S3ObjectStore, s3_url: str, prefix: str) -> None:
    await store.put("folder/key", b"", Create())
    for marker in (f"{prefix}/folder/", f"{prefix}/"):
        put = urllib.request.Request(f"{s3_url}/{BUCKET}/{marker}", method="PUT", data=b"")
        await anyio.to_thread.run_sync(lambda put=put: urllib.request.urlopen(put, timeout=30).close())
    assert [info.key for info in await store.list("")] == ["folder/key"]


async def test_closing_releases_every_connection(store: S3ObjectStore, rough: RoughS3) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(store.put, f"key-{number}", b"", Create())
    assert rough.open_connections
    await store.aclose()
    await rough.until(lambda: rough.open_connections == 0)


# --------------------------------------------------------------------------------------------------------- trying again


@pytest.mark.parametrize("trouble", [SLOW_DOWN, BUSY, BROKEN, Drop(), Lose(), Say(429, "")], ids=repr)
async def test_every_call_is_tried_again(store: S3ObjectStore, rough: RoughS3, trouble: Plan) -> None:
    await store.put("key", b"one", Overwrite())
    for call in (
        lambda: store.put("key", b"one", Overwrite()),
        lambda: store.get("key"),
        lambda: store.list(""),
        lambda: store.delete("key"),
    ):
        rough.requests.clear()
        rough.next_plans(trouble, trouble)
        await call()
        assert len(rough.requests) == 3


async def test_half_an_answer_is_no_answer(store: S3ObjectStore, rough: RoughS3) -> None:
    body = b"x" * 100_000
    await store.put("key", body, Create())
    rough.requests.clear()
    rough.next_plans(Halve(), Halve())
    assert (await store.get("key")).body == body
    assert rough.methods == ["GET", "GET", "GET"]


@pytest.mark.parametrize(
    ("trouble", "error"),
    [(SLOW_DOWN, StoreThrottled), (BROKEN, StoreUnavailable), (Drop(), StoreUnavailable), (Hang(), StoreUnavailable)],
    ids=repr,
)
async def test_patience_has_an_end(rough: RoughS3, prefix: str, trouble: Plan, error: type[RepertoryError]) -> None:
    store = open_store(rough.url, prefix)
    await store.list("")  # what is imported and made once takes longer than this patience
    store._retry_policy = SHORT
    rough.plan = lambda request: trouble
    for call in (
        lambda: store.put("key", b"", Create()),
        lambda: store.get("key"),
        lambda: store.list(""),
        lambda: store.delete("key"),
    ):
        with pytest.raises(error) as caught:
            await call()
        assert type(caught.value) is error
    await store.aclose()


async def test_a_service_that_is_not_there_is_unavailable(prefix: str) -> None:
    store = open_store("http://127.0.0.1:9", prefix, RetryPolicy(timeout_s=0.5, first_delay_s=0.01))
    with pytest.raises(Unavailable) as caught:
        await store.get("key")
    assert caught.value.__cause__ is not None or "in time" in str(caught.value)
    await store.aclose()


@pytest.mark.parametrize("trouble", [Hang(), Hang(forward=True), SLOW_DOWN], ids=repr)
async def test_cancellation_ends_requests_and_waits_at_once(rough: RoughS3, prefix: str, trouble: Plan) -> None:
    store = open_store(rough.url, prefix, RetryPolicy(timeout_s=1_000.0, first_delay_s=500.0))
    await store.put("other", b"", Create())
    rough.plan = lambda request: trouble
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(store.put, "key", b"whole", Create())
        await rough.until(lambda: rough.hung == 1 if isinstance(trouble, Hang) else len(rough.requests) == 2)
        tasks.cancel_scope.cancel()
    rough.next_plans()
    try:
        assert (await store.get("key")).body == b"whole"
    except NotFound:
        await store.put("key", b"whole", Create())
    await store.aclose()


# --------------------------------------------------------------------------------------------------------- lost answers


@pytest.mark.parametrize("trouble", [Lose(), Halve(), Hang(forward=True)], ids=repr)
async def test_a_put_whose_answer_was_lost_is_recognised_as_done(rough: RoughS3, prefix: str, trouble: Plan) -> None:
    aws = AwsSettings(endpoint_url=rough.url, read_timeout_s=1.5 if isinstance(trouble, Hang) else 30.0)
    store = S3ObjectStore(BUCKET, prefix, writer="writer", aws=aws, retry_policy=QUICK)
    version = await store.put("other", b"other", Create())
    conditions: list[tuple[str, Condition]] = [("key", Create()), ("other", Update(version))]
    for key, condition in conditions:
        rough.requests.clear()
        rough.next_plans(trouble)
        stored = await store.put(key, b"mine", condition)
        found = await store.get(key)
        assert (found.body, found.version) == (b"mine", stored)
        wanted = ["PUT", "GET"] if isinstance(trouble, Halve) else ["PUT", "PUT", "HEAD", "GET"]
        assert rough.methods == wanted
    await store.aclose()


async def test_a_twin_that_somebody_else_put_meanwhile_is_not_taken_for_our_own(
    store: S3ObjectStore, rough: RoughS3, prefix: str, s3_url: str
) -> None:
    """Two writers with one body: comparing contents would tell both that they won."""
    rival = open_store(s3_url, prefix)
    version = await rival.put("old", b"old", Create())
    conditions: list[tuple[str, Condition]] = [("new", Create()), ("old", Update(version))]
    for key, condition in conditions:
        rough.next_plans(Drop(), BROKEN)
        await rival.put(key, b"same", condition)
        with pytest.raises(Conflict):
            await store.put(key, b"same", condition)
        assert rough.methods[-1] == "HEAD"
    await rival.aclose()


async def test_an_own_put_that_was_replaced_before_its_answer_is_a_conflict(
    store: S3ObjectStore, rough: RoughS3, prefix: str, s3_url: str
) -> None:
    rival = open_store(s3_url, prefix)
    rough.next_plans(Lose(), Hang())

    async def replace() -> None:
        await rough.until(lambda: rough.methods == ["PUT", "PUT"])
        await rival.put("key", b"theirs", Overwrite())
        rough.end_hanging()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(replace)
        with pytest.raises(AlreadyExists):
            await store.put("key", b"mine", Create())
    assert (await rival.get("key")).body == b"theirs"
    await rival.aclose()


async def test_two_writes_at_once_are_tried_again(store: S3ObjectStore, rough: RoughS3) -> None:
    rough.next_plans(TWO_AT_ONCE)
    await store.put("key", b"mine", Create())
    assert rough.methods == ["PUT", "PUT"]


async def test_an_update_of_nothing_that_s3_calls_no_such_key_is_refused(store: S3ObjectStore) -> None:
    with pytest.raises(PreconditionFailed, match="key='key'"):
        await store.put("key", b"mine", Update('"0"'))


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (Say(403, "AccessDenied"), "s3:ListBucket"),
        (Say(403, "AccessDeniedException", "not authorized to perform: kms:GenerateDataKey"), "kms:Decrypt on it"),
        (Say(400, "KMS.DisabledException", "is disabled"), "that it is enabled"),
        (Say(403, "InvalidAccessKeyId"), "AWS_ACCESS_KEY_ID"),
        (Say(403, "SignatureDoesNotMatch"), "AWS_SECRET_ACCESS_KEY"),
        (Say(403, "RequestTimeTooSkewed"), "clock"),
        (Say(400, "ExpiredToken"), "aws sso login"),
        (Say(404, "NoSuchBucket"), "create it"),
        (Say(400, "AuthorizationHeaderMalformed", extra="<Region>eu-central-1</Region>"), "region='eu-central-1'"),
        (Say(301, "PermanentRedirect", headers={"x-amz-bucket-region": "eu-west-1"}), "region_name.*'eu-west-1'"),
        (Say(501, "NotImplemented"), "conditional writes"),
        (Say(400, "InvalidRequest", "nonsense"), "nonsense"),
    ],
    ids=lambda value: getattr(value, "code", ""),
)
async def test_what_no_retry_mends_fails_at_once_and_says_what_to_change(
    store: S3ObjectStore, rough: RoughS3, answer: Say, hint: str
) -> None:
    for call in (
        lambda: store.put("key", b"", Create()),
        lambda: store.get("key"),
        lambda: store.list(""),
        lambda: store.delete("key"),
    ):
        rough.requests.clear()
        rough.plan = lambda request: answer
        with pytest.raises(Failed, match=hint) as caught:
            await call()
        assert caught.value.fields["bucket"] == BUCKET
        assert caught.value.__cause__ is not None
        assert len(rough.requests) <= 2  # botocore follows a bucket to its region once


async def test_a_missing_bucket_is_never_a_missing_object(s3_url: str) -> None:
    """Whoever creates what is not found must not believe that nothing was ever stored."""
    store = S3ObjectStore("no-such-bucket", writer="writer", aws=AwsSettings(endpoint_url=s3_url), retry_policy=QUICK)
    for call in (store.get("key"), store.put("key", b"", Create()), store.list(""), store.delete("key")):
        with pytest.raises(Failed, match="no such bucket"):
            await call
    await store.aclose()


async def test_no_credentials_are_invalid_and_the_message_says_what_to_set(
    s3_url: str, aws_keys: pytest.MonkeyPatch
) -> None:
    aws_keys.delenv("AWS_ACCESS_KEY_ID")
    store = open_store(s3_url, "")
    with pytest.raises(Invalid, match=r"AWS_ACCESS_KEY_ID.*boto_session"):
        await store.get("key")
    await store.aclose()


async def test_a_profile_that_does_not_exist_is_invalid(s3_url: str, aws_keys: pytest.MonkeyPatch) -> None:
    aws_keys.setenv("AWS_PROFILE", "nobody")
    store = open_store(s3_url, "")
    with pytest.raises(Invalid, match="nobody"):
        await store.get("key")
    await store.aclose()


async def test_a_bucket_name_that_cannot_be_is_invalid(s3_url: str) -> None:
    with pytest.raises(Invalid):
        S3ObjectStore("", writer="writer")
    store = S3ObjectStore("not a bucket!", writer="writer", aws=AwsSettings(endpoint_url=s3_url))
    with pytest.raises(Invalid, match="not a bucket!"):
        await store.get("key")
    await store.aclose()


async def test_without_a_region_it_is_the_first_one(rough: RoughS3, prefix: str, aws_keys: pytest.MonkeyPatch) -> None:
    """botocore's rule for S3: buckets of other regions answer where they are."""
    aws_keys.delenv("AWS_REGION")
    store = open_store(rough.url, prefix)
    await store.put("key", b"", Create())
    assert "/us-east-1/s3/" in rough.requests[0].headers["authorization"]
    await store.aclose()


async def test_a_session_and_a_client_config_of_the_users_are_honoured(rough: RoughS3, prefix: str) -> None:
    import botocore.config
    import botocore.session

    session = botocore.session.Session()
    session.set_credentials("AKIDOTHER", "secret")
    config = botocore.config.Config(region_name="eu-north-1", user_agent_extra="theirs/1")
    aws = AwsSettings(boto_session=session, boto_client_config=config, region_name="eu-north-1", endpoint_url=rough.url)
    store = S3ObjectStore(BUCKET, prefix, writer="writer", aws=aws)
    await store.put("key", b"", Overwrite())
    headers = rough.requests[0].headers
    assert "AKIDOTHER" in headers["authorization"]
    assert "/eu-north-1/s3/" in headers["authorization"]
    assert "theirs/1" in headers["user-agent"]
    await store.aclose()


async def test_one_store_serves_several_loops(s3_url: str, prefix: str, tmp_path: Path) -> None:
    store = open_store(s3_url, prefix)

    async def write(number: int) -> None:
        await store.put(f"loop-{number}", b"", Create())

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            backend = ("asyncio", "trio")[number % 2]
            tasks.start_soon(anyio.to_thread.run_sync, lambda n=number, b=backend: anyio.run(write, n, backend=b))
    assert [info.key for info in await store.list("")] == ["loop-0", "loop-1", "loop-2"]
    await store.aclose()
