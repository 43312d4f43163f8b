"""Where a conversation stands between two steps of tools: what began, what ended, what was asked and answered.

The journal says the same (`core/journal/standing.py`); a running agent keeps it so that no call has to read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from repertory.core.interrupts import Interrupt, is_about_outcome, outcome_id
from repertory.core.messages import Json, Message, ToolResult


class Start(NamedTuple):
    """That a tool was started."""

    attempt: int
    """How often, this time included."""
    key: str = ""
    """The idempotency key of all its attempts; empty when nobody has said it, and whoever goes on makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a conversation stands. Everything but `last` is about the tool uses of the last message."""

    last: Message | None
    started: frozenset[str] = frozenset()
    """Tool use ids that were started and have no recorded end: unless they run now, their outcome is unknown."""
    finished: Mapping[str, ToolResult] = field(default_factory=dict["str", "ToolResult"])
    """Recorded results by tool use id."""
    starts: Mapping[str, Start] = field(default_factory=dict["str", "Start"])
    """Tool use id to its last start, for those that have no result."""
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

    def begun(self, use_id: str, start: Start) -> Standing:
        """The standing after a tool was started."""
        starts = {**self.starts, use_id: start}
        return replace(self._settled({use_id}), started=self.started | {use_id}, starts=starts)

    def ended(self, result: ToolResult) -> Standing:
        """The standing after a tool has ended."""
        use_id = result["toolUseId"]
        starts = {one: start for one, start in self.starts.items() if one != use_id}
        finished = {**self.finished, use_id: result}
        return replace(self._settled({use_id}), started=self.started - {use_id}, finished=finished, starts=starts)

    def parked(
        self, results: Sequence[ToolResult], interrupts: Sequence[Interrupt], parked: Mapping[str, Start]
    ) -> Standing:
        """The standing after a step that has to wait for a person.

        `parked`: tool uses that had started on record and stopped in order to ask, by id, with that start.
        """
        finished = {**self.finished, **{result["toolUseId"]: result for result in results}}
        started = frozenset(self.started - finished.keys() - parked.keys())
        starts = {**self.starts, **parked}
        after = replace(
            self._settled(self.started - started),
            started=started,
            finished=finished,
            starts={use_id: start for use_id, start in starts.items() if use_id not in finished},
        )
        return after.asked(interrupts)

    def _settled(self, uses: Collection[str]) -> Standing:
        """Whatever somebody said of an earlier start of these tool uses is no answer about another one."""
        settled = {outcome_id(use_id) for use_id in uses}
        return replace(
            self,
            questions=tuple(one for one in self.questions if not (is_about_outcome(one) and one.id in settled)),
            responses={key: value for key, value in self.responses.items() if key not in settled},
        )
