"""Where else a journal says what a message said.

A text is found where it stands word for word, in whole: a summary in other words, or a message that repeats a part, is
not. Texts of a few characters stand everywhere by chance and are not looked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from repertory.core.journal.leaves import leaves_of, texts_of
from repertory.core.journal.plain_json import dump
from repertory.core.journal.records import (
    Branched,
    Interrupted,
    NodeChanged,
    Record,
    Resumed,
    StateChanged,
    ToolFinished,
    ViewChanged,
)
from repertory.core.journal.rows import Kind, Row
from repertory.core.messages import Json, Message

if TYPE_CHECKING:
    from repertory.core.journal.fold import Fold

CHARACTERS_MIN = 8
"""The shortest text that is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A place that still says it."""

    agent_id: str
    seq: int
    """Of the row; 0 for what is in force, whatever row it came from."""
    what: str
    """The kind of the row; or `summary`, or `state` and the key."""


def only_in(original: Message, instead: Message) -> tuple[str, ...]:
    """The texts that the one has and the other has not: what should be gone."""
    stays = "\n".join(texts_of(instead))
    long = (text for text in texts_of(original) if len(text) >= CHARACTERS_MIN)
    return tuple(dict.fromkeys(text for text in long if text not in stays))


class Texts:
    """Texts to look for in what is stored."""

    def __init__(self, texts: Sequence[str]) -> None:
        # As they are or, beside a lone surrogate, in ASCII: bodies are written in both ways.
        spellings = {spelled for text in texts for spelled in (_as_it_is(text), json.dumps(text)[1:-1].encode())}
        self._spellings = tuple(spellings)

    def in_row(self, row: Row) -> bool:
        """Whether the row says one of them."""
        return not row.erased and any(spelled in row.body for spelled in self._spellings)

    def in_value(self, value: object) -> bool:
        """Whether any text in the value does."""
        leaves = [_as_it_is(leaf) for leaf in leaves_of(value)]
        return any(spelled in leaf for leaf in leaves for spelled in self._spellings)

    def in_state(self, state: Mapping[str, Json]) -> list[str]:
        """The keys that do, or whose values do."""
        return [key for key, value in state.items() if self.in_value([key, value])]


def copies_in(rows: Sequence[Row], texts: Texts) -> Iterator[Copy]:
    """The rows that say one of the texts."""
    for row in rows:
        if texts.in_row(row):
            yield Copy(agent_id=row.agent_id, seq=row.seq, what=kind_name(row.kind))


def copies_in_force(agent_id: str, fold: Fold, texts: Texts) -> Iterator[Copy]:
    """Where state and summary say one of the texts now."""
    for key in texts.in_state(fold.state):
        yield Copy(agent_id=agent_id, seq=0, what=f"state {key}")
    if texts.in_value(fold.shown.view.summary):
        yield Copy(agent_id=agent_id, seq=0, what="summary")


def settled_copies(
    rows: Sequence[Row], records: Sequence[tuple[int, Record | None]], texts: Texts, fold: Fold
) -> set[int]:
    """The rows that say one of the texts, and that nothing depends on once state and view are stated anew.

    Not those of a state or a summary that says it still: the new statement would say it again.
    """
    in_state, in_summary = bool(texts.in_state(fold.state)), texts.in_value(fold.shown.view.summary)
    found: set[int] = set()
    for row, (seq, record) in zip(rows, records, strict=True):
        if not texts.in_row(row):
            continue
        match record:
            case StateChanged():
                settled = not in_state
            case ViewChanged():
                settled = not in_summary
            case Branched():
                settled = not (in_state or in_summary)
            case ToolFinished() | Interrupted() | Resumed():
                settled = seq < fold.last_message_seq
            case NodeChanged():
                settled = record.run < fold.run
            case _:
                settled = False
        if settled:
            found.add(seq)
    return found


def kind_name(kind: int) -> str:
    """The name of a kind of record."""
    return Kind(kind).name.lower() if kind in set(Kind) else f"kind {kind}"


def _as_it_is(text: str) -> bytes:
    return dump(text)[1:-1]
