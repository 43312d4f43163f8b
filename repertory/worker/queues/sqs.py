"""A queue in Amazon SQS, or in any service with its protocol."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from email.utils import parsedate_to_datetime
from hashlib import sha256
from itertools import count
from typing import Any, Self, cast

import anyio
import anyio.lowlevel

from repertory.backends.aws_clients import AwsService, AwsSettings, aws_clients
from repertory.backends.aws_errors import (
    EXPIRED,
    UNKNOWN_KEY,
    WRONG_SIGNATURE,
    AwsErrors,
    Refusal,
    RetryPolicy,
    aws_client_errors,
    with_retries,
)
from repertory.backends.shields import waited_for
from repertory.core.notebook import without_login
from repertory.errors import Gone, Invalid, RepertoryError, Throttled, TooLarge, Unavailable
from repertory.worker.decisions import (
    Again,
    Aside,
    Done,
    JobVerdict,
    Malformed,
    TurnJob,
    job_text,
    read_job,
    with_token,
)
from repertory.worker.ports import SHOWN, Delivery, JobSetAside, QueueCounts, job_set_aside

BATCH_MAX = 10
"""The most messages that SQS gives or takes in one request."""
POLL_MAX_S = 20
_DELAY_MAX_S, _HIDE_MAX_S = 900, 43_200
_BACK_MAX_S = 43_000
"""The longest wait of a job that is given back: SQS counts the 12 hours of `_HIDE_MAX_S` from the receipt on."""
_UNTRIED_MAX = 10_000
"""The number of jobs given back untried that are remembered, at most."""
_SLACK_S = 10.0
"""Seconds that a request may take beyond its own wait."""
_LATE_S = 2.0
"""Seconds beyond its wait for a request whose caller is cancelled: a drain must end, though SQS may be silent."""
_LOOKS = 20
"""The requests of one look at the jobs that were set aside: each gives ten at most, and some again."""
_WHY = "repertory-why"
"""The attribute of a message that was set aside."""
_GROUP = re.compile(r"[\w!\"#$%&'()*+,./:;<=>?@\[\]^`{|}~\\-]{1,128}", re.ASCII)
_SERVICE = AwsService(name="sqs", wanted_by="SQSQueue", extra="sqs")


class SQSQueue:
    """A queue in SQS, standard or FIFO, which must exist. Building one connects to nothing.

    A FIFO queue gives the jobs of a session one at a time and in the order in which they were sent, also after
    failures. A standard queue promises neither.
    What is set aside goes to the queue of `aside_queue_url`, else to the dead letter queue of the redrive policy: a
    worker needs one of the two. Messages that SQS itself moves there, by `maxReceiveCount`, are listed without a
    reason.

    SQS counts every receipt as a try. Left out are those before the time of a job, and those after which this object
    has given the job back untried; others that other workers gave back untried count.

    Credentials and region are looked up at the first call, as in every AWS tool. It needs sqs:SendMessage,
    sqs:ReceiveMessage, sqs:DeleteMessage, sqs:ChangeMessageVisibility and sqs:GetQueueAttributes on the queue, and the
    same and sqs:GetQueueUrl on the other one.

    Errors of every call: `Throttled` and `Unavailable` (retries took 20 s), `Failed` (no such queue, not allowed),
    `Invalid` (no credentials, no region, no place for what is set aside).

    Args:
        queue_url: The queue's address.
        aside_queue_url: The queue for jobs that are set aside; None for the dead-letter queue of its redrive policy.
        region_name: The AWS region; None for the one of the environment.
        endpoint_url: Another address of the service, such as one of a test.
        boto_session: A boto3 session, whose credentials count; None for those of the environment.
        boto_client_config: A botocore `Config` for the client.
        lease_s: How long a worker has a job without saying that it lives, up to 12 hours.

    Raises:
        Invalid: For what is no URL, and for `lease_s` outside 1 to 43,200. Correct the argument.
    """

    def __init__(
        self,
        queue_url: str,
        *,
        aside_queue_url: str | None = None,
        region_name: str | None = None,
        endpoint_url: str | None = None,
        boto_session: Any = None,
        boto_client_config: Any = None,
        lease_s: float = 60.0,
    ) -> None:
        if "/" not in queue_url:
            raise Invalid(
                "queue_url is the URL of a queue: https://sqs.REGION.amazonaws.com/ACCOUNT/NAME", got=queue_url
            )
        if not 1 <= lease_s <= _HIDE_MAX_S:
            raise Invalid("lease_s is a number of seconds from 1 to 43,200", got=lease_s)
        aws = AwsSettings(
            region_name=region_name or _region_in(queue_url),
            endpoint_url=endpoint_url,
            boto_session=boto_session,
            boto_client_config=boto_client_config,
            connect_timeout_s=5.0,
            read_timeout_s=POLL_MAX_S + _SLACK_S,
        )
        self._url = queue_url
        self._fifo = queue_url.endswith(".fifo")
        self._lease_s = lease_s
        self._aside_url = aside_queue_url
        self._clients = aws_clients(_SERVICE, aws)
        self._retry_policy = RetryPolicy()
        self._numbers = count(1)
        self._untried: dict[str, int] = {}
        """The number of times, by message, that it was given back here without a try."""
        self._closed = False

    def _queue_url(self) -> str:
        return without_login(self._url.partition("?")[0])

    def __repr__(self) -> str:
        return f"SQSQueue({self._queue_url()!r})"

    @property
    def name(self) -> str:
        """The queue's URL, after `sqs:`."""
        return f"sqs:{self._queue_url()}"

    @property
    def lease_s(self) -> float:
        """Seconds that a worker has a job without a sign of life."""
        return self._lease_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def send(self, job: TurnJob) -> None:
        """Keep a job. SQS itself waits up to 15 minutes for `not_before`, and a FIFO queue not at all; a worker gives
        back what comes too early. Cancelled, it may be kept. Errors: see the class.

        Args:
            job: The job.

        Raises:
            TooLarge: For a job that is larger than SQS takes. Send less.
            Invalid: For `not_before` after the time for which the queue retains messages. Raise that, at most to 14
                days, or send the job later.
        """
        request: dict[str, Any] = {"MessageBody": job_text(job)}
        ahead_s = 0 if job.not_before is None else await self._ahead_s(job.not_before)
        if self._fifo:
            # One key for each call: of two messages with one key SQS drops the second, even when the first was set
            # aside meanwhile. A token has one turn anyway.
            request |= _fifo_fields(job, json.dumps([job.session_id, job.agent, job.token, anyio.current_time()]))
        elif ahead_s:
            request["DelaySeconds"] = min(ahead_s, _DELAY_MAX_S)
        await self._ask("send_message", request)

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """Wait for jobs. SQS gives ten at most, and waits for 20 s at most. A FIFO queue gives one job: a request for
        more may give several of one session.

        A cancelled call ends when its request has ended, at the latest 2 s after SQS should have answered. SQS hides
        for `lease_s` the jobs that it gave to a request.

        Args:
            limit: The most that is returned.
            wait_s: Seconds to wait for the first job.
        """
        # Asked first: a worker without a place for what fails is told so before it has a job in hand.
        await self._aside_queue_url()
        poll_s = int(min(wait_s, POLL_MAX_S))
        request = {
            "MaxNumberOfMessages": 1 if self._fifo else max(1, min(limit, BATCH_MAX)),
            "WaitTimeSeconds": poll_s,
            "VisibilityTimeout": round(self._lease_s),
            "AttributeNames": ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp"],
        }
        async with self._whole(POLL_MAX_S + 2 * _SLACK_S, if_cancelled_s=poll_s + _LATE_S):
            # Once: whoever takes jobs asks again, with pauses of its own.
            answer = await self._ask_once("receive_message", request)
        taken = [self._delivery(message) for message in answer.get("Messages", ())]
        try:
            await anyio.lowlevel.checkpoint_if_cancelled()
        except anyio.get_cancelled_exc_class():
            async with self._whole(_LATE_S, if_cancelled_s=_LATE_S):
                await self._hide([each.claim for each in taken], 0)
            raise
        return taken

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Have these for `lease_s` from now on.

        Args:
            deliveries: The jobs that this worker still holds.
        """
        await self._hide([each.claim for each in deliveries], round(self._lease_s))

    async def settle(self, delivery: Delivery, verdict: JobVerdict) -> bool:
        """Forget the job, give it back, or set it aside. False if its receipt is not valid any more.

        Args:
            delivery: The job as it was received.
            verdict: What becomes of the job.
        """
        receipt = {"ReceiptHandle": delivery.claim}
        try:
            match verdict:
                case Done():
                    await self._ask("delete_message", receipt)
                case Again():
                    # Never less than was asked for: the job would be received again and again in the rest of a second.
                    hidden_s = min(math.ceil(verdict.after_s), _BACK_MAX_S)
                    await self._ask("change_message_visibility", {**receipt, "VisibilityTimeout": hidden_s})
                    if not verdict.counts:
                        self._note_untried(delivery.id)
                # The copy comes first: a kill in between leaves the job in both queues, and not in none.
                case Aside():
                    await self._move_aside(delivery, verdict.why)
                    await self._ask("delete_message", receipt)
        except _ReceiptGone:
            return False
        if not isinstance(verdict, Again):
            self._untried.pop(delivery.id, None)
        return True

    async def counts(self) -> QueueCounts:
        """The numbers of jobs in each state, as SQS estimates them."""
        here = await self._numbers_of(self._url)
        there = await self._numbers_of(await self._aside_queue_url())
        names = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed"
        return QueueCounts(
            waiting=sum(here[name] for name in names),
            taken=here["ApproximateNumberOfMessagesNotVisible"],
            set_aside=there["ApproximateNumberOfMessages"] + there["ApproximateNumberOfMessagesNotVisible"],
        )

    async def set_aside(self, limit: int) -> Sequence[JobSetAside]:
        """The jobs that were set aside, `limit` at most, as far as twenty requests find them.

        Args:
            limit: The most that is returned.
        """
        found: dict[str, JobSetAside] = {}
        async with aclosing(self._looked_at()) as messages:
            async for message in messages:
                found.setdefault(str(message["MessageId"]), _set_aside_job(message))
                if len(found) >= limit:
                    break
        return list(found.values())[:limit]

    async def retry(self, job_id: str) -> bool:
        """Send a job that was set aside once more. False if twenty requests have not found it.

        Args:
            job_id: The id of the job.
        """
        async with aclosing(self._looked_at()) as messages:
            async for message in messages:
                if message["MessageId"] == job_id:
                    await self._send_again(message)
                    return True
        return False

    async def _send_again(self, message: Mapping[str, Any]) -> None:
        body, job_id = str(message["Body"]), str(message["MessageId"])
        job = read_job(body.encode(errors="surrogatepass"), job_id)
        request: dict[str, Any] = {"MessageBody": with_token(body, job)}
        if self._fifo:
            request |= _fifo_fields(job, f"again {job_id}")
        await self._ask("send_message", request)
        # Behind the sending: a kill in between leaves it in both queues, and its token has one turn.
        receipt = {"ReceiptHandle": message["ReceiptHandle"]}
        await self._ask("delete_message", receipt, url=await self._aside_queue_url())

    async def aclose(self) -> None:
        """Close, and release the connections of the running event loop."""
        self._closed = True
        await self._clients.aclose()

    async def _looked_at(self) -> AsyncGenerator[Mapping[str, Any]]:
        """The jobs that were set aside, each hidden from others while this looks."""
        url = await self._aside_queue_url()
        request = {
            "MaxNumberOfMessages": BATCH_MAX,
            "WaitTimeSeconds": 0,
            # Hidden from the next request of this look, and there again soon if this process dies.
            "VisibilityTimeout": 2,
            "MessageAttributeNames": [_WHY],
        }
        seen: list[str] = []
        try:
            for _ in range(_LOOKS):
                messages = (await self._ask("receive_message", request, url=url)).get("Messages", ())
                seen += [str(message["ReceiptHandle"]) for message in messages]
                for message in messages:
                    yield message
                if not messages:
                    return
        finally:
            with suppress(RepertoryError):  # They are seen again soon in any case.
                await self._hide(seen, 0, url=url)

    async def _move_aside(self, delivery: Delivery, why: str) -> None:
        """A copy in the other queue, with its token, since SQS gives it another id. If it is made twice, a FIFO queue
        keeps one.
        """
        url = await self._aside_queue_url()
        assert isinstance(delivery, _Message)
        request: dict[str, Any] = {"MessageBody": with_token(delivery.body, delivery.job)}
        if url.endswith(".fifo"):
            request |= _fifo_fields(delivery.job, delivery.id)
        reason = {_WHY: {"DataType": "String", "StringValue": why[:SHOWN] or "no reason"}}
        try:
            await self._ask("send_message", {**request, "MessageAttributes": reason}, url=url)
        except TooLarge:  # The reason counts as well. Without it, the job is not given again and again.
            await self._ask("send_message", request, url=url)

    async def _aside_queue_url(self) -> str:
        """The URL of the queue for what is set aside. Errors: `Invalid` if there is none."""
        if self._aside_url is None:
            asked = {"AttributeNames": ["RedrivePolicy"]}
            attributes = (await self._ask("get_queue_attributes", asked)).get("Attributes", {})
            target = str(json.loads(attributes.get("RedrivePolicy", "{}")).get("deadLetterTargetArn", ""))
            if not target:
                text = "SQSQueue needs a place for what is set aside: a redrive policy, or aside_queue_url"
                raise Invalid(text, queue=self._url)
            *_, account, name = target.split(":")
            wanted = {"QueueName": name, "QueueOwnerAWSAccountId": account}
            self._aside_url = str((await self._ask("get_queue_url", wanted, url=None))["QueueUrl"])
        return self._aside_url

    async def _numbers_of(self, url: str) -> dict[str, int]:
        attributes = (await self._ask("get_queue_attributes", {"AttributeNames": ["All"]}, url=url))["Attributes"]
        names = "", "Delayed", "NotVisible"
        return {full: int(attributes.get(full, 0)) for each in names if (full := f"ApproximateNumberOfMessages{each}")}

    async def _ahead_s(self, not_before: float) -> int:
        """Seconds from now, by the clock of SQS, as the heads of its answers tell it. Errors: `Invalid` for a time that
        the message does not live to see.
        """
        answer = await self._ask("get_queue_attributes", {"AttributeNames": ["MessageRetentionPeriod"]})
        date = str(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        ahead_s = max(0, math.ceil(not_before - parsedate_to_datetime(date).timestamp()))
        retained_s = int(answer.get("Attributes", {}).get("MessageRetentionPeriod", ahead_s))
        if ahead_s > retained_s:
            text = (
                "SQS would drop this job before its time: raise MessageRetentionPeriod of the queue, or send it later"
            )
            raise Invalid(text, queue=self._url, retained_s=retained_s, ahead_s=ahead_s)
        return ahead_s

    def _delivery(self, message: Mapping[str, Any]) -> _Message:
        body, given_id = str(message["Body"]), str(message["MessageId"])
        job = read_job(body.encode(errors="surrogatepass"), given_id)
        attributes = message.get("Attributes", {})
        first_ms = attributes.get("ApproximateFirstReceiveTimestamp")
        untried = self._untried.get(given_id, 0)
        if isinstance(job, TurnJob) and job.not_before is not None and first_ms is not None:
            # Whoever received it before its time has hidden it until then, or for as long as SQS can.
            untried = max(untried, math.ceil((job.not_before - int(first_ms) / 1000) / _BACK_MAX_S))
        tries = max(1, int(attributes.get("ApproximateReceiveCount", 1)) - untried)
        return _Message(id=given_id, claim=str(message["ReceiptHandle"]), job=job, tries=tries, body=body)

    def _note_untried(self, message_id: str) -> None:
        # Taken out and put in again, so that the first one is the one that came back the longest time ago.
        self._untried[message_id] = self._untried.pop(message_id, 0) + 1
        if len(self._untried) > _UNTRIED_MAX:
            del self._untried[next(iter(self._untried))]

    async def _hide(self, claims: Sequence[str], seconds: int, *, url: str = "") -> None:
        """Set for how long nobody is given these. What is not this holder's any more is left alone."""
        for start in range(0, len(claims), BATCH_MAX):
            entries = [
                {"Id": str(number), "ReceiptHandle": claim, "VisibilityTimeout": seconds}
                for number, claim in enumerate(claims[start : start + BATCH_MAX])
            ]
            await self._ask("change_message_visibility_batch", {"Entries": entries}, url=url)

    @asynccontextmanager
    async def _whole(self, within_s: float, *, if_cancelled_s: float) -> AsyncGenerator[None]:
        """A block that a cancellation waits for, see `waited_for`. Errors: `Unavailable` when it was cut."""
        async with waited_for(within_s, if_cancelled_s=if_cancelled_s) as scope:
            yield
        if scope.cancelled_caught:
            raise Unavailable("SQS gave no answer in time", queue=self._url)

    async def _ask(self, operation: str, request: Mapping[str, Any], *, url: str | None = "") -> Mapping[str, Any]:
        """Ask, again and again for 20 s. `url`: of another queue; None where the request names none."""
        return await with_retries(lambda: self._ask_once(operation, request, url=url), self._retry_policy, self._jitter)

    async def _ask_once(self, operation: str, request: Mapping[str, Any], *, url: str | None = "") -> Mapping[str, Any]:
        if self._closed:
            raise Invalid("this queue was closed before", name=self.name)
        named = {} if url is None else {"QueueUrl": url or self._url}
        with self._mapped(url or self._url):
            client = await self._clients.get()
            return cast("Mapping[str, Any]", await getattr(client, operation)(**named, **request))

    @contextmanager
    def _mapped(self, url: str) -> Generator[None]:
        """Map botocore's errors to ours."""
        try:
            yield
        except aws_client_errors() as error:
            raise SQS_ERRORS.from_foreign(error, {"queue": url}) from error

    def _jitter(self) -> float:
        """The next number of this queue's own sequence."""
        digest = sha256(f"{self._url} {next(self._numbers)}".encode()).digest()
        return int.from_bytes(digest[:4]) / 2**32


class _Message(Delivery, frozen=True, kw_only=True):
    """A delivery with the message as it was sent, which is what is set aside."""

    body: str


def _set_aside_job(message: Mapping[str, Any]) -> JobSetAside:
    body, given_id = str(message["Body"]), str(message["MessageId"])
    why = str(message.get("MessageAttributes", {}).get(_WHY, {}).get("StringValue", ""))
    return job_set_aside(given_id, body.encode(errors="surrogatepass"), why)


def _fifo_fields(job: TurnJob | Malformed, key: str) -> dict[str, str]:
    """The further fields of a message to a FIFO queue: the group, which is the session where SQS takes its id, else a
    digest; and the id by which SQS drops the same key for five minutes. A message without a job is a group of its own,
    since SQS shows ten messages of one group at once.
    """
    session = key if isinstance(job, Malformed) else job.session_id
    group = session if _GROUP.fullmatch(session) else _digest(session)
    return {"MessageGroupId": group, "MessageDeduplicationId": _digest(key)}


def _digest(text: str) -> str:
    return sha256(text.encode(errors="surrogatepass")).hexdigest()


def _region_in(queue_url: str) -> str | None:
    found = re.match(r"https://(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com", queue_url)
    return None if found is None else found[1] or found[2]


# Maps errors of SQS to ours; the common AWS errors are in `aws_errors.py`.
#
#     try again        throttled, too many messages in flight                Throttled, Unavailable
#     nothing to do    the receipt is not valid any more                     _ReceiptGone
#     fix the call     the message is too long, or has characters that SQS refuses   TooLarge, Invalid
#     give up          no such queue, not allowed, all else                  Failed
#
# Source: Amazon SQS API reference, "Common errors" and those of each action.


class _ReceiptGone(Gone):
    """Somebody else has the message meanwhile, or it is gone."""


_ACCESS = (
    "the identity may not do this: allow sqs:SendMessage, sqs:ReceiveMessage, sqs:DeleteMessage,"
    " sqs:ChangeMessageVisibility and sqs:GetQueueAttributes on the queue, and sqs:GetQueueUrl on that for what is set"
    " aside"
)
_NO_QUEUE = "there is no such queue: create it, or name another"
_HINTS = {
    "accessdenied": _ACCESS,
    "accessdeniedexception": _ACCESS,
    "queuedoesnotexist": _NO_QUEUE,
    "aws.simplequeueservice.nonexistentqueue": _NO_QUEUE,
    "invalidaddress": "this is not the URL of a queue",
    "invalidclienttokenid": UNKNOWN_KEY,
    "signaturedoesnotmatch": WRONG_SIGNATURE,
    "expiredtoken": EXPIRED,
}


def _particular(refusal: Refusal) -> RepertoryError | None:
    name = refusal.name.removeprefix("aws.simplequeueservice.")
    if name in ("receipthandleisinvalid", "messagenotinflight") or "receipt" in refusal.message.lower():
        return _ReceiptGone("the receipt is not valid any more", **refusal.where)
    if name in ("requestthrottled", "kms.throttled", "kmsthrottled"):
        return Throttled("SQS asks for fewer requests", **refusal.fields)
    if name == "overlimit":
        return Unavailable("SQS has too many messages in flight", **refusal.fields)
    if name == "invalidmessagecontents":
        return Invalid("SQS takes no such characters", **refusal.fields)
    if name == "messagetoolong" or "must be shorter than" in refusal.message:
        return TooLarge("a job is too large for this queue", **refusal.fields)
    return None


SQS_ERRORS = AwsErrors(service="SQS", hints=_HINTS, particular=_particular)
