"""The state of a turn that waits for a person, as a JSON document, and back, also from other programs' documents.

    {"interrupts": {ID: {"id", "name", "reason", "response"}}, "context": {}, "activated": true,
     "pending_tool_execution": {"assistant_message": MESSAGE, "completed_tool_results": [RESULT, ...]}}

There, a response of null means none. Our own snapshots put more into the context: the starts and idempotency keys of
tools, their steps, and when interrupts expire.

Source: the documented session layout, as strands-agents 1.62.0 writes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import cast

from msgspec import structs

from repertory.core.interrupts import Interrupt, is_about_outcome
from repertory.core.journal.codec import decode, encode
from repertory.core.journal.pending_tools import PendingTools, Start
from repertory.core.journal.records import (
    Interrupted,
    Record,
    Resumed,
    StepFinished,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from repertory.core.journal.rows import VERSION
from repertory.core.journal.steps import RecordedStep, step_records
from repertory.core.messages import Json, Message, read_result, repair_stored_message, tool_uses
from repertory.core.provider_parts import for_others
from repertory.errors import CorruptJournal, Invalid

NO_INTERRUPTS: Mapping[str, Json] = {"interrupts": {}, "context": {}, "activated": False}


def asks_somebody(pending: PendingTools) -> bool:
    """True if tools or hooks have asked a person: then documents show a turn that waits."""
    return any(not is_about_outcome(question) for question in pending.questions)


def documented_state(pending: PendingTools) -> dict[str, Json]:
    """The state as the documented layouts have it."""
    if pending.last is None or not asks_somebody(pending):
        return dict(NO_INTERRUPTS)
    interrupts: dict[str, Json] = {}
    for one in pending.questions:
        if not is_about_outcome(one):
            answer = pending.responses.get(one.id)
            interrupts[one.id] = {"id": one.id, "name": one.name, "reason": one.reason, "response": answer}
    held = {"assistant_message": for_others(pending.last), "completed_tool_results": list(pending.finished.values())}
    return {
        "interrupts": interrupts,
        "context": {},
        "activated": True,
        "pending_tool_execution": cast("Json", held),
    }


def snapshot_state(pending: PendingTools) -> dict[str, Json]:
    """The state for our snapshots: the documented one, and the tools' starts and results, also after a crash."""
    uses = {use["toolUseId"] for use in tool_uses(pending.last)} if pending.last is not None else set[str]()
    if not (uses and (pending.starts or pending.finished or pending.questions)):
        return dict(NO_INTERRUPTS)
    context: dict[str, object] = {
        "started": sorted(pending.started),
        "finished": dict(pending.finished),
        "attempts": {use_id: start.attempt for use_id, start in pending.starts.items()},
        "keys": {use_id: start.key for use_id, start in pending.starts.items()},
        **({"steps": _documented_steps(pending.steps)} if pending.steps else {}),
        "answered": sorted(pending.responses),
        "expires_at": {one.id: one.expires_at for one in pending.questions if one.expires_at is not None},
    }
    people = {one.id: [*one.may_answer] for one in pending.questions if one.may_answer}
    if people:
        context["may_answer"] = people
    return {**documented_state(pending), "context": cast("Json", context), "activated": True}


def questions_in(state: Mapping[str, Json]) -> tuple[Interrupt, ...]:
    """The interrupts in a document, in order, each with its response if any. Errors: `Invalid`."""
    context = _mapping(state.get("context"))
    return tuple(_question(_mapping(one), context) for one in _mapping(state.get("interrupts")).values())


def read_state(state: Mapping[str, Json] | None, last: Message | None) -> PendingTools:
    """The pending tools of a turn whose last message is `last`, as far as the document covers them.

    Errors: `Invalid` for a malformed document.
    """
    nothing = PendingTools(last=last)
    uses = {use["toolUseId"] for use in tool_uses(last)} if last is not None else set[str]()
    if not (uses and state and state.get("activated")):
        return nothing
    context, pending = _mapping(state.get("context")), _mapping(state.get("pending_tool_execution"))
    if pending:
        waiting = {use["toolUseId"] for use in tool_uses(repair_stored_message(pending.get("assistant_message")))}
        # The document is of another position than the history: its tools are not the ones that wait now.
        if waiting != uses:
            return nothing
    results = [*_mapping(context.get("finished")).values(), *_list(pending.get("completed_tool_results"))]
    finished = {result["toolUseId"]: result for result in map(read_result, results) if result["toolUseId"] in uses}
    started = {use_id for use_id in _list(context.get("started")) if isinstance(use_id, str) and use_id in uses}
    counts = {**dict.fromkeys(started, 1), **_mapping(context.get("attempts"))}
    keys = _mapping(context.get("keys"))
    starts = {
        use_id: Start(count, str(keys.get(use_id, "")))
        for use_id, count in counts.items()
        if use_id in uses and use_id not in finished and isinstance(count, int)
    }
    questions_read = questions_in(state)
    answered = set(filter(lambda one: isinstance(one, str), _list(context.get("answered"))))
    questions = tuple(replace(one, response=None) for one in questions_read)
    answers = {one.id: one.response for one in questions_read}
    return PendingTools(
        last=last,
        started=frozenset(started - finished.keys()),
        finished=finished,
        starts=starts,
        questions=questions,
        responses={key: answer for key, answer in answers.items() if answer is not None or key in answered},
        steps={use_id: steps for use_id, steps in _read_steps(context.get("steps")).items() if use_id in starts},
    )


def records_between(known: PendingTools, wanted: PendingTools, at: float) -> Iterator[Record]:
    """The records that bring a journal from `known` to `wanted`. Nothing is taken back."""
    names = {use["toolUseId"]: use["name"] for use in tool_uses(wanted.last)} if wanted.last is not None else {}
    begun = {use_id: start for use_id, start in wanted.starts.items() if use_id not in known.starts}
    for use_id, (attempt, key) in begun.items():
        yield ToolStarted(at=at, tool_use_id=use_id, name=names[use_id], idempotency_key=key, attempt=attempt)
    for use_id, result in wanted.finished.items():
        if use_id not in known.finished:
            yield ToolFinished(at=at, tool_use_id=use_id, result=result)
    for use_id, steps in wanted.steps.items():
        if use_id not in known.steps:
            yield from (structs.replace(record, at=at) for record in step_records(steps))
    asked = {one.id for one in known.questions}
    questions = tuple(one for one in wanted.questions if one.id not in asked)
    parked = tuple(use_id for use_id in begun if use_id not in wanted.started)
    if questions or parked:
        yield Interrupted(at=at, interrupts=questions, parked=parked)
    responses = known.new_answers(wanted.responses)
    if responses:
        yield Resumed(at=at, responses=responses)


def _documented_steps(steps: Mapping[str, Mapping[str, RecordedStep]]) -> dict[str, list[Json]]:
    """The steps of tool uses, as the journal would have their records: kind and body."""
    return {
        use_id: [[kind, json.loads(body)] for kind, body in map(encode, step_records(of_use))]
        for use_id, of_use in steps.items()
    }


def _read_steps(document: Json) -> dict[str, dict[str, RecordedStep]]:
    """Errors: `Invalid` for a malformed document."""
    found: dict[str, dict[str, RecordedStep]] = {}
    for use_id, records in _mapping(document).items():
        steps = found.setdefault(use_id, {})
        for each in _list(records):
            match each:
                case [int(kind), dict(body)]:
                    try:
                        record = decode(kind, VERSION, json.dumps(body).encode())
                    except CorruptJournal as error:
                        raise Invalid("a step in this document is malformed", cause=str(error)) from error
                case _:
                    record = None
            if isinstance(record, StepStarted):
                steps[record.step] = RecordedStep(record)
            elif isinstance(record, StepFinished) and record.step in steps:
                steps[record.step] = RecordedStep(steps[record.step].started, record)
            else:
                raise Invalid("the steps of a tool in this document are malformed", got=repr(each)[:200])
    return found


def _question(fields: Mapping[str, Json], context: Mapping[str, Json]) -> Interrupt:
    interrupt_id, name = fields.get("id"), fields.get("name")
    if not isinstance(interrupt_id, str) or not isinstance(name, str):
        raise Invalid("an interrupt has an id and a name", got=repr(fields)[:200])
    until = _mapping(context.get("expires_at")).get(interrupt_id)
    expires_at = float(until) if isinstance(until, int | float) else None
    people = _list(_mapping(context.get("may_answer")).get(interrupt_id) or [])
    return Interrupt(
        id=interrupt_id,
        name=name,
        reason=fields.get("reason"),
        response=fields.get("response"),
        expires_at=expires_at,
        may_answer=tuple(map(str, people)),
    )


def _mapping(value: object) -> dict[str, Json]:
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


def _list(value: object) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []
