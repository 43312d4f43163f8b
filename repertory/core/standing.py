"""Where a conversation stands between two steps of tools: what began, what ended, what was asked and answered.

The journal says the same (`core/journal/standing.py`); a running agent keeps it so that no call has to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from repertory.core.interrupts import Interrupt, is_about_outcome, outcome_id
from repertory.core.messages import Json, Message, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a conversation stands. Everything but `last` is about the tool uses of the last message."""

    last: Message | None
    started: frozenset[str] = frozenset()
    """Tool use ids that were started and have no recorded end: unless they run now, their outcome is unknown."""
    finished: Mapping[str, ToolResult] = field(default_factory=dict["str", "ToolResult"])
    """Recorded results by tool use id."""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tool use id to how often it was started, for those that have no result."""
    questions: tuple[Interrupt, ...] = ()
    """What was asked, answered or not, in that order."""
    responses: Mapping[str, Json] = field(default_factory=dict[str, "Json"])
    """The answers, by interrupt id."""

    @property
    def waiting(self) -> tuple[Interrupt, ...]:
        """What was asked and has no answer."""
        return tuple(one for one in self.questions if one.id not in self.responses)

    def not_asked(self, interrupts: Sequence[Interrupt]) -> tuple[Interrupt, ...]:
        """Those of these that do not wait already."""
        return tuple(one for one in interrupts if one not in self.waiting)

    def new_answers(self, responses: Mapping[str, Json]) -> dict[str, Json]:
        """Those of these that are not known already."""
        known = self.responses
        return {key: value for key, value in responses.items() if key not in known or known[key] != value}

    def asked(self, interrupts: Sequence[Interrupt]) -> Standing:
        """The standing after these were asked. Asked again, a question has no answer any more."""
        questions = {one.id: one for one in (*self.questions, *interrupts)}
        again = {one.id for one in interrupts}
        responses = {key: value for key, value in self.responses.items() if key not in again}
        return replace(self, questions=tuple(questions.values()), responses=responses)

    def answered(self, responses: Mapping[str, Json]) -> Standing:
        """The standing after these answers came."""
        return replace(self, responses={**self.responses, **responses})

    def parked(
        self, results: Sequence[ToolResult], interrupts: Sequence[Interrupt], parked: Mapping[str, int]
    ) -> Standing:
        """The standing after a step that has to wait for a person.

        `parked`: tool uses that had started on record and stopped in order to ask, by id, with how often they started.
        """
        finished = {**self.finished, **{result["toolUseId"]: result for result in results}}
        started = frozenset(self.started - finished.keys() - parked.keys())
        settled = {outcome_id(use_id) for use_id in self.started - started}
        attempts = {**self.attempts, **parked}
        after = replace(
            self,
            started=started,
            finished=finished,
            attempts={use_id: count for use_id, count in attempts.items() if use_id not in finished},
            questions=tuple(one for one in self.questions if not (is_about_outcome(one) and one.id in settled)),
            responses={key: value for key, value in self.responses.items() if key not in settled},
        )
        return after.asked(interrupts)
