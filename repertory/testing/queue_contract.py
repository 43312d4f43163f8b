"""The requirements on every `TurnQueue`, as tests. Subclass it next to your queue's own tests:

    class TestMyQueue(TurnQueueContract):
        def open_queue(self, place: Path, lease_s: float) -> MyQueue:
            return MyQueue(place / "jobs", lease_s=lease_s)

        async def put_raw(self, place: Path, body: bytes) -> None:
            ...  # a message as another program would put it there

Each test runs on the event loops that the project's `anyio_backend` fixture offers, with a real clock. Needs pytest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import ClassVar, Protocol, cast

import anyio
import pytest

from repertory.core.messages import Prompt
from repertory.errors import Invalid, TooLarge
from repertory.worker.decisions import JOB_BYTES_MAX, Again, Aside, Done, Malformed, TurnJob
from repertory.worker.ports import Delivery, JobSetAside, QueueDesk, TurnQueue

WITHIN_S = 40.0
"""The time limit of every test, in seconds."""
LEASE_S = 1.0
"""The lease of tests in which one runs out."""
FOREIGN = (
    b"",
    b"no JSON at all",
    b"[1, 2, 3]",
    b'{"agent": "a"}',
    b'{"agent": "a", "session_id": "s", "prompt": 5}',
    b'{"agent": "a/b", "session_id": "s", "prompt": "hi"}',
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "token": ["x"]}',
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "not_before": "soon"}',
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "not_before": 1e19}',
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "not_before": 1' + b"0" * 400 + b"}",
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "not_before": 1e400}',
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "attributes": {"n": ' + b"9" * 5000 + b"}}",
    b'{"agent": "a", "session_id": "s", "prompt": "hi", "attributes": [1]}',
    b'{"agent": "a", "session_id": "s", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
)
"""Messages that are no jobs."""


class AnyQueue(TurnQueue, QueueDesk, Protocol):
    """A queue for workers and for the people who look after it."""


def job_number(number: int, session_id: str = "s") -> TurnJob:
    """A job of a session, by its number."""
    return TurnJob("a", session_id, f"prompt {number}", token=f"{session_id}-{number}")


def tokens(deliveries: Sequence[Delivery]) -> list[str]:
    """The token of each job, or why it is none."""
    return [each.job.reason if isinstance(each.job, Malformed) else each.job.token for each in deliveries]


async def take_jobs(queue: TurnQueue, count: int) -> list[Delivery]:
    """Take `count` jobs, however many requests that takes."""
    found: list[Delivery] = []
    while len(found) < count:
        found += await queue.receive(count - len(found), 1.0)
    return found


async def aside(queue: QueueDesk, count: int) -> Sequence[JobSetAside]:
    """List the jobs that were set aside, once there are `count`: they may be seen a little later."""
    while True:
        found = await queue.set_aside(100)
        if len(found) >= count:
            return found
        await anyio.sleep(0.05)


class TurnQueueContract(ABC):
    """The contract. Two queues opened on the same place share its jobs, as two processes would."""

    pytestmark: ClassVar[list[pytest.MarkDecorator]] = [pytest.mark.anyio, pytest.mark.real_time]

    keeps_order = True
    """True if the jobs of a session are given one at a time, in the order in which they were sent."""
    guards_claims = True
    """True if a worker that lost its job to another one is told so, and changes nothing."""
    counts_tries = True
    """True if a job that was given back uncounted has no try more."""
    delays = True
    """True if the queue itself delays a job until its `not_before`."""

    @abstractmethod
    def open_queue(self, place: Path, lease_s: float) -> AnyQueue:
        """A new queue over the jobs in `place`.

        Args:
            place: A folder of the test's own.
            lease_s: Seconds that a taken job is kept from others.
        """

    @abstractmethod
    async def put_raw(self, place: Path, body: bytes) -> None:
        """Put a message there as another program would.

        Args:
            place: A folder of the test's own.
            body: The bytes, or the JSON of a request.
        """

    def can_put(self, body: bytes) -> bool:
        """True if another program could put this message there at all.

        Args:
            body: The message.
        """
        del body
        return True

    @asynccontextmanager
    async def queues(self, place: Path, count: int = 1, lease_s: float = 30.0) -> AsyncGenerator[list[AnyQueue]]:
        """Open `count` queues on one place, and close them at the end, within the time limit.

        Args:
            place: A folder of the test's own.
            count: The number of queues.
            lease_s: Seconds that a taken job is kept from others.
        """
        with anyio.fail_after(WITHIN_S):
            async with AsyncExitStack() as stack:
                opened = [self.open_queue(place, lease_s) for _ in range(count)]
                for queue in opened:
                    stack.push_async_callback(queue.aclose)
                yield opened

    async def test_a_job_is_received_as_it_was_sent(self, tmp_path: Path) -> None:
        prompt = [{"role": "user", "content": [{"text": "ä\n\"'\0"}, {"image": {"source": {"bytes": b"\0\xff"}}}]}]
        job = TurnJob("a", "sé 1", cast("Prompt", prompt), token="t", attributes={"tenant": {"id": 5}})
        async with self.queues(tmp_path) as (queue,):
            assert queue.lease_s == 30.0
            assert await queue.receive(10, 0) == []
            await queue.send(job)
            (delivery,) = await take_jobs(queue, 1)
            assert (delivery.job, delivery.tries) == (job, 1)
            assert await queue.receive(10, 0) == []

    async def test_receiving_waits_for_what_is_sent_meanwhile(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path, 2) as (queue, other), anyio.create_task_group() as group:
            await queue.receive(1, 0)

            async def send_later() -> None:
                await anyio.sleep(0.1)
                await other.send(job_number(1))

            group.start_soon(send_later)
            assert tokens(await queue.receive(1, 20)) == ["s-1"]

    async def test_a_finished_job_is_gone_and_others_survive_the_end_of_every_process(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for number in range(3):
                await queue.send(job_number(number, f"s{number}"))
            first, *rest = await take_jobs(queue, 3)
            assert await queue.settle(first, Done())
            for delivery in rest:
                assert await queue.settle(delivery, Again(0.0))
        async with self.queues(tmp_path) as (queue,):
            again = await take_jobs(queue, 2)
            assert sorted(tokens(again)) == sorted(tokens(rest))
            assert await queue.receive(10, 0) == []

    async def test_no_more_are_given_than_are_asked_for(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for number in range(5):
                await queue.send(job_number(number, f"s{number}"))
            assert 1 <= len(await queue.receive(2, 1)) <= 2

    async def test_two_consumers_share_the_jobs(self, tmp_path: Path) -> None:
        found: list[str] = []

        async def consume(queue: TurnQueue) -> None:
            while len(found) < 40:
                for delivery in await queue.receive(3, 0.1):
                    found.extend(tokens([delivery]))
                    assert await queue.settle(delivery, Done())

        async with self.queues(tmp_path, 2) as (one, two):
            for number in range(40):
                await one.send(job_number(number, f"s{number % 8}"))
            async with anyio.create_task_group() as group:
                group.start_soon(consume, one)
                group.start_soon(consume, two)
            assert len(found) == len(set(found)) == 40
            for session in range(8) if self.keeps_order else ():
                own = [token for token in found if token.startswith(f"s{session}-")]
                assert own == [f"s{session}-{number}" for number in range(session, 40, 8)]

    async def test_a_session_has_one_job_in_hand_and_keeps_no_other_waiting(self, tmp_path: Path) -> None:
        if not self.keeps_order:
            pytest.skip("this queue gives the jobs of a session in any order")
        async with self.queues(tmp_path, 2) as (one, two):
            for number in range(3):
                await one.send(job_number(number))
            await one.send(job_number(0, "other"))
            (first,) = await take_jobs(one, 1)
            (other,) = await take_jobs(two, 1)
            assert tokens([first, other]) == ["s-0", "other-0"]
            assert await two.receive(10, 0) == []
            assert await one.settle(first, Again(0.0))
            (again,) = await take_jobs(two, 1)
            assert (tokens([again]), again.tries) == (["s-0"], 2)
            assert await two.settle(again, Done())
            assert tokens(await take_jobs(one, 1)) == ["s-1"]

    async def test_a_job_that_comes_back_later_keeps_its_place(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for number in range(2):
                await queue.send(job_number(number))
            first = (await take_jobs(queue, 1))[0]
            assert await queue.settle(first, Again(1.0, "why"))
            order = [*tokens(await queue.receive(1, 0))]
            order += [*tokens(await take_jobs(queue, 1))]
            if self.keeps_order:
                assert order == [*tokens([first])]

    async def test_tries_are_counted_unless_it_is_said_that_they_do_not_count(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            await queue.send(job_number(1))
            for tries in (1, 2):
                (delivery,) = await take_jobs(queue, 1)
                assert delivery.tries == tries
                assert await queue.settle(delivery, Again(0.0))
            for _ in range(3):
                (delivery,) = await take_jobs(queue, 1)
                assert delivery.tries == 3 or not self.counts_tries
                assert await queue.settle(delivery, Again(0.0, counts=False))

    async def test_a_claim_runs_out_unless_it_is_extended(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path, 2, LEASE_S) as (one, two):
            await one.send(job_number(1, "lost"))
            await one.send(job_number(1, "kept"))
            mine = {tokens([each])[0]: each for each in await take_jobs(one, 2)}
            again: list[Delivery] = []
            while not again:
                await one.extend([mine["kept-1"]])
                again = [*await two.receive(10, 0.1)]
            assert (tokens(again), again[0].tries) == (["lost-1"], 2)
            await two.extend(again)
            if self.guards_claims:
                for verdict in (Done(), Again(0.0), Aside("why")):
                    assert not await one.settle(mine["lost-1"], verdict)
            await one.extend([mine["lost-1"], mine["kept-1"]])
            assert await one.settle(mine["kept-1"], Done())
            assert await two.settle(again[0], Done())
            assert await two.receive(10, LEASE_S + 0.5) == []

    async def test_who_was_late_may_still_settle_what_nobody_else_has(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path, 1, LEASE_S) as (queue,):
            await queue.send(job_number(1))
            (delivery,) = await take_jobs(queue, 1)
            await anyio.sleep(LEASE_S + 0.1)
            assert await queue.settle(delivery, Done()) or not self.guards_claims
            assert not self.guards_claims or await queue.receive(10, 0.1) == []

    async def test_what_is_set_aside_is_listed_and_given_to_nobody_until_it_is_put_back(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for number in range(2):
                await queue.send(job_number(number))
            (first,) = await take_jobs(queue, 1)
            assert await queue.settle(first, Aside("it cannot be: ünmöglich"))
            (second,) = await take_jobs(queue, 1)
            assert await queue.settle(second, Done())
            assert await queue.receive(10, 0) == []
            (job,) = await aside(queue, 1)
            named = {job.token, f"{job.agent} {job.session_id}", job.why}
            assert named == {*tokens([first]), "a s", "it cannot be: ünmöglich"}
            assert "prompt" in job.text
            assert not await queue.retry("there is none")
            assert await queue.retry(job.id)
            assert not await queue.retry(job.id)
            (again,) = await take_jobs(queue, 1)
            assert (again.job, again.tries) == (first.job, 1)
            assert list(await queue.set_aside(10)) == []

    async def test_what_is_listed_can_be_put_back_at_once(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for number in range(3):
                await queue.send(job_number(number, f"s{number}"))
            for delivery in await take_jobs(queue, 3):
                assert await queue.settle(delivery, Aside("why"))
            assert [await queue.retry(each.id) for each in await aside(queue, 3)] == [True] * 3
            assert {*tokens(await take_jobs(queue, 3))} == {f"s{number}-{number}" for number in range(3)}

    async def test_a_job_that_was_set_aside_or_is_done_is_given_when_it_is_sent_again(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for verdict in (Aside("why"), Done(), Done()):
                await queue.send(job_number(1))
                (delivery,) = await take_jobs(queue, 1)
                assert (delivery.job, delivery.tries) == (job_number(1), 1)
                assert await queue.settle(delivery, verdict)

    async def test_a_message_without_a_token_keeps_the_one_it_was_given_when_it_is_put_back(
        self, tmp_path: Path
    ) -> None:
        async with self.queues(tmp_path) as (queue,):
            await queue.receive(1, 0)
            await self.put_raw(
                tmp_path, b'{"token": null, "agent": "a", "session_id": "s", "prompt": "pay", "more": 1} '
            )
            seen: set[str] = set()
            for _ in range(3):
                (delivery,) = await take_jobs(queue, 1)
                assert await queue.settle(delivery, Aside("why"))
                (job,) = await aside(queue, 1)
                assert '"more": 1' in job.text
                assert await queue.retry(job.id)
                seen |= {job.token, *tokens([delivery])}
            assert len(seen) == 1

    async def test_messages_of_others_that_are_no_jobs_can_be_set_aside_and_keep_nobody_waiting(
        self, tmp_path: Path
    ) -> None:
        bodies = [body for body in FOREIGN if self.can_put(body)]
        async with self.queues(tmp_path) as (queue,):
            await queue.receive(1, 0)
            for body in bodies:
                await self.put_raw(tmp_path, body)
            await queue.send(job_number(1, "sound"))
            found = await take_jobs(queue, len(bodies) + 1)
            bad = [each for each in found if isinstance(each.job, Malformed)]
            assert len(bad) == len(bodies)
            for delivery in bad:
                assert await queue.settle(delivery, Aside("malformed"))
            jobs = await aside(queue, len(bodies))
            assert {(each.why, each.token) for each in jobs} == {("malformed", "")}

    async def test_a_job_of_another_program_has_the_same_token_at_each_delivery(self, tmp_path: Path) -> None:
        body = b'{"agent": "a", "session_id": "s", "prompt": "hi", "of a later release": 1}'
        async with self.queues(tmp_path) as (queue,):
            await queue.receive(1, 0)
            await self.put_raw(tmp_path, body)
            seen: set[str] = set()
            for _ in range(3):
                (delivery,) = await take_jobs(queue, 1)
                seen.update(tokens([delivery]))
                assert await queue.settle(delivery, Again(0.0))
            (token,) = seen
            assert token.startswith("job-")
            (delivery,) = await take_jobs(queue, 1)
            assert await queue.settle(delivery, Done())
            await self.put_raw(tmp_path, body)
            assert tokens(await take_jobs(queue, 1)) != [token]

    async def test_a_job_is_not_given_before_its_time(self, tmp_path: Path) -> None:
        if not self.delays:
            pytest.skip("this queue leaves that to workers")
        async with self.queues(tmp_path) as (queue,):
            await queue.send(TurnJob("a", "s", "later", token="later", not_before=4e9))
            await queue.send(TurnJob("a", "s", "now", token="now", not_before=1.0))
            (delivery,) = await take_jobs(queue, 1)
            assert tokens([delivery]) == ["now"]
            assert await queue.settle(delivery, Done())
            assert await queue.receive(10, 0.3) == []

    async def test_a_cancelled_receiver_has_nothing(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path, 2, 5.0) as (one, two):
            for number in range(6):
                await one.send(job_number(number, f"s{number}"))
            for step in range(8):
                with anyio.move_on_after(0.002 * step):
                    for delivery in await one.receive(10, 1.0):
                        with anyio.CancelScope(shield=True):  # Otherwise it is claimed until the lease has run out.
                            await one.settle(delivery, Again(0.0, counts=False))
            assert len({*tokens(await take_jobs(two, 6))}) == 6

    async def test_counts_say_how_many_wait_are_taken_and_were_set_aside(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            for number in range(5):
                await queue.send(job_number(number, f"s{number}"))
            (first,) = (await take_jobs(queue, 1))[:1]
            assert await queue.settle(first, Aside("why"))
            await take_jobs(queue, 1)
            while True:
                counts = await queue.counts()
                if (counts.waiting, counts.taken, counts.set_aside) == (3, 1, 1):
                    break
                await anyio.sleep(0.05)

    async def test_a_closed_queue_says_so(self, tmp_path: Path) -> None:
        async with self.queues(tmp_path) as (queue,):
            await queue.receive(1, 0)
            await queue.aclose()
            with pytest.raises(Invalid, match="closed"):
                await queue.send(job_number(1))
            with pytest.raises(Invalid, match="closed"):
                await queue.receive(1, 0)

    async def test_what_is_no_job_is_refused_before_it_is_sent(self) -> None:
        for token, not_before in (("a/b", None), ("", None), ("t", float("nan")), ("t", -1.0)):
            with pytest.raises(Invalid):
                TurnJob("a", "s", "hi", token=token, not_before=not_before)
        with pytest.raises(Invalid, match="JSON"):
            TurnJob("a", "s", "hi", token="t", attributes={"x": object()})
        with pytest.raises(TooLarge):
            TurnJob("a", "s", "x" * JOB_BYTES_MAX, token="t")
