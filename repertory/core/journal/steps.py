"""The steps of a tool as the journal has them, and what a tool that runs again may ask for.

A step is found again by its key: its name, numbered where the name repeats within the call. That is enough for steps
that come one after the other. Steps that run beside each other may come in another order after a kill, so a number
would give one the result of the other: the keys of those hold a digest of their arguments as well.

A step may be a call of another tool, which may have steps in turn. Their keys begin with that of the call, and they are
records of the same tool use, so whatever restates, erases or copies its steps has them all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from repertory.core.journal.records import StepFinished, StepStarted
from repertory.core.messages import Json, ToolUse
from repertory.core.steps import REPORTS_MAX, STEPS_MAX, Lane, StepCall, arguments_digest, step_question_name
from repertory.errors import Invalid, StepsChanged

WITHIN = ">"
"""Stands between the key of a call of another tool and the key of a step of that tool. No name of a step has it."""


_IN_KEYS = re.compile(r"~undo~|~(?=report)|~[0-9a-f]{12}(?=#|>|\Z)")
"""Parts of keys that are no names: digests and lanes."""


class RecordedStep(Struct, frozen=True):
    """A step as the journal has it."""

    started: StepStarted
    finished: StepFinished | None = None
    """The step's end; None while it runs, and for a step whose end nobody knows."""

    @property
    def is_in_doubt(self) -> bool:
        """True if a person must say what became of it, unless it runs right now."""
        return self.finished is None and not self.started.idempotent

    @property
    def report(self) -> str | None:
        """The report of the tool that this is; None for a step."""
        return str(self.started.input) if self.started.lane == "report" else None


def questions_about(steps: Mapping[str, RecordedStep], use: ToolUse) -> Iterator[tuple[str, Json]]:
    """The name and the reason of each question about a step of this use whose end nobody knows. They are asked all at
    once and before the tool runs: a question in its middle would cut off the steps that run beside. The
    reason names the tool that the step calls, if it calls one, since that has the effect.
    """
    for key, step in steps.items():
        if step.is_in_doubt:
            # The step's own call, or that of the tool whose step it is.
            call = steps.get(key.rpartition(WITHIN)[0], step) if not step.started.tool else step
            name, given = (call.started.tool, call.started.input) if call.started.tool else (use["name"], use["input"])
            yield step_question_name(key, step.started.attempt), {"tool": name, "step": key, "input": given}


def step_words(key: str) -> str:
    """The key in words for people: names, and numbers where names repeat."""
    return _IN_KEYS.sub("", key).replace(WITHIN, " > ")


def steps_within(steps: Mapping[str, RecordedStep], within: str = "") -> Mapping[str, RecordedStep]:
    """The steps that the tool has asked for itself, by their keys. `within`: the key of the call of another tool, whose
    steps are wanted.
    """
    prefix = f"{within}{WITHIN}" if within else ""
    found = ((key[len(prefix) :], step) for key, step in steps.items() if key.startswith(prefix))
    return {key: step for key, step in found if WITHIN not in key}


class StepBook:
    """The steps of one run of a tool: those that earlier runs have on record, and those asked for so far."""

    def __init__(self, recorded: Mapping[str, RecordedStep], *, fails_again: bool = True) -> None:
        """`fails_again`: False for a run that a hook wanted because the one before had failed. Steps that failed run
        again then, and what the program did after the first of them need not be the same.
        """
        self._recorded = recorded
        self._fails_again = fails_again
        own = [key for key, step in recorded.items() if not step.started.lane]
        if not fails_again:
            failed = (at for at, key in enumerate(own) if _failed(recorded[key]))
            own = own[: next(failed, len(own))]
        self._own = own
        """The keys of recorded steps of the tool's own task, in their order."""
        self._asked_own = 0
        self._asked: set[str] = set()
        self._counts: dict[str, int] = {}
        self._reports: list[str] = []
        """The reports on record."""

    def ask(self, call: StepCall, lane: Lane) -> str:
        """The key of the step that the tool asks for now. Errors: `StepsChanged`; `Invalid` for too many steps."""
        name = call.name
        if lane == "side":
            name = f"{name}~{arguments_digest(call.function, call.arguments)}"
        elif lane:
            name = f"~{lane}~{name}"
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = name if count == 1 else f"{name}#{count}"
        if not lane:
            if self._asked_own < len(self._own) and self._own[self._asked_own] != key:
                raise StepsChanged(
                    "the tool asks for another step than before it was cut off: its program has changed, or takes"
                    " decisions that are in no step; nothing of this step has run",
                    step=key,
                    recorded=self._own[self._asked_own],
                    position=self._asked_own + 1,
                )
            self._asked_own += 1
        if len(self._asked) >= STEPS_MAX:
            raise Invalid("a tool call has that many steps at most", steps_max=STEPS_MAX)
        self._asked.add(key)
        return key

    def report(self, text: str) -> str | None:
        """The key of the next report; None for one that is on record, also of an earlier run, and beyond the bound."""
        if not self._reports:
            self._reports = [each.report for each in self._recorded.values() if each.report is not None]
        if text in self._reports or len(self._reports) >= REPORTS_MAX:
            return None
        self._reports.append(text)
        return f"~report#{len(self._reports)}"

    def recorded(self, key: str) -> RecordedStep | None:
        """The step as an earlier run has left it; None if it has not begun, or is to run again."""
        found = self._recorded.get(key)
        return None if found is not None and not self._fails_again and _failed(found) else found

    def attempt(self, key: str) -> int:
        """The number of the next attempt at this step, from 1."""
        found = self._recorded.get(key)
        return 1 if found is None else found.started.attempt + 1

    @property
    def not_asked(self) -> tuple[str, ...]:
        """The keys of the steps of earlier runs that this run has not asked for. Compensations do not count: they are
        asked for only where the tool fails.
        """
        own = set(self._own)
        return tuple(
            key
            for key, step in self._recorded.items()
            if key not in self._asked and (key in own or step.started.lane == "side")
        )

    @property
    def failure(self) -> str | None:
        """The failure of the tool if its compensations had begun: the tool has failed, whatever it does now."""
        return next((step.started.failure for step in self._recorded.values() if step.started.lane == "undo"), None)


def _failed(step: RecordedStep) -> bool:
    return step.finished is not None and step.finished.error is not None


def reports_in(steps: Mapping[str, Mapping[str, RecordedStep]]) -> list[str]:
    """The reports of tools that have no result yet, in the order in which they were made."""
    made = [each.started for own in steps.values() for each in own.values() if each.report is not None]
    return [str(each.input) for each in sorted(made, key=lambda started: started.at)]


def steps_left(keys: Sequence[str]) -> StepsChanged:
    """The error of a tool that has ended without asking for all of the steps that an earlier run has on record."""
    return StepsChanged(
        "the tool has ended without steps that it took before it was cut off: its program has changed, or takes"
        " decisions that are in no step; those steps stand",
        recorded=list(keys[:10]),
        count=len(keys),
    )


def with_step(
    steps: Mapping[str, Mapping[str, RecordedStep]], record: StepStarted | StepFinished
) -> Mapping[str, Mapping[str, RecordedStep]]:
    """The steps by tool use id, with one more record; the same mapping if the record's start is not known."""
    own = steps.get(record.tool_use_id, {})
    if isinstance(record, StepStarted):
        step = RecordedStep(record)
    elif record.step in own:
        step = RecordedStep(own[record.step].started, record)
    else:
        return steps  # The row of its start was erased, and a later record states the step again.
    return {**steps, record.tool_use_id: {**own, record.step: step}}


def step_records(steps: Mapping[str, RecordedStep]) -> Iterator[StepStarted | StepFinished]:
    """The records that state these steps."""
    for step in steps.values():
        yield step.started
        if step.finished is not None:
            yield step.finished
