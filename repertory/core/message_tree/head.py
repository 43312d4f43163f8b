"""What opening an agent needs, by value, as of when its session was given up in good order.

It spares a reader the listing and a request per message. It holds as long as nobody has written since: the agent's
document is the one it names, and the document after the last message is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from repertory.core.journal.rows import Row
from repertory.core.message_tree.kept_rows import Line, entry, read_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """An agent at rest."""

    rows: Sequence[Row]
    """Those from the last one's `low` on."""
    next_number: int
    """Of the next message's document."""
    messages: int
    """Documents of messages that there are."""
    numbers: Mapping[int, int]
    """Sequence number of a message's row to the number of its document."""
    tail: Sequence[Line]
    """The rows of the last document."""
    agent_version: str
    """Of the agent's document."""

    def spelled(self) -> dict[str, object]:
        """As the lease's object keeps it."""
        return {
            "next": self.next_number,
            "messages": self.messages,
            "numbers": [f"{seq} {number}" for seq, number in self.numbers.items()],
            "tail": [str(line.erased()) for line in self.tail],
            "agent": self.agent_version,
            "rows": [entry(row) for row in self.rows],
        }


def read_head(agent_id: str, value: object) -> Head | None:
    """The head again; None when it cannot be read: then the documents say it all."""
    try:
        said = cast("dict[str, object]", value)
        kept = [read_entry(each) for each in cast("list[object]", said["rows"])]
        rows = [row for each in kept if (row := each.line.row(agent_id, each.body)) is not None]
        pairs = [str(text).split(" ") for text in cast("list[object]", said["numbers"])]
        head = Head(
            rows=rows,
            next_number=int(cast("int", said["next"])),
            messages=int(cast("int", said["messages"])),
            numbers={int(seq): int(number) for seq, number in pairs},
            tail=tuple(Line.read(text) for text in cast("list[object]", said["tail"])),
            agent_version=str(said["agent"]),
        )
    except (ValueError, TypeError, KeyError):
        return None
    return head if rows and len(rows) == len(kept) else None
