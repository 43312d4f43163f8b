"""Records of tools that wait for results which come later: the results, their expiry, and the turns that tell them.

A tool waits from the record that names it until its result comes, it expires, or a rewind goes back to before it. A
result that has come stands in the journal until the commit that stores the message which tells it: so it is never lost,
and never told twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

from repertory.core.deferral import (
    DEFERRED_MAX,
    WHERE_NOT,
    BackgroundRun,
    DeferredTool,
    Telling,
    deferred_id,
    expiry_text,
    first_that_fit,
    next_expiry,
    nothing_waits,
    result_blocks,
)
from repertory.core.journal.fold import is_answer
from repertory.core.journal.pending_tools import asked_again_id
from repertory.core.journal.records import (
    DeferralsChanged,
    DeferredResult,
    Interrupted,
    RunChanged,
    StepFinished,
    StepStarted,
    ToolStarted,
)
from repertory.core.journal.steps import step_records
from repertory.core.messages import error_result
from repertory.errors import Invalid

if TYPE_CHECKING:
    from repertory.core.deferral import Deferral, RunAsks
    from repertory.core.journal.fold import Fold
    from repertory.core.journal.image import Image
    from repertory.core.journal.records import Record
    from repertory.core.messages import ContentBlock, Json, Message, ToolResult, ToolUse

CUSTOM = "deferred_results"
"""The key in a message's custom metadata that holds the ids of the results which it tells."""


def new_id(fold: Fold, idempotency_key: str, secret: bytes) -> str:
    """The id under which the result of a running tool may come. `secret`: that of `deferred_id`; empty where none can
    come. Errors: `Invalid` there, and while too many wait.
    """
    if not secret:
        raise Invalid(WHERE_NOT)
    if len(fold.deferred) >= DEFERRED_MAX:
        raise Invalid("that many tools of a session may wait for results at most", deferred_max=DEFERRED_MAX)
    return deferred_id(idempotency_key, secret)


def defer(fold: Fold, deferral: Deferral, use: ToolUse, now: float) -> DeferralsChanged | None:
    """The record after which the tool waits; None if its result is there already, as when it came before the tool was
    cut off and run again.
    """
    # A webhook may be faster than the tool's return.
    if deferral.id in fold.came or deferral.id in fold.settled:
        return None
    tool = DeferredTool(
        id=deferral.id,
        tool=use["name"],
        tool_use_id=use["toolUseId"],
        since=now,
        expires_at=None if deferral.expires_s is None else now + deferral.expires_s,
        on_expiry=deferral.on_expiry,
        deliver_to=fold.turn_to,
    )
    return DeferralsChanged(at=now, deferrals=(tool,))


def run(fold: Fold, deferred: str, use: ToolUse, key: str, now: float, *, begins: bool) -> DeferralsChanged | None:
    """The record after which the agent runs this use in the background; None if it does, or has done so. `key`: the
    idempotency key of the use. `begins`: it is about to begin, and does not wait for others.
    """
    if deferred in fold.came or deferred in fold.settled or deferred in fold.deferred:
        return None
    own = BackgroundRun(input=use["input"], idempotency_key=key, attempt=int(begins))
    tool = DeferredTool(
        id=deferred, tool=use["name"], tool_use_id=use["toolUseId"], since=now, run=own, deliver_to=fold.turn_to
    )
    return DeferralsChanged(at=now, deferrals=(tool,))


def change_run(fold: Fold, deferred: str, now: float, *, attempt: int = 0, asks: RunAsks = "") -> DeferralsChanged:
    """The record after which a run has begun its next `attempt`, or `asks` a person. Errors: KeyError if it is over."""
    tool = fold.deferred[deferred]
    if tool.run is None:
        raise KeyError(deferred)
    return DeferralsChanged(at=now, runs=(RunChanged(deferred, attempt or tool.run.attempt, asks),))


def run_ended(
    fold: Fold, deferred: str, result: ToolResult, now: float, *, starts: bool = True
) -> DeferredResult | None:
    """The record of a run's result; None if the run is over already, or was taken back."""
    tool = fold.deferred.get(deferred)
    if tool is None or tool.run is None:
        return None
    to = tool.deliver_to
    return DeferredResult(at=now, id=deferred, name=tool.tool, result=result, starts=starts, ran=True, deliver_to=to)


def asking_run(fold: Fold) -> DeferredTool | None:
    """The first run that waits for a person."""
    return next((tool for tool in fold.deferred.values() if tool.run is not None and tool.run.asks), None)


def asking_behind_answer(fold: Fold, due: object = None) -> DeferredTool | None:
    """The run that waits for a person and that the next turn can take over: one behind an answer. `due`: the cause of
    that turn; it may be a run.
    """
    if fold.last_message is not None and not is_answer(fold.last_message):
        return None
    own = fold.deferred.get(due.id) if isinstance(due, Telling) else None
    return own if own is not None and own.run is not None and own.run.asks else asking_run(fold)


def in_foreground(tool: DeferredTool) -> Message:
    """The message by which a run that waits for a person goes on as a tool of a turn, which asks."""
    used = None if tool.run is None else cast("Json", tool.run.input)
    use: ToolUse = {"toolUseId": asked_again_id(tool.id), "name": tool.tool, "input": used}
    return {"role": "assistant", "content": [{"toolUse": use}]}


def foreground_records(fold: Fold, tool: DeferredTool, now: float) -> list[Record]:
    """The records behind that message, as a crash among the turn's tools would have left them."""
    assert tool.run is not None
    use_id = asked_again_id(tool.id)
    key, attempt = tool.run.idempotency_key, max(1, tool.run.attempt)
    begun = ToolStarted(at=now, tool_use_id=use_id, name=tool.tool, idempotency_key=key, attempt=attempt)
    records: list[Record] = [begun]
    records += [replace(each, tool_use_id=use_id) for each in step_records(fold.run_steps.get(tool.id, {}))]
    if tool.run.asks == "question":  # Its outcome is known: it stopped to ask, and asks again as it runs again.
        records.append(Interrupted(at=now, interrupts=(), parked=(use_id,)))
    return [*records, DeferralsChanged(at=now, ended=(tool.id,))]


def withdraw(fold: Fold, deferred: str, now: float) -> DeferralsChanged | None:
    """The record after which nothing waits under this id; None if nothing does."""
    return DeferralsChanged(at=now, ended=(deferred,)) if deferred in fold.deferred else None


def take(
    fold: Fold, deferred: str, result: ToolResult, now: float, *, starts: bool, secret: bytes
) -> DeferredResult | None:
    """The record of a result; None if there is one of this id. `secret`: that of `deferred_id`.

    A result may come while the tool that it is for still runs, or is to run again after a crash. Errors: `Gone`.
    """
    came = fold.came.get(deferred)
    # Senders of webhooks repeat themselves until they see success.
    if deferred in fold.settled or (came is not None and not came.expired):
        return None
    waits = fold.deferred.get(deferred)
    if came is not None or (waits is not None and waits.is_over(now)):
        raise nothing_waits(deferred)
    # Not on record as waiting: it may be the early result of a tool that has not returned.
    named = _running(fold, deferred, secret) if waits is None else (waits.tool, waits.tool_use_id)
    if named is None:
        raise nothing_waits(deferred)
    (tool, use_id), to = named, fold.turn_to if waits is None else waits.deliver_to
    given: ToolResult = {**result, "toolUseId": use_id}
    return DeferredResult(at=now, id=deferred, name=tool, result=given, starts=starts, deliver_to=to)


def _running(fold: Fold, deferred: str, secret: bytes) -> tuple[str, str] | None:
    """Name and id of the tool use that was started and has this id, if its end is not on record."""
    for use_id, started in (*fold.open_tools.items(), *fold.parked.items()):
        if deferred_id(started.idempotency_key, secret) == deferred:
            return started.name, use_id
    return None


def expired(fold: Fold, now: float) -> list[Record]:
    """The records by which those that have waited long enough wait no longer."""
    over = [tool for tool in fold.deferred.values() if tool.is_over(now)]
    if not over:
        return []
    results = [
        DeferredResult(
            at=now,
            id=tool.id,
            name=tool.tool,
            result=error_result(tool.tool_use_id, expiry_text(tool)),
            expired=True,
            deliver_to=tool.deliver_to,
        )
        for tool in over
        if tool.on_expiry == "tell"
    ]
    dropped = tuple(tool.id for tool in over if tool.on_expiry == "drop")
    return [*([DeferralsChanged(at=now, ended=dropped)] if dropped else []), *results]


def tell(fold: Fold, ids: Collection[str], now: float) -> DeferralsChanged | None:
    """The record behind a message that tells these results; None if they were told before."""
    reported = [each for each in ids if each in fold.came]
    if not reported:
        return None
    # An expired one has had no result from outside: one that comes after all is refused, and not taken for a
    # repetition.
    settled = tuple(each for each in reported if not fold.came[each].expired)
    return DeferralsChanged(at=now, settled=settled, told=tuple(reported))


def hold(fold: Fold, ids: Collection[str], now: float, *, failed: bool = False) -> Iterator[DeferredResult]:
    """The records after which no turn begins for these results: they are told in the next one. `failed`: the turn that
    was to tell them, or to ask for one of these runs, has failed for good.
    """
    for each in ids:
        came, tool = fold.came.get(each), fold.deferred.get(each)
        if came is not None and came.starts:
            yield replace(came, at=now, starts=False)
        elif failed and tool is not None and tool.run is not None and tool.run.asks:
            result = error_result(tool.tool_use_id, "Not finished: a person was to be asked, and could not be.")
            to = tool.deliver_to
            yield DeferredResult(at=now, id=each, name=tool.tool, result=result, starts=False, ran=True, deliver_to=to)


def has_untold(fold: Fold | Image) -> bool:
    """True if results have come that a turn is about to tell."""
    return any(came.starts for came in fold.came.values())


def telling(fold: Fold) -> Telling | None:
    """The turn that is to tell what has come, or to ask for a run; None if there is none."""
    if has_untold(fold):
        ids = next_reported(fold)
        to = dict.fromkeys(name for each in ids for name in fold.came[each].deliver_to)
        return Telling(ids=ids, at=fold.came[ids[0]].at, deliver_to=(*to,))
    asking = asking_run(fold)
    return None if asking is None else Telling(ids=(asking.id,), at=asking.since, deliver_to=asking.deliver_to)


def begins_turns(fold: Fold) -> bool:
    """True if a turn is to begin for a result that has come, or for a run that waits for a person."""
    return has_untold(fold) or asking_run(fold) is not None


def stands(fold: Fold, deferred: str) -> bool:
    """True if a turn may begin for this id: its result is not told yet, or its run waits for a person."""
    tool = fold.deferred.get(deferred)
    return deferred in fold.came or (tool is not None and tool.run is not None and tool.run.asks != "")


def next_reported(fold: Fold) -> tuple[str, ...]:
    """The ids of the results that the next turn tells."""
    return first_that_fit((came.id, came.result) for came in fold.came.values())


def due_at(fold: Fold, grace_s: float) -> float | None:
    """The epoch seconds at which a turn is to tell something: `grace_s` after a result came, or when a tool expires."""
    times = [came.at + grace_s for came in fold.came.values() if came.starts]
    if (asking := asking_run(fold)) is not None:
        times.append(asking.since + grace_s)
    return min((at for at in (*times, next_expiry(fold.deferred)) if at is not None), default=None)


def with_results(
    messages: Sequence[Message], came: Sequence[DeferredResult], *, alone: bool
) -> tuple[Message, ...] | None:
    """The messages that begin a turn, with these results in front of what the user says; None if they cannot be told
    now: in front of a message of the assistant, or, without messages, when a turn goes on. `alone`: they begin one.
    """
    blocks, ids = [block for each in came for block in content_of(each)], [each.id for each in came]
    if not messages:
        return (naming_results({"role": "user", "content": blocks}, ids),) if alone else None
    first, *rest = messages
    if first["role"] != "user":
        return None
    return naming_results({**first, "content": [*blocks, *first["content"]]}, ids), *rest


def content_of(came: DeferredResult) -> list[ContentBlock]:
    """The result as what is said to a turn that runs."""
    return result_blocks(came.name, came.result)


def naming_results(message: Message, ids: Sequence[str]) -> Message:
    """The message, which tells the results of these ids, with the ids."""
    metadata = message.get("metadata", {})
    return {**message, "metadata": {**metadata, "custom": {**metadata.get("custom", {}), CUSTOM: [*ids]}}}


def waiting_records(fold: Fold | Image, at: float) -> Iterator[Record]:
    """All that waits, and what has come, to be stated behind a `Branched`, which drops them."""
    # A rewind may go back to the message that tells a result, before the record which says that it did.
    last = fold.last_message
    named = cast("object", None if last is None else last.get("metadata", {}).get("custom", {}).get(CUSTOM))
    ids = cast("list[object]", named) if isinstance(named, list) else []
    reported = [each for each in ids if isinstance(each, str) and each in fold.came]
    if fold.deferred or fold.settled or reported:
        yield from waiting_tools(fold, at)
    if reported:
        yield DeferralsChanged(at=at, settled=tuple(each for each in reported if not fold.came[each].expired))
    yield from (came for came in fold.came.values() if came.id not in reported)


def waiting_tools(fold: Fold | Image, at: float, *, reported: Iterable[str] = ()) -> list[DeferralsChanged]:
    """All tools that wait: first those that wait for the outside, then those that run in the background, a record each
    with its steps, so that each record is as small as what it states. `reported`: the ids that were told.
    """
    # A list: applying the first record changes the fold.
    outside = tuple(tool for tool in fold.deferred.values() if tool.run is None)
    first = DeferralsChanged(
        at=at, deferrals=outside, settled=fold.settled, told=tuple(dict.fromkeys(reported)), whole=True
    )
    runs = [tool for tool in fold.deferred.values() if tool.run is not None]
    steps = [tuple(step_records(fold.run_steps.get(tool.id, {}))) for tool in runs]
    return [
        first,
        *(DeferralsChanged(at=at, deferrals=(tool,), steps=own) for tool, own in zip(runs, steps, strict=True)),
    ]


def stated_again(fold: Fold, erased: Sequence[Record | None], at: float) -> list[DeferralsChanged]:
    """The waiting tools, where rows that said so were erased, also those that told results, which would else be
    told again.
    """
    if not any(isinstance(record, DeferralsChanged | StepStarted | StepFinished) for record in erased):
        return []
    reported = (each for record in erased if isinstance(record, DeferralsChanged) for each in record.told)
    return waiting_tools(fold, at, reported=reported)


def runs_due_at(fold: Fold, grace_s: float) -> float | None:
    """The epoch seconds from which on another owner is to look after the runs; None without any that could go on."""
    begun = (tool.since for tool in fold.deferred.values() if tool.run is not None and not tool.run.asks)
    first = min(begun, default=None)
    return None if first is None else first + grace_s
