"""Where a conversation stands between two steps of tools: what began, what ended, what was asked and answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def answered(self, responses: Mapping[str, Json]) -> Standing:
        """The standing when these answers have come as well."""
        return replace(self, responses={**self.responses, **responses})

    def ended(self, results: Mapping[str, ToolResult]) -> Standing:
        """The standing when these tools have ended as well, by tool use id."""
        if not results:
            return self
        settled = {outcome_id(use_id) for use_id in results}
        return replace(
            self,
            started=self.started - results.keys(),
            finished={**self.finished, **results},
            starts={use_id: start for use_id, start in self.starts.items() if use_id not in results},
            questions=tuple(one for one in self.questions if not (is_about_outcome(one) and one.id in settled)),
            responses={key: value for key, value in self.responses.items() if key not in settled},
        )
