"""What the records of an orchestrator's journal tell, in few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from repertory.core.orchestration.results import NodeResult, Status

if TYPE_CHECKING:
    from repertory.core.journal.records import NodeChanged
    from repertory.core.messages import Json


class Told(NamedTuple):
    """What one record tells."""

    text: str
    """Of a run that begins its task, of one that ends early the reason; of a node what it led to, or what it asks."""
    tokens: int | None = None
    """What a node took that time; None when it does not say so."""


def told_by(record: NodeChanged) -> Told | None:
    """None for a record that only says something once more. Errors: `Corrupt` for a result that nobody can read."""
    if record.node:
        result = NodeResult.from_dict(cast("Mapping[str, Json]", record.result))
        asked = ", ".join(each.name for each in result.interrupts)
        text = asked if result.status is Status.INTERRUPTED else str(result)
        return Told(text, result.accumulated_usage.get("totalTokens") or None)
    if record.status == "failed":
        return Told(str(record.data.get("reason")))
    again = "responses" in record.data and not record.data.get("loading")  # One that is loaded begins here.
    return None if again else Told(_words_of(record.data.get("task")))


def _words_of(task: Json) -> str:
    if isinstance(task, str):
        return task
    blocks = [each for each in task if isinstance(each, dict)] if isinstance(task, list) else []
    return " ".join(str(each["text"]) for each in blocks if "text" in each)
