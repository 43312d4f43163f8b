"""The port of a worker's queue. Every queue passes `repertory/testing/queue_contract.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from repertory.worker.decisions import JobVerdict, Malformed, TurnJob, read_job


class Delivery(Struct, frozen=True, kw_only=True):
    """A job in somebody's hands."""

    id: str
    """The queue's name for it, the same at each delivery."""
    claim: str
    """The name of this delivery: only its holder may settle it."""
    job: TurnJob | Malformed
    tries: int
    """The number of this try, from 1. Tries that were given back uncounted are left out, where the queue can tell."""


class TurnQueue(Protocol):
    """A queue that keeps jobs, and gives each to one holder at a time, at least once. For any number of processes.

    Errors of every method: `Unavailable` and its subclasses when the queue cannot be reached now: try again. `Failed`
    when it refuses: change its rights or its settings. `Invalid` for a queue that cannot be one, or was closed.
    """

    @property
    def name(self) -> str:
        """The queue's name in logs and errors."""
        ...

    @property
    def lease_s(self) -> float:
        """Seconds that a holder has a delivery, unless it is extended. It is given to others after that."""
        ...

    async def send(self, job: TurnJob) -> None:
        """Keep a job; it is durable on return. Cancelled, it may be kept. Errors: `TooLarge` for one that is larger
        than the queue takes.
        """
        ...

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """Take at most `limit` jobs, after waiting for the first one for `wait_s` seconds at most; empty then.

        Of each session one at a time, in the order in which they were sent, as far as the queue can: its class says so.
        Cancelled, nobody has them: they are given to others, at the latest after `lease_s`.
        """
        ...

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Have these for `lease_s` from now on. Those that others have meanwhile are left alone."""
        ...

    async def settle(self, delivery: Delivery, verdict: JobVerdict) -> bool:
        """Forget the job, give it back, or set it aside. False, and nothing has changed, if somebody else has it
        meanwhile, or it is gone.
        """
        ...

    async def aclose(self) -> None:
        """Release connections and files. What the holder has not settled stays its own for `lease_s` at most."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """The numbers of jobs in a queue; in SQS, estimates."""

    waiting: int
    """Jobs that nobody has."""
    taken: int
    """Jobs that somebody works on."""
    set_aside: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetAside:
    """A job that nobody is given any more."""

    id: str
    text: str
    """The job as it was sent, shortened to `SHOWN` characters."""
    why: str
    agent: str = ""
    """The job's agent; empty, as the two below, for what is no job."""
    session_id: str = ""
    token: str = ""


SHOWN = 2_000
"""The characters of a job that was set aside that are shown, at most."""


def job_set_aside(job_id: str, body: bytes, why: str, *, given_id: str = "") -> JobSetAside:
    """The shown part of a job set aside. `given_id`: the source of a token that it does not name, if not its id."""
    job, text = read_job(body, given_id or job_id), body[: 4 * SHOWN].decode(errors="replace")[:SHOWN]
    if isinstance(job, Malformed):
        return JobSetAside(id=job_id, text=text, why=why)
    named = {"agent": job.agent, "session_id": job.session_id, "token": job.token}
    return JobSetAside(id=job_id, text=text, why=why, **named)


class QueueDesk(Protocol):
    """The port of a queue for an operator. Errors: those of `TurnQueue`."""

    async def counts(self) -> QueueCounts:
        """The numbers of jobs in each state."""
        ...

    async def set_aside(self, limit: int) -> Sequence[JobSetAside]:
        """The jobs that were set aside, `limit` at most, the oldest first."""
        ...

    async def retry(self, job_id: str) -> bool:
        """Put a job that was set aside back, as if it had just been sent. False if there is none of this id."""
        ...
