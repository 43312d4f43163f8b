"""Jobs of a queue: their form, and every decision about one. A job is one turn that a program wants of a session.

A queue gives a job at least once; its token lets the turn happen once. After each try there are three verdicts: the job
is finished, it comes back later, or it is set aside for a person to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec
from msgspec import Struct

from repertory.core.admission import TENANT_TURNS
from repertory.core.deliveries import check_names
from repertory.core.ids import check_id
from repertory.core.turns.due_times import may_pass
from repertory.core.turns.portable_call import PortableCall, call_fields, read_portable
from repertory.errors import (
    ActorDead,
    ActorFailed,
    Conflict,
    Invalid,
    NodeFailed,
    RepertoryError,
    RunUnfinished,
    StartFailed,
    StoreFailed,
    Throttled,
    TooLarge,
    Unwritable,
)

if TYPE_CHECKING:
    from repertory.core.messages import Json, Prompt

JOB_BYTES_MAX = 1024 * 1024
"""The largest job as JSON: what SQS takes at most."""
TRIES = 5
"""The tries of a job before it is set aside, unless a worker has another number."""
WAIT_MAX_S = 86_400.0
"""The longest wait that a queue is asked for, since a queue, a file system and a service have an end of time each. A
job that is due later, or whose model asked for more, is looked at once a day.
"""
_TIME_MAX = 253_402_300_799.0
"""The end of the year 9999."""
_FIRST_S, _MAX_S = 1.0, 300.0


@dataclass(frozen=True, slots=True)
class TurnJob:
    """One turn of a session, or one run of a graph or swarm, as a queue keeps it.

    Args:
        session_id: The id of the session.

    Raises:
        Invalid: For bad ids and values that are not JSON. Correct the argument.
        TooLarge: For a job of more than 1 MiB of JSON. Give a smaller value, or raise the bound.
    """

    agent: str
    """The agent's name in the worker's runtime, or the id of a graph or swarm."""
    session_id: str
    prompt: Prompt = None
    """The prompt of the turn: text, content blocks, messages, answers to interrupts, or None to go on."""
    token: str = field(kw_only=True)
    """The name of the turn: however often the job is given, the turn happens once. Its answer is what
    `session.invoke(prompt, idempotency_token=token)` returns. A job without a prompt has the token of the turn that it
    goes on with.
    """
    not_before: float | None = field(default=None, kw_only=True)
    """The epoch seconds before which nobody is given the job."""
    attributes: Mapping[str, object] = field(default_factory=dict[str, object], kw_only=True)
    """JSON values of the program's own, such as a tenant: hooks and tools find them in the invocation state."""
    deliver_to: Sequence[str] = field(default=(), kw_only=True)
    """The names of the destinations of `Runtime.deliver` that are told of the turn besides those that are told of every
    one. The worker takes those that its `CallerRules` list.
    """

    def __post_init__(self) -> None:
        check_id(self.agent, "agent name")
        check_id(self.session_id, "session id")
        check_id(self.token, "token")
        at = cast("object", self.not_before)
        if at is not None and (isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= _TIME_MAX):
            raise Invalid("not_before is a time in epoch seconds, before the year 10000", got=at)
        if not isinstance(cast("object", self.attributes), Mapping):
            raise Invalid("attributes are a mapping of JSON values", got=type(self.attributes).__name__)
        names = cast("object", self.deliver_to)
        # Those of a job that was read are a list, and those of its sender may be a single name.
        object.__setattr__(self, "deliver_to", () if names is None or names in ((), []) else check_names(names))
        job_text(self)


class Malformed(Struct, frozen=True):
    """The stand-in for a job that cannot be read."""

    reason: str


def job_text(job: TurnJob) -> str:
    """The job as one line of JSON. Errors: `Invalid`, `TooLarge`."""
    if not isinstance(cast("object", job), TurnJob):
        raise Invalid("a job is a TurnJob: TurnJob('clerk', 'user-123', 'Hi!', token='t-1')", got=type(job).__name__)
    try:
        call = call_fields(PortableCall(prompt=job.prompt, invocation_state=dict(job.attributes)))
        fields = {"agent": job.agent, "session_id": job.session_id, "prompt": call.get("prompt"), "token": job.token}
        more = {
            "not_before": job.not_before,
            "attributes": call.get("invocation_state"),
            "deliver_to": job.deliver_to,
        }
        text = msgspec.json.encode({**fields, **{key: value for key, value in more.items() if value}})
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Invalid("a job is kept as JSON, and this is none", cause=str(error)) from error
    if len(text) > JOB_BYTES_MAX:
        raise TooLarge("a job is too large for a queue", size_bytes=len(text), bytes_max=JOB_BYTES_MAX)
    return text.decode()


def read_job(data: bytes, given_id: str) -> TurnJob | Malformed:
    """The job in a message. `given_id`: what the queue calls the message, which is the token of a job without one.

    Never fails: a message that is no job says why. Fields that this release does not know are passed over.
    """
    if len(data) > JOB_BYTES_MAX:
        return Malformed(f"larger than {JOB_BYTES_MAX} bytes")
    try:
        fields = msgspec.json.decode(data)
        if not isinstance(fields, dict):
            return Malformed("not a JSON object")
        fields = cast("dict[str, Json]", fields)
        missing = [name for name in ("agent", "session_id") if name not in fields]
        if missing:
            return Malformed(f"a job names its {' and its '.join(missing)}")
        call = read_portable({"prompt": fields.get("prompt"), "invocation_state": fields.get("attributes") or {}})
        return TurnJob(
            cast("str", fields["agent"]),
            cast("str", fields["session_id"]),
            cast("Prompt", _prompt(call.prompt)),
            token=cast("str", given_token(given_id) if fields.get("token") is None else fields["token"]),
            not_before=cast("float | None", fields.get("not_before")),
            attributes=call.invocation_state,
            deliver_to=cast("Sequence[str]", fields.get("deliver_to", ())),
        )
    except (Invalid, TooLarge) as error:
        return Malformed(str(error))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return Malformed(f"not JSON: {error}")


def _prompt(value: object) -> object:
    if value is None or isinstance(value, str | list):
        return cast("object", value)
    raise Invalid("a prompt is a text, a list or null", got=type(value).__name__)


def given_token(given_id: str) -> str:
    """A token for a message that has none: the same for each delivery of it."""
    return f"job-{blake2b(given_id.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def with_token(body: str, job: TurnJob | Malformed) -> str:
    """The message with the token that its job was read with, for a queue that will call it by another name. All else
    in it stays as it is, and what is no job too.
    """
    if isinstance(job, Malformed) or msgspec.json.decode(body).get("token") is not None:
        return body
    # Behind a `"token": null`: of two fields of one name, the last one counts.
    return f'{body.rstrip()[:-1]},"token":{msgspec.json.encode(job.token).decode()}}}'


class Done(Struct, frozen=True):
    """The job is over: the queue forgets it."""


class Again(Struct, frozen=True):
    """The job comes back."""

    after_s: float
    why: str = ""
    counts: bool = True
    """True if the try counts; False where the job is not to blame for its end."""


class Aside(Struct, frozen=True):
    """The job is kept where nobody is given it, until a person puts it back."""

    why: str


JobVerdict: TypeAlias = Done | Again | Aside


def verdict_at_receipt(
    job: TurnJob | Malformed, tries: int, tries_max: int, agents: Collection[str], now: float
) -> JobVerdict | None:
    """The verdict on a job before it is tried; None: it is tried. `tries`: the number of this try, counted from 1."""
    if isinstance(job, Malformed):
        return Aside(f"malformed: {job.reason}")
    if job.not_before is not None and job.not_before > now:
        return Again(min(job.not_before - now, WAIT_MAX_S), counts=False)
    if tries > tries_max:
        return Aside(f"given {tries - 1} times, and each time it or its worker came to an end without an outcome")
    if job.agent not in agents:
        why = f"no agent, graph or swarm of this name is in the worker: {job.agent}"
        return Aside(why) if tries >= tries_max else Again(wait_after_s(tries, 0.0), why)
    return None


def verdict_on_error(
    error: RepertoryError, tries: int, tries_max: int, *, draining: bool, jitter: float
) -> Again | Aside:
    """The verdict on a job whose turn has failed. `draining`: the worker is about to end, which fails turns that are
    sound. `jitter`: a random number from 0 up to 1, which shortens the wait by up to half.
    """
    passes = may_succeed(error)
    if draining and passes:
        return Again(0.0, counts=False)
    why = f"{type(error).__name__}: {error}"
    asked_s = error.retry_after_s if isinstance(error, Throttled) else None
    if asked_s is not None and error.fields.get("limit") == TENANT_TURNS:
        return Again(min(max(1.0, asked_s), WAIT_MAX_S), why, counts=False)  # Other turns of its tenant wait before it.
    if not passes or tries >= tries_max:
        return Aside(why)
    least_s = wait_after_s(tries, jitter)
    return Again(min(max(least_s, asked_s or 0.0), WAIT_MAX_S), why)  # In this order, NaN counts for nothing.


def verdict_on_stop(stop_reason: str, *, draining: bool) -> JobVerdict:
    """The verdict on a job whose turn has ended. One that a drain has cut short goes on elsewhere."""
    return Again(0.0, counts=False) if draining and stop_reason == "cancelled" else Done()


def may_succeed(error: BaseException | None) -> bool:
    """True if the same job may end otherwise later; for a run, the error of its failed node decides. An error that the
    job's own content has caused comes again.
    """
    while isinstance(error, NodeFailed):
        error = error.__cause__
    match error:
        case RunUnfinished() | Unwritable():
            return False
        case ActorDead() | ActorFailed() | StartFailed() | Conflict() | StoreFailed():
            return True
        case _:
            return may_pass(error)


def wait_after_s(tries: int, jitter: float) -> float:
    """Seconds until the next try, after this number of tries."""
    # The inner bound is for tries that somebody has written into a queue: `2.0 ** 1024` raises an OverflowError.
    return min(_FIRST_S * 2.0 ** min(tries - 1, 16), _MAX_S) * (1 - jitter / 2)
