"""Going on from a snapshot: the records by which a journal shows what it shows.

The conversation goes back to the last message that both have, and on from there with those of the snapshot; where
they have nothing in common, to its beginning. What was said beyond stays in the journal, hidden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from repertory.core.interrupt_state import read_state, records_between
from repertory.core.journal.editing import said_by_hand
from repertory.core.journal.records import Branched, MessageAdded, Record, View
from repertory.core.journal.shown import SUMMARY_SEQ
from repertory.core.messages import repair
from repertory.core.standing import Standing
from repertory.core.window.decision import is_summary

if TYPE_CHECKING:
    from repertory.core.journal.image import Image
    from repertory.core.messages import Json, Message
    from repertory.core.snapshots.fields import SnapshotFields


def restoring(image: Image, wanted: SnapshotFields, at: float) -> list[Record]:
    """The records to append to the journal that amounts to `image`. Fields that the snapshot lacks stay as they are.

    Errors: `Invalid`.
    """
    messages = list(repair(wanted.messages)) if wanted.messages is not None else [said for _, said in image.shown]
    summary, messages = _split_summary(messages, wanted.manager)
    named = len(messages) if wanted.turn is None else max(len(messages) - wanted.turn.messages, 0)
    kept, last = _in_common(image, messages[:named]) if image.view.summary == summary else (0, 0)
    view = _view(image, summary, last, wanted.manager)
    state = image.state if wanted.state is None else wanted.state
    branched = Branched(
        at=at,
        position=last,
        last=last,
        message_count=image.message_count,
        turns=image.turns,
        run=image.run,
        view=view,
        state=dict(state),
        name="a snapshot",
    )
    before = messages[kept - 1] if kept else None
    added = list(said_by_hand(messages[kept:named], before, turn=image.turns, index=image.message_count, at=at))
    if wanted.turn is not None:
        added += _named_turn(image, added, messages[named:], wanted.turn.token, at)
    end = messages[-1] if messages else None
    standing = read_state(wanted.interrupts, end)
    return [branched, *added, *records_between(Standing(last=end), standing, at)]


def _in_common(image: Image, messages: Sequence[Message]) -> tuple[int, int]:
    """How many of the messages in front are shown by the journal as well, and where the last of these stands.

    Nothing is in common when they part among the pinned ones: those have no place to go on from.
    """
    ours = [entry for entry in image.shown if entry[0] != SUMMARY_SEQ]
    kept = 0
    for (_, said), message in zip(ours, messages, strict=False):
        if said["role"] != message["role"] or said["content"] != message["content"]:
            break
        kept += 1
    if kept <= len(image.view.pinned):
        return 0, 0
    return kept, ours[kept - 1][0]


def _view(image: Image, summary: Message | None, last: int, manager: Mapping[str, Json] | None) -> View:
    was = image.view
    name, kept = was.manager, dict(was.manager_state)
    if manager is not None:
        kept = {key: value for key, value in manager.items() if key not in ("__name__", "summary_message")}
        said = manager.get("__name__")
        name = said if isinstance(said, str) else was.manager
    if not last:
        return View(summary=summary, manager=name, manager_state=kept)
    return replace(
        was,
        replaced={seq: message for seq, message in was.replaced.items() if seq <= last},
        hidden=tuple(stretch for stretch in was.hidden if stretch[1] <= last),
        summary=summary,
        manager=name,
        manager_state=kept,
    )


def _named_turn(
    image: Image, added: Sequence[MessageAdded], messages: Sequence[Message], token: str, at: float
) -> Iterator[MessageAdded]:
    """The last turn, which can be asked for again by its name."""
    last = added[-1] if added else None
    turn, index = (image.turns, image.message_count) if last is None else (last.turn, last.index + 1)
    for place, message in enumerate(messages):
        name = None if place else token
        yield MessageAdded(at=at, message=message, turn=turn + 1, index=index + place, idempotency_token=name)


def _split_summary(messages: list[Message], manager: Mapping[str, Json] | None) -> tuple[Message | None, list[Message]]:
    """The summary that stands in front of the messages, ours or one that others have written; and the rest."""
    first = messages[0] if messages else None
    if first is None:
        return None, messages
    told = (manager or {}).get("summary_message")
    if is_summary(first) or (isinstance(told, dict) and told.get("content") == first["content"]):
        return first, messages[1:]
    return None, messages
